"""A trace of requests as lengths and block ids, and the reader of Mooncake's JSONL files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncake_jax.errors import UserError

BLOCK_TOKENS = 512
"""Tokens that one hash id stands for in a published Mooncake trace."""

_EXACT = 2**53
"""Milliseconds and lengths from here on are no longer exact in float64."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace: lengths and block ids, no text."""

    arrival: float
    """Seconds since the start of the trace."""
    input_length: int
    """Prompt tokens, at least 1."""
    output_length: int
    """Tokens to generate, at least 1."""
    hash_ids: tuple[int, ...]
    """One id per block of the prompt, the last one maybe partial. Equal id: equal block *and* equal prefix before it."""
    session: str | None = None
    """The conversation it is a turn of; None when the trace does not tell."""


@dataclass(frozen=True)
class Trace:
    """Requests in arrival order; every prompt has ceil(input_length / block_tokens) hash ids."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int = BLOCK_TOKENS
    """Tokens that one hash id stands for."""


def read_mooncake(path: str | Path) -> Trace:
    """Reads a Mooncake JSONL trace: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (512 tokens each).

    Requests come back in order of arrival, those of one instant in the order of the file. A text `session_id` (the extension
    of AIPerf and Dynamo) becomes the session, other fields are ignored, blank lines are skipped.

    Raises UserError, with the line as `path:line: ...`, when the file cannot be read, holds no request, or a line is not
    JSON, lacks a field, has one of the wrong type or range, or has not exactly ceil(input_length / 512) hash ids.

    Source: FAST'25 appendix A; kvcache-ai/Mooncake, FAST25-release/README.md.
    """
    try:
        with open(path, "rb") as file:
            requests = [_parse(line, f"{path}:{number}") for number, line in enumerate(file, start=1) if line.strip()]
    except OSError as error:
        raise UserError(f"{path}: the trace cannot be read: {error.strerror}.") from error
    if not requests:
        raise UserError(f"{path}: the trace is empty; it needs at least one request, as one JSON object a line.")
    requests.sort(key=lambda request: request.arrival)
    return Trace(tuple(requests))


def _parse(line: bytes, where: str) -> TraceRequest:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: the line is not JSON ({error}).") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: the line must be a JSON object with timestamp, input_length, output_length and hash_ids.")
    timestamp = _field(fields, "timestamp", where)
    if type(timestamp) not in (int, float) or not 0 <= timestamp < _EXACT:
        raise UserError(f"{where}: timestamp must be a number of milliseconds, 0 or more, but is {_shown(timestamp)}.")
    input_length = _length(fields, "input_length", where)
    output_length = _length(fields, "output_length", where)
    hash_ids = _field(fields, "hash_ids", where)
    if not isinstance(hash_ids, list) or not all(type(one) is int and 0 <= one < 2**64 for one in hash_ids):
        raise UserError(f"{where}: hash_ids must be a list of whole numbers from 0 to 2^64 - 1, but is {_shown(hash_ids)}.")
    needed = -(-input_length // BLOCK_TOKENS)
    if len(hash_ids) != needed:
        raise UserError(
            f"{where}: input_length {input_length} needs {needed} hash_ids ({BLOCK_TOKENS} tokens each), "
            f"but there are {len(hash_ids)}."
        )
    session = fields.get("session_id")
    if session is not None and not isinstance(session, str):
        raise UserError(f"{where}: session_id must be text, but is {_shown(session)}.")
    return TraceRequest(timestamp / 1000, input_length, output_length, tuple(hash_ids), session)


def _field(fields: Mapping[str, object], name: str, where: str) -> object:
    if name not in fields:
        raise UserError(f"{where}: the field {name} is missing.")
    return fields[name]


def _length(fields: Mapping[str, object], name: str, where: str) -> int:
    value = _field(fields, name, where)
    # `type(...) is int`, since True is an instance of int.
    if type(value) is not int or not 1 <= value < _EXACT:
        raise UserError(f"{where}: {name} must be a whole number of tokens, 1 or more, but is {_shown(value)}.")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
