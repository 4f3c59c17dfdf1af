"""Requests that are turned away after their prefill, and what a live cluster makes of policies it cannot follow."""

import asyncio
from dataclasses import replace

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import block_keys
from mooncake_jax.runtime import build_cluster
from mooncake_jax.sched import (
    AcceptAll,
    Conductor,
    Decision,
    HotReplicas,
    KVCacheCentric,
    LeastTokens,
    LoadRoles,
    Measured,
    StageByStage,
)
from mooncake_jax.transfer import DeviceMessenger, LinkConfig, ThrottledMessenger
from mooncake_jax.types import SLO, Placement, Rejection, Status, Tier
from tests.support import MODEL, assert_empty, assert_greedy, cluster, load, prompt, request, serve

BLOCK = 8


class OneAtATime(StageByStage):
    """Lets a request decode iff nobody else of its instance does, so that the test needs no timings of the machine."""

    def __init__(self):
        super().__init__(threshold=1e9)
        self.seen = []

    def admit_decode(self, request, placement, view, estimator, slo, now) -> Rejection | None:
        others = [one for one in view.in_flight() if one.decode == placement.decode and one.prefilled <= now]
        self.seen.append((list(view.in_flight()), view.decode_batch.tolist(), view.decode_tokens.tolist()))
        return Rejection("decode is full", 1.0) if others else None


def judged_by(live, admission, slo=None) -> None:
    live.conductor = Conductor(KVCacheCentric(), LeastTokens(), admission, live.conductor.estimator, slo or SLO())


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_a_request_rejected_after_its_prefill_gives_everything_back_at_once_but_its_cached_blocks(first_token):
    slow = ThrottledMessenger(DeviceMessenger(), LinkConfig(latency=0.05))
    live = cluster(messenger=slow, first_token=first_token)
    judged_by(live, OneAtATime())
    long, short = prompt(40), prompt(33, seed=1)
    after = []

    async def main() -> tuple:
        server = asyncio.create_task(live.serve())
        keeper = live.submit(replace(request("keeper", long, 60), arrival=live.clock()))
        while not live.instances.decode[0].running:
            await asyncio.sleep(0.001)
        turned_away = live.submit(replace(request("away", short, 20), arrival=live.clock()))
        said = [output.token async for output in turned_away]
        decode = live.instances.decode[0]
        after.append((len(decode.waiting), "away" in live.live, live.instances.prefill[0].pool.books.pins))
        records = (await turned_away.record(), await keeper.record())
        server.cancel()
        return said, *records

    said, away, keeper = asyncio.run(main())
    assert after == [(0, False, 0)]
    assert (away.status, away.reason, said, away.output_tokens) == (Status.REJECTED, "decode is full", [], 0)
    assert (away.prefill, away.decode) == (0, 0)
    assert keeper.status is Status.COMPLETED
    assert_empty(live)
    for key in block_keys(short, BLOCK, live._seed)[: 33 // BLOCK]:
        assert key in live.instances.prefill[0].pool.books
    records, said = serve(live, [request("again", short, 5)])
    assert sum(records[0].cached.values()) == 32
    assert set(records[0].cached) <= {Tier.DEVICE, Tier.HOST}
    assert_greedy(short, said[0])


def test_the_second_judgement_sees_the_others_and_not_the_request_itself():
    live = cluster()
    policy = OneAtATime()
    judged_by(live, policy)
    serve(live, [request("one", prompt(20), 5)], [request("single", prompt(21), 1)])
    assert policy.seen == [([], [0], [0])]
    before, policy.seen = live.clock(), []
    records, _ = serve(live, [request("a", prompt(20), 40), request("b", prompt(30, seed=1), 40)])
    assert sorted(record.status for record in records) == [Status.COMPLETED, Status.REJECTED]
    first, second = policy.seen
    assert (len(first[0]), first[1]) == (1, [1])
    assert (len(second[0]), second[1]) == (1, [1])
    [other] = second[0]
    assert second[2] == [other.tokens]
    assert before < other.prefilled <= live.clock()


def test_stage_by_stage_rejects_by_the_decode_load_it_measured():
    live = cluster()
    judged_by(live, StageByStage(), SLO(ttft=1000.0, tbt=1e-9))
    records, said = serve(live, [request("r", prompt(20), 5)], [request("single", prompt(21), 1)])
    assert [record.status for record in records] == [Status.REJECTED, Status.COMPLETED]
    assert records[0].reason.startswith("decode load ")
    assert said[0] == []
    assert_empty(live)


def test_every_decision_is_logged_with_what_was_in_flight():
    live = cluster(prefill=(2, 1, 1))
    lines = []
    live._on_decision = lambda decision: lines.append(decision.to_json())
    serve(live, [request(f"r{i}", prompt(20 + i, seed=i), 6) for i in range(4)])
    decisions = [Decision.from_json(line) for line in lines]
    assert [len(decision.view.in_flight()) for decision in decisions] == [0, 1, 2, 3]
    for decision in decisions:
        assert isinstance(decision.outcome, Placement)
        for one in decision.view.in_flight():
            assert one.decode == 0
            assert one.tokens >= 20
            assert one.prefilled > decision.now  # none of them has had a chance to compute


@pytest.mark.parametrize(("name", "policy"), [("replication", HotReplicas()), ("roles", LoadRoles())])
def test_a_live_cluster_refuses_policies_that_only_the_simulator_can_follow(name, policy):
    conductor = Conductor(KVCacheCentric(), LeastTokens(), AcceptAll(), Measured(), SLO(), **{name: policy})
    with pytest.raises(UserError, match=rf"conductor\.{name}={type(policy).__name__} is for the simulator only"):
        build_cluster(cluster().config, MODEL, load, conductor, DeviceMessenger(), lambda: 0.0)
