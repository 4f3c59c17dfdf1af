"""Instances that die and come back, and what becomes of their requests."""

from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING

from mooncake_jax.sim.config import Failure
from mooncake_jax.sim.decode import DecodeInstance
from mooncake_jax.sim.job import Job
from mooncake_jax.types import Status

if TYPE_CHECKING:
    from mooncake_jax.sim.cluster import Simulation


class Failures:
    """The failures that the settings of `simulation` name."""

    def __init__(self, simulation: "Simulation"):
        self._sim = simulation

    def schedule(self) -> None:
        """To be called before the first request."""
        for failure in self._sim.config.failures:
            self._sim.events.later(failure.at, lambda now, failure=failure: self._fail(failure, now))

    def _fail(self, failure: Failure, now: float) -> None:
        role, _, index = failure.instance.rpartition("-")
        if role == "prefill":
            kill, revive, instances = self._kill_prefill, self._sim.new_prefill, self._sim.prefill
        else:
            kill, revive, instances = self._kill_decode, self._sim.new_decode, self._sim.decode
        if not instances[int(index)].alive:
            return

        def back(time: float) -> None:
            instances[int(index)] = revive(int(index))
            self._sim.changed()

        if failure.seconds is not None:
            self._sim.events.later(now + failure.seconds, back)
        kill(int(index), now)

    def _kill_prefill(self, index: int, now: float) -> None:
        """Its queue, its cache, and the KV that it was still sending are lost; who waited for them is served again."""
        self._sim.changed()
        instance = self._sim.prefill[index]
        instance.alive = False
        self._sim.index.clear(index)
        waiting = [*instance.running, *instance.queue]
        sending = [
            job
            for job in self._sim.jobs.values()
            if job.prefill == index and job.finish is not None and not self._sim.ledger.sent[job.number] <= now
        ]
        for job in instance.running:
            self._sim.ledger.prefill_s[job.number] += job.compute * min((now - job.start) / job.service, 1.0)
        for job in waiting:
            self._sim.stage.lose(job, instance, now)
        for job in [*waiting, *sending]:
            job.lost = True
            if job.decode is not None and self._sim.decode[job.decode].alive:
                self._sim.decode[job.decode].withdraw(job, int(self._sim.at_prefill and job.finish is not None))
        for job in sorted([*waiting, *sending], key=lambda job: job.serial):
            self._again(job, int(job.finish is not None and self._sim.at_prefill), now)

    def _kill_decode(self, index: int, now: float) -> None:
        """The KV of all its requests is lost; they are prefilled again, with the tokens they have."""
        self._sim.changed()
        instance = self._sim.decode[index]
        instance.advance(now)
        victims = [job for job in self._sim.jobs.values() if job.decode == index]
        tokens = [instance.context_of(job, now) - job.input_tokens for job in victims]
        for job, got in zip(victims, tokens):
            if job.joined_step >= 0:
                self._cut(job, instance, got, now)
            elif got and not self._sim.at_prefill:
                # Its first token left when its KV was there, though no step has begun since.
                self._sim.token(job.number, instance.loaded(job, now))
        instance.die(now)
        for job in victims:
            if job.finish is None:
                self._sim.stage.lose(job, self._sim.prefill[job.prefill], now)
            job.lost = True
        for job, got in zip(victims, tokens):
            self._again(job, got, now)

    def _cut(self, job: Job, instance: DecodeInstance, got: int, now: float) -> None:
        """Of the run that began when the job joined only `got` - 1 steps took place."""
        ledger = self._sim.ledger
        steps = got - 1
        ledger.generated[job.number] += steps
        ledger.shorten(job.run, steps)
        if steps:
            ledger.last[job.number] = instance.last_step_end(now)

    def _again(self, job: Job, got: int, now: float) -> None:
        """Places a request again that has lost its KV after `got` tokens, or fails it."""
        del_job = self._sim.jobs.pop(job.serial, None)
        number, request = job.number, job.request
        self._sim.ledger.sent[number] = nan
        self._sim.cancel_transfers(job, now)
        if self._sim.ledger.placements[number] >= self._sim.config.tries:
            self._sim.end(number, Status.FAILED, now, f"lost its instance {self._sim.config.tries} times")
            return
        if got and del_job is not None:
            whole = request.input_tokens // self._sim.config.block_size
            tokens = request.input_tokens + got
            blocks = -(-tokens // self._sim.config.block_size)
            fresh = tuple(-1 - next(self._sim.events.serial) for _ in range(blocks - whole))
            request = replace(
                request, input_tokens=tokens, output_tokens=request.output_tokens - got, keys=request.keys[:whole] + fresh
            )
        self._sim.moved()
        self._sim.place(number, request, now)
