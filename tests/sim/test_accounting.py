"""Every prompt token is counted once, by where its KV came from, and all that is written of a run says the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mooncake_jax import report
from mooncake_jax.sched import KVCacheCentric
from mooncake_jax.sim import CoupledConfig, CoupledSimulation, DiskConfig, Failure, Outcome, SimClusterConfig, outcome
from mooncake_jax.types import SLO, Status, Tier
from mooncake_jax.workload import GeneratorConfig, generate, simulated_requests
from tests.sim.runs import LLAMA, cluster, run_llama
from tests.support import published_trace

ROOT = Path(__file__).parents[2]


def rows(limit: int = 400):
    return simulated_requests(generate(GeneratorConfig(rate=6.0, turns=4.0, burst_interval=0.0), 1, limit))


def disaggregated(**others) -> Outcome:
    config = cluster(4, 4, block_size=512, blocks=150, disk=DiskConfig(400, 6e9), first_token="decode", **others)
    return run_llama(rows(), config, pairing=KVCacheCentric()).result


def coupled() -> Outcome:
    config = SimClusterConfig(coupled=CoupledConfig(4, prefix_cache_blocks=800))
    simulation = CoupledSimulation(config, LLAMA, rows())
    return outcome(simulation.requests, simulation.run(), simulation.logs)


def failing() -> Outcome:
    accidents = [Failure("prefill-1", 20.0, 5.0), Failure("decode-2", 30.0), Failure("decode-0", 40.0, 1.0)]
    return disaggregated(failures=accidents, tries=1)


@pytest.mark.parametrize(
    ("simulated", "tiers"),
    [(disaggregated, {Tier.HOST, Tier.PEER, Tier.DISK}), (coupled, {Tier.DEVICE}), (failing, {Tier.HOST})],
)
def test_tiers_and_computed_tokens_sum_to_the_prompt_and_agree_wherever_they_are_written(
    simulated, tiers, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(report.plots, "plot_reuse", lambda path, summary: drawn.append(summary.reuse))
    columns = simulated().columns
    report.write_run(tmp_path, columns, SLO())

    served = ~np.isnan(columns.ttft)
    total = sum(columns.cached.values()) + columns.computed
    np.testing.assert_array_equal(total[served], columns.input_tokens[served])
    assert (columns.computed[served] >= 1).all()
    assert {tier for tier, tokens in columns.cached.items() if tokens.any()} >= tiers

    read = report.read_columns(tmp_path / "requests.jsonl")
    for tier in Tier:
        np.testing.assert_array_equal(read.cached[tier], columns.cached.get(tier, np.zeros(len(columns), np.int64)))
    np.testing.assert_array_equal(read.computed, columns.computed)
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [line["cached_tokens"] for line in lines] == columns.reused.tolist()

    done = columns.completed
    assert simulated is not failing or not done.all()
    written = json.loads((tmp_path / "summary.json").read_text())["reuse"]
    expected = {str(tier): int(read.cached[tier][done].sum()) for tier in Tier}
    assert {tier: written[tier] for tier in expected} == expected
    assert written["computed"] == int(columns.computed[done].sum())
    assert written["prompt"] == int(columns.input_tokens[done].sum()) == written["computed"] + sum(expected.values())
    assert len(drawn) == 1
    assert {str(tier): tokens for tier, tokens in drawn[0].by_tier.items()} == expected
    assert (drawn[0].prompt, drawn[0].computed) == (written["prompt"], written["computed"])


def test_the_pool_counts_no_hit_while_decoding():
    few, many = (
        [type(row)(row.id, row.arrival, row.input_tokens, output, row.keys) for row in rows(100)] for output in (2, 300)
    )
    config = cluster(1, 4, block_size=512, blocks=150, disk=DiskConfig(400, 6e9))
    short, long = run_llama(few, config).columns, run_llama(many, config).columns
    for tier in short.cached:
        np.testing.assert_array_equal(short.cached[tier], long.cached[tier])


def test_the_conversation_trace_is_reported_with_exactly_the_tokens_it_has(tmp_path):
    folder = published_trace("conversation").parent
    command = [sys.executable, "scripts/simulate.py", "cluster=paper_8p8d", "workload=mooncake", "workload.path=conversation"]
    subprocess.run(
        [*command, f"hydra.run.dir={tmp_path}"],
        env=os.environ | {"MOONCAKE_JAX_TRACES": str(folder)},
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["total_input_tokens"] == summary["reuse"]["prompt"] == 144_793_823
    assert summary["total_output_tokens"] == 4_122_048
    assert summary["status"][str(Status.COMPLETED)] == summary["requests"] == 12_031
    columns = report.read_columns(tmp_path / "requests.jsonl")
    np.testing.assert_array_equal(columns.reused + columns.computed, columns.input_tokens)
    assert int(columns.reused.sum()) == summary["reuse"]["prompt"] - summary["reuse"]["computed"]
