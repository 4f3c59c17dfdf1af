"""The prefix index of a live cluster: what host pools hold, and what requests on their way there will make."""

from collections import Counter
from collections.abc import Sequence

from mooncake_jax.kvcache import BlockPool, PrefixIndex


class PrefixBooks:
    """Keeps a `PrefixIndex` true to the pools while placements are promises.

    The Conductor counts on a block from the moment a request that makes it is placed (DESIGN, Semantics of time). The
    index so holds a key at an instance if it is in the pool there, or promised by a request that is still under way.
    """

    def __init__(self, pools: Sequence[BlockPool]):
        self.index = PrefixIndex(len(pools))
        self._pools = list(pools)
        self._promised: list[Counter[int]] = [Counter() for _ in pools]

    def promise(self, instance: int, keys: Sequence[int]) -> None:
        """A request that will leave these blocks at `instance` was placed there."""
        self._promised[instance].update(keys)
        self.index.add(instance, keys)

    def settle(self, instance: int, keys: Sequence[int]) -> None:
        """That request's prefill has ended, or never will: what it did not leave in the pool is not there."""
        counter = self._promised[instance]
        gone = []
        for key in keys:
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]
                if key not in self._pools[instance]:
                    gone.append(key)
        self.index.remove(instance, gone)

    def promised(self, instance: int, key: int) -> bool:
        return key in self._promised[instance]

    def stored(self, instance: int, key: int) -> None:
        self.index.add(instance, [key])

    def evicted(self, instance: int, key: int) -> None:
        if not self.promised(instance, key):
            self.index.remove(instance, [key])

    def reset(self, instance: int, pool: BlockPool) -> None:
        """The instance died: nothing is there and nothing is promised."""
        self._pools[instance] = pool
        self._promised[instance] = Counter()
        self.index.clear(instance)
