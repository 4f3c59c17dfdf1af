"""The timeline of a run as a Chrome trace, for https://ui.perfetto.dev: one process per instance, requests in its lanes.

Format: the "Trace Event Format" of Chromium, JSON object form. Times are microseconds since the earliest one of the run.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_jax.report.spans import COMPUTE, DECODE, by_instance, instance_order, intervals_of, lanes
from mooncake_jax.types import RequestRecord, Span, Status

CONDUCTOR = "conductor"
"""Process that shows rejections."""

Event = dict[str, Any]


def chrome_trace(records: Sequence[RequestRecord], busy: Sequence[Span] = ()) -> dict[str, Any]:
    """The trace of the records' spans and of `busy`, what the instances themselves did (steps, chunks), in lanes above them.

    An arrow leads from the end of a request's prefill to the start of its decode, if these are on different instances. Spans
    that overlap are in different lanes, as the viewer needs it. Raises ValueError naming a span that ends before it starts.
    """
    for owner, spans in [("busy", busy), *((f"request {record.id}", record.spans) for record in records)]:
        for span in spans:
            if not span.end >= span.start:
                raise ValueError(f"{owner}: span {span.name} on {span.where} ends at {span.end}, before its start {span.start}")
    times = [record.arrival for record in records] + [span.start for record in records for span in record.spans]
    origin = min([*times, *(span.start for span in busy)], default=0.0)

    def microseconds(time: float) -> float:
        return round((time - origin) * 1e6, 3)

    rejected = [record for record in records if record.status is Status.REJECTED]
    places = {span.where for spans in (busy, *(record.spans for record in records)) for span in spans}
    if rejected:
        places.add(CONDUCTOR)
    pids = {place: number for number, place in enumerate(sorted(places, key=instance_order), start=1)}
    busy_lanes = {place: lanes(intervals_of(spans)) for place, spans in by_instance(busy).items()}
    shift = {place: int(assigned.max()) + 1 for place, assigned in busy_lanes.items()}

    events: list[Event] = []
    threads = {(place, lane): f"busy {lane}" for place, count in shift.items() for lane in range(count)}
    for place, spans in by_instance(busy).items():
        for span, lane in zip(spans, busy_lanes[place], strict=True):
            events.append(_slice(span, pids[place], int(lane), microseconds, "busy", {}))
    slices: dict[tuple[int, int], Event] = {}
    for (i, j), lane in _request_lanes(records).items():
        record, span = records[i], records[i].spans[j]
        tid = shift.get(span.where, 0) + lane
        threads[span.where, tid] = f"requests {lane}"
        slices[i, j] = _slice(span, pids[span.where], tid, microseconds, "request", _arguments(record))
    events += slices.values()
    for i, record in enumerate(records):
        events += _flow(i, [slices[i, j] for j in range(len(record.spans))])
    for record in rejected:
        stamp = {"name": "rejected", "cat": "request", "ph": "i", "s": "t", "ts": microseconds(record.arrival)}
        events.append({**stamp, "pid": pids[CONDUCTOR], "tid": 0, "args": {"request": record.id, "reason": record.reason}})
    return {"traceEvents": _names(pids, threads) + events, "displayTimeUnit": "ms"}


def _request_lanes(records: Sequence[RequestRecord]) -> dict[tuple[int, int], int]:
    """The lane of each span (record index, span index). A request keeps its lane on an instance from first to last span.

    Spans of one request that overlap there (compute and transfer, say) are first laid on strands, each a lane of its own.
    """
    strands: dict[str, list[list[tuple[int, int]]]] = {}
    for i, record in enumerate(records):
        for place in dict.fromkeys(span.where for span in record.spans):
            here = [j for j, span in enumerate(record.spans) if span.where == place]
            own = lanes(intervals_of(record.spans[j] for j in here))
            for strand in range(int(own.max()) + 1):
                strands.setdefault(place, []).append([(i, j) for j, lane in zip(here, own) if lane == strand])
    found = {}
    for members in strands.values():
        ends = [
            (min(records[i].spans[j].start for i, j in strand), max(records[i].spans[j].end for i, j in strand))
            for strand in members
        ]
        for strand, lane in zip(members, lanes(np.array(ends, np.float64)), strict=True):
            found |= dict.fromkeys(strand, int(lane))
    return found


def _slice(span: Span, pid: int, tid: int, microseconds: Any, category: str, arguments: dict[str, Any]) -> Event:
    start = microseconds(span.start)
    duration = max(round(microseconds(span.end) - start, 3), 0.0)
    return {
        "name": span.name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": duration,
        "pid": pid,
        "tid": tid,
        "args": arguments,
    }


def _arguments(record: RequestRecord) -> dict[str, Any]:
    return {
        "request": record.id,
        "status": str(record.status),
        "input_tokens": record.input_tokens,
        "cached_tokens": int(sum(record.cached.values())),
        "output_tokens": record.output_tokens,
    }


def _flow(number: int, slices: Sequence[Event]) -> list[Event]:
    """The arrow from the last compute slice to the first decode slice; a viewer binds its ends to the slices they lie in."""
    sources = [event for event in slices if event["name"] == COMPUTE]
    targets = [event for event in slices if event["name"] == DECODE]
    if not sources or not targets:
        return []
    source = max(sources, key=lambda event: event["ts"] + event["dur"])
    target = min(targets, key=lambda event: event["ts"])
    if source["pid"] == target["pid"]:
        return []
    common = {"name": "KV", "cat": "flow", "id": number}
    leave = source["ts"] + source["dur"] - min(1.0, source["dur"] / 2)  # inside the slice: its end is no longer part of it
    return [
        {**common, "ph": "s", "ts": leave, "pid": source["pid"], "tid": source["tid"]},
        {**common, "ph": "f", "bp": "e", "ts": max(target["ts"], leave), "pid": target["pid"], "tid": target["tid"]},
    ]


def _names(pids: dict[str, int], threads: dict[tuple[str, int], str]) -> list[Event]:
    events: list[Event] = []
    for place, pid in pids.items():
        events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": place}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
    for (place, tid), name in sorted(threads.items()):
        at = {"ph": "M", "pid": pids[place], "tid": tid}
        events.append({"name": "thread_name", **at, "args": {"name": name}})
        events.append({"name": "thread_sort_index", **at, "args": {"sort_index": tid}})
    return events


def write_timeline(path: Path, records: Sequence[RequestRecord], busy: Sequence[Span] = ()) -> None:
    """Writes `chrome_trace` to `path` as strict JSON."""
    path.write_text(json.dumps(chrome_trace(records, busy), allow_nan=False), encoding="utf-8")
