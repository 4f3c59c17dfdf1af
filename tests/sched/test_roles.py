"""When an instance changes sides: loads that differ for long, the idlest instance, never below the minimum."""

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.sched import Conductor, EarlyRejection, FixedRoles, LeastTokens, LoadBalance, LoadRoles, Switch
from mooncake_jax.types import SLO, InstanceId, Role
from tests.sched.views import ROUND, make_view

SLO_1 = SLO(ttft=10.0, tbt=0.1)
PREFILL_BUSY = make_view([9.0, 8.0, 10.0], (2000, 0, 1000))  # loads .9 and (.014 + 0 + .013) / 3 / .1 = .09
DECODE_BUSY = make_view([1.0, 0.0, 0.5], (80_000, 90_000, 70_000))  # loads .05 and .92
EVEN = make_view([5.0, 5.0, 5.0], (50_000, 50_000, 50_000))


def decide(policy, *views) -> list[Switch | None]:
    return [policy.decide(view, ROUND, SLO_1, 10.0 * i) for i, view in enumerate(views)]


def test_a_difference_that_lasts_moves_the_idlest_instance_to_the_busier_pool():
    policy = LoadRoles(high=0.8, low=0.4, patience=3)
    to_prefill, to_decode = Switch(InstanceId(Role.DECODE, 1)), Switch(InstanceId(Role.PREFILL, 1))
    assert decide(policy, *[PREFILL_BUSY] * 7) == [None, None, to_prefill, None, None, to_prefill, None]
    assert decide(LoadRoles(patience=2), DECODE_BUSY, DECODE_BUSY) == [None, to_decode]


def test_a_difference_that_does_not_last_moves_nobody():
    views = [PREFILL_BUSY, PREFILL_BUSY, EVEN, PREFILL_BUSY, PREFILL_BUSY, DECODE_BUSY, DECODE_BUSY, PREFILL_BUSY, EVEN]
    assert decide(LoadRoles(patience=3), *views) == [None] * 9


def test_two_overloaded_pools_keep_what_they_have():
    assert decide(LoadRoles(patience=1), make_view([9.0, 9.0], (90_000, 90_000))) == [None]


def test_pools_are_left_their_minimum():
    assert decide(LoadRoles(patience=1, min_decode=3), PREFILL_BUSY) == [None]
    assert decide(LoadRoles(patience=1, min_decode=2), PREFILL_BUSY) != [None]
    assert decide(LoadRoles(patience=1, min_prefill=3), DECODE_BUSY) == [None]
    assert decide(LoadRoles(patience=1), make_view([9.0, 9.0], ())) == [None]


def test_roles_are_fixed_unless_asked_otherwise():
    conductor = Conductor(LoadBalance(), LeastTokens(), EarlyRejection(), ROUND, SLO_1)
    assert conductor.roles.period is None
    assert isinstance(conductor.roles, FixedRoles)
    assert conductor.switch_roles(PREFILL_BUSY, 0.0) is None
    conductor = Conductor(LoadBalance(), LeastTokens(), EarlyRejection(), ROUND, SLO_1, roles=LoadRoles(patience=1))
    assert conductor.switch_roles(PREFILL_BUSY, 0.0) == Switch(InstanceId(Role.DECODE, 1))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"period": 0}, r"roles\.period is 0 s"),
        ({"high": 0.3, "low": 0.4}, r"roles\.low is 0\.4 and conductor\.roles\.high 0\.3"),
        ({"patience": 0}, r"roles\.patience is 0"),
        ({"min_decode": 0}, r"roles\.min_decode is 0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(arguments, says):
    with pytest.raises(UserError, match=says):
        LoadRoles(**arguments)
