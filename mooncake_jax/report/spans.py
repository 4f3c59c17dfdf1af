"""Arithmetic of time intervals: unions, how many are open at a time, which instance was busy, lanes that do not overlap.

An interval array is float64 [n, 2] of (start, end) in seconds with start <= end; intervals are half-open.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Int64

from mooncake_jax.types import RequestRecord, Role, Span

COMPUTE = "compute"
"""Name of the spans in which a prefill instance computes a prompt."""
DECODE = "decode"
"""Name of the span from joining a decode instance's batch to leaving it."""


def merge(intervals: Float64[np.ndarray, "spans 2"]) -> Float64[np.ndarray, "merged 2"]:
    """The union of the intervals as disjoint intervals in order of time; intervals that touch become one."""
    if len(intervals) == 0:
        return intervals
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([ordered[first, 0], reach[last]], axis=1)


def mean_open(
    intervals: Float64[np.ndarray, "spans 2"], edges: Float64[np.ndarray, " edges"]
) -> Float64[np.ndarray, " edges-1"]:
    """The mean number of intervals open within each bin [edges[i], edges[i+1]): total overlap / width of the bin.

    The seconds of all intervals before t are sum over starts <= t of (t - start), less the same sum over ends.
    """

    def seconds_since(times: np.ndarray) -> np.ndarray:
        ordered = np.sort(times)
        passed = np.searchsorted(ordered, edges, side="right")
        return edges * passed - np.concatenate([[0.0], np.cumsum(ordered)])[passed]

    seconds = seconds_since(intervals[:, 0]) - seconds_since(intervals[:, 1])
    return np.maximum(np.diff(seconds), 0.0) / np.diff(edges)


def peak_open(intervals: Float64[np.ndarray, "spans 2"]) -> int:
    """The largest number of intervals open at one time; one that ends as another starts is not open together with it."""
    lasting = intervals[intervals[:, 1] > intervals[:, 0]]
    times = lasting.T.ravel()
    deltas = np.repeat([1, -1], len(lasting))
    order = np.lexsort((deltas, times))
    return int(np.cumsum(deltas[order]).max(initial=0))


def lanes(intervals: Float64[np.ndarray, "spans 2"]) -> Int64[np.ndarray, " spans"]:
    """The lowest lane for each interval such that no two of one lane overlap, given first to the one that starts first."""
    assigned = np.zeros(len(intervals), np.int64)
    taken: list[tuple[float, int]] = []
    free: list[int] = []
    for i in np.lexsort((intervals[:, 1], intervals[:, 0])):
        start, end = intervals[i]
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, lane))
        assigned[i] = lane
    return assigned


def intervals_of(spans: Iterable[Span]) -> Float64[np.ndarray, "spans 2"]:
    """The (start, end) of the spans, in the given order."""
    return np.array([(span.start, span.end) for span in spans], np.float64).reshape(-1, 2)


def by_instance(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """The spans of each place they name, places in `instance_order`."""
    grouped: dict[str, list[Span]] = {}
    for span in spans:
        grouped.setdefault(span.where, []).append(span)
    return {where: grouped[where] for where in sorted(grouped, key=instance_order)}


def busy_spans(records: Iterable[RequestRecord]) -> list[Span]:
    """What the requests tell of the instances: busy computing a prompt, or holding a request in the decode batch.

    An instance that no request used does not appear.
    """
    return [span for record in records for span in record.spans if span.name in (COMPUTE, DECODE)]


Busy = Sequence[Span] | Mapping[str, Float64[np.ndarray, "_ 2"]]
"""What instances did: spans that name them, or the intervals of each by its name."""


def busy_intervals(busy: Busy) -> dict[str, Float64[np.ndarray, "_ 2"]]:
    """The intervals of each instance, instances in `instance_order`."""
    if isinstance(busy, Mapping):
        return {where: busy[where] for where in sorted(busy, key=instance_order)}
    return {where: intervals_of(spans) for where, spans in by_instance(busy).items()}


def busy_fraction(busy: Busy, start: float, end: float) -> Mapping[str, float]:
    """The share of [start, end] (seconds) that each instance named by `busy` spent in at least one of its spans."""
    fractions = {}
    for where, intervals in busy_intervals(busy).items():
        clipped = np.clip(merge(intervals), start, end)
        seconds = np.sum(clipped[:, 1] - clipped[:, 0])
        fractions[where] = float(min(seconds / (end - start), 1.0)) if end > start else 0.0
    return fractions


def instance_order(name: str) -> tuple[int, str]:
    """Sort key of instance names: prefill before decode before coupled before others, and `prefill-2` before `prefill-10`."""
    role, _, index = name.rpartition("-")
    roles = [str(known) for known in Role]
    return (roles.index(role), index.zfill(9)) if role in roles and index.isdecimal() else (len(roles), name)
