"""What is written down of each request while the simulation runs, one list entry a request; `outcome` makes arrays of it."""

from array import array
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
        self.run_request = array("q")
        self.run_instance = array("q")
        self.run_begin = array("q")
        self.run_end = array("q")
        self.gap_request = array("q")
        self.gap_s = array("d")

    def run(self, request: int, instance: int, begin: int, end: int) -> int:
        """The request takes part in steps begin .. end - 1 of an instance, each an interval of its. Returns the run's number."""
        self.run_request.append(request)
        self.run_instance.append(instance)
        self.run_begin.append(begin)
        self.run_end.append(end)
        return len(self.run_end) - 1

    def shorten(self, run: int, request: int, steps: int) -> None:
        """Only the first `steps` steps of its stay took place, of which the first is the gap before the run."""
        self.run_end[run] = self.run_begin[run] + max(steps - 1, 0)
        if steps == 0:
            at = len(self.gap_request) - 1
            while self.gap_request[at] != request:
                at -= 1
            self.gap_request.pop(at)
            self.gap_s.pop(at)

    def gap(self, request: int, seconds: float) -> None:
        """An interval between two tokens of a request that is no whole step."""
        self.gap_request.append(request)
        self.gap_s.append(seconds)

    def ended(self, request: int, status: Status, time: float, reason: str = "") -> None:
        self.status[request] = status
        self.end[request] = time
        if reason:
            self.reason[request] = reason
