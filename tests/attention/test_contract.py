"""Every implementation against a float64 loop in numpy, on ragged batches with poisoned unused memory."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import BOUNDS, Case, expected, make, relative_error
from interpret import IMPLEMENTATIONS

from mooncake_jax.attention import chunked_prefill, paged_decode
from mooncake_jax.attention.contract import Options, check

DECODE = Case(lengths=(0, 1, 15, 16, 17, 100, 3), max_pages=9)
SPREAD = Case(lengths=(2, 200, 33), max_pages=20)
PREFILL = Case(lengths=(1, 0, 40, 75, 15), counts=(1, 0, 40, 17, 3), padding=9, max_pages=10)
OPTIONS = ({"soft_cap": 3.0}, {"window": 20}, {"window": 1}, {"scale": 0.3, "soft_cap": 5.0, "window": 33})
QUANTISED = ("int8", "float8_e4m3fn")
SHAPES = ((1, 1), (3, 3), (2, 4), (1, 8))
"""KV heads and query heads to each."""

CASES = [
    *[DECODE.but(kv_heads=k, group=g, dtype=dtype) for k, g in SHAPES for dtype in BOUNDS],
    *[PREFILL.but(kv_heads=k, group=g, dtype=dtype) for k, g in SHAPES for dtype in BOUNDS],
    *[DECODE.but(kv_heads=2, group=3, dim=dim, dtype="bfloat16") for dim in (128, 256)],
    *[PREFILL.but(kv_heads=2, group=3, dim=dim, dtype="bfloat16") for dim in (128, 256)],
    *[base.but(page=page, kv_heads=2, group=2, dim=128) for base in (DECODE, PREFILL) for page in (32, 64, 128)],
    *[base.but(lengths=(page - 1, page, page + 1), max_pages=None, page=page) for base in (DECODE,) for page in (32, 128)],
    SPREAD.but(kv_heads=2, group=4),
    SPREAD.but(counts=(2, 2, 1), group=4),
    SPREAD.but(counts=(2, 150, 33), kv_heads=2, group=2, dtype="bfloat16"),
    *[base.but(options=options, kv_heads=2, group=2) for base in (DECODE, PREFILL) for options in OPTIONS],
    *[base.but(kv_dtype=kv, kv_heads=2, group=4, dtype="bfloat16") for base in (DECODE, PREFILL) for kv in QUANTISED],
    DECODE.but(kv_dtype="int8", page=32, dim=128, group=8, options={"window": 40}, dtype="bfloat16"),
    PREFILL.but(kv_dtype="int8", page=32, dim=128, group=8, options={"window": 40}, dtype="bfloat16"),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_implementation_equals_the_loop(implementation, case):
    batch = make(case)
    with IMPLEMENTATIONS[implementation]():
        got = batch.call(implementation)()
        got.block_until_ready()
    assert relative_error(got, expected(batch)) < BOUNDS[case.dtype]
    rows = sum(case.counts) if case.counts else len(case.lengths)
    np.testing.assert_array_equal(np.asarray(got, np.float32)[rows:], 0)


def small(**changes):
    batch = make(Case(lengths=(5,), group=2).but(**changes))
    return [jnp.asarray(x) for x in (batch.q, batch.kv_pages, batch.lengths, batch.page_table)]


def test_what_nothing_can_compute_is_named_with_the_shapes():
    q, kv, lengths, table = small(dim=48)
    with pytest.raises(NotImplementedError, match=r"float32\[1, 2, 48\].*tpu: "):
        paged_decode(q, kv, lengths, table, implementation="tpu")
    with pytest.raises(ValueError, match="none of auto"):
        paged_decode(q, kv, lengths, table, implementation="mosaic")


def test_arrays_that_do_not_fit_are_refused_with_their_shapes():
    q, kv, lengths, table = small(kv_heads=2)
    starts, plain = jnp.array([0, 1], jnp.int32), Options(1.0)
    with pytest.raises(ValueError, match=r"q float32\[1, 3, 64\].*must be a whole multiple of KV heads"):
        paged_decode(q[:, :3], kv, lengths, table)
    with pytest.raises(ValueError, match=r"q float32\[1, 4, 32\].*of the same dim"):
        check(q[..., :32], kv, None, plain)
    with pytest.raises(ValueError, match="come with kv_scales"):
        chunked_prefill(q, kv.astype(jnp.int8), starts, lengths, table)
    with pytest.raises(ValueError, match=r"kv_scales must be \[pages, kv_rows\] = \[4, 4\], not \[9, 4\]"):
        check(q, kv.astype(jnp.int8), jnp.ones((9, 4)), plain)
    with pytest.raises(ValueError, match="kv_scales must be float32, not bfloat16"):
        check(q, kv.astype(jnp.int8), jnp.ones((4, 4), jnp.bfloat16), plain)
    with pytest.raises(ValueError, match="window=0 must be at least 1"):
        paged_decode(q, kv, lengths, table, window=0)
    with pytest.raises(ValueError, match=r"soft_cap=0\.0 must be above 0"):
        paged_decode(q, kv, lengths, table, soft_cap=0.0)
