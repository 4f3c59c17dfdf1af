"""Several traces as one."""

from collections.abc import Sequence

from mooncake_jax.errors import UserError
from mooncake_jax.workload.trace import Trace, TraceRequest


def mix(traces: Sequence[Trace]) -> Trace:
    """All requests of all traces by arrival; those of one instant in the order of the traces.

    What is equal in two traces is so by accident: hash ids are numbered anew, so that no trace shares a block with another, and
    the sessions of trace i are called `i:...`.

    Raises UserError when there is no trace, or their hash ids stand for different numbers of tokens.
    """
    sizes = sorted({trace.block_tokens for trace in traces})
    if len(sizes) != 1:
        raise UserError(f"traces to mix must have hash ids of one size, but theirs stand for {sizes} tokens: split the longer.")
    requests: list[TraceRequest] = []
    used = 0
    for index, trace in enumerate(traces):
        ids: dict[int, int] = {}
        for one in trace.requests:
            hash_ids = tuple(ids.setdefault(old, used + len(ids)) for old in one.hash_ids)
            session = None if one.session is None else f"{index}:{one.session}"
            requests.append(TraceRequest(one.arrival, one.input_length, one.output_length, hash_ids, session))
        used += len(ids)
    requests.sort(key=lambda request: request.arrival)
    return Trace(tuple(requests), sizes[0], sum(trace.left_out for trace in traces))
