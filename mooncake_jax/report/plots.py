"""Plots of a run as PNG files: how latencies are distributed, how load and instances moved over time, what was reused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from mooncake_jax.report.canvas import BLUE, BRICK, GREY, INK, OCHRE, TEAL, figure, lettered, say
from mooncake_jax.report.columns import RequestColumns, columns_of
from mooncake_jax.report.latency import TTFT_STAGES
from mooncake_jax.report.metrics import Summary
from mooncake_jax.report.spans import COMPUTE, DECODE, Busy, busy_intervals, busy_spans, intervals_of, mean_open, merge
from mooncake_jax.types import SLO, RequestRecord

_LOAD = {
    "waiting": (("queue", "decode_wait"), BRICK),
    "prefilling": (("fetch", COMPUTE), BLUE),
    "moving KV": (("transfer",), OCHRE),
    "decoding": ((DECODE,), TEAL),
}
"""Curves of the load plot: the spans they count, and their colour."""

_BINS = 200
_POINTS = 4000
"""Points of a distribution's curve; more cannot be told apart."""


def plot_latency(path: Path, columns: RequestColumns, slo: SLO) -> None:
    """The share of completed requests with at most a given TTFT, TBT and E2E, with the SLO and the share within it."""
    panels = [
        ("Time to first token", "TTFT", "s", 1.0, columns.ttft, slo.ttft),
        ("Time between tokens (longest 10 %)", "TBT", "ms", 1e3, columns.tbt, slo.tbt),
        ("End-to-end latency", "E2E", "s", 1.0, columns.e2e, None),
    ]
    with figure(path, 13.0, 3.8) as drawn:
        row = drawn.subplots(1, 3, sharey=True)
        row[0].set_ylabel("share of completed requests (%)")
        for axes, (title, name, unit, scale, seconds, limit) in zip(row, panels, strict=True):
            values = scale * seconds[columns.completed]
            axes.set_title(title, pad=20)
            axes.set_xlabel(f"{name} ({unit})")
            if len(values):
                _cdf(axes, np.sort(values), None if limit is None else scale * limit, unit)
            else:
                say(axes, "no completed request")


def _cdf(axes: Any, values: Float64[np.ndarray, " values"], limit: float | None, unit: str) -> None:
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(np.int64))
    share = 100 * (at + 1) / len(values)
    if len(values) == 1:
        axes.plot(values, share, "o", color=BLUE)
    axes.step([values[0], *values[at]], [0, *share], where="post", color=BLUE, linewidth=1.8)
    axes.set_ylim(0, 103)
    shown = values if limit is None else np.append(values, limit)
    positive = shown[shown > 0]
    if len(positive) and shown.max() > 20 * np.median(positive):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if len(positive) > 1:
            axes.set_xlim(max(positive.min(), shown.max() / 1e5) * 0.8, shown.max() * 1.6)
    else:
        axes.set_xlim(0, max(shown.max() * 1.08, 1e-9))
    if limit is not None:
        within = 100 * np.mean(values <= limit)
        axes.axvline(limit, color=BRICK, linewidth=1.4, linestyle=(0, (4, 2)))
        text = f"SLO {limit:g} {unit}: {within:.1f} % within"
        axes.text(0.0, 1.02, text, transform=axes.transAxes, color=BRICK, va="bottom")


def plot_load(path: Path, run: Sequence[RequestRecord] | RequestColumns, busy: Busy = ()) -> None:
    """Requests waiting, prefilling, moving and decoding over time, and how busy each instance was, both as means over bins.

    The stages follow from the requests' spans, or where there are none, from arrival, split of TTFT and end. Without `busy`,
    what the instances did follows from the spans.
    """
    spans = [] if isinstance(run, RequestColumns) else [span for record in run for span in record.spans]
    columns = run if isinstance(run, RequestColumns) else columns_of(run)
    instances = busy_intervals(busy or ([] if isinstance(run, RequestColumns) else busy_spans(run)))
    start = float(columns.arrival[0]) if len(columns) else 0.0
    ends = [float(times.max()) for times in (columns.finished, *(spent[:, 1] for spent in instances.values())) if len(times)]
    edges = np.linspace(0.0, max(max(ends, default=start) - start, 1e-9), _BINS + 1)
    rows = max(len(instances), 1)
    with figure(path, 11.0, 4.6 + min(0.24 * rows, 6)) as drawn:
        above, below = drawn.subplots(2, 1, sharex=True, height_ratios=[3, min(0.5 + 0.24 * rows, 6.5)])
        above.set_title("Requests")
        above.set_ylabel("requests (mean over bin)")
        below.set_title("Busy instances")
        below.set_xlabel("time since first arrival (s)")
        if len(columns):
            _stages(above, _from_spans(run) if spans else _from_columns(columns), start, edges)
        else:
            say(above, "no requests")
        if instances:
            _heat(drawn, below, {where: spent - start for where, spent in instances.items()}, edges)
        else:
            say(below, "no busy spans recorded")


def _from_spans(records: Sequence[RequestRecord]) -> dict[str, Float64[np.ndarray, "_ 2"]]:
    """The intervals that each curve counts."""
    return {
        label: np.concatenate([merge(intervals_of(span for span in record.spans if span.name in names)) for record in records])
        for label, (names, _) in _LOAD.items()
    }


def _from_columns(columns: RequestColumns) -> dict[str, Float64[np.ndarray, "_ 2"]]:
    """As `_from_spans`; a request passes the stages one after another, and waits as long as its stages are not known."""
    began = ~np.isnan(columns.ttft)
    known = began & ~np.isnan(columns.first_stages) & bool(columns.split)
    first = columns.arrival + columns.ttft
    stages = {
        "queue": np.stack([columns.arrival, np.where(began, first, columns.finished)], axis=1)[~known],
        DECODE: np.stack([first, columns.finished], axis=1)[began],
    }
    at = columns.arrival[known]
    for stage in TTFT_STAGES:
        then = at + columns.split[stage][known] if stage in columns.split else at
        stages[stage] = np.concatenate([stages.get(stage, np.zeros((0, 2))), np.stack([at, then], axis=1)])
        at = then
    return {label: np.concatenate([stages[name] for name in names]) for label, (names, _) in _LOAD.items()}


def _stages(
    axes: Any, stages: Mapping[str, Float64[np.ndarray, "_ 2"]], start: float, edges: Float64[np.ndarray, " edges"]
) -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    for label, (_, colour) in _LOAD.items():
        counts = mean_open(stages[label] - start, edges)
        axes.plot(middles, counts, color=colour, linewidth=1.5, label=label)
        axes.fill_between(middles, counts, color=colour, alpha=0.10, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(edges[0], edges[-1])
    axes.locator_params(axis="y", integer=True)
    axes.legend(ncols=len(_LOAD), loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _heat(drawn: Any, axes: Any, instances: dict[str, np.ndarray], edges: Float64[np.ndarray, " edges"]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shares = np.stack([100 * mean_open(merge(intervals), edges) for intervals in instances.values()])
    colours = LinearSegmentedColormap.from_list("busy", ["#f3f5f6", "#9fbfd0", BLUE])
    rows = np.arange(len(instances) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, np.minimum(shares, 100.0), cmap=colours, vmin=0, vmax=100)
    every = -(-len(instances) // 32)
    axes.set_yticks(range(0, len(instances), every), list(instances)[::every])
    axes.set_ylim(len(instances) - 0.5, -0.5)
    axes.hlines(rows[1:-1], edges[0], edges[-1], color="white", linewidth=1.2)
    axes.grid(False)
    drawn.colorbar(
        mesh, ax=axes, label="busy (%)", pad=0.01, fraction=0.03, aspect=min(12, 5 + len(instances))
    ).outline.set_visible(False)


def plot_reuse(path: Path, summary: Summary) -> None:
    """Prompt tokens of the completed requests by where their KV came from: computed, or reused from a tier."""
    sources = {"computed": summary.reuse.computed} | {str(tier): tokens for tier, tokens in summary.reuse.by_tier.items()}
    total = summary.reuse.prompt
    with figure(path, 7.5, 3.2) as drawn:
        axes = drawn.subplots()
        axes.set_title("Prompt tokens by source" + (f": {summary.reuse.share:.1%} of {total:,} reused" if total else ""))
        axes.set_xlabel("tokens")
        if total == 0:
            say(axes, "no completed request")
            return
        colours = [GREY] + [TEAL] * (len(sources) - 1)
        bars = axes.barh(list(sources), list(sources.values()), color=colours, height=0.62)
        labels = [f"{tokens:,}  ({tokens / total:.1%})" if tokens else "0" for tokens in sources.values()]
        axes.bar_label(bars, labels, padding=5, color=INK)
        axes.set_xlim(0, 1.28 * max(sources.values()))
        axes.xaxis.set_major_formatter(lambda tokens, _: lettered(tokens))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)


def write_plots(folder: Path, run: Sequence[RequestRecord] | RequestColumns, summary: Summary, busy: Busy = ()) -> list[Path]:
    """Draws latency.png, load.png and reuse.png into `folder` (made if missing) and returns their paths, one per plot."""
    latency, load, reuse = (folder / f"{name}.png" for name in ("latency", "load", "reuse"))
    plot_latency(latency, run if isinstance(run, RequestColumns) else columns_of(run), summary.slo)
    plot_load(load, run, busy)
    plot_reuse(reuse, summary)
    return [latency, load, reuse]
