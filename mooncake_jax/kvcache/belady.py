"""Eviction that knows the future: the bound that other policies are held against."""

from collections.abc import Iterable, Iterator, Sequence

from mooncake_jax.kvcache.ranking import Ranking

_NEVER = float("inf")


class Belady:
    """The block whose next use lies farthest ahead leaves first; of those of one request, the latest in its prompt. O(log n).

    `requests` are the keys of all requests that the pool will see, in order. Each use of a block (`insert` or `touch`) is taken
    for its next occurrence there, so it fits a pool that uses every block of every request once, as `sim.study` does.

    A child's next use never comes before its parent's, so leaves go first and every cached block is part of a cached prefix.
    With bypass (a new block may be the one to leave: `study(..., bypass=True)`) no policy of the same capacity has more hit
    *blocks*: a block reused must hold a slot from one use to the next, at most `capacity` do at a time, and giving up the one
    that ends last keeps the most. In hit *tokens* it is the optimum but for partly filled last blocks. Without bypass, where a
    pool must take every block in, it is Belady's rule but no proven bound.

    Source: Belady, IBM Systems Journal 5(2), 1966; the `optimal` of the Mooncake authors' kvcache-simulator.
    """

    def __init__(self, requests: Iterable[Sequence[int]]) -> None:
        self._ahead: dict[int, list[int]] = {}
        """Numbers of the requests still to use a key, the nearest last."""
        for number, keys in enumerate(requests):
            for key in keys:
                self._ahead.setdefault(key, []).append(number)
        for numbers in self._ahead.values():
            numbers.reverse()
        self._positions: dict[int, int] = {}
        self._ranking = Ranking()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self._positions[key] = position
        self.touch(key)

    def touch(self, key: int) -> None:
        ahead = self._ahead.get(key)
        if ahead:
            ahead.pop()
        self._ranking.set(key, (-ahead[-1] if ahead else -_NEVER, -self._positions[key]))

    def remove(self, key: int) -> None:
        del self._positions[key]
        self._ranking.remove(key)

    def order(self) -> Iterator[int]:
        return self._ranking.order()
