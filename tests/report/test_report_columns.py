"""Columns against the records they stand for, and weighted statistics against numpy on the repeated values."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.report import (
    STATUSES,
    Gaps,
    check_columns,
    columns_of,
    format_table,
    read_columns,
    read_requests,
    request_row,
    summarize,
    summarize_columns,
    summary_dict,
    weighted_percentiles,
    write_columns,
    write_requests,
    write_run,
)
from mooncake_jax.report.distribution import statistics_of
from mooncake_jax.types import SLO, RequestRecord, Status, Tier


def some_run(count: int) -> list[RequestRecord]:
    """Requests of every kind, not in order of arrival."""
    rng = random.Random(count)
    records = []
    for i in range(count):
        arrival = rng.uniform(5.0, 60.0)
        status = rng.choices(list(Status), [12, 2, 1, 1, 1])[0]
        tokens = rng.randint(1, 40) if status is Status.COMPLETED else rng.choice([0, 0, 3])
        if status is Status.REJECTED:
            tokens = 0
        stages = {stage: rng.expovariate(2.0) for stage in ("queue", "compute", "transfer")}
        times = [arrival + sum(stages.values())]
        for _ in range(tokens - 1):
            times.append(times[-1] + rng.choice([0.05, rng.expovariate(20.0)]))
        records.append(
            RequestRecord(
                f'r"{i}',
                arrival,
                status,
                input_tokens=200 + i,
                output_tokens=tokens,
                token_times=tuple(times[:tokens]),
                cached={Tier.HOST: rng.randint(0, 99), Tier.PEER: 7} if tokens else {},
                split=stages if tokens else {},
                prefill=i % 3 if tokens else None,
                decode=i % 2 if tokens > 1 else None,
                finished=times[tokens - 1] if tokens else arrival,
                reason=rng.choice(["", "length", "ein Wort: über"]),
            )
        )
    return records


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 9)), min_size=1, max_size=30).filter(
        lambda pairs: any(weight for _, weight in pairs)
    ),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs, percent):
    values, weights = np.array([value for value, _ in pairs]), np.array([weight for _, weight in pairs])
    expected = np.percentile(np.repeat(values, weights), percent)
    found = weighted_percentiles(values, weights.astype(np.float64), np.array(percent))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_weighted_statistics_are_those_of_the_repeated_values():
    rng = np.random.default_rng(3)
    values, weights = rng.exponential(0.04, 500), rng.integers(0, 60, 500)
    found, expected = statistics_of(values, weights.astype(np.float64)), statistics_of(np.repeat(values, weights))
    assert found.count == expected.count == weights.sum()
    for name in ("mean", "std", "min", "p50", "p90", "p99", "max"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert statistics_of(values, np.zeros(500)) is None


def test_columns_hold_the_requests_in_order_of_arrival(run):
    columns = columns_of(run)
    assert columns.id == ["slow", "single", "left", "no"]
    assert [STATUSES[code] for code in columns.status] == ["completed", "completed", "aborted", "rejected"]
    assert columns.ttft.tolist() == pytest.approx([2.0, 0.5, 1.0, np.nan], nan_ok=True)
    assert columns.prefill.tolist() == [0, 1, -1, -1]
    assert columns.cached[Tier.PEER].tolist() == [20, 0, 0, 0]
    assert columns.computed.tolist() == [50, 20, 50, 0]
    assert columns.tokens_per_second.tolist() == [0, 1, 4]
    assert columns.itl.values.tolist() == pytest.approx([0.1, 0.2, 0.1])


def test_equal_gaps_may_be_told_as_one_gap_and_its_number():
    columns = columns_of(some_run(200))
    values, counts = np.unique(columns.itl.values, return_counts=True)
    assert len(values) < len(columns.itl.values)
    merged = summarize_columns(replace(columns, itl=Gaps(values, counts.astype(np.float64))), SLO()).itl
    expected = summarize_columns(columns, SLO()).itl
    assert (merged.p50, merged.p99, merged.count) == (expected.p50, expected.p99, expected.count)
    assert (merged.mean, merged.std) == pytest.approx((expected.mean, expected.std))


def test_lines_of_columns_are_those_of_the_records_without_token_times_and_spans(tmp_path):
    records = some_run(300)
    write_columns(tmp_path / "columns.jsonl", columns_of(records))
    lines = (tmp_path / "columns.jsonl").read_text().splitlines()
    for record, line in zip(sorted(records, key=lambda record: record.arrival), lines, strict=True):
        row = request_row(record)
        del row["token_times"], row["spans"]
        if row["split"]:
            row["split"] = {"queue": 0, "fetch": 0, "compute": 0, "transfer": 0, "decode_wait": 0} | row["split"]
        assert json.loads(line) == row
        assert json.dumps(json.loads(line)) == line


def test_both_kinds_of_lines_are_read_back(tmp_path):
    records, columns = some_run(100), columns_of(some_run(100))
    write_requests(tmp_path / "records.jsonl", records)
    write_columns(tmp_path / "columns.jsonl", columns)
    summary = summarize(records, SLO())
    assert summarize_columns(read_columns(tmp_path / "records.jsonl"), SLO()) == summary
    bare = summarize_columns(read_columns(tmp_path / "columns.jsonl"), SLO())
    assert bare == replace(summary, itl=None, peak_output_throughput=None)
    assert [record.id for record in read_requests(tmp_path / "columns.jsonl")] == columns.id
    assert read_requests(tmp_path / "columns.jsonl")[0].token_times == ()


def test_a_line_without_latencies_is_named(tmp_path, slow):
    row = request_row(slow)
    del row["ttft"]
    (tmp_path / "requests.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"requests\.jsonl:1 is not a line"):
        read_columns(tmp_path / "requests.jsonl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"computed": c.computed - [1, 0, 0, 0]}, r"request slow: reused \(.*host 30.*\) and computed \(49\)"),
        (lambda c: {"cached": {Tier.HOST: np.array([-1, 0, 0, 0])}}, "request slow: reused"),
        (lambda c: {"computed": c.computed - [0, 0, 0, -501]}, "request no: reused"),
        (lambda c: {"ttft": c.ttft - [0, -0.1, 0, 0]}, "request single: its last token came after 0.5 s"),
        (lambda c: {"split": c.split | {"queue": c.split["queue"] + [0, 0.1, 0, 0]}}, "request single: split .* TTFT is 0.5"),
        (lambda c: {"ttft": np.where(c.ttft == 2.0, np.nan, c.ttft)}, "request slow: completed without an output token"),
        (lambda c: {"output_tokens": c.output_tokens * 0}, "request slow: completed without an output token"),
        (lambda c: {"tbt": c.tbt - [0, 1, 0, 0]}, "request single: tbt is -1.0"),
        (lambda c: {"arrival": c.arrival[[1, 0, 2, 3]]}, "request single: arrival 10.0 is not a time at or after"),
        (lambda c: {"finished": c.finished - [0, 5, 0, 0]}, "request single: ends at 6.5 but arrived at 11.0"),
        (lambda c: {"itl": Gaps(np.array([np.nan]), np.ones(1))}, "gaps between tokens must be finite"),
        (lambda c: {"id": ["slow"]}, "1 ids for 4 requests"),
    ],
)
def test_columns_that_contradict_themselves_raise_with_the_request_id(run, change, message):
    columns = columns_of(run)
    check_columns(columns)
    with pytest.raises(ValueError, match=message):
        summarize_columns(replace(columns, **change(columns)), SLO())


def test_an_infinite_time_is_not_written(tmp_path, run):
    columns = columns_of(run)
    with pytest.raises(ValueError, match="request no: its finished is infinite"):
        write_columns(tmp_path / "requests.jsonl", replace(columns, finished=columns.finished - [0, 0, 0, -np.inf]))


def test_a_run_of_columns_leaves_all_but_a_timeline(tmp_path, run):
    columns = replace(columns_of(run), tokens_per_second=None)
    busy = {"decode-0": np.array([[12.0, 12.4]]), "prefill-0": np.array([[10.75, 11.75], [11.0, 12.25]])}
    summary = write_run(tmp_path, columns, SLO(), busy=busy, digest="12ab")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == {
        *("requests.jsonl", "summary.json", "plots/latency.png", "plots/load.png", "plots/reuse.png")
    }
    assert list(summary.utilisation.items()) == [("prefill-0", pytest.approx(0.5)), ("decode-0", pytest.approx(0.4 / 3))]
    values = json.loads((tmp_path / "summary.json").read_text())
    assert values["digest"] == "12ab"
    assert values["max_output_tokens_per_s"] is None
    assert "Peak output token throughput (tok/s):    -" in format_table(summary)
    assert "digest" not in summary_dict(summary)


def test_columns_of_no_requests_are_a_run_too(tmp_path):
    assert write_run(tmp_path, columns_of([]), SLO()) == summarize([], SLO())
    assert len(read_columns(tmp_path / "requests.jsonl")) == 0
