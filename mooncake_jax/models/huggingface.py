"""Reads folders as the Hugging Face hub has them: `config.json` and safetensors, in one file or in shards with an index."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from mooncake_jax.errors import UserError
from mooncake_jax.models.config import ModelConfig, token_ids
from mooncake_jax.models.parameters import Checkpoint, Shape, bind_stored, fingerprint

_NAMES = {
    "embed.embedding": "model.embed_tokens.weight",
    "layers.{i}.attn_norm.scale": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q.kernel": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k.kernel": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v.kernel": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.q_norm.scale": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm.scale": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.o.kernel": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.mlp_norm.scale": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate.kernel": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up.kernel": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down.kernel": "model.layers.{i}.mlp.down_proj.weight",
    "final_norm.scale": "model.norm.weight",
    "lm_head.kernel": "lm_head.weight",
}
_DTYPES = ("F32", "BF16", "F16")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def open_huggingface(folder: Path) -> Checkpoint:
    """Opens a folder with `config.json` and `model.safetensors` or its index and shards. float16 is read as float32.

    Raises UserError when a file or shard is missing, cut short or not understood, when the model type or a feature is not
    supported, or when tensors do not fit the config.
    """
    files = _weight_files(folder)
    config = ModelConfig.from_hf(read_json(folder / "config.json"), name=folder.resolve().name, weights=fingerprint(files))
    if (folder / "generation_config.json").is_file():
        # Chat models list here the tokens that end a turn, besides the one that ends a text.
        more = token_ids(read_json(folder / "generation_config.json").get("eos_token_id"))
        config = dataclasses.replace(config, eos_ids=tuple(dict.fromkeys(config.eos_ids + more)))

    file_of: dict[str, Path] = {}
    shapes: dict[str, Shape] = {}
    for file in files:
        for name, shape in _tensors(file).items():
            file_of[name], shapes[name] = file, shape

    def read_stored(name: str) -> np.ndarray:
        with safe_open(file_of[name], framework="np") as file:
            array = file.get_tensor(name)
        return array.astype(np.float32) if array.dtype == np.float16 else array

    unused = [name for name in shapes if name.endswith("rotary_emb.inv_freq")]
    if config.tie_embeddings:
        unused.append("lm_head.weight")
    return bind_stored(folder, config, _NAMES, shapes, read_stored, unused)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises UserError when the file is missing or holds something else."""
    if not path.is_file():
        raise UserError(f"{path} is missing.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object.")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if not (folder / _INDEX).is_file():
        raise UserError(f"{folder} has neither {_WEIGHTS} nor {_INDEX}; other weight formats are not read.")
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{folder / _INDEX} has no weight_map.")
    files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise UserError(f"Shard {file} is missing, though {_INDEX} names it.")
    return files


def _tensors(file: Path) -> dict[str, Shape]:
    """Shapes by name. Raises UserError for a damaged file and for dtypes that are no plain floats."""
    shapes = {}
    try:
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                piece = opened.get_slice(name)
                if piece.get_dtype() not in _DTYPES:
                    raise UserError(f"{file}: tensor {name} is {piece.get_dtype()}; only {', '.join(_DTYPES)} are read.")
                shapes[name] = tuple(piece.get_shape())
    except SafetensorError as error:
        raise UserError(f"{file} is no safetensors file, or is cut short or damaged ({error}); fetch it again.") from error
    return shapes
