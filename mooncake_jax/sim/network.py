"""Transfers that share network interfaces: max-min fair rates, as events.

Every node has one interface with so many bytes/s each way. A transfer uses the sending side of its source and the receiving
side of its destination. Whenever a transfer begins or ends, all rates are shared out anew: the fullest side is divided evenly
among its transfers, which are then fixed, and so on with what is left (progressive filling; Bertsekas & Gallager, Data
Networks, §6.5).
"""

from collections.abc import Callable, Hashable
from math import inf


class Transfer:
    """One transfer under way. `done(now)` is called when its last byte has come."""

    __slots__ = ("done", "dst", "left", "rate", "src")

    def __init__(self, src: Hashable, dst: Hashable, nbytes: float | int, done: Callable[[float], None]):
        self.src, self.dst, self.left, self.done = ("out", src), ("in", dst), nbytes, done
        self.rate = 0.0


class Network:
    """`schedule(time, function)` must call function(time) at that time, and later calls of it replace earlier ones' meaning."""

    def __init__(self, bandwidth: float, schedule: Callable[[float, Callable[[float], None]], None]):
        self.bandwidth = bandwidth
        self._schedule = schedule
        self._active: list[Transfer] = []
        self._at = 0.0
        self._version = 0

    def send(self, now: float, src: Hashable, dst: Hashable, nbytes: float | int, done: Callable[[float], None]) -> Transfer:
        transfer = Transfer(src, dst, nbytes, done)
        self._progress(now)
        self._active.append(transfer)
        self._share(now)
        return transfer

    def cancel(self, now: float, transfer: Transfer) -> None:
        """The transfer will not end; its share goes to the others."""
        if transfer in self._active:
            self._progress(now)
            self._active.remove(transfer)
            self._share(now)

    def _progress(self, now: float) -> None:
        for transfer in self._active:
            transfer.left -= transfer.rate * (now - self._at)
        self._at = now

    def _share(self, now: float) -> None:
        sides: dict[Hashable, list[Transfer]] = {}
        for transfer in self._active:
            sides.setdefault(transfer.src, []).append(transfer)
            sides.setdefault(transfer.dst, []).append(transfer)
        left = dict.fromkeys(sides, self.bandwidth)
        open_on = {side: len(transfers) for side, transfers in sides.items()}
        unset = dict.fromkeys(self._active)
        while unset:
            fullest = min((side for side in sides if open_on[side]), key=lambda side: left[side] / open_on[side])
            rate = left[fullest] / open_on[fullest]
            for transfer in [one for one in sides[fullest] if one in unset]:
                transfer.rate = rate
                del unset[transfer]
                for side in (transfer.src, transfer.dst):
                    left[side] -= rate
                    open_on[side] -= 1
        self._version += 1
        version = self._version
        soonest = min((one.left / one.rate if one.left > 0 else 0.0 for one in self._active), default=inf)
        if soonest < inf:
            self._schedule(now + soonest, lambda time: self._wake(time, version))

    def _wake(self, now: float, version: int) -> None:
        if version != self._version:
            return
        # What is left may be a rounding error below nothing.
        soonest = max(min(one.left / one.rate for one in self._active), 0.0)
        ended = [one for one in self._active if one.left / one.rate <= soonest * (1 + 1e-12)]
        self._progress(now)
        self._active = [one for one in self._active if one not in ended]
        self._share(now)
        for transfer in ended:
            transfer.done(now)
