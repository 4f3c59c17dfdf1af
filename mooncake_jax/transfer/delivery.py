"""A unit delivered in spite of failures: sent again until it arrives, its deadline passes, or the tries are used up."""

from mooncake_jax.transfer.messenger import KVBlocks, Messenger, Transfer, TransferState
from mooncake_jax.types import InstanceId


class Delivery:
    """Keeps the source bytes until the unit has arrived. Polled by the receiver, like a `Transfer`."""

    def __init__(self, messenger: Messenger, blocks: KVBlocks, to: InstanceId, *, deadline: float, tries: int = 3):
        self._messenger, self._blocks, self._tries = messenger, blocks, tries
        self.to, self.layers, self.tokens, self.nbytes = to, blocks.layers, blocks.tokens, blocks.nbytes
        self.failures = 0
        self._transfer: Transfer = messenger.send(blocks, to, deadline=deadline)

    @property
    def state(self) -> TransferState:
        return self._transfer.state

    @property
    def reason(self) -> str:
        return self._transfer.reason

    @property
    def moving_s(self) -> float | None:
        """Seconds the last try was under way, None until it ended."""
        transfer = self._transfer
        if transfer.started is None or transfer.finished is None:
            return None
        return transfer.finished - transfer.started

    def poll(self, now: float) -> TransferState:
        """The state; FAILED only when the last try has failed."""
        if self._transfer.poll(now) is TransferState.FAILED and self._blocks is not None:
            self.failures += 1
            if self.failures < self._tries:
                self._transfer = self._messenger.send(self._blocks, self.to, deadline=self._transfer.deadline)
        if self._transfer.state.terminal:
            self._blocks = None
        return self._transfer.state

    def take(self) -> KVBlocks:
        return self._transfer.take()

    def cancel(self, now: float) -> None:
        self._transfer.cancel(now)
        self._blocks = None
