"""P90 of TTFT and TBT over the arrival rate, divided by SLOs, and the rate up to which both hold (arXiv Figures 11 and 12)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_jax.experiments.documents import Documents
from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_curves

METRICS = ("ttft", "tbt")


class LoadCurves:
    """Small clusters at several rates of several workloads.

    The SLO of a workload is 10 (TTFT) and 5 (TBT) times the mean over the systems of P90 at the lowest rate; throughput is the
    highest tested rate up to which both hold at every rate: all as the paper's numbers imply (its §8.1).

    Args:
      title: of tables and plots.
      systems: overrides by label.
      baseline: the label that the others are compared with.
      panels: by name: "documents" (arguments of `Documents`), "rates", "overrides" by system (may lack any), "paper" (by
        metric and system [rate, value] pairs), "gain" (throughput of the best system over the baseline's by the paper's
        curves), "judged" (metrics that decide it; both if left out) and "note".
      tbt: what counts as TBT of a request: `tpot`, the mean of its intervals, or `tbt`, that of the longest tenth.
      factors: SLO over the value at the lowest rate.
      tolerance: of the gains.
    """

    def __init__(
        self,
        title: str,
        systems: Mapping[str, Sequence[str]],
        baseline: str,
        panels: Mapping[str, Mapping[str, Any]],
        tbt: str = "tpot",
        factors: Mapping[str, float | int] | None = None,
        tolerance: str | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.systems, self.baseline, self.panels = title, systems, baseline, panels
        self.columns = {"ttft": "ttft", "tbt": tbt}
        self.factors, self.tolerance, self.remarks = factors or {"ttft": 10, "tbt": 5}, tolerance, list(remarks)

    def run(self, lab: Lab) -> Report:
        gains, rates_held, plots = [], [], []
        for name, panel in self.panels.items():
            path = Documents(**panel["documents"]).write(lab.folder / "workloads" / f"{_file(name)}.jsonl")
            found = self._p90(lab, name, panel, path)
            curves = {metric: self._normalised(metric, found, panel["rates"]) for metric in METRICS}
            paper = panel.get("paper", {})
            judged = panel.get("judged", METRICS)
            held = {label: _throughput(panel["rates"], [curves[one][label] for one in judged]) for label in self.systems}
            others = {label: rate for label, rate in held.items() if label != self.baseline}
            best = max(others, key=others.get)
            ours = others[best] / held[self.baseline] if held[self.baseline] else float("inf")
            what = "TTFT" if tuple(judged) == ("ttft",) else "TTFT and TBT"
            gains.append(
                Row(
                    f"{name}: best Mooncake / {self.baseline}, {what}",
                    panel.get("gain"),
                    ours,
                    "×",
                    self.tolerance,
                    panel.get("note", ""),
                )
            )
            for label, rate in held.items():
                published = [paper[one][label] for one in judged if label in paper.get(one, {})]
                theirs = _paper_throughput(published) if published else None
                rates_held.append(Row(f"{name}: {label}", theirs, rate, "req/s"))
            for metric in METRICS:
                values = {label: dict(paper.get(metric, {}).get(label, ())) for label in self.systems}
                plots.append(lab.folder / "plots" / f"{_file(name)}_{metric}.png")
                plot_curves(
                    plots[-1],
                    f"{name}: P90 {metric.upper()}",
                    {label: (panel["rates"], _cut(curves[metric][label])) for label in self.systems},
                    {label: (list(pairs), list(pairs.values())) for label, pairs in values.items() if pairs},
                    x_label="requests / s",
                    y_label="P90 / SLO, up to 1.2",
                )
        return Report(
            [
                Comparison("gains", f"{self.title}: throughput over {self.baseline}'s", gains),
                Comparison("throughput", f"{self.title}: highest tested rate within the SLOs", rates_held),
            ],
            plots,
            self.remarks,
        )

    def _p90(self, lab: Lab, name: str, panel: Mapping[str, Any], path: Path) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, str], list[float]] = {}
        for label, mine in self.systems.items():
            for rate in panel["rates"]:
                load = [f"workload.path={path}", "workload.poisson=true", f"workload.rate={rate}"]
                own = panel.get("overrides", {}).get(label, [])
                columns = lab.simulate([*mine, *own, *load], f"{name}, {label}, {rate:g}/s").outcome.columns
                for metric, column in self.columns.items():
                    found.setdefault((label, metric), []).append(float(np.percentile(getattr(columns, column), 90)))
        return found

    def _normalised(self, metric: str, found: Mapping, rates: Sequence[float | int]) -> dict[str, list[float]]:
        slo = self.factors[metric] * float(np.mean([found[label, metric][0] for label in self.systems]))
        return {label: [value / slo for value in found[label, metric]] for label in self.systems}


def _throughput(rates: Sequence[float | int], curves: Sequence[Sequence[float]]) -> float:
    """The last rate before any curve exceeds 1; 0 if one does at the first."""
    held = 0.0
    for rate, values in zip(rates, zip(*curves)):
        if max(values) > 1:
            break
        held = float(rate)
    return held


def _paper_throughput(curves: Sequence[Sequence[Sequence[float | int]]]) -> float:
    """The same of the paper's points: those above 1.1 were not drawn, and one that ends stays as it was last."""
    first, *others = ({float(rate): float(value) for rate, value in curve} for curve in curves)
    held = 0.0
    for rate in first:
        if max([first[rate], *(one.get(rate, 0.0) for one in others)]) > 1:
            break
        held = rate
    return held


def _cut(values: Sequence[float]) -> list[float | None]:
    """Up to the first value far above the SLO, so that the others can be told apart."""
    return [value if value <= 1.2 else None for value in values]


def _file(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name.lower())
