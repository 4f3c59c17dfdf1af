"""A Messenger that emulates a network, and its faults, over another Messenger: bandwidth, latency, failures."""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
                f"messenger.link: bandwidth={self.bandwidth} must be above 0, latency={self.latency} at least 0 and "
                f"failure_rate={self.failure_rate} within [0, 1]"
            )


@dataclass(eq=False)
class _Passage:
    """A unit's turn on a link."""

    seconds: float
    end: float


class _Link:
    """The outgoing link of one instance: transfers pass one after another."""

    def __init__(self, config: LinkConfig):
        self._config = config
        self._passages: deque[_Passage] = deque()

    def enter(self, now: float, nbytes: int) -> _Passage:
        """Queues `nbytes` behind what is on the link now."""
        while self._passages and self._passages[0].end <= now:
            self._passages.popleft()
        seconds = nbytes / self._config.bandwidth
        passage = _Passage(seconds, (self._passages[-1].end if self._passages else now) + seconds)
        self._passages.append(passage)
        return passage

    def leave(self, passage: _Passage, now: float) -> None:
        """What has not left of a unit that was given up never will: those behind it move up."""
        if passage.end <= now or passage not in self._passages:
            return
        at = self._passages.index(passage)
        free = max(now, self._passages[at - 1].end) if at else now
        del self._passages[at]
        for behind in itertools.islice(self._passages, at, None):
            free += behind.seconds
            behind.end = free


class _ThrottledTransfer(Transfer):
    def __init__(self, inner: Transfer, blocks: KVBlocks, link: _Link, latency: float, fails: bool, here: Callable[[], bool]):
        super().__init__(inner.id, blocks, inner.to, inner.deadline)
        self._inner, self._link, self._latency, self._fails, self._here = inner, link, latency, fails, here
        self._passage: _Passage | None = None

    def _advance(self, now: float) -> None:
        if self.state is TransferState.QUEUED and self._blocks.computed:
            self._passage = self._link.enter(now, self.nbytes)
            self._move(TransferState.MOVING, now)
        state = self._inner.poll(now)
        if state in (TransferState.FAILED, TransferState.EXPIRED):
            self._end(state, now, self._inner.reason)
        elif not self._here():  # the bytes have landed, but on the emulated link they were still under way
            self._end(TransferState.FAILED, now, f"{self.to} is gone")
        elif self._passage is not None and now >= self._passage.end + self._latency:
            if self._fails:
                self._end(TransferState.FAILED, now, f"injected failure on the link {self.source} → {self.to}")
            elif state is TransferState.DONE:
                self._arrive(self._inner.take().kv, now)

    def _end(self, state: TransferState, now: float, reason: str) -> None:
        super()._end(state, now, reason)
        self._inner.cancel(now)
        if self._passage is not None:
            self._link.leave(self._passage, now)


class ThrottledMessenger:
    """See `Messenger`. Wraps `inner`, which moves the bytes; `link` says how long that seems to take and what fails."""

    def __init__(self, inner: Messenger, link: LinkConfig):
        self._inner, self._config = inner, link
        self._endpoints: dict[InstanceId, Endpoint] = {}
        self._links: dict[InstanceId, _Link] = {}
        self._random = np.random.default_rng(link.seed)

    def set_link(self, link: LinkConfig) -> None:
        """Another network from now on: transfers under way keep the times they were given, failures start a new series."""
        self._config = link
        self._links.clear()
        self._random = np.random.default_rng(link.seed)

    def register(self, instance: InstanceId, endpoint: Endpoint) -> None:
        self._endpoints[instance] = endpoint
        self._inner.register(instance, endpoint)

    def unregister(self, instance: InstanceId) -> None:
        self._endpoints.pop(instance, None)
        self._inner.unregister(instance)

    def send(self, blocks: KVBlocks, to: InstanceId, *, deadline: float) -> Transfer:
        inner = self._inner.send(blocks, to, deadline=deadline)
        link = self._links.setdefault(blocks.source, _Link(self._config))
        fails = bool(self._random.random() < self._config.failure_rate)
        endpoint = self._endpoints.get(to)
        return _ThrottledTransfer(inner, blocks, link, self._config.latency, fails, lambda: self._endpoints.get(to) is endpoint)
