"""Studies of a published trace, in a process without the type checks of the tests, which cost more than the studies.

    python -m tests.sim.published TRACE < jobs.json > totals.json

A job is [policy, capacity, bypass].
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mooncake_jax.kvcache import FIFO, LFU, LRU, Belady, EvictionPolicy, LeafFirstLRU, LengthAware
from mooncake_jax.sim.study import CacheStudy, lru_curve, study
from mooncake_jax.workload import Trace, read_mooncake

POLICIES: dict[str, Callable[[Trace], EvictionPolicy]] = {
    "lru": lambda trace: LRU(),
    "fifo": lambda trace: FIFO(),
    "lfu": lambda trace: LFU(),
    "lfu_persistent": lambda trace: LFU(persistent=True),
    "length_aware": lambda trace: LengthAware(),
    "leaf_first_lru": lambda trace: LeafFirstLRU(),
    "belady": lambda trace: Belady(request.hash_ids for request in trace.requests),
}


def totals(result: CacheStudy) -> dict[str, int]:
    half = result.second_half()
    return {
        "hit_blocks": int(result.hit_blocks.sum()),
        "hit_tokens": int(result.hit_tokens.sum()),
        "input_tokens": int(result.input_tokens.sum()),
        "half_hit_tokens": int(half.hit_tokens.sum()),
        "half_input_tokens": int(half.input_tokens.sum()),
    }


def published_totals(path: Path, jobs: list[tuple[str, int, bool]]) -> list[dict[str, int]]:
    """Totals of each job, in order."""
    command = [sys.executable, "-m", "tests.sim.published", str(path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, input=json.dumps(jobs), stdout=subprocess.PIPE, text=True, check=True, cwd=root)
    return json.loads(done.stdout)


if __name__ == "__main__":
    trace = read_mooncake(sys.argv[1])
    curve = lru_curve(trace)
    results = []
    for policy, capacity, bypass in json.load(sys.stdin):
        result = totals(study(trace, capacity, lambda policy=policy: POLICIES[policy](trace), bypass=bypass))
        if policy == "lru":
            result |= {"curve_hit_blocks": curve.hit_blocks(capacity), "curve_hit_tokens": curve.hit_tokens(capacity)}
        results.append(result)
    json.dump(results, sys.stdout)
