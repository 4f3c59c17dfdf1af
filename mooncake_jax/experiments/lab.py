"""What an experiment works with: simulations of the settings it varies, and a folder for what it finds."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from hydra import compose
from hydra.core.hydra_config import HydraConfig

from mooncake_jax import simulate
from mooncake_jax.config import SimulateSettings, read
from mooncake_jax.report import Comparison, comparison_dict, write_comparison


@dataclass(frozen=True)
class Report:
    """What an experiment found."""

    comparisons: list[Comparison]
    """The paper's numbers beside ours."""
    plots: list[Path]
    remarks: list[str] = field(default_factory=list)
    """What belongs under the tables: differences and their reasons."""


class Lab:
    """Simulates variations of the run's own settings. Results are kept, so that equal variations are simulated once."""

    def __init__(self, folder: Path, show: Callable[[str, int, int | None], None] = lambda what, done, total: None):
        self.folder = folder
        self._show = show
        self._overrides = list(HydraConfig.get().overrides.task)
        self._done: dict[tuple[str, ...], simulate.SimRun] = {}

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Shows the user how far the work is."""
        self._show(what, done, total)

    def settings(self, overrides: Sequence[str] = ()) -> SimulateSettings:
        """The run's settings with further overrides, as on the command line. What the user overrides goes before."""
        mine = [one for one in self._overrides if one.startswith("+experiment")]
        users = [one for one in self._overrides if not one.startswith("+experiment")]
        return read(compose("simulate", [*mine, *overrides, *users]))

    def simulate(self, overrides: Sequence[str] = (), what: str = "") -> simulate.SimRun:
        """A simulation with these overrides; `what` names it in the progress display."""
        key = tuple(overrides)
        if key not in self._done:
            name = what or " ".join(overrides) or "simulating"
            self._show(name, 0, None)
            self._done[key] = simulate.run(self.settings(overrides), lambda done, total: self._show(name, done, total))
        return self._done[key]

    def digest(self, found: Report) -> str:
        """SHA-256 over all simulations, in order, and all that was found: equal experiments have equal digests."""
        runs = [run.outcome.digest for run in self._done.values()]
        tables = [comparison_dict(comparison) for comparison in found.comparisons]
        return hashlib.sha256(json.dumps([runs, tables, found.remarks]).encode()).hexdigest()


def write(found: Report, folder: Path) -> None:
    """experiment.json, all that was found, and each comparison's own files; those after the first in folders of their names."""
    for number, comparison in enumerate(found.comparisons):
        write_comparison(folder / comparison.name if number else folder, comparison)
    values = {
        "comparisons": [comparison_dict(comparison) for comparison in found.comparisons],
        "plots": [plot.relative_to(folder).as_posix() for plot in found.plots],
        "remarks": found.remarks,
    }
    text = json.dumps(values, indent=2, allow_nan=False)
    (folder / "experiment.json").write_text(text + "\n", encoding="utf-8")


@runtime_checkable
class Experiment(Protocol):
    def run(self, lab: Lab) -> Report:
        """Makes the table or figure; plots go into `lab.folder`."""
        ...
