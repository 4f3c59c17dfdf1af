import json
from dataclasses import replace

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.report import read_requests, request_row, write_requests
from mooncake_jax.types import Tier


def test_a_row_has_every_column_with_cached_tokens_by_tier(slow):
    row = request_row(slow)
    assert list(row)[:8] == ["id", "arrival", "status", "prefill", "decode", "input_tokens", "output_tokens", "cached_tokens"]
    assert row["status"] == "completed"
    assert row["cached_tokens"] == 50
    assert row["cached"] == {"device": 0, "host": 30, "peer": 20, "disk": 0, "store": 0}
    assert row["ttft"] == pytest.approx(2.0)
    assert row["tbt"] == pytest.approx(0.2)
    assert row["tpot"] == pytest.approx(0.4 / 3)
    assert row["e2e"] == pytest.approx(2.4)
    assert row["split"] == {"queue": 0.5, "fetch": 0.25, "compute": 1.0, "transfer": 0.15, "decode_wait": 0.1}
    assert row["reason"] == "length"
    assert row["token_times"] == (12.0, 12.1, 12.3, 12.4)


def test_latencies_of_a_request_without_tokens_are_null(rejected):
    row = request_row(rejected)
    assert row["ttft"] is row["tbt"] is row["tpot"] is row["e2e"] is None


def test_what_is_written_is_read_back_exactly_in_order_of_arrival(tmp_path, run, slow, single, rejected, aborted):
    write_requests(tmp_path / "requests.jsonl", run)
    assert read_requests(tmp_path / "requests.jsonl") == [slow, single, aborted, rejected]


def test_tiers_without_tokens_are_left_out_when_read_back(tmp_path, slow):
    write_requests(tmp_path / "requests.jsonl", [replace(slow, cached={Tier.HOST: 30, Tier.DISK: 0})])
    assert read_requests(tmp_path / "requests.jsonl")[0].cached == {Tier.HOST: 30}


def test_lines_are_strict_json(tmp_path, run):
    def refuse(constant: str):
        raise AssertionError(constant)

    write_requests(tmp_path / "requests.jsonl", run)
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse)["id"] for line in lines] == ["slow", "single", "left", "no"]


def test_a_time_that_json_cannot_hold_raises_with_the_request_id(tmp_path, rejected):
    with pytest.raises(ValueError, match="request no: "):
        write_requests(tmp_path / "requests.jsonl", [replace(rejected, finished=float("inf"))])


def test_a_missing_file_or_a_foreign_line_is_named(tmp_path, slow):
    path = tmp_path / "requests.jsonl"
    with pytest.raises(UserError, match=r"requests\.jsonl is not a file"):
        read_requests(path)
    for line in ("{}", "not json", json.dumps(request_row(slow) | {"status": "lost"})):
        path.write_text(json.dumps(request_row(slow)) + "\n" + line + "\n")
        with pytest.raises(UserError, match=r"requests\.jsonl:2 is not a line"):
            read_requests(path)


def test_an_empty_run_is_an_empty_file(tmp_path):
    write_requests(tmp_path / "requests.jsonl", [])
    assert read_requests(tmp_path / "requests.jsonl") == []
