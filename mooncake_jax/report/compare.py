"""The paper's numbers beside ours: a row a number, a verdict by a tolerance set before, as text, Markdown and JSON."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mooncake_jax.errors import UserError

WITHIN, OUTSIDE, UNJUDGED, NO_FIGURE = "within", "outside", "not judged", "no figure"
"""Verdicts: the tolerance is kept or not; there is no tolerance; the paper gives no number."""

WIDTH = 100


@dataclass(frozen=True)
class Row:
    """One number of the paper and ours, both in `unit`.

    A tolerance is "ratio 1.6" (the larger is at most 1.6 times the smaller), "abs 0.04" (they differ by at most 0.04), or None.
    Raises UserError for any other.
    """

    label: str
    paper: float | int | None
    ours: float | int
    unit: str = ""
    tolerance: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            kind, limit = _tolerance(self)
            if not limit >= (1 if kind == "ratio" else 0):
                raise UserError(f"{self.label}: tolerance {self.tolerance!r} can never be kept")

    @property
    def verdict(self) -> str:
        if self.paper is None:
            return NO_FIGURE
        if self.tolerance is None:
            return UNJUDGED
        kind, limit = _tolerance(self)
        if kind == "abs":
            kept = abs(self.ours - self.paper) <= limit
        else:
            low, high = sorted((self.ours, self.paper))
            kept = low == high or (low > 0 and high <= limit * low)
        return WITHIN if kept else OUTSIDE

    @property
    def ratio(self) -> float | None:
        """Ours / the paper's, or None without a number other than 0 to divide by."""
        return self.ours / self.paper if self.paper else None


def _tolerance(row: Row) -> tuple[str, float]:
    kind, _, limit = (row.tolerance or "").partition(" ")
    try:
        if kind in ("ratio", "abs"):
            return kind, float(limit)
    except ValueError:
        pass
    raise UserError(f"{row.label}: tolerance {row.tolerance!r} is neither like 'ratio 1.6' nor like 'abs 0.04'")


@dataclass(frozen=True)
class Comparison:
    """A published table or figure and our run of it. `name` is for files, `title` for readers."""

    name: str
    title: str
    rows: Sequence[Row]

    @property
    def verdict(self) -> str:
        """`outside` if any row is, else `within` if any is, else what is left."""
        found = {row.verdict for row in self.rows}
        return next((verdict for verdict in (OUTSIDE, WITHIN, UNJUDGED) if verdict in found), NO_FIGURE)


def format_comparison(comparison: Comparison) -> str:
    """The comparison as plain text, at most 100 columns wide."""
    table = Table(title=Text(comparison.title), title_justify="left", caption=_verdict(comparison), caption_justify="left")
    for name in ("", "paper", "ours", "ours/paper", "tolerance", "verdict"):
        table.add_column(name, justify="right" if name in ("paper", "ours", "ours/paper") else "left")
    notes = list(dict.fromkeys(row.note for row in comparison.rows if row.note))
    for row in comparison.rows:
        label, *others = _cells(row)
        mark = f" [{1 + notes.index(row.note)}]" if row.note else ""
        table.add_row(Text(label + mark), *others)
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(table)
    for number, note in enumerate(notes, start=1):
        console.print(Text(f"[{number}] {note}"))
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def markdown_comparison(comparison: Comparison) -> str:
    """The comparison as a section of Markdown."""
    lines = [
        f"### {comparison.title}",
        "",
        "| | paper | ours | ours/paper | tolerance | verdict | note |",
        "| --- | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for row in comparison.rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (*_cells(row), row.note)) + " |")
    return "\n".join([*lines, "", _verdict(comparison), ""])


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison with its verdicts as JSON values; a number of ours that is not finite is null."""
    rows = []
    for row in comparison.rows:
        ratio = row.ratio if math.isfinite(row.ours) else None
        ours = row.ours if math.isfinite(row.ours) else None
        rows.append({**asdict(row), "ours": ours, "ratio": ratio, "verdict": row.verdict})
    return {"name": comparison.name, "title": comparison.title, "verdict": comparison.verdict, "rows": rows}


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Writes comparison.json, strict JSON, and comparison.md into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    values = json.dumps(comparison_dict(comparison), indent=2, allow_nan=False)
    (folder / "comparison.json").write_text(values + "\n", encoding="utf-8")
    (folder / "comparison.md").write_text(markdown_comparison(comparison), encoding="utf-8")


def _cells(row: Row) -> list[str]:
    label = f"{row.label} ({row.unit})" if row.unit else row.label
    numbers = ["-" if value is None else short(value) for value in (row.paper, row.ours, row.ratio)]
    return [label, *numbers, row.tolerance or "-", row.verdict]


def _verdict(comparison: Comparison) -> str:
    judged = [row.verdict for row in comparison.rows if row.verdict in (WITHIN, OUTSIDE)]
    kept = f": {judged.count(WITHIN)} of {len(judged)} numbers within their tolerance" if judged else ""
    return f"Verdict: {comparison.verdict}{kept}."


def short(value: float | int) -> str:
    """A number for a table: whole numbers and large ones in full, others to four digits."""
    if value != value:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
