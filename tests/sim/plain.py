"""A disaggregated cluster simulated the slow way: every decode step is one event, every number one Python float.

The real simulator is held to this one, so they share no code: pairing, admission and cache are written again as loops. A
request is prefilled first come, first served; its KV moves; a continuous batch decodes it. At one instant the order is: step
ends, KV arrivals, prefill finishes (the earlier request first), request arrivals (as given).
"""

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mooncake_jax.types import SLO, Request, Status

POLICIES = ("random", "round_robin", "load_balance", "cache_aware", "kvcache_centric")
ADMISSIONS = ("accept_all", "early_rejection", "stage_by_stage", "predictive")
PAPER_SLO = SLO(ttft=30.0, tbt=0.1)


@dataclass(frozen=True)
class PlainCost:
    """Seconds by closed forms: prefill = c + a·(n−p) + b·(n²−p²); a decode step = c + s·batch + t·Σcontext."""

    prefill_constant: float = 0.0
    prefill_linear: float = 1.1461e-4
    prefill_quadratic: float = 7.192e-10
    decode_constant: float = 0.02629
    decode_sequence: float = 0.0
    decode_token: float = 3.445e-8
    kv_bytes: float = 327_680.0
    """A token."""
    bandwidth: float = 87e9
    """Bytes a second, node to node."""
    h2d: float = 100e9
    """Bytes a second, host to device."""

    def prefill_s(self, tokens: int, cached: int) -> float:
        quadratic = self.prefill_quadratic * (tokens * tokens - cached * cached)
        return self.prefill_constant + self.prefill_linear * (tokens - cached) + quadratic

    def decode_step_s(self, batch: float, context: float) -> float:
        return self.decode_constant + self.decode_sequence * batch + self.decode_token * context

    def move_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes / self.bandwidth

    def load_s(self, tokens: int) -> float:
        return tokens * self.kv_bytes / self.h2d


LLAMA3_70B = PlainCost()
"""On eight A800s."""


@dataclass(frozen=True)
class PlainCluster:
    prefill: int
    decode: int
    block_size: int
    capacity: int
    """Blocks of the cache at each prefill instance."""
    cost: PlainCost = LLAMA3_70B
    first_token: str = "prefill"
    """Where the first token leaves: `prefill` or `decode`."""


@dataclass(frozen=True)
class PlainOutcome:
    """One entry a request, in the order given. No instance, no source: -1. No first token: NaN.

    A request rejected at arrival reuses and computes nothing, and finishes when it arrives.
    """

    status: list[Status]
    prefill: np.ndarray
    decode: np.ndarray
    ttft: np.ndarray
    tbt: np.ndarray
    finished: np.ndarray
    host: np.ndarray
    """Tokens reused from the cache of the prefill instance itself."""
    peer: np.ndarray
    """Tokens fetched from another prefill instance."""
    computed: np.ndarray
    reuse: np.ndarray
    """Leading blocks present at the prefill instance."""
    fetch_source: np.ndarray
    fetch_blocks: np.ndarray
    """Leading blocks present at the source, 0 without a fetch."""
    token_times: list[list[float]]


@dataclass(eq=False)
class _Life:
    """A request on its way."""

    n: int
    o: int
    arrival: float
    status: Status = Status.COMPLETED
    prefill: int = -1
    decode: int = -1
    ttft: float = math.nan
    finished: float = math.nan
    host: int = 0
    peer: int = 0
    computed: int = 0
    reuse: int = 0
    source: int = -1
    fetch_blocks: int = 0
    service: float = 0.0
    finish: float = math.inf
    prefilled: bool = False
    generated: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.n + self.generated

    def first_token(self, now: float) -> None:
        self.generated = 1
        self.times.append(now)
        self.ttft = now - self.arrival


@dataclass(frozen=True)
class _Choice:
    prefill: int
    ttft: float
    own: int
    """Leading blocks at the chosen instance."""
    best: int
    """Leading blocks after the fetch; equal to `own` without one."""
    source: int


def usable(blocks: int, block_size: int, tokens: int) -> int:
    """At least one token of a prompt is always computed."""
    return min(blocks * block_size, tokens - 1)


def leading(cache: OrderedDict[int, float], keys: Sequence[int]) -> int:
    count = 0
    while count < len(keys) and keys[count] in cache:
        count += 1
    return count


def touch(cache: OrderedDict[int, float], keys: Sequence[int], capacity: int, available: float) -> None:
    for key in keys:
        if key in cache:
            cache.move_to_end(key)
        else:
            cache[key] = available
            while len(cache) > capacity:
                cache.popitem(last=False)


def mean_of_longest_tenth(times: Sequence[float]) -> float:
    intervals = sorted((later - earlier for earlier, later in pairwise(times)), reverse=True)
    count = -(-len(intervals) // 10)
    return math.fsum(intervals[:count]) / count if count else 0.0


class _Cluster:
    def __init__(self, cluster: PlainCluster, policy: str, admission: str, threshold, balancing_threshold, t_d, slo, seed):
        if policy not in POLICIES or admission not in ADMISSIONS or cluster.first_token not in ("prefill", "decode"):
            raise ValueError(f"unknown policy={policy}, admission={admission} or first_token={cluster.first_token}")
        self.cluster, self.cost, self.policy, self.admission = cluster, cluster.cost, policy, admission
        self.threshold, self.balancing_threshold, self.t_d, self.slo = threshold, balancing_threshold, t_d, slo
        self.rng, self.turn = random.Random(seed), 0
        self.free_at = [0.0] * cluster.prefill
        self.caches: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(cluster.prefill)]
        self.in_prefill: list[tuple[float, int, _Life]] = []
        self.moving: list[tuple[float, int, _Life]] = []
        self.assigned: list[list[_Life]] = [[] for _ in range(cluster.decode)]
        self.arrived: list[list[_Life]] = [[] for _ in range(cluster.decode)]
        self.running: list[list[_Life]] = [[] for _ in range(cluster.decode)]
        self.step_end = [math.inf] * cluster.decode

    # --- decisions -------------------------------------------------------------------------------------------------

    def choose_prefill(self, request: Request, now: float) -> _Choice:
        n, size, count = request.input_tokens, self.cluster.block_size, self.cluster.prefill
        own = [leading(cache, request.keys) for cache in self.caches]
        best = max(own)
        source = own.index(best)
        queue = [max(free - now, 0.0) for free in self.free_at]
        estimate, reach = [], []
        for j in range(count):
            p_own, p_best = usable(own[j], size, n), usable(best, size, n)
            far = best > 0 and (own[j] == 0 or best / own[j] > self.balancing_threshold)
            if self.policy == "kvcache_centric" and far:
                estimate.append(self.cost.move_s(p_best - p_own) + queue[j] + self.cost.prefill_s(n, p_best))
                reach.append(best)
            else:
                estimate.append(queue[j] + self.cost.prefill_s(n, p_own))
                reach.append(own[j])
        if self.policy == "random":
            chosen = int(self.rng.random() * count)
        elif self.policy == "round_robin":
            chosen = self.turn
            self.turn = (self.turn + 1) % count
        elif self.policy == "load_balance":
            chosen = queue.index(min(queue))
        else:
            chosen = estimate.index(min(estimate))
        return _Choice(chosen, estimate[chosen], own[chosen], reach[chosen], source if reach[chosen] > own[chosen] else -1)

    def choose_decode(self) -> int:
        loads = [sum(life.context for life in lives) for lives in self.assigned]
        return loads.index(min(loads))

    def predicted_decode_load(self, life: _Life, t: float) -> float:
        """Mean over decode instances of predicted TBT / SLO at time t, if this request is taken too."""
        coming = [other.n for _, _, other in self.in_prefill if other.o > 1 and other.finish <= t]
        if life.o > 1:
            coming.append(life.n)
        loads = []
        for lives in self.assigned:
            staying = [other for other in lives if other.prefilled and not t - other.finish > self.t_d]
            batch = len(staying) + len(coming) / self.cluster.decode
            context = sum(other.context for other in staying) + sum(coming) / self.cluster.decode
            loads.append(self.cost.decode_step_s(batch, context) / self.slo.tbt)
        return sum(loads) / len(loads)

    def admits(self, life: _Life, decode: int, ttft: float, now: float) -> bool:
        prefill_load = ttft / self.slo.ttft
        if self.admission == "accept_all":
            return True
        if self.admission == "stage_by_stage":
            return prefill_load <= self.threshold
        if self.admission == "predictive":
            return max(prefill_load, self.predicted_decode_load(life, now + ttft)) <= self.threshold
        lives = self.assigned[decode]
        context = sum(other.context for other in lives) + life.n
        tbt = self.cost.decode_step_s(len(lives) + 1, context) if life.o > 1 else 0.0
        return max(prefill_load, tbt / self.slo.tbt) <= self.threshold

    def decodes_in_time(self, life: _Life) -> bool:
        """The second check of stage_by_stage, when the prefill of a request has finished."""
        there = [other for other in self.assigned[life.decode] if other.prefilled and other is not life]
        tbt = self.cost.decode_step_s(len(there) + 1, sum(other.context for other in there) + life.n)
        return tbt / self.slo.tbt <= self.threshold

    # --- events ----------------------------------------------------------------------------------------------------

    def arrive(self, index: int, request: Request, life: _Life, now: float) -> None:
        choice = self.choose_prefill(request, now)
        decode = self.choose_decode()
        if not self.admits(life, decode, choice.ttft, now):
            life.status, life.finished = Status.REJECTED, now
            return
        j, size = choice.prefill, self.cluster.block_size
        p_own, p = usable(choice.own, size, life.n), usable(choice.best, size, life.n)
        ready = now
        if choice.source >= 0:
            there = self.caches[choice.source]
            ready = max([now, *(there[key] for key in request.keys[choice.own : choice.best])]) + self.cost.move_s(p - p_own)
        life.service = self.cost.prefill_s(life.n, p)
        life.finish = max(self.free_at[j], now, ready) + life.service
        self.free_at[j] = life.finish
        touch(self.caches[j], request.keys, self.cluster.capacity, life.finish)
        life.prefill, life.reuse, life.source = j, choice.own, choice.source
        life.fetch_blocks = choice.best if choice.source >= 0 else 0
        life.host, life.peer, life.computed = p_own, p - p_own, life.n - p
        if life.o > 1:
            life.decode = decode
            self.assigned[decode].append(life)
        heapq.heappush(self.in_prefill, (life.finish, index, life))

    def finish_prefill(self, index: int, life: _Life, now: float) -> None:
        life.prefilled = True
        if life.o == 1:
            life.first_token(now)
            life.finished = now
            return
        if self.admission == "stage_by_stage" and not self.decodes_in_time(life):
            life.status, life.finished = Status.REJECTED, now
            self.assigned[life.decode].remove(life)
            return
        if self.cluster.first_token == "prefill":
            life.first_token(now)
        late = max(0.0, self.cost.move_s(life.n) - life.service)
        heapq.heappush(self.moving, (now + late + self.cost.load_s(life.n), index, life))

    def end_step(self, d: int, now: float) -> None:
        for life in self.running[d]:
            life.generated += 1
            life.times.append(now)
            if life.generated == life.o:
                life.finished = now
                self.assigned[d].remove(life)
        self.running[d] = [life for life in self.running[d] if life.generated < life.o]
        self.step_end[d] = math.inf

    def start_steps(self, now: float) -> None:
        for d in range(self.cluster.decode):
            if self.step_end[d] == math.inf:
                self.running[d] += self.arrived[d]
                self.arrived[d] = []
                if self.running[d]:
                    context = sum(life.context for life in self.running[d])
                    self.step_end[d] = now + self.cost.decode_step_s(len(self.running[d]), context)

    def run(self, requests: Sequence[Request]) -> list[_Life]:
        lives = [_Life(request.input_tokens, request.output_tokens, request.arrival) for request in requests]
        coming = sorted(range(len(requests)), key=lambda index: requests[index].arrival)
        while True:
            next_arrival = requests[coming[0]].arrival if coming else math.inf
            next_finish = self.in_prefill[0][0] if self.in_prefill else math.inf
            next_kv = self.moving[0][0] if self.moving else math.inf
            now = min(next_arrival, next_finish, next_kv, *self.step_end)
            if now == math.inf:
                return lives
            for d in range(self.cluster.decode):
                if self.step_end[d] == now:
                    self.end_step(d, now)
            while self.moving and self.moving[0][0] == now:
                _, _, life = heapq.heappop(self.moving)
                if self.cluster.first_token == "decode":
                    life.first_token(now)
                self.arrived[life.decode].append(life)
            self.start_steps(now)
            while self.in_prefill and self.in_prefill[0][0] == now:
                _, index, life = heapq.heappop(self.in_prefill)
                self.finish_prefill(index, life, now)
            while coming and requests[coming[0]].arrival == now:
                index = coming.pop(0)
                self.arrive(index, requests[index], lives[index], now)


def simulate_plain(
    requests: Sequence[Request],
    cluster: PlainCluster,
    policy: str,
    admission: str = "accept_all",
    *,
    threshold: float = 1.0,
    balancing_threshold: float = 1.5,
    t_d: float = 10.0,
    slo: SLO = PAPER_SLO,
    seed: int = 0,
) -> PlainOutcome:
    """Every request's fate under one pairing policy and one admission policy.

    `threshold` is the admission's, `balancing_threshold` of kvcache_centric, `t_d` (seconds) of predictive, `seed` of random.
    """
    lives = _Cluster(cluster, policy, admission, threshold, balancing_threshold, t_d, slo, seed).run(requests)
    return PlainOutcome(
        status=[life.status for life in lives],
        prefill=np.array([life.prefill for life in lives], int),
        decode=np.array([life.decode for life in lives], int),
        ttft=np.array([life.ttft for life in lives], float),
        tbt=np.array([mean_of_longest_tenth(life.times) if life.times else math.nan for life in lives], float),
        finished=np.array([life.finished for life in lives], float),
        host=np.array([life.host for life in lives], int),
        peer=np.array([life.peer for life in lives], int),
        computed=np.array([life.computed for life in lives], int),
        reuse=np.array([life.reuse for life in lives], int),
        fetch_source=np.array([life.source for life in lives], int),
        fetch_blocks=np.array([life.fetch_blocks for life in lives], int),
        token_times=[life.times for life in lives],
    )
