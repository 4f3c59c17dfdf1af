"""Attention over paged KV: one contract, several implementations, one dispatcher."""

from mooncake_jax.attention.dispatch import IMPLEMENTATIONS, chunked_prefill, paged_decode

__all__ = ["IMPLEMENTATIONS", "chunked_prefill", "paged_decode"]
