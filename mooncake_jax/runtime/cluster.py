"""The live cluster of one process: the Conductor in front, instances behind, one event loop that never blocks on a device.

`tick` advances everything once: fetches, prefill instances, decode instances, deadlines. Computation and movement go on
between ticks, since every program and every copy is dispatched asynchronously.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mooncake_jax.cluster_config import ClusterConfig
from mooncake_jax.engine import (
    Completion,
    DecodeInstance,
    DecodeJob,
    Detokenizer,
    Ended,
    FinishReason,
    FirstToken,
    Joined,
    Lost,
    PrefillInstance,
    PrefillJob,
    Shipped,
)
from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import BlockPool, block_keys, model_seed
from mooncake_jax.runtime.fetch import PeerFetch
from mooncake_jax.runtime.live import LiveRequest, Stream
from mooncake_jax.runtime.promises import PrefixBooks
from mooncake_jax.sched import ClusterView, Conductor, Decision, InFlight, Measured, Sample, TransferSample
from mooncake_jax.transfer import Messenger
from mooncake_jax.types import InstanceId, Rejection, Request, RequestRecord, Role, Span, Status

_IDLE_S = 0.0005
"""Sleep between ticks in which nothing happened: the resolution of all measured times."""


@dataclass
class Instances:
    """Living instances by index; a dead one is missing until it is restarted."""

    prefill: dict[int, PrefillInstance]
    decode: dict[int, DecodeInstance]


class Cluster:
    """Serves requests. Create with `build.build_cluster`, then run `serve` as a task beside your submissions.

    `restart(id)` gives a dead instance back, empty; `on_decision` hears every decision before it is committed,
    `samples` gets the times of fetches.
    """

    def __init__(
        self,
        config: ClusterConfig,
        instances: Instances,
        conductor: Conductor,
        messenger: Messenger,
        books: PrefixBooks,
        clock: Callable[[], float],
        *,
        make: Callable[[InstanceId], PrefillInstance | DecodeInstance],
        eos_ids: frozenset[int] = frozenset(),
        detokenizer: Callable[[], Detokenizer] | None = None,
        on_decision: Callable[[Decision], None] = lambda decision: None,
        samples: list[Sample] | None = None,
    ):
        self.config, self.instances, self.conductor = config, instances, conductor
        self.messenger, self.books, self.clock = messenger, books, clock
        self._make, self._eos_ids, self._detokenizer, self._on_decision = make, eos_ids, detokenizer, on_decision
        self._samples = [] if samples is None else samples
        model = next(iter([*instances.prefill.values(), *instances.decode.values()])).config
        self.model = model
        self._seed = model_seed(model.identity)
        self._kv_bytes = model.kv_bytes_per_token(np.dtype(config.engine.dtype).itemsize)
        self.live: dict[str, LiveRequest] = {}
        self._streams: dict[str, Stream] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._serial = itertools.count()
        self.replaced = 0
        """Times a request was placed again, its KV lost with an instance or on the way."""

    # --- requests ---------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises UserError if the cluster could never hold this request, or if its tokens are not the model's."""
        limit, total = self.config.engine.max_context, request.input_tokens + request.output_tokens
        if request.input_tokens < 1 or request.output_tokens < 1:
            raise UserError(
                f"request {request.id} has {request.input_tokens} prompt tokens and may generate {request.output_tokens}; "
                "both must be at least 1"
            )
        if total > limit:
            raise UserError(
                f"request {request.id} has {request.input_tokens} prompt tokens and may generate {request.output_tokens}, "
                f"{total} in all, but the cache holds at most {limit} a request; "
                "shorten it or raise cluster.engine.max_context"
            )
        if request.tokens is None or len(request.tokens) != request.input_tokens:
            raise UserError(f"request {request.id} needs its {request.input_tokens} prompt tokens to be served live")
        if request.tokens.min() < 0 or request.tokens.max() >= self.model.vocab:
            raise UserError(
                f"request {request.id} has token ids outside the vocabulary of {self.model.name}, 0 to {self.model.vocab - 1}"
            )
        if request.id in self.live:
            raise UserError(f"request id {request.id} is in use")

    def submit(self, request: Request) -> Stream:
        """Places a request now. Rejection, like every other end, is the stream's record. Raises UserError (see `check`)."""
        self.check(request)
        now = self.clock()
        stream = Stream(request.id)
        detokenizer = self._detokenizer() if self._detokenizer else None
        deadline = request.deadline if request.deadline is not None else request.arrival + self.config.timeout
        completion = Completion(request, self._eos_ids, detokenizer, stream.put)
        live = LiveRequest(request, request, deadline, completion)
        self.live[request.id], self._streams[request.id] = live, stream
        live.number = next(self._serial)
        heapq.heappush(self._deadlines, (deadline, live.number, request.id))
        self._place(live, now)
        return stream

    def abort(self, id: str) -> None:
        """Ends a request wherever it is; everything it holds is back when this returns. Unknown ids are ignored."""
        if id in self.live:
            self._end(self.live[id], Status.ABORTED, self.clock(), "aborted by the client")

    async def serve(self) -> None:
        """Runs until cancelled, which aborts what is under way. A failure ends every stream with it, and is raised."""
        try:
            while True:
                await asyncio.sleep(0 if self.tick() else _IDLE_S)
        except asyncio.CancelledError:
            for id in list(self.live):
                self._end(self.live[id], Status.ABORTED, self.clock(), "the cluster was stopped")
            raise
        except Exception as error:
            for stream in self._streams.values():
                stream.put(error)
            raise

    def tick(self) -> bool:
        """Advances everything once without waiting; True if anything happened."""
        happened = False
        now = self.clock()
        for live in [live for live in self.live.values() if live.fetch is not None and live.fetch.ended is None]:
            if live.fetch.poll(now):
                self._fetched(live)
                happened = True
        for instance in list(self.instances.prefill.values()):
            for event in instance.step(self.clock()):
                happened = True
                live = self.live.get(event.job.request.id)
                if live is None or live.prefill_job is not event.job:
                    if isinstance(event, Shipped):
                        event.delivery.cancel(now)
                elif isinstance(event, Shipped):
                    self._decoder(live).receive(live.decode_job, event.delivery)
                else:
                    self._first_token(live, event)
        for instance in list(self.instances.decode.values()):
            for event in instance.step(self.clock()):
                happened = True
                live = self.live.get(event.job.request.id)
                if live is None or live.decode_job is not event.job:
                    continue
                if isinstance(event, Joined):
                    self._joined(live)
                elif isinstance(event, Ended):
                    self._end(live, Status.COMPLETED, self.clock(), str(live.completion.finish))
                elif isinstance(event, Lost):
                    self._retry(live, self.clock(), event.reason)
        while self._deadlines and self._deadlines[0][0] < now:
            _, number, id = heapq.heappop(self._deadlines)
            live = self.live.get(id)
            if live is not None and live.number == number:
                self._end(live, Status.EXPIRED, now, self._where(live))
                happened = True
        return happened

    # --- instances --------------------------------------------------------------------------------------------------

    def kill(self, id: InstanceId) -> None:
        """An instance dies with its pages and pool. Its requests are placed again elsewhere and carry on."""
        group = self.instances.prefill if id.role is Role.PREFILL else self.instances.decode
        if id.index not in group:
            raise UserError(f"there is no live instance {id} to kill")
        now = self.clock()
        victims = [live for live in self.live.values() if self._needs(live, id)]
        for live in victims:
            self._give_back(live, now)
        del group[id.index]
        self.messenger.unregister(id)
        if id.role is Role.PREFILL:
            for live in self.live.values():
                if live.fetch is not None and live.fetch.source == id:
                    live.fetch.cancel(now)
                    self._fetched(live)
            self.books.reset(id.index, BlockPool(0))
        for live in victims:
            self._retry(live, now, f"{id} died")

    def _needs(self, live: LiveRequest, id: InstanceId) -> bool:
        """Whether a request loses something with this instance."""
        if id.role is Role.DECODE:
            return live.decode_job is not None and live.placement.decode == id.index
        has_left = live.first_token_at is not None and live.decode_job is not None and live.decode_job.arrived_at is not None
        return live.placement.prefill == id.index and not has_left

    def restart(self, id: InstanceId) -> None:
        """Brings a dead instance back, empty, on the same mesh."""
        group = self.instances.prefill if id.role is Role.PREFILL else self.instances.decode
        if id.index in group:
            raise UserError(f"{id} is alive")
        group[id.index] = self._make(id)
        if id.role is Role.PREFILL:
            self.books.reset(id.index, group[id.index].pool.books)

    def view(self, now: float, without: LiveRequest | None = None) -> ClusterView:
        """What the Conductor sees, as if the request `without` were not there."""
        estimator = self.conductor.estimator
        prefill, decode = sorted(self.instances.prefill), sorted(self.instances.decode)
        queue_s = np.zeros(len(prefill))
        for at, index in enumerate(prefill):
            backlog = self.instances.prefill[index].backlog()
            if backlog:
                ends, firsts = np.array(backlog).T
                queue_s[at] = np.sum(estimator.prefill_s(ends, firsts))
        tokens, batch = np.zeros(len(decode), np.int64), np.zeros(len(decode), np.int64)
        at_index = {index: at for at, index in enumerate(decode)}
        decoding = [
            live
            for live in self.live.values()
            if live.decode_job is not None and live.placement.decode in at_index and live is not without
        ]
        for live in decoding:
            at = at_index[live.placement.decode]
            tokens[at] += live.context
            batch[at] += 1
        capacity = np.full(len(decode), self.config.engine.decode_pages * self.config.engine.page_size)
        return ClusterView(
            prefill=tuple(prefill),
            queue_s=queue_s,
            decode=tuple(decode),
            decode_tokens=tokens,
            decode_batch=batch,
            index=self.books.index,
            block_size=self.config.engine.block_size,
            kv_bytes_per_token=self._kv_bytes,
            decode_capacity_tokens=capacity,
            in_flight=lambda: [InFlight(live.placement.decode, live.context, live.prefilled(now)) for live in decoding],
        )

    def gauges(self) -> dict[str, float]:
        """Load of the moment, by metric name."""
        out: dict[str, float] = {"requests/live": len(self.live)}
        for index, instance in self.instances.prefill.items():
            name = f"prefill-{index}"
            out[f"{name}/queue"] = len(instance.queue)
            out[f"{name}/pages_used"] = instance.books.used
            out[f"{name}/pool_blocks"] = len(instance.pool.books)
            out[f"{name}/busy_s"] = instance.busy_s
        for index, instance in self.instances.decode.items():
            name = f"decode-{index}"
            out[f"{name}/waiting"] = len(instance.waiting)
            out[f"{name}/running"] = len(instance.running)
            out[f"{name}/pages_used"] = instance.books.used
            out[f"{name}/busy_s"] = instance.busy_s
            out[f"{name}/transfer_failures"] = instance.transfer_failures
        out["requests/replaced"] = self.replaced
        return out

    # --- the life of a request --------------------------------------------------------------------------------------

    def _place(self, live: LiveRequest, now: float) -> None:
        attempt = live.attempt
        if not attempt.keys:
            attempt = replace(attempt, keys=block_keys(attempt.tokens, self.config.engine.block_size, self._seed))
            live.attempt = attempt
        view = self.view(now)
        outcome = self.conductor.schedule(attempt, view, now)
        self._on_decision(Decision(attempt, view, now, outcome, self.conductor.estimator_state()))
        live.tries += 1
        if isinstance(outcome, Rejection):
            self._reject(live, outcome, now)
            return
        live.placement, live.placed = outcome, now
        live.serial = serial = next(self._serial)
        prefill = self.instances.prefill[outcome.prefill]
        to = None
        if attempt.output_tokens > 1:
            to = InstanceId(Role.DECODE, outcome.decode)
            live.decode_job = DecodeJob(attempt, live.completion)
            self.instances.decode[outcome.decode].expect(live.decode_job)
        job = PrefillJob(attempt, live.completion, to, live.deadline)
        if outcome.fetch is not None:
            source = self.instances.prefill[outcome.fetch.source]
            live.fetch = PeerFetch(
                attempt,
                range(outcome.reuse, outcome.fetch.blocks),
                (source.id, source.pool),
                (prefill.id, prefill.writer),
                self.messenger,
                lambda key: self.books.promised(outcome.fetch.source, key, before=serial),
                layers=self.model.layers,
                deadline=live.deadline,
                unit_blocks=max(1, self.config.engine.chunk_tokens // self.config.engine.block_size),
                now=now,
            )
            fetch = live.fetch
            job.ready = lambda: fetch.ended is not None
        live.prefill_job = job
        if self.config.host_pool.blocks:
            self.books.promise(outcome.prefill, attempt.keys, serial)
            live.promised = True
        prefill.submit(job)
        self.conductor.placed(attempt, outcome, now)

    def _reject(self, live: LiveRequest, rejection: Rejection, now: float) -> None:
        """A request that has been placed before was accepted then; what ends it now is a failure."""
        self._end(live, Status.REJECTED if live.tries == 1 else Status.FAILED, now, rejection.reason)

    def _fetched(self, live: LiveRequest) -> None:
        fetch = live.fetch
        live.prefill_job.fetched = fetch.fetched
        live.spans.append(Span("fetch", fetch.started, fetch.ended, str(fetch.target)))
        if not fetch.bytes:
            return
        sample = TransferSample(fetch.bytes, fetch.source.index, fetch.target.index, fetch.ended - fetch.moving_from)
        self._samples.append(sample)
        if isinstance(self.conductor.estimator, Measured):
            self.conductor.estimator.observe_transfer(sample.nbytes, sample.src, sample.dst, sample.seconds)

    def _first_token(self, live: LiveRequest, event: FirstToken) -> None:
        now = self.clock()
        job, where = event.job, f"prefill-{live.placement.prefill}"
        live.first_token_at = now
        self._settle(live)
        live.spans.append(Span("queue", live.placed, job.started, where))
        live.spans.append(Span("compute", job.started, now, where))
        if not live.completion.tokens:
            live.cached = dict(job.cached)
            self._clip_cached(live)
            waited = job.started - live.request.arrival
            fetched = live.fetch.ended - live.fetch.started if live.fetch is not None else 0.0
            fetch = min(max(fetched, 0.0), waited)
            compute = now - live.request.arrival - waited
            live.split = {"queue": waited - fetch, "fetch": fetch, "compute": compute, "transfer": 0.0, "decode_wait": 0.0}
        if live.decode_job is not None and self.conductor.rechecks:
            rejection = self.conductor.recheck(live.attempt, live.placement, self.view(now, without=live), now)
            if rejection is not None:
                self._reject(live, rejection, now)
                return
        if live.decode_job is not None:
            self._decoder(live).start(live.decode_job, event.token, event.logprob)
        if live.decode_job is None or self.config.first_token == "prefill":
            self._accept_first(live, event.token, event.logprob, now)

    def _clip_cached(self, live: LiveRequest) -> None:
        """After a loss the prompt served again is longer than the client's; only the client's tokens are counted."""
        room = live.request.input_tokens
        for tier in live.cached:
            live.cached[tier] = min(live.cached[tier], room)
            room -= live.cached[tier]

    def _accept_first(self, live: LiveRequest, token: int, logprob: float, now: float) -> None:
        finish = live.completion.accept(token, logprob, now)
        if finish is not None:
            self._end(live, Status.COMPLETED, now, str(finish))

    def _joined(self, live: LiveRequest) -> None:
        job, where = live.decode_job, f"decode-{live.placement.decode}"
        arrived = max(job.arrived_at, live.first_token_at)
        live.spans.append(Span("transfer", live.first_token_at, arrived, where))
        live.spans.append(Span("decode_wait", arrived, job.joined_at, where))
        if self.config.first_token == "decode":
            if not live.completion.tokens:
                live.split |= {"transfer": arrived - live.first_token_at, "decode_wait": job.joined_at - arrived}
            self._accept_first(live, job.token, job.logprob, job.joined_at)

    def _retry(self, live: LiveRequest, now: float, reason: str) -> None:
        if now > live.deadline:
            waited = reason if live.prefill_job is None else self._where(live)
            self._end(live, Status.EXPIRED, now, waited)
            return
        self._give_back(live, now)
        if live.tries >= self.config.tries:
            self._end(live, Status.FAILED, now, reason)
            return
        live.attempt = live.continuation()
        if live.attempt.output_tokens < 1:
            self._end(live, Status.COMPLETED, now, str(FinishReason.LENGTH))
        else:
            self.replaced += 1
            self._place(live, now)

    def _settle(self, live: LiveRequest) -> None:
        if live.promised:
            self.books.settle(live.placement.prefill, live.attempt.keys, live.serial)
            live.promised = False

    def _give_back(self, live: LiveRequest, now: float) -> None:
        """Every page, block, pin and transfer of the attempt."""
        if live.fetch is not None:
            live.fetch.cancel(now)
        if live.prefill_job is not None and live.placement.prefill in self.instances.prefill:
            self.instances.prefill[live.placement.prefill].abort(live.prefill_job)
        self._settle(live)
        if live.decode_job is not None and live.placement.decode in self.instances.decode:
            self.instances.decode[live.placement.decode].abort(live.decode_job, now)
        live.prefill_job = live.decode_job = live.fetch = live.first_token_at = None

    def _end(self, live: LiveRequest, status: Status, now: float, reason: str) -> RequestRecord:
        decoded = live.decode_job
        if decoded is not None and decoded.joined_at is not None:
            live.spans.append(Span("decode", decoded.joined_at, now, f"decode-{live.placement.decode}"))
        record = live.finish(status, now, reason)
        self._give_back(live, now)
        del self.live[live.request.id]
        self._streams.pop(live.request.id).put(record)
        return record

    def _decoder(self, live: LiveRequest) -> DecodeInstance:
        return self.instances.decode[live.placement.decode]

    def _where(self, live: LiveRequest) -> str:
        """What an expired request was waiting for."""
        seconds = live.deadline - live.request.arrival
        if live.first_token_at is None:
            what = f"prefill at prefill-{live.placement.prefill} (prefill state {live.prefill_job.state})"
            if live.fetch is not None and live.fetch.ended is None:
                what = f"its prefix from {live.fetch.source}"
        elif live.decode_job is not None and live.decode_job.arrived_at is None:
            what = f"its KV from prefill-{live.placement.prefill} at decode-{live.placement.decode}"
        else:
            what = f"decode-{live.placement.decode} after {len(live.completion.tokens)} tokens"
        return f"deadline of {seconds:.3f} s passed while waiting for {what}"
