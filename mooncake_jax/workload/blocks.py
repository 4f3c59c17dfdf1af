"""Hash ids of blocks: of prompts that share nothing, of prompts that grow turn by turn, and finer ones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload.parse import in_order
from mooncake_jax.workload.trace import BLOCK_TOKENS, Trace, TraceRequest


def independent(rows: list[tuple[float, int, int, str | None]], path: str | Path) -> Trace:
    """A trace of (arrival, input tokens, output tokens, session) in which no prompt shares a block with another.

    Time 0 becomes the first request's. Rows with 0 tokens of input or output are left out and counted. Raises UserError, which
    names `path`, when no row remains.
    """
    kept = [row for row in rows if row[1] and row[2]]
    start = min((row[0] for row in kept), default=0.0)
    ids = count()
    requests = [
        TraceRequest(arrival - start, prompt, output, tuple(islice(ids, -(-prompt // BLOCK_TOKENS))), session)
        for arrival, prompt, output, session in kept
    ]
    ordered = in_order(requests, path, "with tokens of input and output")
    return Trace(ordered, left_out=len(rows) - len(kept))


def grown(blocks: list[int], prompt: int, ids: Iterator[int]) -> tuple[int, ...]:
    """Hash ids of the next prompt, of `prompt` tokens, in a conversation whose full 512-token blocks so far are `blocks`.

    Full blocks keep their id from turn to turn, and `blocks` gains the new ones; the last, partial block has an id of its own,
    since the next turn fills it up with other tokens. New ids come from `ids`.
    """
    full, partial = divmod(prompt, BLOCK_TOKENS)
    blocks.extend(islice(ids, full - len(blocks)))
    return (*blocks, next(ids)) if partial else tuple(blocks)


def split_blocks(trace: Trace, block_tokens: int) -> Trace:
    """Cuts every block of the trace into finer ones of `block_tokens` tokens.

    With m = trace.block_tokens / block_tokens, id k becomes k·m, k·m + 1, ..., k·m + m - 1, of which a prompt of n tokens keeps
    the first ceil(n / block_tokens): of a partial block only as many as it reaches into. Prompts that share a partial block are
    equal as far as both reach, hence so are the finer ids. Lengths, arrivals and sessions stay.

    Raises UserError unless block_tokens divides trace.block_tokens: two of its blocks do not tell the id of a coarser one.
    """
    if block_tokens < 1 or trace.block_tokens % block_tokens:
        raise UserError(
            f"block_size={block_tokens} must divide the {trace.block_tokens} tokens that a hash id of the trace stands for."
        )
    parts = trace.block_tokens // block_tokens
    if parts == 1:
        return trace
    # Every finer id exists once, however many prompts hold it.
    finer: dict[int, tuple[int, ...]] = {}

    def split(request: TraceRequest) -> TraceRequest:
        for one in request.hash_ids:
            if one not in finer:
                finer[one] = tuple(range(one * parts, one * parts + parts))
        ids = chain.from_iterable(map(finer.__getitem__, request.hash_ids))
        return replace(request, hash_ids=tuple(islice(ids, -(-request.input_length // block_tokens))))

    return replace(trace, requests=tuple(map(split, trace.requests)), block_tokens=block_tokens)
