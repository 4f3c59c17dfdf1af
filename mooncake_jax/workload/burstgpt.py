"""The reader of the BurstGPT traces."""

import math
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.blocks import independent
from mooncake_jax.workload.parse import csv_rows, shown, written_length
from mooncake_jax.workload.trace import Trace


def read_burstgpt(path: str | Path) -> Trace:
    """Reads a BurstGPT trace: a CSV file of Timestamp (s), Request tokens, Response tokens and maybe Session ID (release 2).

    Rows with 0 response or request tokens are requests that failed; they are left out and counted. The file does not tell
    which prompts share a prefix, not even within a session, so none does: every block has an id of its own, of 512 tokens.
    Time 0 is the first request that did not fail. The other columns are ignored.

    Raises UserError, with the line as `path:line: ...`, when the file cannot be read, holds no request, lacks a column, or a
    line has a wrong number of fields, a time that is none, or lengths that are not whole numbers.

    Source: HPMLL/BurstGPT, README.md; arXiv 2401.17644.
    """
    rows = []
    columns = ("Timestamp", "Request tokens", "Response tokens")
    for where, (time, prompt, response, session) in csv_rows(path, columns, ("Session ID",)):
        try:
            seconds = float(time)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise UserError(f"{where}: Timestamp must be a number of seconds, 0 or more, but is {shown(time)}.")
        lengths = written_length(prompt, "Request tokens", where), written_length(response, "Response tokens", where)
        rows.append((seconds, *lengths, session or None))
    return independent(rows, path)
