"""From a path to parameters on devices, whatever the format."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array

from mooncake_jax.errors import UserError
from mooncake_jax.models.gguf import open_gguf
from mooncake_jax.models.huggingface import open_huggingface
from mooncake_jax.models.orbax import CONFIG_FILE, open_orbax
from mooncake_jax.models.parameters import Checkpoint, check_target, parameter_shapes


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a GGUF file, a Hugging Face folder, or a folder written by `orbax.save`. Reads metadata only.

    Raises UserError when the path is missing or is none of these, and for everything the readers refuse.
    """
    path = Path(path)
    if path.is_file():
        return open_gguf(path)
    if not path.is_dir():
        raise UserError(f"No checkpoint at {path}: there is no such file or folder.")
    if (path / CONFIG_FILE).is_file():
        return open_orbax(path)
    if (path / "config.json").is_file():
        return open_huggingface(path)
    raise UserError(f"{path} is no checkpoint folder: it has neither config.json (Hugging Face) nor {CONFIG_FILE} (ours).")


def load_params(
    checkpoint: Checkpoint,
    target: Mapping[str, jax.ShapeDtypeStruct],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Array]:
    """Reads the tensors of `target` and lays each device's part of each on that device.

    A tensor is read once into host memory, cast, and given up before the next; no device ever holds more than its shard.
    Formats that restore sharded arrays themselves do so.

    Args:
        target: name → shape, dtype and sharding. It may be a part of the model, as a pipeline stage needs.
        progress: called with (tensors done, tensors in all) after each.
    Raises:
        UserError: a tensor is missing or has another shape; the message has its name, the file and both shapes.
    """
    check_target(checkpoint.path, {name: parameter_shapes(checkpoint.config)[name] for name in checkpoint.names}, target)
    if checkpoint.restore is not None:
        params = checkpoint.restore(target)
        if progress is not None:
            progress(len(target), len(target))
        return params
    params = {}
    for name, wanted in target.items():
        params[name] = _place(np.asarray(checkpoint.read(name), wanted.dtype), wanted)
        if progress is not None:
            progress(len(params), len(target))
    return params


def _place(array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> Array:
    return jax.make_array_from_callback(wanted.shape, wanted.sharding, lambda index: array[index])
