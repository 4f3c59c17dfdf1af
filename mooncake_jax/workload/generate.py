"""A generator of conversations that look like the published conversation trace.

Arrival slots come first, at the configured rate; each slot is then taken by the session whose user has been ready with the next
turn for longest, or else by a new session. So the rate holds from the first second on, whatever the sessions do.

A turn's prompt is the whole prompt before, the answer to it, and new input. Full blocks keep their id from turn to turn; the
last, partial block of a prompt has an id of its own, since the next turn fills that block up with other tokens.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.workload.blocks import grown
from mooncake_jax.workload.trace import BLOCK_TOKENS, Trace, TraceRequest


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution: the logarithm is normal with mean log(median) and standard deviation sigma."""

    median: float
    """In the unit of the field that holds it."""
    sigma: float
    """Standard deviation of the natural logarithm; 0 makes every value the median."""

    def __post_init__(self) -> None:
        if not (0 < self.median < math.inf and 0 <= self.sigma < math.inf):
            raise UserError(f"A log-normal needs median > 0 and sigma >= 0, not median {self.median} and sigma {self.sigma}.")


@dataclass(frozen=True)
class Normal:
    """A normal distribution, cut below at 1."""

    mean: float
    """In the unit of the field that holds it."""
    std: float
    """Standard deviation, same unit; 0 makes every value the mean."""

    def __post_init__(self) -> None:
        if not (1 <= self.mean < math.inf and 0 <= self.std < math.inf):
            raise UserError(f"A length needs mean >= 1 and std >= 0, not mean {self.mean} and std {self.std}.")


@dataclass(frozen=True)
class GeneratorConfig:
    """What conversations to generate. The defaults resemble the published conversation trace (tests hold them to its figures).

    Raises UserError when a value is out of its range.
    """

    rate: float = 3.4
    """Requests a second, turns of all sessions together."""
    duration: float = 3600.0
    """Seconds of arrivals; the workload's `limit` may end the trace before."""
    burst_interval: float = 3.0
    """Requests arrive together in bursts this many seconds apart, of Poisson size; 0 gives a Poisson process."""
    sessions: int | None = None
    """At most this many sessions begin; None leaves `duration` and `limit` to end the trace."""
    turns: float = 1.66
    """Mean turns of a session (geometric), at least 1. More turns, more reuse."""
    think: LogNormal = LogNormal(123.0, 0.95)
    """Seconds from the arrival of a turn until the user sends the next one."""
    system_prompt: int = 885
    """Tokens at the start of every prompt that all sessions share; its full blocks have the same ids everywhere."""
    first_input: LogNormal = LogNormal(5_200.0, 1.22)
    """Tokens of a session's first user input (a document and a question)."""
    next_input: LogNormal = LogNormal(140.0, 2.1)
    """Tokens of each later user input."""
    output: Normal = Normal(345.0, 195.0)
    """Tokens of an answer. Not log-normal: in the trace the mean lies below the median."""
    max_input: int = 131_072
    """Tokens of the longest prompt: a first prompt is cut to it, a session that outgrows it ends."""

    def __post_init__(self) -> None:
        for name, right, needs in (
            ("rate", 0 < self.rate < math.inf, "more than 0 and finite"),
            ("duration", 0 < self.duration < math.inf, "more than 0 and finite"),
            ("burst_interval", 0 <= self.burst_interval < math.inf, "0 or more and finite"),
            ("sessions", self.sessions is None or self.sessions >= 1, "1 or more, or null"),
            ("turns", 1 <= self.turns < math.inf, "1 or more and finite"),
            ("system_prompt", self.system_prompt >= 0, "0 or more"),
            ("max_input", self.max_input > self.system_prompt, f"more than system_prompt ({self.system_prompt})"),
        ):
            if not right:
                raise UserError(f"workload.generator.{name} must be {needs}, but is {getattr(self, name)}.")


@dataclass
class _Session:
    name: str
    prompt: int
    """Tokens of the next prompt."""
    turns_left: int
    blocks: list[int] = field(default_factory=list)
    """Ids of the full blocks so far."""


def generate(config: GeneratorConfig, seed: int, limit: int | None = None) -> Trace:
    """Generates sessions as a trace of 512-token blocks, at most `limit` requests; the same seed gives the same trace.

    A smaller limit or duration gives a prefix of the same trace. Arrivals and contents draw from separate streams, so a change
    of lengths or turns leaves the arrival times as they are.

    Raises UserError when not one request arrives within `config.duration`.
    """
    arrivals_rng, rng = np.random.default_rng(seed).spawn(2)
    ids = count()
    system_blocks = [next(ids) for _ in range(config.system_prompt // BLOCK_TOKENS)]
    waiting: list[tuple[float, int, _Session]] = []
    begun = 0
    requests: list[TraceRequest] = []
    for arrival in _arrivals(config, arrivals_rng):
        if len(requests) == limit:
            break
        if waiting and waiting[0][0] <= arrival:
            session = heapq.heappop(waiting)[2]
        elif config.sessions is None or begun < config.sessions:
            prompt = min(config.system_prompt + _tokens(config.first_input, rng), config.max_input)
            session = _Session(f"s{begun:06d}", prompt, int(rng.geometric(1 / config.turns)), list(system_blocks))
            begun += 1
        elif waiting:
            continue
        else:
            break
        output = _tokens(config.output, rng)
        requests.append(TraceRequest(arrival, session.prompt, output, grown(session.blocks, session.prompt, ids), session.name))
        session.turns_left -= 1
        if session.turns_left:
            session.prompt += output + _tokens(config.next_input, rng)
            ready = arrival + _draw(config.think, rng)
            if session.prompt <= config.max_input:
                heapq.heappush(waiting, (ready, len(requests), session))
    if not requests:
        raise UserError(
            f"Not one request arrives in workload.generator.duration={config.duration} s at rate={config.rate}: raise either."
        )
    return Trace(tuple(requests))


def _arrivals(config: GeneratorConfig, rng: np.random.Generator) -> Iterator[float]:
    now = 0.0
    if config.burst_interval == 0:
        while (now := now + rng.exponential(1 / config.rate)) < config.duration:
            yield now
        return
    for burst in count():
        now = burst * config.burst_interval
        if now >= config.duration:
            return
        for _ in range(rng.poisson(config.rate * config.burst_interval)):
            yield now


def _tokens(lengths: LogNormal | Normal, rng: np.random.Generator) -> int:
    return max(1, round(_draw(lengths, rng)))


def _draw(distribution: LogNormal | Normal, rng: np.random.Generator) -> float:
    if isinstance(distribution, LogNormal):
        return float(rng.lognormal(np.log(distribution.median), distribution.sigma))
    return float(rng.normal(distribution.mean, distribution.std))
