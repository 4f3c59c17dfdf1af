"""A Messenger that emulates a network, and its faults, over another Messenger: bandwidth, latency, failures."""

from dataclasses import dataclass

import jax
import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.transfer.messenger import Endpoint, KVBlocks, Messenger, Transfer, TransferState
from mooncake_jax.types import InstanceId


@dataclass(frozen=True)
class LinkConfig:
    """The emulated network."""

    bandwidth: float = float("inf")
    """Bytes a second out of each instance; its transfers share the link one after another, in order of readiness."""
    latency: float = 0.0
    """Seconds added to every transfer."""
    failure_rate: float = 0.0
    """Probability that a transfer fails instead of arriving."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or self.latency < 0 or not 0 <= self.failure_rate <= 1:
            raise UserError(
                f"messenger: bandwidth={self.bandwidth} must be above 0, latency={self.latency} at least 0 and "
                f"failure_rate={self.failure_rate} within [0, 1]"
            )


class _ThrottledTransfer(Transfer):
    def __init__(self, inner: Transfer, blocks: KVBlocks, link: "_Link", fails: bool):
        super().__init__(inner.id, blocks, inner.to, inner.deadline)
        self._inner, self._link, self._fails = inner, link, fails
        self._due: float | None = None

    def _advance(self, now: float) -> None:
        kv = self._blocks.kv
        if self.state is TransferState.QUEUED and (not isinstance(kv, jax.Array) or kv.is_ready()):
            self._due = self._link.occupy(now, self.nbytes)
            self._move(TransferState.MOVING, now)
        state = self._inner.poll(now)
        if state in (TransferState.FAILED, TransferState.EXPIRED):
            self._end(state, now, self._inner.reason)
        elif self._due is not None and now >= self._due:
            if self._fails:
                self._end(TransferState.FAILED, now, f"injected failure on the link {self.source} → {self.to}")
            elif state is TransferState.DONE:
                self._arrive(self._inner.take().kv, now)

    def _end(self, state: TransferState, now: float, reason: str) -> None:
        super()._end(state, now, reason)
        self._inner.cancel(now)

    def cancel(self, now: float) -> None:
        super().cancel(now)
        self._inner.cancel(now)


class _Link:
    """The outgoing link of one instance: transfers pass one after another."""

    def __init__(self, config: LinkConfig):
        self._config, self._free_at = config, 0.0

    def occupy(self, now: float, nbytes: int) -> float:
        """When `nbytes` that queue up now have arrived."""
        self._free_at = max(now, self._free_at) + nbytes / self._config.bandwidth
        return self._free_at + self._config.latency


class ThrottledMessenger:
    """See `Messenger`. Wraps `inner`, which moves the bytes; `link` says how long that seems to take and what fails."""

    def __init__(self, inner: Messenger, link: LinkConfig):
        self._inner, self._config = inner, link
        self._links: dict[InstanceId, _Link] = {}
        self._random = np.random.default_rng(link.seed)

    def register(self, instance: InstanceId, endpoint: Endpoint) -> None:
        self._inner.register(instance, endpoint)

    def unregister(self, instance: InstanceId) -> None:
        self._inner.unregister(instance)

    def send(self, blocks: KVBlocks, to: InstanceId, *, deadline: float) -> Transfer:
        link = self._links.setdefault(blocks.source, _Link(self._config))
        fails = bool(self._random.random() < self._config.failure_rate)
        return _ThrottledTransfer(self._inner.send(blocks, to, deadline=deadline), blocks, link, fails)
