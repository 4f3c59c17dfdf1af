"""Hit rate against the capacity of one pool, whatever the time (FAST Fig 9)."""

from collections.abc import Mapping, Sequence

import numpy as np

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.experiments.shared_tokens import token_curve
from mooncake_jax.experiments.traces import why_missing
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.sim.study import LRUCurve, lru_curve
from mooncake_jax.workload import load_trace


class Capacity:
    """The LRU curve of each workload: in tokens (`shared_tokens`), which is judged, and in whole blocks of the trace.

    Args:
      title: of tables and plots.
      workloads: overrides by label; one whose traces are not here is passed over with a sentence.
      capacities: of the pool, in tokens.
      paper: hit rate at each capacity by workload.
      share_at: a capacity, for the share of the maximum that is hit there.
      paper_share: that share by workload.
      tolerance: of a hit rate and of a share.
    """

    def __init__(
        self,
        title: str,
        workloads: Mapping[str, Sequence[str]],
        capacities: Sequence[float | int],
        paper: Mapping[str, Sequence[float | int]],
        share_at: float | int,
        paper_share: Mapping[str, float],
        tolerance: str = "abs 0.04",
        remarks: Sequence[str] = (),
    ):
        self.title, self.workloads, self.paper, self.tolerance = title, workloads, paper, tolerance
        self.capacities = [int(capacity) for capacity in capacities]
        self.share_at, self.paper_share, self.remarks = int(share_at), paper_share, list(remarks)

    def run(self, lab: Lab) -> Report:
        remarks, found = [], {}
        for label, overrides in self.workloads.items():
            settings = lab.settings(overrides)
            if missing := why_missing(settings.workload):
                remarks.append(f"{label} is left out: {missing}")
                continue
            lab.show(f"{label}: reading", 0, None)
            trace = load_trace(settings.workload)
            lab.show(f"{label}: {len(trace.requests)} requests", len(found), len(self.workloads))
            found[label] = (token_curve(trace), _in_tokens(lru_curve(trace), trace.block_tokens))
        comparisons, plots = [], []
        for which, (name, what) in enumerate((("tokens", "by tokens"), ("blocks", "by whole 512-token blocks of the trace"))):
            curves = {label: both[which] for label, both in found.items()}
            title = f"{self.title}, {what}"
            comparisons.append(Comparison(name, title, self._rows(curves, None if which else self.tolerance)))
            plots.append(lab.folder / "plots" / f"hit_rate_{name}.png")
            x = np.geomspace(self.capacities[0], self.capacities[-1], 200)
            plot_curves(
                plots[-1],
                title,
                {label: (x, [curve.token_rate(int(capacity)) for capacity in x]) for label, curve in curves.items()},
                {label: (self.capacities, self.paper[label]) for label in curves if label in self.paper},
                x_label="capacity (tokens)",
                y_label="hit rate",
                log_x=True,
            )
        return Report(comparisons, plots, [*self.remarks, *remarks])

    def _rows(self, curves: Mapping[str, LRUCurve], tolerance: str | None) -> list[Row]:
        rows = []
        for label, curve in curves.items():
            paper = self.paper.get(label, [None] * len(self.capacities))
            for capacity, theirs in zip(self.capacities, paper, strict=True):
                rows.append(Row(f"{label}, {capacity:,} tokens", theirs, curve.token_rate(capacity), "", tolerance))
            if curve.tokens.size:
                share = curve.hit_tokens(self.share_at) / int(curve.tokens[-1])
                name = f"{label}, share of maximum at {self.share_at:,}"
                rows.append(Row(name, self.paper_share.get(label), share, "", tolerance))
        return rows


def _in_tokens(curve: LRUCurve, block_tokens: int) -> LRUCurve:
    """The same with capacities in tokens: a pool of so many holds as many whole blocks as fit."""
    return LRUCurve(curve.needed * block_tokens, curve.tokens, curve.input_tokens)
