"""Every policy against its rule applied by scanning, and one contract for all of them in the live pool's books."""

from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import LFU, PGDSF, BlockPool, BlockState, EvictionPolicy, LeafFirstLRU, LengthAware
from tests.kvcache.policies import LEAVES_ONLY, POLICIES, Naive, keyed, links, prompts

every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@settings(max_examples=100, deadline=None)
@given(prompts, st.integers(1, 6), st.booleans())
def test_blocks_leave_in_the_order_of_the_rule(name: str, requests: list[list[int]], capacity: int, bypass: bool):
    requests = keyed(requests)
    policy, naive = POLICIES[name](requests), Naive(name, requests)

    def leave() -> None:
        gone = next(policy.order())
        policy.remove(gone)
        naive.leave(gone)

    for keys in requests:
        for position, (parent, key) in enumerate(links(keys)):
            if key in naive.cached:
                policy.touch(key)
                naive.use(key, parent, position)
            else:
                if len(naive.cached) == capacity and not bypass:
                    leave()
                policy.insert(key, parent, position)
                naive.use(key, parent, position)
                if len(naive.cached) > capacity:
                    leave()
            assert list(policy.order()) == naive.order()


@every_policy
def test_the_order_stays_right_when_ranks_have_changed_thousands_of_times(name: str):
    requests = keyed([[0, 1, 2], [0, 3], [0, 1, 4], [5]] * 200)
    policy, naive = POLICIES[name](requests), Naive(name, requests)
    for number, keys in enumerate(requests):
        for position, (parent, key) in enumerate(links(keys)):
            (policy.touch(key) if key in naive.cached else policy.insert(key, parent, position))
            naive.use(key, parent, position)
        if number % 97 == 0:
            assert list(policy.order()) == naive.order()


operations = st.lists(
    st.tuples(st.sampled_from(["request", "request", "request", "commit", "cancel", "pin", "unpin"]), st.integers(0, 11)),
    max_size=60,
)


@every_policy
@settings(max_examples=100, deadline=None)
@given(prompts, st.integers(0, 6), operations)
def test_in_a_live_pool_only_free_blocks_leave_and_leaf_policies_keep_prefixes_whole(name, requests, capacity, steps):
    requests = keyed(requests)
    policy = POLICIES[name](requests)
    assert isinstance(policy, EvictionPolicy)
    pool = BlockPool(capacity, policy)
    parents: dict[int, int | None] = {}
    """Of the blocks that the pool holds."""
    filling: list[int] = []
    pinned: list[int] = []

    def request(keys) -> None:
        pool.touch(keys)
        for position, (parent, key) in enumerate(links(keys)):
            held = {one for one in parents if one in filling or one in pinned}
            if name in LEAVES_ONLY:  # what has a cached child is held, too
                held |= parents.keys() & set(parents.values())
            got = pool.reserve(key, parent, position)
            if key in parents:
                assert got is None
                continue
            assert (got is None) == (len(parents) == capacity and parents.keys() <= held)
            if got is not None:
                if got.evicted is not None:
                    assert len(parents) == capacity
                    assert got.evicted in parents.keys() - held
                    del parents[got.evicted]
                parents[key] = parent
                filling.append(key)

    for action, number in steps:
        ready = [key for key in parents if key not in filling]
        if action == "request":
            request(requests[number % len(requests)])
        elif action == "commit" and filling:
            pool.commit(filling.pop(number % len(filling)))
        elif action == "cancel" and filling:
            key = filling.pop(number % len(filling))
            pool.cancel(key)
            del parents[key]
        elif action == "pin" and ready:
            pinned.append(ready[number % len(ready)])
            pool.pin([pinned[-1]])
        elif action == "unpin" and pinned:
            pool.unpin([pinned.pop(number % len(pinned))])
        assert len(pool) == len(parents)
        assert set(pool.keys()) == parents.keys() - set(filling)
        assert len(pool.keys()) == len(set(pool.keys()))
        order = list(policy.order())
        assert len(order) == len(set(order))
        assert set(order) <= parents.keys()
        assert bool(order) == bool(parents)


FOLDER = Path(__file__).parents[2] / "conf" / "eviction"
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "custom")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configured_policy_can_be_made(path: Path):
    assert isinstance(instantiate(OmegaConf.load(path)), EvictionPolicy)
    assert len(CONFIGS) == len(POLICIES) - 1, "all but Belady, which must be told the future"


def fill(pool: BlockPool, *keys: int) -> None:
    for position, (parent, key) in enumerate(links(keys)):
        if pool.state(key) is BlockState.ABSENT:
            assert pool.reserve(key, parent, position) is not None
            pool.commit(key)


def test_lfu_forgets_the_count_of_a_block_that_left_unless_persistent():
    for persistent, evicted in ((False, 1), (True, 2)):
        pool = BlockPool(2, LFU(persistent))
        fill(pool, 1)
        pool.touch([1, 1, 1])
        fill(pool, 2)
        pool.touch([2, 2, 2, 2])
        assert pool.reserve(3).evicted == 1
        pool.cancel(3)
        fill(pool, 1)  # its first use, or its fifth, as against the five of block 2
        pool.touch([1])
        assert pool.reserve(4).evicted == evicted


def test_length_aware_lets_the_end_of_a_prompt_go_before_an_older_beginning():
    pool = BlockPool(4, LengthAware())
    fill(pool, 1)
    fill(pool, 2, 3, 4)
    assert pool.keys() == (4, 3, 1, 2)


def test_leaf_first_lru_lets_a_prompt_go_from_its_end_and_spares_shared_prefixes():
    pool = BlockPool(5, LeafFirstLRU())
    fill(pool, 1, 2, 3)
    fill(pool, 1, 4)
    fill(pool, 5)
    assert pool.keys()[:3] == (3, 4, 5)
    assert [pool.reserve(key).evicted for key in (6, 7, 8)] == [3, 2, 4]
    assert pool.match([1]) == 1


def test_leaf_first_lru_lets_go_first_what_cannot_be_hit_for_want_of_its_parent():
    policy = LeafFirstLRU()
    policy.insert(1, None, 0)
    policy.insert(9, 8, 3)
    policy.insert(2, 1, 1)
    assert list(policy.order()) == [9, 2]
    policy.insert(8, 7, 2)
    assert list(policy.order()) == [9, 2], "8 has a cached child"
    policy.touch(9)
    assert list(policy.order()) == [2, 9], "the parent of 9 is there again"


def test_pgdsf_ages_by_the_highest_priority_that_has_left():
    policy = PGDSF(slope=1)
    policy.insert(1, None, 0)
    policy.touch(1)
    policy.touch(1)  # 0 + 3 uses * 1
    policy.insert(2, None, 0)
    policy.touch(2)  # 0 + 2 * 1
    policy.insert(3, 2, 1)  # 0 + 1 * 2
    assert list(policy.order()) == [3, 1]
    policy.remove(3)  # the clock is 2
    policy.insert(4, 1, 1)  # 2 + 1 * 2
    policy.insert(5, None, 0)  # 2 + 1
    assert list(policy.order()) == [2, 5, 4]


def test_pgdsf_refuses_a_falling_cost():
    with pytest.raises(UserError, match="slope of PGDSF is -1"):
        PGDSF(-1)
