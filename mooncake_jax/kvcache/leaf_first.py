"""Eviction that never takes a block while a longer prefix through it is cached: leaves of the prefix tree go first."""

from collections.abc import Iterator

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache.ranking import LeafRanking


class LeafFirstLRU:
    """Of the blocks without a cached child, the least recently used leaves first. O(log n).

    The rule of the Mooncake authors' kvcache-simulator and of SGLang's radix cache. It differs from `LRU` in that blocks of one
    request leave last to first, so that what stays is still a prefix.
    """

    def __init__(self) -> None:
        self._ranking = LeafRanking()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self._ranking.insert(key, parent, 0)

    def touch(self, key: int) -> None:
        self._ranking.set(key, 0)

    def remove(self, key: int) -> None:
        self._ranking.remove(key)

    def order(self) -> Iterator[int]:
        return self._ranking.order()


class PGDSF:
    """RAGCache's prefix-aware greedy-dual-size-frequency. Of blocks without a cached child, the lowest priority leaves first:

        priority = clock + frequency * cost / size,

    set at every use, where clock is the highest priority that has left so far (so what is not used ages), frequency counts the
    uses since the block came, and cost / size is the time to compute a token of the block. Ties go to the least recently used.
    O(log n).

    RAGCache averages measured prefill times over the requests that computed a document. Blocks are all of one size and each
    lies at one position, so the same follows from the cost model: a token costs 1 + slope * position, in units of the first.
    `slope` by default is that of the cost model fitted to FAST Fig 14 (LLaMA3-70B on 8 A800) with blocks of 512 tokens,
    2 * 7.192e-10 * 512 / 1.1461e-4. Raises UserError if it is negative.

    Source: RAGCache, arXiv 2404.12457, section 5.1.
    """

    def __init__(self, slope: float | int = 0.006426) -> None:
        if slope < 0:
            raise UserError(f"the slope of PGDSF is {slope}; a later token cannot cost less, so it must be 0 or more")
        self._slope = slope
        self._clock = 0.0
        self._uses: dict[int, tuple[int, float]] = {}
        """(frequency, cost of a token) of every present block."""
        self._priorities: dict[int, float] = {}
        self._ranking = LeafRanking()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        cost = 1 + self._slope * position
        self._uses[key] = (1, cost)
        self._priorities[key] = self._clock + cost
        self._ranking.insert(key, parent, self._priorities[key])

    def touch(self, key: int) -> None:
        frequency, cost = self._uses[key]
        self._uses[key] = (frequency + 1, cost)
        self._priorities[key] = self._clock + (frequency + 1) * cost
        self._ranking.set(key, self._priorities[key])

    def remove(self, key: int) -> None:
        self._clock = max(self._clock, self._priorities.pop(key))
        del self._uses[key]
        self._ranking.remove(key)

    def order(self) -> Iterator[int]:
        return self._ranking.order()
