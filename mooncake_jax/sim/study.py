"""Cache studies without time: what one pool hits when a trace passes through it in the order of the file.

The setting of arXiv Table 1 and FAST Fig 9. A request hits its leading blocks that are cached, as many as come before the first
that is not; then all its blocks are used, first to last: a cached one is touched, another comes. A hit block counts its tokens,
up to the end of the prompt (the last one too: whether a prompt may be hit whole is a question of the timed world).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache.eviction import EvictionPolicy
from mooncake_jax.kvcache.stack_distance import NEVER, stack_distances
from mooncake_jax.workload import Trace


@dataclass(frozen=True)
class CacheStudy:
    """What each request of a trace hit."""

    hit_blocks: Int64[np.ndarray, "requests"]
    blocks: Int64[np.ndarray, "requests"]
    hit_tokens: Int64[np.ndarray, "requests"]
    input_tokens: Int64[np.ndarray, "requests"]

    @property
    def block_rate(self) -> float:
        """Hit blocks over all blocks."""
        return float(self.hit_blocks.sum() / self.blocks.sum())

    @property
    def token_rate(self) -> float:
        """Hit tokens over all input tokens."""
        return float(self.hit_tokens.sum() / self.input_tokens.sum())

    def second_half(self) -> "CacheStudy":
        """The same with the first half of the requests, n // 2 of them, taken as warm-up and not counted."""
        rest = slice(len(self.blocks) // 2, None)
        return CacheStudy(self.hit_blocks[rest], self.blocks[rest], self.hit_tokens[rest], self.input_tokens[rest])


def study(trace: Trace, capacity: int, policy: Callable[[], EvictionPolicy], *, bypass: bool = False) -> CacheStudy:
    """Passes `trace` through a cache of `capacity` blocks that `policy()` orders.

    A full cache lets a block go before it takes one in. With `bypass` it takes the new one in first, which may then be the very
    one to leave: what it holds was worth more. Raises UserError for a capacity below 1.
    """
    _check_capacity(capacity)
    order = policy()
    cached: set[int] = set()

    def leave() -> None:
        gone = next(order.order())
        order.remove(gone)
        cached.remove(gone)

    hit_blocks = np.zeros(len(trace.requests), np.int64)
    for number, request in enumerate(trace.requests):
        keys = request.hash_ids
        hit_blocks[number] = next((i for i, key in enumerate(keys) if key not in cached), len(keys))
        parent = None
        for position, key in enumerate(keys):
            if key in cached:
                order.touch(key)
            else:
                full = len(cached) == capacity
                if full and not bypass:
                    leave()
                order.insert(key, parent, position)
                cached.add(key)
                if full and bypass:
                    leave()
            parent = key
    blocks = np.array([len(request.hash_ids) for request in trace.requests], np.int64)
    input_tokens = np.array([request.input_length for request in trace.requests], np.int64)
    return CacheStudy(hit_blocks, blocks, np.minimum(hit_blocks * trace.block_tokens, input_tokens), input_tokens)


@dataclass(frozen=True)
class LRUCurve:
    """What LRU hits at every capacity."""

    needed: Int64[np.ndarray, "blocks"]
    """Capacity in blocks from which on a block that can be hit is, in ascending order."""
    tokens: Int64[np.ndarray, "blocks"]
    """Tokens of that block and of all before it in this order."""
    input_tokens: int

    def hit_blocks(self, capacity: int) -> int:
        """Blocks hit by a cache of `capacity` blocks. Raises UserError for a capacity below 1."""
        _check_capacity(capacity)
        return int(np.searchsorted(self.needed, capacity, side="right"))

    def hit_tokens(self, capacity: int) -> int:
        """Tokens hit by a cache of `capacity` blocks. Raises UserError for a capacity below 1."""
        blocks = self.hit_blocks(capacity)
        return int(self.tokens[blocks - 1]) if blocks else 0

    def token_rate(self, capacity: int) -> float:
        """Hit tokens over all input tokens."""
        return self.hit_tokens(capacity) / self.input_tokens


def lru_curve(trace: Trace) -> LRUCurve:
    """`study(trace, capacity, LRU)` for all capacities in one pass.

    A block is a leading hit if it and all before it are cached: if the capacity exceeds the greatest of their stack distances.
    """
    distances = stack_distances(request.hash_ids for request in trace.requests)
    size = trace.block_tokens
    needed, tokens = [], []
    start = 0
    for request in trace.requests:
        end = start + len(request.hash_ids)
        needed.append(np.maximum.accumulate(distances[start:end]))
        tokens.append(np.diff(np.minimum(np.arange(end - start + 1) * size, request.input_length)))
        start = end
    all_needed, all_tokens = np.concatenate(needed), np.concatenate(tokens)
    reachable = all_needed < NEVER
    all_needed, all_tokens = all_needed[reachable] + 1, all_tokens[reachable]
    order = np.argsort(all_needed, kind="stable")
    input_tokens = sum(request.input_length for request in trace.requests)
    return LRUCurve(all_needed[order], np.cumsum(all_tokens[order]), input_tokens)


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise UserError(f"the capacity of the studied cache is {capacity} blocks; it must be at least 1")
