"""Reads GGUF files (llama.cpp's format), quantised or not. The `gguf` package parses and dequantises."""

import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.parameters import Checkpoint, bind_stored, fingerprint

_NAMES = {
    "embed.embedding": "token_embd.weight",
    "layers.{i}.attn_norm.scale": "blk.{i}.attn_norm.weight",
    "layers.{i}.q.kernel": "blk.{i}.attn_q.weight",
    "layers.{i}.k.kernel": "blk.{i}.attn_k.weight",
    "layers.{i}.v.kernel": "blk.{i}.attn_v.weight",
    "layers.{i}.q.bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k.bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v.bias": "blk.{i}.attn_v.bias",
    "layers.{i}.q_norm.scale": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm.scale": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.o.kernel": "blk.{i}.attn_output.weight",
    "layers.{i}.mlp_norm.scale": "blk.{i}.ffn_norm.weight",
    "layers.{i}.gate.kernel": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up.kernel": "blk.{i}.ffn_up.weight",
    "layers.{i}.down.kernel": "blk.{i}.ffn_down.weight",
    "final_norm.scale": "output_norm.weight",
    "lm_head.kernel": "output.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"


class _Reader(gguf.GGUFReader):
    """The package's reader over a plain view of its memory map: slicing `np.memmap` 10⁵ times takes seconds."""

    @property
    def data(self) -> np.ndarray:
        return self._view

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._view = np.asarray(mapped)


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file of architecture llama, qwen2 or qwen3. Tensors are read as float32.

    Raises UserError when the file is missing, cut short, split, of another architecture, quantised in a way the `gguf`
    package cannot undo, or does not hold the tensors its metadata promises.
    """
    reader = _open(path)
    fields = read_fields(path)
    if fields.get("split.count", 1) > 1:
        raise UserError(f"{path} is one of {fields['split.count']} pieces; join them with llama.cpp's gguf-split --merge.")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shapes = {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in tensors.items()}
    for tensor in {tensor.tensor_type: tensor for tensor in reader.tensors}.values():
        _check_type(path, tensor)

    factors = _read(tensors[_ROPE_FACTORS]) if _ROPE_FACTORS in tensors else None
    config = ModelConfig.from_gguf(fields, shapes, factors, name=path.name, weights=fingerprint([path]))

    def read_stored(name: str) -> np.ndarray:
        array = _read(tensors[name])
        if config.model_type == "llama" and ".attn_q." in name:
            return _rotate_half_order(array, config.q_heads)
        if config.model_type == "llama" and ".attn_k." in name:
            return _rotate_half_order(array, config.kv_heads)
        return array

    return bind_stored(path, config, _NAMES, shapes, read_stored, unused=(_ROPE_FACTORS,))


def read_fields(path: Path) -> dict[str, Any]:
    """The key-value fields of a GGUF file as Python values; the tokenizer is among them. Raises UserError as `open_gguf`."""
    return {key: field.contents() for key, field in _open(path).fields.items()}


def _open(path: Path) -> _Reader:
    if not path.is_file():
        raise UserError(f"No GGUF file at {path}.")
    facts = path.stat()
    return _open_once(path, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _open_once(path: Path, size: int, mtime_ns: int) -> _Reader:
    """Size and time are there to notice a changed file; the cache, because weights and tokenizer lie in the same file."""
    try:
        return _Reader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        # What numpy and the package raise when counts or offsets point beyond the end of the file.
        raise UserError(f"{path} is no GGUF file, or is cut short or damaged ({error}); fetch it again.") from error


def _check_type(path: Path, tensor: gguf.ReaderTensor) -> None:
    try:
        gguf.dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UserError(
            f"{path}: tensor {tensor.name} is quantised as {kind}, which cannot be read; take a Q4, Q8 or F16 file."
        ) from error


def _read(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)


def _rotate_half_order(array: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the order in which converters store q and k of llama: pairs (2i, 2i+1) rotate there, (i, i + dim/2) here.

    The inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py. Works on weights [heads·dim, in] and biases.
    """
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)
