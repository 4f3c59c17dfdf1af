"""Scaling, speed and limit: the sharing of prefixes survives; the config applies them in one go."""

import inspect
import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mooncake_jax.errors import UserError
from mooncake_jax.workload import (
    GeneratorConfig,
    Trace,
    TraceRequest,
    WorkloadConfig,
    first,
    generate,
    load_trace,
    requests,
    scale_lengths,
    set_output,
    speed_up,
)


def _trace(*lengths: int) -> Trace:
    return Trace(tuple(TraceRequest(float(i), n, n, tuple(range(-(-n // 512)))) for i, n in enumerate(lengths)))


@settings(deadline=None)
@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=20), st.integers(1, 2048))
def test_scaled_lengths_keep_one_id_per_block_and_full_blocks_full(lengths, block_tokens):
    trace = _trace(*lengths)
    scaled = scale_lengths(trace, block_tokens / 512)
    assert scaled.block_tokens == block_tokens
    for before, after in zip(trace.requests, scaled.requests, strict=True):
        assert after.hash_ids == before.hash_ids
        assert len(after.hash_ids) == -(-after.input_length // block_tokens)
        assert after.input_length // block_tokens >= before.input_length // 512
        assert 0 <= after.input_length - before.input_length * block_tokens / 512 < 1
        assert abs(after.output_length - before.output_length * block_tokens / 512) <= max(0.5, 1 - block_tokens / 512)


def test_lengths_round_as_documented_and_never_reach_zero():
    scaled = scale_lengths(_trace(1, 512, 513, 700), 1 / 64)
    assert [(one.input_length, one.output_length) for one in scaled.requests] == [(1, 1), (8, 8), (9, 8), (11, 11)]


def test_scaling_by_one_changes_nothing_and_twice_a_half_is_a_quarter():
    trace = generate(GeneratorConfig(), seed=0, limit=50)
    assert scale_lengths(trace, 1.0) == trace
    halves, quarter = scale_lengths(scale_lengths(trace, 0.5), 0.5), scale_lengths(trace, 0.25)
    assert halves.block_tokens == quarter.block_tokens == 128
    assert [one.input_length for one in halves.requests] == [one.input_length for one in quarter.requests]


@pytest.mark.parametrize("scale", [1 / 1024, 0.01, 1 / 3, 0.0, -0.5, float("nan"), float("inf")])
def test_a_scale_without_whole_blocks_is_refused_with_a_power_of_two_that_works(scale):
    with pytest.raises(UserError, match=rf"workload\.scale={scale} makes blocks of 512 × .* such as 0\.03125 "):
        scale_lengths(_trace(700), scale)
    assert scale_lengths(_trace(700), 0.03125).block_tokens == 16


def test_scaled_prompts_share_exactly_the_blocks_that_the_trace_shares():
    config = GeneratorConfig(sessions=4, turns=6.0, duration=1e5)
    trace = scale_lengths(generate(config, seed=0), 1 / 64)
    live = requests(trace, vocab_size=50_000)
    for i, one in enumerate(trace.requests):
        for j, other in enumerate(trace.requests[:i]):
            shared = next((n for n, pair in enumerate(zip(one.hash_ids, other.hash_ids)) if pair[0] != pair[1]), None)
            if shared is None:  # one prompt's ids lead the other's
                shared = min(len(one.hash_ids), len(other.hash_ids))
            end = (shared + 1) * trace.block_tokens
            assert (live[i].tokens[: shared * 8] == live[j].tokens[: shared * 8]).all()
            assert live[i].tokens[:end].tolist() != live[j].tokens[:end].tolist()


def test_speed_divides_arrivals_and_limit_takes_the_first():
    assert [one.arrival for one in speed_up(_trace(5, 5, 5), 4.0).requests] == [0.0, 0.25, 0.5]
    assert first(_trace(5, 6, 7), 2) == _trace(5, 6)
    assert first(_trace(5, 6, 7), 99) == _trace(5, 6, 7)
    with pytest.raises(UserError, match=r"workload\.speed must be more than 0 and finite, but is 0\.0"):
        speed_up(_trace(5), 0.0)
    with pytest.raises(UserError, match=r"workload\.limit must be 1 or more, or null, but is 0"):
        first(_trace(5), 0)


def test_the_config_reads_a_file_and_applies_limit_speed_and_scale(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = {"input_length": 700, "output_length": 64, "hash_ids": [3, 4]}
    path.write_text("".join(json.dumps({"timestamp": ms} | line) + "\n" for ms in (0, 4000, 8000)))
    trace = load_trace(WorkloadConfig(path=str(path), speed=2.0, scale=1 / 64, limit=2))
    assert trace == Trace((TraceRequest(0.0, 11, 1, (3, 4)), TraceRequest(2.0, 11, 1, (3, 4))), block_tokens=8)


def test_every_request_generates_as_many_tokens_as_the_config_says_whatever_the_scale():
    plain, changed = (load_trace(WorkloadConfig(limit=9, scale=1 / 64, output=output)) for output in (None, 3))
    assert {one.output_length for one in changed.requests} == {3}
    assert [one.hash_ids for one in changed.requests] == [one.hash_ids for one in plain.requests]
    with pytest.raises(UserError, match=r"workload\.output must be 1 or more, or null, but is 0"):
        set_output(_trace(5), 0)


def test_the_config_without_a_path_generates_by_seed():
    assert load_trace(WorkloadConfig(seed=4, limit=30)) == generate(GeneratorConfig(), seed=4, limit=30)


@pytest.mark.parametrize(("field", "value"), [("speed", 0.0), ("scale", -1.0), ("limit", 0), ("output", 0), ("seed", -1)])
def test_a_config_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=f"workload.{field} must be .* but is {value}"):
        WorkloadConfig(**{field: value})


def test_the_config_is_a_schema_for_hydra_and_comes_back_the_same():
    schema = OmegaConf.structured(WorkloadConfig)
    for node in (schema, schema.generator, schema.generator.first_input):
        OmegaConf.set_readonly(node, None)  # omegaconf makes the nodes of frozen dataclasses read-only
    chosen = {"limit": 7, "path": "a", "mix": ["b"], "window": [0, 600], "generator": {"first_input": {"median": 90}}}
    config = OmegaConf.to_object(OmegaConf.merge(schema, chosen))
    assert isinstance(config, WorkloadConfig)
    assert (config.limit, config.mix, config.window, config.generator.first_input.median) == (7, ["b"], [0.0, 600.0], 90.0)
    assert OmegaConf.to_object(OmegaConf.structured(WorkloadConfig)) == WorkloadConfig()


@pytest.mark.parametrize("config", [WorkloadConfig, GeneratorConfig])
def test_every_field_of_a_config_has_a_docstring_under_it(config):
    lines = [line.strip() for line in inspect.getsource(config).splitlines()]
    for one in fields(config):
        place = next(n for n, line in enumerate(lines) if line.startswith(f"{one.name}: "))
        assert lines[place + 1].startswith('"""'), one.name
