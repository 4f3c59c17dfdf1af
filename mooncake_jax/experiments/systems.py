"""Systems side by side on several traces: a pair of bars for each (FAST Figures 8 and 10)."""

from collections.abc import Mapping, Sequence

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.experiments.traces import why_missing
from mooncake_jax.report import Comparison, Row, plot_bars


class Systems:
    """Simulates every system on every trace and compares the metrics. A remark tells of a trace that is not here.

    Args:
      title: of table and plots.
      workloads: names of published traces.
      systems: overrides by label.
      metrics: flat names of metrics (`simulate.SimRun.metrics`) by label; a plot each.
      paper: by metric label, system and trace.
      unit: of each metric label, with a factor from the metric's own unit.
      tolerance: by metric label; only systems of the paper are judged.
      notes: reasons of known differences, by "system" or "system, trace".
      variations: overrides by label: ablations, without figures of the paper and not plotted.
    """

    def __init__(
        self,
        title: str,
        workloads: Sequence[str],
        systems: Mapping[str, Sequence[str]],
        metrics: Mapping[str, str],
        paper: Mapping[str, Mapping[str, Mapping[str, float]]],
        unit: Mapping[str, Sequence] | None = None,
        tolerance: Mapping[str, str] | None = None,
        notes: Mapping[str, str] | None = None,
        variations: Mapping[str, Sequence[str]] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.workloads, self.systems, self.metrics, self.paper = title, workloads, systems, metrics, paper
        self.unit, self.tolerance, self.notes = unit or {}, tolerance or {}, notes or {}
        self.variations, self.remarks = variations or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        here, remarks = [], list(self.remarks)
        for trace in self.workloads:
            why = why_missing(lab.settings([f"workload.path={trace}"]).workload)
            remarks.append(f"left out: {why}") if why else here.append(trace)
        systems = {**self.systems, **self.variations}
        # Trace by trace, for the trace read last is kept.
        found = {
            (system, trace): lab.simulate([*overrides, f"workload.path={trace}"], f"{system}, {trace}").metrics()
            for trace in here
            for system, overrides in systems.items()
        }
        comparisons, plots = [], []
        for number, (label, name) in enumerate(self.metrics.items()):
            unit, factor = self.unit.get(label, ("", 1.0))
            paper = self.paper.get(label, {})
            rows = []
            for (system, trace), metrics in found.items():
                published = paper.get(system, {}).get(trace)
                note = self.notes.get(f"{system}, {trace}", self.notes.get(system, ""))
                tolerance = self.tolerance.get(label) if published is not None else None
                rows.append(Row(f"{system}, {trace}", published, factor * metrics[name], unit, tolerance, note))
            comparisons.append(Comparison(f"systems{number or ''}", f"{self.title}: {label}", rows))
            plots.append(lab.folder / "plots" / f"systems{number or ''}.png")
            plot_bars(
                plots[-1],
                f"{self.title}: {label}",
                list(self.systems),
                paper={trace: [paper.get(system, {}).get(trace) for system in self.systems] for trace in here},
                ours={trace: [factor * found[system, trace][name] for system in self.systems] for trace in here},
                y_label=f"{label} ({unit})",
            )
        return Report(comparisons, plots, remarks)
