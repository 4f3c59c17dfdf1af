"""Workloads of which a paper gives averages only: prompts of a document and a question, as a trace file."""

import json
from itertools import count
from pathlib import Path

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.workload import BLOCK_TOKENS


class Documents:
    """Every request takes a document, in random order and each equally often, and adds a question that nobody else asks.

    Args:
      requests: how many.
      input_tokens: mean length of a prompt.
      output_tokens: mean length of an answer.
      documents: how many there are; 0 makes every prompt its own.
      share: of a prompt that is its document's, in whole blocks.
      sigma: lengths are log-normal with this standard deviation of the logarithm; 0 makes all equal.
      seed: the same seed gives the same trace.

    Raises UserError for numbers that cannot be.
    """

    def __init__(
        self,
        requests: int,
        input_tokens: int,
        output_tokens: int,
        documents: int = 0,
        share: float | int = 0.0,
        sigma: float | int = 0.0,
        seed: int = 0,
    ):
        if min(requests, input_tokens, output_tokens) < 1 or documents < 0 or not 0 <= share < 1 or sigma < 0:
            raise UserError(f"documents: {requests=}, {input_tokens=}, {output_tokens=}, {documents=}, {share=}, {sigma=}")
        self.requests, self.input_tokens, self.output_tokens = requests, input_tokens, output_tokens
        self.documents, self.share, self.sigma, self.seed = documents, share, sigma, seed

    def write(self, path: Path) -> Path:
        """Writes the trace in Mooncake's format; arrivals are a second apart, to be drawn anew at the rate of a run."""
        rng, ids = np.random.default_rng(self.seed), count()
        kinds = self.documents or self.requests
        lengths = self._lengths(self.input_tokens, kinds, rng)
        outputs = self._lengths(self.output_tokens, self.requests, rng)
        order = rng.permutation(np.arange(self.requests) % kinds)
        heads = [[next(ids) for _ in range(int(length * self.share) // BLOCK_TOKENS)] for length in lengths]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for number, kind in enumerate(order):
                length = int(lengths[kind])
                own = [next(ids) for _ in range(-(-length // BLOCK_TOKENS) - len(heads[kind]))]
                row = {"timestamp": 1000 * number, "input_length": length, "output_length": int(outputs[number])}
                file.write(json.dumps({**row, "hash_ids": heads[kind] + own}) + "\n")
        return path

    def _lengths(self, mean: int, number: int, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.lognormal(np.log(mean) - self.sigma**2 / 2, self.sigma, number) if self.sigma else np.full(number, mean)
        return np.clip(np.round(drawn), 2, 131_072).astype(np.int64)
