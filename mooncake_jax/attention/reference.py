"""The semantics of both functions, written to be read. Gathers whole caches; for tests and for tiny inputs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Num

from mooncake_jax.attention.contract import Options


def paged_decode(
    q: Float[Array, "seqs q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    kv_scales: Float32[Array, "pages kv_rows"] | None,
    options: Options,
) -> Float[Array, "seqs q_heads dim"]:
    """One query token a sequence over that sequence's paged KV.

    `kv_rows` is 2·kv_heads: row 2g of a token holds K of head g, row 2g+1 its V.

    As a loop::

        for s in range(seqs):
            for h in range(q_heads):
                g = h // (q_heads // kv_heads)
                for t in range(max(0, lengths[s] - window), lengths[s]):
                    page = page_table[s, t // page_size]
                    k[t] = kv_pages[page, t % page_size, 2 * g] * kv_scales[page, 2 * g]
                    v[t] = kv_pages[page, t % page_size, 2 * g + 1] * kv_scales[page, 2 * g + 1]
                    score[t] = cap(scale * k[t] @ q[s, h])              # cap(x) = soft_cap * tanh(x / soft_cap)
                out[s, h] = softmax(score) @ v                          # zeros when lengths[s] == 0

    Without `kv_scales` they are 1, without `window` it is infinite, without `soft_cap` cap(x) = x. `lengths` counts the query's
    own token, whose K and V are already in their page. Nothing of a page beyond the length or before the window counts, NaN or
    not; page table entries beyond the length may be any page.
    """
    starts = jnp.arange(q.shape[0] + 1, dtype=jnp.int32)
    return chunked_prefill(q, kv_pages, starts, lengths, page_table, kv_scales, options)


def chunked_prefill(
    q: Float[Array, "tokens q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    query_starts: Int[Array, " starts"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    kv_scales: Float32[Array, "pages kv_rows"] | None,
    options: Options,
) -> Float[Array, "tokens q_heads dim"]:
    """A ragged batch of query chunks; each sequence's KV holds its cached prefix and the chunk itself.

    `query_starts` [seqs + 1] are the cumulative row numbers of the chunks in `q`.

    As a loop::

        for s in range(seqs):
            count = query_starts[s + 1] - query_starts[s]
            for i in range(count):
                t = query_starts[s] + i
                visible = lengths[s] - count + i + 1      # whole prefix, then causal inside the chunk
                out[t] = paged_decode of q[t] over the first `visible` tokens of sequence s

    Rows outside every sequence (`t >= query_starts[-1]`, padding) give zeros, as do those of a sequence of length 0.
    """
    tokens, q_heads, dim = q.shape
    _, page, kv2, _ = kv_pages.shape
    kv_heads, seqs = kv2 // 2, lengths.shape[0]
    context = page_table.shape[1] * page
    wide = jnp.promote_types(q.dtype, jnp.float32)

    row = jnp.arange(tokens)
    seq = jnp.searchsorted(query_starts, row, side="right") - 1
    live = (seq >= 0) & (seq < seqs) & (row < query_starts[-1])
    seq = jnp.clip(seq, 0, seqs - 1)
    position = lengths[seq] - (query_starts[seq + 1] - query_starts[seq]) + row - query_starts[seq]

    gathered = kv_pages[page_table]
    if kv_scales is not None:
        gathered = gathered.astype(wide) * kv_scales[page_table][:, :, None, :, None]
    kv = gathered.reshape(seqs, context, kv_heads, 2, dim)[seq]
    keys = jnp.repeat(kv[:, :, :, 0], q_heads // kv_heads, axis=2)
    values = jnp.repeat(kv[:, :, :, 1], q_heads // kv_heads, axis=2)
    token = jnp.arange(context)[None, :]
    mask = (token <= position[:, None]) & (lengths[seq] > 0)[:, None] & live[:, None]
    if options.window is not None:
        mask &= token > position[:, None] - options.window
    scores = jnp.einsum("thd,tchd->thc", q, keys, preferred_element_type=wide) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    weights = jax.nn.softmax(jnp.where(mask[:, None, :], scores, -jnp.inf), axis=-1)
    weights = jnp.where(mask[:, None, :], weights, 0)
    values = jnp.where(mask[:, :, None, None], values, 0)  # pages beyond the length may hold anything, NaN included
    return jnp.einsum("thc,tchd->thd", weights, values).astype(q.dtype)
