"""The vLLM-like baselines simulated the slow way: N instances that both prefill and decode, one iteration at a time.

Each instance alternates iterations. *Prefill first*: while a waiting prompt fits, an iteration prefills whole prompts; else it
is one decode step of all that run. *Chunked*: every iteration is one token for each that runs plus a chunk of the prompt at the
head of the queue. At one instant the order is: iterations end, requests arrive and are routed, iterations start.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mooncake_jax.types import Request
from tests.sim.plain import LLAMA3_70B, PlainCost, leading, mean_of_longest_tenth, touch, usable

ROUTERS = ("round_robin", "least_tokens")


@dataclass(frozen=True)
class PlainCoupled:
    instances: int
    cost: PlainCost = LLAMA3_70B
    router: str = "round_robin"
    max_batched_tokens: int = 8192
    """Uncached tokens of one prefill iteration; one prompt always fits."""
    chunked: int | None = None
    """Token budget of an iteration; None is prefill first."""
    capacity_tokens: int | None = None
    """KV memory of an instance: a request holds n + o from its first iteration until it ends."""
    block_size: int = 512
    cache_blocks: int = 0
    """Capacity of the prefix cache of an instance; 0 is none."""


@dataclass(frozen=True)
class PlainCoupledOutcome:
    """One entry a request, in the order given."""

    instance: np.ndarray
    ttft: np.ndarray
    tbt: np.ndarray
    finished: np.ndarray
    cached: np.ndarray
    token_times: list[list[float]]


@dataclass(eq=False)
class _Life:
    n: int
    o: int
    keys: Sequence[int]
    arrival: float
    instance: int = -1
    cached: int = 0
    started: bool = False
    """Memory is held and the prefix looked up."""
    done: int = 0
    """Prompt tokens whose KV exists."""
    generated: int = 0
    finished: float = math.nan
    times: list[float] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.n + self.generated

    def token(self, now: float) -> None:
        self.generated += 1
        self.times.append(now)


class _Instance:
    def __init__(self, config: PlainCoupled):
        self.config, self.cost = config, config.cost
        self.waiting: deque[_Life] = deque()
        self.running: list[_Life] = []
        self.cache: OrderedDict[int, float] = OrderedDict()
        self.held = 0
        self.end = math.inf
        # Of the iteration under way: requests whose prompt it completes, and whether those that run get a token.
        self.prefilled: list[_Life] = []
        self.stepping = False

    def unfinished_tokens(self) -> int:
        return sum(life.context for life in [*self.waiting, *self.prefilled, *self.running])

    def fits(self, life: _Life) -> bool:
        memory = self.config.capacity_tokens
        return life.started or memory is None or self.held + life.n + life.o <= memory

    def prefix(self, life: _Life) -> int:
        return usable(leading(self.cache, life.keys), self.config.block_size, life.n)

    def start_prompt(self, life: _Life) -> None:
        life.started = True
        life.cached = life.done = self.prefix(life)
        self.held += life.n + life.o
        touch(self.cache, life.keys, self.config.cache_blocks, 0.0)

    def start(self, now: float) -> None:
        duration = self.start_chunked() if self.config.chunked is not None else self.start_prefill_first()
        self.end = math.inf if duration is None else now + duration

    def start_prefill_first(self) -> float | None:
        uncached = 0
        duration = 0.0
        while self.waiting and self.fits(self.waiting[0]):
            fresh = self.waiting[0].n - self.prefix(self.waiting[0])
            if self.prefilled and uncached + fresh > self.config.max_batched_tokens:
                break
            life = self.waiting.popleft()
            self.start_prompt(life)
            uncached += fresh
            duration += self.cost.prefill_s(life.n, life.cached)
            self.prefilled.append(life)
        if self.prefilled:
            return duration - (len(self.prefilled) - 1) * self.cost.prefill_s(0, 0)
        if self.running:
            self.stepping = True
            return self.step_s()
        return None

    def start_chunked(self) -> float | None:
        self.stepping = bool(self.running)
        duration = self.step_s() if self.stepping else 0.0
        room = self.config.chunked - len(self.running)
        if room < 1 or not self.waiting or not self.fits(self.waiting[0]):
            return duration if self.stepping else None
        life = self.waiting[0]
        if not life.started:
            self.start_prompt(life)
        chunk = min(room, life.n - life.done)
        duration += self.cost.prefill_s(life.done + chunk, life.done)
        life.done += chunk
        if life.done == life.n:
            self.prefilled.append(self.waiting.popleft())
        return duration

    def step_s(self) -> float:
        return self.cost.decode_step_s(len(self.running), sum(life.context for life in self.running))

    def finish(self, now: float) -> None:
        if self.stepping:
            for life in self.running:
                life.token(now)
        for life in self.prefilled:
            life.token(now)
        self.running += self.prefilled
        self.prefilled, self.stepping, self.end = [], False, math.inf
        for life in self.running:
            if life.generated == life.o:
                life.finished = now
                self.held -= life.n + life.o
        self.running = [life for life in self.running if life.generated < life.o]


def simulate_plain_coupled(requests: Sequence[Request], config: PlainCoupled) -> PlainCoupledOutcome:
    """Every request's fate on coupled instances; all complete."""
    if config.router not in ROUTERS:
        raise ValueError(f"unknown router={config.router}")
    if config.capacity_tokens is not None:
        for request in requests:
            if request.input_tokens + request.output_tokens > config.capacity_tokens:
                raise ValueError(f"request {request.id} never fits capacity_tokens={config.capacity_tokens}")
    lives = [_Life(request.input_tokens, request.output_tokens, request.keys, request.arrival) for request in requests]
    coming = deque(sorted(lives, key=lambda life: life.arrival))
    instances = [_Instance(config) for _ in range(config.instances)]
    routed = 0
    while True:
        now = min(coming[0].arrival if coming else math.inf, *(instance.end for instance in instances))
        if now == math.inf:
            break
        for instance in instances:
            if instance.end == now:
                instance.finish(now)
        while coming and coming[0].arrival == now:
            life = coming.popleft()
            loads = [instance.unfinished_tokens() for instance in instances]
            life.instance = routed % config.instances if config.router == "round_robin" else loads.index(min(loads))
            routed += 1
            instances[life.instance].waiting.append(life)
        for instance in instances:
            if instance.end == math.inf:
                instance.start(now)
    return PlainCoupledOutcome(
        instance=np.array([life.instance for life in lives], int),
        ttft=np.array([life.times[0] - life.arrival for life in lives], float),
        tbt=np.array([mean_of_longest_tenth(life.times) for life in lives], float),
        finished=np.array([life.finished for life in lives], float),
        cached=np.array([life.cached for life in lives], int),
        token_times=[life.times for life in lives],
    )
