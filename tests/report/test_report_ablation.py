"""A sweep's folder, made as Hydra makes it, gathered by the functions and by the command."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mooncake_jax.errors import UserError
from mooncake_jax.report import (
    JsonlTrackerConfig,
    WandbTrackerConfig,
    ablation_table,
    plot_sweep,
    read_sweep,
    summarize,
    track_sweep,
    write_ablation,
    write_summary,
)
from mooncake_jax.report.ablation import short_names
from mooncake_jax.types import SLO

ROOT = Path(__file__).parents[2]
METRICS = ["ttft/mean", "goodput/share"]
PAIRINGS = ("random", "cache_aware")
COUNTS = ("2", "4", "8")


@pytest.fixture
def sweep(tmp_path, run) -> Path:
    """Two pairings by three counts; the last run did not finish. A run's TTFT SLO is its number + 0.4 s."""
    folder = tmp_path / "multirun" / "2026-01-02" / "03-04-05"
    points = [(pairing, count) for pairing in PAIRINGS for count in COUNTS]
    for number, (pairing, count) in enumerate(points):
        point = folder / str(number)
        (point / ".hydra").mkdir(parents=True)
        lines = [f"conductor/pairing={pairing}", f"cluster.prefill.count={count}", "+workload.speed=2"]
        (point / ".hydra" / "overrides.yaml").write_text("".join(f"- {line}\n" for line in lines))
        (point / "config.yaml").write_text(f"cluster:\n  prefill:\n    count: {count}\n")
        (point / "metrics.jsonl").write_text('{"step": 0, "queue": 1.0}\n{"step": 3, "queue": null}\n')
        if number < 5:
            write_summary(point / "summary.json", summarize(run, SLO(ttft=number + 0.4, tbt=0.25)), {"seed": 1})
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    return folder


def test_a_sweep_has_a_point_a_run_and_the_settings_that_differ_as_axes(sweep):
    found = read_sweep(sweep, METRICS)
    assert found.name == "2026-01-02/03-04-05"
    assert found.axes == ["conductor/pairing", "cluster.prefill.count"]
    assert [point.name for point in found.points] == ["0", "1", "2", "3", "4", "5"]
    assert found.points[4].overrides["cluster.prefill.count"] == "4"
    assert [point.metrics.get("goodput/share") for point in found.points] == [0, 0.25, 0.5, 0.5, 0.5, None]
    assert found.unfinished == ["5"]


def test_runs_are_in_order_of_their_numbers(sweep):
    (sweep / "1").rename(sweep / "10")
    assert [point.name for point in read_sweep(sweep, METRICS).points] == ["0", "2", "3", "4", "5", "10"]


def test_table_csv_and_markdown_tell_the_same(sweep, tmp_path):
    found = read_sweep(sweep, METRICS)
    write_ablation(tmp_path / "out", found, METRICS)
    with (tmp_path / "out" / "ablation.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["run", "conductor/pairing", "cluster.prefill.count", "ttft/mean", "goodput/share"]
    assert rows[2] == ["1", "random", "4", "1.25", "0.25"]
    assert rows[6] == ["5", "cache_aware", "8", "", ""]
    lines = (tmp_path / "out" / "ablation.md").read_text().splitlines()
    assert lines[1] == "| --- | --- | --- | ---: | ---: |"
    assert lines[3] == "| 1 | random | 4 | 1.25 | 0.25 |"
    assert lines[7] == "| 5 | cache_aware | 8 | - | - |"
    console = Console(file=io.StringIO(), width=100)
    console.print(ablation_table(found, METRICS))
    assert "sweep 2026-01-02/03-04-05" in console.file.getvalue()
    assert "cache_aware" in console.file.getvalue()


def test_every_axis_has_a_plot(sweep, tmp_path):
    paths = plot_sweep(tmp_path, read_sweep(sweep, METRICS), METRICS)
    assert [path.name for path in paths] == ["pairing.png", "count.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_axes_are_named_by_their_last_words_that_differ():
    axes = ["cluster.prefill.count", "cluster.decode.count", "conductor/pairing", "seed"]
    assert list(short_names(axes).values()) == ["prefill.count", "decode.count", "pairing", "seed"]


def test_every_finished_run_gets_a_tracker_with_what_it_logged(sweep, tmp_path):
    track_sweep(tmp_path / "out", read_sweep(sweep, METRICS), JsonlTrackerConfig())
    written = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("metrics.jsonl"))
    assert written == [f"runs/{number}/metrics.jsonl" for number in range(5)]
    lines = (tmp_path / "out" / "runs" / "0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 0, "queue": 1.0}, {"step": 3}]


def test_wandb_runs_are_a_group_named_as_the_sweep(sweep, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(WandbTrackerConfig, "build", lambda *given: started.append(given) or Silent())
    track_sweep(tmp_path, read_sweep(sweep, METRICS), WandbTrackerConfig())
    settings, folder, config = started[1]
    assert (settings.group, settings.name, settings.mode) == ("2026-01-02/03-04-05", "pairing=random, count=4", "offline")
    assert folder == tmp_path / "runs" / "1"
    assert config == {"cluster": {"prefill": {"count": 4}}}
    assert len(started) == 5


class Silent:
    def log(self, metrics, step): ...
    def summary(self, metrics): ...
    def artifact(self, path): ...
    def finish(self): ...


def test_what_is_no_sweep_is_told_in_a_sentence(sweep, tmp_path):
    with pytest.raises(UserError, match="none is not a folder"):
        read_sweep(tmp_path / "none", METRICS)
    with pytest.raises(UserError, match="holds no runs of a sweep"):
        read_sweep(tmp_path, METRICS)
    with pytest.raises(UserError, match=r"has ttft/men; did you mean ttft/mean"):
        read_sweep(sweep, ["ttft/men"])
    (sweep / "0" / "summary.json").write_text("{")
    with pytest.raises(UserError, match="0 is not a run of a sweep"):
        read_sweep(sweep, METRICS)
    for number in range(5):
        (sweep / str(number) / "summary.json").unlink()
    with pytest.raises(UserError, match=r"no run of .* has finished"):
        read_sweep(sweep, METRICS)


def ablate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "ablate.py"), *arguments]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    environment |= {f"WANDB_{kind}_DIR": str(folder / "elsewhere") for kind in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_leaves_table_plots_and_a_wandb_group_and_ends_with_their_folder(sweep, tmp_path):
    for number in range(2, 6):
        (sweep / str(number) / "summary.json").unlink(missing_ok=True)
    ended = ablate(tmp_path, f"folder={sweep}", "metrics=[ttft/p90,reuse/share]", "tracker=wandb")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[-2] == "4 of 6 runs have not finished: 2, 3, 4, 5."
    assert Path(lines[-1]) == sweep / "ablation"
    left = {path.name for path in (sweep / "ablation").iterdir()}
    assert left == {"ablation.csv", "ablation.md", "pairing.png", "count.png", "runs"}
    for number in (0, 1):
        assert len(list((sweep / "ablation" / "runs" / str(number) / "wandb").glob("offline-run-*/run-*.wandb"))) == 1
    assert (sweep / "0" / "metrics.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "folder has no value; add folder=..."),
        (["folder=nowhere"], "nowhere is not a folder"),
        (["folder=.", "metrics=[]"], "metrics is empty"),
        (["folder=.", "tracker=paper"], "choose from"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, arguments, sentence):
    ended = ablate(tmp_path, *arguments)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
