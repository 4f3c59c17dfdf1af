"""Which block leaves a full pool. A policy sees keys come, be used and go; the pool passes over blocks that must stay."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class EvictionPolicy(Protocol):
    """Order of leaving of the blocks of one pool. Each pool has its own object."""

    def insert(self, key: int, parent: int | None, position: int) -> None:
        """A block has come; that counts as a use. It is number `position` of its prompt, after `parent` (None: the first)."""
        ...

    def touch(self, key: int) -> None:
        """A block that is present has been used."""
        ...

    def remove(self, key: int) -> None:
        """A block that is present has left."""
        ...

    def order(self) -> Iterator[int]:
        """The keys that may leave now, the first to leave first. Valid until the next change.

        The pool takes the first that nothing holds. There is one whenever a block is present; it costs at most amortised
        O(log n). A policy that lets only leaves go does not name the others.
        """
        ...


class LRU:
    """The least recently used block leaves first (best of the policies in arXiv Table 1; FAST's choice). All O(1)."""

    def __init__(self) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self._keys[key] = None

    def touch(self, key: int) -> None:
        self._keys.move_to_end(key)

    def remove(self, key: int) -> None:
        del self._keys[key]

    def order(self) -> Iterator[int]:
        return iter(self._keys)


class FIFO:
    """The block that came first leaves first, used or not. All O(1)."""

    def __init__(self) -> None:
        # An OrderedDict, since finding the first key of a dict walks over all that were deleted before it.
        self._keys: OrderedDict[int, None] = OrderedDict()

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self._keys[key] = None

    def touch(self, key: int) -> None:
        pass

    def remove(self, key: int) -> None:
        del self._keys[key]

    def order(self) -> Iterator[int]:
        return iter(self._keys)
