"""Conversations in ShareGPT's format: one request an answer, prompts that grow, shuffled but for the order of turns."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.workload import TraceRequest, WorkloadConfig, about_tokens, load_trace, poisson_times, read_sharegpt


def _file(tmp_path: Path, *conversations: list[tuple[str, str]], name: str = "chats.json") -> Path:
    content = [{"id": "x", "conversations": [{"from": who, "value": text} for who, text in one]} for one in conversations]
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return path


def _chat(turns: int, question: int = 700, answer: int = 400) -> list[tuple[str, str]]:
    return [("human", "q" * question), ("gpt", "a" * answer)] * turns


def test_every_answer_is_a_request_whose_prompt_is_everything_before_it(tmp_path):
    trace = read_sharegpt(_file(tmp_path, [("system", "s" * 100), *_chat(3)]), rate=2.0, seed=7, tokens=len)
    times = poisson_times(3, 2.0, seed=7)
    assert trace.left_out == 0
    assert trace.requests == (
        TraceRequest(times[0], 800, 400, (0, 1), "c000000"),
        TraceRequest(times[1], 1900, 400, (0, 2, 3, 4), "c000000"),
        TraceRequest(times[2], 3000, 400, (0, 2, 3, 5, 6, 7), "c000000"),
    )


def test_conversations_share_no_block(tmp_path):
    requests = read_sharegpt(_file(tmp_path, _chat(1), _chat(1)), rate=1.0, tokens=len).requests
    assert requests[0].session != requests[1].session
    assert not set(requests[0].hash_ids) & set(requests[1].hash_ids)


def test_lengths_count_four_characters_a_token_unless_a_tokenizer_is_given(tmp_path):
    assert [about_tokens("x" * n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    path = _file(tmp_path, [("human", "How are you today?"), ("gpt", "Fine, thanks.")])
    assert [(one.input_length, one.output_length) for one in read_sharegpt(path, 1.0).requests] == [(5, 4)]
    words = read_sharegpt(path, 1.0, tokens=lambda text: len(text.split())).requests
    assert [(one.input_length, one.output_length) for one in words] == [(4, 2)]


def test_what_has_no_answer_no_tokens_or_no_question_is_left_out_and_counted(tmp_path):
    chat = [("gpt", "first"), ("human", "one"), ("user", "two"), ("assistant", "both"), ("human", "bye"), ("gpt", "")]
    trace = read_sharegpt(_file(tmp_path, chat, [("human", "anyone?")], []), rate=1.0, tokens=len)
    # Out are: the answer to nothing, "one", the empty answer, "anyone?".
    assert [(one.input_length, one.output_length) for one in trace.requests] == [(11, 4)]
    assert trace.left_out == 4


def test_turns_keep_their_order_and_conversations_are_shuffled_by_seed(tmp_path):
    path = _file(tmp_path, *[_chat(1 + index % 4) for index in range(60)])
    trace = read_sharegpt(path, rate=5.0, seed=3)
    assert Counter(one.session for one in trace.requests) == {f"c{index:06d}": 1 + index % 4 for index in range(60)}
    for session in {one.session for one in trace.requests}:
        turns = [one.input_length for one in trace.requests if one.session == session]
        assert turns == sorted(turns)
    sessions = [one.session for one in trace.requests]
    assert sum(a == b for a, b in pairwise(sessions)) < 15
    assert read_sharegpt(path, rate=5.0, seed=3) == trace
    assert [one.session for one in read_sharegpt(path, rate=5.0, seed=4).requests] != sessions


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[\n{oops", r":2: the file is not JSON \("),
        ("[" * 100_000, ": the file is not JSON"),
        ('{"conversations": []}', ": the file must be a JSON list of conversations, but is"),
        ('[{"conversations": []}, 3]', ": conversation 1: it must be an object whose field conversations is a list, but is 3"),
        ('[{"items": []}]', ": conversation 0: it must be"),
        (
            '[{"conversations": [{"from": "human"}]}]',
            ": conversation 0: every message needs the texts from and value, but one is",
        ),
        ('[{"conversations": [{"from": "human", "value": 3}]}]', ": conversation 0: every message"),
        ('[{"conversations": ["hi"]}]', ': conversation 0: every message .* but one is "hi"'),
        ("[]", ": the trace is empty; it needs at least one request, an answer to a message"),
    ],
)
def test_a_bad_file_is_named_in_one_sentence(tmp_path, content, says):
    path = tmp_path / "chats.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says) as raised:
        read_sharegpt(path, rate=1.0)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 300


def test_bytes_that_are_not_text_and_missing_files_are_refused(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b'["\xff\xfe"]')
    with pytest.raises(UserError, match=r"bytes\.json: the file is not JSON"):
        read_sharegpt(tmp_path / "bytes.json", rate=1.0)
    with pytest.raises(UserError, match=r"nowhere\.json: the trace cannot be read: No such file"):
        read_sharegpt(tmp_path / "nowhere.json", rate=1.0)


def test_the_config_needs_a_rate_and_mixes_files_at_different_times(tmp_path):
    paths = [str(_file(tmp_path, *[_chat(2)] * 50, name=name)) for name in ("a.json", "b.json")]
    with pytest.raises(UserError, match=r"workload\.rate must be set: a sharegpt file has no arrival times, but is None\."):
        WorkloadConfig(path=paths[0], format="sharegpt")
    trace = load_trace(WorkloadConfig(path=paths[0], mix=paths[1:], format="sharegpt", rate=4.0))
    arrivals = [one.arrival for one in trace.requests]
    assert len(set(arrivals)) == 200
    assert 199 / (arrivals[-1] - arrivals[0]) == pytest.approx(4.0)
    assert {one.session.split(":")[0] for one in trace.requests[:40]} == {"0", "1"}
