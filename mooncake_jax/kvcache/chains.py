"""Books of blocks for a workload known in advance: blocks that always come together are one chain, looked up and moved at once.

Where every prompt that has block b also has the block after it, the two are in one chain. A prompt of the published traces is
two or three chains rather than some thirty blocks. The books say the same as `BlockCache` and `PrefixIndex` with LRU: chains
are used first block to last, so their blocks lie side by side in the order of leaving, and only the oldest can be in part.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from jaxtyping import Int64

from mooncake_jax.kvcache.index import assign


class Chains:
    """The chains of a workload, made by `of`."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], of_prompt: list[tuple[int, ...]], found: "_Found"):
        self.length: list[int] = found.length.tolist()
        """Blocks of each chain, by its number."""
        self.of_prompt = {id(keys): chains for keys, chains in zip(prompts, of_prompt)}
        """The chains of each prompt, by the identity of its keys: the very tuple of the workload."""
        self._prompts = prompts  # kept alive: they are known by their identity
        self._prompt, self._start = found.prompt, found.start

    @classmethod
    def of(cls, prompts: Sequence[tuple[int, ...]]) -> "Chains | None":
        """The chains of these prompts' keys; None if equal keys do not stand for equal prefixes, as chains need."""
        lengths = np.fromiter(map(len, prompts), np.int64, len(prompts))
        try:
            keys = np.fromiter(itertools.chain.from_iterable(prompts), np.uint64, int(lengths.sum()))
        except OverflowError:
            return None
        if not lengths.all():
            return None
        prompt_starts = np.cumsum(lengths) - lengths
        _, key, uses = np.unique(keys, return_inverse=True, return_counts=True)
        del keys
        # A block as often used as the one before it is used by the same prompts.
        used = uses[key]
        opens = np.concatenate([[True], used[1:] != used[:-1]])
        opens[prompt_starts] = True
        begin = np.flatnonzero(opens)
        size = np.diff(np.append(begin, len(key)))
        _, example, number = np.unique(key[begin], return_index=True, return_inverse=True)
        owner = np.cumsum(opens) - 1
        whole = np.array_equal(size, size[example][number])
        if not (whole and _depends(key, number[owner]) and _depends(key, np.arange(len(key)) - begin[owner])):
            return None
        prompt = np.searchsorted(prompt_starts, begin[example], side="right") - 1
        found = _Found(size[example], prompt, begin[example] - prompt_starts[prompt])
        numbers = number.tolist()
        bounds = np.searchsorted(begin, np.append(prompt_starts, len(key))).tolist()
        return cls(prompts, [tuple(numbers[low:high]) for low, high in itertools.pairwise(bounds)], found)

    def blocks(self, number: int) -> tuple[int, ...]:
        """The keys of a chain."""
        start = int(self._start[number])
        return self._prompts[int(self._prompt[number])][start : start + self.length[number]]

    @cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """Chain and position in it, by block key."""
        return {key: (number, at) for number in range(len(self.length)) for at, key in enumerate(self.blocks(number))}


@dataclass(frozen=True, eq=False)
class _Found:
    """By chain: its blocks, a prompt that has it, and where it begins there."""

    length: Int64[np.ndarray, "chains"]
    prompt: Int64[np.ndarray, "chains"]
    start: Int64[np.ndarray, "chains"]


def _depends(key: Int64[np.ndarray, "blocks"], value: Int64[np.ndarray, "blocks"]) -> bool:
    """Whether equal keys have equal values."""
    last = np.zeros(int(key.max()) + 1, np.int64)
    last[key] = value
    return np.array_equal(last[key], value)


class ChainIndex:
    """Which instances hold which chains; a `sched.PrefixLookup`, with what else `PrefixIndex` tells."""

    def __init__(self, chains: Chains, instances: int):
        self.chains = chains
        self.instances = instances
        self.masks = [0] * len(chains.length)
        """Bit mask of the instances that hold a chain whole, by its number."""
        self.partly: dict[int, tuple[int, int]] = {}
        """By instance: the chain that it holds in part, and how many leading blocks of it have left."""

    def match(self, keys: Sequence[int]) -> Int64[np.ndarray, "instances"]:
        """How many leading blocks of `keys` each instance holds."""
        return np.array(self.match_list(keys), np.int64)

    def match_list(self, keys: Sequence[int]) -> list[int]:
        chains = self.chains.of_prompt.get(id(keys))
        if not chains:
            return self._match_blocks(keys)
        lengths = [0] * self.instances
        masks, length_of = self.masks, self.chains.length
        alive, length = -1, 0
        for chain in chains:
            still = alive & masks[chain]
            if still != alive:
                if length:
                    assign(lengths, alive ^ still, length)
                alive = still
            if not alive:
                return lengths
            length += length_of[chain]
        assign(lengths, alive, length)
        return lengths

    def _match_blocks(self, keys: Sequence[int]) -> list[int]:
        """The same for keys that are no prompt of the workload, block by block."""
        lengths = [0] * self.instances
        alive, length = (1 << self.instances) - 1, 0
        for key in keys:
            still = alive & self.holders(key)
            assign(lengths, alive ^ still, length)
            alive = still
            length += 1
        assign(lengths, alive, length)
        return lengths

    def holders(self, key: int) -> int:
        """Bit mask of the instances that hold block `key`."""
        if key not in self.chains.place:
            return 0
        chain, position = self.chains.place[key]
        mask = self.masks[chain]
        for instance, (partial, gone) in self.partly.items():
            if partial == chain and position >= gone:
                mask |= 1 << instance
        return mask

    def keys(self, instance: int) -> list[int]:
        """All block keys held by `instance`, in no particular order. Visits every chain."""
        blocks = self.chains.blocks
        whole = [key for chain, mask in enumerate(self.masks) if mask >> instance & 1 for key in blocks(chain)]
        partial, gone = self.partly.get(instance, (None, 0))
        return whole if partial is None else whole + list(blocks(partial)[gone:])


class ChainCache:
    """What one instance holds: at most `capacity` blocks (None: any number), the least recently used leave first."""

    below = None

    def __init__(self, capacity: int | None, index: ChainIndex, instance: int):
        self.capacity = capacity
        self.index = index
        self.instance = instance
        self._chains = index.chains
        self._makers: OrderedDict[int, Any] = OrderedDict()
        """Held chains, the least recently used first, each with its maker."""
        self._gone = 0
        """Blocks of the first of them that have left."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: int) -> bool:
        return bool(self.index.holders(key) >> self.instance & 1)

    def maker(self, key: int) -> Any:
        """Who made a block, or the newest maker of any block of its chain; None if it is not here."""
        return self._makers[self._chains.place[key][0]] if key in self else None

    def makers(self, keys: Sequence[int], begin: int, end: int) -> Iterator[Any]:
        """The makers of blocks begin .. end - 1 of a prompt, which are all here."""
        at = 0
        for chain in self._chains.of_prompt[id(keys)]:
            if begin <= at < end:
                yield self._makers[chain]
            at += self._chains.length[chain]

    def keys(self) -> list[int]:
        held = [key for chain in self._makers for key in self._chains.blocks(chain)]
        return held[self._gone :]

    def use(self, keys: Sequence[int], maker: Any, held: int = 0) -> None:
        """All `keys` of a prompt, first to last: a held block is touched, another comes and is `maker`'s.

        Room is made chain by chain, so that blocks further on in the prompt leave before they are used, if they are the oldest.
        """
        makers, masks, bit, length = self._makers, self.index.masks, 1 << self.instance, self._chains.length
        capacity = inf if self.capacity is None else self.capacity
        size = self._size
        for chain in self._chains.of_prompt[id(keys)]:
            if chain in makers:
                makers.move_to_end(chain)
                if masks[chain] & bit:
                    continue
                # The oldest chain, in part: block by block, each that comes would push out the next one that is still here.
                size += self._gone
                self._gone = 0
                del self.index.partly[self.instance]
            else:
                size += length[chain]
            makers[chain] = maker
            masks[chain] |= bit
            while size > capacity:
                oldest = next(iter(makers))
                masks[oldest] &= ~bit
                there = length[oldest] - self._gone
                if there <= size - capacity:
                    del makers[oldest]
                    size -= there
                    if self._gone:
                        del self.index.partly[self.instance]
                        self._gone = 0
                else:
                    self._gone += size - capacity
                    size = capacity
                    self.index.partly[self.instance] = (oldest, self._gone)
        self._size = size
