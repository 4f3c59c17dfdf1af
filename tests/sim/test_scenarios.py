"""What users of such systems ran into, on small clusters: LLaMA3-70B on eight A800s an instance, blocks of 512 tokens."""

from dataclasses import replace

import numpy as np
import pytest

from mooncake_jax.sched import (
    AcceptAll,
    CacheAware,
    ClusterView,
    Conductor,
    KVCacheCentric,
    LeastTokens,
    LoadBalance,
)
from mooncake_jax.sim import SimClusterConfig
from mooncake_jax.types import SLO, Placement, Rejection, Request, Status
from mooncake_jax.workload import GeneratorConfig, Trace, first, generate, read_mooncake, simulated_requests, speed_up
from tests.sim.overload import REQUESTS, outcomes
from tests.sim.runs import LLAMA, Finished, cluster, run_llama
from tests.support import published_trace

BLOCK = 512


def llama_cluster(prefill: int, decode: int, **others) -> SimClusterConfig:
    return cluster(prefill, decode, **({"block_size": BLOCK, "blocks": 5859, "first_token": "decode"} | others))


def prompts(arrivals: np.ndarray, n: int, o: int, shared: int = 0) -> list[Request]:
    """Prompts of n tokens of which the first `shared` blocks are those of all others."""
    blocks = -(-n // BLOCK)
    return [
        Request(f"r{i:06d}", float(at), n, o, (*range(shared), *range(1000 * (i + 1), 1000 * (i + 1) + blocks - shared)))
        for i, at in enumerate(arrivals)
    ]


def conversation(limit: int) -> Trace:
    return first(read_mooncake(published_trace("conversation")), limit)


def faster(trace: Trace, speed: float) -> list[Request]:
    return simulated_requests(speed_up(trace, speed))


def work(done: Finished, prefill: int) -> np.ndarray:
    """Seconds that each prefill instance computed."""
    return np.bincount(done.columns.prefill, done.result.prefill_s, minlength=prefill)


def hit_rate(done: Finished) -> float:
    return done.columns.reused.sum() / done.columns.input_tokens.sum()


# --- spreading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", [KVCacheCentric, CacheAware])
def test_480_prompts_at_once_with_one_prefix_leave_no_instance_idle(pairing):
    done = run_llama(prompts(np.zeros(480), 8192 + 600, 20, shared=16), llama_cluster(8, 8), pairing=pairing())
    placed = np.bincount(done.columns.prefill, minlength=8)
    assert placed.min() >= 40
    assert work(done, 8).max() < 1.3 * work(done, 8).min()
    # The prefix is computed a few times at most, not 480 times.
    assert hit_rate(done) > 0.85


def test_one_prefill_instance_feeds_five_decode_instances_evenly():
    rng = np.random.default_rng(0)
    done = run_llama(prompts(np.cumsum(rng.exponential(0.4, 400)), 2000, 200), llama_cluster(1, 5))
    tokens = np.bincount(done.columns.decode, done.columns.input_tokens + done.columns.output_tokens, minlength=5)
    assert tokens.max() < 1.3 * tokens.min()


@pytest.mark.parametrize("pairing", [KVCacheCentric, CacheAware])
def test_conversations_do_not_collapse_onto_one_instance(pairing):
    trace = generate(GeneratorConfig(rate=5.0, turns=4.0, think=replace(GeneratorConfig().think, median=20.0)), 3, 600)
    done = run_llama(simulated_requests(trace), llama_cluster(8, 8), pairing=pairing())
    share = np.bincount(done.columns.prefill, minlength=8) / 600
    assert share.max() < 0.3
    assert share.min() > 0.03


def test_a_burst_is_served_whole_and_its_waiting_is_told():
    steady = np.arange(120) * 0.5
    arrivals = np.sort(np.concatenate([steady, np.full(200, 20.0)]))
    done = run_llama(prompts(arrivals, 4000, 50), llama_cluster(4, 4), pairing=KVCacheCentric())
    assert set(done.status) == {Status.COMPLETED}
    split, ttft = done.columns.split, done.columns.ttft
    assert all(np.isfinite(seconds).all() and (seconds >= -1e-9).all() for seconds in split.values())
    np.testing.assert_allclose(sum(split.values()), ttft, rtol=1e-9, atol=1e-9)
    late = arrivals == 20.0
    assert split["queue"][late].mean() > 0.9 * (ttft - split["compute"] - split["transfer"])[late].mean()
    # Long after the burst nobody waits any more.
    assert split["queue"][arrivals > 55].max() < 0.1


def test_prompts_of_32k_tokens_with_one_token_out_move_nothing_and_leave_decode_idle():
    done = run_llama(prompts(np.arange(40) * 2.0, 32_768, 1), llama_cluster(4, 4), pairing=KVCacheCentric())
    assert (done.columns.decode == -1).all()
    assert done.columns.split["transfer"].sum() == done.columns.split["decode_wait"].sum() == 0
    assert [log.steps for log in done.simulation.logs] == [0] * 4
    assert done.columns.tbt.tolist() == [0.0] * 40


# --- load ------------------------------------------------------------------------------------------------------------


def test_twice_the_load_costs_less_than_a_fifth_of_the_hits():
    trace = conversation(1500)
    rates = [hit_rate(run_llama(faster(trace, speed), llama_cluster(8, 8), pairing=KVCacheCentric())) for speed in (1.0, 2.0)]
    assert rates[0] > 0.15
    assert rates[1] > 0.8 * rates[0]


def test_under_overload_prediction_serves_no_fewer_within_the_objectives_and_rejects_before_prefill():
    found = outcomes(published_trace("conversation"))
    by_stage, early, predictive = found["stage_by_stage"], found["early_rejection"], found["predictive"]
    assert predictive.goodput >= early.goodput > 0.7 * REQUESTS
    assert predictive.goodput >= by_stage.goodput
    assert min(one.rejected for one in found.values()) > 0.1 * REQUESTS
    assert predictive.wasted_s == early.wasted_s == 0.0
    assert by_stage.wasted_s > 100.0


# --- several Conductors ----------------------------------------------------------------------------------------------


class Replicas(Conductor):
    """Conductors that take turns, each of which saw the instances' loads up to `delay` seconds ago.

    Where blocks are they all ask of one index. What a replica placed itself since then it does not know either.
    """

    def __init__(self, count: int, delay: float):
        super().__init__(KVCacheCentric(), LeastTokens(), AcceptAll(), LLAMA, SLO())
        self.delay = delay
        self.seen: list[tuple[float, ClusterView] | None] = [None] * count
        self.turn = 0

    def schedule(self, request: Request, view: ClusterView, now: float) -> Placement | Rejection:
        at = self.turn = (self.turn + 1) % len(self.seen)
        if self.seen[at] is None or now - self.seen[at][0] >= self.delay:
            arrays = {name: getattr(view, name).copy() for name in ("queue_s", "decode_tokens", "decode_batch")}
            self.seen[at] = now, replace(view, **arrays)
        return super().schedule(request, self.seen[at][1], now)


def test_four_conductors_with_delayed_state_spread_the_load_unevenly_within_a_bound(record_property):
    trace = generate(GeneratorConfig(rate=5.0, burst_interval=0.0), 5, 800)
    rows = simulated_requests(trace)
    imbalance, ttft = {}, {}
    for count, delay in ((1, 0.0), (4, 1.0), (4, 5.0)):
        done = run_llama(rows, llama_cluster(8, 8), conductor=Replicas(count, delay))
        seconds = work(done, 8)
        imbalance[count, delay] = float(seconds.max() / seconds.mean())
        ttft[count, delay] = float(done.columns.ttft.mean())
        record_property(f"imbalance of {count} conductors {delay} s behind", imbalance[count, delay])
        record_property(f"mean TTFT of {count} conductors {delay} s behind", ttft[count, delay])
    assert imbalance[1, 0.0] <= imbalance[4, 1.0] + 0.1
    assert imbalance[4, 1.0] < 1.5
    assert imbalance[4, 5.0] < 2.0
    assert ttft[1, 0.0] < ttft[4, 1.0] < ttft[4, 5.0]


def test_load_balance_keeps_the_queues_level_under_any_prefixes():
    rows = prompts(np.arange(400) * 0.02, 4000, 10, shared=4)
    done = run_llama(rows, llama_cluster(8, 8), pairing=LoadBalance())
    seconds = work(done, 8)
    assert seconds.max() < 1.2 * seconds.min()
