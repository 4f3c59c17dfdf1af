"""Algorithm 1 with what it leaves open decided the other way: how ties go, and whether transfers count."""

import random

from mooncake_jax.sched import ClusterView, Estimator
from mooncake_jax.sched.pairing import Pairing
from mooncake_jax.types import Fetch, Request


class RandomTies:
    """`sched.KVCacheCentric`, but any of the instances that promise the smallest TTFT may win, not the lowest-indexed.

    With `free_transfers` a transfer is taken to cost nothing, so an idle instance that fetches promises as much as an idle one
    that holds the prefix. For ablations; instance by instance, so slower than the policy it varies.
    """

    def __init__(self, balancing_threshold: float | int = 1.5, free_transfers: bool = False, seed: int = 0):
        self.balancing_threshold, self.free_transfers = balancing_threshold, free_transfers
        self._random = random.Random(seed)

    def pair(self, request: Request, view: ClusterView, estimator: Estimator) -> Pairing:
        owns = view.prefix_blocks(request.keys).tolist()
        best, limit = max(owns), request.input_tokens - 1
        source = view.prefill[owns.index(best)]
        promised = []
        for instance, queue, own in zip(view.prefill, view.queue_s.tolist(), owns):
            fetches = best > 0 and (own == 0 or best / own > self.balancing_threshold)
            usable, held = (min(blocks * view.block_size, limit) for blocks in (best if fetches else own, own))
            ttft = queue + estimator.prefill_s(request.input_tokens, usable)
            if fetches and not self.free_transfers:
                ttft += estimator.transfer_s((usable - held) * view.kv_bytes_per_token, source, instance)
            promised.append(Pairing(instance, own, Fetch(source, best) if fetches else None, float(ttft)))
        least = min(one.ttft for one in promised)
        ties = [one for one in promised if one.ttft == least]
        return ties[int(self._random.random() * len(ties))]
