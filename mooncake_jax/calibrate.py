"""Does the simulator tell the truth? An estimator fitted to one live run predicts another, and both are compared."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from mooncake_jax import report
from mooncake_jax.cluster_config import EngineConfig
from mooncake_jax.config import ClusterSettings, ReplaySettings, factory, from_plain, load_plain, make
from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import EvictionPolicy
from mooncake_jax.launch import make_conductor
from mooncake_jax.sched import (
    Decision,
    DecodeLine,
    DecodeSample,
    Estimator,
    Learning,
    PrefillSample,
    Regression,
    Sample,
    read_samples,
)
from mooncake_jax.sim import Rates, SimClusterConfig, SimDecodeConfig, SimHostPoolConfig, SimPrefillConfig, outcome
from mooncake_jax.sim.twin import Pace, Twin
from mooncake_jax.types import Request, Role

State = tuple[bool, bool]
"""Whether the other role works most of the time, and whether a request joins the batch."""

METRICS = ("ttft", "tbt", "e2e")
STATISTICS = {"mean": np.mean, "P90": lambda values: np.percentile(values, 90)}
_NO_TIME = 1e15
"""Bytes / s: what moving KV takes within a machine is in the times of passes and steps."""
_FEW = 8
"""A shape, or a state of the machine, with fewer samples than this has no correction of its own."""


@dataclass(frozen=True)
class Work:
    """A pass or a step."""

    sample: PrefillSample | DecodeSample
    shared: float
    """Seconds of it during which an instance of the other role was working."""
    joined: bool
    """Whether a request joined the batch with this step, whose KV was loaded first. False for passes."""


@dataclass(frozen=True, eq=False)
class LiveRun:
    """What a live run left in its folder."""

    folder: Path
    settings: ReplaySettings
    samples: list[Sample]
    work: list[Work]
    """Those among them that are passes and steps, and those that took no time by the clock, by role in order of time."""
    requests: list[Request]
    """Those that completed, with the lengths they had and the keys of their blocks; arrivals count from the first."""
    columns: report.RequestColumns
    """Of the same requests."""
    lags: Float64[np.ndarray, " lags"]
    """Seconds from arrival to the Conductor of those of them that found no prefill work ahead: until the one thread that
    also dispatches all passes and steps had time for them."""
    kv_bytes_per_token: int


@dataclass(frozen=True)
class Predicted:
    """One number, live and simulated, in seconds."""

    metric: str
    statistic: str
    live: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated / live - 1."""
        return self.simulated / self.live - 1 if self.live else 0.0 if not self.simulated else math.inf


def read_run(folder: Path) -> LiveRun:
    """Reads the folder of a run of scripts/replay.py. Raises UserError for what is missing or not of a live run."""
    plain = load_plain(folder)
    if "messenger" not in plain:
        raise UserError(f"{folder} is not the folder of a live run: its config.yaml names no messenger")
    settings = from_plain(ReplaySettings, plain)
    every = report.read_columns(folder / "requests.jsonl")
    placed: dict[str, Decision] = {}
    for number, line in enumerate((folder / "decisions.jsonl").read_text(encoding="utf-8").splitlines(), start=1):
        try:
            decision = Decision.from_json(line)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder}/decisions.jsonl:{number} is not a line of decisions.jsonl: {error!r}") from error
        placed.setdefault(decision.request.id, decision)
    kept = [i for i, id in enumerate(every.id) if every.completed[i] and id in placed]
    if not kept:
        raise UserError(f"{folder} holds no completed request")
    records = report.read_requests(folder / "requests.jsonl")
    columns = report.columns_of([records[i] for i in kept])
    start = float(columns.arrival[0])
    requests = [
        replace(placed[id].request, arrival=float(arrival) - start, output_tokens=int(tokens))
        for id, arrival, tokens in zip(columns.id, columns.arrival, columns.output_tokens)
    ]
    samples = read_samples(folder / "samples.csv")
    work = _when(folder / "timeline.json", samples)
    decisions = [placed[id] for id in columns.id]
    lags = [
        max(decision.now - float(arrival), 0.0)
        for decision, arrival in zip(decisions, columns.arrival)
        if not decision.view.queue_s.any()
    ]
    return LiveRun(folder, settings, samples, work, requests, columns, np.array(lags), decisions[0].view.kv_bytes_per_token)


def _when(path: Path, samples: Sequence[Sample]) -> list[Work]:
    """Looks up when each pass and step was: both files have those of a role in the order of their ends.

    The engine looks for results between two pieces of host work. Of several steps ready at one look all but the first took no
    time, and only the timeline has them: without them the others would stand for all, and seem longer than they are.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        busy = [(names[event["pid"]], event) for event in events if event.get("cat") == "busy"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error!r}; give the folder of a live run") from error
    spans = {
        role: sorted(
            (round((event["ts"] + event["dur"]) * 1e-6, 8), -event["dur"] * 1e-6, event["name"], where)
            for where, event in busy
            if where.startswith(role)
        )
        for role in Role
    }
    found = []
    for role, other, kind in ((Role.PREFILL, Role.DECODE, PrefillSample), (Role.DECODE, Role.PREFILL, DecodeSample)):
        mine = [sample for sample in samples if isinstance(sample, kind)]
        if len(mine) != sum(length < 0 for _, length, _, _ in spans[role]):
            raise UserError(f"{path} and samples.csv beside it do not show the same work of {role} instances")
        others = np.array([(end + length, end) for end, length, _, _ in spans[other]]).reshape(-1, 2)
        sample, left = mine[0], iter(mine)
        last: dict[str, tuple[float, int]] = {}
        for end, length, name, where in spans[role]:
            sample = next(left) if length < 0 else _instant(sample, name)
            both = np.minimum(others[:, 1], end) - np.maximum(others[:, 0], end + length)
            joined = False
            if isinstance(sample, DecodeSample):
                idle_since, batch = last.get(where, (-math.inf, 0))
                joined = sample.batch > batch or end + length > idle_since + 1e-6
                last[where] = end, sample.batch
            found.append(Work(sample, min(float(both[both > 0].sum()), -length), joined))
    return found


def _instant(before: Sample, name: str) -> Sample:
    """What `name` says of a piece of work that took no time, after `before`."""
    size = int(name.split()[1])
    if isinstance(before, PrefillSample):
        return PrefillSample(before.cached + size, before.cached, 0.0)
    return DecodeSample(size, before.context * size // before.batch, 0.0)


def _shaped(sample: Sample, engine: EngineConfig) -> Sample:
    """As large as the program that computed it: shapes are powers of two."""
    match sample:
        case PrefillSample(tokens, cached):
            return replace(sample, tokens=cached + bucket(tokens - cached, engine.page_size, engine.chunk_tokens))
        case DecodeSample(batch):
            return replace(sample, batch=bucket(batch, 1, engine.max_batch))
    return sample


def bucket(n: float | int, smallest: int, largest: int) -> int:
    """The size of the program that computes `n` tokens or requests: smallest * 2^i, or `largest`."""
    size = min(smallest, largest)
    while size < n and size < largest:
        size = min(2 * size, largest)
    return size


class EngineModel:
    """How long the passes and steps of a live engine take: a `Regression` over the sizes of its programs.

    A regression minimises relative errors, so where times scatter it lies below their mean. Each program's times are scaled
    to have the sum that was measured, if it was measured often enough, else that of its whole stage.
    """

    def __init__(self, run: LiveRun):
        self._engine = engine = run.settings.cluster.engine
        self._inner = Regression([_shaped(sample, engine) for sample in run.samples], holdout=0)
        self.transfer_s = self._inner.transfer_s
        sums: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for work in run.work:
            match _shaped(work.sample, engine):
                case PrefillSample(tokens, cached, seconds):
                    keys, plain = [("prefill", tokens - cached), ("prefill", 0)], self._inner.prefill_s(tokens, cached)
                case DecodeSample(batch, context, seconds):
                    keys, plain = [("decode", batch), ("decode", 0)], self._inner.decode_step_s(batch, context)
            for key in keys:
                sums.setdefault(key, []).append((seconds, float(plain)))
        self._scale = {key: sum(s for s, _ in of) / sum(p for _, p in of) for key, of in sums.items() if len(of) >= _FEW}

    def _scaled(self, stage: str, size: int) -> float:
        return self._scale.get((stage, size), self._scale.get((stage, 0), 1.0))

    def _pass_s(self, tokens: int, cached: int) -> float:
        size = bucket(tokens - cached, self._engine.page_size, self._engine.chunk_tokens)
        return self._scaled("prefill", size) * float(self._inner.prefill_s(cached + size, cached))

    def prefill_s(self, tokens: int, cached: int) -> float:
        bounds = [*range(cached, tokens, self._engine.chunk_tokens), tokens]
        return sum(self._pass_s(end, begin) for begin, end in itertools.pairwise(bounds))

    def seconds(self, sample: PrefillSample | DecodeSample) -> float:
        """What it thinks that a pass or step took."""
        match sample:
            case PrefillSample(tokens, cached):
                return self.prefill_s(tokens, cached)
            case DecodeSample(batch, context):
                return self.decode_step_s(batch, context)

    def decode_line(self, batch: float | int) -> DecodeLine:
        size = bucket(math.ceil(batch), 1, self._engine.max_batch)
        line, scale = self._inner.decode_line(size), self._scaled("decode", size)
        return DecodeLine(scale * line.seconds, scale * line.seconds_per_token)

    def decode_step_s(self, batch: float | int, context: float | int) -> float:
        line = self.decode_line(batch)
        return line.seconds + line.seconds_per_token * context


def _beside(work: Work) -> bool:
    return 2 * work.shared > work.sample.seconds


def sharing(work: Sequence[Work], model: EngineModel, pace: Mapping[State, float]) -> float:
    """How many times longer what decode steps do beside a pass takes than alone, given their mean paces alone.

    Steps began and ended with passes or without, so of each what would have been left for its time alone is what it did beside.
    """
    steps = [one for one in work if one.shared]
    done = sum(pace[False, one.joined] * model.seconds(one.sample) - (one.sample.seconds - one.shared) for one in steps)
    shared = sum(one.shared for one in steps)
    return max(shared / done, 1.0) if len(steps) >= _FEW and done > 0 else 1.0


class Scatter:
    """Draws how much longer or shorter than the model a pass or step takes, out of what was measured.

    Apart for work most of which was beside that of the other role, and for steps that requests join, where each was measured
    often enough. A busy machine is slow for a while, and what was late is followed by what was early, so stretches of `RUN`
    measurements on the mean are drawn. Factors are scaled so that the model times their mean is the sum of the times measured.
    """

    RUN = 8

    def __init__(self, work: Sequence[Work], model: EngineModel, rng: np.random.Generator):
        self._rng = rng
        self._pools: dict[State, Float64[np.ndarray, " work"]] = {}
        self._at: dict[State, int] = {}
        seconds = np.array([one.sample.seconds for one in work])
        predicted = np.array([model.seconds(one.sample) for one in work])
        for state in itertools.product((False, True), (False, True)):
            joined = np.array([one.joined == state[1] for one in work])
            both = joined & np.array([_beside(one) == state[0] for one in work])
            chosen = next(pool for pool in (both, joined, np.ones_like(both)) if pool.sum() >= _FEW or pool.all())
            factors = seconds[chosen] / predicted[chosen]
            self._pools[state] = factors * (seconds[chosen].sum() / predicted[chosen].sum() / factors.mean())
            self._at[state] = 0

    def __call__(self, beside: bool, joined: bool) -> float:
        state, factors = (beside, joined), self._pools[beside, joined]
        if self._rng.random() * self.RUN < 1:
            self._at[state] = int(self._rng.integers(len(factors)))
        self._at[state] = (self._at[state] + 1) % len(factors)
        return float(factors[self._at[state]])

    def means(self) -> dict[State, float]:
        """Mean factor by state."""
        return {state: float(factors.mean()) for state, factors in self._pools.items()}


def scatter(run: LiveRun, model: EngineModel, rng: np.random.Generator) -> dict[str, Scatter]:
    """Of passes (`prefill`) and steps (`decode`), from a run's work."""
    kinds = {"prefill": PrefillSample, "decode": DecodeSample}
    return {
        stage: Scatter([work for work in run.work if isinstance(work.sample, kind)], model, rng)
        for stage, kind in kinds.items()
    }


def twin_config(live: ClusterSettings) -> SimClusterConfig:
    """The live cluster as one to simulate."""
    engine = live.engine
    return SimClusterConfig(
        prefill=SimPrefillConfig(
            count=live.prefill.count,
            stages=live.prefill.mesh.stage,
            chunk_tokens=engine.chunk_tokens,
            pack_tokens=engine.chunk_tokens if engine.pack > 1 else None,
        ),
        decode=SimDecodeConfig(count=live.decode.count, capacity_tokens=engine.decode_pages * engine.page_size),
        host_pool=SimHostPoolConfig(live.host_pool.blocks),
        block_size=live.block_size,
        first_token=live.first_token,
        tries=live.tries,
    )


def predict(fit: LiveRun, run: LiveRun, draws: int = 20, seed: int = 0) -> list[Predicted]:
    """What a twin fitted to `fit` says that `run` should have been, and what it was.

    Args:
      draws: of so many simulations the median counts.
    """
    model = EngineModel(fit)
    rng = np.random.default_rng(seed)
    paces = scatter(fit, model, rng)
    steps = [work for work in fit.work if isinstance(work.sample, DecodeSample)]
    shared = sharing(steps, model, paces["decode"].means())
    simulated: dict[tuple[str, str], list[float]] = {}
    due = np.array([request.arrival for request in run.requests])
    for _ in range(draws):
        lag = rng.choice(fit.lags, len(due)) if len(fit.lags) else np.zeros(len(due))
        placed = np.maximum.accumulate(due + lag)
        columns = _simulate(run, placed, model, paces, shared)
        late = {"ttft": placed - due, "tbt": np.zeros(len(due)), "e2e": placed - due}
        for metric in METRICS:
            values = (getattr(columns, metric) + late[metric])[columns.completed]
            for name, statistic in STATISTICS.items():
                simulated.setdefault((metric, name), []).append(float(statistic(values)))
    return [
        Predicted(metric, name, float(STATISTICS[name](getattr(run.columns, metric))), float(np.median(values)))
        for (metric, name), values in simulated.items()
    ]


def _simulate(
    run: LiveRun, placed: np.ndarray, model: EngineModel, paces: Mapping[str, Pace], shared: float
) -> report.RequestColumns:
    settings = run.settings
    policies = settings.conductor
    if isinstance(make(policies.estimator, "conductor.estimator", Estimator), Learning):
        policies = replace(policies, estimator=None)  # what it would have learnt is the model
    requests = [replace(request, arrival=at) for request, at in zip(run.requests, placed.tolist())]
    twin = Twin(
        twin_config(settings.cluster),
        model,
        make_conductor(policies, settings.slo, model),
        requests,
        run.kv_bytes_per_token,
        Rates(node=_NO_TIME, load=_NO_TIME),
        eviction=factory(settings.eviction, "eviction", EvictionPolicy),
        lookahead=settings.cluster.engine.lookahead,
        prefill_pace=paces["prefill"],
        decode_pace=paces["decode"],
        decode_sharing=shared,
    )
    return outcome(requests, twin.run(), twin.logs).columns
