"""Chooses the implementation of the two functions. The only place where a backend's name matters.

An implementation is a module of this package with `paged_decode` and `chunked_prefill` of the contract in
`reference.py`. It raises `NotImplementedError(reason)` for what it cannot do, and the next one in order is tried.
"""

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

import jax
from jaxtyping import Array, Float, Int

IMPLEMENTATIONS = ("reference", "xla", "tpu", "gpu")
_ORDER = {"tpu": ("tpu", "xla"), "gpu": ("gpu", "xla"), "cuda": ("gpu", "xla"), "cpu": ("xla",)}


def _load(name: str) -> ModuleType:
    module = f"{__package__}.{name}"
    if importlib.util.find_spec(module) is None:
        raise NotImplementedError(f"attention implementation {name!r} is not part of this installation")
    return importlib.import_module(module)


def _call(function: str, implementation: str, platform: str | None, args: tuple, scale: float) -> Array:
    if implementation == "auto":
        names = _ORDER.get(platform or jax.default_backend(), ("xla",))
    elif implementation in IMPLEMENTATIONS:
        names = (implementation,)
    else:
        raise ValueError(f"attention implementation {implementation!r} is none of auto, {', '.join(IMPLEMENTATIONS)}")
    reasons = []
    for name in names:
        try:
            call: Callable[..., Array] = getattr(_load(name), function)
            return call(*args, scale=scale)
        except NotImplementedError as error:
            reasons.append(f"{name}: {error}")
    shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in args)
    raise NotImplementedError(f"no attention implementation for {function}({shapes}): {'; '.join(reasons)}")


def paged_decode(
    q: Float[Array, "seqs q_heads dim"],
    kv_pages: Float[Array, "pages page kv_rows dim"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    scale: float | None = None,
    implementation: str = "auto",
    platform: str | None = None,
) -> Float[Array, "seqs q_heads dim"]:
    """Attention of one query token a sequence over its paged KV; semantics in `reference.paged_decode`.

    `scale` defaults to dim⁻¹ᐟ². `implementation` is `auto` (by `platform`, default the default backend's) or a name of
    `IMPLEMENTATIONS`. Raises NotImplementedError with every candidate's reason when none fits.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _call("paged_decode", implementation, platform, (q, kv_pages, lengths, page_table), scale)


def chunked_prefill(
    q: Float[Array, "tokens q_heads dim"],
    kv_pages: Float[Array, "pages page kv_rows dim"],
    query_starts: Int[Array, " starts"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    scale: float | None = None,
    implementation: str = "auto",
    platform: str | None = None,
) -> Float[Array, "tokens q_heads dim"]:
    """Causal attention of a ragged batch of query chunks over paged KV; semantics in `reference.chunked_prefill`.

    Arguments as in `paged_decode`; `query_starts` are cumulative row numbers of the chunks in `q`.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _call("chunked_prefill", implementation, platform, (q, kv_pages, query_starts, lengths, page_table), scale)
