"""The steps of one instance as arithmetic series: between two changes of the batch each step is longer than the one before
by the same amount, since every member's context grows by one token.

A segment is a run of such steps: its first step takes `first` seconds, each following one `rise` more.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from jaxtyping import Float64, Int64


def series_s(first: float, rise: float, steps: int) -> float:
    """Seconds of `steps` steps from the start of a segment."""
    return steps * first + rise * (steps * (steps - 1) * 0.5)


def steps_within(first: float, rise: float, seconds: float) -> int:
    """How many steps have ended `seconds` after the segment's start: the largest k with series_s(k) <= seconds."""
    if seconds < first:
        return 0
    half = first - 0.5 * rise
    k = int(2.0 * seconds / (half + sqrt(half * half + 2.0 * rise * seconds)))
    # The closed form is off by rounding only, so one correction either way is enough.
    if series_s(first, rise, k) > seconds:
        return k - 1
    if series_s(first, rise, k + 1) <= seconds:
        return k + 1
    return k


class StepLog:
    """All segments of one instance, in order. Four numbers each, so the log grows with joins and leaves, not with tokens."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, float, float, float]] = []
        self.steps = 0
        """Steps so far; also the number of the next step."""

    def open(self, time: float, first: float, rise: float) -> None:
        """A segment begins at `time` with the next step."""
        self._segments.append((self.steps, time, first, rise))

    def segments(self) -> "Segments":
        """The log so far as arrays."""
        # Counts of steps are exact in float64.
        rows = np.array(self._segments, np.float64).reshape(-1, 4)
        starts = np.append(rows[:, 0], self.steps).astype(np.int64)
        return Segments(rows[:, 1].copy(), rows[:, 2].copy(), rows[:, 3].copy(), starts)


@dataclass(frozen=True, eq=False)
class Segments:
    """Segment j holds the steps starts[j] .. starts[j + 1] - 1 and begins at time[j] (s)."""

    time: Float64[np.ndarray, "segments"]
    first: Float64[np.ndarray, "segments"]
    rise: Float64[np.ndarray, "segments"]
    starts: Int64[np.ndarray, "segments+1"]


def step_seconds(segments: Segments) -> Float64[np.ndarray, "steps"]:
    """How long each step took."""
    count = np.diff(segments.starts)
    within = np.arange(int(segments.starts[-1])) - np.repeat(segments.starts[:-1], count)
    return np.repeat(segments.first, count) + np.repeat(segments.rise, count) * within


@dataclass(frozen=True, eq=False)
class Weighted:
    """Values that occur so often."""

    values: Float64[np.ndarray, "values"]
    weights: Float64[np.ndarray, "values"]


def interval_weights(segments: Segments, begin: Int64[np.ndarray, "runs"], end: Int64[np.ndarray, "runs"]) -> Weighted:
    """The steps, each with the number of runs begin .. end - 1 that it belongs to, but for those of none."""
    steps = int(segments.starts[-1])
    change = np.bincount(begin, minlength=steps + 1) - np.bincount(end, minlength=steps + 1)
    weights = np.cumsum(change)[:steps]
    met = weights > 0
    return Weighted(step_seconds(segments)[met], weights[met].astype(np.float64))
