"""Checkpoints for tests: the committed tiny families, the same as GGUF files, and the real SmolLM2."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from mooncake_jax.models import ModelConfig, Tokenizer, open_tokenizer, parameter_shapes

GOLDEN = Path(__file__).parents[1] / "golden"

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return open_tokenizer(smollm2)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a family as a GGUF file, as llama.cpp's converter would; keyword arguments bend it."""

    def write(
        family: str,
        *,
        arch: str | None = None,
        fields: dict | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        drop: str | None = None,
        raw: dict[str, gguf.GGMLQuantizationType] | None = None,
    ) -> Path:
        folder = GOLDEN / "families" / family
        config = json.loads((folder / "config.json").read_text())
        arch = arch or ("llama" if family in ("llama3", "mistral") else family)
        path = tmp_path / f"{family}.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_name(family)
        for key, value in (_fields(arch, config) | (fields or {})).items():
            {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)](key, value)
        for name, array in (_tensors(folder, config, arch) | (tensors or {})).items():
            if name != drop:
                writer.add_tensor(name, array, raw_dtype=(raw or {}).get(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _fields(arch: str, config: dict) -> dict[str, int | float | str]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_parameters"]["rope_theta"],
    }


def _tensors(folder: Path, config: dict, arch: str) -> dict[str, np.ndarray]:
    out = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, array in load_file(file).items():
            heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]
            for theirs, short in _GGUF_NAMES.items():
                name = name.replace(theirs, short)
            array = array.astype(np.float32)
            if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
                # llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute
                array = array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
            out[name] = np.ascontiguousarray(array)
    return out


@pytest.fixture(scope="session")
def make_target() -> Callable[..., dict[str, jax.ShapeDtypeStruct]]:
    """Targets that cut the largest axis of every parameter over `devices` devices, starting at device `first`."""

    def make(config: ModelConfig, devices: int, dtype: object, first: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        mesh = Mesh(np.array(jax.devices()[first : first + devices]), ("tensor",))
        targets = {}
        for name, shape in parameter_shapes(config).items():
            spec = [None] * len(shape)
            spec[int(np.argmax(shape))] = "tensor"
            targets[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        return targets

    return make
