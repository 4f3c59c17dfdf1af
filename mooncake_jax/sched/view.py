"""What the Conductor knows of the cluster when it decides: a snapshot that is cheap to build and can be logged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int64, Integer, Real


@runtime_checkable
class PrefixLookup(Protocol):
    """Anything that tells how many leading blocks each prefill instance holds; `kvcache.PrefixIndex` is one."""

    def match(self, keys: Sequence[int]) -> Int64[np.ndarray, "instances"]:
        """Leading blocks held, by instance index (live or not)."""
        ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that was placed, is not finished and will be or is decoding: what a prediction of the decode load rests on."""

    decode: int
    """The decode instance it was assigned to."""
    tokens: int
    """Its context: prompt and tokens generated so far."""
    prefilled: float
    """When its prefill ended or, if that is still to come, is predicted to end; seconds on the clock of `now`."""


@dataclass(frozen=True, eq=False)
class ClusterView:
    """Live instances and their load. Arrays are aligned with `prefill` or `decode`: entry i is of instance prefill[i].

    The view shares its arrays and its index with whoever keeps the books: decide, then change them.
    Raises ValueError if an array's length is not its instances', or if indices do not ascend (ties go to the lowest).
    """

    prefill: tuple[int, ...]
    """Indices of the live prefill instances, ascending."""
    queue_s: Float[np.ndarray, "prefill"]
    """Committed work ahead of a new request, in seconds."""
    decode: tuple[int, ...]
    """Indices of the live decode instances, ascending."""
    decode_tokens: Real[np.ndarray, "decode"]
    """Sum of (n + tokens generated so far) over requests assigned and not finished."""
    decode_batch: Integer[np.ndarray, "decode"]
    """Number of requests assigned and not finished."""
    index: PrefixLookup
    """Which prefill instance holds which blocks."""
    block_size: int
    """Tokens in a block."""
    kv_bytes_per_token: int
    """Bytes of KV of one token, all layers."""
    decode_capacity_tokens: Real[np.ndarray, "decode"] | None = None
    """Tokens of KV each decode instance has room for; None is unlimited."""
    in_flight: Callable[[], Sequence[InFlight]] = tuple
    """Requests under way that have or will have a second token, asked for only by who predicts with them."""

    def __post_init__(self) -> None:
        for name, array, instances in (
            ("queue_s", self.queue_s, self.prefill),
            ("decode_tokens", self.decode_tokens, self.decode),
            ("decode_batch", self.decode_batch, self.decode),
            ("decode_capacity_tokens", self.decode_capacity_tokens, self.decode),
        ):
            if array is not None and len(array) != len(instances):
                raise ValueError(f"{name} has {len(array)} entries for {len(instances)} live instances {instances}")
        _index_array(self.prefill), _index_array(self.decode)

    @cached_property
    def prefill_array(self) -> Int64[np.ndarray, "prefill"]:
        """`prefill` as a read-only array."""
        return _index_array(self.prefill)

    def prefix_list(self, keys: Sequence[int]) -> list[int]:
        """`prefix_blocks` as a list, for policies that look at one instance after the other."""
        match_list = getattr(self.index, "match_list", None)
        if match_list is None:
            return self.prefix_blocks(keys).tolist()
        blocks = match_list(keys)
        if self.prefill and len(blocks) == len(self.prefill) == self.prefill[-1] + 1:
            return blocks
        return [blocks[i] for i in self.prefill]

    def prefix_blocks(self, keys: Sequence[int]) -> Int64[np.ndarray, "prefill"]:
        """Leading blocks of `keys` that each live prefill instance holds."""
        blocks = self.index.match(keys)
        if self.prefill and len(blocks) == len(self.prefill) == self.prefill[-1] + 1:
            return blocks
        return blocks[self.prefill_array]


@lru_cache(maxsize=256)
def _index_array(indices: tuple[int, ...]) -> np.ndarray:
    """Kept between views, as instances come and go far less often than requests."""
    array = np.array(indices, np.int64)
    if array.size and (array[0] < 0 or (np.diff(array) <= 0).any()):
        raise ValueError(f"instance indices {indices} must be 0 or more and ascend")
    array.setflags(write=False)
    return array
