"""Small views and placements for the tests of policies."""

import numpy as np

from mooncake_jax.kvcache import PrefixIndex
from mooncake_jax.sched import ClosedForm, ClusterView, InFlight
from mooncake_jax.types import Placement, Request

ROUND = ClosedForm(decode_base=0.01, decode_per_request=0.002, decode_per_context_token=1e-6)
"""10 ms a step, 2 ms a request, 1 ms a thousand tokens of context: numbers that a reader can add up."""


def make_view(queue_s=(0.0,), tokens=(0, 0), batch=None, index=None, in_flight=()) -> ClusterView:
    batch = [int(t > 0) for t in tokens] if batch is None else batch
    flying = [InFlight(*one) for one in in_flight]
    return ClusterView(
        prefill=tuple(range(len(queue_s))),
        queue_s=np.array(queue_s, np.float64),
        decode=tuple(range(len(tokens))),
        decode_tokens=np.array(tokens, np.int64),
        decode_batch=np.array(batch, np.int64),
        index=PrefixIndex(len(queue_s)) if index is None else index,
        block_size=512,
        kv_bytes_per_token=327_680,
        in_flight=lambda: flying,
    )


def make_request(tokens: int = 1000, output: int = 100, keys: tuple[int, ...] = ()) -> Request:
    return Request("r", 0.0, tokens, output, keys)


def make_placement(ttft: float = 1.0, tbt: float = 0.02, decode: int = 0, prefill: int = 0) -> Placement:
    return Placement(prefill, decode, 0, None, ttft, tbt)
