"""A decode instance: continuous batching, advanced only as far as someone asks, at a cost of joins and leaves, not of tokens.

Stated as a loop (DESIGN, Semantics of time), the instance does this:

    while True:
        wait until a request has arrived, if none is in the batch
        batch += all requests that have arrived
        step lasts decode_step_s(len(batch), sum(n + generated)); then each member has one token more
        batch -= those that have all their tokens
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from mooncake_jax.sched import DecodeLine, HardwareModel
from mooncake_jax.sim.job import Job
from mooncake_jax.sim.steps import StepLog, series_s, steps_within


class DecodeInstance:
    """One instance. `capacity_tokens` bounds the KV it holds (None: no bound): a request reserves n + o tokens before it loads.

    `joined(job, life, loaded, second)` hears that a request whose KV was loaded at `loaded` joined the batch and got its second
    token at `second`; `ended(job, time)` that it has its last. Both are called when `advance` passes the time at which it
    joined or ended.
    """

    def __init__(
        self,
        name: str,
        life: int,
        hardware: HardwareModel,
        joined: Callable[[Job, int, float, float], None],
        ended: Callable[[Job, float], None],
        load_s_per_token: float = 0.0,
        capacity_tokens: int | None = None,
        slowdown: float = 1.0,
        first_at_prefill: bool = False,
    ):
        self.name = name
        self.life = life
        """Number of its log: an instance that comes back after a failure begins another."""
        self.alive = True
        self.draining = False
        self._line = hardware.decode_line
        self._lines: dict[int, DecodeLine] = {}
        self._joined, self._ended = joined, ended
        self._load_s_per_token = load_s_per_token
        self._capacity = capacity_tokens
        self._slowdown = slowdown
        self._counts_first = first_at_prefill
        self.log = StepLog()
        self.assigned = 0
        """Requests placed here and not finished."""
        self.outside = 0
        """Tokens (n + generated) of those among them that are not in the batch."""
        self.batch = 0
        self._context = 0
        self._start = 0.0
        self._first = self._rise = 0.0
        self._leaves: list[tuple[int, int, Job]] = []
        self._arrivals: list[tuple[float, int, Job]] = []
        self._next_change = inf
        self._held = 0
        self._queue: deque[Job] = deque()
        self._in_dram: list[tuple[float, int, Job]] = []

    def expect(self, job: Job) -> None:
        """The request is placed here; its KV will come."""
        self.assigned += 1
        self.outside += job.input_tokens

    def forget(self, job: Job, generated: int) -> None:
        """A request that has not joined the batch will not come after all."""
        self.assigned -= 1
        self.outside -= job.input_tokens + generated

    def withdraw(self, job: Job, generated: int) -> None:
        """The same for one whose KV may be on its way, or waiting."""
        self.forget(job, generated)
        self._arrivals = [entry for entry in self._arrivals if entry[2] is not job]
        self._in_dram = [entry for entry in self._in_dram if entry[2] is not job]
        self._queue = deque(one for one in self._queue if one is not job)
        heapify(self._arrivals)
        heapify(self._in_dram)
        self._next_change = -inf

    def last_step_end(self, now: float) -> float:
        """When the last step ended, after `advance(now)`."""
        steps = steps_within(self._first, self._rise, now - self._start)
        return self._start + series_s(self._first, self._rise, steps)

    def loaded(self, job: Job, now: float) -> float | None:
        """When the KV of a request that has not joined the batch was loaded, after `advance(now)`; None if it is not."""
        return next((time for time, _, one in self._arrivals if one is job and time <= now), None)

    def die(self, now: float) -> None:
        """The step under way at `now` will not end, and everything here is lost. After `advance(now)`."""
        self.alive = False
        if self.batch:
            steps = steps_within(self._first, self._rise, now - self._start)
            self.log.steps += steps
        self.assigned = self.outside = self.batch = self._context = self._held = 0
        self._next_change = inf
        for waiting in (self._leaves, self._arrivals, self._in_dram, self._queue):
            waiting.clear()

    def arrive(self, time: float, job: Job) -> None:
        """The request's KV reaches the instance's DRAM at `time`, not before the last `advance`, and is then loaded.

        With `first_at_prefill` its first token has left and is in `outside` already; else it leaves when the KV is loaded.
        """
        if self._capacity is not None:
            heappush(self._in_dram, (time, job.serial, job))
            self._next_change = -inf
            return
        loaded = time + job.input_tokens * self._load_s_per_token
        heappush(self._arrivals, (loaded, job.serial, job))
        if loaded < self._next_change:
            self._next_change = -inf

    def tokens(self, now: float) -> int:
        """Sum of (n + tokens generated so far) over requests assigned and not finished, after `advance(now)`."""
        tokens = self.outside + self._context
        if not self._counts_first:
            for entry in self._arrivals:
                tokens += entry[0] <= now
        if self.batch:
            tokens += self.batch * steps_within(self._first, self._rise, now - self._start)
        return tokens

    def context_of(self, job: Job, now: float) -> int:
        """n + tokens generated so far of one assigned request, after `advance(now)`."""
        if job.joined_step < 0:
            if self._counts_first and job.finish is not None:
                return job.input_tokens + 1
            return job.input_tokens + any(entry[2] is job and entry[0] <= now for entry in self._arrivals)
        done = self.log.steps + steps_within(self._first, self._rise, now - self._start)
        return job.input_tokens + 1 + done - job.joined_step

    def advance(self, now: float) -> None:
        """Everything up to and including the time `now`."""
        if now < self._next_change:
            return
        while True:
            steps, time = self._boundary()
            if self._in_dram and self._in_dram[0][0] < time:
                arrived = self._in_dram[0][0]
                if arrived > now:
                    self._next_change = arrived
                    return
                self._queue.append(heappop(self._in_dram)[2])
                self._load(arrived)
            elif time > now or time == inf:
                self._next_change = time
                return
            else:
                self._change(steps, time)

    def _boundary(self) -> tuple[int, float]:
        """The next change of the batch as things stand: steps from the segment's start, and time (inf: there is none)."""
        arrivals = self._arrivals
        if self.batch == 0:
            return (0, arrivals[0][0]) if arrivals else (0, inf)
        steps = self._leaves[0][0] - self.log.steps
        if arrivals:
            waited = arrivals[0][0] - self._start
            join = steps_within(self._first, self._rise, waited)
            if series_s(self._first, self._rise, join) < waited:
                join += 1
            if join < steps:
                steps = join
        return steps, self._start + series_s(self._first, self._rise, steps)

    def _change(self, steps: int, time: float) -> None:
        """At `time`, `steps` steps into the segment: requests leave and join, and another segment begins."""
        log, leaves, arrivals = self.log, self._leaves, self._arrivals
        log.steps += steps
        here = log.steps
        batch = self.batch
        context = self._context + batch * steps
        while leaves and leaves[0][0] == here:
            job = heappop(leaves)[2]
            batch -= 1
            context -= job.input_tokens + job.output_tokens
            self.assigned -= 1
            if self._capacity is not None:
                self._release(job, time)
            self._ended(job, time)
        joined, counted_first = None, int(self._counts_first)
        while arrivals and arrivals[0][0] <= time:
            loaded, serial, job = heappop(arrivals)
            batch += 1
            context += job.input_tokens + 1
            self.outside -= job.input_tokens + counted_first
            job.joined_step = here
            heappush(leaves, (here + job.output_tokens - 1, serial, job))
            if joined is None:
                joined = [(job, loaded)]
            else:
                joined.append((job, loaded))
        self.batch, self._context, self._start = batch, context, time
        if batch:
            line = self._lines.get(batch)
            if line is None:
                line = self._lines[batch] = self._line(batch)
            self._rise = line.seconds_per_token * batch * self._slowdown
            self._first = self._lasting(time, (line.seconds + line.seconds_per_token * context) * self._slowdown)
            log.open(time, self._first, self._rise)
            if joined is not None:
                second = time + self._first
                for job, loaded in joined:
                    self._joined(job, self.life, loaded, second)

    def _lasting(self, time: float, seconds: float) -> float:
        """How long a step takes that begins at `time` and would take `seconds` alone on its machine."""
        return seconds

    # --- a bound on memory ------------------------------------------------------------------------------------------

    def _load(self, time: float) -> None:
        """Requests in DRAM reserve memory, first come first served, and load; one that is larger than all of it goes alone."""
        while self._queue:
            job = self._queue[0]
            needed = job.input_tokens + job.output_tokens
            if self._held and self._held + needed > self._capacity:
                return
            self._queue.popleft()
            self._held += needed
            loaded = time + job.input_tokens * self._load_s_per_token
            heappush(self._arrivals, (loaded, job.serial, job))

    def _release(self, job: Job, time: float) -> None:
        self._held -= job.input_tokens + job.output_tokens
        self._load(time)
