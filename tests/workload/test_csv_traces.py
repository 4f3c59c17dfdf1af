"""The readers of Azure and BurstGPT files: figures of the published ones, and the one clear sentence for every bad line."""

from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.workload import Trace, TraceRequest, WorkloadConfig, load_trace, read_azure, read_burstgpt
from tests.support import published_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000010,600,44\n2023-11-16 18:15:50.8145800,396,9\n"
BURSTGPT_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,400,18,418,Conversation log
45,ChatGPT,1100,230,1330,Conversation log
900,ChatGPT,0,0,0,Conversation log
901,GPT-4,300,0,300,API log
"""
BURSTGPT_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
20000000.0,,43,GPT-4,12,0,12,API log
20000051.5,chat-7,2,ChatGPT,40,29,69,Conversation log
20000050.0,,2,ChatGPT,513,7,520,API log
"""


def _file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(content, newline="")
    return path


# Each line by: awk -F, 'NR>1 {n++; i+=$2; o+=$3; b+=int(($2+511)/512)} END {print n, i, o, b}' FILE
@pytest.mark.parametrize(
    ("name", "rows", "inputs", "outputs", "blocks", "last"),
    [
        ("azure_2023_code.csv", 8_819, 18_059_974, 245_896, 40_014, 3_435.948056),
        ("azure_2023_conv.csv", 19_366, 22_361_870, 4_088_665, 52_913, 3_501.721937),
    ],
)
def test_the_published_azure_traces_have_the_totals_that_awk_counts(name, rows, inputs, outputs, blocks, last):
    path = published_trace("conversation").with_name(name)
    if not path.is_file():
        pytest.skip(f"{name} is not beside the published Mooncake traces")
    trace = read_azure(path)
    assert (len(trace.requests), trace.left_out) == (rows, 0)
    assert sum(one.input_length for one in trace.requests) == inputs
    assert sum(one.output_length for one in trace.requests) == outputs
    assert len({hash_id for one in trace.requests for hash_id in one.hash_ids}) == blocks
    assert (trace.requests[0].arrival, trace.requests[-1].arrival) == (0.0, last)


def test_an_azure_line_becomes_a_request_with_blocks_of_its_own(tmp_path):
    first, second = TraceRequest(0.0, 600, 44, (0, 1)), TraceRequest(4.314579, 396, 9, (2,))
    for content in (
        AZURE,
        AZURE.replace("\n", "\r\n"),
        "\ufeff" + AZURE.rstrip("\n"),
        AZURE.replace("010,", "010+00:00,").replace("800,", "800+00:00,"),
    ):
        assert read_azure(_file(tmp_path, content)) == Trace((first, second))


def test_azure_requests_come_in_order_of_time_and_those_without_tokens_are_counted(tmp_path):
    more = "2023-11-16 18:15:45.5000010,7,8\n2023-11-16 18:15:44.0000000,0,5\n2023-11-16 18:15:44.0000000,5,0\n"
    trace = read_azure(_file(tmp_path, AZURE + more))
    assert [(one.arrival, one.input_length) for one in trace.requests] == [(0.0, 7), (1.0, 600), (5.314579, 396)]
    assert trace.left_out == 2


def test_burstgpt_failures_are_left_out_and_counted(tmp_path):
    trace = read_burstgpt(_file(tmp_path, BURSTGPT_1))
    assert trace == Trace((TraceRequest(0.0, 400, 18, (0,)), TraceRequest(40.0, 1100, 230, (1, 2, 3))), left_out=2)


def test_burstgpt_sessions_are_told_and_time_0_is_the_first_request_that_did_not_fail(tmp_path):
    trace = read_burstgpt(_file(tmp_path, BURSTGPT_3))
    assert [(one.arrival, one.input_length, one.session) for one in trace.requests] == [(0.0, 513, None), (1.5, 40, "chat-7")]
    assert trace.left_out == 1


@pytest.mark.parametrize(
    ("reader", "content", "line", "says"),
    [
        (read_azure, AZURE + "2023-11-16,1\n", 4, "the line has 2 fields where the header has 3"),
        (read_azure, AZURE + "\nyesterday,1,2\n", 5, 'TIMESTAMP must be a date and time .* but is "yesterday"'),
        (read_azure, AZURE + "2023-13-16 18:15:46,1,2\n", 4, "TIMESTAMP must be"),
        (read_azure, AZURE + "2023-11-16 18:15:46,-1,2\n", 4, 'ContextTokens must be a whole number .* but is "-1"'),
        (read_azure, AZURE + "2023-11-16 18:15:46,1,2.5\n", 4, 'GeneratedTokens must be .* but is "2.5"'),
        (read_azure, AZURE + "2023-11-16 18:15:46,1,\n", 4, 'GeneratedTokens must be .* but is ""'),
        (read_azure, AZURE + f"2023-11-16 18:15:46,{10**20},1\n", 4, "ContextTokens must be"),
        (read_azure, AZURE + '2023-11-16 18:15:46,"1\n', 4, "the line has 2 fields"),
        (read_azure, AZURE + f'2023-11-16 18:15:46,"{"1" * 200_000}",3\n', 4, "the line is not CSV"),
        (read_azure, BURSTGPT_1, 1, "the column TIMESTAMP is missing; the header must name TIMESTAMP, ContextTokens"),
        (read_azure, "", 1, "the column TIMESTAMP is missing"),
        (read_burstgpt, AZURE, 1, "the column Timestamp is missing"),
        (read_burstgpt, BURSTGPT_1 + "soon,GPT-4,1,2,3,API log\n", 6, 'Timestamp must be .* but is "soon"'),
        (read_burstgpt, BURSTGPT_1 + "nan,GPT-4,1,2,3,API log\n", 6, 'Timestamp must be .* but is "nan"'),
        (read_burstgpt, BURSTGPT_1 + "inf,GPT-4,1,2,3,API log\n", 6, "Timestamp must be"),
        (read_burstgpt, BURSTGPT_1 + "-1,GPT-4,1,2,3,API log\n", 6, "Timestamp must be"),
        (read_burstgpt, BURSTGPT_1 + "7,GPT-4,one,2,3,API log\n", 6, 'Request tokens must be .* but is "one"'),
        (read_burstgpt, BURSTGPT_1 + "7,GPT-4,1,²,3,API log\n", 6, "Response tokens must be"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number_in_one_sentence(tmp_path, reader, content, line, says):
    path = _file(tmp_path, content)
    with pytest.raises(UserError, match=says) as raised:
        reader(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:{line}: ")
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 300


@pytest.mark.parametrize("reader", [read_azure, read_burstgpt])
def test_files_without_requests_and_missing_files_are_refused(tmp_path, reader):
    header = (AZURE if reader is read_azure else BURSTGPT_1).split("\n")[0]
    with pytest.raises(UserError, match=r"trace\.csv: the trace is empty; it needs at least one request, with tokens"):
        reader(_file(tmp_path, header + "\n"))
    with pytest.raises(UserError, match=r"nowhere\.csv: the trace cannot be read: No such file"):
        reader(tmp_path / "nowhere.csv")


def test_bytes_that_are_not_text_are_named_with_their_line(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE.encode() + b"2023-11-16 18:15:46,\xff\xfe,3\n")
    with pytest.raises(UserError, match=r"trace\.csv:4: ContextTokens must be"):
        read_azure(path)


@pytest.mark.parametrize(("name", "content", "number"), [("azure", AZURE, 2), ("burstgpt", BURSTGPT_3, 2)])
def test_the_config_chooses_the_reader_by_format(tmp_path, name, content, number):
    path = str(_file(tmp_path, content))
    assert len(load_trace(WorkloadConfig(path=path, format=name)).requests) == number
    with pytest.raises(UserError, match="the line is not JSON"):
        load_trace(WorkloadConfig(path=path))
