"""Cost models made of others: pipelined groups, and prefills that also move KV between DRAM and device."""

from itertools import pairwise

from mooncake_jax.sched import Estimator, HardwareModel


def chunk_seconds(model: Estimator, tokens: int, cached: int, chunk_tokens: int | None) -> list[float]:
    """Seconds of each chunk of a prompt: chunk [a, b) costs what a prompt of b tokens with a cached costs."""
    if chunk_tokens is None:
        return [model.prefill_s(tokens, cached)]
    bounds = [*range(cached, tokens, chunk_tokens), tokens]
    return [model.prefill_s(end, begin) for begin, end in pairwise(bounds)]


def pipeline(stage_free: list[float], start: float, chunks: list[float]) -> list[float]:
    """When each stage is done with all chunks that enter the first at `start`: chunk c is in stage s while c + 1 is in s - 1.

    Each of X stages takes 1 / X of a chunk's time (layers are cut evenly), so C equal chunks of X stage times t take
    (C + X - 1) t rather than C X t (FAST §3.3). Returns the new `stage_free`.
    """
    free = list(stage_free)
    for chunk in chunks:
        time = start
        for stage in range(len(free)):
            time = max(time, free[stage]) + chunk / len(free)
            free[stage] = time
    return free


class Pipelined:
    """An estimator for chunked prefill: a prompt takes what its chunks take through an empty pipeline, of one stage or more."""

    def __init__(self, inner: HardwareModel, stages: int, chunk_tokens: int):
        self._inner, self._stages, self._chunk_tokens = inner, stages, chunk_tokens
        self.decode_step_s, self.decode_line, self.transfer_s = inner.decode_step_s, inner.decode_line, inner.transfer_s

    def prefill_s(self, tokens: int, cached: int) -> float:
        chunks = chunk_seconds(self._inner, tokens, cached, self._chunk_tokens)
        return pipeline([0.0] * self._stages, 0.0, chunks)[-1]


class Loading:
    """A cost model whose prefills also move KV between DRAM and device: the prefix in, the new blocks out (arXiv §5.2).

    `serial`: one after the other. Otherwise layer by layer beside the computation, and the longest of the three counts.
    """

    def __init__(self, inner: HardwareModel, load_s_per_token: float, store_s_per_token: float, serial: bool):
        self._inner, self._serial = inner, serial
        self._load_s, self._store_s = load_s_per_token, store_s_per_token
        self.decode_step_s, self.decode_line, self.transfer_s = inner.decode_step_s, inner.decode_line, inner.transfer_s

    def prefill_s(self, tokens: int, cached: int) -> float:
        compute = self._inner.prefill_s(tokens, cached)
        load, store = cached * self._load_s, (tokens - cached) * self._store_s
        return load + compute + store if self._serial else max(compute, load, store)
