"""How much network the global cache needs: TTFT and transfer times over the speed of the nodes' interfaces (FAST Figure 13)."""

from collections.abc import Mapping, Sequence

import numpy as np

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.simulate import SimRun


class Bandwidth:
    """Simulates each speed with transfers that share the interfaces.

    Settings must send KV in one piece after prefill (`cluster.sending=serial`), as only then all of a transfer's time is seen.

    Args:
      title: of table and plots.
      gbps: speeds of a node's interfaces, Gbit/s.
      paper: "ttft", "real" and "ideal", seconds at each speed.
      recompute: overrides by label of runs without any fetch; the paper's TTFT of recomputation stands beside each.
      paper_recompute: that TTFT, seconds.
      variations: overrides by label, whose curves are drawn too.
      tolerance: by "ttft", "real" and "ideal".
      notes: reasons of known differences, by "ttft", "real" and "ideal", "NAME / SPEED" for one row, or label of `recompute`.
    """

    def __init__(
        self,
        title: str,
        gbps: Sequence[float | int],
        paper: Mapping[str, Sequence[float | int]],
        recompute: Mapping[str, Sequence[str]],
        paper_recompute: float | int,
        variations: Mapping[str, Sequence[str]] | None = None,
        tolerance: Mapping[str, str] | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.gbps, self.paper, self.variations = title, gbps, paper, variations or {}
        self.recompute, self.paper_recompute = recompute, paper_recompute
        self.tolerance, self.notes, self.remarks = tolerance or {}, notes or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        curves = {label: self._curve(lab, label, mine) for label, mine in {"ours": (), **self.variations}.items()}
        main = curves["ours"]
        rows = [
            Row(
                f"{what}, {speed:g} Gbit/s",
                self.paper[key][i],
                main[key][i],
                "s",
                self.tolerance.get(key),
                self.notes.get(f"{key} / {speed:g}", self.notes.get(key, "")),
            )
            for key, what in (("ttft", "mean TTFT"), ("real", "mean transfer"), ("ideal", "mean transfer, ideal"))
            for i, speed in enumerate(self.gbps)
        ]
        for label, overrides in self.recompute.items():
            run = lab.simulate(overrides, label)
            mean = float(np.nanmean(run.outcome.columns.ttft))
            rows.append(Row(f"mean TTFT, {label}", self.paper_recompute, mean, "s", None, self.notes.get(label, "")))
        comparisons = [Comparison("bandwidth", self.title, rows)]
        if self.variations:
            comparisons.append(Comparison("stretch", f"{self.title}: real over ideal transfer time", self._stretch(curves)))
        return Report(comparisons, self._plots(lab, curves), self.remarks)

    def _curve(self, lab: Lab, label: str, overrides: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"ttft": [], "real": [], "ideal": []}
        for speed in self.gbps:
            rate = speed * 1e9 / 8
            at = [f"hardware.nic_bandwidth={rate}", f"cost.bandwidth={rate}"]
            run = lab.simulate([*overrides, *at], f"{label}, {speed:g} Gbit/s")
            found["ttft"].append(float(np.nanmean(run.outcome.columns.ttft)))
            real = transfer_s(run)
            found["real"].append(float(np.nanmean(real)))
            nbytes = run.outcome.columns.input_tokens[~np.isnan(real)] * run.settings.model.shape.kv_bytes_per_token
            found["ideal"].append(float(nbytes.mean() / rate))
        return found

    def _stretch(self, curves: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
        paper = [real / ideal for real, ideal in zip(self.paper["real"], self.paper["ideal"], strict=True)]
        return [
            Row(f"{label}, {speed:g} Gbit/s", paper[i], curve["real"][i] / curve["ideal"][i], "×")
            for label, curve in curves.items()
            for i, speed in enumerate(self.gbps)
        ]

    def _plots(self, lab: Lab, curves: Mapping[str, Mapping[str, list[float]]]) -> list:
        labels = {"ours": "8P+8D"}
        ttft, transfer = lab.folder / "plots" / "ttft.png", lab.folder / "plots" / "transfer.png"
        shown = {labels.get(label, label): (self.gbps, curve["ttft"]) for label, curve in curves.items()}
        paper = {"8P+8D": (self.gbps, self.paper["ttft"])}
        paper["recomputation"] = ([self.gbps[0], self.gbps[-1]], [self.paper_recompute] * 2)
        axes = {"x_label": "interfaces of a node (Gbit/s)", "log_x": True, "log_y": True}
        plot_curves(ttft, self.title, shown, paper, y_label="mean TTFT (s)", **axes)
        real = {labels.get(label, label): (self.gbps, curve["real"]) for label, curve in curves.items()}
        real["ideal"] = (self.gbps, curves["ours"]["ideal"])
        paper = {"8P+8D": (self.gbps, self.paper["real"]), "ideal": (self.gbps, self.paper["ideal"])}
        plot_curves(transfer, self.title, real, paper, y_label="mean KV transfer (s)", **axes)
        return [ttft, transfer]


def transfer_s(run: SimRun) -> np.ndarray:
    """Seconds from the end of each request's prefill until all of its KV is at the decode instance; NaN where none was sent."""
    ledger = run.simulation.ledger
    return np.array(ledger.sent, np.float64) - np.array(ledger.prefilled, np.float64)
