"""Which block leaves a full pool. A policy sees keys come, be used and go; the pool passes over blocks that must stay."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class EvictionPolicy(Protocol):
    """Order of leaving of the blocks of one pool. Each pool has its own object."""

    def insert(self, key: int) -> None:
        """A block has come; that counts as a use."""
        ...

    def touch(self, key: int) -> None:
        """A block that is present has been used."""
        ...

    def remove(self, key: int) -> None:
        """A block that is present has left."""
        ...

    def order(self) -> Iterator[int]:
        """All present keys, the first to leave first. Valid until the next change."""
        ...


class LRU:
    """The least recently used block leaves first (best of the policies in arXiv Table 1; FAST's choice). All O(1)."""

    def __init__(self) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()

    def insert(self, key: int) -> None:
        self._keys[key] = None

    def touch(self, key: int) -> None:
        self._keys.move_to_end(key)

    def remove(self, key: int) -> None:
        del self._keys[key]

    def order(self) -> Iterator[int]:
        return iter(self._keys)
