"""Keys in order of rank, with cheap changes of rank: what the eviction policies that are no plain queue stand on."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class Ranking:
    """Keys, the lowest rank first; of equal ranks the one set longest ago. `set` is amortised O(log n), `remove` O(1).

    A binary heap in which entries outlive a change of rank: they are dropped when they come to the top, or all at once when
    they outnumber the living.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[tuple[float | int, ...], int, int]] = {}
        self._heap: list[tuple[tuple[float | int, ...], int, int]] = []
        self._clock = 0

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def set(self, key: int, rank: tuple[float | int, ...]) -> None:
        """Give `key` a rank, whether it has one or not."""
        self._clock += 1
        entry = self._entries[key] = (rank, self._clock, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def remove(self, key: int) -> None:
        del self._entries[key]

    def order(self) -> Iterator[int]:
        """All keys in order. The first costs amortised O(log n), the first k together O(k log k) and what is outdated."""
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        # Walks down the heap from its top without changing it: whatever comes next is a child of something seen.
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, at = heappop(frontier)
            if entries.get(entry[2]) is entry:
                yield entry[2]
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(frontier, (heap[child], child))


class LeafRanking:
    """A ranking of cached blocks that names only leaves, the blocks of which no child is cached.

    Before all others it names blocks that came when their parent was not cached: nothing can hit them. Otherwise ties go to the
    least recently ranked.
    """

    def __init__(self) -> None:
        self._leaves = Ranking()
        self._parents: dict[int, int | None] = {}
        self._ranks: dict[int, tuple[float | int, ...]] = {}
        self._children: dict[int, int] = {}
        """Number of cached children, of blocks that have any."""
        self._clock = 0

    def insert(self, key: int, parent: int | None, rank: float | int) -> None:
        self._parents[key] = parent
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1
            if parent in self._leaves:
                self._leaves.remove(parent)
        self.set(key, rank)

    def set(self, key: int, rank: float | int) -> None:
        """Rank a present block anew."""
        self._clock += 1
        parent = self._parents[key]
        # With the time of ranking, since a block that becomes a leaf later enters `_leaves` anew.
        self._ranks[key] = (parent is None or parent in self._parents, rank, self._clock)
        if key not in self._children:
            self._leaves.set(key, self._ranks[key])

    def remove(self, key: int) -> None:
        parent = self._parents.pop(key)
        del self._ranks[key]
        if key in self._leaves:
            self._leaves.remove(key)
        if parent is None:
            return
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
            if parent in self._parents:
                self._leaves.set(parent, self._ranks[parent])

    def order(self) -> Iterator[int]:
        return self._leaves.order()
