"""Both functions in plain XLA: an online softmax over slices of the page table that stops at the longest live length.

Nothing proportional to `max_pages` is gathered, so short contexts are cheap under a wide page table. The loops have
dynamic trip counts; shapes stay static.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_TILE = 1 << 18
"""KV elements a decode loop step gathers: larger temporaries leave the CPU's cache (3 times slower at 32 sequences)."""
_KV_TOKENS = 128
"""KV tokens a prefill loop step; wide enough that the small matmuls beat the loop's overhead on CPU."""
_QUERY_ROWS = 64
"""Query rows a tile in prefill."""


class _Softmax(NamedTuple):
    """Running state of an online softmax (Milakov & Gimelshein 2018): numerator, maximum, denominator."""

    numerator: Array
    maximum: Array
    denominator: Array


def _update(state: _Softmax, scores: Array, mask: Array, values: Array, contract: str) -> _Softmax:
    scores = jnp.where(mask, scores, -jnp.inf)
    maximum = jnp.maximum(state.maximum, scores.max(-1))
    finite = jnp.where(jnp.isneginf(maximum), 0.0, maximum)
    weights = jnp.exp(scores - finite[..., None])
    decay = jnp.exp(state.maximum - finite)
    return _Softmax(
        state.numerator * decay[..., None] + jnp.einsum(contract, weights, values),
        maximum,
        state.denominator * decay + weights.sum(-1),
    )


def _finish(state: _Softmax) -> Array:
    return state.numerator / jnp.where(state.denominator == 0, 1.0, state.denominator)[..., None]


def _pad_table(page_table: Array, step: int) -> Array:
    """Pads the table to a whole number of steps. Padding points at page 0, which masks keep from being seen."""
    return jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % step)))


def paged_decode(
    q: Float[Array, "seqs q_heads dim"],
    kv_pages: Float[Array, "pages page kv_rows dim"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    scale: float,
) -> Float[Array, "seqs q_heads dim"]:
    """See `reference.paged_decode`. Reads max(lengths) tokens of every sequence, rounded up to a tile of 32 to 256."""
    seqs, q_heads, dim = q.shape
    _, page, kv2, _ = kv_pages.shape
    kv_heads = kv2 // 2
    tokens = min(max(_TILE // (seqs * kv2 * dim), 32), 256)
    step = max(1, (1 << tokens.bit_length() - 1) // page)
    table = _pad_table(page_table, step)
    query = (q.astype(jnp.float32) * scale).reshape(seqs, kv_heads, q_heads // kv_heads, dim)

    def body(i: Array, state: _Softmax) -> _Softmax:
        ids = jax.lax.dynamic_slice_in_dim(table, i * step, step, axis=1)
        position = i * step * page + jnp.arange(step * page)
        valid = position[None, :] < lengths[:, None]
        kv = kv_pages[ids].reshape(seqs, step * page, kv_heads, 2, dim).astype(jnp.float32)
        kv = jnp.where(valid[:, :, None, None, None], kv, 0.0)
        scores = jnp.einsum("skgd,stkd->skgt", query, kv[:, :, :, 0])
        return _update(state, scores, valid[:, None, None, :], kv[:, :, :, 1], "skgt,stkd->skgd")

    shape = query.shape[:3]
    state = _Softmax(jnp.zeros((*shape, dim)), jnp.full(shape, -jnp.inf), jnp.zeros(shape))
    state = jax.lax.fori_loop(0, _ceil_div(lengths.max(), step * page), body, state)
    return _finish(state).reshape(seqs, q_heads, dim).astype(q.dtype)


def chunked_prefill(
    q: Float[Array, "tokens q_heads dim"],
    kv_pages: Float[Array, "pages page kv_rows dim"],
    query_starts: Int[Array, " starts"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    scale: float,
) -> Float[Array, "tokens q_heads dim"]:
    """See `reference.chunked_prefill`. Tiles of query rows; each walks only the sequences and the KV it can see."""
    tokens, q_heads, dim = q.shape
    _, page, kv2, _ = kv_pages.shape
    kv_heads, seqs = kv2 // 2, lengths.shape[0]
    group = q_heads // kv_heads
    step = max(1, _KV_TOKENS // page)
    rows = min(_QUERY_ROWS, tokens)
    tiles = -(-tokens // rows)
    table = _pad_table(page_table, step)
    query = jnp.pad(q.astype(jnp.float32) * scale, ((0, tiles * rows - tokens), (0, 0), (0, 0)))
    query = query.reshape(tiles, rows, kv_heads, group, dim)
    counts = query_starts[1:] - query_starts[:-1]

    def tile(args: tuple[Array, Array]) -> Array:
        block, first_row = args
        row = first_row + jnp.arange(rows)
        seq = jnp.searchsorted(query_starts, row, side="right") - 1
        first_seq, last_seq = jnp.maximum(seq[0], 0), jnp.minimum(seq[-1], seqs - 1)

        def over_sequence(s: Array, state: _Softmax) -> _Softmax:
            mine = (row >= query_starts[s]) & (row < query_starts[s + 1])
            position = lengths[s] - counts[s] + row - query_starts[s]
            visible = jnp.max(jnp.where(mine, position + 1, 0))

            def over_kv(i: Array, state: _Softmax) -> _Softmax:
                ids = jax.lax.dynamic_slice(table, (s, i * step), (1, step))[0]
                token = i * step * page + jnp.arange(step * page)
                kv = kv_pages[ids].reshape(step * page, kv_heads, 2, dim).astype(jnp.float32)
                kv = jnp.where((token < visible)[:, None, None, None], kv, 0.0)
                mask = mine[:, None] & (token[None, :] <= position[:, None])
                scores = jnp.einsum("rkgd,tkd->kgrt", block, kv[:, :, 0])
                return _update(state, scores, mask[None, None], kv[:, :, 1], "kgrt,tkd->kgrd")

            return jax.lax.fori_loop(0, _ceil_div(visible, step * page), over_kv, state)

        shape = (kv_heads, group, rows)
        state = _Softmax(jnp.zeros((*shape, dim)), jnp.full(shape, -jnp.inf), jnp.zeros(shape))
        state = jax.lax.fori_loop(first_seq, last_seq + 1, over_sequence, state)
        return _finish(state).transpose(2, 0, 1, 3).reshape(rows, q_heads, dim)

    out = jax.lax.map(tile, (query, jnp.arange(tiles) * rows))
    return out.reshape(tiles * rows, q_heads, dim)[:tokens].astype(q.dtype)


def _ceil_div(a: Array, b: int) -> Array:
    """⌈a / b⌉ of a traced integer."""
    return (a + b - 1) // b
