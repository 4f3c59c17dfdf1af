"""Readings of "local cache" in FAST §5.3, of which the paper says little: who is chosen if KV cannot move between nodes."""

import numpy as np

from mooncake_jax.sched import ClusterView, Estimator, KVCacheCentric
from mooncake_jax.sched.pairing import Pairing
from mooncake_jax.types import Request


class WithoutTransfers(KVCacheCentric):
    """Algorithm 1 chooses as ever, but what it would fetch is computed: the same code, with transfers forbidden."""

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        chosen = super().pair(request, view, estimator)
        return Pairing(chosen.prefill, chosen.reuse, None, chosen.ttft)


class LongestPrefix:
    """The instance with the longest match, whatever its queue; ties to the lowest index, or the shortest queue if `balanced`.

    Only instances with at most `cap_s` seconds more work ahead than the least busy one are considered.
    """

    def __init__(self, balanced: bool = False, cap_s: float | int = float("inf")):
        self.balanced, self.cap_s = balanced, cap_s

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        queue = view.queue_s
        own = np.where(queue <= queue.min() + self.cap_s, view.prefix_blocks(request.keys), -1)
        at = int(np.lexsort((queue if self.balanced else np.zeros(len(queue)), -own))[0])
        cached = min(int(own[at]) * view.block_size, request.input_tokens - 1)
        ttft = float(queue[at]) + estimator.prefill_s(request.input_tokens, cached)
        return Pairing(view.prefill[at], int(own[at]), None, float(ttft))
