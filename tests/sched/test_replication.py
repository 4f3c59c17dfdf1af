"""Replicas of blocks follow their use, and no order ever breaks a chain or loses the last copy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import (
    Conductor,
    Copy,
    Drop,
    EarlyRejection,
    HotReplicas,
    LeastTokens,
    LoadBalance,
    NoReplication,
)
from mooncake_jax.types import SLO
from tests.sched.views import ROUND, make_placement, make_request, make_view


def use(policy, keys, times: int = 1, now: float = 0.0) -> None:
    for _ in range(times):
        policy.placed(make_request(keys=tuple(keys)), make_placement(), now)


def held(instances: int, **by_instance) -> PrefixIndex:
    index = PrefixIndex(instances)
    for name, keys in by_instance.items():
        index.add(int(name[1:]), keys)
    return index


def follow(index: PrefixIndex, orders) -> None:
    for order in orders:
        if isinstance(order, Copy):
            index.add(order.target, order.keys)
        else:
            index.remove(order.instance, order.keys)


def test_a_hot_prefix_is_copied_from_a_holder_to_the_shortest_queues_that_lack_it():
    policy = HotReplicas(period=10.0, hot_rate=1.0)
    index = held(4, i0=[1, 2, 3], i1=[1, 2])
    use(policy, [1, 2, 3], times=25)  # 2.5 uses a second ask for 3 replicas
    use(policy, [1, 2], times=3)  # 2.8 for these two: 3 as well
    view = make_view([4.0, 2.0, 1.0, 3.0], index=index)
    # The pair first, from the less busy of its holders; then the third block, which two instances lack.
    assert policy.orders(view, 10.0) == [
        Copy((1, 2), source=1, target=2),
        Copy((3,), source=0, target=2),
        Copy((3,), source=0, target=1),
    ]


def test_what_is_used_together_travels_together_and_only_what_is_missing():
    policy = HotReplicas(period=10.0, hot_rate=1.0)
    index = held(3, i0=[1, 2, 3, 4], i2=[1])
    use(policy, [1, 2, 3, 4], times=20)
    assert policy.orders(make_view([0.0, 5.0, 0.0], index=index), 10.0) == [Copy((2, 3, 4), source=0, target=2)]


def test_uses_count_for_one_round_only_and_are_rare_enough_for_one_replica_below_the_rate():
    policy = HotReplicas(period=10.0, hot_rate=1.0)
    view = make_view([0.0, 0.0], index=held(2, i0=[1]))
    use(policy, [1], times=10)
    assert policy.orders(view, 10.0) == []
    use(policy, [1], times=11)
    assert policy.orders(view, 20.0) == [Copy((1,), 0, 1)]
    assert policy.orders(view, 30.0) == []


def test_replicas_and_copied_blocks_are_bounded_and_targets_of_equal_queues_share_them():
    policy = HotReplicas(period=10.0, hot_rate=0.1, max_replicas=3, max_copy_blocks=5)
    index = held(6, i5=[1, 2, 3])
    use(policy, [1, 2, 3], times=100)
    view = make_view([0.0] * 6, index=index)
    first = policy.orders(view, 10.0)
    assert first == [Copy((1, 2, 3), 5, 0), Copy((1, 2), 5, 1)]
    follow(index, first)
    use(policy, [1, 2, 3], times=100)
    assert policy.orders(view, 20.0) == [Copy((3,), 0, 1)]
    two = HotReplicas(period=10.0, hot_rate=0.1, max_replicas=2)
    use(two, [1], times=100)
    use(two, [7], times=100)
    view = make_view([0.0] * 3, index=held(3, i0=[1, 7]))
    assert [order.target for order in two.orders(view, 10.0)] == [1, 2]


def test_blocks_that_nobody_holds_whole_are_not_copied():
    policy = HotReplicas(period=10.0, hot_rate=0.1)
    use(policy, [1, 2], times=2)
    view = make_view([5.0, 0.0, 0.0], index=held(3, i0=[1], i1=[2]))
    assert policy.orders(view, 10.0) == [Copy((1,), 0, 1)]


def test_cold_replicas_go_tails_first_and_the_last_copy_stays():
    policy = HotReplicas(period=10.0, hot_rate=100.0, cold_s=60.0)
    index = held(2, i0=[10, 20, 30], i1=[10, 20, 30])
    view = make_view([0.0, 0.0], index=index)
    use(policy, [10, 20, 30], now=0.0)
    assert policy.orders(view, 59.0) == []
    got = policy.orders(view, 60.0)
    assert got == [Drop((30, 20, 10), instance=1)]
    follow(index, got)
    assert policy.orders(view, 200.0) == []


def test_a_cold_block_stays_under_what_follows_it():
    policy = HotReplicas(period=10.0, hot_rate=100.0, cold_s=60.0)
    index = held(3, i0=[10, 20], i1=[10, 21], i2=[10, 20])
    use(policy, [10, 20], now=0.0)
    use(policy, [10, 21], now=0.0)
    assert policy.orders(make_view([0.0] * 3, index=index), 60.0) == [Drop((20, 10), instance=2)]


def test_a_use_keeps_the_replicas_of_a_prefix_but_not_of_what_it_did_not_use():
    policy = HotReplicas(period=10.0, hot_rate=100.0, cold_s=60.0)
    view = make_view([0.0, 0.0], index=held(2, i0=[10, 20, 30], i1=[10, 20, 30]))
    use(policy, [10, 20, 30], now=0.0)
    use(policy, [10, 20], now=50.0)
    assert policy.orders(view, 60.0) == [Drop((30,), instance=1)]


def test_blocks_that_left_all_caches_are_forgotten():
    policy = HotReplicas(period=10.0, cold_s=60.0)
    use(policy, [1, 2, 3], now=0.0)
    use(policy, [1, 4], now=0.0)
    assert policy.orders(make_view([0.0], index=held(1, i0=[1, 4])), 60.0) == []
    assert sorted(policy._blocks) == [1, 4]
    assert list(policy._blocks[1].children) == [4]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_orders_never_break_a_chain_lose_a_block_or_exceed_their_bounds(data):
    policy = HotReplicas(period=1.0, hot_rate=2.0, cold_s=3.0, max_replicas=3, max_copy_blocks=6)
    instances = data.draw(st.integers(1, 5))
    index, parents = PrefixIndex(instances), {}
    for now in range(12):
        for _ in range(data.draw(st.integers(0, 8))):
            # Paths in a binary tree, so that prompts share prefixes.
            path, key = [], 1
            for turn in data.draw(st.lists(st.booleans(), min_size=1, max_size=4)):
                parents[2 * key + turn] = key if path else None
                key = 2 * key + turn
                path.append(key)
            use(policy, path, now=float(now))
            index.add(data.draw(st.integers(0, instances - 1)), path)
        before = {key: index.holders(key) for key in parents}
        orders = policy.orders(make_view([0.0] * instances, index=index), float(now))
        for order in orders:
            if isinstance(order, Copy):
                assert all(before[key] >> order.source & 1 for key in order.keys)
                assert not any(index.holders(key) >> order.target & 1 for key in order.keys)
            follow(index, [order])
        assert sum(len(order.keys) for order in orders if isinstance(order, Copy)) <= 6
        for key, was in before.items():
            mask = index.holders(key)
            assert bool(mask) == bool(was)
            assert mask.bit_count() <= max(3, was.bit_count())
            if parents[key] is not None:
                assert mask & ~index.holders(parents[key]) == 0


def test_without_replication_the_conductor_orders_nothing_and_with_it_what_it_heard_of_counts():
    view = make_view([0.0, 0.0], index=held(2, i0=[1]))
    plain = Conductor(LoadBalance(), LeastTokens(), EarlyRejection(), ROUND, SLO())
    assert isinstance(plain.replication, NoReplication)
    assert plain.replication.period is None
    replicating = Conductor(
        LoadBalance(), LeastTokens(), EarlyRejection(), ROUND, SLO(), replication=HotReplicas(period=1.0, hot_rate=1.0)
    )
    for conductor in (plain, replicating):
        for _ in range(2):
            conductor.placed(make_request(keys=(1,)), make_placement(), 0.0)
    assert plain.replicate(view, 1.0) == []
    assert replicating.replicate(view, 1.0) == [Copy((1,), 0, 1)]


@pytest.mark.parametrize("name", ["period", "hot_rate", "cold_s", "max_replicas", "max_copy_blocks"])
def test_values_out_of_range_are_refused_by_name(name):
    with pytest.raises(UserError, match=rf"replication\.{name} is 0"):
        HotReplicas(**{name: 0})
