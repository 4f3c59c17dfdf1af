"""Eviction by how often a block was used: LFU in its two readings, and LengthAware."""

from collections.abc import Iterator

from mooncake_jax.kvcache.ranking import Ranking


class LFU:
    """The block used least often leaves first, of equals the least recently used (arXiv Table 1). O(log n).

    A block's coming is its first use. Counting starts again when a block comes back, unless `persistent`: then counts outlive
    eviction, and so does their memory.
    """

    def __init__(self, persistent: bool = False) -> None:
        self._persistent = persistent
        self._counts: dict[int, int] = {}
        self._ranking = Ranking()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self.touch(key)

    def touch(self, key: int) -> None:
        count = self._counts[key] = self._counts.get(key, 0) + 1
        self._ranking.set(key, (count,))

    def remove(self, key: int) -> None:
        self._ranking.remove(key)
        if not self._persistent:
            del self._counts[key]

    def order(self) -> Iterator[int]:
        return self._ranking.order()


class LengthAware:
    """LFU, but of blocks used equally often the one latest in its prompt leaves first, then the least recently used. O(log n).

    arXiv Table 1 describes it as like LFU but putting first the blocks that occur later in requests; the exact rule is not
    published. This reading takes "first" as first to leave, since a late block is of use only with all before it.
    """

    def __init__(self) -> None:
        self._uses: dict[int, tuple[int, int]] = {}
        """(count, position) of every present block."""
        self._ranking = Ranking()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self._use(key, 1, position)

    def touch(self, key: int) -> None:
        count, position = self._uses[key]
        self._use(key, count + 1, position)

    def remove(self, key: int) -> None:
        del self._uses[key]
        self._ranking.remove(key)

    def order(self) -> Iterator[int]:
        return self._ranking.order()

    def _use(self, key: int, count: int, position: int) -> None:
        self._uses[key] = (count, position)
        self._ranking.set(key, (count, -position))
