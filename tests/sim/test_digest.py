"""Equal runs are equal bit for bit: again, in fresh processes, whatever the hash seed and the number of workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_jax.sched import KVCacheCentric, Random
from tests.golden.make_digests import CASES, TRACES
from tests.sim.cases import requests_of, trace_head
from tests.sim.runs import cluster, requests, run, run_llama
from tests.support import published_trace

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/digests.json"


def in_fresh_process(folder: Path, hash_seed: str, processes: int) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-m", "tests.golden.make_digests", str(folder), str(processes)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)


@pytest.mark.parametrize(("hash_seed", "processes"), [("1", 1), ("271828", 2)])
def test_published_traces_have_their_golden_digests_in_any_process_and_in_pools_of_any_size(hash_seed, processes):
    golden = json.loads(GOLDEN.read_text())
    folder = published_trace("conversation").parent
    found = in_fresh_process(folder, hash_seed, processes)
    assert found == {trace: golden[trace] for trace in found}
    assert "conversation" in found


def test_every_trace_and_policy_has_a_golden_digest_and_no_two_are_equal():
    golden = json.loads(GOLDEN.read_text())
    assert {trace: set(cases) for trace, cases in golden.items()} == {
        trace: {"/".join(case) for case in CASES} for trace in TRACES
    }
    digests = [digest for cases in golden.values() for digest in cases.values()]
    assert len(set(digests)) == len(digests)


def test_a_run_repeated_in_one_process_has_the_same_digest():
    rows = requests(*[(0.5 * i, 8 + i % 5, 1 + i % 5, (i % 3, 10 + i % 3, 100 + i)) for i in range(40)])
    digests = {run(rows, cluster(3, 2), pairing=pairing()).result.digest for pairing in [KVCacheCentric] * 3}
    others = {run(rows, cluster(3, 2), pairing=Random(seed)).result.digest for seed in (1, 2)}
    assert len(digests) == 1
    assert len(digests | others) == 3


def test_the_digest_tells_the_smallest_change_of_one_time():
    rows = requests((0, 8, 3), (20, 8, 3))
    moved = requests((0, 8, 3), (20 + 2**-48, 8, 3))
    assert run(rows, cluster()).result.digest != run(moved, cluster()).result.digest


def test_a_published_trace_replayed_twice_gives_equal_digests():
    rows = requests_of(trace_head(published_trace("conversation"), 300))
    config = cluster(4, 4, block_size=512, blocks=2000, first_token="decode")
    digests = {run_llama(rows, config, pairing=KVCacheCentric()).result.digest for _ in range(2)}
    assert len(digests) == 1
