"""How fast the simulator and the Conductor are on this machine: `python scripts/bench_sim.py`."""

import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from mooncake_jax import launch, workload
from mooncake_jax.config import BenchSimSettings
from mooncake_jax.kvcache import Chains, PrefixIndex
from mooncake_jax.sched import AcceptAll, ClosedForm, ClusterView, Conductor, KVCacheCentric, LeastTokens
from mooncake_jax.sim import SimClusterConfig, SimDecodeConfig, SimPrefillConfig, Simulation, outcome
from mooncake_jax.simulate import settled_memory
from mooncake_jax.types import SLO, Request

KV_BYTES = 327_680
Show = Callable[[int, int], None]


def main(settings: BenchSimSettings, run: launch.Run) -> None:
    table = Table("what", "measured", "target", title="Simulator and Conductor, CPU time of one core")
    trace = workload.read_mooncake(workload.find_trace(settings.trace))
    with launch.progress() as show:
        if settings.million:  # first, as its memory is the process's
            show("making a million requests", 0, None)
            generator = workload.GeneratorConfig(rate=45.0, duration=1e6)
            many = workload.simulated_requests(workload.generate(generator, 0, 1_000_000))
            cluster = SimClusterConfig(prefill=SimPrefillConfig(count=50), decode=SimDecodeConfig(count=50))
            start = time.process_time()
            chains = Chains.of([request.keys for request in many])
            simulate(many, cluster, chains, lambda done, total: show("a million requests on 100 instances", done, total))
            seconds = time.process_time() - start
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            table.add_row("1,000,000 requests, 50P + 50D", f"{seconds:.0f} s, {memory:.2f} GiB at most", "180 s, 4 GB")
        show(f"simulating the {settings.trace} trace", 0, None)
        once = requests_of(trace)
        one = best(settings.rounds, once)
        table.add_row(f"{settings.trace} trace, {len(once):,} requests, 8P + 8D, kvcache_centric", f"{one:.3f} s", "0.5 s")
        show("ten times the trace", 0, None)
        ten = best(settings.rounds, requests_of(repeated(trace, 10)))
        table.add_row("ten times the trace, end to end", f"{ten:.2f} s = {ten / one:.1f} ×", "12 ×")
        longer = replace(trace, requests=tuple(replace(r, output_length=10 * r.output_length) for r in trace.requests))
        sparse = replace(longer, requests=tuple(replace(r, arrival=10 * r.arrival) for r in longer.requests))
        show("ten times the output", 0, None)
        output = best(settings.rounds, requests_of(sparse))
        table.add_row(
            "ten times the output tokens in ten times the time", f"{output:.3f} s = {output / one:.2f} ×", "nearly 1 ×"
        )
        for instances, target in ((16, "20,000 / s"), (1000, "p99 < 1 ms")):
            show(f"decisions at {instances} instances", 0, None)
            seconds = decide(instances, settings.blocks)
            p50, p99 = np.percentile(seconds, [50, 99])
            table.add_row(
                f"Conductor, {instances:,} instances, {settings.blocks:,} blocks",
                f"{len(seconds) / seconds.sum():,.0f} / s, p50 {1e6 * p50:.0f} µs, p99 {1e6 * p99:.0f} µs",
                target,
            )
    Console().print(table)
    print(run.folder)


def requests_of(trace: workload.Trace) -> list[Request]:
    return workload.simulated_requests(trace)


def repeated(trace: workload.Trace, times: int) -> workload.Trace:
    """The trace so many times, one after the other, no repetition sharing blocks with another."""
    span = trace.requests[-1].arrival + 1.0
    ids = 1 + max(max(request.hash_ids) for request in trace.requests)
    return replace(
        trace,
        requests=tuple(
            replace(one, arrival=one.arrival + n * span, hash_ids=tuple(key + n * ids for key in one.hash_ids))
            for n in range(times)
            for one in trace.requests
        ),
    )


def simulate(requests: Sequence[Request], cluster: SimClusterConfig, chains: Chains, show: Show | None = None) -> float:
    """CPU seconds of a simulation, the workload loaded and its chains known."""
    hardware = ClosedForm()
    conductor = Conductor(KVCacheCentric(), LeastTokens(), AcceptAll(), hardware, SLO())
    simulation = Simulation(cluster, hardware, conductor, requests, KV_BYTES, chains=chains)
    with settled_memory():
        start = time.process_time()
        ledger = simulation.run(show)
        seconds = time.process_time() - start
    if show is not None:
        outcome(requests, ledger, simulation.logs)
    return seconds


def best(rounds: int, requests: Sequence[Request]) -> float:
    """The quickest of some simulations of 8P + 8D."""
    chains = Chains.of([request.keys for request in requests])
    return min(simulate(requests, SimClusterConfig(), chains) for _ in range(rounds))


def decide(instances: int, blocks: int) -> np.ndarray:
    """Seconds of each of some thousand decisions. Every block is held by a few instances, prompts are chains of up to 64."""
    rng = random.Random(0)
    index = PrefixIndex(instances)
    chains = [tuple(range(start, start + 64)) for start in range(0, blocks, 64)]
    for chain in chains:
        for _ in range(rng.randrange(1, 5)):
            index.add(rng.randrange(instances), chain[: rng.randrange(1, 65)])
    view = ClusterView(
        prefill=tuple(range(instances)),
        queue_s=np.array([rng.expovariate(1.0) for _ in range(instances)]),
        decode=tuple(range(instances)),
        decode_tokens=np.array([rng.randrange(400_000) for _ in range(instances)]),
        decode_batch=np.array([rng.randrange(1, 40) for _ in range(instances)]),
        index=index,
        block_size=512,
        kv_bytes_per_token=KV_BYTES,
    )
    conductor = Conductor(KVCacheCentric(), LeastTokens(), AcceptAll(), ClosedForm(), SLO())
    seconds = []
    for number in range(5_000):
        tokens = rng.randrange(512, 64 * 512)
        keys = rng.choice(chains)[: -(-tokens // 512)]
        request = Request(str(number), 0.0, tokens, 100, keys)
        start = time.process_time()
        conductor.schedule(request, view, 0.0)
        seconds.append(time.process_time() - start)
    return np.array(seconds)


if __name__ == "__main__":
    launch.run(main, "bench_sim")
