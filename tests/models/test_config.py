"""ModelConfig: what it makes of config.json and GGUF keys, what it refuses, and what it computes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.models import ModelConfig, RopeScaling

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
LLAMA = {"model_type": "llama", **SIZES}


def test_older_and_newer_files_say_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    older = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})
    newer = ModelConfig.from_hf({**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **scaling}})
    assert older == newer
    assert newer.rope_theta == 5e5
    assert newer.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def test_linear_scaling_in_its_oldest_spelling_divides_every_frequency() -> None:
    plain = ModelConfig.from_hf(LLAMA)
    scaled = ModelConfig.from_hf({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}})
    np.testing.assert_allclose(scaled.rope_frequencies(), plain.rope_frequencies() / 4)


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3"])
def test_rotary_frequencies_are_those_of_transformers(golden: Path, family: str) -> None:
    folder = golden / "families" / family
    config = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    np.testing.assert_allclose(config.rope_frequencies(), np.load(folder / "expected.npz")["frequencies"], rtol=1e-6)


def test_switches_of_each_family() -> None:
    def switches(model_type: str, **more: object) -> tuple[bool, bool]:
        config = ModelConfig.from_hf({**SIZES, "model_type": model_type, **more})
        return config.qkv_bias, config.qk_norm

    assert switches("llama") == switches("mistral", sliding_window=None) == (False, False)
    assert switches("qwen2") == (True, False)
    assert switches("qwen3") == (False, True)
    assert ModelConfig.from_hf({**SIZES, "model_type": "qwen3"}).head_dim == 128
    assert ModelConfig.from_hf({**LLAMA, "head_dim": None}).head_dim == 16


def test_several_end_tokens_are_kept() -> None:
    assert ModelConfig.from_hf({**LLAMA, "eos_token_id": [7, 9]}).eos_ids == (7, 9)
    assert ModelConfig.from_hf({**LLAMA, "eos_token_id": 7}).eos_ids == (7,)
    assert ModelConfig.from_hf(LLAMA).eos_ids == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt_bigcode"}, r"'gpt_bigcode'.*llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "None"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding-window"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding-window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"'yarn'.*llama3 and linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "4 query heads.*3 KV heads"),
        ({"head_dim": 15}, "15 is odd"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused(change: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ModelConfig.from_hf({**LLAMA, **change})


def test_kv_bytes_of_llama3_70b() -> None:
    sizes = dict(layers=80, hidden=8192, mlp=28672, q_heads=64, kv_heads=8, head_dim=128, vocab=128256)
    assert ModelConfig(name="llama3-70b", model_type="llama", **sizes).kv_bytes_per_token(2) == 327_680


def test_identity_follows_weights_and_sizes_and_ignores_the_name_of_the_folder() -> None:
    config = dataclasses.replace(ModelConfig.from_hf(LLAMA), weights="abc")
    assert config.identity == dataclasses.replace(config, name="elsewhere").identity
    assert config.identity != dataclasses.replace(config, weights="abd").identity
    assert config.identity != dataclasses.replace(config, rope_theta=1e6).identity
    unweighed = dataclasses.replace(config, weights="")
    assert unweighed.identity != dataclasses.replace(unweighed, name="elsewhere").identity


def test_json_brings_a_config_back() -> None:
    config = ModelConfig.from_hf({**LLAMA, "eos_token_id": [1, 2], "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert ModelConfig.from_json(config.to_json()) == config
