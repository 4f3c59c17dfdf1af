"""The names and shapes that parameters have in this project, and the one form every checkpoint is brought to.

Names are flat (`layers.3.q.kernel`); heads are axes of their own, so that a mesh can cut them. Files of Hugging Face
and of llama.cpp store linear weights as [out, in] with heads flattened; the mapping between the two is here, once.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import xxhash
from jaxtyping import Float

from mooncake_jax.errors import UserError
from mooncake_jax.models.config import ModelConfig

Shape = tuple[int, ...]

_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk, opened but not read: tensors come one at a time, in the names and shapes of this project."""

    path: Path
    """The file or folder, for error messages."""
    config: ModelConfig
    names: tuple[str, ...] = field(repr=False)
    read_tensor: Callable[[str], np.ndarray] = field(repr=False)
    """Reads one of `names` in the shape `parameter_shapes` gives it."""
    restore: Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, jax.Array]] | None = field(default=None, repr=False)
    """Set by formats that put tensors straight into their shardings."""

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """One tensor, float32 or bfloat16, in the shape `parameter_shapes(config)[name]`.

        Raises UserError when the checkpoint has no such tensor.
        """
        if name not in self.names:
            raise UserError(f"{self.path} has no tensor {name}.")
        return self.read_tensor(name)


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every parameter of the model and its shape."""
    hidden, mlp, dim = config.hidden, config.mlp, config.head_dim
    heads = {"q": config.q_heads, "k": config.kv_heads, "v": config.kv_heads}
    layer: dict[str, Shape] = {"attn_norm.scale": (hidden,)}
    layer |= {f"{part}.kernel": (hidden, count, dim) for part, count in heads.items()}
    if config.qkv_bias:
        layer |= {f"{part}.bias": (count, dim) for part, count in heads.items()}
    if config.qk_norm:
        layer |= {"q_norm.scale": (dim,), "k_norm.scale": (dim,)}
    layer |= {"o.kernel": (config.q_heads, dim, hidden), "mlp_norm.scale": (hidden,)}
    layer |= {"gate.kernel": (hidden, mlp), "up.kernel": (hidden, mlp), "down.kernel": (mlp, hidden)}

    shapes: dict[str, Shape] = {"embed.embedding": (config.vocab, hidden)}
    shapes |= {f"layers.{i}.{name}": shape for i in range(config.layers) for name, shape in layer.items()}
    shapes["final_norm.scale"] = (hidden,)
    if not config.tie_embeddings:
        shapes["lm_head.kernel"] = (hidden, config.vocab)
    return shapes


def stored_shape(name: str, shape: Shape) -> Shape:
    """The shape files give a parameter: linear weights are [out, in], heads are flattened."""
    if name.endswith("o.kernel"):
        return shape[-1], math.prod(shape[:-1])
    if name.endswith(".kernel"):
        return math.prod(shape[1:]), shape[0]
    return (math.prod(shape),) if name.endswith(".bias") else shape


def bind_stored(
    path: Path,
    config: ModelConfig,
    stored_names: Mapping[str, str],
    stored_shapes: Mapping[str, Shape],
    read_stored: Callable[[str], np.ndarray],
    unused: Iterable[str] = (),
) -> Checkpoint:
    """Matches what the model needs with what the file holds.

    Args:
        stored_names: name of this project → name in the file, by kind: `layers.{i}.q.kernel` → `blk.{i}.attn_q.weight`.
        stored_shapes: every tensor of the file.
        read_stored: reads a tensor by its name in the file, as it lies there.
        unused: names of tensors that may lie in the file and are not needed.
    Raises:
        UserError: a tensor is missing, has another shape, or would be left over (the model then has a part that the
            decoder lacks, such as further biases or experts).
    """
    stored: dict[str, str] = {}
    shapes = parameter_shapes(config)
    for name, shape in shapes.items():
        theirs = _name_in_file(name, stored_names)
        if theirs not in stored_shapes:
            raise UserError(f"{path}: tensor {theirs} (for {name}) is missing.")
        found, expected = tuple(stored_shapes[theirs]), stored_shape(name, shape)
        if found != expected:
            raise UserError(f"{path}: tensor {theirs} (for {name}) has shape {found}; the model's config asks for {expected}.")
        stored[name] = theirs
    left_over = sorted(set(stored_shapes) - set(stored.values()) - set(unused))
    if left_over:
        raise UserError(
            f"{path}: {config.model_type} has no place for {len(left_over)} tensors of the file: {left_over[0]}, ..."
        )

    def read_tensor(name: str) -> np.ndarray:
        array = read_stored(stored[name])
        # Views, not copies: [out, in] turned over, then heads split from their dimensions.
        return (array.T if name.endswith(".kernel") else array).reshape(shapes[name])

    return Checkpoint(path, config, tuple(stored), read_tensor)


def check_target(path: Path, stored: Mapping[str, Shape], target: Mapping[str, jax.ShapeDtypeStruct | jax.Array]) -> None:
    """Raises UserError for the first of `target` that the checkpoint at `path` lacks or holds in another shape."""
    for name, wanted in target.items():
        if name not in stored:
            raise UserError(f"{path} has no tensor {name}.")
        if stored[name] != tuple(wanted.shape):
            raise UserError(f"{path}: tensor {name} has shape {stored[name]}, but {tuple(wanted.shape)} is wanted.")


def fingerprint(paths: Iterable[Path]) -> str:
    """XXH3-64 over each file's size and 64 evenly spaced samples of 4 KiB: tells checkpoints apart without reading them."""
    digest = xxhash.xxh3_64()
    for path in sorted(paths):
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _name_in_file(name: str, stored_names: Mapping[str, str]) -> str:
    if not name.startswith("layers."):
        return stored_names[name]
    _, index, rest = name.split(".", 2)
    return stored_names[f"layers.{{i}}.{rest}"].format(i=index)
