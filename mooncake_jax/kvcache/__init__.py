"""Block keys, page and block allocation, eviction, prefix index: books, no bytes."""

from mooncake_jax.kvcache.belady import Belady
from mooncake_jax.kvcache.cache import BlockCache
from mooncake_jax.kvcache.chains import ChainCache, ChainIndex, Chains
from mooncake_jax.kvcache.eviction import FIFO, LRU, EvictionPolicy
from mooncake_jax.kvcache.frequency import LFU, LengthAware
from mooncake_jax.kvcache.index import PrefixIndex
from mooncake_jax.kvcache.keys import block_keys, model_seed
from mooncake_jax.kvcache.leaf_first import PGDSF, LeafFirstLRU
from mooncake_jax.kvcache.pages import OutOfPages, PageAllocator
from mooncake_jax.kvcache.pool import BlockPool, BlockState, IllegalTransition, Reservation
from mooncake_jax.kvcache.stack_distance import stack_distances

__all__ = [
    "FIFO",
    "LFU",
    "LRU",
    "PGDSF",
    "Belady",
    "BlockCache",
    "BlockPool",
    "BlockState",
    "ChainCache",
    "ChainIndex",
    "Chains",
    "EvictionPolicy",
    "IllegalTransition",
    "LeafFirstLRU",
    "LengthAware",
    "OutOfPages",
    "PageAllocator",
    "PrefixIndex",
    "Reservation",
    "block_keys",
    "model_seed",
    "stack_distances",
]
