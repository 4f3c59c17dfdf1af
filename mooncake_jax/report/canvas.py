"""What all plots share: a house style, colours, and a figure that is saved as PNG.

matplotlib is imported when the first plot is drawn, for its import takes a second; no display or global state is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INK, GREY, RULE = "#22303c", "#6b7780", "#d9dee2"
BLUE, TEAL, OCHRE, BRICK = "#2f5d8a", "#3b8f86", "#c2903a", "#a8442f"
PALETTE = (BLUE, BRICK, TEAL, OCHRE, "#7a5c99", "#5f7f3a", "#b5708f", "#4b5b66")
"""For curves beside each other, in this order."""

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


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """A new figure (inches), saved to `path` at the end."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(drawn)
        yield drawn
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, dpi=130)


def say(axes: Any, text: str) -> None:
    """A remark in place of a curve."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)


def from_zero(axes: Any) -> None:
    """A y axis that shows 0 and leaves room for the markers at either end."""
    low, high = min(0.0, axes.dataLim.y0), max(0.0, axes.dataLim.y1)
    if low < high < float("inf"):  # without data the limits are infinite
        room = 0.05 * (high - low)
        axes.set_ylim(low - room / 2, high + room)


def plain_ticks(axes: Any, axis: Any) -> None:
    """A logarithmic axis whose ticks are plain numbers: 1, 10, 100; with 2 and 5 between if it spans less than two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: lettered(value)))
    axis.set_minor_formatter(NullFormatter())


def lettered(value: float) -> str:
    """A number for a tick: 200, 20k, 2M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
