"""What prompts share beyond whole blocks, as far as a trace of block ids tells it.

Ids of 512 tokens hide what two prompts share of the block within which they part. Two things bound it. A prompt that ends
within a block has no more of it than its rest, and the next turn of its conversation repeats all of that. And a prompt start
common to thousands (a system prompt) is no longer than the shortest of them: all 12,031 prompts of the conversation trace begin
with the same block, and the shortest have 891 tokens, hundreds of them nearly as few, as if a question of a few words followed
a system prompt of hardly less.
So: blocks that follow the same block are taken to share as many tokens as the shortest of them has; if all are full, half a
block, the mean of what cannot be known; and prompts without a common first block share nothing.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from mooncake_jax.kvcache import stack_distances
from mooncake_jax.kvcache.stack_distance import NEVER
from mooncake_jax.sim.study import LRUCurve
from mooncake_jax.workload import Trace


@dataclass(frozen=True)
class Pieces:
    """A trace's prompts as chained keys of pieces of any size: equal key, equal piece and equal prefix."""

    requests: list[list[int]]
    sizes: dict[int, int]
    """Tokens of a piece by key."""


def pieces(trace: Trace) -> Pieces:
    """Cuts blocks that part ways into what they share, one piece for all of them, and the rest. Hash ids are 0 or more."""
    full = trace.block_tokens
    sizes: dict[int, int] = {}
    followers: defaultdict[int, set[int]] = defaultdict(set)
    for request in trace.requests:
        before = None
        for position, key in enumerate(request.hash_ids):
            sizes[key] = min(full, request.input_length - position * full)
            if before is not None:
                followers[before].add(key)
            before = key
    cut: dict[int, tuple[int, ...]] = {}
    for parent, keys in followers.items():
        if len(keys) < 2:
            continue
        shortest = min(sizes[key] for key in keys)
        shared, head = shortest if shortest < full else full // 2, -1 - parent
        for key in keys:
            sizes[key] -= shared
            cut[key] = (head, key) if sizes[key] else (head,)
        sizes[head] = shared
    requests = [[piece for key in request.hash_ids for piece in cut.get(key, (key,))] for request in trace.requests]
    return Pieces(requests, sizes)


def token_curve(trace: Trace) -> LRUCurve:
    """`sim.study.lru_curve` over pieces: capacities in tokens, and what is hit ends where prompts part, not with a block."""
    cut = pieces(trace)
    distances = stack_distances(cut.requests, cut.sizes)
    needed, tokens, start = [], [], 0
    for keys in cut.requests:
        size = np.array([cut.sizes[key] for key in keys], np.int64)
        distance = distances[start : start + len(keys)]
        needed.append(np.maximum.accumulate(np.where(distance == NEVER, NEVER, distance + size)))
        tokens.append(size)
        start += len(keys)
    all_needed, all_tokens = np.concatenate(needed), np.concatenate(tokens)
    order = np.argsort(all_needed, kind="stable")
    order = order[: int(np.searchsorted(all_needed[order], NEVER))]
    input_tokens = sum(request.input_length for request in trace.requests)
    return LRUCurve(all_needed[order], np.cumsum(all_tokens[order]), input_tokens)
