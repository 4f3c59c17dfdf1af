"""The Messenger of one process: `device_put` between the meshes of its devices, or a copy in host memory."""

import itertools

import jax
import numpy as np

from mooncake_jax.transfer.messenger import Endpoint, KVBlocks, Transfer, TransferState
from mooncake_jax.transfer.reshard import reshard
from mooncake_jax.types import InstanceId

HEADS_AXIS = 2
"""The axis of the wire layout that meshes shard."""

_IDS = itertools.count(1)


class _DeviceTransfer(Transfer):
    def __init__(self, id: int, blocks: KVBlocks, to: InstanceId, deadline: float, endpoints: dict[InstanceId, Endpoint]):
        super().__init__(id, blocks, to, deadline)
        self._endpoints = endpoints
        self._endpoint = endpoints.get(to)
        self._moved: jax.Array | np.ndarray | None = None

    def _advance(self, now: float) -> None:
        if self._endpoint is None or self._endpoints.get(self.to) is not self._endpoint:
            self._end(TransferState.FAILED, now, f"{self.to} is gone")
            return
        if self.state is TransferState.QUEUED and self._blocks.computed:
            self._move(TransferState.MOVING, now)
        if self.state is TransferState.MOVING and (isinstance(self._moved, np.ndarray) or self._moved.is_ready()):
            try:
                moved = jax.block_until_ready(self._moved)  # raises here, not in a later step, if the computation failed
                moved = np.asarray(moved) if self._endpoint.sharding is None else moved
            except jax.errors.JaxRuntimeError as error:
                self._end(TransferState.FAILED, now, f"KV of {self.request} from {self.source}: {error}")
            else:
                self._arrive(moved, now)
            self._moved = None

    def dispatch(self) -> None:
        """Lets the bytes leave as soon as they have been computed, whoever polls."""
        if self._endpoint is None:
            return
        kv, sharding = self._blocks.kv, self._endpoint.sharding
        if isinstance(kv, np.ndarray):
            self._moved = kv if sharding is None else jax.device_put(kv, sharding)
        elif sharding is None:
            kv.copy_to_host_async()
            self._moved = kv
        else:
            self._moved = reshard(kv, sharding, HEADS_AXIS)

    def _end(self, state: TransferState, now: float, reason: str) -> None:
        super()._end(state, now, reason)
        self._moved = None


class DeviceMessenger:
    """See `Messenger`. Bytes start to move when their computation ends, whoever polls."""

    def __init__(self) -> None:
        self._endpoints: dict[InstanceId, Endpoint] = {}

    def register(self, instance: InstanceId, endpoint: Endpoint) -> None:
        self._endpoints[instance] = endpoint

    def unregister(self, instance: InstanceId) -> None:
        self._endpoints.pop(instance, None)

    def send(self, blocks: KVBlocks, to: InstanceId, *, deadline: float) -> Transfer:
        if to in self._endpoints:
            self._endpoints[to].check(blocks, to)
        transfer = _DeviceTransfer(next(_IDS), blocks, to, deadline, self._endpoints)
        transfer.dispatch()
        return transfer
