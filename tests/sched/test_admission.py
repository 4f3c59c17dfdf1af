"""Overload control: what each policy predicts, when it rejects, and what it says then."""

import math

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.sched import (
    AcceptAll,
    Conductor,
    Damping,
    EarlyRejection,
    Hysteresis,
    LeastTokens,
    LoadBalance,
    Predictive,
    StageByStage,
    predict_decode_tbt,
)
from mooncake_jax.types import SLO, Rejection
from tests.sched.views import ROUND, make_placement, make_request, make_view

SLO_1 = SLO(ttft=10.0, tbt=0.1)
FLYING = [
    (0, 1000, 95.0),  # decodes; at 105 for 10 s
    (0, 2000, 92.9),  # decodes; at 105 for 12.1 s
    (1, 3000, 100.0),  # its prefill ends this moment
    (1, 4000, 103.0),  # will be prefilled by 105
    (0, 5000, 105.0),  # so will this one, just
    (0, 6000, 105.5),  # will not
]


def admit(policy, placement, request=None, view=None, now=100.0) -> Rejection | None:
    return policy.admit(request or make_request(), placement, view or make_view(), ROUND, SLO_1, now)


def test_predicted_decode_load_is_the_papers_worked_by_hand():
    view = make_view(in_flight=FLYING)
    # Joining: 4000, 5000 and 7000 tokens, 1.5 requests and 8000 tokens at each; staying: 1000 at one, 3000 at the other.
    by_hand = ((0.010 + 2.5 * 0.002 + 0.009) + (0.010 + 2.5 * 0.002 + 0.011)) / 2
    assert predict_decode_tbt(view, ROUND, 100.0, 105.0, 12.0, 7000) == pytest.approx(by_hand, rel=1e-12)
    without = ((0.010 + 2 * 0.002 + 0.0055) + (0.010 + 2 * 0.002 + 0.0075)) / 2
    assert predict_decode_tbt(view, ROUND, 100.0, 105.0, 12.0, None) == pytest.approx(without, rel=1e-12)


def test_a_request_at_a_decode_instance_that_died_is_not_predicted_to_decode():
    view = make_view(tokens=(0,), in_flight=[(1, 50_000, 99.0)])
    assert predict_decode_tbt(view, ROUND, 100.0, 101.0, 12.0, None) == pytest.approx(0.010)


def test_predictive_rejects_iff_the_larger_load_exceeds_its_threshold():
    view, request = make_view(in_flight=FLYING), make_request(7000)
    assert admit(Predictive(0.5), make_placement(5.0), request, view) is None  # 0.5 and 0.25
    got = admit(Predictive(0.49), make_placement(5.0), request, view)
    assert got == Rejection(
        "prefill load 0.50 exceeds 0.49: predicted TTFT 5.000 s on prefill-0 for an SLO of 10.0 s", 5.0 - 0.49 * 10.0
    )
    got = Predictive(0.6).admit(request, make_placement(5.0), view, ROUND, SLO(10.0, 0.025 / 0.8), 100.0)
    assert got.reason == (
        "decode load 0.80 exceeds 0.6: predicted TBT 0.0250 s on the mean decode instance in 5.000 s for an SLO of 0.03125 s"
    )
    assert got.retry_after == pytest.approx(0.25 * 100 * 0.025)


def test_predictive_sees_requests_that_are_still_in_prefill_where_early_rejection_does_not():
    coming = make_view(tokens=(0, 0), in_flight=[(i % 2, 40_000, 101.0) for i in range(8)])
    placement, request = make_placement(3.0, tbt=0.013), make_request(1000)
    assert admit(EarlyRejection(), placement, request, coming) is None
    request = make_request(2000)
    assert "decode load 1.80" in admit(Predictive(), placement, request, coming).reason  # 10 + 9 + 161 ms


def test_the_baseline_judges_prefill_first_and_decode_when_prefill_has_finished():
    policy, view = StageByStage(0.19), make_view(in_flight=FLYING)
    assert admit(policy, make_placement(1.9, tbt=9.0)) is None
    assert "prefill load 0.20 exceeds 0.19" in admit(policy, make_placement(2.0)).reason
    # Three requests of 1000 + 2000 + 700 tokens: what is still in prefill, and decode-1, do not count.
    step = 0.010 + 3 * 0.002 + 0.0037
    conductor = Conductor(LoadBalance(), LeastTokens(), policy, ROUND, SLO_1)
    got = conductor.recheck(make_request(700), make_placement(), view, 100.0)
    assert got.reason == "decode load 0.20 exceeds 0.19: predicted TBT 0.0197 s on decode-0 for an SLO of 0.1 s"
    assert got.retry_after == pytest.approx((1 - 0.19 / 0.197) * 100 * step)
    conductor = Conductor(LoadBalance(), LeastTokens(), StageByStage(0.2), ROUND, SLO_1)
    assert conductor.recheck(make_request(700), make_placement(), view, 100.0) is None


def test_only_the_baseline_judges_twice_and_never_a_request_of_one_token():
    full = make_view(in_flight=[(0, 10**6, 0.0)])
    rechecks = {}
    for policy in (AcceptAll(), EarlyRejection(), Predictive(), Hysteresis(Predictive(), 0.8), StageByStage()):
        conductor = Conductor(LoadBalance(), LeastTokens(), policy, ROUND, SLO_1)
        rechecks[type(policy).__name__] = conductor.rechecks
        assert (conductor.recheck(make_request(), make_placement(), full, 100.0) is not None) == conductor.rechecks
        assert conductor.recheck(make_request(output=1), make_placement(), full, 100.0) is None
    assert [name for name, does in rechecks.items() if does] == ["StageByStage"]


def test_hysteresis_goes_on_rejecting_until_the_load_is_low():
    policy = Hysteresis(EarlyRejection(1.0), low=0.6)
    loads = [0.5, 0.9, 1.0, 1.1, 0.9, 0.7, 0.6, 0.9, 1.0, 1.2, 0.61]
    accepted = [admit(policy, make_placement(ttft=10.0 * load)) is None for load in loads]
    assert accepted == [True, True, True, False, False, False, True, True, True, False, False]
    assert "prefill load 0.90 exceeds 0.6" in admit(policy, make_placement(ttft=9.0)).reason


def test_damping_follows_a_step_as_an_exponential_of_time():
    policy = Damping(EarlyRejection(), tau=4.0)

    def smoothed(ttft: float, now: float) -> float:
        return policy.predict(make_request(), make_placement(ttft=ttft), make_view(), ROUND, SLO_1, now).ttft

    assert smoothed(2.0, 100.0) == 2.0
    assert smoothed(10.0, 104.0) == pytest.approx(10 - 8 * math.exp(-1))
    # At one instant each request counts from where the load was before it, and the last one is remembered.
    assert smoothed(2.0, 104.0) == pytest.approx(2.0)
    assert smoothed(18.0, 104.0) == pytest.approx(18 - 16 * math.exp(-1))
    assert smoothed(0.0, 108.0) == pytest.approx((18 - 16 * math.exp(-1)) * math.exp(-1))


def test_damping_and_hysteresis_combine_and_say_that_the_load_is_smoothed():
    policy = Hysteresis(Damping(EarlyRejection(), tau=4.0), low=0.5)
    assert admit(policy, make_placement(ttft=1.0), now=0.0) is None
    assert admit(policy, make_placement(ttft=13.0), now=4.0) is None  # 13 - 12 / e = 8.59 s
    got = admit(policy, make_placement(ttft=13.0), now=8.0)  # 13 - 12 / e^2 = 11.38 s
    assert got.reason.startswith("prefill load 1.14 exceeds 1.0: predicted TTFT 11.376 s on prefill-0")
    assert got.reason.endswith("SLO of 10.0 s, smoothed over 4.0 s")
    assert "exceeds 0.5" in admit(policy, make_placement(ttft=6.0), now=12.0).reason


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StageByStage(0), "admission.threshold is 0"),
        (lambda: Predictive(-1.0), "admission.threshold is -1.0"),
        (lambda: Predictive(decode_s=0), "admission.decode_s is 0"),
        (lambda: Damping(EarlyRejection(), tau=0), "admission.tau is 0"),
        (lambda: Hysteresis(EarlyRejection(0.5), low=0.6), "low is 0.6; it must be more than 0 and at most the threshold 0.5"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, says):
    with pytest.raises(UserError, match=says):
        make()
