"""What a run achieved: the summary of its requests. What each number means is defined here and in `latency`, once.

All times are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from mooncake_jax.report.columns import STATUSES, RequestColumns, check_columns, columns_of
from mooncake_jax.report.distribution import Statistics, statistics_of
from mooncake_jax.report.latency import TTFT_STAGES
from mooncake_jax.report.spans import busy_fraction, busy_spans, instance_order, peak_open
from mooncake_jax.types import SLO, RequestRecord, Status, Tier


@dataclass(frozen=True)
class Goodput:
    """What the SLO leaves of a run. A request is effective if it completed with TTFT and TBT within the SLO."""

    effective: int
    rate: float
    """Effective requests per second of the run."""
    share: float
    """Effective requests / all requests, the rejected included (effective request capacity, FAST'25 §5.2)."""
    within_ttft: float
    """Share of the completed requests whose TTFT is within the SLO; 0 if none completed."""
    within_tbt: float


@dataclass(frozen=True)
class Reuse:
    """Prompt tokens of the completed requests by where their KV came from: `computed` + all tiers = `prompt`."""

    prompt: int
    computed: int
    by_tier: Mapping[Tier, int]

    @property
    def share(self) -> float:
        """Reused / prompt tokens; 0 without prompt tokens."""
        return 1.0 - self.computed / self.prompt if self.prompt else 0.0


@dataclass(frozen=True)
class Summary:
    """A run in numbers: seconds, tokens, requests, per second. Latencies cover completed requests, and are None without any.

    `itl` is also None when no completed request has a second token.
    """

    slo: SLO
    requests: int
    status: Mapping[Status, int]
    """Requests by how they ended; every status is present."""
    duration: float
    """From the first arrival to the last end of a request."""
    input_tokens: int
    """Of completed requests, as are `output_tokens` and all throughputs."""
    output_tokens: int
    request_throughput: float
    output_throughput: float
    total_throughput: float
    """Prompt and output tokens per second."""
    peak_output_throughput: float | None
    """Most output tokens within one of the consecutive seconds since the first arrival; None if nobody counted them."""
    peak_concurrency: int
    """Most requests at one time between arrival and end."""
    goodput: Goodput
    ttft: Statistics | None
    tbt: Statistics | None
    tpot: Statistics | None
    itl: Statistics | None
    e2e: Statistics | None
    ttft_split: Mapping[str, float]
    """Mean seconds of each stage of TTFT; a request that did not pass a stage counts as 0 there."""
    reuse: Reuse
    utilisation: Mapping[str, float]
    """Fraction of the run that each instance was busy."""

    @property
    def completed(self) -> int:
        return self.status[Status.COMPLETED]


def summarize(records: Sequence[RequestRecord], slo: SLO, utilisation: Mapping[str, float] | None = None) -> Summary:
    """The summary of a run. `utilisation` is each instance's busy fraction; without it, it follows from the records' spans.

    Raises ValueError if a record breaks its contract (`check_record`) or a busy fraction is outside [0, 1].
    """
    columns = columns_of(records)
    if utilisation is None:
        utilisation = busy_fraction(busy_spans(records), *bounds(columns))
    return summarize_columns(columns, slo, utilisation)


def summarize_columns(columns: RequestColumns, slo: SLO, utilisation: Mapping[str, float] | None = None) -> Summary:
    """The summary of a run given as columns. `utilisation` is each instance's busy fraction; without it, none is reported.

    Raises ValueError if the columns break their contract (`check_columns`) or a busy fraction is outside [0, 1].
    """
    check_columns(columns)
    utilisation = utilisation or {}
    if wrong := {name: busy for name, busy in utilisation.items() if not 0 <= busy <= 1}:
        raise ValueError(f"busy fractions must lie in [0, 1], but got {wrong}")
    start, end = bounds(columns)
    done = columns.completed
    count = int(done.sum())

    def per_second(number: int) -> float:
        return number / (end - start) if end > start else 0.0

    input_tokens, output_tokens = int(columns.input_tokens[done].sum()), int(columns.output_tokens[done].sum())
    ttft, tbt = columns.ttft[done], columns.tbt[done]
    in_ttft, in_tbt = ttft <= slo.ttft, tbt <= slo.tbt
    effective = int((in_ttft & in_tbt).sum())
    by_status = np.bincount(columns.status, minlength=len(STATUSES))
    per_bin = columns.tokens_per_second
    return Summary(
        slo=slo,
        requests=len(columns),
        status={status: int(number) for status, number in zip(STATUSES, by_status, strict=True)},
        duration=end - start,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        request_throughput=per_second(count),
        output_throughput=per_second(output_tokens),
        total_throughput=per_second(input_tokens + output_tokens),
        peak_output_throughput=None if per_bin is None else float(per_bin.max(initial=0)),
        peak_concurrency=peak_open(np.stack([columns.arrival, columns.finished], axis=1)),
        goodput=Goodput(
            effective=effective,
            rate=per_second(effective),
            share=effective / max(len(columns), 1),
            within_ttft=int(in_ttft.sum()) / max(count, 1),
            within_tbt=int(in_tbt.sum()) / max(count, 1),
        ),
        ttft=statistics_of(ttft),
        tbt=statistics_of(tbt),
        tpot=statistics_of(columns.tpot[done]),
        itl=statistics_of(columns.itl.values, columns.itl.weights),
        e2e=statistics_of(columns.e2e[done]),
        ttft_split=_mean_split(columns, done),
        reuse=_reuse(columns, done, input_tokens),
        utilisation={name: utilisation[name] for name in sorted(utilisation, key=instance_order)},
    )


def bounds(columns: RequestColumns) -> tuple[float, float]:
    """The first arrival and the last end of a request; zeros for a run without requests."""
    return (float(columns.arrival[0]), float(columns.finished.max())) if len(columns) else (0.0, 0.0)


def _mean_split(columns: RequestColumns, done: Bool[np.ndarray, " requests"]) -> dict[str, float]:
    others = [stage for stage in columns.split if stage not in TTFT_STAGES]
    totals = {stage: float(np.nansum(seconds[done])) for stage, seconds in columns.split.items()}
    return {stage: totals.get(stage, 0.0) / max(int(done.sum()), 1) for stage in (*TTFT_STAGES, *others)}


def _reuse(columns: RequestColumns, done: Bool[np.ndarray, " requests"], prompt: int) -> Reuse:
    by_tier = {tier: int(columns.cached[tier][done].sum()) if tier in columns.cached else 0 for tier in Tier}
    return Reuse(prompt=prompt, computed=prompt - sum(by_tier.values()), by_tier=by_tier)
