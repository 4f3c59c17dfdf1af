"""The decoder against an independent implementation: logits made by `transformers` (scripts in tests/golden)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mooncake_jax.engine import stage_meshes
from mooncake_jax.models import forward, load_params, open_checkpoint, param_targets

GOLDEN = Path(__file__).parents[1] / "golden"


def load(path, tensor=1):
    checkpoint = open_checkpoint(path)
    mesh = stage_meshes(jax.devices()[:tensor], tensor, 1)[0]
    config = checkpoint.config
    params = load_params(checkpoint, param_targets(config, mesh, jnp.float32))
    logits = jax.jit(forward, static_argnums=0)
    return lambda tokens: logits(config, params, tokens)


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_family_gives_the_logits_of_transformers(family, tensor):
    folder = GOLDEN / "families" / family
    expected = np.load(folder / "expected.npz")
    logits = load(folder, tensor)
    for tokens, want in zip(expected["tokens"], expected["logits"], strict=True):
        np.testing.assert_allclose(logits(jnp.asarray(tokens, jnp.int32)), want, atol=5e-5)


def test_smollm2_gives_the_logits_of_transformers(smollm2):
    golden = np.load(GOLDEN / "smollm2.npz")
    logits = load(smollm2)
    for i in golden["logit_prompts"]:
        length = int(golden["lengths"][i])
        tokens = np.zeros((-(-length // 64) * 64,), np.int32)
        tokens[:length] = golden["prompts"][i, :length]
        got = np.asarray(logits(jnp.asarray(tokens)))[:length]
        np.testing.assert_array_equal(got.argmax(-1), golden[f"argmax_{i}"])
        np.testing.assert_allclose(np.logaddexp.reduce(got.astype(np.float64), axis=-1), golden[f"logsumexp_{i}"], atol=2e-4)
        if f"last_logits_{i}" in golden:
            np.testing.assert_allclose(got[-1], golden[f"last_logits_{i}"], atol=2e-4)
