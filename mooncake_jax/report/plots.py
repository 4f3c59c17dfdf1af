"""Plots of a run as PNG files: how latencies are distributed, how load and instances moved over time, what was reused.

matplotlib is imported when the first plot is drawn, for its import takes a second; no display or global state is used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from mooncake_jax.report.metrics import RequestLatency, Summary, end_of, measure
from mooncake_jax.report.spans import COMPUTE, DECODE, busy_spans, by_instance, intervals_of, mean_open, merge
from mooncake_jax.types import SLO, RequestRecord, Span, Status

INK, GREY, RULE = "#22303c", "#6b7780", "#d9dee2"
BLUE, TEAL, OCHRE, BRICK = "#2f5d8a", "#3b8f86", "#c2903a", "#a8442f"

_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
}

_LOAD = {
    "waiting": (("queue", "decode_wait"), BRICK),
    "prefilling": (("fetch", COMPUTE), BLUE),
    "moving KV": (("transfer",), OCHRE),
    "decoding": ((DECODE,), TEAL),
}
"""Curves of the load plot: the spans they count, and their colour."""

_BINS = 200


@contextmanager
def _figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """A new figure (inches), saved to `path` at the end."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)


def _say(axes: Any, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)


def plot_latency(path: Path, records: Sequence[RequestRecord], slo: SLO) -> None:
    """The share of completed requests with at most a given TTFT, TBT and E2E, with the SLO and the share within it."""
    latencies = [measure(record) for record in records if record.status is Status.COMPLETED]
    panels: list[tuple[str, str, str, float, Callable[[RequestLatency], float], float | None]] = [
        ("Time to first token", "TTFT", "s", 1.0, lambda latency: latency.ttft, slo.ttft),
        ("Time between tokens (longest 10 %)", "TBT", "ms", 1e3, lambda latency: latency.tbt, slo.tbt),
        ("End-to-end latency", "E2E", "s", 1.0, lambda latency: latency.e2e, None),
    ]
    with _figure(path, 13.0, 3.8) as figure:
        row = figure.subplots(1, 3, sharey=True)
        row[0].set_ylabel("share of completed requests (%)")
        for axes, (title, name, unit, scale, value, limit) in zip(row, panels, strict=True):
            values = scale * np.array([value(latency) for latency in latencies if latency is not None], np.float64)
            axes.set_title(title, pad=20)
            axes.set_xlabel(f"{name} ({unit})")
            if len(values):
                _cdf(axes, np.sort(values), None if limit is None else scale * limit, unit)
            else:
                _say(axes, "no completed request")


def _cdf(axes: Any, values: Float64[np.ndarray, " values"], limit: float | None, unit: str) -> None:
    share = 100 * np.arange(1, len(values) + 1) / len(values)
    if len(values) == 1:
        axes.plot(values, share, "o", color=BLUE)
    axes.step(np.repeat(values, [2] + [1] * (len(values) - 1)), [0, *share], where="post", color=BLUE, linewidth=1.8)
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


def plot_load(path: Path, records: Sequence[RequestRecord], busy: Sequence[Span] = ()) -> None:
    """Requests waiting, prefilling, moving and decoding over time, and how busy each instance was, both as means over bins.

    Without `busy`, what the instances did follows from the requests' spans.
    """
    busy = busy or busy_spans(records)
    start = min((record.arrival for record in records), default=0.0)
    ends = [end_of(record) for record in records] + [span.end for span in busy]
    edges = np.linspace(0.0, max(max(ends, default=start) - start, 1e-9), _BINS + 1)
    instances = {where: intervals_of(spans) - start for where, spans in by_instance(busy).items()}
    rows = max(len(instances), 1)
    with _figure(path, 11.0, 4.6 + min(0.24 * rows, 6)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, min(0.5 + 0.24 * rows, 6.5)])
        above.set_title("Requests")
        above.set_ylabel("requests (mean over bin)")
        below.set_title("Busy instances")
        below.set_xlabel("time since first arrival (s)")
        if any(record.spans for record in records):
            _stages(above, records, start, edges)
        else:
            _say(above, "no spans recorded")
        if instances:
            _heat(figure, below, instances, edges)
        else:
            _say(below, "no busy spans recorded")


def _stages(axes: Any, records: Sequence[RequestRecord], start: float, edges: Float64[np.ndarray, " edges"]) -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    for label, (names, colour) in _LOAD.items():
        stages = [merge(intervals_of(span for span in record.spans if span.name in names)) for record in records]
        counts = mean_open(np.concatenate(stages) - start, edges)
        axes.plot(middles, counts, color=colour, linewidth=1.5, label=label)
        axes.fill_between(middles, counts, color=colour, alpha=0.10, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(edges[0], edges[-1])
    axes.locator_params(axis="y", integer=True)
    axes.legend(ncols=len(_LOAD), loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def _heat(figure: Any, axes: Any, instances: dict[str, np.ndarray], edges: Float64[np.ndarray, " edges"]) -> None:
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
    figure.colorbar(
        mesh, ax=axes, label="busy (%)", pad=0.01, fraction=0.03, aspect=min(12, 5 + len(instances))
    ).outline.set_visible(False)


def plot_reuse(path: Path, summary: Summary) -> None:
    """Prompt tokens of the completed requests by where their KV came from: computed, or reused from a tier."""
    sources = {"computed": summary.reuse.computed} | {str(tier): tokens for tier, tokens in summary.reuse.by_tier.items()}
    total = summary.reuse.prompt
    with _figure(path, 7.5, 3.2) as figure:
        axes = figure.subplots()
        axes.set_title("Prompt tokens by source" + (f": {summary.reuse.share:.1%} of {total:,} reused" if total else ""))
        axes.set_xlabel("tokens")
        if total == 0:
            _say(axes, "no completed request")
            return
        colours = [GREY] + [TEAL] * (len(sources) - 1)
        bars = axes.barh(list(sources), list(sources.values()), color=colours, height=0.62)
        labels = [f"{tokens:,}  ({tokens / total:.1%})" if tokens else "0" for tokens in sources.values()]
        axes.bar_label(bars, labels, padding=5, color=INK)
        axes.set_xlim(0, 1.28 * max(sources.values()))
        axes.xaxis.set_major_formatter(lambda tokens, _: _short(tokens))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)


def _short(tokens: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:g}{letter}"
    return f"{tokens:g}"


def write_plots(folder: Path, records: Sequence[RequestRecord], summary: Summary, busy: Sequence[Span] = ()) -> list[Path]:
    """Draws latency.png, load.png and reuse.png into `folder` (made if missing) and returns their paths, one per plot."""
    latency, load, reuse = (folder / f"{name}.png" for name in ("latency", "load", "reuse"))
    plot_latency(latency, records, summary.slo)
    plot_load(load, records, busy)
    plot_reuse(reuse, summary)
    return [latency, load, reuse]
