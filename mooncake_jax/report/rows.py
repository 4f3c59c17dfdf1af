"""requests.jsonl: one line of strict JSON a request, in order of arrival; lossless, so that a run can be reported again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mooncake_jax.errors import UserError
from mooncake_jax.report.metrics import TTFT_STAGES, measure
from mooncake_jax.types import RequestRecord, Span, Status, Tier


def request_row(record: RequestRecord) -> dict[str, Any]:
    """The line of a request: seconds, tokens; absolute times are on the run's clock.

    `cached` and `split` are `cached_tokens` by tier and TTFT by stage. The latencies are null if the request got no token;
    for one that did not complete they are those of the tokens it got. A span is [name, start, end, where].
    """
    latency = measure(record)
    others = [stage for stage in record.split if stage not in TTFT_STAGES]
    return {
        "id": record.id,
        "arrival": record.arrival,
        "status": str(record.status),
        "prefill": record.prefill,
        "decode": record.decode,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": int(sum(record.cached.values())),
        "cached": {str(tier): int(record.cached.get(tier, 0)) for tier in Tier},
        "ttft": latency and latency.ttft,
        "tbt": latency and latency.tbt,
        "tpot": latency and latency.tpot,
        "e2e": latency and latency.e2e,
        "split": {stage: record.split[stage] for stage in (*TTFT_STAGES, *others) if stage in record.split},
        "finished": record.finished,
        "reason": record.reason,
        "token_times": record.token_times,
        "spans": [(span.name, span.start, span.end, span.where) for span in record.spans],
    }


def write_requests(path: Path, records: Sequence[RequestRecord]) -> None:
    """Writes the records in order of arrival, ties as given. Raises ValueError naming a request with NaN or infinite times."""
    with path.open("w", encoding="utf-8") as file:
        for record in sorted(records, key=lambda record: record.arrival):
            try:
                file.write(json.dumps(request_row(record), allow_nan=False) + "\n")
            except ValueError as error:
                raise ValueError(f"request {record.id}: a time is NaN or infinite, which JSON cannot hold") from error


def read_requests(path: Path) -> list[RequestRecord]:
    """The records of a requests.jsonl; tiers that gave no token are left out of `cached`. Latencies follow from token times.

    Raises UserError naming the file and line if it is missing or a line is not a request.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the requests.jsonl of a run's folder")
    records = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                records.append(_record(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{path}:{number} is not a line of requests.jsonl: {error!r}") from error
    return records


def _record(row: Mapping[str, Any]) -> RequestRecord:
    return RequestRecord(
        id=row["id"],
        arrival=float(row["arrival"]),
        status=Status(row["status"]),
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        token_times=tuple(float(time) for time in row["token_times"]),
        cached={Tier(tier): tokens for tier, tokens in row["cached"].items() if tokens},
        split={stage: float(seconds) for stage, seconds in row["split"].items()},
        prefill=row["prefill"],
        decode=row["decode"],
        finished=None if row["finished"] is None else float(row["finished"]),
        reason=row["reason"],
        spans=tuple(Span(name, float(start), float(end), where) for name, start, end, where in row["spans"]),
    )
