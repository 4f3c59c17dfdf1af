"""What is written down of each request while the simulation runs, one list entry a request; `outcome` makes arrays of it."""

from math import nan

from mooncake_jax.types import Status

NONE = -1


class Ledger:
    """Lists by request number. Times are seconds of the run's clock, NaN until they have come."""

    def __init__(self, requests: int):
        self.status: list[Status | None] = [None] * requests
        self.reason: dict[int, str] = {}
        self.prefill = [NONE] * requests
        self.decode = [NONE] * requests
        self.reuse_blocks = [0] * requests
        self.fetch_source = [NONE] * requests
        self.fetch_blocks = [0] * requests
        self.device_tokens = [0] * requests
        """Prompt tokens reused from the device memory of a coupled instance, and so on by tier."""
        self.host_tokens = [0] * requests
        self.disk_tokens = [0] * requests
        self.peer_tokens = [0] * requests
        self.fetch_s = [0.0] * requests
        """Seconds that prefill waited for the prefix alone."""
        self.start = [nan] * requests
        self.prefilled = [nan] * requests
        self.prefill_s = [0.0] * requests
        """Seconds of prefill computed for the request, those that were in vain included."""
        self.sent = [nan] * requests
        """When the KV was in the DRAM of the decode instance."""
        self.moved_s = [0.0] * requests
        """Seconds from the end of prefill that moving the KV took; loading into device memory included, waiting for it not."""
        self.first = [nan] * requests
        self.last = [nan] * requests
        """When the last token left that no decode step made."""
        self.end = [nan] * requests
        self.generated = [0] * requests
        self.placements = [0] * requests
        """Times the request was placed."""
        self.runs: list[tuple[int, int, int, int]] = []
        """(request, step log, begin, end): the request takes part in steps begin .. end - 1, each an interval of its."""
        self.gaps: list[tuple[int, float]] = []
        """(request, seconds): an interval between two tokens of a request that is no whole step."""

    def shorten(self, run: int, steps: int) -> None:
        """Only the first `steps` steps of a stay took place, of which the first is the gap before the run."""
        request, log, begin, _ = self.runs[run]
        self.runs[run] = (request, log, begin, begin + max(steps - 1, 0))
        if steps == 0:
            last = max(at for at, gap in enumerate(self.gaps) if gap[0] == request)
            self.gaps.pop(last)

    def ended(self, request: int, status: Status, time: float, reason: str = "") -> None:
        self.status[request] = status
        self.end[request] = time
        if reason:
            self.reason[request] = reason
