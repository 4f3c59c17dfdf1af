"""What instances and requests did when, read off an outcome: for utilisation, gauges over time, and timelines."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float64

from mooncake_jax.report import STATUSES, RequestColumns, mean_open
from mooncake_jax.sim.outcome import Outcome
from mooncake_jax.sim.steps import Segments
from mooncake_jax.types import RequestRecord, Span, Status

Intervals = Float64[np.ndarray, "n 2"]
"""(start, end) in seconds."""
_BINS = 200


def stages(columns: RequestColumns) -> Mapping[str, Intervals]:
    """When each request that got a token was in each stage; one row a request, empty where it was not."""
    times = [columns.arrival]
    for stage in ("queue", "fetch", "compute", "transfer", "decode_wait"):
        times.append(times[-1] + columns.split[stage])
    times.append(np.maximum(columns.finished, times[-1]))
    names = ("queue", "fetch", "compute", "transfer", "decode_wait", "decode")
    return {name: np.stack([start, end], axis=1) for name, start, end in zip(names, times, times[1:])}


def decode_intervals(segments: Segments) -> Intervals:
    """When a decode instance had a batch."""
    count = np.diff(segments.starts)
    seconds = count * segments.first + segments.rise * (count * (count - 1) * 0.5)
    return np.stack([segments.time, segments.time + seconds], axis=1)


def busy(result: Outcome, names: list[str], prefill_count: int) -> Mapping[str, Intervals]:
    """When each instance computed, by name; `names` are those of the step logs. Prefills in vain are not among it."""
    columns = result.columns
    computing = stages(columns)["compute"]
    done = ~np.isnan(computing[:, 0])
    found = {
        f"prefill-{index}": computing[done & (columns.prefill == index)]
        for index in range(max(prefill_count, int(columns.prefill.max(initial=-1)) + 1))
        if f"prefill-{index}" not in names and prefill_count
    }
    for index, (name, segments) in enumerate(zip(names, result.segments)):
        mine = decode_intervals(segments)
        if not prefill_count:  # coupled instances also prefill, while others decode or none does
            mine = np.concatenate([mine, computing[done & (columns.prefill == index)]])
        found[name] = mine if name not in found else np.concatenate([found[name], mine])
    return found


def gauges(columns: RequestColumns) -> Iterator[dict[str, float]]:
    """Means over equal bins of the run's time: requests in each stage, arrivals and rejections a second."""
    end = float(columns.finished.max(initial=0.0))
    edges = np.linspace(0.0, max(end, 1e-9), _BINS + 1)
    width = edges[1] - edges[0]
    counts = {}
    for name, rows in stages(columns).items():
        kept = rows[~np.isnan(rows).any(axis=1)]
        counts[f"requests/{name}"] = mean_open(kept, edges)
    arrived = np.histogram(columns.arrival, edges)[0] / width
    rejected = np.histogram(columns.finished[columns.status == STATUSES.index(Status.REJECTED)], edges)[0] / width
    for i in range(_BINS):
        yield {
            "time": float(edges[i]),
            "requests/arrived_per_s": float(arrived[i]),
            "requests/rejected_per_s": float(rejected[i]),
            **{name: float(values[i]) for name, values in counts.items()},
        }


def records(columns: RequestColumns, start: float, end: float, coupled: bool = False) -> list[RequestRecord]:
    """The requests under way between `start` and `end` (s), with spans and without token times: what a timeline shows."""
    found = []
    spans = stages(columns)
    for i in np.flatnonzero((columns.arrival < end) & (columns.finished > start)):
        i = int(i)
        prefill, decode = f"prefill-{columns.prefill[i]}", f"decode-{columns.decode[i]}"
        if coupled:
            prefill = decode = f"coupled-{columns.prefill[i]}"
        where = {"queue": prefill, "fetch": prefill, "compute": prefill}
        mine = tuple(
            Span(name, float(rows[i, 0]), float(rows[i, 1]), where.get(name, decode))
            for name, rows in spans.items()
            if rows[i, 1] > rows[i, 0] and (name in where or columns.decode[i] >= 0)
        )
        found.append(
            RequestRecord(
                id=columns.id[i],
                arrival=float(columns.arrival[i]),
                status=STATUSES[columns.status[i]],
                input_tokens=int(columns.input_tokens[i]),
                output_tokens=int(columns.output_tokens[i]),
                cached={tier: int(tokens[i]) for tier, tokens in columns.cached.items() if tokens[i]},
                prefill=int(columns.prefill[i]),
                decode=int(columns.decode[i]),
                finished=float(columns.finished[i]),
                reason=columns.reason.get(i, ""),
                spans=mine,
            )
        )
    return found
