"""Clusters, policies and traces on which the simulators must agree: random small ones, and the published traces.

Random lengths and gaps are small integers, so a failing case shrinks to a readable one; coefficients are arbitrary decimals,
so no two events coincide unless two instances do the very same.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hypothesis import strategies as st

from mooncake_jax.types import SLO, Request
from tests.sim.plain import ADMISSIONS, POLICIES, PlainCluster, PlainCost
from tests.sim.plain_coupled import ROUTERS, PlainCoupled

COST = PlainCost(
    prefill_constant=0.00413,
    prefill_linear=0.001733,
    prefill_quadratic=3.137e-6,
    decode_constant=0.013711,
    decode_sequence=0.000917,
    decode_token=1.3171e-5,
    kv_bytes=1.0,
    bandwidth=1 / 0.000731,
    h2d=1 / 0.000211,
)
SLOW_NETWORK = replace(COST, bandwidth=1 / 0.004177)
GAP = 0.00313


SMALL_SLO = SLO(ttft=0.6271, tbt=0.01931)

type Row = tuple[float, int, int, tuple[int, ...]]
"""Arrival, input tokens, output tokens, keys."""


def requests_of(rows: tuple[Row, ...]) -> tuple[Request, ...]:
    return tuple(Request(f"r{index:06d}", *row) for index, row in enumerate(rows))


@dataclass(frozen=True)
class Case:
    rows: tuple[Row, ...]
    cluster: PlainCluster
    policy: str
    admission: str = "accept_all"
    threshold: float = 1.0
    balancing_threshold: float = 1.5
    t_d: float = 10.0
    slo: SLO = SMALL_SLO
    seed: int = 0

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        return requests_of(self.rows)


@dataclass(frozen=True)
class CoupledCase:
    rows: tuple[Row, ...]
    cluster: PlainCoupled

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        return requests_of(self.rows)


@st.composite
def small_traces(draw: Callable, block_size: int) -> tuple[Row, ...]:
    """5 to 60 requests, some at the same instant, whose prompts share the head of one of three documents."""
    numbers = st.tuples(st.integers(0, 40), st.integers(1, 200), st.integers(1, 40), st.integers(0, 2), st.integers(0, 50))
    count = draw(st.integers(5, 60))
    rows, ticks = [], 0
    for index, (gap, n, o, document, shared) in enumerate(draw(st.lists(numbers, min_size=count, max_size=count))):
        ticks += gap
        blocks = -(-n // block_size)
        head = range(1000 * document, 1000 * document + min(shared, blocks))
        own = range(10_000 + 1000 * index, 10_000 + 1000 * index + blocks - len(head))
        rows.append((ticks * GAP, n, o, (*head, *own)))
    return tuple(rows)


@st.composite
def small_cases(draw: Callable) -> Case:
    block_size = draw(st.sampled_from([4, 16]))
    cluster = PlainCluster(
        prefill=draw(st.integers(2, 4)),
        decode=draw(st.integers(2, 4)),
        block_size=block_size,
        capacity=draw(st.integers(1, 120)),
        cost=draw(st.sampled_from([COST, SLOW_NETWORK])),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
    )
    return Case(
        rows=draw(small_traces(block_size)),
        cluster=cluster,
        policy=draw(st.sampled_from((*POLICIES, *2 * ["kvcache_centric"]))),
        admission=draw(st.sampled_from(ADMISSIONS)),
        threshold=draw(st.sampled_from([0.8713, 1.1139])),
        balancing_threshold=draw(st.sampled_from([1.0, 1.5, 3.0])),
        t_d=draw(st.sampled_from([0.1117, 0.5231])),
        seed=draw(st.integers(0, 9)),
    )


@st.composite
def small_coupled_cases(draw: Callable) -> CoupledCase:
    block_size = draw(st.sampled_from([4, 16]))
    cluster = PlainCoupled(
        instances=draw(st.integers(1, 3)),
        cost=COST,
        router=draw(st.sampled_from(ROUTERS)),
        max_batched_tokens=draw(st.sampled_from([1, 100, 400])),
        chunked=draw(st.sampled_from([None, 2, 16, 64])),
        capacity_tokens=draw(st.sampled_from([None, 300, 1000])),
        block_size=block_size,
        cache_blocks=draw(st.sampled_from([0, 8, 60])),
    )
    return CoupledCase(draw(small_traces(block_size)), cluster)


PAPER = PlainCluster(prefill=8, decode=8, block_size=512, capacity=5859, first_token="decode")
"""Its costs are those of LLaMA3-70B on eight A800s."""


def trace_head(path: Path, count: int) -> tuple[Row, ...]:
    """The first requests of a published trace: milliseconds, lengths and block ids, one JSON object a line."""
    with path.open() as lines:
        heads = [json.loads(line) for line, _ in zip(lines, range(count))]
    return tuple(
        (head["timestamp"] / 1000, head["input_length"], head["output_length"], tuple(head["hash_ids"])) for head in heads
    )


def overloaded(rows: tuple[Row, ...], admission: str) -> Case:
    """Half the decode instances and a TBT near its limit, so that either stage rejects now and then."""
    cluster = replace(PAPER, decode=4)
    return Case(rows, cluster, "kvcache_centric", admission, threshold=0.9413, t_d=11.7, slo=SLO(ttft=12.0, tbt=0.0325))
