"""Block keys: equal key iff equal whole prefix, in every process."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.kvcache import block_keys, model_seed

PROMPT = np.arange(64, dtype=np.int32) * 7919
SEED = model_seed("smollm2-135m/float32")


def test_the_hash_is_xxh3_64_with_its_published_value_for_no_input():
    # XSUM_XXH3_testdata of the xxHash repository: length 0, seed 0.
    assert model_seed("") == 0x2D06800538D394C2


def test_keys_follow_the_written_scheme_byte_by_byte():
    import struct

    import xxhash

    tokens = [5, 70_000, 2**31, 2**32 - 1]
    first = xxhash.xxh3_64_intdigest(struct.pack("<II", *tokens[:2]), 11)
    second = xxhash.xxh3_64_intdigest(struct.pack("<QII", first, *tokens[2:]), 11)
    assert block_keys(np.array(tokens, np.uint32), 2, 11) == (first, second)


def test_only_whole_blocks_have_keys():
    assert len(block_keys(PROMPT, 16, SEED)) == 4
    assert len(block_keys(PROMPT[:63], 16, SEED)) == 3
    assert block_keys(PROMPT[:15], 16, SEED) == ()
    assert block_keys(PROMPT[:0], 16, SEED) == ()


def test_integer_width_and_memory_layout_do_not_matter():
    keys = block_keys(PROMPT, 16, SEED)
    assert block_keys(PROMPT.astype(np.uint32), 16, SEED) == keys
    assert block_keys(PROMPT.astype(np.int64), 16, SEED) == keys
    assert block_keys(np.repeat(PROMPT, 2)[::2], 16, SEED) == keys
    assert block_keys(PROMPT.astype(">u4"), 16, SEED) == keys


def test_model_identity_isolates_every_key():
    other = block_keys(PROMPT, 16, model_seed("smollm2-135m/bfloat16"))
    assert not set(other) & set(block_keys(PROMPT, 16, SEED))


@given(
    st.lists(st.integers(0, 3), max_size=24),
    st.lists(st.integers(0, 3), max_size=24),
    st.integers(1, 5),
)
def test_keys_are_equal_exactly_where_whole_prefixes_are(a: list[int], b: list[int], block_size: int):
    keys_a, keys_b = (block_keys(np.array(tokens, np.int32), block_size, SEED) for tokens in (a, b))
    for i, key in enumerate(keys_a):
        for j, other in enumerate(keys_b):
            same_prefix = a[: (i + 1) * block_size] == b[: (j + 1) * block_size]
            assert (key == other) == same_prefix


def test_keys_are_equal_in_fresh_processes_with_different_hash_seeds():
    program = (
        "import numpy as np; from mooncake_jax.kvcache import block_keys, model_seed;"
        "print(block_keys(np.arange(64, dtype=np.int32) * 7919, 16, model_seed('smollm2-135m/float32')))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    ]
    assert outputs == [f"{block_keys(PROMPT, 16, SEED)}\n"] * 2


@pytest.mark.parametrize("tokens", [np.array([1, -1], np.int32), np.array([1, 2**32], np.int64)])
def test_a_token_that_is_no_u32_is_refused(tokens: np.ndarray):
    with pytest.raises(ValueError, match="token ids span"):
        block_keys(tokens, 2, SEED)


def test_a_block_size_or_seed_out_of_range_is_refused():
    with pytest.raises(ValueError, match="block_size is 0"):
        block_keys(PROMPT, 0, SEED)
    with pytest.raises(ValueError, match="seed is -1"):
        block_keys(PROMPT, 16, -1)
