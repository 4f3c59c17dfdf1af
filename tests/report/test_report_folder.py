import json
import subprocess
import sys

import pytest

from mooncake_jax.report import NoTracker, provenance, read_requests, summarize, write_plots, write_run
from mooncake_jax.types import SLO, Span

FILES = {"requests.jsonl", "summary.json", "timeline.json", "plots/latency.png", "plots/load.png", "plots/reuse.png"}


def files_in(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


def test_a_run_leaves_requests_summary_timeline_and_plots(tmp_path, run):
    folder = tmp_path / "deep" / "run"
    summary = write_run(folder, run, SLO(), provenance=provenance(seed=7))
    assert summary == summarize(run, SLO())
    assert files_in(folder) == FILES
    assert all(is_png(path) for path in folder.glob("plots/*.png"))
    assert json.loads((folder / "summary.json").read_text())["provenance"]["seed"] == 7
    assert summarize(read_requests(folder / "requests.jsonl"), SLO()) == summary


@pytest.mark.parametrize("which", [[], ["rejected"], ["rejected", "aborted"], ["single"], ["slow"]])
def test_empty_tiny_and_all_rejected_runs_are_written_all_the_same(tmp_path, request, which):
    records = [request.getfixturevalue(name) for name in which]
    assert write_run(tmp_path, records, SLO()).requests == len(which)
    assert files_in(tmp_path) == FILES


def test_utilisation_follows_from_busy_spans_when_not_given(tmp_path, run):
    busy = [Span("step", 10.0, 11.5, "decode-0")]
    assert write_run(tmp_path, run, SLO(), busy=busy).utilisation == {"decode-0": 0.5}
    assert write_run(tmp_path, run, SLO(), busy=busy, utilisation={"decode-0": 0.25}).utilisation == {"decode-0": 0.25}


def test_requests_are_on_disk_even_if_a_record_breaks_its_contract(tmp_path, run, slow):
    broken = type(slow)("broken", 10.0, slow.status, 5, 1, token_times=())
    with pytest.raises(ValueError, match="request broken"):
        write_run(tmp_path, [*run, broken], SLO())
    assert len(read_requests(tmp_path / "requests.jsonl")) == 5


def test_tracker_gets_the_final_numbers_and_the_plots(tmp_path, run):
    class Remember(NoTracker):
        def __init__(self):
            self.numbers, self.paths = {}, []

        def summary(self, metrics):
            self.numbers = dict(metrics)

        def artifact(self, path):
            self.paths.append(path.name)

    tracker = Remember()
    write_run(tmp_path, run, SLO(), tracker=tracker)
    assert tracker.numbers["mean_ttft_ms"] == pytest.approx(1250)
    assert tracker.paths == ["latency.png", "load.png", "reuse.png", "summary.json"]


def test_plots_of_many_instances_and_of_records_without_spans(tmp_path, run, slow):
    busy = [Span("step", 10.0 + i / 50, 12.0, f"decode-{i}") for i in range(48)]
    bare = [type(slow)(r.id, r.arrival, r.status, r.input_tokens, r.output_tokens, r.token_times) for r in run]
    for name, records, spans in (("many", run, busy), ("bare", bare, ())):
        paths = write_plots(tmp_path / name, records, summarize(records, SLO()), spans)
        assert all(is_png(path) for path in paths)


def test_equal_runs_leave_equal_files(tmp_path, run):
    for name in ("a", "b"):
        write_run(tmp_path / name, run, SLO(), provenance=provenance(seed=1))
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_provenance_names_commit_seed_and_command(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y.z"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    found = provenance(seed=5, source=tmp_path)
    assert (found["commit"], found["dirty"], found["seed"]) == (commit, False, 5)
    assert sys.argv[0] in found["command"]
    (tmp_path / "file").write_text("two")
    assert provenance(source=tmp_path)["dirty"] is True


def test_provenance_outside_a_repository_or_without_git_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance(source=tmp_path)["commit"] is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance()["commit"] is provenance()["dirty"] is None


def test_importing_the_report_loads_neither_jax_nor_matplotlib_nor_wandb():
    code = "import sys, mooncake_jax.report; print([m for m in ('jax', 'matplotlib', 'wandb') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
