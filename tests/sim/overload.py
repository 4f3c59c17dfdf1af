"""Twice the conversation trace's load on a decode instance that takes it once, under three admission policies.

In a process without the type checks of the tests, which cost more than the runs: python -m tests.sim.overload TRACE
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mooncake_jax.sched import AdmissionPolicy, EarlyRejection, KVCacheCentric, Predictive, StageByStage
from mooncake_jax.types import SLO, Status
from mooncake_jax.workload import first, read_mooncake, simulated_requests, speed_up
from tests.sim.runs import cluster, run_llama

REQUESTS = 1200
OBJECTIVES = SLO(ttft=30.0, tbt=0.1)
ADMISSIONS = {
    "stage_by_stage": StageByStage(0.9),
    "early_rejection": EarlyRejection(0.9),
    # 75 s are what twice the mean output takes at the TBT objective. With the default of 12 s, right where a step takes 35 ms,
    # requests are thought gone that still decode: too many are let in, and goodput falls far below that of the others.
    "predictive": Predictive(0.9, decode_s=75.0),
}


@dataclass(frozen=True)
class Overloaded:
    goodput: int
    """Requests that completed within the objectives."""
    rejected: int
    wasted_s: float
    """Seconds of prefill of rejected requests."""


def overloaded(path: Path, admission: AdmissionPolicy) -> Overloaded:
    rows = simulated_requests(speed_up(first(read_mooncake(path), REQUESTS), 2.0))
    config = cluster(8, 1, block_size=512, blocks=5859, first_token="decode")
    done = run_llama(rows, config, pairing=KVCacheCentric(), admission=admission, slo=OBJECTIVES)
    columns, rejected = done.columns, np.array([status is Status.REJECTED for status in done.status])
    effective = columns.completed & (columns.ttft <= OBJECTIVES.ttft) & (columns.tbt <= OBJECTIVES.tbt)
    return Overloaded(int(effective.sum()), int(rejected.sum()), float(done.result.prefill_s[rejected].sum()))


def outcomes(path: Path) -> dict[str, Overloaded]:
    """By admission policy."""
    command = [sys.executable, "-m", "tests.sim.overload", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2])
    return {name: Overloaded(**values) for name, values in json.loads(done.stdout).items()}


if __name__ == "__main__":
    trace = Path(sys.argv[1])
    print(json.dumps({name: asdict(overloaded(trace, policy)) for name, policy in ADMISSIONS.items()}))
