"""A sweep in one table: what was varied, and what came of it. Reads the folders that Hydra's multirun leaves behind."""

import csv
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from mooncake_jax.errors import UserError
from mooncake_jax.report.compare import short
from mooncake_jax.report.summary_json import flatten
from mooncake_jax.report.trackers import METRICS_FILE, TrackerConfig, WandbTrackerConfig


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    """Its folder's name, usually its number."""
    folder: Path
    overrides: Mapping[str, str]
    """What the command line set for it, by key."""
    metrics: Mapping[str, float]
    """Every number of its summary.json by its flat name, such as `ttft/p90`; empty for a run that did not finish."""


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep in their order, and the keys that differ between them."""

    name: str
    """Its folder as date/time, or as its name."""
    points: Sequence[Point]
    axes: Sequence[str]

    @property
    def unfinished(self) -> list[str]:
        return [point.name for point in self.points if not point.metrics]


def read_sweep(folder: Path, metrics: Sequence[str]) -> Sweep:
    """The sweep in `folder` of Hydra's multirun.

    Raises UserError if it holds no run, no finished run, or none that has one of `metrics`, and names a file that is broken.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that a sweep (-m) left, such as multirun/DATE/TIME")
    found = [path.parent.parent for path in folder.glob("*/.hydra/overrides.yaml")]
    points = [_point(run) for run in sorted(found, key=lambda run: (not run.name.isdecimal(), run.name.zfill(9)))]
    if not points:
        raise UserError(f"{folder} holds no runs of a sweep (folders with .hydra/overrides.yaml); give multirun/DATE/TIME")
    known = {name for point in points for name in point.metrics}
    if not known:
        raise UserError(f"no run of {folder} has finished: there is no summary.json in it")
    if unknown := [name for name in metrics if name not in known]:
        near = difflib.get_close_matches(unknown[0], sorted(known), n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}" if near else "; see the keys of summary.json, such as ttft/mean"
        raise UserError(f"metrics: no run of {folder} has {unknown[0]}{hint}")
    keys = dict.fromkeys(key for point in points for key in point.overrides)
    axes = [key for key in keys if len({point.overrides.get(key) for point in points}) > 1]
    parts = folder.resolve().parts
    return Sweep("/".join(parts[parts.index("multirun") + 1 :] if "multirun" in parts[:-1] else parts[-1:]), points, axes)


def _point(run: Path) -> Point:
    try:
        lines = OmegaConf.to_container(OmegaConf.load(run / ".hydra" / "overrides.yaml"))
        overrides = dict(_shortened(*line.lstrip("+").partition("=")[::2]) for line in lines)
        path = run / "summary.json"
        metrics = flatten(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, AttributeError, TypeError, OSError) as error:
        raise UserError(f"{run} is not a run of a sweep: {' '.join(str(error).split())}") from error
    return Point(run.name, run, overrides, metrics)


def ablation_table(sweep: Sweep, metrics: Sequence[str]) -> Table:
    """The sweep for a rich console: a row a run, the axes and then the metrics as columns."""
    table = Table(title=Text(f"sweep {sweep.name}"), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", *short_names(sweep.axes).values()):
        table.add_column(Text(name), overflow="fold")
    for name in metrics:
        table.add_column(Text(name.replace("/", "\n")), justify="right", vertical="bottom", overflow="fold")
    for point in sweep.points:
        table.add_row(*(Text(cell) for cell in _cells(sweep, point, metrics)))
    return table


def _cells(sweep: Sweep, point: Point, metrics: Sequence[str]) -> list[str]:
    numbers = [short(point.metrics[name]) if name in point.metrics else "-" for name in metrics]
    return [point.name, *(point.overrides.get(axis, "-") for axis in sweep.axes), *numbers]


def write_ablation(folder: Path, sweep: Sweep, metrics: Sequence[str]) -> None:
    """Writes ablation.csv, with numbers in full and nothing where there is none, and ablation.md into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    header = ["run", *sweep.axes, *metrics]
    with (folder / "ablation.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for point in sweep.points:
            settings = [point.overrides.get(axis, "") for axis in sweep.axes]
            writer.writerow([point.name, *settings, *(point.metrics.get(name, "") for name in metrics)])
    rows = [header, ["---"] * (1 + len(sweep.axes)) + ["---:"] * len(metrics)]
    rows += [_cells(sweep, point, metrics) for point in sweep.points]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    (folder / "ablation.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def track_sweep(folder: Path, sweep: Sweep, tracking: TrackerConfig) -> None:
    """Gives each finished run to a tracker of its own: settings, what it logged, final numbers, plots and summary.json.

    Their files go to `folder`/runs/NAME. With wandb the runs share a group, the sweep's name unless the tracker has one, and
    are named by the values of the axes.
    """
    for point in sweep.points:
        if not point.metrics:
            continue
        if isinstance(tracking, WandbTrackerConfig):
            name = ", ".join(f"{label}={point.overrides.get(axis, '-')}" for axis, label in short_names(sweep.axes).items())
            chosen: TrackerConfig = replace(tracking, group=tracking.group or sweep.name, name=name or point.name)
        else:
            chosen = tracking
        tracker = chosen.build(folder / "runs" / point.name, _config(point.folder / "config.yaml"))
        try:
            for step, numbers in _logged(point.folder / METRICS_FILE):
                tracker.log(numbers, step)
            tracker.summary(point.metrics)
            for path in (*sorted(point.folder.glob("plots/*.png")), point.folder / "summary.json"):
                tracker.artifact(path)
        finally:
            tracker.finish()


def _config(path: Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}


def _logged(path: Path) -> list[tuple[int, dict[str, float]]]:
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row.pop("step"), {name: value for name, value in row.items() if value is not None}) for row in rows]


def _shortened(key: str, value: str) -> tuple[str, str]:
    """A class named by its import path is known by its name: `conductor.pairing=TwoChoices`."""
    if key.endswith("._target_"):
        return key.removesuffix("._target_"), value.rpartition(".")[2]
    return key, value


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """A short name for each axis: its last word, `count` of `cluster.prefill.count`, and as many before it as tell it apart."""
    names = {}
    for axis in axes:
        words = axis.replace("/", ".").split(".")
        rest = [other.replace("/", ".").split(".") for other in axes if other != axis]
        length = next((n for n in range(1, len(words)) if all(words[-n:] != other[-n:] for other in rest)), len(words))
        names[axis] = ".".join(words[-length:])
    return names
