"""The reader of Qwen-Bailian JSONL: seconds, 16-token blocks, ids that stand for the prefix too, sessions by their root."""

import json
from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.workload import WorkloadConfig, load_trace, read_qwen, simulated_requests

GOOD = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 132, "type": "text"}
GOOD |= {"turn": 1, "hash_ids": [1089, 1090, 1091]}


def _file(tmp_path: Path, *lines: dict) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_times_are_seconds_and_an_id_stands_for_sixteen_tokens(tmp_path):
    trace = read_qwen(_file(tmp_path, GOOD, GOOD | {"timestamp": 2, "input_length": 16, "hash_ids": [1089]}))
    assert trace.block_tokens == 16
    assert [(one.arrival, one.input_length, one.output_length) for one in trace.requests] == [(2.0, 16, 132), (61.114, 33, 132)]
    assert [one.keys for one in simulated_requests(trace, 16)] == [(0,), (0, 1, 2)]


def test_ids_are_equal_where_whole_prefixes_are(tmp_path):
    ids = [[7, 8, 9], [7, 8, 5], [8, 7, 9], [7, 7, 9], [7, 8, 9]]
    trace = read_qwen(_file(tmp_path, *[GOOD | {"hash_ids": one} for one in ids]))
    got = [one.hash_ids for one in trace.requests]
    for i, one in enumerate(ids):
        for j, other in enumerate(ids):
            for place in range(3):
                same = one[: place + 1] == other[: place + 1]
                assert (got[i][place] == got[j][place]) == same
    assert len({key for one in got for key in one}) == 9


def test_the_session_is_the_first_chat_of_the_chain(tmp_path):
    chain = [(159, -1), (160, 159), (161, 160), (170, -1), (171, 99)]
    trace = read_qwen(_file(tmp_path, *[GOOD | {"chat_id": chat, "parent_chat_id": parent} for chat, parent in chain]))
    assert [one.session for one in trace.requests] == ["159", "159", "159", "170", "99"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"timestamp": -1}, "timestamp must be a number of seconds"),
        ({"chat_id": "a"}, 'chat_id must be a whole number, but is "a"'),
        ({"parent_chat_id": None}, "parent_chat_id must be a whole number, but is null"),
        ({"input_length": 0}, "input_length must be"),
        ({"hash_ids": [1, 2]}, r"input_length 33 needs 3 hash_ids \(16 tokens each\), but there are 2"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path, bad, says):
    path = _file(tmp_path, GOOD, GOOD | bad)
    with pytest.raises(UserError, match=rf"trace\.jsonl:2: {says}"):
        read_qwen(path)


def test_the_config_reads_it(tmp_path):
    assert load_trace(WorkloadConfig(path=str(_file(tmp_path, GOOD)), format="qwen")).block_tokens == 16
