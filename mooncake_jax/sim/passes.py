"""The prefill stage whose times are not settled at placement: queues in any order, packed and chunked passes, pipelines, slow
and dying instances, prefixes that wait for a shared network."""

from collections.abc import Callable

from mooncake_jax.sched import Estimator, HardwareModel, QueuedPrefill, QueueOrder
from mooncake_jax.sim.config import SimPrefillConfig
from mooncake_jax.sim.events import Events, Order
from mooncake_jax.sim.hardware import chunk_seconds, pipeline
from mooncake_jax.sim.job import Job, Maker
from mooncake_jax.sim.network import Network
from mooncake_jax.sim.prefill import PrefillInstance, when_made


class QueuedStage:
    """Jobs wait in their instance's queue until a pass takes them.

    Args:
      estimator: what the Conductor thinks that prefills take; `hardware` tells what they take.
      new_order: makes the order of one queue; None is first come, first served.
      slowdown: factor on all that an instance computes, by its index.
      network: where transfers share bandwidth; None: each has all of it.
      started: hears of every job whose prefill begins.
    """

    def __init__(
        self,
        hardware: HardwareModel,
        estimator: Estimator,
        events: Events,
        config: SimPrefillConfig,
        kv_bytes_per_token: int,
        block_size: int,
        prefilled: Callable[[float, Job], None],
        *,
        started: Callable[[float, Job], None],
        new_order: Callable[[], QueueOrder] | None = None,
        slowdown: Callable[[int], float] = lambda index: 1.0,
        network: Network | None = None,
    ):
        self._hardware, self._estimator, self._events, self._config = hardware, estimator, events, config
        self._kv_bytes, self._block_size = kv_bytes_per_token, block_size
        self._prefilled, self._started = prefilled, started
        self._new_order, self._slowdown, self._network = new_order, slowdown, network
        self._orders: dict[int, QueueOrder] = {}
        self._unmade: dict[int, list[tuple[int, Maker]]] = {}
        """By serial: blocks that a job counts on at its own instance and that were still to be made when it was placed."""

    def commit(self, job: Job, instance: PrefillInstance, source: PrefillInstance | None, now: float) -> None:
        job.expected = job.ready
        unmade = []
        for at, key in enumerate(job.request.keys[: job.own_blocks]):
            maker = instance.cache.maker(key)
            if maker is not None and maker.finish is None:
                unmade.append((at, maker))
        if unmade:
            self._unmade[job.serial] = unmade
        instance.queue.append(job)
        copies = dict.fromkeys(maker for _, maker in unmade if not isinstance(maker, Job))
        if source is not None:
            self._fetch(job, instance, source, now)
        elif copies:
            self._await_copies(job, instance, copies)
        self._plan(instance, now)
        self._go_on(instance, now)

    def copy(self, maker: Maker, nbytes: int, source: int, target: int, now: float) -> None:
        def made(time: float) -> None:
            maker.finish = time
            maker.over(time)

        maker.planned = now + self._hardware.transfer_s(nbytes, source, target)
        self._events.later(now, lambda time: self._move(nbytes, source, target, time, made))

    def lose(self, job: Job, instance: PrefillInstance, now: float) -> None:
        """The job will not be computed here after all, nor its blocks; a pass that has begun still ends as it would have."""
        job.lost = True
        self._unmade.pop(job.serial, None)
        if job in instance.queue:
            instance.queue.remove(job)
        if job in instance.running:
            instance.running.remove(job)
        if instance.alive:
            for cache in (instance.cache, instance.cache.below):
                if cache is not None:
                    cache.drop([key for key in job.request.keys if cache.maker(key) is job])
            self._plan(instance, now)
            self._events.later(now, lambda time: self._go_on(instance, time))
        job.over(now)

    # --- prefixes ---------------------------------------------------------------------------------------------------

    def _fetch(self, job: Job, instance: PrefillInstance, source: PrefillInstance, now: float) -> None:
        """The rest of the prefix comes once it has been made at the source."""
        keys = job.request.keys[job.own_blocks : job.fetch_blocks]
        makers = [maker for key in keys if (maker := source.cache.maker(key)) is not None and maker.finish is None]
        waiting = dict.fromkeys(makers)
        known = job.ready
        job.ready = None
        nbytes = (job.cached - job.own_tokens) * self._kv_bytes
        seconds = self._hardware.transfer_s(nbytes, source.index, instance.index)
        job.expected = max(
            known, when_made(source.cache.makers(job.request.keys, job.own_blocks, job.fetch_blocks), now) + seconds
        )

        def arrived(time: float) -> None:
            if not job.lost:
                if not source.alive:
                    job.cached = job.own_tokens
                job.ready = max(time, known)
                self._go_on(instance, time)

        def made(time: float, maker: Maker) -> None:
            waiting.pop(maker, None)
            if maker.lost and not job.lost and job.ready is None:
                job.cached = job.own_tokens
                arrived(time)
            elif not waiting and job.ready is None and not job.lost:
                self._move(nbytes, source.index, instance.index, time, arrived, job)

        for maker in list(waiting):
            maker.then(lambda time, maker=maker: made(time, maker))
        if not waiting:
            self._move(nbytes, source.index, instance.index, now, arrived, job)

    def _await_copies(self, job: Job, instance: PrefillInstance, copies: dict[Maker, None]) -> None:
        """Blocks that are on their way here by order come before the prefill that counts on them."""
        known, job.ready = job.ready, None
        job.expected = max(known, *(maker.planned for maker in copies))

        def came(time: float, maker: Maker) -> None:
            del copies[maker]
            if not copies and not job.lost:
                job.ready = max(time, known)
                self._go_on(instance, time)

        for maker in list(copies):
            maker.then(lambda time, maker=maker: came(time, maker))

    def _move(
        self,
        nbytes: int,
        source: int,
        target: int,
        now: float,
        arrived: Callable[[float], None],
        job: Job | None = None,
    ) -> None:
        if self._network is not None:
            transfer = self._network.send(now, ("prefill", source), ("prefill", target), nbytes, arrived)
            if job is not None:
                job.transfers.append(transfer)
        else:
            self._events.later(now + self._hardware.transfer_s(nbytes, source, target), arrived)

    # --- passes -----------------------------------------------------------------------------------------------------

    def _go_on(self, instance: PrefillInstance, now: float) -> None:
        """Begins the next pass if the first stage is free and somebody is ready."""
        if not instance.alive or instance.stage_free[0] > now:
            return
        jobs = self._next(instance, now)
        if not jobs:
            known = [job.ready for job in instance.queue if job.ready is not None and job.ready > now]
            if known:
                self._events.later(min(known), lambda time: self._go_on(instance, time))
            return
        for job in jobs:
            self._use_what_was_made(job, instance)
        free = instance.stage_free[0]
        slow = self._slowdown(instance.index)
        seconds = [slow * chunk for chunk in self._pass_seconds(jobs)]
        instance.stage_free = pipeline(instance.stage_free, now, seconds)
        end, compute = instance.stage_free[-1], sum(seconds)
        for job in jobs:
            # A pass costs each of its prompts the share that it would cost alone.
            own = self._hardware.prefill_s(job.input_tokens, job.cached)
            total = sum(self._hardware.prefill_s(other.input_tokens, other.cached) for other in jobs)
            job.start, job.compute = now, compute if len(jobs) == 1 else compute * own / total
            job.service = compute if len(jobs) == len(instance.stage_free) == 1 else end - now
            job.fetch_wait = now - max(free, job.placed)
            instance.running.append(job)
            self._started(now, job)
            self._events.at(end, Order.PREFILLED, job.serial, self._ended, (job, instance))
        if instance.stage_free[0] < end:
            self._events.later(instance.stage_free[0], lambda time: self._go_on(instance, time))

    def _ended(self, now: float, argument: tuple[Job, PrefillInstance]) -> None:
        job, instance = argument
        if not job.lost:
            instance.running.remove(job)
            self._prefilled(now, job)
        if not instance.alive:
            return
        self._plan(instance, now)
        self._go_on(instance, now)

    def _next(self, instance: PrefillInstance, now: float) -> list[Job]:
        """The jobs of the next pass, out of the queue; none if whoever is next still waits for its prefix.

        First come, first served waits for the head of the queue; other orders choose among those that are ready.
        """
        queue = instance.queue

        def ready(job: Job) -> bool:
            return job.ready is not None and job.ready <= now

        if self._new_order is None:
            if not queue or not ready(queue[0]):
                return []
            chosen = [queue.pop(0)]
        else:
            candidates = [job for job in queue if ready(job)]
            if not candidates:
                return []
            order = self._orders.setdefault(instance.index, self._new_order())
            first = order.first([self._queued(job) for job in candidates], now)
            chosen = [candidates[first]]
            queue.remove(chosen[0])
        if self._config.pack_tokens is not None:
            room = self._config.pack_tokens - (chosen[0].input_tokens - chosen[0].cached)
            while queue and ready(queue[0]) and self._to_compute(queue[0]) <= room:
                room -= self._to_compute(queue[0])
                chosen.append(queue.pop(0))
        return chosen

    def _to_compute(self, job: Job) -> int:
        """Tokens of a job if its pass began now."""
        made = min((at for at, maker in self._unmade.get(job.serial, ()) if maker.finish is None), default=None)
        return job.input_tokens - (job.cached if made is None else min(made * self._block_size, job.own_tokens))

    def _queued(self, job: Job) -> QueuedPrefill:
        seconds = self._estimator.prefill_s(job.input_tokens, job.cached)
        return QueuedPrefill(job.request.arrival, job.input_tokens, job.cached, seconds, job.serial)

    def _use_what_was_made(self, job: Job, instance: PrefillInstance) -> None:
        """A job that overtook the one whose blocks it counts on, shares its pass, or lost it, computes them itself."""
        for at, maker in self._unmade.pop(job.serial, ()):
            if maker.finish is None:
                job.cached = job.own_tokens = min(at * self._block_size, job.own_tokens)
                job.disk_tokens = min(job.disk_tokens, job.own_tokens)
                if maker.lost:
                    instance.cache.use(job.request.keys, job)
                return

    def _pass_seconds(self, jobs: list[Job]) -> list[float]:
        """Seconds of each chunk of a pass. Several prompts go as one chunk and pay the fixed cost of a pass once."""
        if len(jobs) == 1:
            return chunk_seconds(self._hardware, jobs[0].input_tokens, jobs[0].cached, self._config.chunk_tokens)
        fixed = self._hardware.prefill_s(0, 0)
        return [sum(self._hardware.prefill_s(job.input_tokens, job.cached) for job in jobs) - (len(jobs) - 1) * fixed]

    # --- what the Conductor is told ---------------------------------------------------------------------------------

    def _occupancy(self, job: Job) -> float:
        """Seconds for which a job is thought to keep the first stage busy."""
        chunks = chunk_seconds(self._estimator, job.input_tokens, job.cached, self._config.chunk_tokens)
        return sum(chunks) / self._config.stages

    def _plan(self, instance: PrefillInstance, now: float) -> None:
        """When all committed work will be done: what runs as long as it is thought to take, then the queue in order."""
        time = now
        if instance.running:
            begun = instance.running[-1].start
            time = max(now, begun + sum(self._occupancy(job) for job in instance.running if job.start == begun))
        elif instance.stage_free[0] > now:
            time = instance.stage_free[0]  # with what has been lost since it began
        for job in instance.queue:
            ready = job.expected if job.ready is None else job.ready
            job.planned = time = max(time, ready) + self._occupancy(job)
        instance.clear_at = time
