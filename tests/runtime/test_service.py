"""What a client of the live cluster can count on: reuse, exactness over time, leaks, aborts, deadlines, deaths."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import block_keys
from mooncake_jax.runtime import warm_up
from mooncake_jax.sched import RoundRobin
from mooncake_jax.transfer import DeviceMessenger, LinkConfig, ThrottledMessenger
from mooncake_jax.types import InstanceId, Role, Status, Tier
from tests.support import MODEL, assert_empty, assert_greedy, cluster, compilations, prompt, request, serve

BLOCK = 8


def test_a_second_identical_prompt_computes_at_most_one_block_and_an_extension_only_what_follows():
    live = cluster()
    tokens = prompt(43)
    longer = np.concatenate([tokens, prompt(30, seed=1)])
    records, said = serve(
        live, [request("cold", tokens)], [request("again", tokens)], [request("longer", longer)], [request("longer2", longer)]
    )
    cached = [sum(record.cached.values()) for record in records]
    assert cached == [0, 40, 40, 72]
    for record in records:
        assert record.input_tokens - sum(record.cached.values()) >= 1
    for asked, one in zip([tokens, tokens, longer, longer], said, strict=True):
        assert_greedy(asked, one)


def test_500_mixed_requests_stay_exact_and_compile_nothing_after_warm_up():
    live = cluster(prefill=(2, 2, 1), decode=(2, 2), blocks=96)
    warm_up(live)
    rng = np.random.default_rng(7)
    bases = [prompt(40, seed=i) for i in range(6)]
    requests = []
    for i in range(500):
        head = bases[rng.integers(6)][: rng.integers(0, 41)] if rng.random() < 0.5 else prompt(0)
        tail = prompt(int(rng.integers(1, 60)), seed=1000 + i)
        hot = {"temperature": 0.8, "top_k": 5, "seed": i} if i % 10 == 0 else {}
        requests.append(request(f"r{i}", np.concatenate([head, tail]), int(rng.integers(1, 9)), **hot))
    before = compilations()
    records, tokens = serve(live, *[requests[i : i + 25] for i in range(0, 500, 25)])
    assert compilations() == before
    for asked, record, said in zip(requests, records, tokens, strict=True):
        assert record.status is Status.COMPLETED
        assert len(said) == asked.output_tokens
        assert sum(record.cached.values()) < record.input_tokens
        if asked.sampling.temperature == 0:
            assert_greedy(asked.tokens, said)
    assert any(Tier.PEER in record.cached for record in records)
    assert_empty(live)


def test_pages_blocks_pins_and_transfers_are_back_after_1000_requests_with_aborts_and_failures():
    link = LinkConfig(bandwidth=20e6, latency=0.002, failure_rate=0.08, seed=3)
    messenger = ThrottledMessenger(DeviceMessenger(), link)
    live = cluster(prefill=(2, 1, 1), decode=(2, 1), messenger=messenger, blocks=24, timeout=20.0, tries=2)
    warm_up(live, sampled=False)
    rng = np.random.default_rng(11)
    bases = [prompt(40, seed=i) for i in range(4)]

    async def client(i: int) -> tuple:
        head = bases[i % 4][: 8 * int(rng.integers(0, 5))]
        asked = request(f"r{i}", np.concatenate([head, prompt(int(rng.integers(1, 20)), seed=i)]), int(rng.integers(1, 8)))
        deadline = live.clock() + (float(rng.uniform(0.0, 0.05)) if rng.random() < 0.1 else 15.0)
        stream = live.submit(replace(asked, arrival=live.clock(), deadline=deadline))
        if rng.random() < 0.3:
            await asyncio.sleep(float(rng.uniform(0.0, 0.15)))
            live.abort(stream.id)
        tokens = [output.token async for output in stream]
        record = await stream.record()
        return asked, record, tokens, deadline

    async def main() -> list:
        server = asyncio.create_task(live.serve())
        done = []
        for start in range(0, 1000, 50):
            done += await asyncio.gather(*(client(i) for i in range(start, start + 50)))
        server.cancel()
        return done

    done = asyncio.run(main())
    ends = {status: sum(record.status is status for _, record, _, _ in done) for status in Status}
    assert ends[Status.COMPLETED] > 500
    assert ends[Status.ABORTED] > 50
    assert ends[Status.EXPIRED] > 5
    for asked, record, tokens, deadline in done:
        assert record.finished <= deadline + 2.0, f"{asked.id} hung past its deadline"
        assert_greedy(asked.tokens, tokens)
        if record.status is Status.FAILED:
            assert "injected failure on the link prefill-" in record.reason
    assert_empty(live)


def test_aborting_in_every_phase_gives_everything_back_and_the_next_request_succeeds():
    live = cluster(messenger=ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth=1e6)))
    tokens = prompt(50)
    serve(live, [request("warm", prompt(50, seed=9), 12)])

    async def abort_when(id: str, phase) -> None:
        server = asyncio.create_task(live.serve())
        stream = live.submit(replace(request(id, tokens, 12), arrival=live.clock()))
        for _ in range(5000):
            if id in live.live and phase(live.live[id]):
                break
            await asyncio.sleep(0.001)
        else:
            pytest.fail(f"{id} never got there")
        live.abort(id)
        assert (await stream.record()).status is Status.ABORTED
        server.cancel()

    phases = {
        "queued": lambda one: True,
        "prefilling": lambda one: one.prefill_job.computed > 0,
        "transferring": lambda one: one.first_token_at is not None and one.decode_job.pieces,
        "decoding": lambda one: len(one.completion.tokens) >= 3,
    }
    for name, phase in phases.items():
        asyncio.run(abort_when(name, phase))
        assert_empty(live)
        _, said = serve(live, [request(f"after {name}", tokens, 4)])
        assert_greedy(tokens, said[0])


def test_a_request_never_waits_past_its_deadline_and_says_for_whom_it_waited():
    live = cluster(messenger=ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth=100.0)))
    warm_up(live, sampled=False)
    records, said = serve(live, [replace(request("slow", prompt(20)), deadline=live.clock() + 3.0)])
    assert records[0].status is Status.EXPIRED
    assert "its KV from prefill-0 at decode-0" in records[0].reason
    assert len(said[0]) == 1
    assert_empty(live)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_requests_of_a_dead_instance_carry_on_elsewhere_and_it_can_come_back(role):
    live = cluster(prefill=(2, 1, 1), decode=(2, 1), pairing=RoundRobin())
    prompts = [prompt(30 + i, seed=i) for i in range(8)]
    serve(live, [request("warm", prompt(9)), request("up", prompt(9))])
    dead = InstanceId(role, 0)

    async def main() -> list:
        server = asyncio.create_task(live.serve())
        streams = [live.submit(replace(request(f"r{i}", tokens, 24), arrival=live.clock())) for i, tokens in enumerate(prompts)]
        while not any(len(one.completion.tokens) > 4 for one in live.live.values()):
            await asyncio.sleep(0.001)
        live.kill(dead)
        done = [([output.token async for output in stream], await stream.record()) for stream in streams]
        server.cancel()
        return done

    for tokens, (said, record) in zip(prompts, asyncio.run(main()), strict=True):
        assert record.status is Status.COMPLETED
        assert len(said) == 24
        assert_greedy(tokens, said)
    live.restart(dead)
    before = {id: instance.busy_s for id, instance in live.instances.prefill.items()}
    _, said = serve(live, [request(f"again{i}", tokens, 4) for i, tokens in enumerate(prompts)])
    for tokens, one in zip(prompts, said, strict=True):
        assert_greedy(tokens, one)
    assert all(instance.busy_s > before[id] for id, instance in live.instances.prefill.items())
    assert_empty(live)


def test_requests_aborted_while_they_wait_for_kv_of_a_prefill_that_dies_leave_nothing():
    live = cluster(
        prefill=(2, 1, 1), messenger=ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth=1e3)), pairing=RoundRobin()
    )

    async def main() -> list:
        server = asyncio.create_task(live.serve())
        streams = [live.submit(replace(request(f"r{i}", prompt(9, seed=i)), arrival=live.clock())) for i in range(100)]
        for _ in range(5000):
            if all(instance.waiting for instance in live.instances.decode.values()) and any(
                one.first_token_at for one in live.live.values()
            ):
                break
            await asyncio.sleep(0.001)
        live.kill(InstanceId(Role.PREFILL, 0))
        for stream in streams:
            live.abort(stream.id)
        ended = [await stream.record() for stream in streams]
        server.cancel()
        return ended

    assert {record.status for record in asyncio.run(main())} == {Status.ABORTED}
    live.restart(InstanceId(Role.PREFILL, 0))
    assert_empty(live)
    for instance in live.instances.decode.values():
        assert instance.books.free == instance.books.total


def test_a_burst_over_a_slow_link_holds_a_bounded_amount_of_kv_and_misses_name_the_peer():
    engine = {"send_ahead": 2}
    live = cluster(messenger=ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth=3e5)), engine=engine)
    warm_up(live, sampled=False)
    held = []

    async def main() -> list:
        server = asyncio.create_task(live.serve())
        now = live.clock()
        streams = [
            live.submit(replace(request(f"r{i}", prompt(32, seed=i)), arrival=now, deadline=now + 4.0)) for i in range(60)
        ]
        while live.live:
            held.append(sum(len(d.layers) * len(d.tokens) for d in live.instances.prefill[0]._outgoing))
            await asyncio.sleep(0.005)
        server.cancel()
        return [await stream.record() for stream in streams]

    records = asyncio.run(main())
    one_pass = live.config.engine.chunk_tokens * MODEL.layers
    assert max(held) <= (2 + 2) * one_pass  # the window, and the passes that were under way when it filled
    assert sum(record.status is Status.COMPLETED for record in records) >= 1
    missed = [record for record in records if record.status is Status.EXPIRED]
    assert len(missed) > 10
    assert all("prefill-0" in record.reason for record in missed)
    assert_empty(live)


def test_a_cluster_serves_on_after_most_of_a_burst_was_aborted():
    live = cluster(prefill=(2, 1, 1), decode=(2, 1))
    prompts = [prompt(20 + i % 30, seed=i) for i in range(100)]

    async def main() -> list:
        server = asyncio.create_task(live.serve())
        streams = [live.submit(replace(request(f"r{i}", one), arrival=live.clock())) for i, one in enumerate(prompts)]
        await asyncio.sleep(0.05)
        for i, stream in enumerate(streams):
            if i % 100 >= 11:
                live.abort(stream.id)
        done = [([output.token async for output in stream], await stream.record()) for stream in streams]
        server.cancel()
        return done

    for i, (tokens, record) in enumerate(asyncio.run(main())):
        assert record.status is (Status.COMPLETED if i < 11 else Status.ABORTED)
        assert_greedy(prompts[i], tokens)
    assert_empty(live)
    _, said = serve(live, [request("next", prompts[50])])
    assert_greedy(prompts[50], said[0])


def test_kv_arrives_bit_for_bit_between_unequal_meshes():
    live = cluster(prefill=(1, 4, 2), decode=(1, 2))
    tokens = prompt(48)

    async def main() -> tuple:
        server = asyncio.create_task(live.serve())
        stream = live.submit(replace(request("r", tokens, 40), arrival=live.clock()))
        while not live.instances.decode[0].running:
            await asyncio.sleep(0.001)
        decode = live.instances.decode[0]
        pages = decode.running[0]._pages[: 48 // live.config.engine.page_size]
        arrived = np.stack([np.asarray(layer)[pages].reshape(48, 16, 16) for layer in decode.stage.groups[0].pages])
        await stream.record()
        server.cancel()
        return arrived

    arrived = asyncio.run(main())
    pool = live.instances.prefill[0].pool
    stored = pool.read(block_keys(tokens, BLOCK, live._seed), range(MODEL.layers))
    np.testing.assert_array_equal(arrived, stored)
    assert np.abs(stored).min(axis=(2, 3)).max() > 0


def test_first_token_may_wait_for_decode_and_ttft_then_splits_into_all_stages():
    link = ThrottledMessenger(DeviceMessenger(), LinkConfig(latency=0.05))
    live = cluster(first_token="decode", messenger=link)
    records, said = serve(live, [request("one", prompt(20), 5)], [request("single", prompt(21), 1)])
    assert_greedy(prompt(20), said[0])
    for record in records:
        ttft = record.token_times[0] - record.arrival
        assert sum(record.split.values()) == pytest.approx(ttft, abs=1e-6)
    assert records[0].split["transfer"] > 0.03
    assert records[1].split["transfer"] == 0


def test_pool_hits_do_not_move_during_decode_and_reuse_sums_to_the_prompt():
    live = cluster()
    tokens = prompt(64)
    records, _ = serve(live, [request("a", tokens, 2)], [request("b", tokens, 60)])
    assert sum(records[0].cached.values()) == 0
    assert sum(records[1].cached.values()) == 63  # all but the token whose logits are needed


def test_a_burst_of_one_prompt_is_computed_once():
    live = cluster()
    tokens = prompt(40)
    records, said = serve(live, [request(f"r{i}", tokens, 3) for i in range(6)])
    computed = sum(record.input_tokens - sum(record.cached.values()) for record in records)
    assert computed == 40 + 5
    for one in said:
        assert_greedy(tokens, one)


def test_the_models_identity_is_part_of_every_block_key():
    tokens = prompt(16)
    live = cluster()
    serve(live, [request("a", tokens)])
    assert_empty(live)
    held = set(live.instances.prefill[0].pool.books.keys())
    assert held == set(block_keys(tokens, BLOCK, live._seed))
    assert not held & set(block_keys(tokens, BLOCK, live._seed + 1))


@pytest.mark.parametrize(
    ("tokens", "output", "says"),
    [
        (prompt(120), 9, "129 in all, but the cache holds at most 128"),
        (prompt(0), 1, "0 prompt tokens"),
        (np.array([1, MODEL.vocab], np.int32), 1, "outside the vocabulary of tiny, 0 to 255"),
    ],
)
def test_requests_that_can_never_be_served_are_refused_in_a_sentence(tokens, output, says):
    with pytest.raises(UserError, match=says):
        cluster().submit(request("bad", tokens, output))


@pytest.mark.parametrize(
    "engine",
    [
        {"page_size": 1, "block_size": 1, "prefill_pages": 300, "decode_pages": 300},
        {"block_size": 32},
        {"page_size": 8, "chunk_tokens": 8},
    ],
)
def test_odd_sizes_serve_exactly_with_reuse_from_device_and_host(engine):
    live = cluster(engine=engine, decode=(1, 2))
    tokens = {n: prompt(n, seed=n) for n in (1, 2, 40, 64)}
    for _ in range(2):
        records, said = serve(live, *[[request(f"r{n}", one, 5)] for n, one in tokens.items()])
        for one, output in zip(tokens.values(), said, strict=True):
            assert_greedy(one, output)
        assert_empty(live)
    block = live.config.engine.block_size
    assert [sum(record.cached.values()) for record in records] == [min(n // block * block, n - 1) for n in tokens]
    live.instances.prefill[0].books.clear()
    records, said = serve(live, *[[request(f"r{n}", one, 5)] for n, one in tokens.items()])
    for record, one, output in zip(records, tokens.values(), said, strict=True):
        assert_greedy(one, output)
        assert set(record.cached) <= {Tier.HOST}
    assert_empty(live)


def test_a_finished_requests_deadline_does_not_end_a_new_request_of_the_same_id():
    live = cluster()
    serve(live, [replace(request("same", prompt(5), 2), deadline=live.clock() + 60.0)])
    serve(live, [replace(request("other", prompt(5), 2), deadline=live.clock() + 0.001)])
    records, _ = serve(live, [request("other", prompt(6), 20)])
    assert records[0].status is Status.COMPLETED


def test_stopping_the_cluster_ends_every_request():
    live = cluster()

    async def main() -> Status:
        server = asyncio.create_task(live.serve())
        stream = live.submit(request("r", prompt(40), 60))
        await asyncio.sleep(0.01)
        server.cancel()
        return (await stream.record()).status

    assert asyncio.run(main()) is Status.ABORTED
    assert_empty(live)


def test_without_a_host_pool_nothing_is_promised_and_the_device_still_remembers():
    live = cluster(prefill=(2, 1, 1), blocks=0, pairing=RoundRobin())
    tokens = prompt(40)
    records, _ = serve(live, *[[request(f"r{i}", tokens, 2)] for i in range(3)])
    assert [sum(record.cached.values()) for record in records] == [0, 0, 39]
    assert_empty(live)
