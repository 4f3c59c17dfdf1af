"""Stack distances: one pass over the references tells what LRU hits at every capacity."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

NEVER = np.iinfo(np.int64).max
"""Distance of a block that was not used before."""


def stack_distances(requests: Iterable[Sequence[int]]) -> Int64[np.ndarray, "references"]:
    """For every key of every request: how many distinct keys were used after its last use, when the request arrives.

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
            distances[position - 1] = start - 1 - used - (superseded - older)
        for position, key in enumerate(keys, start):
            at = last.get(key)
            last[key] = position
            if at is None:
                continue
            superseded += 1
            while at <= references:
                tree[at] += 1
                at += at & -at
        start += len(keys)
    return distances
