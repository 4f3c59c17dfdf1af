"""scripts/simulate.py redecide=FOLDER/decisions.jsonl: logs of live and of simulated runs, and what is wrong with a log."""

import json
from pathlib import Path

import pytest

from tests.scripts.conftest import SMALL, Ended, run_alone


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """The folder of a live run whose Conductor measures and rejects."""
    folder = tmp_path_factory.mktemp("live")
    run = run_alone(
        "replay",
        folder,
        *SMALL,
        "model=custom",
        f"model.path={checkpoint}",
        "cluster.prefill.count=2",
        "cluster.decode.count=2",
        "workload.scale=0.0078125",
        "workload.generator.system_prompt=1024",
        "workload.generator.first_input.median=512",
        "workload.generator.next_input.median=256",
        "workload.generator.rate=40",
        "workload.limit=30",
        "conductor/admission=early_rejection",
        "slo.ttft=0.02",
        "tracker=none",
    )
    assert run.code == 0, run.err
    return Path(run.out.splitlines()[-1])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulated run whose Conductor knows the cost model, and draws instances at random."""
    folder = tmp_path_factory.mktemp("simulated")
    run = run_alone(
        "simulate",
        folder,
        "workload=synthetic",
        "workload.scale=1",
        "workload.limit=60",
        "conductor/pairing=random",
        "log_decisions=true",
        "tracker=none",
    )
    assert run.code == 0, run.err
    return Path(run.out.splitlines()[-1])


def redecide(tmp_path: Path, log: Path, *overrides: str) -> Ended:
    return run_alone("simulate", tmp_path, f"redecide={log}", *overrides)


def test_a_live_log_is_decided_again_with_the_settings_beside_it(live: Path, tmp_path: Path):
    ended = redecide(tmp_path, live / "decisions.jsonl")
    count = len((live / "decisions.jsonl").read_text().splitlines())
    assert ended.code == 0, ended.err + ended.out
    assert ended.out.splitlines()[0] == f"{count} of {count} decisions are identical"
    assert (Path(ended.out.splitlines()[-1]) / "differences.jsonl").read_text() == ""


def test_what_the_command_line_overrides_is_decided_anew_and_every_difference_is_kept(live: Path, tmp_path: Path):
    ended = redecide(tmp_path, live / "decisions.jsonl", "slo.ttft=1e-9")
    count = len((live / "decisions.jsonl").read_text().splitlines())
    assert ended.code == 1, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == f"0 of {count} decisions are identical"  # all are rejected, with other words than before
    assert lines[1].startswith("r000000 at ")
    assert "decided rejected (prefill load" in lines[1]
    differences = [json.loads(line) for line in (Path(lines[-1]) / "differences.jsonl").read_text().splitlines()]
    assert len(differences) == count
    assert all("for an SLO of 1e-09 s" in one["decided"]["reason"] for one in differences)


def test_a_simulated_log_is_decided_again_with_the_cost_model_beside_it(simulated: Path, tmp_path: Path):
    ended = redecide(tmp_path, simulated / "decisions.jsonl")
    assert ended.code == 0, ended.err + ended.out
    assert ended.out.splitlines()[0] == "60 of 60 decisions are identical"
    # Another cost model predicts other times for the same places.
    slower = redecide(tmp_path, simulated / "decisions.jsonl", "cost.prefill_base=0.5")
    assert slower.code == 1
    assert slower.out.splitlines()[0] == "0 of 60 decisions are identical"


def test_a_log_on_its_own_is_decided_by_the_settings_given(simulated: Path, tmp_path: Path):
    alone = tmp_path / "decisions.jsonl"
    alone.write_text((simulated / "decisions.jsonl").read_text())
    assert redecide(tmp_path, alone).code == 1
    assert redecide(tmp_path, alone, "conductor/pairing=random").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("", "holds no decisions"),
        ("no json\n", "decisions.jsonl:1 is not a line of decisions.jsonl"),
        ('{"id": "r000000"}\n', "decisions.jsonl:1 is not a line of decisions.jsonl"),
        ("[]\n", "decisions.jsonl:1 is not a line of decisions.jsonl"),
    ],
)
def test_a_bad_log_gets_one_sentence(text: str | None, said: str, tmp_path: Path):
    if text is not None:
        (tmp_path / "decisions.jsonl").write_text(text)
    assert said in redecide(tmp_path, tmp_path / "decisions.jsonl").sentence()


def test_a_log_of_an_estimator_that_learns_needs_one(live: Path, tmp_path: Path):
    ended = redecide(tmp_path, live / "decisions.jsonl", "conductor/estimator=closed_form")
    assert "made with an estimator that learns" in ended.sentence()
