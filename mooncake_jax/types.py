"""The small vocabulary that every room shares: requests, SLOs, instance ids, placements, records.

Times are seconds (float), sizes are bytes or tokens as named. Nothing here imports jax.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mooncake_jax.errors import UserError

TENSOR_AXIS = "tensor"
"""Mesh axis over which heads, the feed-forward width and the vocabulary are cut."""


class Role(enum.StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    COUPLED = "coupled"


class Tier(enum.StrEnum):
    """Where the KV of a prompt token came from. `PEER` is the host pool of another instance."""

    DEVICE = "device"
    HOST = "host"
    PEER = "peer"
    DISK = "disk"
    STORE = "store"


@dataclass(frozen=True, order=True)
class InstanceId:
    """One model replica in one role; printed `prefill-0`. Ties between instances go to the lowest index."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. `temperature == 0` is greedy; the field names are the OpenAI API's and vLLM's."""

    temperature: float = 0.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches p."""
    seed: int = 0
    """The token at position i is drawn with a key made of (seed, i) only, whatever the batch around it."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} must be 0 or more and finite")
        if not 0 < self.top_p <= 1 or self.top_k < -1:
            raise UserError(f"top_p={self.top_p} must be within (0, 1] and top_k={self.top_k} at least -1")
        if "" in self.stop:
            raise UserError("a stop string must not be empty")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and an output limit. A live request has `tokens`; a simulated one only lengths and keys."""

    id: str
    arrival: float
    input_tokens: int
    output_tokens: int
    """Limit of tokens to generate, at least 1."""
    keys: tuple[int, ...] = ()
    """Chained block keys of the prompt (`mooncake_jax.kvcache.keys`)."""
    tokens: np.ndarray | None = field(default=None, repr=False)
    """int32 [input_tokens], or None."""
    sampling: SamplingParams = SamplingParams()
    deadline: float | None = None
    """Absolute time at which the request is given up."""
    session: str | None = None


@dataclass(frozen=True)
class SLO:
    """Service level objective in seconds: time to first token, and time between tokens (mean of the longest 10 %)."""

    ttft: float = 30.0
    tbt: float = 0.1


@dataclass(frozen=True, slots=True)
class Fetch:
    """Order to copy the leading `blocks` of a prompt from the host pool of prefill instance `source`."""

    source: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The Conductor's yes: who prefills, who decodes, what is reused.

    `reuse` leading blocks are already at `prefill`; `fetch`, if any, brings the match up to `fetch.blocks`.
    `ttft` and `tbt` are the predictions (seconds) the decision was made on.
    """

    prefill: int
    decode: int
    reuse: int
    fetch: Fetch | None
    ttft: float
    tbt: float


@dataclass(frozen=True, slots=True)
class Rejection:
    """The Conductor's no: one sentence, and seconds after which a retry may succeed."""

    reason: str
    retry_after: float


class Status(enum.StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True)
class Span:
    """A stage of a request (`queue`, `fetch`, `compute`, `transfer`, `decode_wait`, `decode`, ...) on one instance."""

    name: str
    start: float
    end: float
    where: str
    """Instance (or link) it happened on, e.g. `prefill-0`."""


@dataclass(frozen=True)
class RequestRecord:
    """All that is known of a finished request, live or simulated. Times are absolute seconds of the run's clock."""

    id: str
    arrival: float
    status: Status
    input_tokens: int
    output_tokens: int
    """Tokens really generated."""
    token_times: tuple[float, ...] = ()
    """When each output token left, first to last; len == output_tokens."""
    cached: Mapping[Tier, int] = field(default_factory=dict)
    """Prompt tokens whose KV was reused, by tier. The rest of `input_tokens` was computed."""
    split: Mapping[str, float] = field(default_factory=dict)
    """Where TTFT went: seconds of `queue`, `fetch`, `compute`, `transfer`, `decode_wait`; they sum to TTFT."""
    prefill: int | None = None
    decode: int | None = None
    finished: float | None = None
    reason: str = ""
    """Why it did not complete, or why it stopped (`stop`, `length`)."""
    spans: tuple[Span, ...] = ()
