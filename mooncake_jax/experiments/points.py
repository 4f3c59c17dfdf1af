"""The plainest experiment: a few settings side by side, a few metrics of each, bars."""

from collections.abc import Mapping, Sequence

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_bars


class Points:
    """Simulates every point and compares the metrics.

    Args:
      title: of table and plot.
      points: overrides by label.
      metrics: flat names of metrics (`simulate.SimRun.metrics`) by label; the first is plotted, and only points that the
        paper has, if it has any.
      paper: the paper's value by metric label and point label; may lack any.
      unit: of each metric label, with a factor from the metric's own unit: `{"mean TTFT": ["s", 1.0]}`.
      tolerance: by metric label, such as `ratio 1.6` or `abs .04`.
      relative_to: a point label: then ratios to this point are compared too, under the tolerance of "ratio".
      notes: reasons of known differences, by "metric label / point label".
    """

    def __init__(
        self,
        title: str,
        points: Mapping[str, Sequence[str]],
        metrics: Mapping[str, str],
        paper: Mapping[str, Mapping[str, float]],
        unit: Mapping[str, Sequence] | None = None,
        tolerance: Mapping[str, str] | None = None,
        relative_to: str | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.points, self.metrics, self.paper = title, points, metrics, paper
        self.unit, self.tolerance, self.relative_to = unit or {}, tolerance or {}, relative_to
        self.notes, self.remarks = notes or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        found = {point: lab.simulate(overrides, point).metrics() for point, overrides in self.points.items()}
        rows, ours = [], {}
        for label, name in self.metrics.items():
            unit, factor = self.unit.get(label, ("", 1.0))
            ours[label] = {point: factor * metrics[name] for point, metrics in found.items()}
            for point, value in ours[label].items():
                paper = self.paper.get(label, {}).get(point)
                tolerance = None if paper is None else self.tolerance.get(label)
                rows.append(Row(f"{label}, {point}", paper, value, unit, tolerance, self.notes.get(f"{label} / {point}", "")))
        if self.relative_to is not None:
            label = next(iter(self.metrics))
            paper = self.paper[label]
            for point, value in ours[label].items():
                if point != self.relative_to and point in paper and ours[label][self.relative_to]:
                    rows.append(
                        Row(
                            f"{label}, {point} / {self.relative_to}",
                            paper[point] / paper[self.relative_to],
                            value / ours[label][self.relative_to],
                            "×",
                            self.tolerance.get("ratio"),
                        )
                    )
        label = next(iter(self.metrics))
        plotted = [point for point in found if point in self.paper.get(label, {})] or list(found)
        plot = lab.folder / "plots" / "comparison.png"
        plot_bars(
            plot,
            self.title,
            plotted,
            paper={label: [self.paper.get(label, {}).get(point, float("nan")) for point in plotted]},
            ours={label: [ours[label][point] for point in plotted]},
            y_label=f"{label} ({self.unit[label][0]})" if label in self.unit else label,
        )
        return Report([Comparison("points", self.title, rows)], [plot], self.remarks)
