"""What every implementation is called with, beyond the arrays, and what is refused before any of them is.

An implementation is a module of this package with two functions,

    paged_decode(q, kv_pages, lengths, page_table, kv_scales, options)
    chunked_prefill(q, kv_pages, query_starts, lengths, page_table, kv_scales, options)

of the semantics that `reference.py` states. It raises `NotImplementedError(reason)` for what it cannot do.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

QUANTISED = ("int8", "float8_e4m3fn")
"""Types of KV pages that come with scales."""


@dataclass(frozen=True)
class Options:
    """What changes the mathematics. Hashable: kernels are specialised on it."""

    scale: float
    """Scores are q @ k times this."""
    soft_cap: float | None = None
    """Scores s become soft_cap * tanh(s / soft_cap), as in Gemma 2."""
    window: int | None = None
    """A token sees itself and at most `window` - 1 tokens before it, as in Mistral."""


def check(q: Array, kv_pages: Array, kv_scales: Array | None, options: Options) -> None:
    """Raises ValueError, with the shapes, for arrays or options that no implementation can take."""
    pages, _, rows, dim = kv_pages.shape
    shapes = f"q {q.dtype}{list(q.shape)}, kv_pages {kv_pages.dtype}{list(kv_pages.shape)}"
    if rows % 2 or q.shape[1] % (rows // 2) or q.shape[2] != dim:
        raise ValueError(f"{shapes}: query heads must be a whole multiple of KV heads (kv_rows / 2), of the same dim")
    if (kv_pages.dtype.name in QUANTISED) != (kv_scales is not None):
        raise ValueError(f"{shapes}: pages of {' or '.join(QUANTISED)} come with kv_scales, and no others")
    if kv_scales is not None and kv_scales.shape != (pages, rows):
        raise ValueError(f"{shapes}: kv_scales must be [pages, kv_rows] = {[pages, rows]}, not {list(kv_scales.shape)}")
    if kv_scales is not None and kv_scales.dtype != jnp.float32:
        raise ValueError(f"{shapes}: kv_scales must be float32, not {kv_scales.dtype}")
    if options.soft_cap is not None and options.soft_cap <= 0:
        raise ValueError(f"soft_cap={options.soft_cap} must be above 0")
    if options.window is not None and options.window < 1:
        raise ValueError(f"window={options.window} must be at least 1")
