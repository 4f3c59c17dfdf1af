"""The reader of the Azure LLM inference traces of 2023."""

from datetime import datetime
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.blocks import independent
from mooncake_jax.workload.parse import csv_rows, shown, written_length
from mooncake_jax.workload.trace import Trace


def read_azure(path: str | Path) -> Trace:
    """Reads an Azure LLM trace: a CSV file of TIMESTAMP (date and time), ContextTokens and GeneratedTokens.

    The file does not tell which prompts share a prefix, so none does: every block has an id of its own, of 512 tokens. Time 0
    is the first request; times count to the microsecond (the seventh digit of the files is always 0), and time zones are
    ignored. Requests without a token of prompt or answer are left out and counted.

    Raises UserError, with the line as `path:line: ...`, when the file cannot be read, holds no request, lacks a column, or a
    line has a wrong number of fields, a time that is none, or lengths that are not whole numbers.

    Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md; Splitwise (ISCA'24).
    """
    rows: list[tuple[datetime, int, int]] = []
    for where, (time, context, generated) in csv_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            moment = datetime.fromisoformat(time).replace(tzinfo=None)
        except ValueError:
            raise UserError(
                f"{where}: TIMESTAMP must be a date and time such as 2023-11-16 18:15:46.5000010, but is {shown(time)}."
            ) from None
        lengths = written_length(context, "ContextTokens", where), written_length(generated, "GeneratedTokens", where)
        rows.append((moment, *lengths))
    # Seconds of the calendar would leave no bits for microseconds.
    return independent([((moment - rows[0][0]).total_seconds(), *lengths, None) for moment, *lengths in rows], path)
