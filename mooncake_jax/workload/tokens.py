"""Turns a trace, which has only lengths and block ids, into live requests with token ids.

Equal ids stand for equal blocks behind equal prefixes, so any tokens will do as long as an id always gives the same ones and
two ids never do: the engine's own block keys then match exactly where the trace's ids match. It is how Mooncake's maintainers
advise to replay these traces.
"""

from collections.abc import Collection

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.types import Request, SamplingParams
from mooncake_jax.workload.trace import Trace

_LEADING = 64
"""So many tokens are enough to tell random blocks apart: two are alike with a chance of 2^-64 or less."""


def requests(
    trace: Trace,
    vocab_size: int,
    *,
    seed: int = 0,
    low: int = 0,
    reserved: Collection[int] = (),
    timeout: float | None = None,
) -> list[Request]:
    """Live requests `r000000`, `r000001`, ... of the trace, greedy, each running to its output length whatever it generates.

    Token ids lie in [low, vocab_size) without `reserved` (special tokens, say) and depend only on the seed, the hash id, the
    place in the block and these allowed ids, in any process on any machine. `timeout`, in seconds, sets the deadline to
    arrival + timeout. Keys are left empty.

    Raises UserError when no token id is allowed, or when allowed ids are so few and blocks so short that two hash ids got the
    same tokens.
    """
    allowed = np.setdiff1d(np.arange(low, vocab_size), np.array(sorted(reserved), dtype=np.int64)).astype(np.int32)
    given = f"vocab_size={vocab_size}, low={low} and {len(reserved)} reserved ids"
    if low < 0 or not len(allowed):
        raise UserError(f"{given} leave no token ids to draw from: need 0 <= low < vocab_size.")
    blocks = _blocks({hash_id for one in trace.requests for hash_id in one.hash_ids}, trace.block_tokens, allowed, seed)
    if len({block[:_LEADING].tobytes() for block in blocks.values()}) < len(blocks):
        raise UserError(
            f"{len(allowed)} token ids ({given}) in blocks of {trace.block_tokens} tokens do not tell {len(blocks)} hash ids "
            f"apart: allow more token ids or use a larger workload.scale."
        )
    return [
        Request(
            id=f"r{index:06d}",
            arrival=one.arrival,
            input_tokens=one.input_length,
            output_tokens=one.output_length,
            tokens=np.concatenate([blocks[hash_id] for hash_id in one.hash_ids])[: one.input_length],
            sampling=SamplingParams(ignore_eos=True),
            deadline=None if timeout is None else one.arrival + timeout,
            session=one.session,
        )
        for index, one in enumerate(trace.requests)
    ]


def split_by_length(requests: list[Request], max_tokens: int) -> tuple[list[Request], list[Request]]:
    """(those with at most `max_tokens` tokens of prompt and output together, the over-long rest), each in the given order."""
    fitting = [one for one in requests if one.input_tokens + one.output_tokens <= max_tokens]
    too_long = [one for one in requests if one.input_tokens + one.output_tokens > max_tokens]
    return fitting, too_long


def _blocks(hash_ids: Collection[int], block_tokens: int, allowed: np.ndarray, seed: int) -> dict[int, np.ndarray]:
    """int32 [block_tokens] of each hash id."""

    # Philox is keyed, not seeded: no two (seed, id) share a stream, and numpy promises that its raw output never changes.
    # One generator is set to each key in turn, since to make one takes ten times as long as to draw a block.
    philox = np.random.Philox(key=seed)
    beginning = philox.state
    blocks = {}
    for hash_id in hash_ids:
        beginning["state"]["key"][1] = hash_id
        philox.state = beginning
        blocks[hash_id] = allowed[philox.random_raw(block_tokens) % np.uint64(len(allowed))]
    return blocks
