"""The reader of Mooncake JSONL: what it returns, and the one clear sentence for every kind of bad line."""

import json
from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.workload import Trace, TraceRequest, read_mooncake
from tests.support import published_trace

GOOD = {"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}


def _file(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_line_becomes_a_request_with_seconds_lengths_ids_and_session(tmp_path):
    path = _file(tmp_path, GOOD, GOOD | {"timestamp": 1500.5, "session_id": "chat-7", "extra": None})
    assert read_mooncake(path) == Trace(
        (TraceRequest(0.0, 513, 5, (0, 1)), TraceRequest(1.5005, 513, 5, (0, 1), "chat-7")), block_tokens=512
    )


def test_a_prompt_of_whole_blocks_has_no_partial_one(tmp_path):
    assert read_mooncake(_file(tmp_path, GOOD | {"input_length": 1024})).requests[0].input_length == 1024


def test_requests_come_in_arrival_order_and_ties_keep_the_order_of_the_file(tmp_path):
    lines = [GOOD | {"timestamp": ms, "output_length": n} for n, ms in enumerate([2000, 1000, 2000, 0], start=1)]
    assert [one.output_length for one in read_mooncake(_file(tmp_path, *lines)).requests] == [4, 2, 1, 3]


def test_blank_lines_and_a_missing_last_newline_are_fine(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"\n{json.dumps(GOOD)}\r\n  \n{json.dumps(GOOD)}")
    assert len(read_mooncake(path).requests) == 2


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{oops", "not JSON"),
        ('{"timestamp": 0', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        *[({k: v for k, v in GOOD.items() if k != name}, f"the field {name} is missing") for name in GOOD],
        (GOOD | {"timestamp": -1}, "timestamp must be .* but is -1"),
        (GOOD | {"timestamp": "0"}, 'timestamp must be .* but is "0"'),
        (GOOD | {"timestamp": True}, "timestamp must be .* but is true"),
        (GOOD | {"timestamp": None}, "timestamp must be .* but is null"),
        (GOOD | {"timestamp": float("nan")}, "timestamp must be .* but is NaN"),
        (GOOD | {"timestamp": float("inf")}, "timestamp must be .* but is Infinity"),
        (GOOD | {"timestamp": 10**400}, "timestamp must be"),
        (GOOD | {"input_length": 0, "hash_ids": []}, "input_length must be .* 1 or more, but is 0"),
        (GOOD | {"input_length": -5}, "input_length must be .* but is -5"),
        (GOOD | {"input_length": 513.0}, "input_length must be a whole number .* but is 513.0"),
        (GOOD | {"output_length": 0}, "output_length must be .* but is 0"),
        (GOOD | {"output_length": "9"}, 'output_length must be .* but is "9"'),
        (GOOD | {"output_length": True}, "output_length must be .* but is true"),
        (GOOD | {"hash_ids": 3}, "hash_ids must be a list .* but is 3"),
        (GOOD | {"hash_ids": [0, "1"]}, "hash_ids must be a list of whole numbers"),
        (GOOD | {"hash_ids": [0, -1]}, "hash_ids must be a list of whole numbers"),
        (GOOD | {"hash_ids": [0, 1.0]}, "hash_ids must be a list of whole numbers"),
        (GOOD | {"hash_ids": [0]}, r"input_length 513 needs 2 hash_ids \(512 tokens each\), but there are 1"),
        (GOOD | {"hash_ids": [0, 1, 2]}, "needs 2 hash_ids .* but there are 3"),
        (GOOD | {"session_id": 7}, "session_id must be text, but is 7"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number_in_one_sentence(tmp_path, bad, says):
    path = _file(tmp_path, GOOD, "", bad, GOOD)
    with pytest.raises(UserError, match=says) as raised:
        read_mooncake(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:3: ")
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 300


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"timestamp": "\xff\xfe"}\n')
    with pytest.raises(UserError, match=r"trace\.jsonl:2: the line is not JSON"):
        read_mooncake(path)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"trace\.jsonl: the trace is empty"):
        read_mooncake(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.jsonl: the trace cannot be read: No such file"):
        read_mooncake(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="the trace cannot be read: Is a directory"):
        read_mooncake(tmp_path)


def test_the_published_conversation_trace_has_its_published_totals():
    requests = read_mooncake(published_trace("conversation")).requests
    assert len(requests) == 12_031
    assert sum(one.input_length for one in requests) == 144_793_823
    assert sum(one.output_length for one in requests) == 4_122_048
    assert (requests[0].arrival, requests[-1].arrival) == (0.0, 3536.999)
