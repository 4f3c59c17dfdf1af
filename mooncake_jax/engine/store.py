"""Freshly computed KV on its way into the host pool of its node, layer group by layer group."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jax import Array

from mooncake_jax.transfer import HostPool


@dataclass
class _Unit:
    owner: str
    layers: range
    start: int
    """Prompt position of its first token."""
    kv: Array | np.ndarray
    parts: list[tuple[int, range]]
    """(key, tokens) of the blocks it helps to fill."""


class PoolWriter:
    """Opens a slot for every new block when its first tokens are on their way, and copies units in when they are there.

    Only whole blocks of a prompt are kept. An open block is written by one request (`owner`), once.
    """

    def __init__(
        self,
        pool: HostPool,
        on_stored: Callable[[int], None] = lambda key: None,
        on_evicted: Callable[[int], None] = lambda key: None,
    ):
        """`on_stored` and `on_evicted` hear of every key that came to the pool or left it."""
        self.pool, self._on_stored, self._on_evicted = pool, on_stored, on_evicted
        self._units: deque[_Unit] = deque()
        self._owners: dict[int, str] = {}

    @property
    def idle(self) -> bool:
        return not self._units and not self._owners

    def _blocks(self, owner: str, keys: Sequence[int], tokens: range) -> list[tuple[int, range]]:
        """(key, tokens) of every block of this owner that `tokens` touch, cut to them."""
        size = self.pool.block_size
        blocks = range(tokens.start // size, min(-(-tokens.stop // size), len(keys)))
        return [
            (keys[i], range(max(tokens.start, i * size), min(tokens.stop, (i + 1) * size)))
            for i in blocks
            if self._owners.get(keys[i]) == owner
        ]

    def open(self, owner: str, keys: Sequence[int], tokens: range) -> None:
        """Reserves slots for blocks that begin within `tokens`, unless they are in the pool or no slot can be had."""
        size = self.pool.block_size
        for position in range(-(-tokens.start // size), min(-(-tokens.stop // size), len(keys))):
            key = keys[position]
            evicted = self.pool.open(key, keys[position - 1] if position else None, position)
            if evicted is not None:
                self._owners[key] = owner
                for gone in evicted:
                    self._on_evicted(gone)

    def add(self, owner: str, keys: tuple[int, ...], layers: range, tokens: range, kv: Array | np.ndarray) -> None:
        """Takes a wire unit; copies it when it has been computed. Blocks of other owners in it are passed over."""
        unit = _Unit(owner, layers, tokens.start, kv, self._blocks(owner, keys, tokens))
        if isinstance(kv, np.ndarray):
            self._write(unit)
        elif unit.parts:
            kv.copy_to_host_async()
            self._units.append(unit)

    def wants(self, owner: str, keys: Sequence[int], tokens: range) -> bool:
        return bool(self._blocks(owner, keys, tokens))

    def abandon(self, owner: str, keys: Sequence[int]) -> None:
        """Gives up the open ones of these blocks: the rest of their tokens will not come, and what is on its way is dropped."""
        gone = {key for key in keys if self._owners.get(key) == owner}
        if not gone:
            return
        for key in gone:
            del self._owners[key]
            self.pool.abandon(key)
        for unit in self._units:
            if unit.owner == owner:  # it may open the same blocks again, and each cell must be written once
                unit.parts = [part for part in unit.parts if part[0] not in gone]
        self._units = deque(unit for unit in self._units if unit.parts)

    def poll(self) -> None:
        """Writes what has been computed; never waits."""
        while self._units and self._units[0].kv.is_ready():
            self._write(self._units.popleft())

    def _write(self, unit: _Unit) -> None:
        kv = np.asarray(unit.kv)
        for key, tokens in unit.parts:
            at = tokens.start - unit.start
            part = kv[:, at : at + len(tokens)]
            if self.pool.write(key, unit.layers, tokens.start % self.pool.block_size, part):
                del self._owners[key]
                self._on_stored(key)
