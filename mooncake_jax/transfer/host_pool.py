"""The bytes of a host pool (the DRAM tier): one array of block slots, whose books are `kvcache.BlockPool`.

Allocated once, so that a transport may register it; the operating system commits memory as slots are first written.
"""

import numpy as np

from mooncake_jax.kvcache import BlockPool, EvictionPolicy


class HostPool:
    """Block slots [slots, layers, block_size, 2·kv_heads, dim]. A block is filled in pieces (layers × tokens).

    `policy`, of this pool alone, says which block leaves; None is LRU.
    """

    def __init__(
        self,
        slots: int,
        layers: int,
        block_size: int,
        kv_rows: int,
        dim: int,
        dtype: np.dtype,
        policy: EvictionPolicy | None = None,
    ):
        self.books = BlockPool(slots, policy)
        self.block_size = block_size
        self._bytes = np.empty((slots, layers, block_size, kv_rows, dim), dtype)
        self._missing: dict[int, int] = {}

    @property
    def block_bytes(self) -> int:
        return self._bytes[0].nbytes if len(self._bytes) else 0

    @property
    def open_blocks(self) -> int:
        """Blocks that are being written."""
        return len(self._missing)

    def open(self, key: int, parent: int | None = None, position: int = 0) -> list[int] | None:
        """Reserves a slot for block `position` of a prompt, which follows block `parent` and is about to be written.

        None if it is there already or nothing can be evicted. Otherwise the list of keys that had to leave (at most one).
        """
        reservation = self.books.reserve(key, parent, position)
        if reservation is None:
            return None
        self._missing[key] = self._bytes.shape[1] * self.block_size
        return [] if reservation.evicted is None else [reservation.evicted]

    def write(self, key: int, layers: range, offset: int, kv: np.ndarray) -> bool:
        """Writes kv [layers, tokens, 2·kv_heads, dim] at token `offset` of an open block.

        True when that completed the block, which is from then on readable. Each cell must be written once.
        """
        tokens = kv.shape[1]
        self._bytes[self.books.slot(key), layers.start : layers.stop, offset : offset + tokens] = kv
        self._missing[key] -= len(layers) * tokens
        if self._missing[key]:
            return False
        del self._missing[key]
        self.books.commit(key)
        return True

    def abandon(self, key: int) -> None:
        """Gives an open block up."""
        del self._missing[key]
        self.books.cancel(key)

    def read(self, keys: tuple[int, ...], layers: range) -> np.ndarray:
        """A copy of whole blocks: [layers, len(keys)·block_size, 2·kv_heads, dim]. The keys must be pinned."""
        slots = [self.books.slot(key) for key in keys]
        blocks = self._bytes[slots, layers.start : layers.stop]
        return blocks.swapaxes(0, 1).reshape(len(layers), -1, *self._bytes.shape[3:])
