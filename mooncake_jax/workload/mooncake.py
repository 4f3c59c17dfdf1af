"""The reader of Mooncake's JSONL traces."""

from collections.abc import Mapping
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.parse import EXACT, hash_ids, in_order, json_lines, length, shown
from mooncake_jax.workload.trace import BLOCK_TOKENS, Trace, TraceRequest

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_mooncake(path: str | Path) -> Trace:
    """Reads a Mooncake JSONL trace: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (512 tokens each).

    Requests come back in order of arrival, those of one instant in the order of the file. A text `session_id` (the extension
    of AIPerf and Dynamo) becomes the session, other fields are ignored, blank lines are skipped.

    Raises UserError, with the line as `path:line: ...`, when the file cannot be read, holds no request, or a line is not
    JSON, lacks a field, has one of the wrong type or range, or has not exactly ceil(input_length / 512) hash ids.

    Source: FAST'25 appendix A; kvcache-ai/Mooncake, FAST25-release/README.md.
    """
    requests = [_request(fields, where) for where, fields in json_lines(path, _FIELDS)]
    return Trace(in_order(requests, path, "as one JSON object a line"))


def _request(fields: Mapping[str, object], where: str) -> TraceRequest:
    timestamp = fields["timestamp"]
    if type(timestamp) not in (int, float) or not 0 <= timestamp < EXACT:
        raise UserError(f"{where}: timestamp must be a number of milliseconds, 0 or more, but is {shown(timestamp)}.")
    input_length = length(fields["input_length"], "input_length", where)
    output_length = length(fields["output_length"], "output_length", where)
    ids = hash_ids(fields["hash_ids"], input_length, BLOCK_TOKENS, where)
    session = fields.get("session_id")
    if session is not None and not isinstance(session, str):
        raise UserError(f"{where}: session_id must be text, but is {shown(session)}.")
    return TraceRequest(timestamp / 1000, input_length, output_length, ids, session)
