"""Copies of hot blocks at more prefill instances, and the end of cold ones (FAST §3.2.2 `change_replica`, §4.2).

In the paper replicas are a by-product of Algorithm 1, which fetches a prefix to wherever it sends a request, and leave by
LRU; the Conductor may set numbers of replicas besides. When it does so is not published: `HotReplicas` is one rule.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mooncake_jax.errors import UserError
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import Placement, Request


@dataclass(frozen=True, slots=True)
class Copy:
    """Order to copy blocks, in the order of their prompt, between the host pools of prefill instances (indices)."""

    keys: tuple[int, ...]
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Order to remove blocks, children before parents, from the host pool of a prefill instance (index)."""

    keys: tuple[int, ...]
    instance: int


@runtime_checkable
class ReplicationPolicy(Protocol):
    period: float | int | None
    """Seconds between calls of `orders`; None: it need not be called."""

    def placed(self, request: Request, placement: Placement, now: float) -> None:
        """Hears of every placement."""
        ...

    def orders(self, view: ClusterView, now: float) -> list[Copy | Drop]:
        """What is to be done now, in this order. Orders are in the books (`view.index`) before the next call.

        `view.index` must also have `holders(key)`, a bit mask of instances, as `kvcache.PrefixIndex` has. A block in use is not
        dropped, whatever the order says: that is for whoever runs the cluster to know.
        """
        ...


class NoReplication:
    """Replicas come from Algorithm 1 alone."""

    period: float | int | None = None

    def placed(self, request: Request, placement: Placement, now: float) -> None:
        pass

    def orders(self, view: ClusterView, now: float) -> list[Copy | Drop]:
        return []


@dataclass(slots=True)
class _Block:
    parent: int | None
    depth: int
    seen: float
    """When it was last used or looked at."""
    children: dict[int, None]
    """An ordered set."""


class HotReplicas:
    """Keeps the number of replicas of a block in step with its uses: one for every `hot_rate` uses a second.

    Every `period` seconds the uses since the last time are counted; every placement uses all blocks of its prompt. A block
    short of replicas (at most `max_replicas`) is copied, with what is missing of the prefix before it, from the holder with
    the shortest queue to the instances with the shortest queue that lack it; most used blocks first, and at most
    `max_copy_blocks` blocks in one round. A block that was not used for `cold_s` seconds is left one replica, but stays
    wherever a block that follows it is held, so that no chain is broken.

    Raises UserError unless all five are positive.
    """

    def __init__(
        self,
        period: float | int = 10.0,
        hot_rate: float | int = 0.5,
        cold_s: float | int = 300.0,
        max_replicas: int = 8,
        max_copy_blocks: int = 512,
    ):
        self.period: float | int | None = period
        self.hot_rate, self.cold_s = hot_rate, cold_s
        self.max_replicas, self.max_copy_blocks = max_replicas, max_copy_blocks
        for name in ("period", "hot_rate", "cold_s", "max_replicas", "max_copy_blocks"):
            if not getattr(self, name) > 0:
                raise UserError(f"conductor.replication.{name} is {getattr(self, name)}; it must be more than 0")
        self._uses: dict[int, int] = {}
        """Uses of each block in this round, in order of first use."""
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        """All known blocks; those longest not used or looked at first."""

    def placed(self, request: Request, placement: Placement, now: float) -> None:
        parent = None
        for depth, key in enumerate(request.keys):
            self._uses[key] = self._uses.get(key, 0) + 1
            block = self._blocks.get(key)
            if block is None:
                self._blocks[key] = _Block(parent, depth, now, {})
                if parent is not None:
                    self._blocks[parent].children[key] = None
            else:
                block.seen = now
                self._blocks.move_to_end(key)
            parent = key

    def orders(self, view: ClusterView, now: float) -> list[Copy | Drop]:
        return [*self._copies(view), *self._drops(view, now)]

    def _copies(self, view: ClusterView) -> list[Copy]:
        live, planned, copies = _mask(view.prefill), {}, []
        queue, given = dict(zip(view.prefill, view.queue_s.tolist(), strict=True)), dict.fromkeys(view.prefill, 0)
        most, room = min(self.max_replicas, len(view.prefill)), self.max_copy_blocks

        def holders(key: int) -> int:
            return (view.index.holders(key) | planned.get(key, 0)) & live

        uses, self._uses = self._uses, {}
        # Blocks used equally often follow each other: by the last of them first, they travel together.
        for key in sorted(uses, key=lambda key: (-uses[key], -self._blocks[key].depth)):
            wanted = min(most, math.ceil(uses[key] / self.period / self.hot_rate))
            while room and holders(key).bit_count() < wanted:
                target = min(_bits(live & ~holders(key)), key=lambda i: (queue[i], given[i], i))
                missing = [block for block in self._chain(key) if not holders(block) >> target & 1]
                sources = live
                for block in missing:
                    sources &= view.index.holders(block)
                if not sources:
                    break
                moved = tuple(missing[:room])
                copies.append(Copy(moved, min(_bits(sources), key=lambda i: (queue[i], i)), target))
                planned.update({block: planned.get(block, 0) | 1 << target for block in moved})
                given[target] += len(moved)
                room -= len(moved)
        return copies

    def _chain(self, key: int) -> list[int]:
        """The blocks of the prefix that ends with `key`."""
        chain: list[int] = []
        at: int | None = key
        while at is not None:
            chain.append(at)
            at = self._blocks[at].parent
        return chain[::-1]

    def _drops(self, view: ClusterView, now: float) -> list[Drop]:
        live, holders = _mask(view.prefill), view.index.holders
        cold: list[int] = []
        for key, block in self._blocks.items():
            if now - block.seen < self.cold_s:
                break
            cold.append(key)
        left: dict[int, int] = {}
        dropped: dict[int, list[int]] = {i: [] for i in view.prefill}
        for key in sorted(cold, key=lambda key: -self._blocks[key].depth):
            here, followed = holders(key) & live, 0
            for child in self._blocks[key].children:
                followed |= left[child] if child in left else holders(child)
            gone = here & ~followed
            if gone and gone == here:
                stays = list(_bits(here))  # by the key, so that last copies do not gather at one instance
                gone ^= 1 << stays[key % len(stays)]
            left[key] = here ^ gone
            for i in _bits(gone):
                dropped[i].append(key)
            self._look_again(key, now, held=bool(here))
        return [Drop(tuple(keys), i) for i, keys in dropped.items() if keys]

    def _look_again(self, key: int, now: float, held: bool) -> None:
        """Forgets a cold block that is nowhere; others are due again after as long a time."""
        block = self._blocks[key]
        if held or block.children:
            block.seen = now
            self._blocks.move_to_end(key)
            return
        del self._blocks[key]
        if block.parent is not None:
            del self._blocks[block.parent].children[key]


def _mask(instances: Iterable[int]) -> int:
    return sum(1 << i for i in instances)


def _bits(mask: int) -> Iterator[int]:
    """Positions of the ones of `mask`, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
