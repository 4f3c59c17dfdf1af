"""Pairing policies, Algorithm 1 above all, against plain transcriptions of the paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import (
    CacheAware,
    ClosedForm,
    ClusterView,
    KVCacheCentric,
    LoadBalance,
    Measured,
    Pairing,
    PairingPolicy,
    Random,
    RoundRobin,
)
from mooncake_jax.types import Fetch, Request

BLOCK = 512
KV_BYTES = 327_680


def make_view(queue_s, held, prefill=None, block_size=BLOCK) -> ClusterView:
    """Instance prefill[i] holds the first held[i] of the keys 0, 1, 2, ..."""
    prefill = tuple(range(len(queue_s))) if prefill is None else prefill
    index = PrefixIndex(max(prefill, default=-1) + 1)
    for instance, blocks in zip(prefill, held):
        index.add(instance, range(blocks))
    return ClusterView(
        prefill=prefill,
        queue_s=np.array(queue_s, np.float64),
        decode=(0,),
        decode_tokens=np.array([0]),
        decode_batch=np.array([0]),
        index=index,
        block_size=block_size,
        kv_bytes_per_token=KV_BYTES,
    )


def make_request(tokens: int, block_size: int = BLOCK) -> Request:
    return Request("r", 0.0, tokens, 100, keys=tuple(range(math.ceil(tokens / block_size))))


def algorithm_1(tokens, block_size, threshold, prefill, queue_s, held, prefill_s, transfer_s) -> Pairing:
    """arXiv 2407.00079 p. 10 line by line, with the reading of DESIGN for own = 0 and for partly usable blocks."""
    best_len, best_inst = 0, None
    for inst, blocks in zip(prefill, held):
        if blocks > best_len:
            best_len, best_inst = blocks, inst
    answer, shortest = None, math.inf
    for inst, queue, own in zip(prefill, queue_s, held):
        own_tokens = min(own * block_size, tokens - 1)
        best_tokens = min(best_len * block_size, tokens - 1)
        if best_len > 0 and (own == 0 or best_len / own > threshold):
            moved = (best_tokens - own_tokens) * KV_BYTES
            ttft = transfer_s(moved, best_inst, inst) + queue + prefill_s(tokens, best_tokens)
            fetch = Fetch(best_inst, best_len)
        else:
            ttft = queue + prefill_s(tokens, own_tokens)
            fetch = None
        if ttft < shortest:
            answer, shortest = Pairing(inst, own, fetch, ttft), ttft
    return answer


@st.composite
def clusters(draw):
    """Random clusters with plenty of ties, gaps in the indices, and prompts whose last block is whole or partial."""
    prefill = tuple(sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=9))))
    block_size = draw(st.sampled_from([1, 16, 512]))
    tokens = draw(st.integers(1, 40 * block_size))
    blocks = math.ceil(tokens / block_size)
    some = st.integers(0, blocks)
    held = draw(st.lists(some, min_size=len(prefill), max_size=len(prefill)))
    queue = draw(
        st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0]) | st.floats(0, 60), min_size=len(prefill), max_size=len(prefill))
    )
    threshold = draw(st.sampled_from([1, 1.1, 1.25, 1.5, 2.0, 3.0, math.inf]))
    return prefill, block_size, tokens, held, queue, threshold


class OddLinks(ClosedForm):
    """Links that differ, so that mixing up source and destination is seen."""

    def transfer_s(self, nbytes, src, dst):
        return nbytes * 1e-10 + 0.01 * (2 * src + dst)


@settings(max_examples=400, deadline=None)
@given(clusters(), st.sampled_from([ClosedForm(), OddLinks(prefill_base=0.05)]))
def test_kvcache_centric_is_algorithm_1(cluster, estimator):
    prefill, block_size, tokens, held, queue, threshold = cluster
    view = make_view(queue, held, prefill, block_size)
    got = KVCacheCentric(threshold).pair(make_request(tokens, block_size), view, estimator)
    assert got == algorithm_1(tokens, block_size, threshold, prefill, queue, held, estimator.prefill_s, estimator.transfer_s)


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_kvcache_centric_is_algorithm_1_with_a_measured_estimator(cluster):
    prefill, block_size, tokens, held, queue, threshold = cluster
    estimator = Measured()
    for src, dst, seconds in ((0, 1, 0.5), (3, 2, 2.0), (9, 20, 0.7)):
        estimator.observe_transfer(10**9, src, dst, seconds)
    estimator.observe_prefill(1000, 0, 0.3)
    view = make_view(queue, held, prefill, block_size)
    got = KVCacheCentric(threshold).pair(make_request(tokens, block_size), view, estimator)
    want = algorithm_1(tokens, block_size, threshold, prefill, queue, held, estimator.prefill_s, estimator.transfer_s)
    assert (got.prefill, got.reuse, got.fetch) == (want.prefill, want.reuse, want.fetch)
    assert got.ttft == pytest.approx(want.ttft, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_local_policies_are_what_their_names_say(cluster):
    prefill, block_size, tokens, held, queue, _ = cluster
    view, request, estimator = make_view(queue, held, prefill, block_size), make_request(tokens, block_size), ClosedForm()
    ttft = [q + estimator.prefill_s(tokens, min(h * block_size, tokens - 1)) for q, h in zip(queue, held)]
    expected = {
        CacheAware: ttft.index(min(ttft)),
        LoadBalance: queue.index(min(queue)),
        RoundRobin: 0,
    }
    for policy, i in expected.items():
        assert policy().pair(request, view, estimator) == Pairing(prefill[i], held[i], None, ttft[i])
    got = Random(3).pair(request, view, estimator)
    i = prefill.index(got.prefill)
    assert got == Pairing(prefill[i], held[i], None, ttft[i])


def test_the_threshold_alone_decides_whether_to_fetch():
    # Instance 1 is free; with 2 of 3 blocks the ratio is exactly 1.5, which does not exceed it.
    view, request = make_view([100.0, 0.0], [3, 2]), make_request(2000)
    assert KVCacheCentric(1.5).pair(request, view, ClosedForm()).fetch is None
    assert KVCacheCentric(1.49).pair(request, view, ClosedForm()).fetch == Fetch(source=0, blocks=3)
    assert KVCacheCentric(math.inf).pair(request, view, ClosedForm()).fetch is None
    # Nothing held at all: fetched whatever the threshold, and however slow the link.
    view = make_view([100.0, 0.0], [3, 0])
    assert KVCacheCentric(math.inf).pair(request, view, ClosedForm(bandwidth=1e8)).fetch == Fetch(source=0, blocks=3)


def test_no_prefix_anywhere_means_no_fetch():
    got = KVCacheCentric().pair(make_request(2000), make_view([1.0, 0.5], [0, 0]), ClosedForm())
    assert (got.prefill, got.reuse, got.fetch) == (1, 0, None)


def test_the_source_is_the_lowest_indexed_live_instance_with_the_longest_match():
    view = make_view([9.0, 9.0, 9.0, 0.0], [2, 4, 4, 0], prefill=(1, 3, 5, 7))
    got = KVCacheCentric().pair(make_request(4096), view, ClosedForm())
    assert (got.prefill, got.fetch) == (7, Fetch(source=3, blocks=4))


def test_instances_that_are_not_live_are_neither_chosen_nor_fetched_from():
    index = PrefixIndex(4)
    index.add(0, range(8))
    index.add(2, range(2))
    view = ClusterView((2, 3), np.array([5.0, 0.0]), (0,), np.array([0]), np.array([0]), index, BLOCK, KV_BYTES)
    got = KVCacheCentric().pair(make_request(4096), view, ClosedForm())
    assert (got.prefill, got.fetch) == (3, Fetch(source=2, blocks=2))


def test_a_wholly_cached_prompt_still_computes_its_last_token():
    view, estimator = make_view([0.0], [4]), ClosedForm()
    for policy in (CacheAware(), KVCacheCentric(), LoadBalance()):
        got = policy.pair(make_request(2048), view, estimator)
        assert got == Pairing(0, 4, None, estimator.prefill_s(2048, 2047))


def test_random_is_uniform_and_repeatable():
    view, request = make_view([0.0] * 4, [0] * 4, prefill=(0, 2, 3, 9)), make_request(100)
    runs = []
    for _ in range(2):
        policy = Random(seed=7)
        runs.append([policy.pair(request, view, ClosedForm()).prefill for _ in range(2000)])
    assert runs[0] == runs[1]
    assert all(430 < runs[0].count(instance) < 570 for instance in (0, 2, 3, 9))
    assert runs[0] != [Random(seed=8).pair(request, view, ClosedForm()).prefill for _ in range(2000)]


def test_round_robin_goes_on_in_order_when_instances_come_and_go():
    policy, request = RoundRobin(), make_request(100)
    turns = []
    for prefill in [(0, 1, 2), (0, 1, 2), (0, 2, 5), (0, 2, 5), (0, 2, 5), (0, 1, 2, 5)]:
        turns.append(policy.pair(request, make_view([0.0] * len(prefill), [0] * len(prefill), prefill), ClosedForm()).prefill)
    assert turns == [0, 1, 2, 5, 0, 1]


@pytest.mark.parametrize("threshold", [0.99, -1, math.nan])
def test_a_threshold_below_one_is_refused(threshold: float):
    with pytest.raises(UserError, match=r"pairing\.balancing_threshold is .*; it must be 1 or more"):
        KVCacheCentric(threshold)


@pytest.mark.parametrize("policy", [Random(), RoundRobin(), LoadBalance(), CacheAware(), KVCacheCentric()])
def test_every_policy_keeps_the_protocol_and_changes_no_books(policy: PairingPolicy):
    assert isinstance(policy, PairingPolicy)
    view = make_view([0.5, 0.1, 0.3], [3, 0, 1])
    queue, matches = view.queue_s.copy(), view.prefix_blocks(range(5))
    policy.pair(make_request(2100), view, ClosedForm())
    assert (view.queue_s == queue).all()
    assert (view.prefix_blocks(range(5)) == matches).all()
