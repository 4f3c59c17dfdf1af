"""One Conductor in two worlds: what a live cluster logged is decided again, to the last bit, by a new Conductor."""

import asyncio
import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.redecide import redecide_log
from mooncake_jax.runtime import ClusterConfig, HostPoolConfig, InstancesConfig, build_cluster
from mooncake_jax.sched import (
    AcceptAll,
    Conductor,
    Decision,
    EarlyRejection,
    KVCacheCentric,
    LeastTokens,
    LoadBalance,
    Measured,
    Predictive,
    Random,
)
from mooncake_jax.transfer import DeviceMessenger
from mooncake_jax.types import SLO, Placement, Rejection, Request
from tests.support import ENGINE, MODEL, load, prompt, request

ADMISSIONS = {
    "accept_all": AcceptAll,
    "early_rejection": EarlyRejection,
    "predictive": lambda: Predictive(decode_s=0.1),
}


def conductor(admission: str, pairing=KVCacheCentric) -> Conductor:
    # Before it has learnt, the estimator says 3.7 ms for the first prompt of a burst, which is admitted; the last is too much.
    return Conductor(pairing(), LeastTokens(), ADMISSIONS[admission](), Measured(), SLO(ttft=0.004, tbt=0.25))


def sessions() -> list[Request]:
    """Twelve conversations of three turns; a turn's prompt begins with the one before, and all share a system prompt."""
    system, turns = prompt(16, seed=99), []
    for turn, session in itertools.product(range(3), range(12)):
        own = np.concatenate([prompt(16, seed=10 * session + k) for k in range(turn + 1)])
        turns.append(request(f"s{session}t{turn}", np.concatenate([system, own]), output=4))
    return turns


@pytest.fixture(scope="module", params=ADMISSIONS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, list[Decision]]:
    """The log of a live run of 2 prefill and 2 decode instances under bursts, and the decisions as they were made."""
    admission = request.param
    path = tmp_path_factory.mktemp(admission) / "decisions.jsonl"
    made: list[Decision] = []
    config = ClusterConfig(InstancesConfig(2), InstancesConfig(2), HostPoolConfig(64), ENGINE, timeout=60.0)
    start = time.perf_counter()
    with path.open("w", encoding="utf-8") as file:

        def hear(decision: Decision) -> None:
            file.write(decision.to_json() + "\n")
            made.append(decision)

        live = build_cluster(
            config,
            MODEL,
            load,
            conductor(admission),
            DeviceMessenger(),
            lambda: time.perf_counter() - start,
            on_decision=hear,
        )

        async def main() -> None:
            server = asyncio.create_task(live.serve())
            for burst in itertools.batched(sessions(), 6):
                for one in burst:
                    live.submit(replace(one, arrival=live.clock()))
                await asyncio.sleep(0.02)  # so that some of the next burst find work ahead, and some an end of it
            while live.live:
                await asyncio.sleep(0.01)
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

        asyncio.run(main())
    return admission, path, made


def test_a_new_conductor_decides_a_live_log_identically(log):
    admission, path, made = log
    found = redecide_log(path, conductor(admission))
    assert (found.decisions, found.identical) == (36, 36)
    assert {type(decision.outcome) for decision in made} >= {Placement}


def test_the_live_run_held_what_makes_decisions_differ(log):
    """Busy queues, hits, both instances, and an estimator that learnt on the way; else the proof would be of little."""
    _, _, made = log
    placed = [decision.outcome for decision in made if isinstance(decision.outcome, Placement)]
    assert any(decision.view.queue_s.max() > 0 for decision in made)
    assert any(placement.reuse > 0 for placement in placed)
    assert len({str(decision.estimator) for decision in made}) > 1


@pytest.mark.parametrize("log", ["early_rejection", "predictive"], indirect=True)
def test_an_overloaded_live_cluster_rejects_and_the_log_says_so_again(log):
    _, _, made = log
    assert any(isinstance(decision.outcome, Rejection) for decision in made)


@pytest.mark.parametrize("log", ["accept_all"], indirect=True)
def test_another_policy_decides_the_same_log_differently_and_is_named(log):
    _, path, made = log
    random = redecide_log(path, conductor("accept_all", lambda: Random(seed=5)))
    assert random.differences
    for difference in random.differences:
        assert difference.request in {decision.request.id for decision in made}
        assert difference.logged != difference.decided
    balanced = redecide_log(path, conductor("accept_all", LoadBalance))
    for number, decision in enumerate(made):
        # By hand: the least queue, the lowest index.
        expected = int(np.argmin(decision.view.queue_s))
        decided = {one.request: one.decided.prefill for one in balanced.differences}
        assert decided.get(decision.request.id, decision.outcome.prefill) == expected, number
