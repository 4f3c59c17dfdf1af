"""How latencies are distributed in several systems: curves of the share of requests within x (arXiv Figure 13)."""

from collections.abc import Mapping, Sequence

import numpy as np

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_curves


class Distributions:
    """Simulates every system and compares the distribution of TTFT and TBT.

    Args:
      title: of tables and plots.
      systems: overrides by label.
      paper: by "ttft" and "tbt", "s" (limits in seconds) and for each system the share of requests within each; null is a gap.
      limits: limits in seconds, by "ttft" and "tbt", at which shares are compared.
      quantiles: the paper's seconds by "ttft" and "tbt", system, and per cent.
      tolerance: by "share" and "quantile".
      what_ifs: overrides by label, with which all systems are simulated again for a table and plots of their own.
      notes: reasons of known differences, by "ttft / SYSTEM" and "tbt / SYSTEM".
    """

    def __init__(
        self,
        title: str,
        systems: Mapping[str, Sequence[str]],
        paper: Mapping[str, Mapping[str, Sequence[float | int | None]]],
        limits: Mapping[str, float | int],
        quantiles: Mapping[str, Mapping[str, Mapping[int, float | int]]],
        tolerance: Mapping[str, str] | None = None,
        what_ifs: Mapping[str, Sequence[str]] | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.systems, self.paper, self.limits = title, systems, paper, limits
        self.quantiles, self.tolerance, self.notes = quantiles, tolerance or {}, notes or {}
        self.what_ifs, self.remarks = what_ifs or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        comparisons, plots = [], []
        for number, (name, overrides) in enumerate({"": (), **self.what_ifs}.items()):
            heading = f"{self.title}: {name}" if name else self.title
            runs = {label: lab.simulate([*mine, *overrides], label) for label, mine in self.systems.items()}
            rows = []
            for metric, limit in self.limits.items():
                columns = {label: run.outcome.columns for label, run in runs.items()}
                values = {label: np.sort(getattr(one, metric)[one.completed]) for label, one in columns.items()}
                sizes = {label: len(one) for label, one in columns.items()}
                for label in runs:
                    rows += self._rows(metric, label, values[label], sizes[label], limit, judged=not name)
                paper = {label: curve for label, curve in self.paper[metric].items() if label != "s"}
                low, high = self.paper[metric]["s"][0], self.paper[metric]["s"][-1]
                grid = np.geomspace(low, high, 200)
                plots.append(lab.folder / "plots" / f"{metric}{number or ''}.png")
                plot_curves(
                    plots[-1],
                    f"What if: {name}" if name else heading,
                    {label: (grid, _within(values[label], sizes[label], grid)) for label in runs},
                    {label: (self.paper[metric]["s"], _per_cent(curve)) for label, curve in paper.items()},
                    x_label=f"{metric.upper()} (s)",
                    y_label="requests within (%)",
                    log_x=True,
                )
            comparisons.append(Comparison(f"distributions{number or ''}", heading, rows))
        return Report(comparisons, plots, self.remarks)

    def _rows(self, metric: str, label: str, values: np.ndarray, size: int, limit: float | int, judged: bool) -> list[Row]:
        name, note = metric.upper(), self.notes.get(f"{metric} / {label}", "") if judged else ""
        seconds, shares = self.paper[metric]["s"], self.paper[metric].get(label)
        paper = None if shares is None or limit not in seconds else shares[list(seconds).index(limit)]
        rows = [
            Row(
                f"{label}, {name} <= {limit:g} s",
                None if paper is None else 100 * paper,
                float(_within(values, size, np.array([limit]))[0]),
                "%",
                self.tolerance.get("share") if judged and paper is not None else None,
                note,
            )
        ]
        for per_cent, published in self.quantiles.get(metric, {}).get(label, {}).items():
            ours = float(np.percentile(values, per_cent)) if len(values) else float("nan")
            tolerance = self.tolerance.get("quantile") if judged else None
            rows.append(Row(f"{label}, {name} P{per_cent}", published, ours, "s", tolerance, note))
        return rows


def _within(values: np.ndarray, size: int, limits: np.ndarray) -> np.ndarray:
    """Per cent of all requests within each limit; those that did not complete are not."""
    return 100 * np.searchsorted(values, limits, side="right") / size


def _per_cent(shares: Sequence[float | int | None]) -> list[float | None]:
    return [None if share is None else 100.0 * share for share in shares]
