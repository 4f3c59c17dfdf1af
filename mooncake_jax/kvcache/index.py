"""The prefix index: which instances hold which blocks, asked once for every request.

One entry per distinct key, whose value is a bit mask of instances in a Python integer. A lookup ANDs the masks along the
prefix; an instance that drops out has matched that many blocks. At 1,000 instances and 10^6 distinct keys the masks take some
200 MB, and a lookup costs about 0.1 µs a block plus some microseconds for each place at which instances drop out.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

from mooncake_jax.errors import UserError


class PrefixIndex:
    """Block keys held by instances 0..instances-1. Raises UserError for a negative number of instances."""

    def __init__(self, instances: int):
        if instances < 0:
            raise UserError(f"the prefix index is for {instances} instances; it needs 0 or more")
        self._instances = instances
        self.masks: dict[int, int] = {}
        """Bit mask of instances by key; bit i is instance i. For who keeps the books at speed; others use the methods."""

    def __len__(self) -> int:
        """Distinct keys held anywhere."""
        return len(self.masks)

    @property
    def instances(self) -> int:
        return self._instances

    def add(self, instance: int, keys: Iterable[int]) -> None:
        """`instance` now holds `keys`. Adding twice is adding once. Raises ValueError for an unknown instance."""
        bit = self._bit(instance)
        masks = self.masks
        for key in keys:
            masks[key] = masks.get(key, 0) | bit

    def remove(self, instance: int, keys: Iterable[int]) -> None:
        """`instance` no longer holds `keys`; others are passed over. Raises ValueError for an unknown instance."""
        bit = self._bit(instance)
        for key in keys:
            mask = self.masks.get(key, 0)
            if mask & bit:
                self._store(key, mask ^ bit)

    def clear(self, instance: int) -> None:
        """`instance` holds nothing any more (it died, or will be announced afresh). Visits every key."""
        self.remove(instance, list(self.masks))

    def resize(self, instances: int) -> None:
        """Make room for more instances, or drop those from index `instances` on with all they hold. Growing is free."""
        if instances < 0:
            raise UserError(f"the prefix index is for {instances} instances; it needs 0 or more")
        if instances < self._instances:
            kept = (1 << instances) - 1
            for key, mask in list(self.masks.items()):
                self._store(key, mask & kept)
        self._instances = instances

    def keys(self, instance: int) -> list[int]:
        """All keys held by `instance`, in no particular order. Visits every key."""
        bit = self._bit(instance)
        return [key for key, mask in self.masks.items() if mask & bit]

    def holders(self, key: int) -> int:
        """Bit mask of the instances that hold `key`."""
        return self.masks.get(key, 0)

    def match(self, keys: Sequence[int]) -> Int64[np.ndarray, "instances"]:
        """How many leading blocks of `keys` each instance holds."""
        return np.array(self.match_list(keys), np.int64)

    def match_list(self, keys: Sequence[int]) -> list[int]:
        """`match` as a list, which is quicker for some dozens of instances."""
        lengths = [0] * self._instances
        get = self.masks.get
        alive = get(keys[0], 0) if keys else 0
        length = 0
        for key in keys:
            still = alive & get(key, 0)
            if still != alive:
                if length:
                    assign(lengths, alive ^ still, length)
                alive = still
            if not alive:
                return lengths
            length += 1
        assign(lengths, alive, length)
        return lengths

    def _store(self, key: int, mask: int) -> None:
        if mask:
            self.masks[key] = mask
        else:
            del self.masks[key]

    def _bit(self, instance: int) -> int:
        if not 0 <= instance < self._instances:
            raise ValueError(f"instance {instance} is unknown; the index has 0..{self._instances - 1}; resize it first")
        return 1 << instance


def assign(lengths: list[int], mask: int, length: int) -> None:
    """lengths[i] = length for every bit i of mask. Visits words of 64 bits, as operations on a long mask are slow."""
    start = 0
    while mask:
        word = mask & 0xFFFF_FFFF_FFFF_FFFF
        while word:
            lowest = word & -word
            lengths[start + lowest.bit_length() - 1] = length
            word ^= lowest
        mask >>= 64
        start += 64
