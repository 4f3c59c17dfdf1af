"""Makes a trace faster, shorter or smaller, keeping which requests share which prefix."""

import math
from dataclasses import replace

from mooncake_jax.errors import UserError
from mooncake_jax.workload.trace import Trace


def speed_up(trace: Trace, speed: float) -> Trace:
    """Divides every arrival time by `speed`: 2 replays in half the time. Raises UserError unless 0 < speed < inf."""
    if not 0 < speed < math.inf:
        raise UserError(f"workload.speed must be more than 0 and finite, but is {speed}.")
    return replace(trace, requests=tuple(replace(one, arrival=one.arrival / speed) for one in trace.requests))


def first(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests, or all when there are fewer. Raises UserError unless limit is at least 1."""
    if limit < 1:
        raise UserError(f"workload.limit must be 1 or more, or null, but is {limit}.")
    return replace(trace, requests=trace.requests[:limit])


def set_output(trace: Trace, output: int) -> Trace:
    """Every request generates `output` tokens. Raises UserError unless output is at least 1."""
    if output < 1:
        raise UserError(f"workload.output must be 1 or more, or null, but is {output}.")
    return replace(trace, requests=tuple(replace(one, output_length=output) for one in trace.requests))


def scale_lengths(trace: Trace, scale: float) -> Trace:
    """Multiplies all lengths by `scale`, so that long-context traces fit small models; ids, sessions and arrivals stay.

    A hash id then stands for b' = block_tokens · scale tokens, an input of n tokens becomes ceil(n · scale), so that it still
    has ceil(n' / b') ids and a full block stays full; an output of o tokens becomes max(1, round(o · scale)).

    Raises UserError when b' is not a positive whole number.
    """
    block_tokens = trace.block_tokens * scale
    if not 1 <= block_tokens < math.inf or block_tokens != int(block_tokens):
        raise UserError(
            f"workload.scale={scale} makes blocks of {trace.block_tokens} × {scale} = {block_tokens:g} tokens, which must be a "
            f"whole number, 1 or more: use a power of two such as {16 / trace.block_tokens} (16 tokens a block)."
        )
    new, old = int(block_tokens), trace.block_tokens
    # In whole numbers, since n · scale in floats may land just above a whole number and gain a token.
    requests = tuple(
        replace(one, input_length=-(-one.input_length * new // old), output_length=max(1, round(one.output_length * new / old)))
        for one in trace.requests
    )
    return replace(trace, requests=requests, block_tokens=new)
