"""Prefill instances, and the stage that serves them where a placement settles everything.

With one prompt at a time, first come, first served, and times that come out as predicted, start and end of a prefill are known
when it is placed (DESIGN, Semantics of time). `passes.QueuedStage` serves all other cases.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from mooncake_jax.kvcache import BlockCache, ChainCache
from mooncake_jax.sched import HardwareModel
from mooncake_jax.sim.events import Events, Order
from mooncake_jax.sim.job import Job, Maker


class PrefillInstance:
    """One instance: its cache, its committed work, and, where that is not certain from the start, queue and passes."""

    def __init__(self, index: int, cache: BlockCache | ChainCache, stages: int = 1):
        self.index = index
        self.cache = cache
        self.clear_at = 0.0
        """When the committed work will be done, as far as the Conductor can tell."""
        self.queue: list[Job] = []
        self.running: list[Job] = []
        self.stage_free = [0.0] * stages
        """When each stage of the pipeline is done with what has entered it."""
        self.alive = True
        self.draining = False

    @property
    def idle(self) -> bool:
        return not self.queue and not self.running


class PrefillStage(Protocol):
    """Takes jobs from placement to the end of their prefill, of which `prefilled(now, job)` hears."""

    def commit(self, job: Job, instance: PrefillInstance, source: PrefillInstance | None, now: float) -> None:
        """The job is placed at `instance`, and fetches the prefix from `source` if that is given. Moves `instance.clear_at`."""
        ...

    def copy(self, maker: Maker, nbytes: int, source: int, target: int, now: float) -> None:
        """Blocks of `nbytes` leave one prefill instance for another at `now` or later; then `maker` has made them there."""
        ...


class CertainStage:
    """Everything about a job is known when it is placed."""

    def __init__(
        self,
        hardware: HardwareModel,
        events: Events,
        kv_bytes_per_token: int,
        prefilled: Callable[[float, Job], None],
    ):
        self._hardware, self._events, self._kv_bytes = hardware, events, kv_bytes_per_token
        self._prefilled = prefilled

    def commit(self, job: Job, instance: PrefillInstance, source: PrefillInstance | None, now: float) -> None:
        ready = job.ready
        if source is not None:
            moved = (job.cached - job.own_tokens) * self._kv_bytes
            made = when_made(source.cache.makers(job.request.keys, job.own_blocks, job.fetch_blocks), now)
            ready = max(ready, made + self._hardware.transfer_s(moved, source.index, instance.index))
        clear_at = instance.clear_at
        begin = clear_at if clear_at > now else now
        start = begin if begin > ready else ready
        job.compute = job.service = compute = self._hardware.prefill_s(job.input_tokens, job.cached)
        job.start = start
        job.planned = instance.clear_at = start + compute
        self._events.at(job.planned, Order.PREFILLED, job.serial, self._prefilled, job)
        job.fetch_wait = start - begin

    def copy(self, maker: Maker, nbytes: int, source: int, target: int, now: float) -> None:
        maker.planned = now + self._hardware.transfer_s(nbytes, source, target)


def when_made(makers: Iterable[Maker], now: float) -> float:
    """When the last of these is thought to have made its blocks; `now` if all have."""
    made = now
    for maker in makers:
        if maker.planned > made:
            made = maker.planned
    return made
