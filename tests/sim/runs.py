"""Short runs of the simulator, and what must hold after every run, whatever was switched on.

`COST` has binary fractions, so that expected times are exact and were worked out on paper: a prompt token takes 1 s to prefill,
1/4 s to cross the network and 1/8 s to load; a decode step takes 1 s and 1/8 s a token of context. A block has 4 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mooncake_jax.kvcache import EvictionPolicy
from mooncake_jax.report import check_columns
from mooncake_jax.sched import (
    AcceptAll,
    AdmissionPolicy,
    ClosedForm,
    Conductor,
    Estimator,
    HardwareModel,
    LeastTokens,
    PairingPolicy,
    QueueOrder,
    ReplicationPolicy,
    RolePolicy,
    RoundRobin,
)
from mooncake_jax.sim import (
    Outcome,
    Rates,
    SimClusterConfig,
    SimDecodeConfig,
    SimHostPoolConfig,
    SimPrefillConfig,
    Simulation,
    outcome,
)
from mooncake_jax.types import SLO, Request, Status
from tests.sim.plain import LLAMA3_70B, PAPER_SLO

COST = ClosedForm(0.0, 1.0, 0.0, 1.0, 0.0, 0.125, 4.0)
RATES = Rates(node=4.0, load=8.0)
LLAMA = ClosedForm()
"""LLaMA3-70B on eight A800s."""
LLAMA_KV_BYTES = int(LLAMA3_70B.kv_bytes)


@dataclass(frozen=True, eq=False)
class Finished:
    requests: Sequence[Request]
    simulation: Simulation
    result: Outcome

    @property
    def columns(self):
        return self.result.columns

    @property
    def ledger(self):
        return self.simulation.ledger

    @property
    def status(self) -> list[Status]:
        return list(self.ledger.status)

    @property
    def finished(self) -> list[float]:
        return self.columns.finished.tolist()

    @property
    def ttft(self) -> list[float]:
        return self.columns.ttft.tolist()

    def split(self, number: int) -> dict[str, float]:
        """The stages of the TTFT of one request that took any time."""
        return {stage: float(seconds[number]) for stage, seconds in self.columns.split.items() if seconds[number]}

    @cached_property
    def intervals(self) -> list[tuple[float, int]]:
        """(seconds, how often), ascending, over all intervals between tokens of completed requests."""
        gaps = self.columns.itl
        values, where = np.unique(gaps.values, return_inverse=True)
        return [(float(value), int(count)) for value, count in zip(values, np.bincount(where, gaps.weights))]


def requests(*rows) -> list[Request]:
    """Rows of (arrival, n, o) or (arrival, n, o, keys); a prompt without keys shares nothing."""
    made = []
    for index, (arrival, n, o, *keys) in enumerate(rows):
        own = tuple(range(1000 * (index + 1), 1000 * (index + 1) + -(-n // 4)))
        made.append(Request(f"r{index:06d}", float(arrival), n, o, tuple(keys[0]) if keys else own))
    return made


def cluster(
    prefill: int = 1, decode: int = 1, *, stages: int = 1, chunk: int | None = None, pack: int | None = None, **others
) -> SimClusterConfig:
    """`capacity` is of decode memory in tokens, `blocks` of each host pool; the rest goes to SimClusterConfig."""
    defaults = {"block_size": 4, "first_token": "prefill"}
    return SimClusterConfig(
        prefill=SimPrefillConfig(prefill, stages, chunk, pack),
        decode=SimDecodeConfig(decode, others.pop("capacity", None)),
        host_pool=SimHostPoolConfig(others.pop("blocks", 100)),
        **(defaults | others),
    )


def run(
    rows: Sequence[Request],
    config: SimClusterConfig,
    *,
    pairing: PairingPolicy | None = None,
    admission: AdmissionPolicy | None = None,
    hardware: HardwareModel = COST,
    estimator: Estimator | None = None,
    slo: SLO = PAPER_SLO,
    replication: ReplicationPolicy | None = None,
    roles: RolePolicy | None = None,
    kv_bytes: int = 1,
    rates: Rates = RATES,
    eviction: Callable[[], EvictionPolicy] | None = None,
    queue_order: Callable[[], QueueOrder] | None = None,
    conductor: Conductor | None = None,
) -> Finished:
    """Serves the requests, and holds the run to `assert_sound`."""
    conductor = conductor or Conductor(
        pairing or RoundRobin(),
        LeastTokens(),
        admission or AcceptAll(),
        estimator or hardware,
        slo,
        replication=replication,
        roles=roles,
    )
    simulation = Simulation(config, hardware, conductor, rows, kv_bytes, rates, eviction=eviction, queue_order=queue_order)
    ledger = simulation.run()
    finished = Finished(rows, simulation, outcome(rows, ledger, simulation.logs))
    assert_sound(finished)
    return finished


def run_llama(rows: Sequence[Request], config: SimClusterConfig, **options) -> Finished:
    """With the sizes and speeds of LLaMA3-70B on eight A800s."""
    return run(rows, config, **({"hardware": LLAMA, "kv_bytes": LLAMA_KV_BYTES, "rates": Rates()} | options))


def assert_sound(finished: Finished) -> None:
    """What holds after every run."""
    columns, simulation = finished.columns, finished.simulation
    assert None not in finished.status
    for number, (request, status) in enumerate(zip(finished.requests, finished.status)):
        if status is Status.COMPLETED:
            assert columns.output_tokens[number] == request.output_tokens
        else:
            assert columns.output_tokens[number] < request.output_tokens
            assert columns.reason[number]
    # Prompt tokens by tier and the split of TTFT sum up for all that got a token, and no time runs backwards.
    check_columns(columns)
    done = columns.completed
    steps = float((columns.output_tokens[done] - 1).sum())
    assert columns.itl.weights.sum() == steps
    spent = (columns.e2e - columns.ttft)[done].sum()
    np.testing.assert_allclose((columns.itl.values * columns.itl.weights).sum(), spent, rtol=1e-9, atol=1e-7)
    # The longest tenth of the intervals cannot be shorter than their mean.
    assert (columns.tbt[done] >= columns.tpot[done] - 1e-9 * (1 + columns.tpot[done])).all()
    for instance in simulation.prefill:
        held = set(simulation.index.keys(instance.index))
        if not instance.alive:
            assert not held
            continue
        assert instance.idle
        cache = instance.cache
        keys, below = cache.keys(), [] if cache.below is None else cache.below.keys()
        assert len(held) == len(keys) + len(below)
        assert held == {*keys, *below}
        for tier in (cache, cache.below):
            assert tier is None or tier.capacity is None or len(tier) <= tier.capacity
    for instance in simulation.decode:
        if instance.alive:
            assert (instance.assigned, instance.outside, instance.batch, instance.tokens(1e12)) == (0, 0, 0, 0)


def metrics(finished: Finished) -> dict[str, np.ndarray]:
    """All there is to compare of two runs."""
    columns, result = finished.columns, finished.result
    names = ("status", "prefill", "decode", "ttft", "tbt", "finished", "computed")
    return {name: getattr(columns, name) for name in names} | {
        "reuse": result.reuse_blocks,
        "fetch_source": result.fetch_source,
        "prefill_s": result.prefill_s,
    }
