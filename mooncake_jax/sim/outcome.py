"""What came of a simulation: the requests as columns, the decisions, and one digest over all of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from mooncake_jax.report import STATUSES, Gaps, RequestColumns
from mooncake_jax.sim.ledger import Ledger
from mooncake_jax.sim.longest import Gaps as Intervals
from mooncake_jax.sim.longest import Runs, longest_tenth
from mooncake_jax.sim.steps import Segments, StepLog, interval_weights
from mooncake_jax.types import Request, Status, Tier


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished run; arrays have one entry a request, in order of arrival."""

    columns: RequestColumns
    reuse_blocks: Int64[np.ndarray, "requests"]
    """Leading blocks that the prefill instance held."""
    fetch_source: Int64[np.ndarray, "requests"]
    """Prefill instance from which the rest of the prefix came, -1 for none."""
    fetch_blocks: Int64[np.ndarray, "requests"]
    prefill_s: Float64[np.ndarray, "requests"]
    """Seconds of prefill computed for the request."""
    segments: list[Segments]
    """Steps of every decode instance."""
    runs: Runs

    @property
    def digest(self) -> str:
        """SHA-256 over all decisions and metrics, bit by bit: equal runs have equal digests, in any process."""
        columns = self.columns
        digest = hashlib.sha256()
        for array in (
            columns.status,
            columns.prefill,
            columns.decode,
            self.reuse_blocks,
            self.fetch_source,
            self.fetch_blocks,
            columns.output_tokens,
            columns.computed,
            *(columns.cached[tier] for tier in Tier if tier in columns.cached),
            columns.ttft,
            columns.tbt,
            columns.e2e,
            columns.finished,
            self.prefill_s,
        ):
            values = np.ascontiguousarray(array)
            digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


def outcome(requests: Sequence[Request], ledger: Ledger, logs: Sequence[StepLog]) -> Outcome:
    """The ledger as arrays. `logs` are the step logs that its runs point into."""
    count = len(requests)
    arrival = np.array([request.arrival for request in requests], np.float64)
    input_tokens = np.array([request.input_tokens for request in requests], np.int64)
    first, end = np.array(ledger.first, np.float64), np.array(ledger.end, np.float64)
    generated = np.array(ledger.generated, np.int64)
    code = {status: STATUSES.index(status) for status in Status}
    status = np.array([code[one] for one in ledger.status], np.int8)
    segments = [log.segments() for log in logs]
    run_rows = np.array(ledger.runs, np.int64).reshape(-1, 4)
    runs = Runs(*(np.ascontiguousarray(column) for column in run_rows.T))
    gap_rows = np.array(ledger.gaps, np.float64).reshape(-1, 2)
    gaps = Intervals(gap_rows[:, 0].astype(np.int64), gap_rows[:, 1].copy())
    served = ~np.isnan(first)
    ttft = first - arrival
    e2e = np.where(served, end - arrival, np.nan)
    tpot = np.divide(e2e - ttft, generated - 1, out=np.where(served, 0.0, np.nan), where=served & (generated > 1))
    cached = {
        tier: np.where(served, np.array(tokens, np.int64), 0)
        for tier, tokens in (
            (Tier.DEVICE, ledger.device_tokens),
            (Tier.HOST, ledger.host_tokens),
            (Tier.PEER, ledger.peer_tokens),
            (Tier.DISK, ledger.disk_tokens),
        )
    }
    columns = RequestColumns(
        id=[request.id for request in requests],
        arrival=arrival,
        status=status,
        input_tokens=input_tokens,
        output_tokens=generated,
        cached=cached,
        computed=np.where(served, input_tokens - sum(cached.values()), 0),
        split=_split(ledger, arrival, first),
        ttft=ttft,
        tbt=np.where(served, longest_tenth(count, runs, gaps, segments), np.nan),
        tpot=tpot,
        e2e=e2e,
        finished=end,
        prefill=np.array(ledger.prefill, np.int32),
        decode=np.array(ledger.decode, np.int32),
        itl=_intervals(runs, gaps, segments, status == code[Status.COMPLETED]),
        reason=dict(ledger.reason),
    )
    return Outcome(
        columns,
        np.array(ledger.reuse_blocks, np.int64),
        np.array(ledger.fetch_source, np.int64),
        np.array(ledger.fetch_blocks, np.int64),
        np.array(ledger.prefill_s, np.float64),
        segments,
        runs,
    )


def _split(ledger: Ledger, arrival: np.ndarray, first: np.ndarray) -> dict[str, np.ndarray]:
    """Where TTFT went. The stages up to prefill are known; what follows is moving the KV, then waiting for memory."""
    start, prefilled = np.array(ledger.start, np.float64), np.array(ledger.prefilled, np.float64)
    fetch = np.array(ledger.fetch_s, np.float64)
    after = np.maximum(first - prefilled, 0.0)
    moving = np.array(ledger.moved_s, np.float64)
    # What is left within rounding is no wait.
    moving = np.where(after - moving > 1e-9, moving, after)
    return {
        "queue": start - arrival - fetch,
        "fetch": np.where(np.isnan(start), np.nan, fetch),
        "compute": prefilled - start,
        "transfer": moving + np.where(np.isnan(first), np.nan, 0.0),
        "decode_wait": after - moving,
    }


def _intervals(runs: Runs, gaps: Intervals, segments: list[Segments], completed: np.ndarray) -> Gaps:
    """All intervals between tokens of completed requests: every step with the number of runs it belongs to, and the gaps."""
    kept = completed[runs.request]
    values, weights = [gaps.seconds[completed[gaps.request]]], [np.ones(int(completed[gaps.request].sum()))]
    for instance, mine in enumerate(segments):
        chosen = kept & (runs.instance == instance)
        steps = interval_weights(mine, runs.begin[chosen], runs.end[chosen])
        values.append(steps.values)
        weights.append(steps.weights)
    return Gaps(np.concatenate(values), np.concatenate(weights))
