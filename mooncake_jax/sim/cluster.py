"""The simulated cluster: the Conductor in front, instances behind, time from event to event (DESIGN, Semantics of time).

The same Conductor object that drives the live cluster is asked for every request. Decode instances are advanced only when
someone looks at them; prefill instances have an event at the end of each prefill.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isnan

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import LRU, BlockCache, ChainCache, ChainIndex, Chains, EvictionPolicy, PrefixIndex
from mooncake_jax.sched import (
    ClusterView,
    Conductor,
    Decision,
    FirstCome,
    HardwareModel,
    InFlight,
    NoReplication,
    QueueOrder,
)
from mooncake_jax.sim.config import Rates, SimClusterConfig
from mooncake_jax.sim.decode import DecodeInstance
from mooncake_jax.sim.events import Events
from mooncake_jax.sim.failures import Failures
from mooncake_jax.sim.job import Job, Maker
from mooncake_jax.sim.ledger import NONE, Ledger
from mooncake_jax.sim.network import Network
from mooncake_jax.sim.orders import Orders
from mooncake_jax.sim.passes import QueuedStage
from mooncake_jax.sim.prefill import CertainStage, PrefillInstance, PrefillStage
from mooncake_jax.sim.steps import StepLog
from mooncake_jax.types import Placement, Rejection, Request, Status


class Simulation:
    """One run; `run` may be called once.

    Args:
      config: the cluster.
      hardware: how long things really take.
      conductor: who decides; its estimator may be `hardware` itself.
      requests: with keys, in order of arrival.
      kv_bytes_per_token: bytes of KV of one token, all layers.
      rates: bandwidths of a node.
      eviction: makes the eviction policy of each host pool; None is LRU.
      queue_order: makes the order of each prefill queue; None is first come, first served.
      on_decision: hears every decision before it is committed.
      chains: those of the requests' keys, if somebody has made them already; they only make it quicker.
      certain: False queues jobs even where placements settle everything (for tests: the results are equal).

    Raises UserError for failures and slow instances that are not of the cluster, and for requests out of order.
    """

    decode_type = DecodeInstance

    def __init__(
        self,
        config: SimClusterConfig,
        hardware: HardwareModel,
        conductor: Conductor,
        requests: Sequence[Request],
        kv_bytes_per_token: int,
        rates: Rates | None = None,
        *,
        eviction: Callable[[], EvictionPolicy] | None = None,
        queue_order: Callable[[], QueueOrder] | None = None,
        on_decision: Callable[[Decision], None] | None = None,
        chains: Chains | None = None,
        certain: bool = True,
    ):
        if any(after.arrival < before.arrival for before, after in itertools.pairwise(requests)):
            raise UserError("requests must come in order of arrival")
        self.config, self.hardware, self.conductor, self.requests = config, hardware, conductor, requests
        self.rates = rates or Rates()
        self.ledger = Ledger(len(requests))
        self.events = Events()
        self.kv_bytes = kv_bytes_per_token
        self._load_s = kv_bytes_per_token / self.rates.load
        self._eviction, self._on_decision = eviction, on_decision
        self._tells = not isinstance(conductor.replication, NoReplication)
        """Whether anybody wants to hear of placements."""
        self._slow = {slow.instance: slow.factor for slow in config.slow}
        self.at_prefill = config.first_token == "prefill"
        self._network = Network(self.rates.node, self.events.later) if config.contention else None
        if queue_order is not None and isinstance(queue_order(), FirstCome):
            queue_order = None
        plain = config.prefill.stages == 1 and config.prefill.pack_tokens is None and config.prefill.chunk_tokens is None
        switched = config.failures or config.slow or config.contention or conductor.roles.period is not None
        self.stage: PrefillStage
        if certain and plain and not switched and queue_order is None and conductor.estimator is hardware:
            self.stage = CertainStage(hardware, self.events, kv_bytes_per_token, self._prefilled)
        else:
            self.stage = QueuedStage(
                hardware,
                conductor.estimator,
                self.events,
                config.prefill,
                kv_bytes_per_token,
                config.block_size,
                self._prefilled,
                started=self._started,
                new_order=queue_order,
                slowdown=lambda index: self._slow.get(f"prefill-{index}", 1.0),
                network=self._network,
            )
        by_chain = isinstance(self.stage, CertainStage) and self._may_use_chains()
        if by_chain and chains is None:
            chains = Chains.of([request.keys for request in requests])
        self.index: PrefixIndex | ChainIndex
        if by_chain and chains is not None:
            self.index = ChainIndex(chains, config.prefill.count)
        else:
            self.index = PrefixIndex(config.prefill.count)
        self.prefill = [self.new_prefill(i) for i in range(config.prefill.count)]
        self.names: list[str] = []
        """Whose each of `logs` is."""
        self.logs: list[StepLog] = []
        """Logs of the steps of every decode instance that ever was; the ledger's runs point here."""
        self.decode = [self.new_decode(i) for i in range(config.decode.count)]
        self.jobs: dict[int, Job] = {}
        """Jobs that decode or will, by serial."""
        self._view: ClusterView | None = None
        self._viewed_at = -inf
        self._left = len(requests)
        self._check_names()

    def _check_names(self) -> None:
        names = {str(one.name) for one in self.decode} | {f"prefill-{one.index}" for one in self.prefill}
        for named in (*self.config.failures, *self.config.slow):
            if named.instance not in names:
                raise UserError(
                    f"{named.instance} is not an instance of this cluster of {len(self.prefill)} prefill and "
                    f"{len(self.decode)} decode instances"
                )

    def _may_use_chains(self) -> bool:
        """Whether blocks that always come together may be booked as one: LRU in one tier, and no orders about single blocks."""
        lru = self._eviction is None or isinstance(self._eviction(), LRU)
        return lru and not self.config.disk.blocks and self.conductor.replication.period is None

    def new_prefill(self, index: int) -> PrefillInstance:
        if isinstance(self.index, ChainIndex):
            return PrefillInstance(index, ChainCache(self.config.host_pool.blocks, self.index, index))
        below = None
        if self.config.disk.blocks:
            below = BlockCache(self.config.disk.blocks, self.index, index)
        policy = None if self._eviction is None else self._eviction()
        cache = BlockCache(self.config.host_pool.blocks, self.index, index, policy, below)
        return PrefillInstance(index, cache, self.config.prefill.stages)

    def new_decode(self, index: int) -> DecodeInstance:
        instance = self.decode_type(
            f"decode-{index}",
            len(self.logs),
            self.hardware,
            self._joined,
            self._decoded,
            self._load_s,
            self.config.decode.capacity_tokens,
            self._slow.get(f"decode-{index}", 1.0),
            self.at_prefill,
        )
        self.logs.append(instance.log)
        self.names.append(instance.name)
        return instance

    # --- time -------------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int, int], None] | None = None) -> Ledger:
        """Serves all requests. `progress(requests arrived, all requests)` is called now and then."""
        Failures(self).schedule()
        orders = Orders(self)
        self._every(self.conductor.replication.period, orders.replicate)
        self._every(self.conductor.roles.period, orders.switch_roles)
        happened, place = self.events.run, self.place
        total = len(self.requests)
        for number, request in enumerate(self.requests):
            if happened(request.arrival):
                self._viewed_at = -inf
            place(number, request, request.arrival)
            if progress is not None and number % 1000 == 0:
                progress(number, total)
        happened()
        for instance in self.decode:
            instance.advance(inf)
        return self.ledger

    def _every(self, period: float | int | None, what: Callable[[float], None]) -> None:
        def again(now: float) -> None:
            if self._left:
                what(now)
                self.events.later(now + period, again)

        if period is not None and self.requests:
            self.events.later(self.requests[0].arrival + period, again)

    # --- what the Conductor sees ------------------------------------------------------------------------------------

    def view(self, now: float) -> ClusterView:
        """The cluster at `now`; good until anything changes, as its arrays are filled anew."""
        if self._view is None:
            self._view = self._new_view()
            self._viewed_at = -inf
        view = self._view
        if now != self._viewed_at:
            self._viewed_at = now
            ahead = [self.prefill[i].clear_at - now for i in view.prefill]
            view.queue_s[:] = [seconds if seconds > 0.0 else 0.0 for seconds in ahead]
            tokens, batch = [], []
            for i in view.decode:
                instance = self.decode[i]
                instance.advance(now)
                tokens.append(instance.tokens(now))
                batch.append(instance.assigned)
            view.decode_tokens[:] = tokens
            view.decode_batch[:] = batch
        return view

    def changed(self) -> None:
        """Instances have come or gone: the next view is made anew."""
        self._view = None

    def moved(self) -> None:
        """Queues or batches have moved since the last view."""
        self._viewed_at = -inf

    def _new_view(self) -> ClusterView:
        prefill = tuple(one.index for one in self.prefill if one.alive and not one.draining)
        decode = tuple(i for i, one in enumerate(self.decode) if one.alive and not one.draining)
        capacity = self.config.decode.capacity_tokens
        return ClusterView(
            prefill=prefill,
            queue_s=np.zeros(len(prefill)),
            decode=decode,
            decode_tokens=np.zeros(len(decode), np.int64),
            decode_batch=np.zeros(len(decode), np.int64),
            index=self.index,
            block_size=self.config.block_size,
            kv_bytes_per_token=self.kv_bytes,
            decode_capacity_tokens=None if capacity is None else np.full(len(decode), capacity),
            in_flight=self._in_flight,
        )

    def _in_flight(self, without: Job | None = None) -> list[InFlight]:
        now, decode = self._viewed_at, self.decode
        return [
            InFlight(
                job.decode,
                decode[job.decode].context_of(job, now),
                job.planned if job.finish is None else job.finish,
            )
            for job in self.jobs.values()
            if job is not without
        ]

    # --- the life of a request --------------------------------------------------------------------------------------

    def place(self, number: int, request: Request, now: float) -> None:
        view = self.view(now)
        outcome = self.conductor.schedule(request, view, now)
        if self._on_decision is not None:
            self._on_decision(Decision(request, view, now, outcome))
        if type(outcome) is Rejection:
            status = Status.FAILED if self.ledger.placements[number] else Status.REJECTED
            self.end(number, status, now, outcome.reason)
        else:
            self._commit(number, request, outcome, view, now)

    def _commit(self, number: int, request: Request, placement: Placement, view: ClusterView, now: float) -> None:
        ledger, to = self.ledger, placement.prefill
        job = Job(number, request, next(self.events.serial), now, to)
        instance = self.prefill[to]
        block_size, limit = self.config.block_size, request.input_tokens - 1
        job.own_blocks = placement.reuse
        job.cached = job.own_tokens = min(placement.reuse * block_size, limit)
        source = None
        if ledger.placements[number]:
            ledger.fetch_source[number], ledger.fetch_blocks[number] = NONE, 0
        if placement.fetch is not None:
            source = self.prefill[placement.fetch.source]
            job.fetch_blocks = placement.fetch.blocks
            job.cached = min(job.fetch_blocks * block_size, limit)
            ledger.fetch_source[number], ledger.fetch_blocks[number] = placement.fetch.source, placement.fetch.blocks
        if instance.cache.below is not None:
            self._read_disk(job, instance, now)
        ledger.prefill[number], ledger.reuse_blocks[number] = to, placement.reuse
        ledger.placements[number] += 1
        if self._tells:
            job.ready = max(job.ready, self._copied(instance, request.keys[: placement.reuse], now))
        if job.output_tokens > 1:
            ledger.decode[number] = job.decode = placement.decode
            self.decode[job.decode].expect(job)
            self.jobs[job.serial] = job
            at = view.decode.index(job.decode)
            view.decode_tokens[at] += job.input_tokens
            view.decode_batch[at] += 1
        self.stage.commit(job, instance, source, now)
        instance.cache.use(request.keys, job, placement.reuse)
        queue = instance.clear_at - now
        view.queue_s[view.prefill.index(to)] = queue if queue > 0.0 else 0.0
        if self._tells:
            self.conductor.placed(request, placement, now)

    def _read_disk(self, job: Job, instance: PrefillInstance, now: float) -> None:
        """Blocks on the instance's disk are read while the job waits."""
        below = instance.cache.below
        blocks = sum(key in below for key in job.request.keys[: job.own_blocks])
        job.disk_tokens = min(blocks * self.config.block_size, job.own_tokens)
        job.ready = now + job.disk_tokens * self.kv_bytes / self.config.disk.bandwidth

    def _copied(self, instance: PrefillInstance, keys: Sequence[int], now: float) -> float:
        """When those of these blocks that are ordered copies are thought to be there; the queue itself makes all others."""
        makers = map(instance.cache.maker, keys)
        return max((maker.planned for maker in makers if type(maker) is Maker and maker.finish is None), default=now)

    def _started(self, now: float, job: Job) -> None:
        """A prefill has begun; on a shared network its KV begins to leave as well."""
        if self._network is not None and self.config.sending == "layerwise" and job.decode is not None:
            self._push(now, job)

    def _push(self, now: float, job: Job) -> None:
        def pushed(time: float) -> None:
            job.pushed = time
            if job.finish is not None and job.serial in self.jobs:
                self._sent(job, time)

        nbytes = job.input_tokens * self.kv_bytes
        ends = ("prefill", job.prefill), ("decode", job.decode)
        job.transfers.append(self._network.send(now, *ends, nbytes, pushed))

    def cancel_transfers(self, job: Job, now: float) -> None:
        """A job that is lost moves no more; others have the network."""
        for transfer in job.transfers:
            self._network.cancel(now, transfer)
        job.transfers = []

    def _prefilled(self, now: float, job: Job) -> None:
        """A prefill has ended."""
        job.finish = now
        if job._waiters is not None:
            job.over(now)
        ledger, number = self.ledger, job.number
        ledger.prefill_s[number] += job.compute
        if isnan(ledger.first[number]):
            ledger.start[number], ledger.prefilled[number], ledger.fetch_s[number] = job.start, now, job.fetch_wait
            ledger.host_tokens[number] = job.own_tokens - job.disk_tokens
            ledger.disk_tokens[number] = job.disk_tokens
            ledger.peer_tokens[number] = job.cached - job.own_tokens
        if job.decode is None:
            self.token(number, now)
            self.end(number, Status.COMPLETED, now)
            return
        if self.conductor.rechecks and self._rejected_after_prefill(job, now):
            return
        if self.at_prefill:
            self.token(number, now)
            self.decode[job.decode].outside += 1
        if self._network is None:
            late = self.hardware.transfer_s(job.input_tokens * self.kv_bytes, job.prefill, job.decode)
            if self.config.sending == "layerwise":
                late -= job.service
            self._sent(job, now + late if late > 0.0 else now)
        elif self.config.sending == "serial":
            self._push(now, job)
        elif job.pushed is not None:
            self._sent(job, now)

    def _sent(self, job: Job, time: float) -> None:
        """At `time` the KV is in the DRAM of the decode instance."""
        ledger, number = self.ledger, job.number
        ledger.sent[number] = time
        if isnan(ledger.first[number]):
            ledger.moved_s[number] = time - job.finish + job.input_tokens * self._load_s
        self.decode[job.decode].arrive(time, job)

    def token(self, number: int, now: float) -> None:
        """A token leaves that no decode step made: the first, or the one with which a request goes on after a failure."""
        ledger = self.ledger
        if isnan(ledger.first[number]):
            ledger.first[number] = now
        else:
            ledger.gaps.append((number, now - ledger.last[number]))
        ledger.last[number] = now
        ledger.generated[number] += 1

    def _joined(self, job: Job, life: int, loaded: float, second: float) -> None:
        """A request has joined its batch; its next token comes at `second`."""
        ledger, number = self.ledger, job.number
        if not self.at_prefill:
            self.token(number, loaded)
        ledger.gaps.append((number, second - ledger.last[number]))
        job.run = len(ledger.runs)
        ledger.runs.append((number, life, job.joined_step + 1, job.joined_step + job.output_tokens - 1))

    def _decoded(self, job: Job, time: float) -> None:
        """A request has all its tokens."""
        del self.jobs[job.serial]
        self.ledger.generated[job.number] += job.output_tokens - 1
        self.end(job.number, Status.COMPLETED, time)

    def end(self, number: int, status: Status, time: float, reason: str = "") -> None:
        self.ledger.ended(number, status, time, reason)
        self._left -= 1

    def _rejected_after_prefill(self, job: Job, now: float) -> bool:
        """The paper's baseline judges again for the decode stage, after a prefill that may so be wasted."""
        view = self.view(now)
        if job.decode in view.decode:  # else it is being drained
            at = view.decode.index(job.decode)
            view.decode_tokens[at] -= job.input_tokens
            view.decode_batch[at] -= 1
        placement = Placement(job.prefill, job.decode, job.own_blocks, None, 0.0, 0.0)
        others = replace(view, in_flight=lambda: self._in_flight(job))
        rejection = self.conductor.recheck(job.request, placement, others, now)
        self._viewed_at = -inf
        if rejection is None:
            return False
        self.decode[job.decode].forget(job, 0)
        self.cancel_transfers(job, now)
        del self.jobs[job.serial]
        self.end(job.number, Status.REJECTED, now, rejection.reason)
        return True
