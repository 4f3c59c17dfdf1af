"""Chooses the implementation of the two functions. The only place where a backend's name matters.

An implementation is a module of this package as `contract.py` says. Of those that fit a platform, in order, the first that does
not raise `NotImplementedError` computes.
"""

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

import jax
from jaxtyping import Array, Float, Float32, Int, Num

from mooncake_jax.attention.contract import Options, check

IMPLEMENTATIONS = ("reference", "xla", "tpu", "gpu", "triton")
_ORDER = {
    "tpu": ("tpu", "xla"),
    "gpu": ("gpu", "triton", "xla"),
    "cuda": ("gpu", "triton", "xla"),
    "cpu": ("xla",),
}


def _load(name: str) -> ModuleType:
    module = f"{__package__}.{name}"
    if importlib.util.find_spec(module) is None:
        raise NotImplementedError(f"attention implementation {name!r} is not part of this installation")
    return importlib.import_module(module)


def _call(function: str, implementation: str, platform: str | None, args: tuple, options: Options) -> Array:
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
            return call(*args, options)
        except NotImplementedError as error:
            reasons.append(f"{name}: {error}")
    shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in args if a is not None)
    raise NotImplementedError(f"no attention implementation for {function}({shapes}): {'; '.join(reasons)}")


def _options(q: Array, kv_pages: Array, kv_scales: Array | None, scale: float | None, **rest: float | int | None) -> Options:
    options = Options(q.shape[-1] ** -0.5 if scale is None else scale, **rest)
    check(q, kv_pages, kv_scales, options)
    return options


def paged_decode(
    q: Float[Array, "seqs q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    kv_scales: Float32[Array, "pages kv_rows"] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    window: int | None = None,
    implementation: str = "auto",
    platform: str | None = None,
) -> Float[Array, "seqs q_heads dim"]:
    """Attention of one query token a sequence over its paged KV; semantics in `reference.paged_decode`.

    Args:
      kv_scales: of int8 or float8_e4m3fn pages: what the numbers of a page and KV row are multiplied with.
      scale: of the scores; default dim⁻¹ᐟ².
      soft_cap, window: see `contract.Options`.
      implementation: `auto` (by `platform`, default the default backend's) or a name of `IMPLEMENTATIONS`.

    Raises ValueError for arrays that do not fit together, NotImplementedError with every candidate's reason when none fits.
    """
    options = _options(q, kv_pages, kv_scales, scale, soft_cap=soft_cap, window=window)
    return _call("paged_decode", implementation, platform, (q, kv_pages, lengths, page_table, kv_scales), options)


def chunked_prefill(
    q: Float[Array, "tokens q_heads dim"],
    kv_pages: Num[Array, "pages page kv_rows dim"],
    query_starts: Int[Array, " starts"],
    lengths: Int[Array, " seqs"],
    page_table: Int[Array, "seqs max_pages"],
    *,
    kv_scales: Float32[Array, "pages kv_rows"] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    window: int | None = None,
    implementation: str = "auto",
    platform: str | None = None,
) -> Float[Array, "tokens q_heads dim"]:
    """Causal attention of a ragged batch of query chunks over paged KV; semantics in `reference.chunked_prefill`.

    Arguments as in `paged_decode`; `query_starts` are cumulative row numbers of the chunks in `q`.
    """
    options = _options(q, kv_pages, kv_scales, scale, soft_cap=soft_cap, window=window)
    args = (q, kv_pages, query_starts, lengths, page_table, kv_scales)
    return _call("chunked_prefill", implementation, platform, args, options)
