"""Stack distances: one pass over the references tells what LRU hits at every capacity."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int64

NEVER = np.iinfo(np.int64).max
"""Distance of a block that was not used before."""


def stack_distances(
    requests: Iterable[Sequence[int]], sizes: Mapping[int, int] | None = None
) -> Int64[np.ndarray, "references"]:
    """For every key of every request: how many distinct keys were used after its last use, when the request arrives.

    With `sizes`, the sizes of these keys are added up instead: then a cache of C units holds the block exactly if its distance
    and its own size are at most C together.

    Keys of a request are used first to last, all after the request has been looked up; so an LRU cache of C blocks holds the
    block on arrival exactly if its distance is below C (the cache is the top of a stack: a larger one holds all that a smaller
    one does). `NEVER` for a key not used before.

    O(log n) a reference: the keys used since position p are the references since p less those that a later one of the same key
    has superseded, which a Fenwick tree counts.

    Source: Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970; Bennett and Kruskal,
    LRU stack processing, IBM Journal of Research and Development 19(4), 1975.
    """
    requests = list(requests)
    references = sum(map(len, requests))
    distances = np.full(references, NEVER, np.int64)
    tree = [0] * (references + 1)
    superseded = 0
    used_up_to = [0] * (references + 1)
    """Sizes of the references up to a position, superseded ones included."""
    last: dict[int, int] = {}
    """Position of the last use of every key, counted from 1 as the tree does."""
    start = 1
    for keys in requests:
        for position, key in enumerate(keys, start):
            used = last.get(key)
            if used is None:
                continue
            older, at = 0, used
            while at:
                older += tree[at]
                at &= at - 1
            distances[position - 1] = used_up_to[start - 1] - used_up_to[used] - (superseded - older)
        for position, key in enumerate(keys, start):
            size = 1 if sizes is None else sizes[key]
            used_up_to[position] = used_up_to[position - 1] + size
            at = last.get(key)
            last[key] = position
            if at is None:
                continue
            superseded += size
            while at <= references:
                tree[at] += size
                at += at & -at
        start += len(keys)
    return distances
