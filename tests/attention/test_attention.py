"""Every implementation against a float64 loop in numpy, on ragged batches with poisoned unused memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mooncake_jax.attention import chunked_prefill, paged_decode

IMPLEMENTATIONS = ["reference", "xla"]
PAGE, DIM = 16, 64


def oracle(q, kv_pages, query_starts, lengths, page_table):
    """The loop of the docstring, in float64."""
    q, kv_pages = q.astype(np.float64), kv_pages.astype(np.float64)
    out = np.zeros_like(q)
    group = q.shape[1] // (kv_pages.shape[2] // 2)
    for s, length in enumerate(lengths):
        kv = np.concatenate([kv_pages[p] for p in page_table[s]])[:length]
        count = query_starts[s + 1] - query_starts[s]
        for i in range(count if length else 0):
            visible = length - count + i + 1
            for h in range(q.shape[1]):
                k, v = kv[:visible, 2 * (h // group)], kv[:visible, 2 * (h // group) + 1]
                scores = k @ q[query_starts[s] + i, h] / np.sqrt(q.shape[2])
                weights = np.exp(scores - scores.max())
                out[query_starts[s] + i, h] = (weights / weights.sum()) @ v
    return out


def batch(counts, lengths, kv_heads, group, dtype, rows=None, max_pages=None):
    rng = np.random.default_rng()
    needed = [-(-n // PAGE) for n in lengths]
    max_pages = max_pages or max(1, *needed)
    pages = sum(needed) + 3
    order = rng.permutation(pages)
    table = np.full((len(lengths), max_pages), order[0])  # unused entries point at a poisoned page
    kv = rng.standard_normal((pages, PAGE, 2 * kv_heads, DIM))
    used, at = np.zeros((pages, PAGE), bool), 1
    for s, n in enumerate(lengths):
        for j in range(needed[s]):
            table[s, j] = order[at]
            used[order[at], : n - j * PAGE] = True
            at += 1
    kv[~used] = np.nan
    starts = np.concatenate([[0], np.cumsum(counts)])
    q = rng.standard_normal((rows or max(1, int(starts[-1])), kv_heads * group, DIM))
    cast = lambda x: np.asarray(jnp.asarray(x, dtype))  # noqa: E731
    return cast(q), cast(kv), starts.astype(np.int32), np.asarray(lengths, np.int32), table.astype(np.int32)


def relative_error(got, want):
    got = np.asarray(got, np.float64)
    assert np.isfinite(got).all()
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3), (2, 4), (1, 8)])
@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2e-6), (jnp.bfloat16, 1e-2)])
def test_paged_decode_equals_the_loop(implementation, kv_heads, group, dtype, bound):
    lengths = [0, 1, PAGE - 1, PAGE, PAGE + 1, 300, 3]
    q, kv, starts, lengths, table = batch([1] * 7, lengths, kv_heads, group, dtype, max_pages=40)
    got = jax.jit(lambda *a: paged_decode(*a, implementation=implementation))(q, kv, lengths, table)
    assert relative_error(got, oracle(q, kv, starts, lengths, table)) < bound


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3), (1, 8)])
@pytest.mark.parametrize(
    ("counts", "lengths"),
    [([70], [70]), ([33], [210]), ([1, 0, 40, 17, 64], [1, 0, 40, 150, 64]), ([5, 90, 1, 3], [5, 333, 17, 32])],
)
@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2e-6), (jnp.bfloat16, 1e-2)])
def test_chunked_prefill_equals_the_loop(implementation, kv_heads, group, counts, lengths, dtype, bound):
    q, kv, starts, lengths, table = batch(counts, lengths, kv_heads, group, dtype, rows=sum(counts) + 9, max_pages=30)
    got = jax.jit(lambda *a: chunked_prefill(*a, implementation=implementation))(q, kv, starts, lengths, table)
    assert relative_error(got, oracle(q, kv, starts, lengths, table)) < bound
    np.testing.assert_array_equal(np.asarray(got, np.float32)[sum(counts) :], 0)


def test_a_backend_that_is_not_there_is_named_with_the_shapes():
    q, kv, _, lengths, table = map(jnp.asarray, batch([1], [5], 1, 1, jnp.float32))
    with pytest.raises(NotImplementedError, match=r"float32\[1, 1, 64\].*tpu: "):
        paged_decode(q, kv, lengths, table, implementation="tpu")
    with pytest.raises(ValueError, match="none of auto"):
        paged_decode(q, kv, lengths, table, implementation="mosaic")
