"""From logits to tokens, on the device: greedy, temperature, top-k, top-p, with a key of its own for every position."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from mooncake_jax.types import SamplingParams

_MOST = 2**31 - 1
"""What an int32 holds; JAX has no wider integers by default."""


class Sampling(NamedTuple):
    """The parameters of a batch, one entry a row."""

    temperature: Shaped[Array, " rows"]
    top_k: Shaped[Array, " rows"]
    top_p: Shaped[Array, " rows"]
    seed: Shaped[Array, " rows"]
    position: Shaped[Array, " rows"]
    """Position of the token to be drawn, counted from the start of the prompt."""


def pack_sampling(params: list[SamplingParams | None], positions: list[int], rows: int) -> Sampling:
    """numpy arrays for `rows` rows; missing and None entries are greedy padding."""
    padded = [*params, *[None] * (rows - len(params))]
    default = SamplingParams()
    filled = [p or default for p in padded]
    return Sampling(
        np.array([p.temperature for p in filled], np.float32),
        np.array([min(max(p.top_k, 0), _MOST) for p in filled], np.int32),
        np.array([p.top_p for p in filled], np.float32),
        np.array([p.seed & _MOST for p in filled], np.int32),
        np.array([*positions, *[0] * (rows - len(positions))], np.int32),
    )


class Sampled(NamedTuple):
    token: Int[Array, " rows"]
    logprob: Float[Array, " rows"]
    """Of the token under the unmodified logits, as the OpenAI API reports it."""


def greedy(logits: Float[Array, "rows vocab"]) -> Sampled:
    """The likeliest token; ties go to the lowest id."""
    return _with_logprob(logits, jnp.argmax(logits, axis=-1).astype(jnp.int32))


def sample(logits: Float[Array, "rows vocab"], sampling: Sampling) -> Sampled:
    """One token a row by its own parameters.

    temperature 0 is greedy. Otherwise logits / temperature are cut to the top_k likeliest (0: all), then to the smallest
    set whose probability reaches top_p (the token that crosses p stays), and drawn from with the key (seed, position).
    """
    vocab = logits.shape[-1]
    hot = logits / jnp.maximum(sampling.temperature, 1e-6)[:, None]
    ordered, ids = jax.lax.top_k(hot, vocab)
    rank = jnp.arange(vocab)[None, :]
    keep = rank < jnp.where(sampling.top_k > 0, sampling.top_k, vocab)[:, None]
    probability = jax.nn.softmax(jnp.where(keep, ordered, -jnp.inf), axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    keep &= (before < sampling.top_p[:, None]) | (rank == 0)
    keys = jax.vmap(lambda s, p: jax.random.fold_in(jax.random.key(s), p))(sampling.seed, sampling.position)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (vocab,)))(keys)
    noise = jnp.take_along_axis(noise, ids, axis=-1)  # by token, not by rank: a rounding error of a logit changes no draw
    choice = jnp.argmax(jnp.where(keep, ordered + noise, -jnp.inf), axis=-1)
    drawn = jnp.take_along_axis(ids, choice[:, None], axis=-1)[:, 0]
    token = jnp.where(sampling.temperature > 0, drawn, jnp.argmax(logits, axis=-1))
    return _with_logprob(logits, token.astype(jnp.int32))


def _with_logprob(logits: Array, token: Array) -> Sampled:
    chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
    return Sampled(token, -jax.nn.logsumexp(logits - chosen[:, None], axis=-1))  # exact where the token is all but certain
