"""Who goes next in the queue of a prefill instance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mooncake_jax.errors import UserError


@dataclass(frozen=True, slots=True)
class QueuedPrefill:
    """A request that waits for its prefill."""

    arrival: float
    """s, on the clock of `now`."""
    tokens: int
    """n, prompt tokens."""
    cached: int
    """p < n, those that need no computing."""
    seconds: float
    """Predicted prefill time."""
    serial: int
    """Number of its placement; later ones are larger."""


@runtime_checkable
class QueueOrder(Protocol):
    """One object serves one queue."""

    def first(self, queue: Sequence[QueuedPrefill], now: float) -> int:
        """Position in `queue` of the request that starts now and so leaves it. `queue` is not empty and ascends in `serial`."""
        ...


class FirstCome:
    """In order of placement."""

    def first(self, queue: Sequence[QueuedPrefill], now: float) -> int:
        return 0


class CacheAwareReorder:
    """The largest cached length / computed length first (RAGCache, arXiv 2404.12457 §5.2), ties in order of placement.

    A request that `window` later ones have overtaken goes before all that have not waited as long, so that nobody starves.
    A window of 0 is first come, first served. Raises UserError for a negative window.
    """

    def __init__(self, window: int = 32):
        if window < 0:
            raise UserError(f"conductor.queue_order.window is {window}; it must be 0 or more")
        self.window = window
        self._overtaken: dict[int, int] = {}

    def first(self, queue: Sequence[QueuedPrefill], now: float) -> int:
        overtaken = {waiting.serial: self._overtaken.get(waiting.serial, 0) for waiting in queue}
        chosen = max(range(len(queue)), key=lambda i: self._priority(queue[i], overtaken[queue[i].serial], -i))
        for waiting in queue[:chosen]:
            overtaken[waiting.serial] += 1
        self._overtaken = overtaken
        return chosen

    def _priority(self, waiting: QueuedPrefill, overtaken: int, earlier: int) -> tuple:
        if overtaken >= self.window:
            return (True, earlier)
        return (False, waiting.cached / (waiting.tokens - waiting.cached), earlier)


class ShortestFirst:
    """The least predicted prefill time first, less `ageing` seconds for every second since arrival; ties in order of placement.

    Without ageing long prompts can starve; with it one of s seconds yields to none that arrived s / ageing seconds after it.
    Raises UserError for negative ageing.
    """

    def __init__(self, ageing: float | int = 0.1):
        if not ageing >= 0:
            raise UserError(f"conductor.queue_order.ageing is {ageing}; it must be 0 or more")
        self.ageing = ageing

    def first(self, queue: Sequence[QueuedPrefill], now: float) -> int:
        return min(range(len(queue)), key=lambda i: queue[i].seconds - self.ageing * (now - queue[i].arrival))
