import json
from dataclasses import replace
from itertools import pairwise

import pytest

from mooncake_jax.report import chrome_trace, write_timeline
from mooncake_jax.types import Span

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "ts", "id", "pid", "tid"},
    "f": {"name", "cat", "ph", "ts", "id", "pid", "tid", "bp"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
}


def of_kind(trace: dict, kind: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def process(trace: dict, name: str) -> int:
    return next(e["pid"] for e in of_kind(trace, "M") if e["name"] == "process_name" and e["args"]["name"] == name)


@pytest.fixture
def busy() -> list[Span]:
    return [
        Span("chunk", 10.75, 11.75, "prefill-0"),
        Span("step", 12.0, 12.1, "decode-1"),
        Span("step", 12.1, 12.3, "decode-1"),
    ]


def test_written_trace_has_every_required_field_and_no_negative_time(tmp_path, run, busy):
    write_timeline(tmp_path / "timeline.json", run, busy)
    trace = json.loads((tmp_path / "timeline.json").read_text())
    for event in trace["traceEvents"]:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    assert len(of_kind(trace, "X")) == 6 + 2 + 3


def test_times_are_microseconds_since_the_first_arrival_on_the_process_of_the_instance(slow):
    trace = chrome_trace([slow])
    compute = next(event for event in of_kind(trace, "X") if event["name"] == "compute")
    assert (compute["ts"], compute["dur"], compute["pid"]) == (750_000.0, 1_000_000.0, process(trace, "prefill-0"))
    assert compute["args"]["request"] == "slow"


def test_slices_of_one_lane_never_overlap(run, slow, busy):
    crowd = [*run, *(replace(slow, id=f"copy {i}") for i in range(5))]
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in of_kind(chrome_trace(crowd, busy), "X"):
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        assert all(later >= end - 1e-3 for (_, end), (later, _) in pairwise(sorted(slices)))


def test_every_lane_has_a_name_and_busy_lanes_come_first(slow, busy):
    trace = chrome_trace([slow], busy)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of_kind(trace, "M") if e["name"] == "thread_name"}
    for event in of_kind(trace, "X"):
        assert names[event["pid"], event["tid"]].startswith("busy" if event["cat"] == "busy" else "requests")
    assert names[process(trace, "prefill-0"), 0] == "busy 0"


def test_an_arrow_leads_from_prefill_to_decode_inside_both_slices(slow, single):
    trace = chrome_trace([slow, single])
    (start,), (end,) = of_kind(trace, "s"), of_kind(trace, "f")
    assert start["id"] == end["id"]
    assert start["pid"] == process(trace, "prefill-0")
    assert end["pid"] == process(trace, "decode-1")
    for arrow, name in ((start, "compute"), (end, "decode")):
        slices = [e for e in of_kind(trace, "X") if e["name"] == name and e["args"]["request"] == "slow"]
        assert [(e["pid"], e["tid"]) for e in slices] == [(arrow["pid"], arrow["tid"])]
        assert slices[0]["ts"] <= arrow["ts"] < slices[0]["ts"] + slices[0]["dur"]


def test_rejections_are_marked_at_the_conductor_with_their_reason(run):
    trace = chrome_trace(run)
    (mark,) = of_kind(trace, "i")
    assert mark["pid"] == process(trace, "conductor")
    assert mark["ts"] == 2_000_000.0
    assert mark["args"]["reason"].startswith("predicted TTFT")


def test_a_span_that_ends_before_it_starts_raises_with_the_request_id(slow):
    with pytest.raises(ValueError, match="request slow: span queue on prefill-0"):
        chrome_trace([replace(slow, spans=(Span("queue", 11.0, 10.0, "prefill-0"),))])


def test_an_empty_run_is_an_empty_trace():
    assert chrome_trace([])["traceEvents"] == []
