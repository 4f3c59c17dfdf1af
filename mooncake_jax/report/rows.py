"""requests.jsonl: one line of strict JSON a request, in order of arrival, so that a run can be reported again.

A live run's lines are lossless. A simulated run's have all but `token_times` and `spans`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.report.columns import STATUSES, RequestColumns, gather
from mooncake_jax.report.latency import TTFT_STAGES, RequestLatency, measure
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


_CHUNK = 65_536
"""Lines made at once, so that a million of them need little memory."""


def write_columns(path: Path, columns: RequestColumns) -> None:
    """Writes the requests in order of arrival. Raises ValueError naming a request with an infinite time."""
    for name in ("arrival", "ttft", "tbt", "tpot", "e2e", "finished"):
        if (wrong := np.isinf(getattr(columns, name))).any():
            raise ValueError(f"request {columns.id[int(np.argmax(wrong))]}: its {name} is infinite, which JSON cannot hold")
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(columns), _CHUNK):
            file.writelines(_lines(columns, start, min(start + _CHUNK, len(columns))))


def _lines(columns: RequestColumns, start: int, stop: int) -> list[str]:
    """What `json.dumps` makes of the rows, column by column: several times faster."""

    def texts(values: np.ndarray) -> list[str]:
        return ["null" if value != value else repr(value) for value in values[start:stop].tolist()]

    def places(values: np.ndarray) -> list[str]:
        return ["null" if value < 0 else repr(value) for value in values[start:stop].tolist()]

    def counts(values: np.ndarray) -> list[int]:
        return values[start:stop].tolist()

    nothing = np.zeros(len(columns), np.int64)
    tiers = ", ".join(f'"{tier}": %d' for tier in Tier)
    stages = "{" + ", ".join(f'"{stage}": %s' for stage in columns.split) + "}"
    unknown = (np.isnan(columns.ttft) | np.isnan(columns.first_stages))[start:stop].tolist()
    split = list(zip(*(texts(seconds) for seconds in columns.split.values()))) or [()] * (stop - start)
    line = (
        '{"id": %s, "arrival": %s, "status": "%s", "prefill": %s, "decode": %s, "input_tokens": %d, "output_tokens": %d, '
        f'"cached_tokens": %d, "cached": {{{tiers}}}, "ttft": %s, "tbt": %s, "tpot": %s, "e2e": %s, '
        '"split": %s, "finished": %s, "reason": %s}\n'
    )
    fields = zip(
        (json.dumps(columns.id[i]) for i in range(start, stop)),
        texts(columns.arrival),
        (STATUSES[code] for code in columns.status[start:stop].tolist()),
        places(columns.prefill),
        places(columns.decode),
        counts(columns.input_tokens),
        counts(columns.output_tokens),
        counts(columns.reused),
        *(counts(columns.cached.get(tier, nothing)) for tier in Tier),
        *(texts(seconds) for seconds in (columns.ttft, columns.tbt, columns.tpot, columns.e2e)),
        ("{}" if missing else stages % parts for missing, parts in zip(unknown, split)),
        texts(columns.finished),
        (json.dumps(columns.reason.get(i, "")) for i in range(start, stop)),
        strict=True,
    )
    return [line % values for values in fields]


def read_requests(path: Path) -> list[RequestRecord]:
    """The records of a requests.jsonl; tiers that gave no token are left out of `cached`. Latencies follow from token times.

    The records of a simulated run have no token times, hence no latencies: read them with `read_columns`. Raises UserError
    naming the file and line if it is missing or a line is not a request.
    """
    return _read(path, _record)


def read_columns(path: Path) -> RequestColumns:
    """The requests of any requests.jsonl with the latencies as written; gaps between tokens only where token times are.

    Raises UserError as `read_requests` does.
    """
    rows = _read(path, lambda row: (_record(row), _latency(row)))
    return gather([record for record, _ in rows], [latency for _, latency in rows])


def _read(path: Path, parse: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    if not path.is_file():
        raise UserError(f"{path} is not a file; give the requests.jsonl of a run's folder")
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(parse(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{path}:{number} is not a line of requests.jsonl: {error!r}") from error
    return found


def _latency(row: Mapping[str, Any]) -> RequestLatency | None:
    if row["ttft"] is None:
        return None
    gaps = np.diff(np.array(row.get("token_times", ()), np.float64))
    return RequestLatency(float(row["ttft"]), float(row["tbt"]), float(row["tpot"]), float(row["e2e"]), itl=gaps)


def _record(row: Mapping[str, Any]) -> RequestRecord:
    return RequestRecord(
        id=row["id"],
        arrival=float(row["arrival"]),
        status=Status(row["status"]),
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        token_times=tuple(float(time) for time in row.get("token_times", ())),
        cached={Tier(tier): tokens for tier, tokens in row["cached"].items() if tokens},
        split={stage: float(seconds) for stage, seconds in row["split"].items()},
        prefill=row["prefill"],
        decode=row["decode"],
        finished=None if row["finished"] is None else float(row["finished"]),
        reason=row["reason"],
        spans=tuple(Span(name, float(start), float(end), where) for name, start, end, where in row.get("spans", ())),
    )
