"""What a request felt and what a run achieved: latencies of one request, and their summary over a run.

All times are seconds. Definitions: TTFT = first token - arrival; E2E = last token - arrival; ITL = gaps between tokens;
TPOT = (E2E - TTFT) / (output tokens - 1), 0 for one token (`vllm bench serve`); TBT = mean of the longest 10 % of a
request's gaps (FAST'25 §5.1).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from mooncake_jax.report.spans import busy_fraction, busy_spans, instance_order, peak_open
from mooncake_jax.types import SLO, RequestRecord, Status, Tier

TTFT_STAGES = ("queue", "fetch", "compute", "transfer", "decode_wait")
"""The parts of TTFT, in the order in which a request passes them."""


@dataclass(frozen=True)
class RequestLatency:
    """Latencies of one request in seconds, measured on the tokens it got; `itl` are the gaps between them, in order."""

    ttft: float
    tbt: float
    tpot: float
    e2e: float
    itl: Float64[np.ndarray, " gaps"] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Statistics:
    """A distribution of `count` values, in their unit. Percentiles interpolate linearly; std is that of the population."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


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
    peak_output_throughput: float
    """Most output tokens within one of the consecutive seconds since the first arrival."""
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


def measure(record: RequestRecord) -> RequestLatency | None:
    """The latencies of a request, or None if it got no token."""
    if not record.token_times:
        return None
    times = np.array(record.token_times, np.float64)
    gaps = np.diff(times)
    ttft = float(times[0]) - record.arrival
    e2e = float(times[-1]) - record.arrival
    tpot = (e2e - ttft) / len(gaps) if len(gaps) else 0.0
    return RequestLatency(ttft=ttft, tbt=_mean_of_longest_tenth(gaps), tpot=tpot, e2e=e2e, itl=gaps)


def _mean_of_longest_tenth(gaps: Float64[np.ndarray, " gaps"]) -> float:
    if len(gaps) == 0:
        return 0.0
    longest = -(-len(gaps) // 10)  # in integers: ceil(0.1 * 30) is 4
    return float(np.partition(gaps, len(gaps) - longest)[-longest:].mean())


def end_of(record: RequestRecord) -> float:
    """When the request was over: `finished`, else its last token, else its arrival."""
    if record.finished is not None:
        return record.finished
    return record.token_times[-1] if record.token_times else record.arrival


def check_record(record: RequestRecord) -> None:
    """Holds a record to its contract; raises ValueError that names the request and the numbers that disagree.

    Token times: one per output token, finite, from arrival on, never backwards; a completed request has at least one.
    Prompt tokens: none negative, no more reused than there are. Split: if given, it sums to TTFT within a microsecond.
    """
    times = np.array([record.arrival, *record.token_times], np.float64)
    if len(record.token_times) != record.output_tokens:
        raise ValueError(f"request {record.id}: {record.output_tokens} output tokens but {len(record.token_times)} token times")
    if record.status is Status.COMPLETED and not record.token_times:
        raise ValueError(f"request {record.id}: completed without an output token")
    if not np.all(np.isfinite(times)) or np.any(np.diff(times) < 0):
        raise ValueError(f"request {record.id}: token times must be finite and not run backwards from arrival {record.arrival}")
    reused = sum(record.cached.values())
    if reused > record.input_tokens or any(tokens < 0 for tokens in record.cached.values()):
        tiers = ", ".join(f"{tier} {tokens}" for tier, tokens in record.cached.items())
        raise ValueError(
            f"request {record.id}: reused ({tiers}) and computed prompt tokens must be at least 0 "
            f"and sum to the {record.input_tokens} prompt tokens"
        )
    if record.split and record.token_times:
        stages, ttft = sum(record.split.values()), record.token_times[0] - record.arrival
        if not math.isclose(stages, ttft, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"request {record.id}: split {dict(record.split)} sums to {stages} s but TTFT is {ttft} s")


def summarize(records: Sequence[RequestRecord], slo: SLO, utilisation: Mapping[str, float] | None = None) -> Summary:
    """The summary of a run. `utilisation` is each instance's busy fraction; without it, it follows from the records' spans.

    Raises ValueError if a record breaks its contract (`check_record`) or a busy fraction is outside [0, 1].
    """
    for record in records:
        check_record(record)
    completed = [record for record in records if record.status is Status.COMPLETED]
    latencies = [latency for record in completed if (latency := measure(record)) is not None]
    start = min((record.arrival for record in records), default=0.0)
    end = max((end_of(record) for record in records), default=0.0)
    if utilisation is None:
        utilisation = busy_fraction(busy_spans(records), start, end)
    elif wrong := {name: busy for name, busy in utilisation.items() if not 0 <= busy <= 1}:
        raise ValueError(f"busy fractions must lie in [0, 1], but got {wrong}")

    def per_second(count: int) -> float:
        return count / (end - start) if end > start else 0.0

    def over(value: Callable[[RequestLatency], float]) -> Statistics | None:
        return _statistics(np.array([value(latency) for latency in latencies], np.float64))

    input_tokens = sum(record.input_tokens for record in completed)
    output_tokens = sum(record.output_tokens for record in completed)
    within = [(latency.ttft <= slo.ttft, latency.tbt <= slo.tbt) for latency in latencies]
    effective = sum(ttft and tbt for ttft, tbt in within)
    return Summary(
        slo=slo,
        requests=len(records),
        status={status: sum(record.status is status for record in records) for status in Status},
        duration=end - start,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        request_throughput=per_second(len(completed)),
        output_throughput=per_second(output_tokens),
        total_throughput=per_second(input_tokens + output_tokens),
        peak_output_throughput=_peak_tokens_per_second(completed, start),
        peak_concurrency=peak_open(np.array([(r.arrival, end_of(r)) for r in records], np.float64).reshape(-1, 2)),
        goodput=Goodput(
            effective=effective,
            rate=per_second(effective),
            share=effective / max(len(records), 1),
            within_ttft=sum(ttft for ttft, _ in within) / max(len(within), 1),
            within_tbt=sum(tbt for _, tbt in within) / max(len(within), 1),
        ),
        ttft=over(lambda latency: latency.ttft),
        tbt=over(lambda latency: latency.tbt),
        tpot=over(lambda latency: latency.tpot),
        itl=_statistics(np.concatenate([np.zeros(0), *(latency.itl for latency in latencies)])),
        e2e=over(lambda latency: latency.e2e),
        ttft_split=_mean_split(completed),
        reuse=_reuse(completed, input_tokens),
        utilisation={name: utilisation[name] for name in sorted(utilisation, key=instance_order)},
    )


def _statistics(values: Float64[np.ndarray, " values"]) -> Statistics | None:
    if len(values) == 0:
        return None
    low, p50, p90, p99, high = (float(value) for value in np.percentile(values, [0, 50, 90, 99, 100]))
    return Statistics(len(values), float(values.mean()), float(values.std()), low, p50, p90, p99, high)


def _peak_tokens_per_second(completed: Sequence[RequestRecord], start: float) -> float:
    times = np.concatenate([np.zeros(0), *(np.array(record.token_times, np.float64) for record in completed)])
    return float(np.bincount((times - start).astype(np.int64)).max(initial=0)) if len(times) else 0.0


def _mean_split(completed: Sequence[RequestRecord]) -> dict[str, float]:
    others = sorted({stage for record in completed for stage in record.split} - set(TTFT_STAGES))
    count = max(len(completed), 1)
    return {stage: math.fsum(r.split.get(stage, 0.0) for r in completed) / count for stage in (*TTFT_STAGES, *others)}


def _reuse(completed: Sequence[RequestRecord], prompt: int) -> Reuse:
    by_tier = {tier: sum(record.cached.get(tier, 0) for record in completed) for tier in Tier}
    return Reuse(prompt=prompt, computed=prompt - sum(by_tier.values()), by_tier=by_tier)
