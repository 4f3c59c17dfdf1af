"""The reader of the Qwen-Bailian JSONL traces."""

from collections.abc import Mapping
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.parse import EXACT, hash_ids, in_order, json_lines, length, shown
from mooncake_jax.workload.trace import Trace, TraceRequest

_BLOCK_TOKENS = 16
_FIELDS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")


def read_qwen(path: str | Path) -> Trace:
    """Reads a Qwen-Bailian trace: `timestamp` (s), `input_length`, `output_length` (tokens), `hash_ids` (16 tokens each).

    The file hashes each block for itself, so that one text behind two prefixes has one id. The ids that come back are new ones,
    one for each id *and* the ids before it, as a prefix cache sees them. The session is the `chat_id` that the chain of
    `parent_chat_id` begins with, which is -1 in a first turn.

    Raises UserError as `read_mooncake` does.

    Source: alibaba-edu/qwen-bailian-usagetraces-anon, README.md; arXiv 2506.02634.
    """
    chain: dict[tuple[int, int], int] = {}
    roots: dict[int, int] = {}
    requests = [_request(fields, where, chain, roots) for where, fields in json_lines(path, _FIELDS)]
    return Trace(in_order(requests, path, "as one JSON object a line"), _BLOCK_TOKENS)


def _request(
    fields: Mapping[str, object], where: str, chain: dict[tuple[int, int], int], roots: dict[int, int]
) -> TraceRequest:
    timestamp, chat, parent = fields["timestamp"], fields["chat_id"], fields["parent_chat_id"]
    if type(timestamp) not in (int, float) or not 0 <= timestamp < EXACT:
        raise UserError(f"{where}: timestamp must be a number of seconds, 0 or more, but is {shown(timestamp)}.")
    for name, value in (("chat_id", chat), ("parent_chat_id", parent)):
        if type(value) is not int:
            raise UserError(f"{where}: {name} must be a whole number, but is {shown(value)}.")
    input_length = length(fields["input_length"], "input_length", where)
    output_length = length(fields["output_length"], "output_length", where)
    ids, before = [], -1
    for one in hash_ids(fields["hash_ids"], input_length, _BLOCK_TOKENS, where):
        before = chain.setdefault((before, one), len(chain))
        ids.append(before)
    root = roots[chat] = chat if parent == -1 else roots.get(parent, parent)
    return TraceRequest(float(timestamp), input_length, output_length, tuple(ids), str(root))
