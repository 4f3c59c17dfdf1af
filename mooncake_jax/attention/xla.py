"""Both functions in plain XLA: an online softmax over slices of the page table that stops at the longest live length.

Nothing proportional to `max_pages` is gathered, so short contexts are cheap under a wide page table. The loops have
dynamic trip counts; shapes stay static.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Num

from mooncake_jax.attention.contract import Options

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


def _update(state: _Softmax, scores: Array, mask: Array, values: Array, contract: str, options: Options) -> _Softmax:
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
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


def _gather(kv_pages: Array, kv_scales: Array | None, ids: Array) -> Float[Array, "... tokens kv_heads two dim"]:
    """KV of pages `ids` [..., n] in float32, with the scales worked in, as [..., n * page, kv_heads, 2, dim]."""
    _, page, kv2, dim = kv_pages.shape
    kv = kv_pages[ids].astype(jnp.float32)
    if kv_scales is not None:
        kv = kv * kv_scales[ids][..., None, :, None]
    return kv.reshape(*ids.shape[:-1], ids.shape[-1] * page, kv2 // 2, 2, dim)


def _pad_table(page_table: Array, step: int) -> Array:
    """Pads the table to a whole number of steps. Padding points at page 0, which masks keep from being seen."""
    return jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % step)))


def paged_decode(
    q: Float[Array, "seqs q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    kv_scales: Float32[Array, "pages kv_rows"] | None,
    options: Options,
) -> Float[Array, "seqs q_heads dim"]:
    """See `reference.paged_decode`. Reads max(lengths) tokens of every sequence, rounded up to a tile of 32 to 256."""
    seqs, q_heads, dim = q.shape
    _, page, kv2, _ = kv_pages.shape
    kv_heads = kv2 // 2
    tokens = min(max(_TILE // (seqs * kv2 * dim), 32), 256)
    step = max(1, (1 << tokens.bit_length() - 1) // page)
    table = _pad_table(page_table, step)
    first = _first_visible(lengths - 1, options)
    query = (q.astype(jnp.float32) * options.scale).reshape(seqs, kv_heads, q_heads // kv_heads, dim)

    def body(i: Array, state: _Softmax) -> _Softmax:
        ids = jax.lax.dynamic_slice_in_dim(table, i * step, step, axis=1)
        position = i * step * page + jnp.arange(step * page)
        valid = (position[None, :] < lengths[:, None]) & (position[None, :] >= first[:, None])
        kv = jnp.where(valid[:, :, None, None, None], _gather(kv_pages, kv_scales, ids), 0.0)
        scores = jnp.einsum("skgd,stkd->skgt", query, kv[:, :, :, 0])
        return _update(state, scores, valid[:, None, None, :], kv[:, :, :, 1], "skgt,stkd->skgd", options)

    shape = query.shape[:3]
    state = _Softmax(jnp.zeros((*shape, dim)), jnp.full(shape, -jnp.inf), jnp.zeros(shape))
    begin = jnp.min(jnp.where(lengths > 0, first, lengths.max())) // (step * page)
    state = jax.lax.fori_loop(begin, _ceil_div(lengths.max(), step * page), body, state)
    return _finish(state).reshape(seqs, q_heads, dim).astype(q.dtype)


def chunked_prefill(
    q: Float[Array, "tokens q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    query_starts: Int[Array, " starts"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    kv_scales: Float32[Array, "pages kv_rows"] | None,
    options: Options,
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
    query = jnp.pad(q.astype(jnp.float32) * options.scale, ((0, tiles * rows - tokens), (0, 0), (0, 0)))
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
            first = _first_visible(position, options)
            earliest = jnp.min(jnp.where(mine, first, visible))
            begin = earliest // (step * page)

            def over_kv(i: Array, state: _Softmax) -> _Softmax:
                ids = jax.lax.dynamic_slice(table, (s, i * step), (1, step))[0]
                token = i * step * page + jnp.arange(step * page)
                seen = (token < visible) & (token >= earliest)
                kv = jnp.where(seen[:, None, None, None], _gather(kv_pages, kv_scales, ids), 0.0)
                mask = mine[:, None] & (token[None, :] <= position[:, None]) & (token[None, :] >= first[:, None])
                scores = jnp.einsum("rkgd,tkd->kgrt", block, kv[:, :, 0])
                return _update(state, scores, mask[None, None], kv[:, :, 1], "kgrt,tkd->kgrd", options)

            return jax.lax.fori_loop(begin, _ceil_div(visible, step * page), over_kv, state)

        shape = (kv_heads, group, rows)
        state = _Softmax(jnp.zeros((*shape, dim)), jnp.full(shape, -jnp.inf), jnp.zeros(shape))
        state = jax.lax.fori_loop(first_seq, last_seq + 1, over_sequence, state)
        return _finish(state).transpose(2, 0, 1, 3).reshape(rows, q_heads, dim)

    out = jax.lax.map(tile, (query, jnp.arange(tiles) * rows))
    return out.reshape(tiles * rows, q_heads, dim)[:tokens].astype(q.dtype)


def _first_visible(position: Array, options: Options) -> Array:
    """The first token that the token at `position` sees."""
    return jnp.zeros_like(position) if options.window is None else jnp.maximum(position - options.window + 1, 0)


def _ceil_div(a: Array, b: int) -> Array:
    """⌈a / b⌉ of a traced integer."""
    return (a + b - 1) // b
