"""A sweep in plots: one per swept axis, a panel per metric, a line per setting of the other axes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mooncake_jax.report.ablation import Point, Sweep, short_names
from mooncake_jax.report.canvas import PALETTE, figure, from_zero

_NAMED = 16
"""Lines that the legend names at most; more would not be told apart."""
_SECONDS = ("ttft", "tbt", "tpot", "itl", "e2e", "ttft_split", "duration")


def plot_sweep(folder: Path, sweep: Sweep, metrics: Sequence[str]) -> list[Path]:
    """Draws `folder`/AXIS.png for every axis and returns their paths. Numbers lie on the axis to scale, words in order."""
    names = short_names(sweep.axes)
    paths = []
    for axis, name in names.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.png"
        _plot_axis(path, sweep, metrics, axis, names)
        paths.append(path)
    return paths


def _plot_axis(path: Path, sweep: Sweep, metrics: Sequence[str], axis: str, names: dict[str, str]) -> None:
    others = {key: name for key, name in names.items() if key != axis}
    lines: dict[str, list[Point]] = {}
    for point in sweep.points:
        if axis in point.overrides and point.metrics:
            label = ", ".join(f"{name}={point.overrides.get(key, '-')}" for key, name in others.items())
            lines.setdefault(label, []).append(point)
    ticks = list(dict.fromkeys(point.overrides[axis] for points in lines.values() for point in points))
    numeric = len(ticks) > 1 and all(_number(tick) is not None for tick in ticks)
    places = {tick: _number(tick) if numeric else float(i) for i, tick in enumerate(ticks)}
    columns = min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    width = 3.9 * columns + (2.4 if others else 0.0)
    with figure(path, width, 3.3 * rows + 0.2) as drawn:
        panels = drawn.subplots(rows, columns, squeeze=False).ravel()
        for axes, metric in zip(panels, metrics):
            axes.set_title(f"{metric} (s)" if metric.split("/")[0] in _SECONDS else metric)
            axes.set_xlabel(names[axis])
            for i, (label, points) in enumerate(lines.items()):
                shown = sorted((places[p.overrides[axis]], p.metrics[metric]) for p in points if metric in p.metrics)
                look = {"color": PALETTE[i % len(PALETTE)], "linestyle": ("-", "--", ":")[i // len(PALETTE) % 3]}
                axes.plot(*zip(*shown) if shown else ([], []), marker="o", markersize=4.5, linewidth=1.6, label=label, **look)
            _ticks(axes, ticks, places, numeric)
            from_zero(axes)
        for axes in panels[len(metrics) :]:
            axes.set_visible(False)
        if others and lines:
            room = int((3.3 * rows - 0.2) / (0.2 * len(others) + 0.1))
            _legend(drawn, panels[0], min(_NAMED, room))


def _ticks(axes: Any, ticks: Sequence[str], places: dict[str, float], numeric: bool) -> None:
    if not numeric:
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if max(map(len, ticks), default=0) > 8 else {}
        axes.set_xticks([places[tick] for tick in ticks], ticks, **turned)
        axes.set_xlim(-0.3, len(ticks) - 0.7)
    else:
        low, high = min(places.values()), max(places.values())
        if 0 < 16 * low <= high:
            axes.set_xscale("log")
            axes.minorticks_off()
        if len(ticks) <= 8:
            axes.set_xticks(sorted(places.values()), sorted(ticks, key=places.__getitem__))


def _legend(drawn: Any, axes: Any, named: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    title = None if len(labels) <= named else f"{named} of {len(labels)} lines"
    words = [label.replace(", ", "\n") for label in labels[:named]]
    drawn.legend(handles[:named], words, title=title, loc="outside right upper")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
