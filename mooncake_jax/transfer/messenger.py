"""The Messenger: the only thing that moves KV between instances or tiers, and the contract of all its implementations.

The wire unit is a run of prompt tokens × a run of layers, in one agreed layout, [layers, tokens, 2·kv_heads, dim] with
rows 2g and 2g+1 of a token holding K and V of head g. A sender hands over a unit as soon as its computation has been
dispatched; nobody waits. The receiver polls.
"""

import enum
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding

from mooncake_jax.types import InstanceId


@dataclass(frozen=True)
class KVBlocks:
    """KV of tokens [tokens.start, tokens.stop) of one request for layers [layers.start, layers.stop).

    `kv` is [len(layers), ≥ len(tokens), 2·kv_heads, dim]: a sender may pad the token axis (shapes are bucketed); what
    lies beyond len(tokens) means nothing. A jax array may still be being computed.
    """

    request: str
    source: InstanceId
    layers: range
    tokens: range
    kv: jax.Array | np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes that count: padding is not charged."""
        per_token = self.kv.nbytes // self.kv.shape[1]
        return per_token * len(self.tokens)

    @property
    def computed(self) -> bool:
        """Whether the bytes are there. Never waits."""
        return isinstance(self.kv, np.ndarray) or self.kv.is_ready()


class TransferState(enum.StrEnum):
    QUEUED = "queued"
    """Accepted; the source bytes have not been computed, or nobody has polled since."""
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self not in (TransferState.QUEUED, TransferState.MOVING)


_LEGAL = {
    TransferState.QUEUED: {
        TransferState.MOVING,
        TransferState.FAILED,
        TransferState.EXPIRED,
        TransferState.CANCELLED,
    },
    TransferState.MOVING: {TransferState.DONE, TransferState.FAILED, TransferState.EXPIRED, TransferState.CANCELLED},
}


class IllegalTransition(RuntimeError):
    """A state machine was told to do what its table does not allow; names the object and both states."""


class Transfer:
    """One unit on its way to one instance. Polled by its receiver; never ready by itself.

    Attributes: `id` unique in the process, `state`, `reason` (why it failed), `started`/`finished` (seconds, None until then).
    A terminal transfer holds no reference to the source's bytes, and after `take` none to the target's either.
    """

    def __init__(self, id: int, blocks: KVBlocks, to: InstanceId, deadline: float):
        self.id, self.to, self.deadline = id, to, deadline
        self.request, self.source, self.nbytes = blocks.request, blocks.source, blocks.nbytes
        self.state = TransferState.QUEUED
        self.reason = ""
        self.started: float | None = None
        self.finished: float | None = None
        self._blocks: KVBlocks | None = blocks

    def poll(self, now: float) -> TransferState:
        """Advances and returns the state. Never blocks. Past the deadline a transfer that is not done is EXPIRED."""
        if not self.state.terminal:
            self._advance(now)
        if not self.state.terminal and now > self.deadline:
            self._end(TransferState.EXPIRED, now, f"KV of {self.request} from {self.source} did not reach {self.to} in time")
        return self.state

    def take(self) -> KVBlocks:
        """The unit at its target. Only when DONE, and once."""
        if self.state is not TransferState.DONE or self._blocks is None:
            raise IllegalTransition(f"transfer {self.id} to {self.to} is {self.state} and has nothing to take")
        blocks, self._blocks = self._blocks, None
        return blocks

    def cancel(self, now: float) -> None:
        """Gives the transfer up and drops its bytes; does nothing once it has ended."""
        if not self.state.terminal:
            self._end(TransferState.CANCELLED, now, "cancelled")
        self._blocks = None

    def _advance(self, now: float) -> None:
        raise NotImplementedError

    def _move(self, state: TransferState, now: float) -> None:
        if state not in _LEGAL.get(self.state, set()):
            raise IllegalTransition(f"transfer {self.id} to {self.to}: {self.state} → {state} is not legal")
        self.state = state
        if state is TransferState.MOVING:
            self.started = now
        elif state.terminal:
            self.finished = now

    def _end(self, state: TransferState, now: float, reason: str) -> None:
        self._move(state, now)
        self.reason = reason
        self._blocks = None

    def _arrive(self, kv: jax.Array | np.ndarray, now: float) -> None:
        self._move(TransferState.DONE, now)
        self._blocks = replace(self._blocks, kv=kv)


@dataclass(frozen=True)
class Endpoint:
    """Where units for an instance land: KV geometry, and the sharding of the arrival buffers.

    `sharding` is over a mesh of the receiver, for the wire layout; None means the host memory of the receiver (numpy).
    """

    layers: int
    kv_rows: int
    dim: int
    dtype: np.dtype
    sharding: NamedSharding | None = None

    def check(self, blocks: KVBlocks, to: InstanceId) -> None:
        """Raises ValueError with both shapes if the unit cannot be KV of this instance's model."""
        kv, layers = blocks.kv, blocks.layers
        if (
            kv.shape[:1] != (len(layers),)
            or kv.shape[2:] != (self.kv_rows, self.dim)
            or kv.shape[1] < len(blocks.tokens)
            or kv.dtype != self.dtype
            or not 0 <= layers.start <= layers.stop <= self.layers
        ):
            raise ValueError(
                f"KV of {blocks.request} from {blocks.source} is {list(kv.shape)} {kv.dtype} for layers "
                f"{layers.start} to {layers.stop} and {len(blocks.tokens)} tokens, but {to} holds "
                f"[{self.layers} layers, tokens, {self.kv_rows}, {self.dim}] {self.dtype}"
            )


@runtime_checkable
class Messenger(Protocol):
    """Moves wire units. Implementations share one contract test-suite."""

    def register(self, instance: InstanceId, endpoint: Endpoint) -> None:
        """Makes an instance reachable; a second call replaces the endpoint (a restarted instance)."""
        ...

    def unregister(self, instance: InstanceId) -> None:
        """Transfers to an instance that is not registered fail, those under way too."""
        ...

    def send(self, blocks: KVBlocks, to: InstanceId, *, deadline: float) -> Transfer:
        """Starts moving; returns at once. `deadline` is absolute. Raises ValueError for shapes that do not fit."""
        ...
