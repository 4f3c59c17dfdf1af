"""How the loads of the prefill and the decode pool swing under admission policies (arXiv Figure 9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from jaxtyping import Float

from mooncake_jax import simulate
from mooncake_jax.config import SimulateSettings
from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.sched import Decision
from mooncake_jax.sched.prediction import predict_decode_tbt


@dataclass(frozen=True)
class Loads:
    """Means over equal bins of time, in per cent of the SLO."""

    prefill: Float[np.ndarray, " bins"]
    """Seconds of work ahead of a new request, mean of the pool, over the TTFT objective."""
    decode: Float[np.ndarray, " bins"]
    """Seconds of a step of the requests that decode, mean of the pool, over the TBT objective."""

    @property
    def correlation(self) -> float:
        """Of the two at the same time; NaN if either stands still."""
        if min(self.prefill.std(), self.decode.std()) == 0:
            return float("nan")
        return float(np.corrcoef(self.prefill, self.decode)[0, 1])


_NUMBERS = {
    "prefill load, mean": lambda loads: float(loads.prefill.mean()),
    "prefill load, deviation": lambda loads: float(loads.prefill.std()),
    "decode load, mean": lambda loads: float(loads.decode.mean()),
    "decode load, deviation": lambda loads: float(loads.decode.std()),
    "correlation": lambda loads: loads.correlation,
}


class LoadFluctuation:
    """Simulates every policy and samples the loads at arrivals.

    Args:
      title: of table and plots.
      policies: overrides by label; the first is the one that the paper's curves are of.
      paper: "prefill" and "decode", the paper's loads in per cent, a value every `bin_s` seconds.
      bin_s: seconds a point.
      skip_bins: points at the start that are not counted, as the cluster fills.
      notes: reasons of differences, by policy.
    """

    def __init__(
        self,
        title: str,
        policies: Mapping[str, Sequence[str]],
        paper: Mapping[str, Sequence[float | int]],
        bin_s: float | int = 15,
        skip_bins: int = 4,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.policies, self.bin_s, self.skip_bins = title, policies, bin_s, skip_bins
        self.paper = Loads(*(np.array(paper[stage], np.float64) for stage in ("prefill", "decode")))
        self.notes, self.remarks = notes or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        found = {label: self._loads(lab, label, overrides) for label, overrides in self.policies.items()}
        rows, first = [], next(iter(found))
        for label, loads in found.items():
            kept = Loads(loads.prefill[self.skip_bins :], loads.decode[self.skip_bins :])
            paper = self.paper if label == first else None
            note = self.notes.get(label, "")
            for name, of in _NUMBERS.items():
                theirs = None if paper is None else of(paper)
                rows.append(Row(f"{name}, {label}", theirs, of(kept), "%" if "load" in name else "", None, note))
        plots = []
        for number, (label, loads) in enumerate(found.items()):
            plots.append(lab.folder / "plots" / f"load{number or ''}.png")
            paper = self.paper if label == first else None
            plot_curves(
                plots[-1],
                f"{self.title}: {label}",
                {"prefill": self._curve(loads.prefill), "decode": self._curve(loads.decode)},
                {} if paper is None else {"prefill": self._curve(paper.prefill), "decode": self._curve(paper.decode)},
                x_label="time (min)",
                y_label="load (% of the SLO)",
            )
        return Report([Comparison("load", self.title, rows)], plots, self.remarks)

    def _curve(self, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (np.arange(len(loads)) + 0.5) * self.bin_s / 60, loads

    def _loads(self, lab: Lab, label: str, overrides: Sequence[str]) -> Loads:
        settings = lab.settings(overrides)
        samples: list[tuple[float, float, float]] = []

        def sample(decision: Decision) -> None:
            if not samples or decision.now >= samples[-1][0] + self.bin_s / 15:
                samples.append(sampled(decision, settings))

        lab.show(label)
        simulate.run(settings, lambda done, total: lab.show(label, done, total), sample)
        times, prefill, decode = np.array(samples).T
        bins = (times // self.bin_s).astype(int)
        there = np.unique(bins)
        means = [np.array([series[bins == one].mean() for one in there]) for series in (prefill, decode)]
        return Loads(*(100 * mean for mean in means))


def sampled(decision: Decision, settings: SimulateSettings) -> tuple[float, float, float]:
    """Time, and the loads of the prefill and of the decode pool as they are."""
    view, now = decision.view, decision.now
    step = predict_decode_tbt(view, simulate.hardware_of(settings), now, now, inf, None)
    return now, float(view.queue_s.mean()) / settings.slo.ttft, step / settings.slo.tbt
