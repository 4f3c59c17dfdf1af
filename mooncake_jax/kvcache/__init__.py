"""Block keys, page and block allocation, eviction, prefix index: books, no bytes."""

from mooncake_jax.kvcache.eviction import LRU, EvictionPolicy
from mooncake_jax.kvcache.index import PrefixIndex
from mooncake_jax.kvcache.keys import block_keys, model_seed
from mooncake_jax.kvcache.pages import OutOfPages, PageAllocator
from mooncake_jax.kvcache.pool import BlockPool, BlockState, IllegalTransition, Reservation

__all__ = [
    "LRU",
    "BlockPool",
    "BlockState",
    "EvictionPolicy",
    "IllegalTransition",
    "OutOfPages",
    "PageAllocator",
    "PrefixIndex",
    "Reservation",
    "block_keys",
    "model_seed",
]
