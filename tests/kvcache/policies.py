"""Every eviction policy beside its rule, stated over plain records and applied by scanning all of them."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from mooncake_jax.kvcache import FIFO, LFU, LRU, PGDSF, Belady, EvictionPolicy, LeafFirstLRU, LengthAware

SLOPE = 0.5
"""Of PGDSF in tests: large, so that position matters in short prompts."""

POLICIES: dict[str, Callable[[Sequence[Sequence[int]]], EvictionPolicy]] = {
    "lru": lambda future: LRU(),
    "fifo": lambda future: FIFO(),
    "lfu": lambda future: LFU(),
    "lfu_persistent": lambda future: LFU(persistent=True),
    "length_aware": lambda future: LengthAware(),
    "leaf_first_lru": lambda future: LeafFirstLRU(),
    "pgdsf": lambda future: PGDSF(SLOPE),
    "belady": lambda future: Belady(future),
}
LEAVES_ONLY = ("leaf_first_lru", "pgdsf")

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)
"""Requests as the contents of their blocks; few contents, so that prefixes meet."""


def keyed(requests: list[list[int]]) -> list[tuple[int, ...]]:
    """Block keys of the requests: one for each distinct prefix."""
    keys: dict[tuple[int, ...], int] = {}
    return [
        tuple(keys.setdefault(tuple(contents[:end]), len(keys)) for end in range(1, len(contents) + 1)) for contents in requests
    ]


@dataclass
class Record:
    parent: int | None
    position: int
    came: int
    used: int = 0
    count: int = 0
    orphan: bool = False
    priority: float = 0.0
    next_use: float = 0.0


@dataclass
class Naive:
    """What a policy should say, from records of what is cached and of what was."""

    name: str
    future: Sequence[Sequence[int]]
    cached: dict[int, Record] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    clock: float = 0.0
    now: int = 0

    def use(self, key: int, parent: int | None, position: int) -> None:
        self.now += 1
        record = self.cached.setdefault(key, Record(parent, position, self.now))
        self.uses[key] = self.uses.get(key, 0) + 1
        record.used = self.now
        record.count += 1
        record.orphan = record.parent is not None and record.parent not in self.cached
        record.priority = self.clock + record.count * (1 + SLOPE * position)
        later = [number for number, keys in enumerate(self.future) if key in keys][self.uses[key] :]
        record.next_use = min(later, default=math.inf)

    def leave(self, key: int) -> None:
        self.clock = max(self.clock, self.cached.pop(key).priority)

    def rank(self, key: int) -> tuple:
        record = self.cached[key]
        return {
            "lru": (record.used,),
            "fifo": (record.came,),
            "lfu": (record.count, record.used),
            "lfu_persistent": (self.uses[key], record.used),
            "length_aware": (record.count, -record.position, record.used),
            "leaf_first_lru": (not record.orphan, record.used),
            "pgdsf": (not record.orphan, record.priority, record.used),
            "belady": (-record.next_use, -record.position, record.used),
        }[self.name]

    def order(self) -> list[int]:
        parents = {record.parent for record in self.cached.values()} if self.name in LEAVES_ONLY else set()
        return sorted((key for key in self.cached if key not in parents), key=self.rank)


def links(keys: Sequence[int]) -> list[tuple[int | None, int]]:
    """(parent, key) of every block of a prompt."""
    return list(itertools.pairwise([None, *keys]))
