"""Token ids of a trace: the same id gives the same tokens in every process, different ids differ, lengths are exact."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.types import SamplingParams
from mooncake_jax.workload import GeneratorConfig, Trace, TraceRequest, generate, requests, scale_lengths, split_by_length

# Printed by a process of its own: a digest of the tokens, and whether jax was loaded on the way.
DIGEST = """
import hashlib, sys
from mooncake_jax.workload import GeneratorConfig, generate, requests, scale_lengths
trace = scale_lengths(generate(GeneratorConfig(), 11, 40), 1 / 32)
live = requests(trace, 32_000, seed=11, low=3, reserved={7, 9})
print(hashlib.sha256(b"".join(one.tokens.tobytes() for one in live)).hexdigest(), "jax" in sys.modules)
"""


def _one(length: int, *hash_ids: int, output: int = 4, arrival: float = 0.0, session: str | None = None) -> TraceRequest:
    return TraceRequest(arrival, length, output, hash_ids, session)


def test_requests_carry_id_lengths_arrival_session_and_greedy_sampling():
    trace = Trace((_one(700, 0, 1), _one(600, 0, 2, output=9, arrival=2.5, session="s1")))
    before, after = requests(trace, 1000, timeout=30.0)
    assert (before.id, before.arrival, before.session, before.deadline) == ("r000000", 0.0, None, 30.0)
    assert (after.id, after.arrival, after.session, after.deadline) == ("r000001", 2.5, "s1", 32.5)
    assert (after.input_tokens, after.output_tokens, after.keys) == (600, 9, ())
    assert after.sampling == SamplingParams(temperature=0.0, ignore_eos=True)
    assert requests(trace, 1000)[0].deadline is None


def test_prompts_are_int32_of_the_exact_length():
    for one in requests(generate(GeneratorConfig(), seed=0, limit=40), 32_000):
        assert one.tokens.dtype == np.int32
        assert one.tokens.shape == (one.input_tokens,)


def test_an_id_gives_the_same_tokens_in_any_request_place_and_trace():
    whole, partial = requests(Trace((_one(1024, 0, 1), _one(700, 2, 1))), 32_000)
    assert (whole.tokens[512:700] == partial.tokens[512:]).all()
    (alone,) = requests(Trace((_one(512, 1),)), 32_000)
    assert (alone.tokens == whole.tokens[512:]).all()


def test_different_ids_and_different_seeds_give_different_tokens():
    trace = Trace((_one(512, 0), _one(512, 1), _one(512, 2**64 - 1)))
    blocks = [one.tokens for seed in (0, 1) for one in requests(trace, 32_000, seed=seed)]
    for i, block in enumerate(blocks):
        for other in blocks[:i]:
            assert (block != other).mean() > 0.95


def test_tokens_spread_over_the_allowed_ids_and_nothing_else():
    live = requests(Trace((_one(512 * 20, *range(20)),)), 50, low=10, reserved={0, 12, 49, 70})
    values, counts = np.unique(live[0].tokens, return_counts=True)
    assert set(values.tolist()) == set(range(10, 50)) - {12, 49}
    assert counts.max() < 1.5 * counts.mean()


def test_tokens_do_not_depend_on_the_process_or_its_hash_seed():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
    assert digests.pop().split()[1] == "False", "the workload room must not import jax"


def test_tokens_of_a_block_stay_what_they_are():
    # Philox4x64-10 keyed (seed, id). Other values here would mean that every recorded live run becomes another one.
    raw = [int(word) % 1000 for word in np.random.Philox(key=5 + (3 << 64)).random_raw(4)]
    assert requests(Trace((_one(4, 3),)), 1000, seed=5)[0].tokens.tolist() == raw == [386, 963, 82, 58]


def test_ids_that_the_vocabulary_cannot_tell_apart_are_refused():
    trace = scale_lengths(Trace((_one(512 * 300, *range(300)),)), 1 / 512)
    with pytest.raises(
        UserError, match=r"256 token ids \(vocab_size=256, low=0 and 0 reserved ids\) in blocks of 1 tokens .* 300 hash"
    ):
        requests(trace, 256)
    with pytest.raises(UserError, match="leave no token ids to draw from"):
        requests(trace, 256, low=256)
    with pytest.raises(UserError, match="leave no token ids to draw from"):
        requests(trace, 256, low=-1)


def test_over_long_requests_are_set_apart_not_dropped():
    live = requests(Trace((_one(10, 0, output=5), _one(11, 0, output=5), _one(1, 0, output=2))), 1000)
    fitting, too_long = split_by_length(live, max_tokens=15)
    assert ([one.id for one in fitting], [one.id for one in too_long]) == (["r000000", "r000002"], ["r000001"])
