"""What one instance of a simulated cluster holds: keys only, with who makes each block, and the prefix index kept in step.

`BlockPool` keeps the books of live bytes (slots, pins, blocks being filled); here a block is held from the moment a placement
promises it (DESIGN, Semantics of time), and one call commits a whole prompt.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache.eviction import LRU, EvictionPolicy
from mooncake_jax.kvcache.index import PrefixIndex


class BlockCache:
    """At most `capacity` blocks (None: any number), announced to `index` as held by `instance`.

    Blocks that leave move to `below`, the next slower tier of the same instance, if there is one (an LRU always); the index
    forgets a block when it has left the last tier. `policy` orders the blocks; None is LRU.
    Raises UserError for a negative capacity.
    """

    def __init__(
        self,
        capacity: int | None,
        index: PrefixIndex,
        instance: int,
        policy: EvictionPolicy | None = None,
        below: "BlockCache | None" = None,
    ):
        if capacity is not None and capacity < 0:
            raise UserError(f"a cache's capacity is {capacity} blocks; it must be 0 or more, or null")
        self.capacity = capacity
        self.index = index
        self.instance = instance
        self.below = below
        self._policy = None if policy is None or isinstance(policy, LRU) else policy
        self._makers: dict[int, Any] = {}
        """Held keys, the least recently used first, each with its maker."""

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, key: int) -> bool:
        return key in self._makers

    def maker(self, key: int) -> Any:
        """What `use` was told when the block came; None if it is neither here nor below."""
        if key in self._makers or self.below is None:
            return self._makers.get(key)
        return self.below.maker(key)

    def makers(self, keys: Sequence[int], begin: int, end: int) -> Iterator[Any]:
        """The makers of blocks begin .. end - 1 of a prompt; those that are neither here nor below have none."""
        return (maker for key in keys[begin:end] if (maker := self.maker(key)) is not None)

    def keys(self) -> list[int]:
        return list(self._makers)

    def use(self, keys: Sequence[int], maker: Any, held: int = 0) -> None:
        """All `keys` of a prompt, first to last: a held block is touched, another comes and is `maker`'s.

        Whenever that makes one block too many, the first in the policy's order leaves. `held` says that so many leading keys
        are held already, which only makes it quicker.
        """
        if self._policy is not None:
            self._use_by_policy(keys, maker, self._policy)
            return
        makers = self._makers
        head, tail = keys[:held], keys[held:]
        if self.below is None and makers.keys().isdisjoint(tail) and (self.capacity is None or len(keys) <= self.capacity):
            # The usual case. No block that comes or is touched can leave within this call, so whole steps stand for a loop.
            makers.update(zip(head, list(map(makers.pop, head))))
            makers.update(dict.fromkeys(tail, maker))
            self._announce(tail)
            if self.capacity is not None and len(makers) > self.capacity:
                gone = list(islice(makers, len(makers) - self.capacity))
                _for_each(makers.__delitem__, gone)
                self._retract(gone)
            return
        self._use_one_by_one(keys, maker)

    def _use_one_by_one(self, keys: Sequence[int], maker: Any) -> None:
        makers, below, capacity = self._makers, self.below, self.capacity
        # Whoever is to leave is among the oldest blocks, those used in this call apart.
        oldest = iter(list(islice(makers, 2 * len(keys))))
        used: dict[int, None] = {}
        for key in keys:
            if key in makers:
                makers[key] = makers.pop(key)
            else:
                makers[key] = maker
                if below is None or not below.take(key):
                    self._announce((key,))
                if capacity is not None and len(makers) > capacity:
                    gone = next((one for one in oldest if one not in used), None)
                    if gone is None:
                        gone = next(iter(makers))
                    its_maker = makers.pop(gone)
                    if below is not None:
                        below.put(gone, its_maker)
                    else:
                        self._retract((gone,))
            used[key] = None

    def _announce(self, keys: Sequence[int]) -> None:
        masks, bit = self.index.masks, 1 << self.instance
        elsewhere = 0
        for key in keys:
            if key not in masks:
                break
            masks[key] |= bit
            elsewhere += 1
        rest = keys[elsewhere:]
        if masks.keys().isdisjoint(rest):
            masks.update(dict.fromkeys(rest, bit))
        else:
            for key in rest:
                masks[key] = masks.get(key, 0) | bit

    def _retract(self, keys: Sequence[int]) -> None:
        masks, bit = self.index.masks, 1 << self.instance
        held = list(map(masks.__getitem__, keys))
        if held.count(bit) == len(held):
            _for_each(masks.__delitem__, keys)
            return
        for key, mask in zip(keys, held):
            if mask == bit:
                del masks[key]
            else:
                masks[key] = mask ^ bit

    def _use_by_policy(self, keys: Sequence[int], maker: Any, policy: EvictionPolicy) -> None:
        parent = None
        for position, key in enumerate(keys):
            if key in self._makers:
                policy.touch(key)
            else:
                # As in a live pool, somebody leaves before another comes: the newcomer itself is not up for choice.
                if self.capacity is not None and len(self._makers) >= self.capacity > 0:
                    self._leave(next(policy.order()))
                if self.below is None or not self.below.take(key):
                    self.index.add(self.instance, (key,))
                self._makers[key] = maker
                policy.insert(key, parent, position)
                if self.capacity == 0:
                    self._leave(key)
            parent = key

    def put(self, key: int, maker: Any) -> None:
        """One block from the tier above, which the index knows already. For a tier without a policy: least recently used."""
        self._makers[key] = maker
        if self.capacity is not None and len(self._makers) > self.capacity:
            self._leave(next(iter(self._makers)))

    def take(self, key: int) -> bool:
        """The block goes to the tier above, if it is here; the index need not know."""
        if key not in self._makers:
            return False
        del self._makers[key]
        if self._policy is not None:
            self._policy.remove(key)
        return True

    def drop(self, keys: Iterable[int]) -> None:
        """Forget these blocks; those not in this tier are passed over."""
        for key in keys:
            if self.take(key):
                self.index.remove(self.instance, (key,))

    def _leave(self, key: int) -> None:
        maker = self._makers.pop(key)
        if self._policy is not None:
            self._policy.remove(key)
        if self.below is not None:
            self.below.put(key, maker)
        else:
            self.index.remove(self.instance, (key,))


def _for_each(function: Callable[[int], object], keys: Iterable[int]) -> None:
    """A loop that runs in C."""
    deque(map(function, keys), maxlen=0)
