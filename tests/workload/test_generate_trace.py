"""The generator: figures of the published conversation trace, the structure of sessions, determinism."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.workload import GeneratorConfig, LogNormal, Normal, Trace, TraceRequest, generate

DEFAULT = GeneratorConfig()


@cache
def _hour() -> Trace:
    return generate(DEFAULT, seed=0)


def _sessions(trace: Trace) -> list[list[TraceRequest]]:
    turns = defaultdict(list)
    for one in trace.requests:
        turns[one.session].append(one)
    return list(turns.values())


def _hit_rate(trace: Trace) -> float:
    """Share of prompt tokens in leading blocks that came before, with a cache that forgets nothing."""
    seen: set[int] = set()
    hits = 0
    for one in trace.requests:
        leading = next((n for n, hash_id in enumerate(one.hash_ids) if hash_id not in seen), len(one.hash_ids))
        hits += min(leading * trace.block_tokens, one.input_length)
        seen.update(one.hash_ids)
    return hits / sum(one.input_length for one in trace.requests)


# Targets: the conversation trace as measured (12,031 requests in 3,537 s; 182,790 ids).
def test_input_lengths_are_those_of_the_conversation_trace():
    lengths = np.array([one.input_length for one in _hour().requests])
    assert lengths.mean() == pytest.approx(12_035, rel=0.05)
    assert np.median(lengths) == pytest.approx(6_909, rel=0.05)
    assert np.percentile(lengths, 90) == pytest.approx(27_367, rel=0.05)
    assert np.percentile(lengths, 99) == pytest.approx(85_400, rel=0.10)
    assert lengths.min() == pytest.approx(891, rel=0.10)


def test_output_lengths_are_those_of_the_conversation_trace():
    lengths = np.array([one.output_length for one in _hour().requests])
    assert lengths.mean() == pytest.approx(343, rel=0.03)
    assert np.median(lengths) == pytest.approx(350, rel=0.03)
    assert np.percentile(lengths, 90) == pytest.approx(597, rel=0.03)
    assert lengths.min() == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reuse_is_that_of_the_conversation_trace(seed):
    trace = _hour() if seed == 0 else generate(DEFAULT, seed)
    assert 0.36 <= _hit_rate(trace) <= 0.41
    assert len({hash_id for one in trace.requests for hash_id in one.hash_ids}) == pytest.approx(182_790, rel=0.05)


def test_arrivals_come_in_poisson_bursts_three_seconds_apart():
    arrivals = np.array([one.arrival for one in _hour().requests])
    bursts, sizes = np.unique(arrivals, return_counts=True)
    assert set(np.diff(bursts)) <= {3.0, 6.0}
    assert len(arrivals) / 3600 == pytest.approx(3.4, rel=0.03)
    assert sizes.var() / sizes.mean() == pytest.approx(1.0, abs=0.15)
    assert np.diff(arrivals).std() / np.diff(arrivals).mean() == pytest.approx(3.03, rel=0.05)


def test_without_bursts_arrivals_are_a_poisson_process():
    gaps = np.diff([one.arrival for one in generate(replace(DEFAULT, burst_interval=0.0), seed=0).requests])
    assert gaps.mean() == pytest.approx(1 / 3.4, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


def test_every_prompt_has_one_id_per_block_and_starts_with_the_system_prompt():
    trace = generate(replace(DEFAULT, system_prompt=1_100), seed=3, limit=500)
    for one in trace.requests:
        assert len(one.hash_ids) == -(-one.input_length // 512)
        assert one.input_length > 1_100
    assert {one.hash_ids[:2] for one in trace.requests} == {(0, 1)}
    assert len({one.hash_ids[2] for one in trace.requests}) > 100


def test_a_turn_extends_the_prompt_and_the_answer_before_it():
    followed = 0
    for turns in _sessions(_hour()):
        for before, after in pairwise(turns):
            full = before.input_length // 512
            assert after.arrival > before.arrival
            assert after.input_length > before.input_length + before.output_length
            assert after.hash_ids[:full] == before.hash_ids[:full]
            assert not set(after.hash_ids[full:]) & set(before.hash_ids[full:])
            followed += 1
    assert followed / len(_hour().requests) == pytest.approx(0.387, abs=0.03)


def test_an_id_has_always_the_same_prefix_and_sessions_share_only_the_system_prompt():
    before: dict[int, tuple[int, ...]] = {}
    for one in _hour().requests[:3_000]:
        assert len(set(one.hash_ids)) == len(one.hash_ids)
        for place, hash_id in enumerate(one.hash_ids[:40]):
            assert before.setdefault(hash_id, one.hash_ids[:place]) == one.hash_ids[:place]
    owners = defaultdict(set)
    for one in _hour().requests:
        for hash_id in one.hash_ids:
            owners[hash_id].add(one.session)
    assert [hash_id for hash_id, sessions in owners.items() if len(sessions) > 1] == [0]


def test_the_same_seed_gives_the_same_trace_and_another_seed_another():
    assert generate(DEFAULT, seed=5, limit=200) == generate(DEFAULT, seed=5, limit=200)
    assert generate(DEFAULT, seed=5, limit=200) != generate(DEFAULT, seed=6, limit=200)


def test_a_shorter_trace_is_the_beginning_of_a_longer_one():
    assert generate(DEFAULT, seed=0, limit=300).requests == _hour().requests[:300]
    shorter = generate(replace(DEFAULT, duration=60.0), seed=0)
    assert shorter.requests == _hour().requests[: len(shorter.requests)]
    assert shorter.requests[-1].arrival < 60


def test_lengths_and_turns_do_not_move_arrivals():
    other = replace(DEFAULT, turns=5.0, first_input=LogNormal(100.0, 0.5))
    arrivals = [one.arrival for one in generate(other, seed=0, limit=1_000).requests]
    assert arrivals == [one.arrival for one in _hour().requests[:1_000]]


def test_so_many_sessions_begin_and_the_trace_ends_with_the_last_of_them():
    config = GeneratorConfig(sessions=3, turns=4.0, think=LogNormal(5.0, 0.1), duration=1e6)
    trace = generate(config, seed=1)
    assert sorted({one.session for one in trace.requests}) == ["s000000", "s000001", "s000002"]
    assert trace.requests[-1].arrival < 1_000


def test_no_prompt_is_longer_than_the_longest_allowed():
    config = GeneratorConfig(max_input=2_000, turns=20.0, think=LogNormal(1.0, 0.0), first_input=LogNormal(1_000.0, 1.0))
    trace = generate(config, seed=0, limit=1_000)
    assert max(one.input_length for one in trace.requests) == 2_000
    assert max(len(turns) for turns in _sessions(trace)) > 1


def test_constant_lengths_and_turns_of_one_are_what_they_say():
    config = GeneratorConfig(turns=1.0, system_prompt=0, first_input=LogNormal(700.0, 0.0), output=Normal(9.0, 0.0))
    trace = generate(config, seed=0, limit=50)
    assert {(one.input_length, one.output_length) for one in trace.requests} == {(700, 9)}
    assert len({one.session for one in trace.requests}) == 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", 0.0),
        ("rate", float("nan")),
        ("duration", float("inf")),
        ("burst_interval", -1.0),
        ("sessions", 0),
        ("turns", 0.5),
        ("system_prompt", -1),
        ("max_input", 885),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=f"workload.generator.{field} must be .* but is {value}"):
        GeneratorConfig(**{field: value})


def test_distributions_out_of_range_and_a_trace_without_requests_are_refused():
    with pytest.raises(UserError, match="median 0"):
        LogNormal(0.0, 1.0)
    with pytest.raises(UserError, match="std -1"):
        Normal(5.0, -1.0)
    with pytest.raises(UserError, match="Not one request arrives"):
        generate(GeneratorConfig(rate=1e-9, duration=1.0), seed=0)
