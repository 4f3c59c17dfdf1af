"""Makes digests.json: the digest of the simulated head of each published trace, under every pairing and every admission policy.

    python -m tests.golden.make_digests FOLDER [PROCESSES] > tests/golden/digests.json

FOLDER holds conversation_trace.jsonl and synthetic_trace.jsonl; traces that are not there are left out. A digest changes with
any bit of any decision or time: make the file anew only for a change of results that is meant, and say in the commit which.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mooncake_jax.sched import (
    AcceptAll,
    CacheAware,
    ClosedForm,
    Conductor,
    EarlyRejection,
    KVCacheCentric,
    LeastTokens,
    LoadBalance,
    Predictive,
    Random,
    RoundRobin,
    StageByStage,
)
from mooncake_jax.sim import SimClusterConfig, SimDecodeConfig, Simulation, outcome
from mooncake_jax.types import SLO
from mooncake_jax.workload import first, read_mooncake, simulated_requests

REQUESTS = 2000
TRACES = ("conversation", "synthetic")
PAIRINGS = {
    "random": Random,
    "round_robin": RoundRobin,
    "load_balance": LoadBalance,
    "cache_aware": CacheAware,
    "kvcache_centric": KVCacheCentric,
}
ADMISSIONS = {"stage_by_stage": StageByStage, "early_rejection": EarlyRejection, "predictive": Predictive}
CASES = [(pairing, "accept_all") for pairing in PAIRINGS] + [("kvcache_centric", admission) for admission in ADMISSIONS]


def digest(path: Path, pairing: str, admission: str) -> str:
    """Of 8 prefill instances and, where all are accepted, 8 decode instances; else 4 with an SLO that either stage exceeds."""
    requests = simulated_requests(first(read_mooncake(path), REQUESTS))
    accepts = admission == "accept_all"
    conductor = Conductor(
        PAIRINGS[pairing](),
        LeastTokens(),
        AcceptAll() if accepts else ADMISSIONS[admission](),
        ClosedForm(),
        SLO() if accepts else SLO(ttft=8.0, tbt=0.0295),
    )
    cluster = SimClusterConfig(decode=SimDecodeConfig(8 if accepts else 4))
    simulation = Simulation(cluster, conductor.estimator, conductor, requests, 327_680)
    return outcome(requests, simulation.run(), simulation.logs).digest


def digests(folder: Path, processes: int) -> dict[str, dict[str, str]]:
    """By trace and `pairing/admission`."""
    found = {trace: folder / f"{trace}_trace.jsonl" for trace in TRACES}
    found = {trace: path for trace, path in found.items() if path.is_file()}
    with ProcessPoolExecutor(processes) as pool:
        answers = {trace: {"/".join(case): pool.submit(digest, path, *case) for case in CASES} for trace, path in found.items()}
        return {trace: {case: answer.result() for case, answer in cases.items()} for trace, cases in answers.items()}


if __name__ == "__main__":
    print(json.dumps(digests(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1), indent=1))
