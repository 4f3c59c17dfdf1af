"""The prefill instance: prefix loading, chunks, packing, layer groups, pipeline stages.

Host code only decides and dispatches. A *pass* takes up to `chunk_tokens` tokens of the requests at the head of the
queue through all layer groups; after each group the pages it filled are gathered and leave for the decode instance and
for the host pool while the next group computes. Device programs run in dispatch order, which gives three rules that
need no waiting: a block may be reused as soon as the pass that computes it was dispatched; pages may be given back as
soon as the last program that reads them was dispatched; chunk c enters stage 0 while chunk c-1 is in stage 1.
"""

import enum
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jax import Array
from jax.sharding import Mesh

from mooncake_jax.cluster_config import EngineConfig
from mooncake_jax.engine import programs, sampling
from mooncake_jax.engine.completion import Completion
from mooncake_jax.engine.shapes import bucket
from mooncake_jax.engine.stage import Group, Stage
from mooncake_jax.engine.store import PoolWriter
from mooncake_jax.kvcache import OutOfPages, PageAllocator
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.transfer import Delivery, HostPool, KVBlocks, Messenger
from mooncake_jax.types import InstanceId, Request, Tier


class PrefillState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    """Pages are allocated, the prefix is loaded, chunks are being dispatched."""
    DRAINING = "draining"
    """Everything has been dispatched; the first token is not back yet."""
    DONE = "done"
    ABORTED = "aborted"


_LEGAL = {
    PrefillState.QUEUED: {PrefillState.RUNNING, PrefillState.ABORTED},
    PrefillState.RUNNING: {PrefillState.DRAINING, PrefillState.ABORTED},
    PrefillState.DRAINING: {PrefillState.DONE, PrefillState.ABORTED},
}


_SERIAL = itertools.count()


@dataclass(eq=False)
class PrefillJob:
    """A request at a prefill instance. `to` is None when nothing follows the first token."""

    request: Request
    completion: Completion
    to: InstanceId | None
    deadline: float
    ready: Callable[[], bool] = lambda: True
    """False while a prefix is being fetched from a peer; the queue is first come, first served and waits."""
    fetched: frozenset[int] = frozenset()
    """Keys that came to the host pool for this request, from a peer."""
    owner: str = field(default_factory=lambda: f"prefill {next(_SERIAL)}")
    """Whose the blocks are that it opens in the host pool: this attempt's, since a request may come back."""
    state: PrefillState = PrefillState.QUEUED
    computed: int = 0
    """Prompt tokens whose KV exists or has been dispatched."""
    started: float | None = None
    cached: dict[Tier, int] = field(default_factory=dict)
    _pages: list[int] = field(default_factory=list)
    _cached_blocks: int = 0

    def move(self, state: PrefillState) -> None:
        if state not in _LEGAL.get(self.state, set()):
            raise RuntimeError(f"{self.request.id}: prefill state {self.state} → {state} is not legal")
        self.state = state


@dataclass(frozen=True)
class FirstToken:
    """The first token of a request has been sampled."""

    job: PrefillJob
    token: int
    logprob: float


@dataclass(frozen=True)
class Shipped:
    """A unit of a request's KV has left for its decode instance."""

    job: PrefillJob
    delivery: Delivery


@dataclass
class _Pass:
    rows: list[PrefillJob]
    last: list[bool]
    spans: list[tuple[int, int]]
    output: Array
    sampled: sampling.Sampled | None
    dispatched: float


class PrefillInstance:
    """One model replica that turns prompts into KV and a first token. Not thread-safe; `step` never blocks."""

    def __init__(
        self,
        id: InstanceId,
        config: ModelConfig,
        meshes: list[Mesh],
        params: list[programs.Params],
        engine: EngineConfig,
        pool: HostPool,
        writer: PoolWriter,
        messenger: Messenger,
        on_pass: Callable[[list[tuple[int, int]], float, float], None] = lambda rows, start, end: None,
    ):
        """`meshes` and `params` hold one entry a stage; `writer` fills `pool`.

        `on_pass` hears of every pass: (first, end) prompt positions computed for each request, start and end in seconds.
        """
        self.id, self.config, self.engine = id, config, engine
        per_stage = config.layers // len(meshes)
        self.stages = [
            Stage(config, mesh, range(i * per_stage, (i + 1) * per_stage), part, engine, engine.prefill_pages)
            for i, (mesh, part) in enumerate(zip(meshes, params, strict=True))
        ]
        self.books = PageAllocator(engine.prefill_pages, engine.pages_per_block)
        self.pool = pool
        self.writer = writer
        self._messenger, self._on_pass = messenger, on_pass
        self.queue: deque[PrefillJob] = deque()
        self._passes: deque[_Pass] = deque()
        self._outgoing: list[Delivery] = []
        self._last_end = 0.0
        self.busy_s = 0.0

    # --- what the runtime calls -------------------------------------------------------------------------------------

    def submit(self, job: PrefillJob) -> None:
        self.queue.append(job)

    def abort(self, job: PrefillJob) -> None:
        """Gives back every page of the job. What it computed stays cached; results under way are dropped."""
        if job in self.queue:
            self.queue.remove(job)
        if job.state not in (PrefillState.DONE, PrefillState.ABORTED):
            job.move(PrefillState.ABORTED)
        self.writer.abandon(job.owner, job.request.keys[job.computed // self.engine.block_size :])
        self._release(job)

    def step(self, now: float) -> list[FirstToken | Shipped]:
        """Collects what is ready and dispatches what can be; returns what happened."""
        events: list[FirstToken | Shipped] = []
        self._harvest(now, events)
        self.writer.poll()
        self._outgoing = [delivery for delivery in self._outgoing if not delivery.state.terminal]
        while len(self._passes) < len(self.stages) + 1 and not self._link_is_full() and self._dispatch(now, events):
            pass
        return events

    @property
    def idle(self) -> bool:
        return not (self.queue or self._passes or self._outgoing) and self.writer.idle

    def backlog(self) -> list[tuple[int, int]]:
        """(end, first) prompt positions of all work that is not done: passes under way, then the queue in order.

        A request that waits counts with the prefix it would find cached now.
        """
        running = [(stop, start) for done in self._passes for start, stop in done.spans]
        waiting = []
        for job in self.queue:
            cached = job.computed
            if job.state is PrefillState.QUEUED:
                cached = min(self._match(job)[0] * self.engine.block_size, job.request.input_tokens - 1)
            waiting.append((job.request.input_tokens, cached))
        return running + waiting

    # --- one pass ---------------------------------------------------------------------------------------------------

    def _link_is_full(self) -> bool:
        waiting = sum(len(delivery.layers) * len(delivery.tokens) for delivery in self._outgoing)
        return waiting > self.engine.send_ahead * self.engine.chunk_tokens * self.config.layers

    def _harvest(self, now: float, events: list) -> None:
        while self._passes and self._passes[0].output.is_ready():
            done = self._passes.popleft()
            start = max(done.dispatched, self._last_end)
            self._last_end = now
            self.busy_s += now - start
            self._on_pass(done.spans, start, now)
            if done.sampled is None:
                continue
            tokens, logprobs = np.asarray(done.sampled.token), np.asarray(done.sampled.logprob)
            for i, (job, last) in enumerate(zip(done.rows, done.last, strict=True)):
                if last and job.state is PrefillState.DRAINING:
                    job.move(PrefillState.DONE)
                    events.append(FirstToken(job, int(tokens[i]), float(logprobs[i])))

    def _dispatch(self, now: float, events: list) -> bool:
        rows, takes = self._choose_rows(now, events)
        if not rows:
            return False
        batch = self._batch(rows, takes)
        spans = [(job.computed, job.computed + take) for job, take in zip(rows, takes, strict=True)]
        for stage in self.stages:
            placed = stage.place(batch)
            if stage.embedding is not None:
                x = programs.embed(stage.model, stage.embedding, placed.tokens)
            else:
                x = stage.place(x)
            for group in stage.groups:
                x, group.pages = programs.prefill_group(stage.model, group.params, group.pages, x, placed)
                for job, (start, stop) in zip(rows, spans, strict=True):
                    self._send(job, stage, group, max(start, self._cached(job)), stop, events)
        last = [stop == job.request.input_tokens for job, (_, stop) in zip(rows, spans, strict=True)]
        sampled = self._sample(rows, last, x, batch.last_rows) if any(last) else None
        marker = x if sampled is None else sampled.token
        self._passes.append(_Pass(rows, last, spans, marker, sampled, now))
        for job, (_, stop), ended in zip(rows, spans, last, strict=True):
            self._advance(job, stop, ended)
        return True

    def _choose_rows(self, now: float, events: list) -> tuple[list[PrefillJob], list[int]]:
        """First come, first served: whole short requests are packed until the chunk is full; a long one takes its part."""
        rows: list[PrefillJob] = []
        takes: list[int] = []
        budget = self.engine.chunk_tokens
        computing: set[int] = set()
        for job in self.queue:
            if len(rows) == self.engine.pack or not budget:
                break
            if job.state is PrefillState.QUEUED:
                if not job.ready() or self._next_key(job) in computing:  # the next pass will find that block cached
                    break
                if not self._start(job, now, events):
                    break
            computing.update(job.request.keys[job.computed // self.engine.block_size :])
            left = job.request.input_tokens - job.computed
            take = left if left <= budget else budget - budget % self.engine.page_size
            if not take:
                break
            rows.append(job)
            takes.append(take)
            budget -= take
            if take < left:
                break
        return rows, takes

    def _next_key(self, job: PrefillJob) -> int | None:
        """Key of the first block that a job would have to compute, None if it ends before one."""
        keys, (cached, _) = job.request.keys, self._match(job)
        return keys[cached] if cached < len(keys) else None

    def _match(self, job: PrefillJob) -> tuple[int, int]:
        """Leading blocks that are cached here, and how many of them are on the device."""
        keys = job.request.keys
        on_device = self.books.match(keys)
        return on_device + self.pool.books.match(keys[on_device:]), on_device

    def _start(self, job: PrefillJob, now: float, events: list) -> bool:
        """Allocates pages and loads the reusable prefix: device first, then the host pool. False if pages are short."""
        request, size = job.request, self.engine.block_size
        keys = request.keys
        cached, on_device = self._match(job)
        total = -(-request.input_tokens // self.engine.page_size)
        pages = self.books.acquire(keys[:on_device])
        try:
            pages += self.books.allocate(total - len(pages))
        except OutOfPages:
            self.books.release(pages)
            return False
        job._pages, job._cached_blocks = pages, cached
        job.move(PrefillState.RUNNING)
        job.started = now
        self._load(keys[on_device:cached], pages[on_device * self.engine.pages_per_block :])
        self.books.publish(keys[: job._cached_blocks], pages[: job._cached_blocks * self.engine.pages_per_block])
        present = [key for key in keys[: job._cached_blocks] if key in self.pool.books]
        self.pool.books.touch(present)
        job.computed = min(job._cached_blocks * size, request.input_tokens - 1)
        for i in range(job._cached_blocks):
            tier = Tier.DEVICE if i < on_device else Tier.PEER if keys[i] in job.fetched else Tier.HOST
            counted = min(size, job.computed - i * size)
            job.cached[tier] = job.cached.get(tier, 0) + counted
        for stage in self.stages:
            for group in stage.groups:
                self._send(job, stage, group, 0, self._cached(job), events)
        return True

    def _load(self, keys: tuple[int, ...], pages: list[int]) -> None:
        step = max(1, self.engine.chunk_tokens // self.engine.block_size)
        self.pool.books.pin(keys)
        for at in range(0, len(keys), step):
            part = keys[at : at + step]
            ids = pages[at * self.engine.pages_per_block :][: len(part) * self.engine.pages_per_block]
            for stage in self.stages:
                for group in stage.groups:
                    self._load_group(stage, group, self.pool.read(part, group.layers), ids)
        self.pool.books.unpin(keys)

    def _load_group(self, stage: Stage, group: Group, kv: np.ndarray, ids: list[int]) -> None:
        """A block may be larger than a chunk, which is as much as one program loads."""
        size, chunk = self.engine.page_size, self.engine.chunk_tokens
        for a in range(0, len(ids) * size, chunk):
            stage.load(group, kv[:, a : a + chunk], ids[a // size : (a + chunk) // size], group.layers)

    def _batch(self, rows: list[PrefillJob], takes: list[int]) -> programs.PrefillBatch:
        engine, seqs = self.engine, self.engine.pack
        size = bucket(sum(takes), engine.page_size, engine.chunk_tokens)
        tokens, positions = np.zeros((2, size), np.int32)
        page, slot = np.full((size,), engine.prefill_pages, np.int32), np.zeros((size,), np.int32)
        starts = np.full((seqs + 1,), sum(takes), np.int32)
        lengths, last_rows = np.zeros((2, seqs), np.int32)
        table = np.zeros((seqs, engine.max_pages), np.int32)
        at = 0
        for i, (job, take) in enumerate(zip(rows, takes, strict=True)):
            where = np.arange(job.computed, job.computed + take, dtype=np.int32)
            pages = np.asarray(job._pages, np.int32)
            tokens[at : at + take] = job.request.tokens[job.computed : job.computed + take]
            positions[at : at + take] = where
            fresh = where >= self._cached(job)  # a token recomputed for its logits is cached already
            page[at : at + take] = np.where(fresh, pages[where // engine.page_size], engine.prefill_pages)
            slot[at : at + take] = where % engine.page_size
            starts[i] = at
            lengths[i] = job.computed + take
            table[i, : len(pages)] = pages
            at += take
            last_rows[i] = at - 1
        return programs.PrefillBatch(tokens, positions, page, slot, starts, lengths, table, last_rows)

    def _sample(self, rows: list[PrefillJob], last: list[bool], x: Array, last_rows: np.ndarray) -> sampling.Sampled:
        stage = self.stages[-1]
        params = [job.request.sampling if ended else None for job, ended in zip(rows, last, strict=True)]
        choice = sampling.pack_sampling(params, [job.request.input_tokens for job in rows], self.engine.pack)
        sampled = bool((choice.temperature > 0).any())
        placed = stage.place((last_rows, choice))
        return programs.first_token(stage.model, stage.head, x, *placed, sampled=sampled)

    def _advance(self, job: PrefillJob, stop: int, ended: bool) -> None:
        """Books after a pass was dispatched: what is whole is cached; what is finished gives its pages back."""
        job.computed = stop
        whole = min(stop // self.engine.block_size, len(job.request.keys))
        self.books.publish(job.request.keys[:whole], job._pages[: whole * self.engine.pages_per_block])
        if ended:
            job.move(PrefillState.DRAINING)
            self.queue.remove(job)
            self._release(job)

    def _cached(self, job: PrefillJob) -> int:
        """Tokens in the blocks that were cached when the job started."""
        return job._cached_blocks * self.engine.block_size

    def _release(self, job: PrefillJob) -> None:
        self.books.release(job._pages[::-1])  # the end of a prompt leaves the cache before its beginning
        job._pages = []

    # --- KV leaving -------------------------------------------------------------------------------------------------

    def _send(self, job: PrefillJob, stage: Stage, group: Group, start: int, stop: int, events: list) -> None:
        """Gathers tokens [start, stop) of one group and lets them go to the decode instance and the host pool.

        The range is either the cached prefix or beyond it; a last token that is computed again has left with the prefix.
        """
        engine, request = self.engine, job.request
        fresh = start >= self._cached(job)
        if fresh and group.layers.start == 0:
            self.writer.open(job.owner, request.keys, range(start, stop))
        for a in range(start, stop, engine.chunk_tokens):
            tokens = range(a, min(a + engine.chunk_tokens, stop))
            kept = fresh and self.writer.wants(job.owner, request.keys, tokens)
            if job.to is None and not kept:
                continue
            ids = job._pages[a // engine.page_size : -(-tokens.stop // engine.page_size)]
            kv = stage.gather(group, ids)
            if kept:
                self.writer.add(job.owner, request.keys, group.layers, tokens, kv)
            if job.to is not None:
                blocks = KVBlocks(request.id, self.id, group.layers, tokens, kv)
                delivery = Delivery(self._messenger, blocks, job.to, deadline=job.deadline)
                self._outgoing.append(delivery)
                events.append(Shipped(job, delivery))
