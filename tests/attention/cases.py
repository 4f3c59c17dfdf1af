"""Ragged batches over paged KV with poisoned unused memory, and what the contract says of them in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mooncake_jax.attention import chunked_prefill, paged_decode

BOUNDS = {"float32": 2e-6, "bfloat16": 1e-2}
"""Largest relative error, in the Frobenius norm."""


@dataclass(frozen=True)
class Case:
    """Sizes and options of a batch. Decode where `counts` is None."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...] | None = None
    """Query rows of each sequence."""
    kv_heads: int = 1
    group: int = 1
    dim: int = 64
    page: int = 16
    dtype: str = "float32"
    kv_dtype: str | None = None
    """int8 or float8_e4m3fn: quantised pages."""
    padding: int = 0
    """Rows of q (prefill) or sequences of length 0 (decode) at the end."""
    max_pages: int | None = None
    options: dict[str, float | int] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "decode" if self.counts is None else "prefill"
        parts = [kind, f"kv{self.kv_heads}x{self.group}", f"dim{self.dim}", f"page{self.page}", self.kv_dtype or self.dtype]
        return "-".join([*parts, *(f"{k}={v:g}" for k, v in self.options.items()), f"{hash(self.lengths) % 1000:03d}"])

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)


@dataclass(frozen=True)
class Batch:
    """The arrays of a case, of the case's types, and `kv` and `q` as the numbers that they stand for."""

    case: Case
    q: np.ndarray
    kv_pages: np.ndarray
    kv_scales: np.ndarray | None
    starts: np.ndarray
    lengths: np.ndarray
    page_table: np.ndarray
    kv: np.ndarray
    """float64, [pages, page, kv_rows, dim]."""

    def call(self, implementation: str, **more: Any) -> Callable[[], jax.Array]:
        """The contract's function on these arrays, jitted."""
        scales, options = self.kv_scales, self.case.options | more

        def decode(q, kv, lengths, table, scales):
            return paged_decode(q, kv, lengths, table, kv_scales=scales, implementation=implementation, **options)

        def prefill(q, kv, starts, lengths, table, scales):
            call = chunked_prefill
            return call(q, kv, starts, lengths, table, kv_scales=scales, implementation=implementation, **options)

        if self.case.counts is None:
            args, function = (self.q, self.kv_pages, self.lengths, self.page_table, scales), decode
        else:
            args, function = (self.q, self.kv_pages, self.starts, self.lengths, self.page_table, scales), prefill
        args = jax.tree.map(jnp.asarray, args)
        return lambda: jax.jit(function)(*args)


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(x, dtype))


def make(case: Case) -> Batch:
    """Fresh random numbers. Pages in a random order; what no sequence may look at is NaN, or the largest number and a scale
    of NaN where pages hold integers."""
    rng = np.random.default_rng()
    lengths = [*case.lengths, *([0] * case.padding if case.counts is None else [])]
    needed = [-(-n // case.page) for n in lengths]
    max_pages = case.max_pages or max(1, *needed)
    pages = sum(needed) + 3
    order = rng.permutation(pages)
    table = np.full((len(lengths), max_pages), order[0])  # unused entries point at a poisoned page
    used, at = np.zeros((pages, case.page), bool), 1
    window = case.options.get("window", 1 << 30)
    for s, n in enumerate(lengths):
        first = max(0, n - (case.counts[s] if case.counts else 1) - window + 1)
        for j in range(needed[s]):
            table[s, j] = order[at]
            token = np.arange(j * case.page, (j + 1) * case.page)
            used[order[at]] = (token < n) & (token >= first)
            at += 1
    kv = rng.standard_normal((pages, case.page, 2 * case.kv_heads, case.dim))
    scales = None
    if case.kv_dtype is None:
        kv[~used] = np.nan
        kv_pages = _cast(kv, case.dtype)
        kv = kv_pages.astype(np.float64)
    else:
        most = 127.0 if case.kv_dtype == "int8" else 448.0
        kv[~used] = 0
        scales = (np.abs(kv).max((1, 3)) / most).astype(np.float32)
        scaled = kv / np.where(scales == 0, 1, scales)[:, None, :, None]
        scaled[~used] = most
        scales[~used.any(1)] = np.nan
        kv_pages = _cast(np.round(scaled) if case.kv_dtype == "int8" else scaled, case.kv_dtype)
        kv = kv_pages.astype(np.float64) * scales[:, None, :, None]
    counts = case.counts or [1] * len(lengths)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = int(starts[-1]) + (case.padding if case.counts else 0)
    q = _cast(rng.standard_normal((max(1, rows), case.kv_heads * case.group, case.dim)), case.dtype)
    return Batch(case, q, kv_pages, scales, starts, np.array(lengths, np.int32), table.astype(np.int32), kv)


def expected(batch: Batch) -> np.ndarray:
    """The loop of `reference.py`, in float64."""
    case = batch.case
    q = batch.q.astype(np.float64)
    out = np.zeros_like(q)
    scale = case.options.get("scale", case.dim**-0.5)
    window, cap = case.options.get("window", 1 << 30), case.options.get("soft_cap")
    for s, length in enumerate(batch.lengths):
        kv = np.concatenate([batch.kv[p] for p in batch.page_table[s]])[:length]
        count = batch.starts[s + 1] - batch.starts[s]
        for i in range(count if length else 0):
            visible = length - count + i + 1
            first = max(0, visible - window)
            for h in range(q.shape[1]):
                g = 2 * (h // case.group)
                scores = scale * (kv[first:visible, g] @ q[batch.starts[s] + i, h])
                scores = scores if cap is None else cap * np.tanh(scores / cap)
                weights = np.exp(scores - scores.max())
                out[batch.starts[s] + i, h] = (weights / weights.sum()) @ kv[first:visible, g + 1]
    return out


def relative_error(got: jax.Array, want: np.ndarray) -> float:
    """Of the whole array; NaN anywhere is an error of its own."""
    got = np.asarray(got).astype(np.float64)
    assert np.isfinite(got).all(), "NaN or infinity in the output"
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))
