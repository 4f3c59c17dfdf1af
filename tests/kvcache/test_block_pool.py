"""BlockPool against a naive model, and its promises one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import LRU, BlockPool, BlockState, EvictionPolicy, IllegalTransition, Reservation


def fill(pool: BlockPool, *keys: int) -> None:
    for key in keys:
        assert pool.reserve(key) is not None
        pool.commit(key)


def test_a_block_is_matched_only_once_its_bytes_are_there():
    pool = BlockPool(4)
    assert pool.reserve(1) == Reservation(key=1, slot=0, evicted=None)
    assert (pool.match([1]), pool.state(1), len(pool)) == (0, BlockState.FILLING, 1)
    pool.commit(1)
    assert (pool.match([1, 2]), pool.state(1), pool.keys()) == (1, BlockState.READY, (1,))


def test_the_least_recently_used_block_leaves_and_its_slot_is_reused():
    pool = BlockPool(3)
    fill(pool, 1, 2, 3)
    slot_of_2 = pool.slot(2)
    pool.touch([1, 99])
    assert pool.keys() == (2, 3, 1)
    assert pool.reserve(4) == Reservation(key=4, slot=slot_of_2, evicted=2)
    assert (2 in pool, pool.state(2), len(pool)) == (False, BlockState.ABSENT, 3)
    with pytest.raises(KeyError):
        pool.slot(2)


def test_pinned_and_filling_blocks_never_leave():
    pool = BlockPool(3)
    fill(pool, 1, 2)
    pool.pin([1, 1])
    assert pool.pins == 2
    assert pool.reserve(3) is not None
    assert pool.reserve(4) == Reservation(key=4, slot=1, evicted=2)
    assert pool.reserve(5) is None
    assert pool.state(5) is BlockState.ABSENT
    pool.unpin([1])
    assert pool.reserve(5) is None
    pool.unpin([1])
    assert pool.pins == 0
    assert pool.reserve(5) == Reservation(key=5, slot=0, evicted=1)


def test_reserving_a_present_block_is_told_apart_from_a_full_pool():
    pool = BlockPool(1)
    pool.reserve(1)
    assert pool.reserve(1) is None
    assert pool.state(1) is BlockState.FILLING
    pool.commit(1)
    assert pool.reserve(1) is None
    assert pool.state(1) is BlockState.READY


def test_a_cancelled_block_gives_its_slot_back():
    pool = BlockPool(1)
    pool.reserve(1)
    pool.cancel(1)
    assert (len(pool), pool.state(1)) == (0, BlockState.ABSENT)
    assert pool.reserve(2) == Reservation(key=2, slot=0, evicted=None)


def test_illegal_transitions_raise_and_name_the_state():
    pool = BlockPool(2)
    with pytest.raises(IllegalTransition, match="0x1 is absent; it cannot become ready"):
        pool.commit(1)
    with pytest.raises(IllegalTransition, match="only a filling block"):
        pool.cancel(1)
    pool.reserve(1)
    with pytest.raises(IllegalTransition, match="only a ready block can be pinned"):
        pool.pin([1])
    pool.commit(1)
    with pytest.raises(IllegalTransition, match="0x1 is ready; it cannot become ready"):
        pool.commit(1)
    with pytest.raises(IllegalTransition, match="0x1 is ready; only a filling"):
        pool.cancel(1)


def test_a_wrong_pin_or_unpin_changes_nothing():
    pool = BlockPool(2)
    fill(pool, 1)
    with pytest.raises(IllegalTransition):
        pool.pin([1, 2])
    assert pool.pins == 0
    pool.pin([1])
    with pytest.raises(ValueError, match="1 pins, 2 to take back"):
        pool.unpin([1, 1])
    with pytest.raises(ValueError, match="0 pins, 1 to take back"):
        pool.unpin([2])
    assert pool.pins == 1


def test_a_pool_without_capacity_holds_nothing_and_a_huge_one_costs_nothing():
    assert BlockPool(0).reserve(1) is None
    assert BlockPool(2**60).reserve(1) == Reservation(key=1, slot=0, evicted=None)
    with pytest.raises(UserError, match="capacity is -1"):
        BlockPool(-1)


def test_another_eviction_policy_decides_who_leaves():
    class Newest(LRU):
        def order(self):
            return reversed(self._keys)

    assert isinstance(Newest(), EvictionPolicy)
    pool = BlockPool(2, Newest())
    fill(pool, 1, 2)
    assert pool.reserve(3) == Reservation(key=3, slot=1, evicted=2)


operations = st.tuples(
    st.sampled_from(["reserve", "reserve", "commit", "commit", "cancel", "pin", "unpin", "touch"]),
    st.integers(0, 7),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4), st.lists(operations, max_size=60))
def test_any_sequence_of_operations_agrees_with_the_naive_model(capacity: int, steps: list[tuple[str, int]]):
    pool = BlockPool(capacity)
    recency: list[int] = []  # least recently used first
    ready: set[int] = set()
    pins: dict[int, int] = {}
    slots: dict[int, int] = {}
    for action, key in steps:
        if action == "reserve":
            got = pool.reserve(key)
            victims = [k for k in recency if k in ready and not pins.get(k)]
            if key in recency or (len(recency) == capacity and not victims):
                assert got is None
                assert (pool.state(key) is BlockState.ABSENT) == (key not in recency)
            else:
                evicted = victims[0] if len(recency) == capacity else None
                if evicted is not None:
                    recency.remove(evicted)
                    ready.remove(evicted)
                    del slots[evicted]
                assert got is not None
                assert got.evicted == evicted
                assert 0 <= got.slot < capacity
                assert got.slot not in slots.values()
                recency.append(key)
                slots[key] = got.slot
        elif action in ("commit", "cancel"):
            if key in recency and key not in ready:
                getattr(pool, action)(key)
                if action == "commit":
                    ready.add(key)
                else:
                    recency.remove(key)
                    del slots[key]
            else:
                with pytest.raises(IllegalTransition):
                    getattr(pool, action)(key)
        elif action == "pin":
            if key in ready:
                pool.pin([key])
                pins[key] = pins.get(key, 0) + 1
            else:
                with pytest.raises(IllegalTransition):
                    pool.pin([key])
        elif action == "unpin":
            if pins.get(key):
                pool.unpin([key])
                pins[key] -= 1
            else:
                with pytest.raises(ValueError, match="too often"):
                    pool.unpin([key])
        else:
            pool.touch([key])
            if key in recency:
                recency.remove(key)
                recency.append(key)
        assert pool.keys() == tuple(k for k in recency if k in ready)
        assert len(pool) == len(recency)
        assert pool.pins == sum(pins.values())
        assert {k: pool.slot(k) for k in recency} == slots
        assert [pool.match([k, (k + 1) % 8]) for k in range(8)] == [
            (k in ready) * (1 + ((k + 1) % 8 in ready)) for k in range(8)
        ]
