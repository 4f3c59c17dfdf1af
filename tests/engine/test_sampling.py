"""Tokens from logits, against sets and probabilities worked out in float64 by numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from mooncake_jax.engine.sampling import Sampled, greedy, pack_sampling, sample
from mooncake_jax.errors import UserError
from mooncake_jax.types import SamplingParams

DRAWS = 4096
LOGITS = np.array([1.5, -0.5, 2.25, 0.0, 2.0, -3.0, 1.0, 0.5], np.float32)
_sample, _greedy = jax.jit(sample), jax.jit(greedy)


def random_logits(rows: int, vocab: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocab))).astype(np.float32)


def draw(logits: np.ndarray, params: list[SamplingParams], positions: list[int]) -> Sampled:
    return _sample(jnp.asarray(logits), pack_sampling(params, positions, len(logits)))


def many(logits: np.ndarray, **params) -> np.ndarray:
    """DRAWS tokens after the same logits, each with a seed of its own."""
    packed = pack_sampling([SamplingParams(**params)] * DRAWS, [9] * DRAWS, DRAWS)
    rows = np.broadcast_to(logits, (DRAWS, len(logits)))
    return np.asarray(_sample(jnp.asarray(rows), packed._replace(seed=np.arange(DRAWS, dtype=np.int32))).token)


def probabilities(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The distribution that tokens are drawn from: a loop over the tokens, likeliest first, in float64."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = {token: np.exp(float(logits[token]) / temperature) for token in order[: top_k or None]}
    total, reached, kept = sum(weights.values()), 0.0, {}
    for token, weight in weights.items():
        if kept and reached >= top_p:
            break
        kept[token] = weight
        reached += weight / total
    out = np.zeros(len(logits))
    for token, weight in kept.items():
        out[token] = weight / sum(kept.values())
    return out


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


# --- greedy ---------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_likeliest_and_ties_go_to_the_lowest_id():
    logits = np.array([[0, 3, 3, 1], [2, 2, 2, 2], [0, 1, 2, 3], [-5, -9, -5, -5]], np.float32)
    assert _greedy(jnp.asarray(logits)).token.tolist() == [1, 0, 3, 0]
    assert draw(logits, [SamplingParams()] * 4, [0] * 4).token.tolist() == [1, 0, 3, 0]


def test_temperature_zero_is_greedy_whatever_else_is_asked():
    logits = random_logits(64, 50)
    params = [SamplingParams(top_k=i % 5, top_p=(i % 4 + 1) / 4, seed=i) for i in range(64)]
    assert draw(logits, params, list(range(64))).token.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-9, 1e-6, 1e-4, 1e-3])
def test_towards_temperature_zero_sampling_becomes_greedy(temperature):
    logits = random_logits(256, 50)
    params = [SamplingParams(temperature=temperature, seed=i) for i in range(256)]
    assert draw(logits, params, [3] * 256).token.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-6}])
def test_one_token_left_to_draw_from_is_greedy_at_any_temperature(limit):
    logits = random_logits(256, 50)
    params = [SamplingParams(temperature=5.0, seed=i, **limit) for i in range(256)]
    assert draw(logits, params, [3] * 256).token.tolist() == logits.argmax(-1).tolist()


# --- what may be drawn, and how often -------------------------------------------------------------------------------

LIMITS = [
    {},
    {"top_k": 2},
    {"top_k": 5},
    {"top_k": 8},
    {"top_k": 1000},
    {"top_p": 0.35},
    {"top_p": 0.5},
    {"top_p": 0.8},
    {"top_p": 0.95},
    {"top_k": 4, "top_p": 0.7},
    {"top_k": 3, "top_p": 0.9},
    {"top_k": 6, "top_p": 0.99},
]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_tokens_are_drawn_as_often_as_their_probability_says_and_others_never(limits, temperature):
    expected = probabilities(LOGITS, temperature, **limits)
    counts = np.bincount(many(LOGITS, temperature=temperature, **limits), minlength=len(LOGITS))
    assert counts[expected == 0].sum() == 0
    likely = expected * DRAWS >= 5
    rare = ~likely & (expected > 0)
    seen, wanted = counts[likely].tolist(), (expected[likely] * DRAWS).tolist()
    if rare.any():
        seen.append(counts[rare].sum())
        wanted.append(expected[rare].sum() * DRAWS)
    assert len(seen) == 1 or chisquare(seen, wanted).pvalue > 1e-3
    assert (counts[likely] > 0).all()


def test_top_k_at_a_tie_keeps_the_lowest_ids():
    tied = np.array([0, 1, 1, 1, 1], np.float32)
    assert set(many(tied, temperature=1.0, top_k=2)) == {1, 2}


def test_the_token_that_reaches_top_p_stays_and_no_more():
    logits = np.log(np.array([0.25, 0.5, 0.125, 0.125])).astype(np.float32)
    assert set(many(logits, temperature=1.0, top_p=0.49)) == {1}
    assert set(many(logits, temperature=1.0, top_p=0.51)) == {0, 1}
    assert set(many(logits, temperature=1.0, top_p=0.76)) == {0, 1, 2}


def test_top_p_is_measured_among_the_top_k():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert set(many(logits, temperature=1.0, top_p=0.55)) == {0, 1}
    assert set(many(logits, temperature=1.0, top_p=0.55, top_k=2)) == {0}


def test_a_flat_distribution_loses_no_token():
    tokens = many(np.zeros(500, np.float32), temperature=1.0)
    assert len(set(tokens)) > 495


def test_positions_of_one_seed_are_independent_draws():
    rows = np.broadcast_to(LOGITS, (DRAWS, len(LOGITS)))
    tokens = draw(rows, [SamplingParams(temperature=1.0, seed=7)] * DRAWS, list(range(DRAWS))).token
    counts = np.bincount(np.asarray(tokens), minlength=len(LOGITS))
    assert chisquare(counts, probabilities(LOGITS, 1.0) * DRAWS).pvalue > 1e-3
    pairs = np.bincount(np.asarray(tokens[:-1] * 8 + tokens[1:]), minlength=64)
    expected = np.outer(probabilities(LOGITS, 1.0), probabilities(LOGITS, 1.0)).ravel() * (DRAWS - 1)
    likely = expected > 5
    assert chisquare([*pairs[likely], pairs[~likely].sum()], [*expected[likely], expected[~likely].sum()]).pvalue > 1e-3


# --- what a token depends on ----------------------------------------------------------------------------------------


def test_a_token_depends_on_seed_and_position_and_not_on_the_batch_around_it():
    logits = random_logits(8, 100)
    params = [
        SamplingParams(temperature=0.5 + i, seed=i // 2, top_k=30 * (i % 3), top_p=0.8 + 0.05 * (i % 4)) for i in range(8)
    ]
    positions = [5 * i for i in range(8)]
    together = draw(logits, params, positions)
    for i in range(8):
        alone = draw(logits[i : i + 1], params[i : i + 1], positions[i : i + 1])
        assert (alone.token[0], alone.logprob[0]) == (together.token[i], together.logprob[i])
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    shuffled = draw(logits[order], [params[i] for i in order], [positions[i] for i in order])
    assert shuffled.token.tolist() == together.token[jnp.array(order)].tolist()
    padded = _sample(jnp.asarray(np.concatenate([logits, logits])), pack_sampling(params, positions, 16))
    assert padded.token[:8].tolist() == together.token.tolist()
    assert padded.token[8:].tolist() == logits.argmax(-1).tolist()


def test_other_seeds_and_other_positions_give_other_tokens():
    flat = np.zeros((1, 10_000), np.float32)
    tokens = {
        int(draw(flat, [SamplingParams(temperature=1.0, seed=seed)], [position]).token[0])
        for seed in (0, 1, -1, 2**31, 2**40 + 5)
        for position in (0, 1, 2, 4095)
    }
    assert len(tokens) >= 16  # seeds 0 and 2**31 are one


def test_small_errors_of_logits_do_not_change_what_is_drawn():
    rows, vocab = 512, 4096
    logits = random_logits(1, vocab).repeat(rows, 0)
    noise = 1 + 3e-5 * np.random.default_rng(1).standard_normal(logits.shape)
    params = [SamplingParams(temperature=3.0, seed=i) for i in range(rows)]
    first = draw(logits, params, [1] * rows).token
    assert first.tolist() == draw((logits * noise).astype(np.float32), params, [1] * rows).token.tolist()


# --- log-probabilities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_log_probability_is_that_of_the_unmodified_logits(scale):
    logits = scale * random_logits(64, 1000)
    params = [SamplingParams(temperature=1.7, top_k=10, top_p=0.6, seed=i) for i in range(64)]
    for out in (_greedy(jnp.asarray(logits)), draw(logits, params, [2] * 64)):
        want = log_softmax(logits)[np.arange(64), np.asarray(out.token)]
        np.testing.assert_allclose(np.asarray(out.logprob), want, rtol=1e-6, atol=1e-5)


def test_a_batch_is_padded_with_greedy_rows():
    packed = pack_sampling([SamplingParams(temperature=0.7, top_k=3, top_p=0.5, seed=11), None], [40, 41], 4)
    assert packed.temperature.tolist() == [np.float32(0.7), 0, 0, 0]
    assert packed.top_k.tolist() == [3, 0, 0, 0]
    assert packed.top_p.tolist() == [0.5, 1, 1, 1]
    assert packed.seed.tolist() == [11, 0, 0, 0]
    assert packed.position.tolist() == [40, 41, 0, 0]


@pytest.mark.parametrize("top_k", [-1, 2**31, 2**70])
def test_a_top_k_beyond_all_bounds_keeps_every_token(top_k):
    tokens = many(LOGITS, temperature=2.0, top_k=top_k)
    assert (tokens == many(LOGITS, temperature=2.0)).all()


@pytest.mark.parametrize(
    "params",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2}, {"stop": ("",)}],
)
def test_parameters_that_mean_nothing_are_refused(params):
    with pytest.raises(UserError, match="must"):
        SamplingParams(**params)
