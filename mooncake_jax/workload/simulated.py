"""Turns a trace into requests for the simulator, which needs no tokens."""

from mooncake_jax.types import Request
from mooncake_jax.workload.blocks import split_blocks
from mooncake_jax.workload.trace import Trace


def simulated_requests(trace: Trace, block_size: int | None = None) -> list[Request]:
    """Requests `r000000`, `r000001`, ... of the trace without tokens, whose keys are its hash ids.

    With a `block_size` the keys are those of blocks of so many tokens (`split_blocks`); None takes the trace's own. A partial
    block at the end of a prompt has a key too. Raises UserError when block_size does not divide the trace's.
    """
    if block_size is not None:
        trace = split_blocks(trace, block_size)
    return [
        Request(f"r{index:06d}", one.arrival, one.input_length, one.output_length, one.hash_ids, session=one.session)
        for index, one in enumerate(trace.requests)
    ]
