"""Mooncake beside coupled baselines, and the network: FAST Figs 1, 7 and 13, arXiv Figs 11 to 13, on small workloads."""

import json
from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.experiments.bandwidth import Bandwidth
from mooncake_jax.experiments.documents import Documents
from mooncake_jax.experiments.effective_capacity import effective_pct
from mooncake_jax.experiments.load_curves import LoadCurves
from mooncake_jax.workload import read_mooncake
from tests.experiments.labs import laboratory, ours, report_of, starts_of_traces

GENERATED = ("workload=conversation_like", "workload.limit=90")


@pytest.mark.parametrize("figure", ["fig1_conversation", "fig7_synthetic"])
def test_mooncake_serves_more_requests_within_each_limit_than_every_baseline(figure: str, tmp_path: Path):
    path = starts_of_traces(tmp_path, 150) / f"{figure.partition('_')[2]}_trace.jsonl"
    fewer = ("~experiment.what_ifs", "~experiment.variations")
    report = report_of(f"fast25/{figure}", tmp_path, f"workload.path={path}", *fewer)
    assert len(report.comparisons) == len(report.plots) == 1
    found = ours(report)
    for limit in (100, 200, 300):
        mine = found[f"Mooncake, TBT <= {limit} ms"]
        for baseline in ("vLLM", "vLLM + prefix caching", "vLLM + chunked prefill"):
            assert mine >= found[f"{baseline}, TBT <= {limit} ms"]
    assert report.plots[0].stat().st_size > 10_000


def test_effective_requests_are_those_within_both_limits(tmp_path: Path):
    with laboratory(tmp_path, *GENERATED, "slo.ttft=4") as lab:
        run = lab.simulate(["cluster=vllm_16", "cluster.coupled.count=6"])
    columns = run.outcome.columns
    for limit, share in zip((30.0, 150.0, 1e6), effective_pct(run, np.array([30.0, 150.0, 1e6])), strict=True):
        within = [ttft <= 4 and tbt <= limit / 1e3 for ttft, tbt in zip(columns.ttft, columns.tbt)]
        assert share == pytest.approx(100 * sum(within) / 90)
    assert 0 < share < 100


def test_faster_interfaces_shorten_transfers_down_to_the_ideal(tmp_path: Path):
    speeds = (24, 80, 400)
    paper = {"ttft": [5.1, 1.7, 1.25], "real": [3.6, 0.5, 0.1], "ideal": [1.5, 0.5, 0.1]}
    with laboratory(tmp_path, *GENERATED, "cluster.contention=true", "cluster.sending=serial") as lab:
        found = ours(Bandwidth("test", speeds, paper, {}, 2.6).run(lab))
    real = [found[f"mean transfer, {speed} Gbit/s"] for speed in speeds]
    ideal = [found[f"mean transfer, ideal, {speed} Gbit/s"] for speed in speeds]
    ttft = [found[f"mean TTFT, {speed} Gbit/s"] for speed in speeds]
    assert real == sorted(real, reverse=True)
    assert ttft == sorted(ttft, reverse=True)
    assert all(one >= least * (1 - 1e-9) for one, least in zip(real, ideal))
    assert real[0] / ideal[0] > real[-1] / ideal[-1]
    assert ideal[0] / ideal[-1] == pytest.approx(400 / 24)


def test_disaggregation_keeps_tbt_where_coupled_instances_do_not(tmp_path: Path):
    path = starts_of_traces(tmp_path, 150) / "conversation_trace.jsonl"
    report = report_of("arxiv/fig13_real", tmp_path, f"workload.path={path}", "~experiment.what_ifs")
    found = ours(report)
    assert found["Mooncake 10P+10D, TBT <= 0.1 s"] >= found["vLLM 20M, TBT <= 0.1 s"]
    assert found["Mooncake 10P+10D, TBT P90"] <= found["vLLM 20M, TBT P90"]
    assert len(report.plots) == 2


def test_long_prompts_are_served_at_a_higher_rate_than_one_by_one(tmp_path: Path):
    with laboratory(tmp_path, "workload=mooncake") as lab:
        panel = {
            "documents": {"requests": 60, "input_tokens": 16_384, "output_tokens": 512, "documents": 4, "share": 0.5},
            "rates": [0.1, 0.5, 1],
            "overrides": {"coupled": ["cluster.coupled.capacity_tokens=16896"]},
            "paper": {"ttft": {"coupled": [[0.1, 0.2]]}},
            "gain": 2.0,
        }
        systems = {
            "coupled": ["cluster=vllm_16", "cluster.coupled.count=4"],
            "3P+1D": ["cluster.prefill.count=3", "cluster.decode.count=1"],
        }
        report = LoadCurves("test", systems, "coupled", {"16k": panel}).run(lab)
    found = ours(report, 1)
    assert found["16k: 3P+1D"] == 1 > found["16k: coupled"] > 0
    assert [row.paper for row in report.comparisons[1].rows] == [0.1, None]
    assert len(report.plots) == 2


def test_prompts_of_a_document_share_its_blocks_and_nothing_else(tmp_path: Path):
    path = Documents(60, 6000, 50, documents=10, share=0.8, sigma=0.4, seed=3).write(tmp_path / "trace.jsonl")
    trace = read_mooncake(path)
    by_first: dict[int, list] = {}
    for request in trace.requests:
        by_first.setdefault(request.hash_ids[0], []).append(request)
    assert sorted(len(group) for group in by_first.values()) == [6] * 10
    used: set[int] = set()
    for group in by_first.values():
        shared = int(group[0].input_length * 0.8) // 512
        heads = {request.hash_ids[:shared] for request in group}
        assert len(heads) == 1
        tails = [key for request in group for key in request.hash_ids[shared:]]
        ids = [*heads.pop(), *tails]
        assert len(set(ids)) == len(ids)
        assert used.isdisjoint(ids)
        used.update(ids)
    assert path.read_bytes() == Documents(60, 6000, 50, 10, 0.8, 0.4, 3).write(tmp_path / "again.jsonl").read_bytes()


def test_log_normal_lengths_have_the_mean_asked_for(tmp_path: Path):
    path = Documents(4000, 8088, 229, sigma=0.5).write(tmp_path / "trace.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert np.mean([row["input_length"] for row in rows]) == pytest.approx(8088, rel=0.03)
    assert np.mean([row["output_length"] for row in rows]) == pytest.approx(229, rel=0.03)


def test_documents_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="share"):
        Documents(10, 100, 10, documents=2, share=1.0)
