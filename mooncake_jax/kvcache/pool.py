"""Books of one host pool (the DRAM tier of a node): which block lies in which slot, who reads it, who leaves next. No bytes.

A block is reserved before its bytes arrive and committed when they are there:

    ABSENT --reserve--> FILLING --commit--> READY --evicted by a reserve--> ABSENT
                           `----cancel----> ABSENT
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache.eviction import LRU, EvictionPolicy


class BlockState(enum.StrEnum):
    ABSENT = "absent"
    FILLING = "filling"
    READY = "ready"


LEGAL_TRANSITIONS = {
    BlockState.ABSENT: frozenset({BlockState.FILLING}),
    BlockState.FILLING: frozenset({BlockState.READY, BlockState.ABSENT}),
    BlockState.READY: frozenset({BlockState.ABSENT}),
}


class IllegalTransition(Exception):
    """A block was asked to go from one state to another it cannot reach from there."""


@dataclass(frozen=True)
class Reservation:
    """A slot to fill with block `key`. The block `evicted`, if any, left the slot: forget it everywhere."""

    key: int
    slot: int
    evicted: int | None


@dataclass(slots=True)
class _Block:
    slot: int
    state: BlockState
    pins: int = 0


class BlockPool:
    """`capacity` slots numbered from 0, of one block each. Capacity 0 is a node without a host tier.

    A block is never evicted while it is filling or pinned. `policy` orders the others; None is LRU.
    Raises UserError for a negative capacity.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy | None = None):
        if capacity < 0:
            raise UserError(f"the host pool's capacity is {capacity} blocks; it must be 0 or more")
        self.capacity = capacity
        self._policy = LRU() if policy is None else policy
        self._blocks: dict[int, _Block] = {}
        self._vacated: list[int] = []
        self._untouched_slot = 0
        self._evictable = 0
        self._pins = 0

    def __len__(self) -> int:
        """Slots taken, by ready and by filling blocks."""
        return len(self._blocks)

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    @property
    def pins(self) -> int:
        """Pins held now, over all blocks. Zero when nobody reads."""
        return self._pins

    def state(self, key: int) -> BlockState:
        block = self._blocks.get(key)
        return BlockState.ABSENT if block is None else block.state

    def slot(self, key: int) -> int:
        """Slot of a block that is filling or ready. Raises KeyError if it is absent."""
        return self._blocks[key].slot

    def keys(self) -> tuple[int, ...]:
        """Keys of the ready blocks: first those that may leave, in that order."""
        keys = dict.fromkeys([*self._policy.order(), *self._blocks])
        return tuple(key for key in keys if self._blocks[key].state is BlockState.READY)

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` that are ready. No side effect."""
        for i, key in enumerate(keys):
            block = self._blocks.get(key)
            if block is None or block.state is not BlockState.READY:
                return i
        return len(keys)

    def touch(self, keys: Sequence[int]) -> None:
        """Count a use of each block, first to last; absent ones are passed over."""
        for key in keys:
            if key in self._blocks:
                self._policy.touch(key)

    def reserve(self, key: int, parent: int | None = None, position: int = 0) -> Reservation | None:
        """Take a slot for a block about to be filled (a use of it), evicting another block if the pool is full.

        It is block `position` of its prompt, after block `parent`.

        None when there is nothing to do or no room; `state(key)` tells which: FILLING or READY, the block is here already
        (and has not been touched); ABSENT, every block is pinned or filling, or has a cached child that keeps it.
        """
        if key in self._blocks or (len(self._blocks) == self.capacity and not self._evictable):
            return None
        evicted = None
        if len(self._blocks) == self.capacity:
            evicted = next((k for k in self._policy.order() if self._is_evictable(self._blocks[k])), None)
            if evicted is None:
                return None
            self._move(evicted, BlockState.ABSENT)
        self._move(key, BlockState.FILLING, parent, position)
        return Reservation(key, self._blocks[key].slot, evicted)

    def commit(self, key: int) -> None:
        """The bytes are there: FILLING -> READY. Raises IllegalTransition otherwise."""
        self._move(key, BlockState.READY)

    def cancel(self, key: int) -> None:
        """The bytes will not come: FILLING -> ABSENT, the slot is free. Raises IllegalTransition otherwise."""
        if self.state(key) is not BlockState.FILLING:
            raise IllegalTransition(f"block {key:#x} is {self.state(key)}; only a filling block can be cancelled")
        self._move(key, BlockState.ABSENT)

    def pin(self, keys: Sequence[int]) -> None:
        """Keep ready blocks from leaving while they are read. Pins are counted.

        Raises IllegalTransition, with nothing changed, if one of them is not ready.
        """
        for key in keys:
            if self.state(key) is not BlockState.READY:
                raise IllegalTransition(f"block {key:#x} is {self.state(key)}; only a ready block can be pinned")
        for key in keys:
            block = self._blocks[key]
            self._evictable -= block.pins == 0
            block.pins += 1
            self._pins += 1

    def unpin(self, keys: Sequence[int]) -> None:
        """Take back one pin from each. Raises ValueError, with nothing changed, if one of them has too few."""
        for key, times in Counter(keys).items():
            held = self._blocks[key].pins if key in self._blocks else 0
            if held < times:
                raise ValueError(f"block {key:#x} has {held} pins, {times} to take back; it was unpinned too often")
        for key in keys:
            block = self._blocks[key]
            block.pins -= 1
            self._evictable += block.pins == 0
            self._pins -= 1

    @staticmethod
    def _is_evictable(block: _Block) -> bool:
        return block.state is BlockState.READY and block.pins == 0

    def _move(self, key: int, to: BlockState, parent: int | None = None, position: int = 0) -> None:
        """The one place where a block changes state; keeps slots, policy and counts in step."""
        state = self.state(key)
        if to not in LEGAL_TRANSITIONS[state]:
            raise IllegalTransition(f"block {key:#x} is {state}; it cannot become {to}")
        if to is BlockState.FILLING:
            self._blocks[key] = _Block(self._take_slot(), to)
            self._policy.insert(key, parent, position)
        elif to is BlockState.READY:
            self._blocks[key].state = to
            self._evictable += 1
        else:
            block = self._blocks.pop(key)
            self._evictable -= self._is_evictable(block)
            self._policy.remove(key)
            self._vacated.append(block.slot)

    def _take_slot(self) -> int:
        """A vacated slot, or the next never used: a huge capacity costs nothing until it is filled."""
        if self._vacated:
            return self._vacated.pop()
        self._untouched_slot += 1
        return self._untouched_slot - 1
