"""FAST Figures 8, 10 and 15, arXiv Table 3 and Figures 8 and 9, on the start of the published traces."""

from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.experiments import LongestPrefix, WithoutTransfers
from mooncake_jax.experiments.load_fluctuation import Loads
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import ClosedForm, ClusterView, CurrentLoad, InFlight, KVCacheCentric
from mooncake_jax.types import SLO, Placement, Request
from tests.experiments.labs import ours, report_of, starts_of_traces

COST = ClosedForm(0.0, 1e-3, 0.0, 0.02, 0.0, 1e-6, 1e9, 0.0)
"""1 ms a prompt token; a step takes 20 ms and 1 µs for every token of context."""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MOONCAKE_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("MOONCAKE_JAX_TRACES", str(starts_of_traces(tmp_path, 200)))


def view(queue: list[float], holds: dict[int, int], in_flight: list[InFlight] | None = None) -> ClusterView:
    """`holds[i]` leading blocks of keys 1, 2, 3, 4 at instance i; blocks of 10 tokens; 2 decode instances."""
    index = PrefixIndex(len(queue))
    for instance, blocks in holds.items():
        index.add(instance, list(range(1, blocks + 1)))
    assigned = in_flight or []
    return ClusterView(
        prefill=tuple(range(len(queue))),
        queue_s=np.array(queue, np.float64),
        decode=(0, 1),
        decode_tokens=np.array([sum(one.tokens for one in assigned if one.decode == i) for i in (0, 1)], np.int64),
        decode_batch=np.array([sum(one.decode == i for one in assigned) for i in (0, 1)], np.int64),
        index=index,
        block_size=10,
        kv_bytes_per_token=1,
        in_flight=lambda: assigned,
    )


def request() -> Request:
    return Request("r", 0.0, 40, 8, (1, 2, 3, 4))


def test_prefill_time_is_saved_by_caches_and_a_missing_trace_is_told(tmp_path: Path, traces):
    report = report_of("fast25/fig8_gpu_time", tmp_path, "experiment.workloads=[conversation,toolagent]")
    seconds = ours(report)
    systems = ("Mooncake with an endless cache", "Mooncake", "+ prefix caching", "vLLM")
    in_order = [seconds[f"{system}, conversation"] for system in systems]
    assert in_order == sorted(in_order)
    assert in_order[1] < in_order[3]
    assert any("toolagent" in remark and "fetch.py" in remark for remark in report.remarks)


def test_a_global_cache_hits_more_than_local_ones(tmp_path: Path, traces):
    hits = ours(report_of("fast25/fig10_global_cache", tmp_path, "~experiment.variations"))
    for trace in ("conversation", "synthetic"):
        assert hits[f"global, {trace}"] > hits[f"local, {trace}"] > 0


def test_without_transfers_the_choice_is_algorithm_1s_and_nothing_is_fetched():
    state = view([5.0, 0.0], {0: 4})
    wanted = KVCacheCentric().pair(request(), state, COST)
    assert wanted.fetch is not None
    found = WithoutTransfers().pair(request(), state, COST)
    assert (found.prefill, found.reuse, found.fetch) == (wanted.prefill, 0, None)


def test_the_longest_prefix_wins_whatever_its_queue_unless_that_is_capped():
    state = view([9.0, 3.0, 0.0], {0: 4, 1: 2})
    assert LongestPrefix().pair(request(), state, COST).prefill == 0
    assert LongestPrefix(cap_s=5).pair(request(), state, COST).prefill == 1
    nothing_held = view([9.0, 3.0, 0.0], {})
    assert LongestPrefix().pair(request(), nothing_held, COST).prefill == 0
    assert LongestPrefix(balanced=True).pair(request(), nothing_held, COST).prefill == 2


def test_the_current_load_does_not_see_requests_that_are_still_prefilled():
    placement = Placement(0, 0, 0, None, 0.04, 0.5)
    here = InFlight(decode=0, tokens=20_000, prefilled=1.0)
    coming = InFlight(decode=0, tokens=80_000, prefilled=9.0)
    slo = SLO(ttft=30.0, tbt=0.031)
    policy = CurrentLoad()
    # Steps of 40 and 20 ms, and the request's 40 tokens over both: 30.02 ms on average.
    assert policy.admit(request(), placement, view([0.0], {}, [here, coming]), COST, slo, 5.0) is None
    assert policy.admit(request(), placement, view([0.0], {}, [here, coming]), COST, slo, 9.0) is not None


def test_prefill_instances_bound_the_share_of_effective_requests(tmp_path: Path, traces):
    found = ours(report_of("fast25/fig15_pd_ratio", tmp_path, "workload.speed=3"))
    assert found["effective, 5P11D"] < found["effective, 9P7D"]
    assert found["mean TBT, 5P11D"] < found["mean TBT, 11P5D"]


def test_only_the_baseline_wastes_prefills(tmp_path: Path, traces):
    found = ours(report_of("arxiv/table3_rejection", tmp_path, "slo.tbt=0.028"))
    assert found["wasted prefill, baseline"] > 0
    for policy in ("early rejection", "with prediction", "counting those on the way"):
        assert found[f"rejected, {policy}"] > 0
        assert found[f"wasted prefill, {policy}"] == 0


def test_who_looks_at_caches_answers_sooner(tmp_path: Path, traces):
    found = ours(report_of("arxiv/fig8_scheduling", tmp_path))
    means = {name: found[f"mean TTFT, {name}"] for name in ("KVCache-centric", "cache-aware", "random")}
    assert max(means["KVCache-centric"], means["cache-aware"]) < means["random"]


def test_the_loads_of_both_pools_are_drawn_over_time(tmp_path: Path, traces):
    report = report_of("arxiv/fig9_load_fluctuation", tmp_path, "+experiment.bin_s=2", "+experiment.skip_bins=0")
    found = ours(report)
    assert 100 * 0.02629 / 0.0315 <= found["decode load, mean, early rejection"] < 120
    assert found["prefill load, mean, early rejection"] > 0
    assert all(plot.stat().st_size > 10_000 for plot in report.plots)


def test_loads_in_opposite_phase_correlate_by_minus_one():
    wave = np.array([0.0, 1.0, 2.0, 1.0])
    assert Loads(wave, 3 - wave).correlation == pytest.approx(-1)
    assert np.isnan(Loads(wave, np.ones(4)).correlation)
