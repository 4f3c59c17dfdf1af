"""scripts/replay.py on a tiny model: what a run leaves behind."""

import json
from pathlib import Path

import pytest

from mooncake_jax.report import read_requests
from mooncake_jax.sched import Decision
from tests.scripts.conftest import SMALL, Ended, run_alone

POLICY = """
from mooncake_jax.sched import Pairing

class Always:
    def __init__(self, index):
        self.index = index

    def pair(self, request, view, estimator):
        return Pairing(self.index, int(view.prefix_blocks(request.keys)[self.index]), None, 0.0)
"""
TRACE = [
    {"timestamp": 0, "input_length": 2000, "output_length": 512, "hash_ids": [0, 1, 2, 3]},
    {"timestamp": 100, "input_length": 2048, "output_length": 256, "hash_ids": [0, 1, 2, 4]},
    {"timestamp": 100, "input_length": 90000, "output_length": 256, "hash_ids": list(range(100, 276))},
    {"timestamp": 400, "input_length": 2500, "output_length": 128, "hash_ids": [0, 1, 2, 4, 5]},
]
"""At 1/128 of these lengths an id stands for 4 tokens. The third request is longer than the cache of 48 tokens."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Ended:
    folder = tmp_path_factory.mktemp("run")
    (folder / "own_policies.py").write_text(POLICY)
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return run_alone(
        "replay",
        folder,
        *SMALL,
        "model=custom",
        f"model.path={checkpoint}",
        "cluster.prefill.count=2",
        "workload=mooncake",
        "workload.path=trace.jsonl",
        "workload.scale=0.0078125",
        "conductor/pairing=custom",
        "conductor.pairing._target_=own_policies.Always",
        "+conductor.pairing.index=1",
        "ask=w3, w4 and w5?",
    )


@pytest.fixture
def folder(run: Ended) -> Path:
    assert run.code == 0, run.err
    return Path(run.out.splitlines()[-1])


def test_a_run_prints_its_folder_last_and_leaves_everything_in_it(folder: Path):
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    expected = {"config.yaml", "requests.jsonl", "summary.json", "metrics.jsonl", "timeline.json", "decisions.jsonl"}
    assert expected <= names
    assert any(name.startswith("plots/") for name in names)


def test_every_request_of_the_trace_has_a_record_and_the_too_long_one_says_why(run: Ended, folder: Path):
    records = read_requests(folder / "requests.jsonl")
    assert [record.status for record in records] == ["completed", "completed", "rejected", "completed"]
    assert [record.input_tokens for record in records] == [16, 16, 704, 20]
    assert "706 tokens are more than the cache of 48" in records[2].reason
    assert "1 of 4 requests were rejected as longer than the cache of 48 tokens" in run.out


def test_a_policy_in_the_current_folder_decides(folder: Path):
    records = read_requests(folder / "requests.jsonl")
    assert [record.prefill for record in records] == [1, 1, None, 1]


def test_prefixes_that_the_trace_shares_are_reused(folder: Path):
    records = read_requests(folder / "requests.jsonl")
    assert [sum(record.cached.values()) for record in records] == [0, 12, 0, 16]


def test_every_decision_can_be_read_again(folder: Path):
    decisions = [Decision.from_json(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert [decision.request.id for decision in decisions] == ["ask", "r000000", "r000001", "r000003"]


def test_nothing_is_compiled_while_requests_wait(folder: Path):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["provenance"]["compilations_while_serving"] == 0


def test_the_summary_knows_every_instance_and_where_the_run_came_from(folder: Path):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["utilisation"].keys() == {"prefill-0", "prefill-1", "decode-0"}
    assert summary["utilisation"]["prefill-0"] == 0
    assert "replay.py" in summary["provenance"]["command"]
    assert "block_size: 4" in (folder / "config.yaml").read_text()


def test_a_question_is_answered_before_the_replay(run: Ended):
    lines = run.out.splitlines()
    assert lines[0] == "> w3, w4 and w5?"
    assert any(line.startswith("[TTFT") and "prefill-1 → decode-0" in line for line in lines[1:4])
