"""Fetching a cached prefix from the host pool of another prefill instance, as the Conductor ordered."""

from collections.abc import Callable

from mooncake_jax.engine import PoolWriter
from mooncake_jax.transfer import Delivery, HostPool, KVBlocks, Messenger, TransferState
from mooncake_jax.types import InstanceId, Request


class PeerFetch:
    """Copies blocks [first, last) of a request's prompt from pool to pool. Polled; ends whatever happens.

    Blocks that the source still computes are waited for as long as they are promised there. What cannot be had is
    recomputed by the prefill instance, which simply finds it missing.
    """

    def __init__(
        self,
        request: Request,
        blocks: range,
        source: tuple[InstanceId, HostPool],
        target: tuple[InstanceId, PoolWriter],
        messenger: Messenger,
        promised: Callable[[int], bool],
        *,
        layers: int,
        deadline: float,
        unit_blocks: int,
        now: float,
    ):
        self._request, self._wanted = request, request.keys[blocks.start : blocks.stop]
        self._first = blocks.start
        self.source, self._pool = source
        self.target, self._writer = target
        self._messenger, self._promised = messenger, promised
        self._layers, self._deadline, self._unit = layers, deadline, unit_blocks
        self._owner = f"fetch {id(self)}"
        self._pinned: tuple[int, ...] = ()
        self._deliveries: list[Delivery] | None = None
        self.fetched: frozenset[int] = frozenset()
        """Keys that arrived, once it has ended."""
        self.started, self.moving_from, self.ended = now, now, None
        """When it was ordered, when the first byte could leave, when it was over (seconds; None until then)."""
        self.bytes = 0

    def poll(self, now: float) -> bool:
        """Advances; True once ended."""
        if self.ended is None and self._deliveries is None:
            self._begin(now)
        if self.ended is None and self._deliveries is not None:
            self._collect(now)
        return self.ended is not None

    def cancel(self, now: float) -> None:
        """Gives it up, with every pin and transfer. Does nothing once it has ended."""
        if self.ended is None:
            self._end(now)

    def _begin(self, now: float) -> None:
        """Pins what is there, and starts to move when nothing more will come."""
        here = self._pool.books.match(self._wanted)
        self._pool.books.pin(self._wanted[len(self._pinned) : here])
        self._pinned = self._wanted[:here]
        if here < len(self._wanted) and self._promised(self._wanted[here]) and now <= self._deadline:
            return
        self.moving_from, self._deliveries = now, []
        size = self._pool.block_size
        for at in range(0, here, self._unit):
            part = self._pinned[at : at + self._unit]
            start = (self._first + at) * size
            kv = self._pool.read(part, range(self._layers))
            blocks = KVBlocks(self._request.id, self.source, range(self._layers), range(start, start + kv.shape[1]), kv)
            self.bytes += blocks.nbytes
            self._deliveries.append(Delivery(self._messenger, blocks, self.target, deadline=self._deadline))

    def _collect(self, now: float) -> None:
        still, arrived = [], []
        for delivery in self._deliveries:
            state = delivery.poll(now)
            if state is TransferState.DONE:
                arrived.append(delivery.take())
            elif not state.terminal:
                still.append(delivery)
        for blocks in arrived:
            keys = self._request.keys
            self._writer.open(self._owner, keys, blocks.tokens)
            self._writer.add(self._owner, keys, blocks.layers, blocks.tokens, blocks.kv)
            size = self._pool.block_size
            here = keys[blocks.tokens.start // size : blocks.tokens.stop // size]
            self.fetched |= {key for key in here if self._writer.pool.books.match([key])}
        self._deliveries = still
        if not still:
            self._end(now)

    def _end(self, now: float) -> None:
        self.ended = now
        for delivery in self._deliveries or []:
            delivery.cancel(now)
        self._deliveries = []
        self._writer.abandon(self._owner, self._request.keys)
        self._pool.books.unpin(self._pinned)
        self._pinned = ()
