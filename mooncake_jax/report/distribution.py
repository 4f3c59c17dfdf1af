"""A distribution in eight numbers, also of values of which each counts many times."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

_PERCENTILES = (0.0, 50.0, 90.0, 99.0, 100.0)


@dataclass(frozen=True)
class Statistics:
    """A distribution of `count` values, in their unit. Percentiles interpolate linearly; std is that of the population."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


def statistics_of(
    values: Float64[np.ndarray, " values"], weights: Float64[np.ndarray, " values"] | None = None
) -> Statistics | None:
    """The statistics of the values, or None without any. With `weights`, whole numbers, values[i] is there weights[i] times."""
    if weights is None:
        if len(values) == 0:
            return None
        low, p50, p90, p99, high = (float(value) for value in np.percentile(values, _PERCENTILES))
        return Statistics(len(values), float(values.mean()), float(values.std()), low, p50, p90, p99, high)
    count = float(weights.sum())
    if count == 0:
        return None
    low, p50, p90, p99, high = (float(value) for value in weighted_percentiles(values, weights, np.array(_PERCENTILES)))
    mean = float(weights @ values) / count
    std = float(np.sqrt(weights @ (values - mean) ** 2 / count))
    return Statistics(int(count), mean, std, low, p50, p90, p99, high)


def weighted_percentiles(
    values: Float64[np.ndarray, " values"], weights: Float64[np.ndarray, " values"], percent: Float64[np.ndarray, " percents"]
) -> Float64[np.ndarray, " percents"]:
    """What `np.percentile(np.repeat(values, weights), percent)` gives, without the repetition. At least one weight is not 0."""
    order = np.argsort(values)
    ordered, last = values[order], np.cumsum(weights[order])  # ordered[i] fills the ranks up to last[i], itself not included
    rank = percent / 100 * (last[-1] - 1)
    below = np.floor(rank)
    lower = ordered[np.searchsorted(last, below, side="right")]
    upper = ordered[np.searchsorted(last, np.minimum(below + 1, last[-1] - 1), side="right")]
    part = rank - below
    return np.where(part < 0.5, lower + (upper - lower) * part, upper - (upper - lower) * (1 - part))  # rounds as numpy does
