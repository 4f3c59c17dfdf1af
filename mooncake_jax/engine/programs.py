"""The device code of both roles: pure functions, jitted here with donation, nowhere else.

A model's KV on a device is one array a layer, [pages, page_size, 2·kv_heads, dim], heads sharded over the tensor axis.
Functions that write pages take them donated and return them. Attention and page writes run per shard of heads.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped

from mooncake_jax import attention
from mooncake_jax.engine import sampling
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.decoder import Attend, bind
from mooncake_jax.types import TENSOR_AXIS

Params = dict[str, Array]
Pages = tuple[Float[Array, "pages page kv_rows dim"], ...]

HEADS = PartitionSpec(None, TENSOR_AXIS)
PAGES = PartitionSpec(None, None, TENSOR_AXIS)
WIRE = PartitionSpec(None, None, TENSOR_AXIS)


class PrefillBatch(NamedTuple):
    """Ragged chunks of up to `seqs` requests in one flat token axis."""

    tokens: Shaped[Array, " tokens"]
    positions: Shaped[Array, " tokens"]
    page: Shaped[Array, " tokens"]
    """Page each token's KV is written to; a number past the last page writes nothing."""
    slot: Shaped[Array, " tokens"]
    """Place within that page."""
    query_starts: Shaped[Array, " starts"]
    lengths: Shaped[Array, " seqs"]
    """KV length of each request, its chunk included; 0 for padding."""
    page_table: Shaped[Array, "seqs max_pages"]
    last_rows: Shaped[Array, " seqs"]
    """Row of each request's last token, for the head."""


class DecodeBatch(NamedTuple):
    """One row a running request. Rows of length 0 are padding."""

    source: Shaped[Array, " rows"]
    """Row of this request in the step before, or -1 if its token comes from the host."""
    fresh: Shaped[Array, " rows"]
    """The token, where source is -1."""
    lengths: Shaped[Array, " rows"]
    """KV length with this step's token."""
    page_table: Shaped[Array, "rows max_pages"]


class Model(NamedTuple):
    """What the programs are specialised on, besides shapes. Hashable."""

    config: ModelConfig
    mesh: Mesh
    attention: str


def _per_shard(model: Model, function, args: tuple, specs: tuple, out: tuple):
    return jax.shard_map(function, mesh=model.mesh, in_specs=specs, out_specs=out, check_vma=False)(*args)


def _write(pages: Array, k: Array, v: Array, page: Array, slot: Array) -> Array:
    kv = jnp.stack([k, v], axis=2).reshape(k.shape[0], -1, k.shape[2])
    return pages.at[page, slot].set(kv.astype(pages.dtype), mode="drop")


def _kernel(model: Model) -> dict:
    return {"implementation": model.attention, "platform": model.mesh.devices.flat[0].platform}


def _prefill_attend(model: Model, batch: PrefillBatch) -> Attend:
    def shard(q, k, v, pages, page, slot, starts, lengths, table):
        pages = _write(pages, k, v, page, slot)
        return attention.chunked_prefill(q, pages, starts, lengths, table, **_kernel(model)), pages

    def attend(q: Array, k: Array, v: Array, pages: Array) -> tuple[Array, Array]:
        where = (batch.page, batch.slot, batch.query_starts, batch.lengths, batch.page_table)
        specs = (HEADS, HEADS, HEADS, PAGES, *[PartitionSpec()] * len(where))
        return _per_shard(model, shard, (q, k, v, pages, *where), specs, (HEADS, PAGES))

    return attend


def _decode_attend(model: Model, batch: DecodeBatch) -> Attend:
    def shard(q, k, v, pages, lengths, table):
        last = jnp.maximum(lengths - 1, 0)
        size = pages.shape[1]
        page = jnp.take_along_axis(table, (last // size)[:, None], axis=1)[:, 0]
        page = jnp.where(lengths > 0, page, pages.shape[0])
        pages = _write(pages, k, v, page, last % size)
        return attention.paged_decode(q, pages, lengths, table, **_kernel(model)), pages

    def attend(q: Array, k: Array, v: Array, pages: Array) -> tuple[Array, Array]:
        specs = (HEADS, HEADS, HEADS, PAGES, PartitionSpec(), PartitionSpec())
        return _per_shard(model, shard, (q, k, v, pages, batch.lengths, batch.page_table), specs, (HEADS, PAGES))

    return attend


def _replicated(model: Model, x: Array) -> Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(model.mesh, PartitionSpec()))


@partial(jax.jit, static_argnames="model")
def embed(model: Model, params: Params, tokens: Int[Array, " tokens"]) -> Float[Array, "tokens hidden"]:
    """Activations of tokens, replicated over the mesh."""
    return _replicated(model, bind(model.config, params, layers=0, embed=True).embed(tokens))


@partial(jax.jit, static_argnames="model", donate_argnames=("pages", "x"))
def prefill_group(
    model: Model, params: Params, pages: Pages, x: Float[Array, "tokens hidden"], batch: PrefillBatch
) -> tuple[Array, Pages]:
    """One layer group over one pass: activations out, this group's new KV written into its pages."""
    group = bind(model.config, params, layers=len(pages))
    x, pages = group(x, batch.positions, pages, _prefill_attend(model, batch))
    return _replicated(model, x), tuple(pages)


@partial(jax.jit, static_argnames=("model", "sampled"))
def first_token(
    model: Model, params: Params, x: Array, rows: Array, choice: sampling.Sampling, *, sampled: bool
) -> sampling.Sampled:
    """Tokens after the rows `rows` of a pass. `sampled` False compiles the greedy program."""
    logits = bind(model.config, params, layers=0, head=True).logits(x[rows])
    return _choose(model, logits, choice, sampled)


@partial(jax.jit, static_argnames="model", donate_argnames="pages")
def decode_step(
    model: Model, params: Params, pages: Pages, previous: Int[Array, " max_batch"], batch: DecodeBatch
) -> tuple[Float[Array, "rows vocab"], Pages]:
    """One token a request: its KV goes into its page, the logits after it come out.

    `previous` are the tokens of the step before, still on the device.
    """
    model_slice = bind(model.config, params, layers=len(pages), embed=True, head=True)
    tokens = jnp.where(batch.source >= 0, previous[jnp.maximum(batch.source, 0)], batch.fresh)
    x = _replicated(model, model_slice.embed(tokens))
    x, pages = model_slice(x, jnp.maximum(batch.lengths - 1, 0), pages, _decode_attend(model, batch))
    return model_slice.logits(_replicated(model, x)), tuple(pages)


@partial(jax.jit, static_argnames=("model", "sampled", "width"))
def choose(
    model: Model, logits: Array, choice: sampling.Sampling, *, sampled: bool, width: int
) -> tuple[sampling.Sampled, Int[Array, " width"]]:
    """Tokens of a decode step, and the same padded to `width`: what the next step takes as `previous`."""
    out = _choose(model, logits, choice, sampled)
    return out, _replicated(model, jnp.zeros((width,), jnp.int32).at[: len(out.token)].set(out.token))


def _choose(model: Model, logits: Array, choice: sampling.Sampling, sampled: bool) -> sampling.Sampled:
    logits = _replicated(model, logits)
    out = sampling.sample(logits, choice) if sampled else sampling.greedy(logits)
    return sampling.Sampled(*(_replicated(model, x) for x in out))


@partial(jax.jit, static_argnames="model")
def gather_pages(model: Model, pages: Pages, ids: Int[Array, " n"]) -> Float[Array, "layers tokens kv_rows dim"]:
    """The KV of whole pages in the wire layout."""
    kv = jnp.stack([layer[ids].reshape(-1, *layer.shape[2:]) for layer in pages])
    return jax.lax.with_sharding_constraint(kv, NamedSharding(model.mesh, WIRE))


@partial(jax.jit, static_argnames="model", donate_argnames="pages")
def load_pages(model: Model, pages: Pages, kv: Float[Array, "layers tokens kv_rows dim"], ids: Int[Array, " n"]) -> Pages:
    """Writes KV in the wire layout into whole pages; ids past the last page are dropped (padding)."""
    size = pages[0].shape[1]
    paged = kv.reshape(kv.shape[0], -1, size, *kv.shape[2:])
    return tuple(layer.at[ids].set(paged[i].astype(layer.dtype), mode="drop") for i, layer in enumerate(pages))
