"""Cache studies: against brute force on small traces, and on the published ones against figures made by other programs."""

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import LRU, Belady, BlockPool
from mooncake_jax.sim.study import lru_curve, study
from mooncake_jax.workload import Trace, TraceRequest, read_mooncake
from tests.kvcache.policies import POLICIES, keyed, links, prompts
from tests.sim.published import published_totals
from tests.support import published_trace

BLOCK = 10


def small_trace(requests: list[tuple[int, ...]]) -> Trace:
    """Block keys as a trace whose last blocks are partly filled, each by another number of tokens."""
    return Trace(tuple(TraceRequest(0.0, BLOCK * len(keys) - keys[-1] % BLOCK, 1, keys) for keys in requests), BLOCK)


def test_only_leading_hits_count_and_the_last_block_counts_its_tokens():
    requests = [(1, 2, 13), (1, 2, 13), (1, 5, 13), (7, 2, 13)]
    result = study(small_trace(requests), 10, LRU)
    assert result.hit_blocks.tolist() == [0, 3, 1, 0]
    assert result.hit_tokens.tolist() == [0, 27, 10, 0]
    assert (result.block_rate, result.token_rate) == (4 / 12, 37 / 108)
    assert result.second_half().hit_tokens.tolist() == [10, 0]
    assert result.second_half().token_rate == 10 / 54


def test_a_cache_of_no_block_is_refused():
    trace = small_trace([(1,)])
    for call in (lambda: study(trace, 0, LRU), lambda: lru_curve(trace).hit_tokens(0)):
        with pytest.raises(UserError, match="0 blocks; it must be at least 1"):
            call()


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=50, deadline=None)
@given(prompts, st.integers(1, 6))
def test_a_live_pool_that_sees_the_same_requests_hits_the_same_blocks(name: str, requests: list[list[int]], capacity: int):
    requests = keyed(requests)
    pool, hits = BlockPool(capacity, POLICIES[name](requests)), []
    for keys in requests:
        hits.append(pool.match(keys))
        for position, (parent, key) in enumerate(links(keys)):
            if pool.reserve(key, parent, position) is None:
                pool.touch([key])
            else:
                pool.commit(key)
    assert hits == study(small_trace(requests), capacity, lambda: POLICIES[name](requests)).hit_blocks.tolist()


def most_hit_blocks(requests: list[tuple[int, ...]], capacity: int) -> int:
    """Over all choices of what to keep after each request, of what was cached and what it brought."""

    @cache
    def best(number: int, cached: frozenset[int]) -> int:
        if number == len(requests):
            return 0
        keys = requests[number]
        hits = next((i for i, key in enumerate(keys) if key not in cached), len(keys))
        there = cached | set(keys)
        kept = combinations(sorted(there), min(capacity, len(there)))
        return hits + max(best(number + 1, frozenset(choice)) for choice in kept)

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=7), st.integers(1, 3))
def test_belady_with_bypass_hits_the_most_blocks_that_any_choice_can(requests: list[list[int]], capacity: int):
    requests = keyed(requests)
    trace, bound = small_trace(requests), most_hit_blocks(requests, capacity)
    assert study(trace, capacity, lambda: Belady(requests), bypass=True).hit_blocks.sum() == bound
    assert study(trace, capacity, lambda: Belady(requests)).hit_blocks.sum() <= bound


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=50, deadline=None)
@given(prompts, st.integers(1, 6), st.booleans())
def test_no_policy_hits_more_blocks_than_belady_with_bypass(name, requests, capacity, bypass):
    requests = keyed(requests)
    trace = small_trace(requests)
    bound = study(trace, capacity, lambda: Belady(requests), bypass=True)
    assert study(trace, capacity, lambda: POLICIES[name](requests), bypass=bypass).hit_blocks.sum() <= bound.hit_blocks.sum()


@settings(max_examples=100, deadline=None)
@given(prompts)
def test_the_lru_curve_is_the_direct_study_at_every_capacity(requests: list[list[int]]):
    trace = small_trace(keyed(requests))
    curve = lru_curve(trace)
    for capacity in range(1, 1 + len({key for request in trace.requests for key in request.hash_ids})):
        direct = study(trace, capacity, LRU)
        assert curve.hit_blocks(capacity) == direct.hit_blocks.sum()
        assert curve.hit_tokens(capacity) == direct.hit_tokens.sum()
        assert curve.token_rate(capacity) == direct.token_rate


RATES = {
    "conversation": {
        "lru": {1_000: 0.0454, 10_000: 0.2153, 30_000: 0.3321, 50_000: 0.3615, 100_000: 0.3708},
        "fifo": {1_000: 0.0442, 10_000: 0.1850, 30_000: 0.3002, 50_000: 0.3401, 100_000: 0.3633},
        "lfu": {1_000: 0.0490, 10_000: 0.1344, 30_000: 0.2813, 50_000: 0.3506, 100_000: 0.3702},
        "lfu_persistent": {1_000: 0.0826, 10_000: 0.1917, 30_000: 0.2852, 50_000: 0.3498, 100_000: 0.3702},
        "length_aware": {1_000: 0.0514, 10_000: 0.1145, 30_000: 0.2068, 50_000: 0.2654, 100_000: 0.3410},
    },
    "synthetic": {
        "lru": {1_000: 0.0840, 10_000: 0.4313, 30_000: 0.6356, 50_000: 0.6512, 100_000: 0.6512},
        "fifo": {1_000: 0.0802, 10_000: 0.4063, 30_000: 0.6050, 50_000: 0.6512, 100_000: 0.6512},
        "lfu": {1_000: 0.0409, 10_000: 0.3646, 30_000: 0.6374, 50_000: 0.6512, 100_000: 0.6512},
        "lfu_persistent": {1_000: 0.0832, 10_000: 0.4283, 30_000: 0.6374, 50_000: 0.6512, 100_000: 0.6512},
        "length_aware": {1_000: 0.0193, 10_000: 0.1898, 30_000: 0.5161, 50_000: 0.6512, 100_000: 0.6512},
    },
}
"""Token hit rates of whole traces by policy and capacity, by a separate plain program."""

AUTHORS = json.loads((Path(__file__).parents[1] / "golden/kvcache_simulator.json").read_text())
"""Hit tokens of the second half of the requests, by the authors' tool."""

THEIRS = {"fifo": ("fifo", False), "lru": ("leaf_first_lru", False), "optimal": ("belady", True)}
"""Our policy, and whether with bypass. Their LRU takes leaves of the prefix tree, if need be of the very request served."""

# Heaps over the conversation trace take seconds each: a few stand for all outside the slow run.
extent = pytest.mark.parametrize(
    ("name", "everything"),
    [("synthetic", False), ("conversation", False), *(pytest.param(name, True, marks=pytest.mark.slow) for name in RATES)],
)


@extent
def test_hit_rates_of_the_published_traces(name: str, everything: bool):
    expected = {
        (policy, capacity, False): rate
        for policy, rates in RATES[name].items()
        for capacity, rate in rates.items()
        if everything or capacity == 10_000 or policy in ("lru", "fifo")
    }
    got = published_totals(published_trace(name), list(expected))
    rates = [round(one["hit_tokens"] / one["input_tokens"], 4) for one in got]
    assert dict(zip(expected, rates, strict=True)) == expected


@extent
def test_the_authors_tool_hits_the_same_tokens(name: str, everything: bool):
    expected = {
        (ours, point["blocks"], bypass): point[theirs]
        for theirs, (ours, bypass) in THEIRS.items()
        for point in AUTHORS[name]["points"]
        if everything or point["blocks"] in (6, 1_638) or theirs == "fifo"
    }
    expected["lru", 2**40, False] = AUTHORS[name]["unlimited"]
    got = published_totals(published_trace(name), list(expected))
    assert dict(zip(expected, (one["half_hit_tokens"] for one in got), strict=True)) == expected
    assert {one["half_input_tokens"] for one in got} == {AUTHORS[name]["counted_tokens"]}


@pytest.mark.parametrize("name", RATES)
def test_the_lru_curve_of_a_published_trace_is_the_direct_study(name: str):
    capacities = (1, 19, 128, 512, 1_000, 1_953, 5_859, 10_000, 20_000, 43_924, 100_000, 182_790)
    for one in published_totals(published_trace(name), [("lru", capacity, False) for capacity in capacities]):
        assert (one["curve_hit_blocks"], one["curve_hit_tokens"]) == (one["hit_blocks"], one["hit_tokens"])


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("conversation", (0.054, 0.086, 0.138, 0.178, 0.210, 0.266, 0.291, 0.371)),
        ("synthetic", (0.142, 0.232, 0.315, 0.375, 0.428, 0.536, 0.577, 0.651)),
    ],
)
def test_lru_at_the_capacities_of_fast_figure_9(name: str, rates: tuple[float, ...]):
    curve = lru_curve(read_mooncake(published_trace(name)))
    tokens = (1, 2, 3, 4, 5, 8, 10, 50)
    got = [curve.token_rate(million * 1_000_000 // 512) for million in tokens]
    assert got == pytest.approx(rates, abs=6e-4)  # printed from four digits, so rounded twice
