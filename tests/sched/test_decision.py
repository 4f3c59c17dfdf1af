"""A log of decisions is decided again to the last bit, whatever the decisions rested on."""

import json
import random

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import (
    ClosedForm,
    Conductor,
    Damping,
    Decision,
    EarlyRejection,
    Hysteresis,
    KVCacheCentric,
    LeastTokens,
    Measured,
    Predictive,
    StageByStage,
    redecide,
)
from mooncake_jax.types import SLO, Placement, Rejection, Request
from tests.sched.views import make_view

ADMISSIONS = {
    "predictive": lambda: Predictive(0.9),
    "stage_by_stage": lambda: StageByStage(0.9),
    "hysteresis": lambda: Hysteresis(Predictive(0.9), low=0.7),
    "damping": lambda: Hysteresis(Damping(EarlyRejection(0.9), tau=5.0), low=0.7),
}


def conductor(admission: str, estimator) -> Conductor:
    return Conductor(KVCacheCentric(), LeastTokens(), ADMISSIONS[admission](), estimator, SLO(ttft=3.0, tbt=0.08))


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_a_log_is_decided_again_with_what_was_in_flight_and_what_the_estimator_knew(admission):
    rng, index = random.Random(3), PrefixIndex(3)
    asked = conductor(admission, estimator := Measured())
    lines, outcomes = [], []
    for i in range(200):
        now = i / 7
        n = rng.randrange(1, 9000)
        first = 1000 * rng.randrange(12) + 2**63
        request = Request(str(i), now, n, rng.randrange(1, 300), tuple(range(first, first + -(-n // 512))))
        flying = [(rng.randrange(2), rng.randrange(10**5), now + rng.uniform(-15, 5)) for _ in range(rng.randrange(40))]
        tokens = [rng.randrange(3 * 10**6), rng.randrange(3 * 10**6)]
        view = make_view([4 * rng.random() for _ in range(3)], tokens, [9, 8], index, flying)
        outcome = asked.schedule(request, view, now)
        lines.append(Decision(request, view, now, outcome, asked.estimator_state()).to_json())
        outcomes.append(outcome)
        if isinstance(outcome, Placement):
            index.add(outcome.prefill, request.keys)
        estimator.observe_prefill(n, 0, rng.uniform(0.1, 2.0))
        estimator.observe_decode(9, 10**5, rng.uniform(0.01, 0.1))
        estimator.observe_transfer(10**9, rng.randrange(3), rng.randrange(3), rng.uniform(0.01, 0.1))
    assert {type(outcome) for outcome in outcomes} == {Placement, Rejection}
    fresh = conductor(admission, Measured())
    for line, outcome in zip(lines, outcomes, strict=True):
        assert redecide(line, fresh) == outcome == Decision.from_json(line).outcome
        assert Decision.from_json(line).to_json() == line


def test_what_is_in_flight_is_logged():
    view = make_view(in_flight=[(0, 1000, 95.25), (1, 2000, 100.1)])
    request = Request("r", 100.0, 10, 5, (1,))
    asked = conductor("predictive", ClosedForm())
    line = Decision(request, view, 100.0, asked.schedule(request, view, 100.0), asked.estimator_state()).to_json()
    assert json.loads(line)["view"]["in_flight"] == [[0, 1000, 95.25], [1, 2000, 100.1]]
    assert json.loads(line)["estimator"] is None
    assert Decision.from_json(line).view.in_flight() == tuple(view.in_flight())


def test_a_log_of_an_estimator_that_learns_is_not_decided_again_by_one_that_does_not():
    asked, view, request = conductor("predictive", Measured()), make_view(), Request("r", 0.0, 10, 5, (1,))
    line = Decision(request, view, 0.0, asked.schedule(request, view, 0.0), asked.estimator_state()).to_json()
    with pytest.raises(UserError, match="an estimator that learns, and ClosedForm does not"):
        redecide(line, conductor("predictive", ClosedForm()))
