"""A trace: requests as lengths and block ids."""

from dataclasses import dataclass

BLOCK_TOKENS = 512
"""Tokens that one hash id stands for in a published Mooncake trace."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace: lengths and block ids, no text."""

    arrival: float
    """Seconds since the start of the trace."""
    input_length: int
    """Prompt tokens, at least 1."""
    output_length: int
    """Tokens to generate, at least 1."""
    hash_ids: tuple[int, ...]
    """One id per block of the prompt, the last one maybe partial. Equal id: equal block *and* equal prefix before it."""
    session: str | None = None
    """The conversation it is a turn of; None when the trace does not tell."""


@dataclass(frozen=True)
class Trace:
    """Requests in arrival order; every prompt has ceil(input_length / block_tokens) hash ids."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int = BLOCK_TOKENS
    """Tokens that one hash id stands for."""
    left_out: int = 0
    """Requests of the file that its reader left out, since nothing was prefilled or generated."""
