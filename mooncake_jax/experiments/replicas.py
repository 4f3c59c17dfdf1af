"""How many instances hold a block, as time goes by (FAST Fig 11)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from mooncake_jax import simulate
from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.experiments.traces import why_missing
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.sim import Simulation
from mooncake_jax.types import Request


class Replicas:
    """Counts the holders of blocks of some ranks by use every `step_s` seconds, in the run's own settings.

    A rank means the blocks used as often as the block of that rank, of which there may be thousands: their mean is compared
    with the paper's one block, and the spread over them says what one alone may show.

    Args:
      title: of tables and plots.
      workloads: overrides by label; one whose traces are not here is passed over with a sentence.
      ranks: of blocks by number of uses in the whole trace, from 1.
      step_s: seconds between samples.
      paper: replicas at each sample, by workload and `rank N`.
      tolerance: of the mean over time.
      variants: further overrides by label, for tables of their own that are not judged.
      notes: by workload.
    """

    def __init__(
        self,
        title: str,
        workloads: Mapping[str, Sequence[str]],
        ranks: Sequence[int],
        step_s: float | int,
        paper: Mapping[str, Mapping[str, Sequence[int]]],
        tolerance: str,
        variants: Mapping[str, Sequence[str]] | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.workloads, self.ranks, self.step_s, self.paper = title, workloads, ranks, step_s, paper
        self.tolerance, self.variants, self.notes, self.remarks = tolerance, variants or {}, notes or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        remarks, judged, others, plots = [], [], [], []
        for label, overrides in self.workloads.items():
            if missing := why_missing(lab.settings(overrides).workload):
                remarks.append(f"{label} is left out: {missing}")
                continue
            found = self._watch(lab, label, overrides)
            judged += self._rows(label, found, self.tolerance)
            spreads = (
                f"rank {rank} {low:.1f} to {high:.1f}"
                for rank, counts in found.items()
                for low, high in [np.percentile(counts.mean(axis=0), (5, 95))]
            )
            remarks.append(f"{label}, replicas of single blocks, mean over time, 5th to 95th percentile: {', '.join(spreads)}")
            plots.append(lab.folder / "plots" / f"replicas_{label}.png")
            self._plot(plots[-1], label, found)
            for variant, more in self.variants.items():
                others += self._rows(
                    f"{label}, {variant}", self._watch(lab, f"{label}, {variant}", [*overrides, *more]), None, label
                )
        comparisons = [Comparison("replicas", f"{self.title}: replicas, mean over time", judged)]
        if others:
            comparisons.append(Comparison("variants", f"{self.title}: other settings", others))
        return Report(comparisons, plots, [*self.remarks, *remarks])

    def _watch(self, lab: Lab, what: str, overrides: Sequence[str]) -> dict[int, Float64[np.ndarray, "samples blocks"]]:
        """Holders of each block of each rank, over time."""
        samples: dict[int, list[np.ndarray]] = {}

        def prepare(simulation: Simulation) -> None:
            ranked = equals_of_ranks(simulation.requests, self.ranks)
            samples.update({rank: [] for rank in ranked})
            end = simulation.requests[-1].arrival

            def sample(now: float) -> None:
                holders = simulation.index.holders
                for rank, keys in ranked.items():
                    samples[rank].append(np.array([holders(key).bit_count() for key in keys], np.float64))
                if now + self.step_s <= end:
                    simulation.events.later(now + self.step_s, sample)

            simulation.events.later(0.0, sample)

        simulate.run(lab.settings(overrides), lambda done, total: lab.show(what, done, total), prepare=prepare)
        return {rank: np.stack(counts) for rank, counts in samples.items()}

    def _rows(self, label: str, found: Mapping[int, np.ndarray], tolerance: str | None, base: str | None = None) -> list[Row]:
        rows = []
        for rank, counts in found.items():
            paper = self.paper.get(base or label, {}).get(f"rank {rank}")
            note = self.notes.get(label, "") if tolerance is not None else ""
            theirs = None if paper is None else float(np.mean(paper))
            rows.append(Row(f"{label}, rank {rank}", theirs, float(counts.mean()), "", tolerance, note))
        return rows

    def _plot(self, path: Path, label: str, found: Mapping[int, np.ndarray]) -> None:
        minutes = self.step_s / 60
        plot_curves(
            path,
            f"{self.title}, {label}",
            {f"rank {rank}": (minutes * np.arange(len(counts)), counts.mean(axis=1)) for rank, counts in found.items()},
            {
                name: (minutes * np.arange(len(values)), values)
                for name, values in self.paper.get(label, {}).items()
                if int(name.removeprefix("rank ")) in found
            },
            x_label="time (min)",
            y_label="instances that hold the block",
        )


def equals_of_ranks(requests: Sequence[Request], ranks: Sequence[int]) -> dict[int, list[int]]:
    """By rank, the keys used as often as the key of that rank; a rank beyond the last key is left out."""
    uses = Counter(key for request in requests for key in request.keys)
    counts = sorted(uses.values(), reverse=True)
    return {rank: [key for key, n in uses.items() if n == counts[rank - 1]] for rank in ranks if rank <= len(counts)}
