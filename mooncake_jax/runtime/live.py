"""A request on its way through a live cluster: its attempts, its stream, and the record it leaves."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np

from mooncake_jax.engine import Completion, DecodeJob, PrefillJob, TokenOutput
from mooncake_jax.runtime.fetch import PeerFetch
from mooncake_jax.types import Placement, Request, RequestRecord, Span, Status


@dataclass(eq=False)
class LiveRequest:
    """All state of one request. `attempt` is what is being served now: the prompt, and after a loss also what it has said."""

    request: Request
    attempt: Request
    deadline: float
    completion: Completion
    placement: Placement | None = None
    prefill_job: PrefillJob | None = None
    decode_job: DecodeJob | None = None
    fetch: PeerFetch | None = None
    number: int = 0
    """Of the submission: ids may be used again."""
    serial: int = 0
    """Number of the placement; later ones are larger."""
    promised: bool = False
    tries: int = 0
    cached: dict = field(default_factory=dict)
    split: dict = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    placed: float = 0.0
    first_token_at: float | None = None
    """When prefill sampled the first token."""
    record: RequestRecord | None = None

    @property
    def context(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.request.input_tokens + len(self.completion.tokens)

    def prefilled(self, now: float) -> float:
        """When its prefill ended, or will as it was predicted to; what is late will end soon."""
        if self.first_token_at is not None:
            return self.first_token_at
        return max(self.placed + self.placement.ttft, math.nextafter(now, math.inf))

    def continuation(self) -> Request:
        """The request that carries on where this one was cut off: what was said joins the prompt."""
        request, said = self.request, self.completion.tokens
        if not said:
            return request
        return replace(
            request,
            input_tokens=request.input_tokens + len(said),
            output_tokens=request.output_tokens - len(said),
            tokens=np.concatenate([request.tokens, np.asarray(said, np.int32)]),
            keys=(),
        )

    def finish(self, status: Status, now: float, reason: str) -> RequestRecord:
        """Writes the record; the caller has given everything back."""
        times = tuple(self.completion.times)
        placement = self.placement
        self.record = RequestRecord(
            id=self.request.id,
            arrival=self.request.arrival,
            status=status,
            input_tokens=self.request.input_tokens,
            output_tokens=len(times),
            token_times=times,
            cached=dict(self.cached),
            split=dict(self.split) if times else {},
            prefill=None if placement is None else placement.prefill,
            decode=None if placement is None or self.decode_job is None else placement.decode,
            finished=now,
            reason=reason,
            spans=tuple(self.spans),
        )
        return self.record


class Stream:
    """What a caller of `Cluster.submit` holds: an async iterator of `TokenOutput`s, and the record at the end."""

    def __init__(self, id: str):
        self.id = id
        self._outputs: asyncio.Queue[TokenOutput | RequestRecord | BaseException] = asyncio.Queue()
        self._record: RequestRecord | None = None
        self._error: BaseException | None = None

    def put(self, item: TokenOutput | RequestRecord | BaseException) -> None:
        self._outputs.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[TokenOutput]:
        while self._record is None:
            if self._error is not None:
                raise self._error
            item = await self._outputs.get()
            if isinstance(item, BaseException):
                self._error = item
            elif isinstance(item, RequestRecord):
                self._record = item
            else:
                yield item

    async def record(self) -> RequestRecord:
        """Waits for the end of the request, passing over tokens not yet read."""
        async for _ in self:
            pass
        return self._record
