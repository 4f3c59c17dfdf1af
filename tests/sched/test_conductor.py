"""The Conductor as a whole: placements, rejections, decode balance, and decisions that can be replayed from their log."""

import math
import random

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import (
    AcceptAll,
    CacheAware,
    ClosedForm,
    ClusterView,
    Conductor,
    Decision,
    EarlyRejection,
    KVCacheCentric,
    LeastTokens,
    LoadBalance,
    Random,
    RoundRobin,
)
from mooncake_jax.types import SLO, Fetch, Placement, Rejection, Request

BLOCK = 512
KV_BYTES = 327_680


def make_conductor(pairing=None, admission=None, slo=None) -> Conductor:
    return Conductor(pairing or KVCacheCentric(), LeastTokens(), admission or AcceptAll(), ClosedForm(), slo or SLO())


def make_view(queue_s=(0.0, 0.0), tokens=(0, 0), batch=None, index=None, capacity=None) -> ClusterView:
    batch = [int(t > 0) for t in tokens] if batch is None else batch
    return ClusterView(
        prefill=tuple(range(len(queue_s))),
        queue_s=np.array(queue_s, np.float64),
        decode=tuple(range(len(tokens))),
        decode_tokens=np.array(tokens, np.int64),
        decode_batch=np.array(batch, np.int64),
        index=PrefixIndex(len(queue_s)) if index is None else index,
        block_size=BLOCK,
        kv_bytes_per_token=KV_BYTES,
        decode_capacity_tokens=None if capacity is None else np.array(capacity),
    )


def make_request(tokens: int = 4096, output: int = 100, name: str = "r") -> Request:
    return Request(name, 0.0, tokens, output, keys=tuple(range(math.ceil(tokens / BLOCK))))


def test_a_placement_says_who_what_is_reused_and_the_predictions():
    index = PrefixIndex(2)
    index.add(0, range(6))
    index.add(1, range(2))
    got = make_conductor().schedule(make_request(), make_view([9.0, 0.25], [5000, 3000], [4, 2], index), 0.0)
    estimator = ClosedForm()
    moved = 4 * BLOCK * KV_BYTES
    assert got == Placement(
        prefill=1,
        decode=1,
        reuse=2,
        fetch=Fetch(source=0, blocks=6),
        ttft=moved / 87e9 + 0.25 + estimator.prefill_s(4096, 6 * BLOCK),
        tbt=estimator.decode_step_s(3, 3000 + 4096),
    )


def test_no_live_instance_of_a_role_is_a_rejection_that_says_so():
    for queue, tokens, role in (((), (0,), "prefill"), ((0.0,), (), "decode")):
        got = make_conductor().schedule(make_request(), make_view(queue, tokens), 0.0)
        assert got == Rejection(f"no live {role} instance", 30.0)


def test_the_decode_instance_with_the_least_tokens_wins_ties_to_the_lowest():
    for tokens, chosen in (([7, 5, 5], 1), ([0, 0, 0], 0), ([3, 2, 1], 2)):
        assert make_conductor().schedule(make_request(), make_view(tokens=tokens), 0.0).decode == chosen


def test_decode_instances_with_room_go_before_those_without():
    request = make_request(900, 100)
    assert make_conductor().schedule(request, make_view(tokens=[100, 200], capacity=[1000, 1200]), 0.0).decode == 1
    assert make_conductor().schedule(request, make_view(tokens=[100, 200], capacity=[1000, 1000]), 0.0).decode == 0


def test_a_request_of_one_token_is_predicted_no_time_between_tokens():
    view = make_view(tokens=[10**9, 10**9])
    got = make_conductor(admission=EarlyRejection()).schedule(make_request(output=1), view, 0.0)
    assert isinstance(got, Placement)
    assert got.tbt == 0.0


def test_early_rejection_names_the_overloaded_stage_and_its_numbers():
    conductor = make_conductor(admission=EarlyRejection(), slo=SLO(ttft=10.0, tbt=0.1))
    request = make_request(1000)
    got = conductor.schedule(request, make_view([14.0, 15.0]), 0.0)
    ttft = 14.0 + ClosedForm().prefill_s(1000, 0)
    assert got == Rejection(
        f"prefill load {ttft / 10:.2f} exceeds 1.0: predicted TTFT {ttft:.3f} s on prefill-0 for an SLO of 10.0 s", ttft - 10.0
    )
    got = conductor.schedule(request, make_view(tokens=[5_000_000, 6_000_000]), 0.0)
    assert isinstance(got, Rejection)
    assert got.reason == "decode load 1.99 exceeds 1.0: predicted TBT 0.1986 s on decode-0 for an SLO of 0.1 s"
    assert got.retry_after == pytest.approx((1 - 0.1 / 0.1986) * 100 * 0.1986, rel=1e-3)


def test_early_rejection_accepts_up_to_its_threshold():
    request, view = make_request(1000), make_view([14.0])
    slo = SLO(ttft=14.0 + ClosedForm().prefill_s(1000, 0), tbt=1.0)
    assert isinstance(make_conductor(admission=EarlyRejection(1), slo=slo).schedule(request, view, 0.0), Placement)
    assert isinstance(make_conductor(admission=EarlyRejection(0.99), slo=slo).schedule(request, view, 0.0), Rejection)
    assert isinstance(make_conductor(admission=AcceptAll(), slo=SLO(0.1, 0.001)).schedule(request, view, 0.0), Placement)


def test_values_out_of_range_are_refused_by_name():
    with pytest.raises(UserError, match=r"admission\.threshold is 0; it must be more than 0"):
        EarlyRejection(0)
    with pytest.raises(UserError, match=r"slo\.ttft is 0\.0 s"):
        make_conductor(slo=SLO(ttft=0.0))


def test_a_view_that_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="queue_s has 1 entries for 2 live instances"):
        ClusterView((0, 1), np.zeros(1), (0,), np.array([0]), np.array([0]), PrefixIndex(2), BLOCK, KV_BYTES)
    with pytest.raises(ValueError, match="must be 0 or more and ascend"):
        ClusterView((1, 0), np.zeros(2), (0,), np.array([0]), np.array([0]), PrefixIndex(2), BLOCK, KV_BYTES)


def test_single_turn_load_over_1_prefill_and_5_decode_instances_stays_even():
    """Arrivals outpace departures by half, lengths vary a hundredfold; load is looked at after every arrival."""
    rng, conductor, index = random.Random(0), make_conductor(), PrefixIndex(1)
    live: list[list[int]] = [[] for _ in range(5)]
    worst = 0.0
    for i in range(1500):
        view = ClusterView(
            prefill=(0,),
            queue_s=np.zeros(1),
            decode=tuple(range(5)),
            decode_tokens=np.array([sum(requests) for requests in live]),
            decode_batch=np.array([len(requests) for requests in live]),
            index=index,
            block_size=BLOCK,
            kv_bytes_per_token=KV_BYTES,
        )
        tokens = rng.randrange(100, 10_000)
        placement = conductor.schedule(Request(str(i), float(i), tokens, 50, (10**6 + i,)), view, float(i))
        assert isinstance(placement, Placement)
        live[placement.decode].append(tokens)
        if i >= 200 and i % 3 < 2:
            busy = rng.choice([requests for requests in live if requests])
            busy.pop(rng.randrange(len(busy)))
        if i >= 300:
            loads = [sum(requests) for requests in live]
            worst = max(worst, max(loads) / min(loads))
    assert worst < 1.3


@pytest.mark.parametrize("policy", [CacheAware, KVCacheCentric])
def test_480_concurrent_requests_with_one_prefix_leave_none_of_8_engines_idle(policy):
    conductor, index, queue = make_conductor(policy()), PrefixIndex(8), np.zeros(8)
    tokens, batch, served = np.zeros(4, np.int64), np.zeros(4, np.int64), [0] * 8
    for i in range(480):
        n = 8192 + 37 * (i % 13) + 1
        keys = (*range(16), 10**6 + i)
        view = ClusterView(tuple(range(8)), queue, tuple(range(4)), tokens, batch, index, BLOCK, KV_BYTES)
        got = conductor.schedule(Request(str(i), 0.0, n, 10, keys), view, 0.0)
        assert isinstance(got, Placement)
        blocks = got.reuse if got.fetch is None else got.fetch.blocks
        queue[got.prefill] += conductor.estimator.prefill_s(n, min(blocks * BLOCK, n - 1))
        index.add(got.prefill, keys)
        tokens[got.decode] += n
        batch[got.decode] += 1
        served[got.prefill] += 1
    assert min(served) > 0
    assert queue.max() / queue.min() < 1.1
    assert tokens.max() / tokens.min() < 1.3


@pytest.mark.parametrize("policy", [Random, RoundRobin, LoadBalance, CacheAware, KVCacheCentric])
def test_a_log_of_decisions_replays_to_the_same_decisions(policy):
    rng = random.Random(5)
    prefill, decode = (0, 2, 3, 7), (1, 4)
    index, queue, tokens, batch = PrefixIndex(8), np.zeros(4), np.zeros(2, np.int64), np.zeros(2, np.int64)
    conductor = make_conductor(policy(), EarlyRejection(0.9), SLO(ttft=2.0, tbt=0.08))
    lines, outcomes = [], []
    for i in range(300):
        n = rng.randrange(1, 9000)
        first = 1000 * rng.randrange(12) + 2**63
        request = Request(str(i), i / 7, n, rng.randrange(1, 300), tuple(range(first, first + math.ceil(n / BLOCK))))
        view = ClusterView(prefill, queue, decode, tokens, batch, index, BLOCK, KV_BYTES, np.array([10**6, 10**7]))
        outcome = conductor.schedule(request, view, i / 7)
        lines.append(Decision(request, view, i / 7, outcome).to_json())
        outcomes.append(outcome)
        queue = np.maximum(queue - rng.random() / 2, 0)
        if isinstance(outcome, Placement):
            queue[prefill.index(outcome.prefill)] += 3 * rng.random()
            index.add(outcome.prefill, request.keys)
            tokens[decode.index(outcome.decode)] += n
            batch[decode.index(outcome.decode)] += 1
    assert {type(outcome) for outcome in outcomes} == {Placement, Rejection}
    fresh = make_conductor(policy(), EarlyRejection(0.9), SLO(ttft=2.0, tbt=0.08))
    for line, outcome in zip(lines, outcomes, strict=True):
        assert "\n" not in line
        decision = Decision.from_json(line)
        assert decision.outcome == outcome
        assert fresh.schedule(decision.request, decision.view, decision.now) == outcome
        assert decision.to_json() == line


def test_a_logged_view_answers_only_for_the_request_it_was_logged_with():
    request, view = make_request(), make_view()
    line = Decision(request, view, 0.0, make_conductor().schedule(request, view, 0.0)).to_json()
    logged = Decision.from_json(line).view
    assert logged.prefix_blocks(request.keys).tolist() == [0, 0]
    with pytest.raises(ValueError, match="1 asked for"):
        logged.prefix_blocks((1,))


def test_a_rejection_without_instances_is_logged_too():
    request, view = make_request(), make_view(queue_s=(), tokens=())
    outcome = make_conductor().schedule(request, view, 0.0)
    decision = Decision.from_json(Decision(request, view, 0.0, outcome).to_json())
    assert make_conductor().schedule(decision.request, decision.view, decision.now) == outcome == decision.outcome
