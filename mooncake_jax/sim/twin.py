"""The simulated twin of a live cluster: passes and steps as its engine makes them, on a machine that its instances may share.

Beyond `Simulation` it knows three things that count where a step takes no longer than what happens around it:

- the engine dispatches `lookahead` decode steps ahead, so a request joins so many steps after its KV has come, less one;
- a pass computes all its prompts at once, and its cost follows from their tokens together;
- instances that share the cores of a machine slow each other down, a decode step for as long as the pass beside it lasts, and
  nothing takes the same time twice: every pass and step takes a factor of its own.
"""

from collections.abc import Callable
from heapq import heapify
from typing import Any

from mooncake_jax.sim.cluster import Simulation
from mooncake_jax.sim.decode import DecodeInstance
from mooncake_jax.sim.hardware import chunk_seconds
from mooncake_jax.sim.job import Job
from mooncake_jax.sim.passes import QueuedStage
from mooncake_jax.sim.prefill import PrefillInstance

Pace = Callable[[bool, bool], float]
"""Factor on the next pass or step: of a pass given whether decode works as it begins, of a step given whether requests join."""


class TwinDecode(DecodeInstance):
    """Steps one by one: as a loop,

    while True:
        alone = pace * decode_step_s(batch, context)
        step lasts `alone`, and of it what is done while a prefill instance works takes `sharing` times as long
        batch -= those that have all their tokens
        batch += requests that had arrived when `lookahead` - 1 steps fewer had ended, or all if the batch is empty
    """

    def behave(self, lookahead: int, pace: Pace, sharing: float, beside: Callable[[float], float]) -> None:
        """To be called before the first request. `beside(time)` tells how long from `time` on a prefill instance works."""
        self._pace, self._sharing, self._beside = pace, sharing, beside
        self._begun = [float("-inf")] * lookahead
        """When the last steps began, and the next one will have."""

    def _boundary(self) -> tuple[int, float]:
        if self.batch == 0:
            return super()._boundary()
        return 1, self._start + self._first

    def _change(self, steps: int, time: float) -> None:
        staying = self.batch - sum(step == self.log.steps + steps for step, _, _ in self._leaves)
        self._begun = [*self._begun[1:], time]
        in_time = self._begun[0] if staying else time
        late = [entry for entry in self._arrivals if entry[0] > in_time]
        self._arrivals = [entry for entry in self._arrivals if entry[0] <= in_time]
        heapify(self._arrivals)
        self._slowdown = self._pace(False, bool(self._arrivals))
        super()._change(steps, time)
        self._arrivals += late
        heapify(self._arrivals)

    def _lasting(self, time: float, seconds: float) -> float:
        shared = min(max(self._beside(time), 0.0), self._sharing * seconds)
        return seconds + shared - shared / self._sharing


class TwinStage(QueuedStage):
    """Passes of several prompts cost what one prompt of all their tokens costs; each has a pace of its own."""

    def behave(self, pace: Pace, beside: Callable[[float], bool]) -> None:
        """To be called before the first request. `beside(now)` tells whether a decode instance works."""
        self._pace, self._beside, self._now = pace, beside, 0.0
        self.worked: list[tuple[float, float]] = []
        """Start and end of all passes."""

    def _go_on(self, instance: PrefillInstance, now: float) -> None:
        self._now = now
        super()._go_on(instance, now)

    def _pass_seconds(self, jobs: list[Job]) -> list[float]:
        chunk = self._config.chunk_tokens
        if len(jobs) == 1:
            plain = chunk_seconds(self._hardware, jobs[0].input_tokens, jobs[0].cached, chunk)
        else:
            new = sum(job.input_tokens - job.cached for job in jobs)
            seen = round(sum(job.cached * (job.input_tokens - job.cached) for job in jobs) / new)
            plain = [self._hardware.prefill_s(seen + new, seen)]
        beside = self._beside(self._now)
        seconds = [self._pace(beside, False) * one for one in plain]
        self.worked.append((self._now, self._now + sum(seconds)))
        return seconds


class Twin(Simulation):
    """A simulation as a live cluster behaves. `prefill_pace` and `decode_pace` are drawn from for every pass and step.

    `decode_sharing`: how many times longer what a step does beside a pass takes than alone.
    """

    decode_type = TwinDecode

    def __init__(
        self, *args: Any, lookahead: int, prefill_pace: Pace, decode_pace: Pace, decode_sharing: float = 1.0, **kwargs: Any
    ):
        self._lookahead, self._decode_pace, self._sharing = lookahead, decode_pace, decode_sharing
        super().__init__(*args, **kwargs)
        self.stage = TwinStage(
            self.hardware,
            self.conductor.estimator,
            self.events,
            self.config.prefill,
            self.kv_bytes,
            self.config.block_size,
            self._prefilled,
            started=self._started,
        )
        self.stage.behave(prefill_pace, self._decoding)

    def new_decode(self, index: int) -> TwinDecode:
        instance = super().new_decode(index)
        instance.behave(self._lookahead, self._decode_pace, self._sharing, self._prefilling)
        return instance

    def _decoding(self, now: float) -> bool:
        for instance in self.decode:
            instance.advance(now)
        return any(instance.batch for instance in self.decode)

    def _prefilling(self, time: float) -> float:
        return max((end - time for start, end in self.stage.worked[-16:] if start <= time), default=0.0)
