"""FAST Fig 11 and Fig 14: replicas over time, and the stages of one request."""

from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.config import make
from mooncake_jax.experiments import Experiment, RandomTies
from mooncake_jax.experiments.replicas import equals_of_ranks
from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import ClosedForm, ClusterView, KVCacheCentric
from mooncake_jax.types import Request
from tests.experiments.labs import laboratory, ours, report_of, starts_of_traces


def request(*keys: int) -> Request:
    return Request("r", 0.0, 512 * len(keys), 1, keys)


def test_a_rank_means_all_blocks_used_as_often_as_the_block_of_that_rank():
    requests = [request(1, 2), request(1, 2, 3), request(1, 4)]
    assert equals_of_ranks(requests, [1, 2, 3, 4, 9]) == {1: [1], 2: [2], 3: [3, 4], 4: [3, 4]}


def test_replicas_are_counted_from_an_empty_cluster_to_the_last_arrival(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MOONCAKE_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("MOONCAKE_JAX_TRACES", str(starts_of_traces(tmp_path, 150)))
    report = report_of("fast25/fig11_replicas", tmp_path, "experiment.step_s=2", "~experiment.variants")
    means = ours(report)
    assert {"conversation, rank 10", "conversation, rank 1000", "synthetic, rank 10", "synthetic, rank 1000"} <= set(means)
    assert all(0 < mean < 8 for mean in means.values())
    assert means["conversation, rank 10"] > means["conversation, rank 1000"]
    assert any("toolagent" in remark and "fetch.py" in remark for remark in report.remarks)
    assert all(plot.stat().st_size > 10_000 for plot in report.plots)


def view(holders: dict[int, list[int]], queues: list[float]) -> ClusterView:
    index = PrefixIndex(len(queues))
    for instance, keys in holders.items():
        index.add(instance, keys)
    return ClusterView(
        prefill=tuple(range(len(queues))),
        queue_s=np.array(queues),
        decode=(0,),
        decode_tokens=np.zeros(1, np.int64),
        decode_batch=np.zeros(1, np.int64),
        index=index,
        block_size=512,
        kv_bytes_per_token=327_680,
    )


@pytest.mark.parametrize("queues", [[3.0, 0.5, 2.0], [0.0, 9.0, 9.0], [0.2, 0.1, 0.0]])
@pytest.mark.parametrize("holders", [{}, {0: [1, 2, 3, 4]}, {1: [1, 2], 2: [1, 2, 3]}])
def test_where_nothing_ties_random_ties_choose_as_algorithm_1(queues: list[float], holders: dict[int, list[int]]):
    case = request(1, 2, 3, 4, 5), view(holders, queues), ClosedForm()
    assert RandomTies().pair(*case) == KVCacheCentric().pair(*case)


def test_ties_go_to_all_and_free_transfers_make_ties():
    case = request(1, 2, 3, 4, 5), view({0: [1, 2, 3, 4]}, [0.0, 0.0, 0.0]), ClosedForm()
    wary, free = RandomTies(), RandomTies(free_transfers=True)
    assert {wary.pair(*case).prefill for _ in range(20)} == {0}
    assert {free.pair(*case).prefill for _ in range(40)} == {0, 1, 2}


def test_the_stages_of_one_request_are_the_cost_models(tmp_path: Path):
    with laboratory(tmp_path, "+experiment=fast25/fig14_breakdown") as lab:
        component = lab.settings().experiment | {"tokens": {"8k": 8192, "128k": 131_072}}
        report = make(component, "experiment", Experiment).run(lab)
    found = ours(report)
    n, cached = 8192, 7776  # 95 %, in whole blocks of 16 tokens
    second = 1.1461e-4 * (n - cached) + 7.192e-10 * (n**2 - cached**2) + n * 327_680 / 100e9
    assert found["prefill, 95 % cached, 8k"] == pytest.approx(second, rel=1e-9)
    assert found["transfer, 95 % cached, 8k"] == pytest.approx(n * 327_680 / 87e9, rel=1e-6)
    assert found["load, 95 % cached, 8k"] == pytest.approx(n * 327_680 / 100e9, rel=1e-6)
    steps = 127 * 0.02629 + 3.445e-8 * sum(n + 1 + step for step in range(127))
    assert found["decode, 0 % cached, 8k"] == pytest.approx(steps, rel=1e-6)
    assert found["saved of prefill, 128k"] == pytest.approx(0.92, abs=0.04)
    hidden = ours(report, 1)
    assert all(hidden[label] <= found[label] for label in hidden)
