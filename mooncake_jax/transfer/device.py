"""The Messenger of one process: `device_put` between the meshes of its devices, or a copy in host memory."""

import itertools

import jax
import numpy as np

from mooncake_jax.transfer.messenger import Endpoint, KVBlocks, Transfer, TransferState
from mooncake_jax.transfer.reshard import reshard
from mooncake_jax.types import InstanceId

HEADS_AXIS = 2
"""The axis of the wire layout that meshes shard."""


class _DeviceTransfer(Transfer):
    def __init__(self, id: int, blocks: KVBlocks, to: InstanceId, deadline: float, endpoints: dict[InstanceId, Endpoint]):
        super().__init__(id, blocks, to, deadline)
        self._endpoints = endpoints
        self._endpoint = endpoints.get(to)
        self._moved: jax.Array | np.ndarray | None = None

    def _advance(self, now: float) -> None:
        if self._endpoint is None or self._endpoints.get(self.to) is not self._endpoint:
            self._end(TransferState.FAILED, now, f"{self.to} is gone")
        elif self._moved is None:
            self.dispatch()
        elif self.state is TransferState.QUEUED:
            self._move(TransferState.MOVING, now)
        elif isinstance(self._moved, np.ndarray) or self._moved.is_ready():
            try:
                jax.block_until_ready(self._moved)  # raises here, not in a later step, if the computation failed
            except jax.errors.JaxRuntimeError as error:
                self._end(TransferState.FAILED, now, f"KV of {self.request} from {self.source}: {error}")
            else:
                self._arrive(self._moved, now)
            self._moved = None

    def dispatch(self) -> None:
        """Lets the bytes leave as soon as they have been computed. Needs no poll unless they go to host memory."""
        if self._endpoint is None:
            return
        kv, sharding = self._blocks.kv, self._endpoint.sharding
        if sharding is not None:
            on_device = isinstance(kv, jax.Array)
            self._moved = reshard(kv, sharding, HEADS_AXIS) if on_device else jax.device_put(kv, sharding)
        elif isinstance(kv, np.ndarray):
            self._moved = kv
        elif kv.is_ready():
            self._moved = np.asarray(kv)

    def _end(self, state: TransferState, now: float, reason: str) -> None:
        super()._end(state, now, reason)
        self._moved = None


class DeviceMessenger:
    """See `Messenger`. Bytes start to move when their computation ends, whoever polls."""

    def __init__(self) -> None:
        self._endpoints: dict[InstanceId, Endpoint] = {}
        self._ids = itertools.count(1)

    def register(self, instance: InstanceId, endpoint: Endpoint) -> None:
        self._endpoints[instance] = endpoint

    def unregister(self, instance: InstanceId) -> None:
        self._endpoints.pop(instance, None)

    def send(self, blocks: KVBlocks, to: InstanceId, *, deadline: float) -> Transfer:
        if to in self._endpoints:
            self._endpoints[to].check(blocks, to)
        transfer = _DeviceTransfer(next(self._ids), blocks, to, deadline, self._endpoints)
        transfer.dispatch()
        return transfer
