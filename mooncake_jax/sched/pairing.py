"""Which prefill instance computes a request, and which prefix it reuses: the strategies compared in FAST §4.2, arXiv §6.2.

Every strategy reuses what the chosen instance itself holds; only `KVCacheCentric` fetches. With h leading blocks present
p = min(h * block_size, n - 1) tokens need no computing: the last token always runs, as its output is the first token.
"""

import random
from bisect import bisect_left
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import Fetch, Request


class Pairing(NamedTuple):
    """The prefill half of a placement: instance, leading blocks it holds, blocks to fetch, predicted TTFT in seconds."""

    prefill: int
    reuse: int
    fetch: Fetch | None
    ttft: float


@runtime_checkable
class PairingPolicy(Protocol):
    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        """Choose among `view.prefill`, which is not empty. Changes no books; whoever commits the placement does."""
        ...


class Random:
    """Any live instance, uniformly. The same seed and sequence of calls give the same choices on every platform."""

    def __init__(self, seed: int = 0):
        self._random = random.Random(seed)

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        # random() is the one method whose sequence Python promises to keep between versions.
        return _without_fetch(int(self._random.random() * len(view.prefill)), request, view, estimator)


class RoundRobin:
    """The live instances in turn, by index."""

    def __init__(self) -> None:
        self._next = 0

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        position = bisect_left(view.prefill, self._next) % len(view.prefill)
        self._next = view.prefill[position] + 1
        return _without_fetch(position, request, view, estimator)


class LoadBalance:
    """The instance with the least committed work ahead; caches play no part in the choice."""

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        return _without_fetch(int(view.queue_s.argmin()), request, view, estimator)


class CacheAware:
    """The smallest queue + prefill with the instance's own prefix (local cache-aware, arXiv §6.1)."""

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        owns = view.prefix_list(request.keys)
        seconds: dict[int, float] = {}
        ttft, chosen = inf, 0
        for i, (queue, own) in enumerate(zip(view.queue_s.tolist(), owns)):
            prefill = seconds.get(own)
            if prefill is None:
                prefill = seconds[own] = estimator.prefill_s(request.input_tokens, _usable_tokens(own, request, view))
            if queue + prefill < ttft:
                ttft, chosen = queue + prefill, i
        return Pairing(view.prefill[chosen], owns[chosen], None, float(ttft))


class KVCacheCentric:
    """Algorithm 1 (FAST p. 8, arXiv p. 10): cache-aware over the whole cluster, with replication of hot prefixes.

    An instance that holds `own` of the `best` blocks held anywhere fetches the rest iff best > 0 and
    (own = 0 or best / own > balancing_threshold); only the threshold decides, transfer time is not weighed against recompute,
    as the authors have clarified. The source is the lowest-indexed instance with the longest match; the smallest
    estimated TTFT wins, ties to the lowest index.

    Raises UserError for a threshold below 1. The paper does not publish its value.
    """

    def __init__(self, balancing_threshold: float | int = 1.5):
        if not balancing_threshold >= 1:
            raise UserError(f"conductor.pairing.balancing_threshold is {balancing_threshold}; it must be 1 or more")
        self.balancing_threshold = balancing_threshold
        self._enough_of: dict[int, int] = {0: 0}

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        owns = view.prefix_list(request.keys)
        best = max(owns)
        source = view.prefill[owns.index(best)]
        enough = self._enough_of.get(best)
        if enough is None:
            enough = self._enough_of[best] = self._enough(best)
        n, limit, block_size = request.input_tokens, request.input_tokens - 1, view.block_size
        usable_best = min(best * block_size, limit)
        prefill_s, transfer_s = estimator.prefill_s, estimator.transfer_s
        # All that fetch compute the same, and so do all that hold equally much.
        after_fetch = -1.0
        seconds: dict[int, float] = {}
        ttft, chosen = inf, 0
        i = -1
        for queue, own in zip(view.queue_s.tolist(), owns):
            i += 1
            # Neither prefill nor transfer takes less than nothing: what could not win needs no further estimate.
            if queue >= ttft:
                continue
            if own < enough:
                if after_fetch < 0.0:
                    after_fetch = prefill_s(n, usable_best)
                if queue + after_fetch < ttft:
                    moved = usable_best - min(own * block_size, limit)
                    estimate = transfer_s(moved * view.kv_bytes_per_token, source, view.prefill[i]) + queue + after_fetch
                    if estimate < ttft:
                        ttft, chosen = estimate, i
                continue
            prefill = seconds.get(own)
            if prefill is None:
                prefill = seconds[own] = prefill_s(n, min(own * block_size, limit))
            if queue + prefill < ttft:
                ttft, chosen = queue + prefill, i
        own = owns[chosen]
        return Pairing(view.prefill[chosen], own, Fetch(source, best) if own < enough else None, float(ttft))

    def _enough(self, best: int) -> int:
        """The fewest blocks with which an instance does not fetch: one comparison then serves all instances."""
        enough = max(1, int(best / self.balancing_threshold))
        while best / enough > self.balancing_threshold:
            enough += 1
        return enough


def _usable_tokens(blocks: int, request: Request, view: ClusterView) -> int:
    return min(blocks * view.block_size, request.input_tokens - 1)


def _without_fetch(position: int, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
    own = int(view.prefix_blocks(request.keys)[position])
    ttft = float(view.queue_s[position]) + estimator.prefill_s(request.input_tokens, _usable_tokens(own, request, view))
    return Pairing(view.prefill[position], own, None, float(ttft))
