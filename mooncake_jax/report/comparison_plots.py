"""The paper's figures with our results in them: the same colour for the same thing, ours solid, the paper's dashed."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_jax.report.canvas import GREY, INK, PALETTE, figure, from_zero, plain_ticks
from mooncake_jax.report.compare import short

Curve = tuple[Sequence[float | int | None] | np.ndarray, Sequence[float | int | None] | np.ndarray]
"""x and y, in order of x; a y of None or NaN leaves a gap."""

_DASHES = (0, (4, 2.2))


def plot_curves(
    path: Path,
    title: str,
    curves: Mapping[str, Curve],
    paper: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Our curves, solid, and the paper's, dashed with a ring at each value read from it; equal labels have equal colours."""
    colours = _colours([*curves, *paper])
    with figure(path, 9.2, 4.6) as drawn:
        axes = drawn.subplots()
        axes.set_title(title, pad=12)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        for label, (x, y) in paper.items():
            ring = {"marker": "o", "markersize": 4.5, "markerfacecolor": "white", "markeredgewidth": 1.1}
            axes.plot(*_numbers(x, y), color=colours[label], linestyle=_DASHES, linewidth=1.3, **ring)
        for label, (x, y) in curves.items():
            few = "." if len(x) <= 30 else ""
            axes.plot(*_numbers(x, y), color=colours[label], linewidth=1.9, marker=few, markersize=7)
        for axis, log in ((axes.xaxis, log_x), (axes.yaxis, log_y)):
            if log:
                plain_ticks(axes, axis)
        if not log_y:
            from_zero(axes)
        _legend(drawn, colours, [("ours", {"linewidth": 1.9})] * bool(curves) + [("paper", _PAPER)] * bool(paper))


_PAPER = {"linestyle": _DASHES, "linewidth": 1.3, "marker": "o", "markersize": 4.5, "markerfacecolor": "white"}


def _legend(drawn: Any, colours: Mapping[str, str], kinds: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Beside the plot, where no curve can run into it: first the colours, then what solid and dashed mean."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=4, label=label) for label, colour in colours.items()]
    handles += [Line2D([], [], color=GREY, label=name, **look) for name, look in kinds]
    drawn.legend(handles=handles, loc="outside right upper", handlelength=2.6, borderaxespad=1.2)


def _colours(labels: Sequence[str]) -> dict[str, str]:
    unique = list(dict.fromkeys(labels))
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(unique)}


def _numbers(x: Sequence[Any] | np.ndarray, y: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
    return [np.array([np.nan if value is None else value for value in values], np.float64) for values in (x, y)]


def plot_bars(
    path: Path,
    title: str,
    categories: Sequence[str],
    *,
    paper: Mapping[str, Sequence[float | int | None]],
    ours: Mapping[str, Sequence[float | int | None]],
    y_label: str,
) -> None:
    """Groups of bars, a group a category, in it a pair a series: the paper's pale and hatched, ours full, one colour a series.

    Each series has a value a category; None leaves the place empty.
    """
    series = list(dict.fromkeys([*paper, *ours]))
    colours = _colours(series)
    pair = 0.84 / max(len(series), 1)
    bar = pair * 0.46
    labelled = len(categories) * len(series) <= 14
    with figure(path, min(max(6.5, 2.6 + 0.75 * len(categories) * len(series)), 14.0), 4.4) as drawn:
        axes = drawn.subplots()
        axes.set_title(title, pad=12)
        axes.set_ylabel(y_label)
        for i, name in enumerate(series):
            middle = np.arange(len(categories)) - 0.42 + pair * (i + 0.5)
            for values, shift, look in (
                (paper.get(name), -bar / 2, {"facecolor": "white", "edgecolor": colours[name], "hatch": "////"}),
                (ours.get(name), bar / 2, {"facecolor": colours[name], "edgecolor": colours[name]}),
            ):
                if values is None:
                    continue
                places, heights = _numbers(middle + shift, values)
                there = np.isfinite(heights)
                bars = axes.bar(places[there], heights[there], width=bar * 0.94, linewidth=1.0, **look)
                if labelled:
                    texts = [f"{height:.2g}" if height < 1 else short(float(f"{height:.3g}")) for height in heights[there]]
                    axes.bar_label(bars, texts, padding=2, color=INK, fontsize=8)
        axes.set_xticks(range(len(categories)), [textwrap.fill(category, 13) for category in categories])
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.12)
        _bar_legend(drawn, colours if len(series) > 1 else {})


def _bar_legend(drawn: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    handles.append(Patch(facecolor="white", edgecolor=GREY, hatch="////", label="paper"))
    handles.append(Patch(color=GREY, label="ours"))
    drawn.legend(handles=handles, loc="outside right upper", borderaxespad=1.2)
