"""A run's requests as arrays, one entry a request in order of arrival: a million simulated requests fit and count quickly.

A live run's records become columns too (`columns_of`), so that every metric is defined once, on columns.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int32, Int64

from mooncake_jax.report.latency import TTFT_STAGES, RequestLatency, check_record, end_of, measure
from mooncake_jax.types import RequestRecord, Status, Tier

STATUSES = tuple(Status)
"""What the codes of `RequestColumns.status` stand for."""
COMPLETED = STATUSES.index(Status.COMPLETED)

Times = Float64[np.ndarray, " requests"]
Counts = Int64[np.ndarray, " requests"]


@dataclass(frozen=True)
class Gaps:
    """Gaps between tokens of the completed requests: values[i] seconds occurred weights[i] times (whole numbers).

    Their order means nothing. A live run lists every gap with weight 1; a simulated one every step with its batch as weight.
    """

    values: Float64[np.ndarray, " gaps"]
    weights: Float64[np.ndarray, " gaps"]


@dataclass(frozen=True)
class RequestColumns:
    """The requests of a run, live or simulated; entry i of each column is the request that arrived i-th.

    Times are absolute seconds of the run's clock, latencies and stages are seconds. Latencies (as `RequestLatency` defines
    them) are NaN for a request that got no token.
    """

    id: Sequence[str]
    """May make its strings on demand."""
    arrival: Times
    status: Int8[np.ndarray, " requests"]
    """Index into `STATUSES`."""
    input_tokens: Counts
    output_tokens: Counts
    """Really generated."""
    cached: Mapping[Tier, Counts]
    """Reused prompt tokens by tier; a tier left out gave none."""
    computed: Counts
    """Prompt tokens computed. With `cached` they sum to `input_tokens` for every request that got a token."""
    split: Mapping[str, Times]
    """Stages of TTFT, summing to it; NaN where they are not known. A stage left out took no time."""
    ttft: Times
    tbt: Times
    tpot: Times
    e2e: Times
    finished: Times
    """When the request was over, however it ended."""
    prefill: Int32[np.ndarray, " requests"]
    """Index of the instance, or -1."""
    decode: Int32[np.ndarray, " requests"]
    itl: Gaps
    reason: Mapping[int, str] = field(default_factory=dict)
    """Why it did not complete, or why it stopped, by entry; those left out give none."""
    tokens_per_second: Float64[np.ndarray, " seconds"] | None = None
    """Output tokens of the completed requests in each second since the first arrival, or None if not counted."""

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def completed(self) -> Bool[np.ndarray, " requests"]:
        return self.status == COMPLETED

    @property
    def reused(self) -> Counts:
        """Prompt tokens reused from any tier."""
        return sum(self.cached.values(), np.zeros(len(self), np.int64))

    @property
    def first_stages(self) -> Times:
        """Sum of the stages of TTFT."""
        return sum(self.split.values(), np.zeros(len(self)))


def columns_of(records: Sequence[RequestRecord]) -> RequestColumns:
    """The records as columns, ties of arrival as given. Raises ValueError if one breaks its contract (`check_record`)."""
    for record in records:
        check_record(record)
    return gather(records, [measure(record) for record in records])


def gather(records: Sequence[RequestRecord], latencies: Sequence[RequestLatency | None]) -> RequestColumns:
    """The records, with the latencies of each, as columns. Token times are read for `tokens_per_second` only."""
    order = sorted(range(len(records)), key=lambda i: records[i].arrival)
    records, latencies = [records[i] for i in order], [latencies[i] for i in order]
    done = [record for record in records if record.status is Status.COMPLETED]
    gaps = [one.itl for record, one in zip(records, latencies) if one is not None and record.status is Status.COMPLETED]
    itl = np.concatenate([np.zeros(0), *gaps])

    def counts(value: Callable[[RequestRecord], int], kind: type = np.int64) -> np.ndarray:
        return np.array([value(record) for record in records], kind)

    def latency(name: str) -> np.ndarray:
        return np.array([math.nan if one is None else getattr(one, name) for one in latencies], np.float64)

    def seconds(stage: str) -> np.ndarray:
        return np.array([record.split.get(stage, 0.0) if record.split else math.nan for record in records], np.float64)

    cached = {tier: counts(lambda record, tier=tier: record.cached.get(tier, 0)) for tier in Tier}
    others = sorted({stage for record in records for stage in record.split} - set(TTFT_STAGES))
    input_tokens, ttft = counts(lambda record: record.input_tokens), latency("ttft")
    return RequestColumns(
        id=[record.id for record in records],
        arrival=np.array([record.arrival for record in records], np.float64),
        status=counts(lambda record: STATUSES.index(record.status), np.int8),
        input_tokens=input_tokens,
        output_tokens=counts(lambda record: record.output_tokens),
        cached=cached,
        computed=np.where(np.isnan(ttft), 0, input_tokens - sum(cached.values())),
        split={stage: seconds(stage) for stage in (*TTFT_STAGES, *others)},
        ttft=ttft,
        tbt=latency("tbt"),
        tpot=latency("tpot"),
        e2e=latency("e2e"),
        finished=np.array([end_of(record) for record in records], np.float64),
        prefill=counts(lambda record: -1 if record.prefill is None else record.prefill, np.int32),
        decode=counts(lambda record: -1 if record.decode is None else record.decode, np.int32),
        itl=Gaps(itl, np.ones_like(itl)),
        reason={i: record.reason for i, record in enumerate(records) if record.reason},
        tokens_per_second=_tokens_per_second(done, records[0].arrival if records else 0.0),
    )


def _tokens_per_second(done: Sequence[RequestRecord], start: float) -> Float64[np.ndarray, " seconds"] | None:
    if any(len(record.token_times) != record.output_tokens for record in done):
        return None
    times = np.concatenate([np.zeros(0), *(np.array(record.token_times, np.float64) for record in done)])
    return np.bincount((times - start).astype(np.int64)).astype(np.float64)


def check_columns(columns: RequestColumns) -> None:
    """Holds columns to their contract; raises ValueError that names the first request that breaks it, and how.

    What `check_record` asks of records, and: order of arrival, no end before arrival, reused and computed prompt tokens that
    sum to the prompt for every request that got a token (none computed more than there are for the others).
    """
    if len(columns.id) != len(columns):
        raise ValueError(f"{len(columns.id)} ids for {len(columns)} requests")

    def refuse(wrong: Bool[np.ndarray, " requests"], say: Callable[[int], str]) -> None:
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ValueError(f"request {columns.id[i]}: {say(i)}")

    arrival, finished, ttft, e2e = columns.arrival, columns.finished, columns.ttft, columns.e2e
    began = ~np.isnan(ttft)
    refuse(
        ~np.isfinite(arrival) | (np.diff(arrival, prepend=arrival[:1]) < 0),
        lambda i: f"arrival {arrival[i]} is not a time at or after that of the request before it",
    )
    refuse(~(np.isfinite(finished) & (finished >= arrival)), lambda i: f"ends at {finished[i]} but arrived at {arrival[i]}")
    refuse(columns.completed & ~(began & (columns.output_tokens > 0)), lambda i: "completed without an output token")
    for name in ("ttft", "tbt", "tpot", "e2e"):
        values = getattr(columns, name)
        refuse(began & ~(np.isfinite(values) & (values >= 0)), lambda i, name=name, values=values: f"{name} is {values[i]}")
    refuse(began & (e2e < ttft - 1e-6), lambda i: f"its last token came after {e2e[i]} s, its first after {ttft[i]} s")
    reused, negative = columns.reused, columns.computed < 0
    for tokens in columns.cached.values():
        negative = negative | (tokens < 0)
    total = reused + columns.computed
    refuse(
        negative | (total > columns.input_tokens) | (began & (total != columns.input_tokens)),
        lambda i: (
            f"reused ({', '.join(f'{tier} {tokens[i]}' for tier, tokens in columns.cached.items())}) and computed "
            f"({columns.computed[i]}) prompt tokens must be at least 0 and sum to the {columns.input_tokens[i]} prompt tokens"
        ),
    )
    stages = columns.first_stages
    known = began & ~np.isnan(stages) & bool(columns.split)
    refuse(
        known & (np.abs(stages - ttft) > np.maximum(1e-6, 1e-6 * np.maximum(stages, ttft))),
        lambda i: (
            f"split { ({stage: float(times[i]) for stage, times in columns.split.items()}) } sums to {stages[i]} s "
            f"but TTFT is {ttft[i]} s"
        ),
    )
    values, weights = columns.itl.values, columns.itl.weights
    if not (np.all(np.isfinite(values)) and np.all(values >= 0) and np.all(weights >= 0)):
        raise ValueError("gaps between tokens must be finite, and neither they nor their weights negative")
