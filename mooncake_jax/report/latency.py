"""What one request felt, measured on the times of its tokens; and the contract that a record keeps.

All times are seconds. Definitions: TTFT = first token - arrival; E2E = last token - arrival; ITL = gaps between tokens;
TPOT = (E2E - TTFT) / (output tokens - 1), 0 for one token (`vllm bench serve`); TBT = mean of the longest 10 % of a
request's gaps (FAST'25 §5.1).
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from mooncake_jax.types import RequestRecord, Status

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
