"""One request on its way through the simulated cluster, and whatever else makes blocks."""

from collections.abc import Callable
from typing import Any

from mooncake_jax.types import Request


class Maker:
    """Makes the blocks of a prompt: they are available when it has finished. Times are seconds of the run's clock."""

    __slots__ = ("_waiters", "finish", "lost", "planned")

    def __init__(self, planned: float = 0.0):
        self.planned = planned
        """When it will finish if all goes as predicted."""
        self.finish: float | None = None
        self.lost = False
        """It never will."""
        self._waiters: list[Callable[[float], None]] | None = None

    def then(self, function: Callable[[float], None]) -> None:
        """Calls `function(time)` once this has finished or is lost."""
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(function)

    def over(self, now: float) -> None:
        """Tells all who wait."""
        waiters, self._waiters = self._waiters or (), None
        for function in waiters:
            function(now)


class Job(Maker):
    """A request at one prefill instance. One that is served again after a failure gets another job."""

    __slots__ = (
        "cached",
        "compute",
        "decode",
        "disk_tokens",
        "expected",
        "fetch_blocks",
        "fetch_wait",
        "input_tokens",
        "joined_step",
        "number",
        "output_tokens",
        "own_blocks",
        "own_tokens",
        "placed",
        "prefill",
        "pushed",
        "ready",
        "request",
        "run",
        "serial",
        "service",
        "start",
        "transfers",
    )

    def __init__(self, number: int, request: Request, serial: int, placed: float, prefill: int):
        super().__init__()
        self.number = number
        """Place of the request in the workload."""
        self.request = request
        self.serial = serial
        """Order of placement; breaks ties between events of one instant."""
        self.placed = placed
        self.prefill = prefill
        self.decode: int | None = None
        """Decode instance; None for a request of one token."""
        self.input_tokens = request.input_tokens
        self.output_tokens = request.output_tokens
        self.own_blocks = 0
        """Leading blocks that the instance itself holds, and their tokens."""
        self.own_tokens = 0
        self.disk_tokens = 0
        """Tokens among them that lie on its disk."""
        self.cached = 0
        """Prompt tokens reused in all."""
        self.fetch_blocks = 0
        """Leading blocks there will be after the fetch."""
        self.ready: float | None = placed
        """When the reused prefix is at the instance; None while that is not known."""
        self.expected = placed
        """When it is thought to be there."""
        self.fetch_wait = 0.0
        """Seconds that the prefix alone held the prefill up."""
        self.start = 0.0
        self.compute = 0.0
        """Seconds of an instance's time that the prefill takes."""
        self.service = 0.0
        """Seconds from its start to its end, with what shares the pass and while it passes a pipeline."""
        self.pushed: float | None = None
        """When the last byte of KV has reached the decode instance's node, where transfers share the network."""
        self.joined_step = -1
        """Number of its first decode step at its instance."""
        self.transfers: list[Any] = []
        """Its transfers on a shared network, to be cancelled if it is lost."""
        self.run = -1
        """Its entry in the ledger of runs."""
