"""The prefix index of a live cluster: what host pools hold, and what requests on their way there will make."""

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
        self._promised: list[dict[int, list[int]]] = [{} for _ in pools]

    def promise(self, instance: int, keys: Sequence[int], serial: int) -> None:
        """The request placed as number `serial` will leave these blocks at `instance`."""
        promised = self._promised[instance]
        for key in keys:
            promised.setdefault(key, []).append(serial)
        self.index.add(instance, keys)

    def settle(self, instance: int, keys: Sequence[int], serial: int) -> None:
        """That request's prefill has ended, or never will: what it did not leave in the pool is not there."""
        promised = self._promised[instance]
        gone = []
        for key in keys:
            serials = promised.get(key, [])
            if serial in serials:
                serials.remove(serial)
            if not serials:
                promised.pop(key, None)
                if key not in self._pools[instance]:
                    gone.append(key)
        self.index.remove(instance, gone)

    def promised(self, instance: int, key: int, before: int | None = None) -> bool:
        """Whether a request under way will make the block; `before`: one that was placed earlier than that number.

        Whoever waits only for earlier placements cannot wait in a circle.
        """
        serials = self._promised[instance].get(key, ())
        return bool(serials) if before is None else any(serial < before for serial in serials)

    def stored(self, instance: int, key: int) -> None:
        self.index.add(instance, [key])

    def evicted(self, instance: int, key: int) -> None:
        if not self.promised(instance, key):
            self.index.remove(instance, [key])

    def reset(self, instance: int, pool: BlockPool) -> None:
        """The instance died: nothing is there and nothing is promised."""
        self._pools[instance] = pool
        self._promised[instance] = {}
        self.index.clear(instance)
