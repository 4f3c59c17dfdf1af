"""What the readers of traces share: lines and rows with their place, checked fields, and one sentence for what is wrong."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.trace import TraceRequest

EXACT = 2**53
"""Times and lengths from here on are no longer exact in float64."""


def json_lines(path: str | Path, names: Sequence[str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(`path:line`, the object) of every line that is not blank. Raises UserError unless each is a JSON object with `names`."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _object(line, names, f"{path}:{number}")
    except OSError as error:
        raise unreadable(path, error) from error


def csv_rows(path: str | Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """(`path:line`, the texts of `columns` and then of `optional`) of every row; "" for an optional column that is not there.

    Raises UserError when the file cannot be read, the header lacks one of `columns`, or a row is longer or shorter than it.
    """
    try:
        # Bytes that are not UTF-8 then fail as what they stand for, with their line.
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            for name in columns:
                if name not in header:
                    raise UserError(f"{path}:1: the column {name} is missing; the header must name {', '.join(columns)}.")
            places = [header.index(name) if name in header else None for name in (*columns, *optional)]
            for row in filter(None, reader):
                where = f"{path}:{reader.line_num}"
                if len(row) != len(header):
                    raise UserError(f"{where}: the line has {len(row)} fields where the header has {len(header)}.")
                yield where, ["" if place is None else row[place] for place in places]
    except OSError as error:
        raise unreadable(path, error) from error
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: the line is not CSV ({error}).") from error


def length(value: object, name: str, where: str) -> int:
    """A number of tokens, 1 or more."""
    # `type(...) is int`, since True is an instance of int.
    if type(value) is not int or not 1 <= value < EXACT:
        raise UserError(f"{where}: {name} must be a whole number of tokens, 1 or more, but is {shown(value)}.")
    return value


def written_length(text: str, name: str, where: str) -> int:
    """A number of tokens, 0 or more, from a text."""
    if not (text.isdecimal() and len(text) < 16):
        raise UserError(f"{where}: {name} must be a whole number of tokens, 0 or more, but is {shown(text)}.")
    return int(text)


def hash_ids(value: object, input_length: int, block_tokens: int, where: str) -> tuple[int, ...]:
    """Exactly ceil(input_length / block_tokens) ids."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**64 for one in value):
        raise UserError(f"{where}: hash_ids must be a list of whole numbers from 0 to 2^64 - 1, but is {shown(value)}.")
    needed = -(-input_length // block_tokens)
    if len(value) != needed:
        raise UserError(
            f"{where}: input_length {input_length} needs {needed} hash_ids ({block_tokens} tokens each), "
            f"but there are {len(value)}."
        )
    return tuple(value)


def in_order(requests: list[TraceRequest], path: str | Path, needs: str) -> tuple[TraceRequest, ...]:
    """The requests by arrival, those of one instant as they are. Raises UserError when there are none."""
    if not requests:
        raise UserError(f"{path}: the trace is empty; it needs at least one request, {needs}.")
    return tuple(sorted(requests, key=lambda request: request.arrival))


def shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def unreadable(path: str | Path, error: OSError) -> UserError:
    return UserError(f"{path}: the trace cannot be read: {error.strerror}.")


def _object(line: bytes, names: Sequence[str], where: str) -> Mapping[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: the line is not JSON ({error}).") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: the line must be a JSON object with {', '.join(names[:-1])} and {names[-1]}.")
    for name in names:
        if name not in fields:
            raise UserError(f"{where}: the field {name} is missing.")
    return fields
