"""Coupled instances, the vLLM-like baselines: each prefills and decodes, and is advanced only as far as someone asks.

Stated as a loop, an instance alternates iterations (DESIGN, Semantics of time; FAST §5.1):

    while True:
        prefill first: prompts = all waiting ones that fit, in order, up to max_batched_tokens to compute
                       an iteration prefills them or, if there are none, is a decode step of all that run
        chunked:       an iteration is a decode step of all that run and, in the same pass, a chunk of the first waiting prompt
                       that fills the budget (Sarathi-Serve)
        a prompt that is complete gives its first token at the end of the iteration, and runs from then on

At one instant iterations end first, then requests arrive, then iterations begin. Decode steps between two changes are one
arithmetic series; a prefill iteration makes the interval of those that run longer, and is part of their next step's segment.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import BlockCache, PrefixIndex
from mooncake_jax.sched import HardwareModel
from mooncake_jax.sim.config import CoupledConfig, SimClusterConfig
from mooncake_jax.sim.job import Job
from mooncake_jax.sim.ledger import Ledger
from mooncake_jax.sim.steps import StepLog, series_s, steps_within
from mooncake_jax.types import Request, Status


class CoupledSimulation:
    """One run of `config.coupled`; `run` may be called once.

    Raises UserError for requests out of order or larger than an instance's memory, if `config.coupled` is missing, and for
    failures, slow instances and contention, which only prefill and decode instances know.
    """

    def __init__(self, config: SimClusterConfig, hardware: HardwareModel, requests: Sequence[Request]):
        coupled = config.coupled
        if coupled is None:
            raise UserError("cluster.coupled is null; coupled instances need it")
        if config.failures or config.slow or config.contention:
            raise UserError("cluster.failures, cluster.slow and cluster.contention do not apply to coupled instances")
        if any(after.arrival < before.arrival for before, after in pairwise(requests)):
            raise UserError("requests must come in order of arrival")
        if coupled.capacity_tokens is not None:
            for request in requests:
                if request.input_tokens + request.output_tokens > coupled.capacity_tokens:
                    raise UserError(
                        f"request {request.id} of {request.input_tokens} + {request.output_tokens} tokens never fits "
                        f"cluster.coupled.capacity_tokens={coupled.capacity_tokens}"
                    )
        self.requests = requests
        self.ledger = Ledger(len(requests))
        self.instances = [
            CoupledInstance(index, coupled, config.block_size, hardware, self.ledger) for index in range(coupled.count)
        ]
        self.logs = [instance.log for instance in self.instances]
        """Steps of every instance; the ledger's runs point here."""
        self.names = [f"coupled-{index}" for index in range(coupled.count)]
        self._least_tokens = coupled.router == "least_tokens"

    def run(self, progress: Callable[[int, int], None] | None = None) -> Ledger:
        """Serves all requests. `progress(requests arrived, all requests)` is called now and then."""
        total = len(self.requests)
        for number, request in enumerate(self.requests):
            now = request.arrival
            instance = self._least_loaded(now) if self._least_tokens else self.instances[number % len(self.instances)]
            instance.advance(now)
            instance.arrive(Job(number, request, number, now, instance.index), now)
            if progress is not None and number % 1000 == 0:
                progress(number, total)
        for instance in self.instances:
            instance.advance(inf)
        return self.ledger

    def _least_loaded(self, now: float) -> "CoupledInstance":
        for instance in self.instances:
            instance.advance(now)
        return min(self.instances, key=lambda instance: instance.tokens(now))


class CoupledInstance:
    """One instance, which writes what becomes of its requests into `ledger`."""

    def __init__(self, index: int, config: CoupledConfig, block_size: int, hardware: HardwareModel, ledger: Ledger):
        self.index = index
        self.log = StepLog()
        self._config, self._block_size, self._hardware, self._ledger = config, block_size, hardware, ledger
        self._prefixes = PrefixIndex(1)
        self._cache = BlockCache(config.prefix_cache_blocks, self._prefixes, 0)
        self._held = 0
        """Tokens of KV reserved."""
        self._waiting: deque[Job] = deque()
        self._outside = 0
        """Prompt tokens of requests that do not run yet."""
        self._done = 0
        """Tokens of the first waiting prompt whose KV exists; more than 0 once it has begun."""
        self._batch = self._context = 0
        self._newcomers: list[Job] = []
        """Those that run and have had no step yet."""
        self._leaves: list[tuple[int, int, Job]] = []
        self._last_step_end = 0.0
        # What is under way from `_start` to `_end` (inf: nothing is, and `_start` is when something may begin): the prompts it
        # completes, and its steps. An iteration that prefills is planned alone, others together up to the next leave.
        self._prefilled: list[Job] = []
        self._steps = 0
        self._start, self._end = 0.0, inf
        self._first = self._rise = 0.0

    def tokens(self, now: float) -> int:
        """Sum of (n + tokens generated so far) over unfinished requests, after `advance(now)`."""
        done = steps_within(self._first, self._rise, now - self._start) if self._steps > 1 else 0
        return self._outside + self._context + self._batch * done

    def arrive(self, job: Job, now: float) -> None:
        """A request is routed here, after `advance(now)`."""
        self._waiting.append(job)
        self._outside += job.input_tokens
        if self._end == inf:
            self._start = now
        elif self._steps > 1 and self._waiting[0] is job and self._takes_more():
            waited = now - self._start
            steps = steps_within(self._first, self._rise, waited)
            if series_s(self._first, self._rise, steps) < waited:
                steps += 1
            self._steps = min(steps, self._steps)
            self._end = self._start + series_s(self._first, self._rise, self._steps)

    def advance(self, now: float) -> None:
        """Everything that ends by `now`. What would begin at `now` waits, as more requests may arrive at that instant."""
        while True:
            if self._end == inf:
                if self._start >= now or not self._begin():
                    return
            elif self._end > now:
                return
            else:
                self._finish()

    # --- iterations -------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Plans what begins at `_start`; False if there is nothing to do."""
        chunked = self._config.chunk_budget is not None
        prefill_s = self._take_chunk() if chunked else self._take_prompts()
        if self._batch and (chunked or prefill_s is None):
            self._step(prefill_s)
        elif prefill_s is None:
            return False
        else:
            self._end = self._start + prefill_s
        return True

    def _step(self, chunk_s: float | None) -> None:
        """Decode steps, or one that has a chunk with it."""
        log, start = self.log, self._start
        line = self._hardware.decode_line(self._batch)
        self._rise = line.seconds_per_token * self._batch
        self._first = line.seconds + line.seconds_per_token * self._context + (chunk_s or 0.0)
        # A pause is part of the interval of all that ran before it, so that the step after it has a segment of its own.
        paused = self._batch > len(self._newcomers) and start > self._last_step_end
        begin = self._last_step_end if paused else start
        log.open(begin, start - begin + self._first, self._rise)
        self._steps = 1 if paused or chunk_s is not None else self._leaves[0][0] - log.steps
        self._end = start + series_s(self._first, self._rise, self._steps)
        ledger, second = self._ledger, start + self._first
        for job in self._newcomers:
            ledger.gaps.append((job.number, second - ledger.first[job.number]))
            ledger.runs.append((job.number, self.index, job.joined_step + 1, job.joined_step + job.output_tokens - 1))
        self._newcomers.clear()

    def _finish(self) -> None:
        """What was under way ends: requests leave, and those whose prompt is complete join."""
        time, log, leaves = self._end, self.log, self._leaves
        if self._steps:
            log.steps += self._steps
            self._context += self._batch * self._steps
            self._last_step_end = time
            while leaves and leaves[0][0] == log.steps:
                job = heappop(leaves)[2]
                self._batch -= 1
                self._context -= job.input_tokens + job.output_tokens
                self._leave(job, time)
        for job in self._prefilled:
            self._join(job, time)
        self._prefilled.clear()
        self._steps, self._start, self._end = 0, time, inf

    def _join(self, job: Job, time: float) -> None:
        ledger, number = self._ledger, job.number
        ledger.prefilled[number] = ledger.sent[number] = ledger.first[number] = ledger.last[number] = time
        self._outside -= job.input_tokens
        if job.output_tokens == 1:
            self._leave(job, time)
            return
        self._batch += 1
        self._context += job.input_tokens + 1
        job.joined_step = self.log.steps
        heappush(self._leaves, (job.joined_step + job.output_tokens - 1, number, job))
        self._newcomers.append(job)

    def _leave(self, job: Job, time: float) -> None:
        self._held -= job.input_tokens + job.output_tokens
        self._ledger.generated[job.number] = job.output_tokens
        self._ledger.ended(job.number, Status.COMPLETED, time)

    # --- prompts ----------------------------------------------------------------------------------------------------

    def _takes_more(self) -> bool:
        """Whether an iteration that begins now has room for the first waiting prompt, or a chunk of it."""
        config, waiting = self._config, self._waiting
        if not waiting or (config.chunk_budget is not None and self._batch >= config.chunk_budget):
            return False
        if self._done or config.capacity_tokens is None:
            return True
        return self._held + waiting[0].input_tokens + waiting[0].output_tokens <= config.capacity_tokens

    def _take_prompts(self) -> float | None:
        """Seconds of an iteration that prefills waiting prompts; they pay its fixed cost once. None if there are none."""
        prompts, prefill_s = self._prefilled, self._hardware.prefill_s
        uncached, total = 0, 0.0
        while self._takes_more():
            job = self._waiting[0]
            self._look_up(job)
            uncached += job.input_tokens - job.cached
            if prompts and uncached > self._config.max_batched_tokens:
                break
            self._admit(self._waiting.popleft())
            job.compute = prefill_s(job.input_tokens, job.cached)
            total += job.compute
            prompts.append(job)
        if not prompts:
            return None
        saved = (len(prompts) - 1) * prefill_s(0, 0)
        for job in prompts:
            self._ledger.prefill_s[job.number] = job.compute - saved / len(prompts)
        return total - saved

    def _take_chunk(self) -> float | None:
        """Seconds that a chunk of the first waiting prompt adds to an iteration; None if there is no chunk."""
        if not self._takes_more():
            return None
        job = self._waiting[0]
        if not self._done:
            self._look_up(job)
            self._admit(job)
            self._done = job.cached
        end = min(self._done + self._config.chunk_budget - self._batch, job.input_tokens)
        seconds = self._hardware.prefill_s(end, self._done)
        self._ledger.prefill_s[job.number] += seconds
        self._done = end
        if end == job.input_tokens:
            self._prefilled.append(self._waiting.popleft())
            self._done = 0
        return seconds

    def _look_up(self, job: Job) -> None:
        job.own_blocks = int(self._prefixes.match(job.request.keys)[0])
        job.cached = min(job.own_blocks * self._block_size, job.input_tokens - 1)

    def _admit(self, job: Job) -> None:
        """The prefill of a request begins: its memory is reserved, and its blocks are in the cache."""
        ledger, number = self._ledger, job.number
        ledger.prefill[number] = ledger.decode[number] = self.index
        ledger.placements[number] = 1
        ledger.start[number] = self._start
        ledger.reuse_blocks[number], ledger.device_tokens[number] = job.own_blocks, job.cached
        self._held += job.input_tokens + job.output_tokens
        if self._cache.capacity:
            self._cache.use(job.request.keys, job)
