"""All experiments, each a process of its own, and one report of them: report.md for readers, report.json for programs."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.report import Comparison, Row, comparison_dict, markdown_comparison

SIMULATE = Path(__file__).resolve().parents[2] / "scripts" / "simulate.py"
UNEXPLAINED = "unexplained"
"""The reason of a number outside its tolerance that has none."""


@dataclass(frozen=True)
class Reproduced:
    """One experiment's run."""

    name: str
    about: list[str]
    """The comment that its file opens with."""
    command: str
    seconds: float
    error: str
    """Why it failed; empty if it did not."""
    comparisons: list[Comparison]
    plots: list[str]
    """Paths within the experiment's folder, which is the report's with the experiment's name."""
    remarks: list[str]

    @property
    def title(self) -> str:
        return self.comparisons[0].title if self.comparisons else self.about[0].rstrip(".") if self.about else self.name

    @property
    def verdict(self) -> str:
        """`failed`, or the first judged comparison's."""
        if self.error:
            return "failed"
        return next((one.verdict for one in self.comparisons if self._judged([one])), "not judged")

    @property
    def kept(self) -> str:
        """`3 of 4`: numbers within their tolerance, of those that have one and the paper's number."""
        judged = self._judged(self.comparisons)
        return f"{sum(row.verdict == 'within' for row in judged)} of {len(judged)}" if judged else "-"

    @property
    def unexplained(self) -> int:
        return sum(row.note == UNEXPLAINED for one in self.comparisons for row in one.rows)

    @staticmethod
    def _judged(comparisons: Sequence[Comparison]) -> list[Row]:
        return [row for one in comparisons for row in one.rows if row.verdict in ("within", "outside")]


def choose(folder: Path, only: Sequence[str] | None) -> list[str]:
    """Names of the experiments in `folder`, as PAPER/NAME, or those of `only`. Raises UserError for one that is not there."""
    there = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))
    if only is None:
        return there
    for name in only:
        if name not in there:
            raise UserError(f"only: there is no experiment {name}; choose from {', '.join(there)}")
    return list(only)


def reproduce(
    name: str, file: Path, folder: Path, overrides: Sequence[str] = (), show: Callable[[str], None] = lambda line: None
) -> Reproduced:
    """Runs one experiment by scripts/simulate.py into `folder`/`name`. `show` hears its progress. It may fail: that is told."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    arguments = [f"+experiment={name}", *overrides]
    start, said = time.perf_counter(), []
    with (own / "output.txt").open("w", encoding="utf-8") as output:
        command = [sys.executable, str(SIMULATE), *arguments, f"hydra.run.dir='{own}'"]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                said.append(line.strip())
                show(line.strip())
    seconds = time.perf_counter() - start
    error = "" if process.returncode == 0 else next((line for line in reversed(said) if line), f"exit {process.returncode}")
    found = {"comparisons": [], "plots": [], "remarks": []}
    if not error:
        found = json.loads((own / "experiment.json").read_text(encoding="utf-8"))
    comparisons = [_comparison(one) for one in found["comparisons"]]
    shown = " ".join(["python scripts/simulate.py", *arguments])
    return Reproduced(name, _opening(file), shown, seconds, error, comparisons, found["plots"], found["remarks"])


def write(folder: Path, done: Sequence[Reproduced]) -> None:
    """Writes report.md and report.json into `folder`, in which the experiments' folders lie."""
    (folder / "report.md").write_text(_markdown(done), encoding="utf-8")
    values = [
        {
            "name": one.name,
            "title": one.title,
            "command": one.command,
            "seconds": one.seconds,
            "verdict": one.verdict,
            "error": one.error,
            "comparisons": [comparison_dict(comparison) for comparison in one.comparisons],
            "plots": [f"{one.name}/{plot}" for plot in one.plots],
            "remarks": one.remarks,
        }
        for one in done
    ]
    text = json.dumps(values, indent=2, allow_nan=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")


def _comparison(values: dict) -> Comparison:
    rows = []
    for one in values["rows"]:
        ours = math.nan if one["ours"] is None else one["ours"]
        row = Row(one["label"], one["paper"], ours, one["unit"], one["tolerance"], one["note"])
        rows.append(row if row.note or row.verdict != "outside" else replace(row, note=UNEXPLAINED))
    return Comparison(values["name"], values["title"], rows)


def _opening(file: Path) -> list[str]:
    """The comment at the top of an experiment's file, less what is for Hydra and the command, which the report has anyway."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").strip()
        if not text.startswith(("@package", "python ")):
            lines.append(text)
    return lines


def _markdown(done: Sequence[Reproduced]) -> str:
    lines = [
        "# The paper's tables and figures, and ours",
        "",
        "| experiment | what | verdict | within tolerance | unexplained | time |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for one in done:
        link = f"[{one.name}](#{_anchor(one.name)})"
        cells = (link, one.title, one.verdict, one.kept, str(one.unexplained or "-"), f"{one.seconds:.0f} s")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for one in done:
        lines += ["", f'## <a id="{_anchor(one.name)}"></a>{one.name}', "", " ".join(one.about), ""]
        lines += ["```", one.command, "```", "", f"{one.seconds:.0f} s"]
        if one.error:
            lines += ["", f"**Failed**: {one.error}"]
        lines += [f"\n![{Path(plot).stem}]({one.name}/{plot})" for plot in one.plots]
        for comparison in one.comparisons:
            lines += ["", *_table(comparison)]
        if one.remarks:
            lines += ["", *(f"- {remark}" for remark in one.remarks)]
    return "\n".join(lines) + "\n"


def _table(comparison: Comparison) -> list[str]:
    """The comparison with its notes below, each once."""
    notes = list(dict.fromkeys(row.note for row in comparison.rows if row.note))
    rows = [replace(row, note=f"({1 + notes.index(row.note)})" if row.note else "") for row in comparison.rows]
    numbered = [f"({number}) {note}  " for number, note in enumerate(notes, start=1)]
    return [markdown_comparison(replace(comparison, rows=rows)).rstrip(), *([""] if notes else []), *numbered]


def _anchor(name: str) -> str:
    return name.replace("/", "-")
