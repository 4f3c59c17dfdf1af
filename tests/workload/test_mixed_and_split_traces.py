"""Traces merged share nothing; blocks cut finer are shared exactly where the prompts are; simulated requests carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.workload import (
    GeneratorConfig,
    Trace,
    TraceRequest,
    WorkloadConfig,
    generate,
    load_trace,
    mix,
    read_mooncake,
    simulated_requests,
    split_blocks,
)
from tests.support import published_trace


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading ids that are equal."""
    return next((n for n, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))


def test_mixed_traces_come_by_arrival_and_share_nothing_but_keep_what_each_shares():
    traces = [generate(GeneratorConfig(turns=3.0), seed, limit=80) for seed in (0, 0, 1)]
    merged = mix(traces)
    assert len(merged.requests) == 240
    arrivals = [one.arrival for one in merged.requests]
    assert arrivals == sorted(arrivals)
    for index, trace in enumerate(traces):
        own = [one for one in merged.requests if one.session.startswith(f"{index}:")]
        assert [(one.arrival, one.input_length, one.output_length, one.session) for one in own] == [
            (one.arrival, one.input_length, one.output_length, f"{index}:{one.session}") for one in trace.requests
        ]
        for before, after in zip(trace.requests, own, strict=True):
            for other_before, other_after in zip(trace.requests, own, strict=True):
                assert _shared(before.hash_ids, other_before.hash_ids) == _shared(after.hash_ids, other_after.hash_ids)
    ids = [
        {one for request in merged.requests if request.session.startswith(f"{i}:") for one in request.hash_ids}
        for i in range(3)
    ]
    assert sum(map(len, ids)) == len(ids[0] | ids[1] | ids[2])


def test_one_instant_goes_by_the_order_of_the_traces_and_traces_without_sessions_stay_so():
    def trace(output: int) -> Trace:
        return Trace((TraceRequest(0.0, 1, output, (5,)), TraceRequest(1.0, 1, output, (5,))), left_out=output)

    merged = mix([trace(2), trace(1)])
    assert [(one.output_length, one.hash_ids, one.session) for one in merged.requests] == [
        (2, (0,), None),
        (1, (1,), None),
        (2, (0,), None),
        (1, (1,), None),
    ]
    assert merged.left_out == 3


def test_traces_of_different_blocks_and_no_traces_are_refused():
    trace = generate(GeneratorConfig(), 0, limit=3)
    with pytest.raises(UserError, match=r"hash ids of one size, but theirs stand for \[256, 512\] tokens"):
        mix([trace, split_blocks(trace, 256)])
    with pytest.raises(UserError, match="hash ids of one size"):
        mix([])


def test_the_config_mixes_files(tmp_path):
    for name, at in (("a", 0), ("b", 500)):
        line = '{"timestamp": %d, "input_length": 3, "output_length": 1, "hash_ids": [0]}\n'
        (tmp_path / name).write_text("".join(line % (at + 1000 * i) for i in range(3)))
    config = WorkloadConfig(path=str(tmp_path / "a"), mix=[str(tmp_path / "b")], limit=5)
    assert [(one.arrival, one.hash_ids) for one in load_trace(config).requests] == [
        (0.0, (0,)),
        (0.5, (1,)),
        (1.0, (0,)),
        (1.5, (1,)),
        (2.0, (0,)),
    ]


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=8), st.sampled_from([1, 8, 16, 64, 256, 512]), st.integers(0, 4))
def test_finer_blocks_cover_the_prompt_and_are_shared_as_far_as_prompts_are(lengths, block_tokens, common):
    # Prompts that share their first `common` ids and no other.
    ids = iter(range(100, 10_000))
    prompts = []
    for n in lengths:
        own = [next(ids) for _ in range(-(-n // 512))]
        prompts.append(TraceRequest(0.0, n, 1, (*range(common), *own)[: len(own)]))
    split = split_blocks(Trace(tuple(prompts)), block_tokens)
    assert split.block_tokens == block_tokens
    for before, after in zip(prompts, split.requests, strict=True):
        assert (after.input_length, after.output_length) == (before.input_length, before.output_length)
        assert len(after.hash_ids) == -(-after.input_length // block_tokens)
        assert len(set(after.hash_ids)) == len(after.hash_ids)
    for i, one in enumerate(split.requests):
        for j, other in enumerate(split.requests[:i]):
            reach = min(one.input_length, other.input_length)
            equal = min(_shared(prompts[i].hash_ids, prompts[j].hash_ids) * 512, reach)
            assert _shared(one.hash_ids, other.hash_ids) == -(-equal // block_tokens)


def test_splitting_twice_is_splitting_once_and_by_its_own_size_changes_nothing():
    trace = generate(GeneratorConfig(), 0, limit=50)
    assert split_blocks(split_blocks(trace, 128), 16) == split_blocks(trace, 16)
    assert split_blocks(trace, 512) is trace


@pytest.mark.parametrize("block_size", [0, -16, 48, 1024])
def test_blocks_that_do_not_divide_those_of_the_trace_are_refused(block_size):
    with pytest.raises(UserError, match=rf"block_size={block_size} must divide the 512 tokens"):
        simulated_requests(Trace((TraceRequest(0.0, 3, 1, (0,)),)), block_size)


def test_simulated_requests_have_keys_and_no_tokens():
    trace = Trace((TraceRequest(0.5, 513, 4, (7, 9), "s"), TraceRequest(1.5, 20, 2, (7,))))
    whole, short = simulated_requests(trace)
    assert (whole.id, whole.arrival, whole.input_tokens, whole.output_tokens) == ("r000000", 0.5, 513, 4)
    assert (whole.keys, whole.session, whole.tokens, whole.deadline) == ((7, 9), "s", None, None)
    assert (short.id, short.keys, short.session) == ("r000001", (7,), None)
    assert [one.keys for one in simulated_requests(trace, 256)] == [(14, 15, 18), (14,)]


# Counted by: awk over the file, the sum of int((input_length + block_size - 1) / block_size).
@pytest.mark.parametrize(("block_size", "keys"), [(None, 288_500), (256, 571_526), (16, 9_055_233)])
def test_the_conversation_trace_keeps_its_totals_whatever_the_block_size(block_size, keys):
    live = simulated_requests(read_mooncake(published_trace("conversation")), block_size)
    assert len(live) == 12_031
    assert sum(one.input_tokens for one in live) == 144_793_823
    assert sum(one.output_tokens for one in live) == 4_122_048
    assert sum(len(one.keys) for one in live) == keys
