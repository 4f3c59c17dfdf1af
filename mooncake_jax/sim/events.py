"""The queue of events of a simulation."""

import itertools
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from typing import Any


class Order(IntEnum):
    """Order of events of one instant. Step ends and KV arrivals come before all, request arrivals after."""

    PREFILLED = 0
    CONTROL = 1


class Events:
    """Functions to call at times. Those of one instant are called by order, then by serial number."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Callable[[float, Any], None], Any]] = []
        self.serial = itertools.count()

    def at(self, time: float, order: Order, serial: int, function: Callable[[float, Any], None], argument: Any) -> None:
        """Calls function(time, argument)."""
        heappush(self._heap, (time, order, serial, function, argument))

    def later(self, time: float, function: Callable[[float], None]) -> None:
        """Calls function(time), after what else there is at that instant."""
        heappush(self._heap, (time, Order.CONTROL, next(self.serial), lambda now, _: function(now), None))

    def run(self, until: float = inf) -> bool:
        """Everything up to and including `until`; True if there was anything."""
        heap = self._heap
        if not heap or heap[0][0] > until:
            return False
        while heap and heap[0][0] <= until:
            time, _, _, function, argument = heappop(heap)
            function(time, argument)
        return True
