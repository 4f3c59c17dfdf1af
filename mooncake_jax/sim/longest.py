"""The mean of the longest tenth of each request's token intervals (TBT), from arithmetic series, without listing intervals.

As a loop over the intervals themselves, which is what the result equals within rounding:

    for each request: longest = sorted(intervals)[-ceil(len / 10):]; tbt = mean(longest)
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from mooncake_jax.sim.steps import Segments

_ROUNDS = 64
_CONVERGED = 1e-13
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Runs:
    """Stretches of decode steps that requests took part in: run r is steps begin[r] .. end[r] - 1 of one instance.

    Several runs may belong to one request (it was served again after a failure).
    """

    request: Int64[np.ndarray, "runs"]
    instance: Int64[np.ndarray, "runs"]
    begin: Int64[np.ndarray, "runs"]
    end: Int64[np.ndarray, "runs"]


@dataclass(frozen=True, eq=False)
class Gaps:
    """Intervals that are no whole step: waiting for KV before the first one, pauses."""

    request: Int64[np.ndarray, "gaps"]
    seconds: Float64[np.ndarray, "gaps"]


@dataclass(frozen=True, eq=False)
class _Series:
    """Arithmetic series of intervals: count values first, first + rise, ..."""

    request: Int64[np.ndarray, "series"]
    first: Float64[np.ndarray, "series"]
    rise: Float64[np.ndarray, "series"]
    count: Float64[np.ndarray, "series"]


def longest_tenth(requests: int, runs: Runs, gaps: Gaps, segments: list[Segments]) -> Float64[np.ndarray, "requests"]:
    """Mean seconds of the longest ceil(count / 10) intervals of each request; 0 for one without intervals."""
    result = np.zeros(requests)
    order = np.argsort(runs.request, kind="stable")
    gap_order = np.argsort(gaps.request, kind="stable")
    run_request, gap_request = runs.request[order], gaps.request[gap_order]
    pairs = np.concatenate([[0], np.cumsum(_segments_met(runs, segments)[order])])
    at = 0
    while at < requests:
        # So many requests that their series fit into memory at once.
        first = np.searchsorted(run_request, at)
        last = int(np.searchsorted(pairs, pairs[first] + _CHUNK, side="right")) - 1
        until = requests if last >= len(order) else max(int(run_request[last]), at + 1)
        chosen = order[first : np.searchsorted(run_request, until)]
        chosen_gaps = gap_order[np.searchsorted(gap_request, at) : np.searchsorted(gap_request, until)]
        series = _series_of(runs, chosen, gaps, chosen_gaps, segments)
        result[at:until] = _mean_of_longest(until - at, series, at)
        at = until
    return result


def _bounds(runs: Runs, chosen: np.ndarray, segments: Segments) -> tuple[np.ndarray, np.ndarray]:
    """First segment met by each chosen run, and how many it meets; 0 for a run without steps."""
    begin, end = runs.begin[chosen], runs.end[chosen]
    low = np.searchsorted(segments.starts[:-1], begin, side="right") - 1
    high = np.searchsorted(segments.starts[:-1], end - 1, side="right") - 1
    return low, np.where(end > begin, high - low + 1, 0)


def _segments_met(runs: Runs, segments: list[Segments]) -> np.ndarray:
    met = np.zeros(len(runs.request), np.int64)
    for instance, mine in enumerate(segments):
        chosen = np.flatnonzero(runs.instance == instance)
        met[chosen] = _bounds(runs, chosen, mine)[1]
    return met


def _series_of(runs: Runs, chosen: np.ndarray, gaps: Gaps, chosen_gaps: np.ndarray, segments: list[Segments]) -> _Series:
    parts = [
        _Series(
            gaps.request[chosen_gaps],
            gaps.seconds[chosen_gaps],
            np.zeros(len(chosen_gaps)),
            np.ones(len(chosen_gaps)),
        )
    ]
    instance_of = runs.instance[chosen]
    for instance, mine in enumerate(segments):
        here = chosen[instance_of == instance]
        low, met = _bounds(runs, here, mine)
        total = int(met.sum())
        owner = np.repeat(np.arange(len(here)), met)
        segment = np.arange(total) - np.repeat(np.cumsum(met) - met, met) + low[owner]
        start = mine.starts[segment]
        begin = np.maximum(runs.begin[here][owner], start)
        end = np.minimum(runs.end[here][owner], mine.starts[segment + 1])
        rise = mine.rise[segment]
        parts.append(_Series(runs.request[here][owner], mine.first[segment] + rise * (begin - start), rise, end - begin + 0.0))
    return _Series(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("request", "first", "rise", "count")))


def _mean_of_longest(requests: int, series: _Series, offset: int) -> np.ndarray:
    """Bisects for the interval above which a tenth lies, for all requests at once."""
    request, first, rise, count = series.request - offset, series.first, series.rise, series.count

    def per_request(values: np.ndarray) -> np.ndarray:
        # A plain loop in C, so that the sum has the same bits on every machine.
        return np.bincount(request, weights=values, minlength=requests).astype(np.float64, copy=False)

    wanted = np.ceil(per_request(count) / 10)
    last = first + rise * (count - 1)
    low, high = np.full(requests, np.inf), np.zeros(requests)
    np.minimum.at(low, request, first)
    np.maximum.at(high, request, last)
    low[wanted == 0] = 0.0
    low -= 1e-9 * low
    per_second = np.divide(1.0, rise, out=np.full(len(rise), 1e300), where=rise > 0)

    def longer(limit: np.ndarray) -> np.ndarray:
        """How many intervals of each series are longer than its request's limit."""
        with np.errstate(over="ignore"):
            within = np.floor((limit[request] - first) * per_second) + 1
        return count - np.clip(within, 0, count)

    for _ in range(_ROUNDS):
        if np.all(high - low <= _CONVERGED * high):
            break
        middle = 0.5 * (low + high)
        enough = per_request(longer(middle)) >= wanted
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    above = longer(high)
    total = per_request(above * (first + rise * (count - 0.5 * (above + 1))))
    total += (wanted - per_request(above)) * high
    return np.divide(total, wanted, out=np.zeros(requests), where=wanted > 0)
