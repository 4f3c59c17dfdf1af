"""Effective request capacity: the share of requests with TTFT within the SLO and TBT of at most x (FAST Figures 1, 6 and 7)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.simulate import SimRun


class EffectiveCapacity:
    """Curves of several systems, one simulation each; TBT is the mean of the longest tenth of a request's intervals.

    Args:
      title: of table and plot.
      systems: overrides by label, the one that the others are baselines of first.
      paper: by the trace's name, then "tbt_ms" and each system's label, the paper's curve in per cent of all requests.
      limits_ms: TBT at which systems are compared.
      tolerance: of the shares, in per cent of all requests.
      variations: overrides by "LABEL, VARIATION", beside the same numbers of the paper as LABEL, which must be a system.
      what_ifs: overrides by label, with which all systems are simulated again, for a table and a plot of their own.
      notes: reasons of known differences, by system or variation.
    """

    def __init__(
        self,
        title: str,
        systems: Mapping[str, Sequence[str]],
        paper: Mapping[str, Mapping[str, Sequence[float | int]]],
        limits_ms: Sequence[float | int] = (100, 200, 300),
        tolerance: str | None = None,
        variations: Mapping[str, Sequence[str]] | None = None,
        what_ifs: Mapping[str, Sequence[str]] | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.systems, self.paper, self.limits_ms = title, systems, paper, limits_ms
        self.tolerance, self.notes, self.remarks = tolerance, notes or {}, list(remarks)
        self.variations, self.what_ifs = variations or {}, what_ifs or {}

    def run(self, lab: Lab) -> Report:
        trace = lab.settings().workload.path or "generated"
        paper = dict(self.paper.get(trace, {}))
        grid = np.array(paper.pop("tbt_ms", np.geomspace(30, 1000, 40)), np.float64)
        title = f"{self.title}, {Path(trace).stem} trace"
        comparisons, plots = [], []
        for number, (name, overrides) in enumerate({"": (), **self.what_ifs}.items()):
            shares = {label: self._shares(lab, label, [*mine, *overrides], grid) for label, mine in self.systems.items()}
            rows = [row for label in shares for row in self._rows(label, label, shares[label], paper, grid, not name)]
            rows += self._gains(shares, paper, grid)
            if not name:
                for label, mine in self.variations.items():
                    of = label.partition(",")[0]
                    found = self._shares(lab, label, [*self.systems[of], *mine], grid)
                    rows += self._rows(label, of, found, paper, grid, judged=False)
            heading = f"{title}: {name}" if name else title
            comparisons.append(Comparison(f"capacity{number or ''}", heading, rows))
            plots.append(lab.folder / "plots" / f"capacity{number or ''}.png")
            plot_curves(
                plots[-1],
                f"What if: {name}" if name else heading,
                {label: (grid, share) for label, share in shares.items()},
                {label: (grid, values) for label, values in paper.items()},
                x_label="TBT limit (ms)",
                y_label="effective requests (%)",
                log_x=True,
            )
        return Report(comparisons, plots, self.remarks)

    def _shares(self, lab: Lab, label: str, overrides: list[str], grid: np.ndarray) -> Float[np.ndarray, " limits"]:
        return effective_pct(lab.simulate(overrides, label), grid)

    def _rows(self, label: str, of: str, share: np.ndarray, paper: Mapping, grid: np.ndarray, judged: bool) -> list[Row]:
        """The share at each limit; the paper's are those of system `of`."""
        tolerance = self.tolerance if judged and of in paper else None
        return [
            Row(
                f"{label}, TBT <= {limit:g} ms",
                _at(paper[of], grid, limit) if of in paper else None,
                _at(share, grid, limit),
                "%",
                tolerance,
                self.notes.get(label, "") if judged or label != of else "",
            )
            for limit in self.limits_ms
        ]

    def _gains(self, shares: Mapping, paper: Mapping, grid: np.ndarray) -> list[Row]:
        """How much more the first system serves than the best of the others."""
        first, *others = self.systems

        def gain(curves: Mapping, limit: float | int) -> float:
            return 100 * (_at(curves[first], grid, limit) / max(_at(curves[other], grid, limit) for other in others) - 1)

        return [
            Row(
                f"{first} over the best other, TBT <= {limit:g} ms",
                gain(paper, limit) if set(self.systems) <= set(paper) else None,
                gain(shares, limit),
                "+%",
            )
            for limit in self.limits_ms
            if others and max(_at(shares[other], grid, limit) for other in others) > 0
        ]


def effective_pct(run: SimRun, tbt_ms: Float[np.ndarray, " limits"]) -> Float[np.ndarray, " limits"]:
    """Per cent of all requests that completed with TTFT within the SLO and TBT of at most each limit."""
    columns = run.outcome.columns
    within = columns.completed & (columns.ttft <= run.settings.slo.ttft)
    return 100 * np.searchsorted(np.sort(columns.tbt[within]), tbt_ms / 1e3, side="right") / len(columns)


def _at(curve: Sequence[float | int] | np.ndarray, grid: np.ndarray, limit: float | int) -> float:
    return float(np.interp(limit, grid, np.array(curve, np.float64)))
