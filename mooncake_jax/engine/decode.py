"""The decode instance: KV arrives in pieces, a request joins the batch when all of it is there, and leaves when it ends.

Continuous batching: every step takes the requests of the moment. The tokens of a step stay on the device and feed the
next one, which is dispatched before they are read (`lookahead`), so that the host's work hides behind the device's.
Which requests have reached their limit is known without reading tokens; a stop token is noticed a step late, and the
one surplus token is dropped.
"""

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mooncake_jax.cluster_config import EngineConfig
from mooncake_jax.engine import programs, sampling
from mooncake_jax.engine.completion import Completion
from mooncake_jax.engine.shapes import bucket
from mooncake_jax.engine.stage import Stage
from mooncake_jax.kvcache import PageAllocator
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.transfer import Delivery, KVBlocks, TransferState
from mooncake_jax.types import InstanceId, Request


class DecodeState(enum.StrEnum):
    WAITING = "waiting"
    """For KV, for the first token, or for a place in the batch."""
    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"


_LEGAL = {
    DecodeState.WAITING: {DecodeState.RUNNING, DecodeState.DONE, DecodeState.ABORTED},
    DecodeState.RUNNING: {DecodeState.DONE, DecodeState.ABORTED},
}


@dataclass(eq=False)
class DecodeJob:
    """A request at a decode instance, from its placement on."""

    request: Request
    completion: Completion
    state: DecodeState = DecodeState.WAITING
    token: int | None = None
    """The first token, once prefill has sampled it."""
    logprob: float = 0.0
    arrived_at: float | None = None
    """When the last piece of KV was here."""
    joined_at: float | None = None
    generated: int = 0
    """Tokens dispatched so far, the first one included."""
    pieces: list[KVBlocks] = field(default_factory=list)
    _deliveries: list[Delivery] = field(default_factory=list)
    _missing: int = 0
    _pages: list[int] = field(default_factory=list)
    _row: int = -1
    """Its row in the step dispatched last, -1 if it was not in it."""

    def move(self, state: DecodeState) -> None:
        if state not in _LEGAL.get(self.state, set()):
            raise RuntimeError(f"{self.request.id}: decode state {self.state} → {state} is not legal")
        self.state = state


@dataclass(frozen=True)
class Joined:
    """A request's KV is in its pages; its next token comes with the next step."""

    job: DecodeJob


@dataclass(frozen=True)
class Ended:
    """A request has all its tokens; its pages are back."""

    job: DecodeJob


@dataclass(frozen=True)
class Lost:
    """KV of a request did not arrive; it can be prefilled again. The job is still here: abort it."""

    job: DecodeJob
    reason: str


@dataclass
class _Step:
    jobs: list[DecodeJob]
    sampled: sampling.Sampled
    context: int
    dispatched: float


class DecodeInstance:
    """One model replica that turns arrived KV into tokens. Not thread-safe; `step` never blocks."""

    def __init__(
        self,
        id: InstanceId,
        config: ModelConfig,
        mesh: Mesh,
        params: programs.Params,
        engine: EngineConfig,
        on_step: Callable[[int, int, float, float], None] = lambda batch, context, start, end: None,
    ):
        """`on_step` hears (batch, sum of context lengths, start, end) of every step."""
        self.id, self.config, self.engine = id, config, engine
        self.stage = Stage(config, mesh, range(config.layers), params, engine, engine.decode_pages, whole=True)
        self.params = params
        self.books = PageAllocator(engine.decode_pages, engine.pages_per_block)
        self._on_step = on_step
        self.waiting: list[DecodeJob] = []
        self.running: list[DecodeJob] = []
        self._steps: deque[_Step] = deque()
        self.previous = self.stage.place(jnp.zeros((engine.max_batch,), jnp.int32))
        self._last_end = 0.0
        self.busy_s = 0.0
        self.transfer_failures = 0

    # --- what the runtime calls -------------------------------------------------------------------------------------

    def expect(self, job: DecodeJob) -> None:
        """A request will come here: its KV in deliveries, its first token by `start`."""
        job._missing = job.request.input_tokens * self.config.layers
        self.waiting.append(job)

    def receive(self, job: DecodeJob, delivery: Delivery) -> None:
        job._deliveries.append(delivery)

    def start(self, job: DecodeJob, token: int, logprob: float) -> None:
        """The first token, which goes to the completion elsewhere; the request joins when its KV is here."""
        job.token, job.logprob, job.generated = token, logprob, 1

    def abort(self, job: DecodeJob, now: float) -> None:
        """Gives back every page and transfer of the job. Tokens under way are dropped."""
        if job.state not in (DecodeState.DONE, DecodeState.ABORTED):
            job.move(DecodeState.ABORTED)
        self._leave(job, now)

    def step(self, now: float) -> list[Joined | Ended | Lost]:
        """Collects tokens and arrivals that are ready and dispatches the next steps; returns what happened."""
        events: list[Joined | Ended | Lost] = []
        self._harvest(now, events)
        self._poll_arrivals(now, events)
        self._join(now, events)
        while len(self._steps) < self.engine.lookahead and self._dispatch(now):
            pass
        return events

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running and not self._steps

    # --- arrivals ---------------------------------------------------------------------------------------------------

    def _poll_arrivals(self, now: float, events: list) -> None:
        for job in self.waiting:
            deliveries, job._deliveries = job._deliveries, []
            for i, delivery in enumerate(deliveries):
                state = delivery.poll(now)
                if state is TransferState.DONE:
                    job.pieces.append(delivery.take())
                    job._missing -= len(delivery.layers) * len(delivery.tokens)
                    self.transfer_failures += delivery.failures
                    if not job._missing:
                        job.arrived_at = now
                elif state.terminal:
                    events.append(Lost(job, delivery.reason))
                    job._deliveries += deliveries[i:]
                    break
                else:
                    job._deliveries.append(delivery)

    def _join(self, now: float, events: list) -> None:
        """First come, first served among requests whose KV and first token are here; each gets all the pages it may need."""
        for job in list(self.waiting):
            if job._missing or job.token is None:
                continue
            request, size = job.request, self.engine.page_size
            pages = -(-(request.input_tokens + request.output_tokens) // size)
            if len(self.running) == self.engine.max_batch or pages > self.books.free:
                break
            job._pages = self.books.allocate(pages)
            group = self.stage.groups[0]
            for piece in job.pieces:
                ids = job._pages[piece.tokens.start // size : -(-piece.tokens.stop // size)]
                self.stage.load(group, piece.kv, ids, piece.layers)
            job.pieces = []
            job.move(DecodeState.RUNNING)
            job.joined_at = now
            self.waiting.remove(job)
            self.running.append(job)
            events.append(Joined(job))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> bool:
        jobs = [job for job in self.running if job.generated < job.request.output_tokens]
        if not jobs:
            return False
        engine, group = self.engine, self.stage.groups[0]
        rows = bucket(len(jobs), 1, engine.max_batch)
        source, fresh = np.full((rows,), -1, np.int32), np.zeros((rows,), np.int32)
        lengths, table = np.zeros((rows,), np.int32), np.zeros((rows, engine.max_pages), np.int32)
        for i, job in enumerate(jobs):
            source[i], fresh[i] = job._row, job.token
            lengths[i] = job.request.input_tokens + job.generated
            table[i, : len(job._pages)] = job._pages
        choice = sampling.pack_sampling([job.request.sampling for job in jobs], [int(n) for n in lengths[: len(jobs)]], rows)
        batch, choice = self.stage.place((programs.DecodeBatch(source, fresh, lengths, table), choice))
        logits, group.pages = programs.decode_step(self.stage.model, self.params, group.pages, self.previous, batch)
        hot = any(job.request.sampling.temperature > 0 for job in jobs)
        sampled, self.previous = programs.choose(self.stage.model, logits, choice, sampled=hot, width=engine.max_batch)
        self._steps.append(_Step(jobs, sampled, int(lengths.sum()), now))
        for job in self.running:
            job._row = -1
        for i, job in enumerate(jobs):
            job._row = i
            job.generated += 1
        return True

    def _harvest(self, now: float, events: list) -> None:
        while self._steps and self._steps[0].sampled.token.is_ready():
            step = self._steps.popleft()
            tokens, logprobs = np.asarray(step.sampled.token), np.asarray(step.sampled.logprob)
            start = max(step.dispatched, self._last_end)
            self._last_end = now
            self.busy_s += now - start
            self._on_step(len(step.jobs), step.context, start, now)
            for job, token, logprob in zip(step.jobs, tokens.tolist(), logprobs.tolist(), strict=False):
                if job.state is DecodeState.RUNNING and job.completion.accept(token, logprob, now) is not None:
                    job.move(DecodeState.DONE)
                    self._leave(job, now)
                    events.append(Ended(job))

    def _leave(self, job: DecodeJob, now: float) -> None:
        for jobs in (self.waiting, self.running):
            if job in jobs:
                jobs.remove(job)
        for delivery in job._deliveries:
            delivery.cancel(now)
            self.transfer_failures += delivery.failures
        job._deliveries, job.pieces = [], []
        self.books.release(job._pages)
        job._pages = []
