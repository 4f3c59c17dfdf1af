"""Checkpoints in this project's own form: an Orbax tree, restored straight into any sharding, and everything else beside it.

    folder/model.json        the ModelConfig
    folder/params/           Orbax: flat name → array, in the shapes of `parameter_shapes`
    folder/tokenizer*.json   as in a Hugging Face folder, when given

Converting once pays for big models: each host then reads only the bytes of its own shards.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, Float

from mooncake_jax.errors import UserError
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.parameters import Checkpoint, check_target, parameter_shapes
from mooncake_jax.models.tokenizer import Tokenizer

CONFIG_FILE = "model.json"
_PARAMS = "params"


def save(
    path: Path | str, config: ModelConfig, params: Mapping[str, Float[Array, "..."]], tokenizer: Tokenizer | None = None
) -> None:
    """Writes a checkpoint folder; returns when it is complete. `model.json` comes last, so half a checkpoint never opens.

    Args:
        params: every parameter of `parameter_shapes(config)`, on whatever mesh it is.
        tokenizer: carried along, so that the folder alone can serve.
    Raises:
        UserError: the folder is in use, or `params` are not the model's.
    """
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; name a new folder to save to.")
    shapes = parameter_shapes(config)
    if set(shapes) != set(params):
        wrong = sorted(set(shapes) ^ set(params))
        raise UserError(f"Cannot save {config.name}: parameters {', '.join(wrong[:3])} are missing or unknown.")
    check_target(folder, shapes, params)
    folder.mkdir(parents=True, exist_ok=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / _PARAMS, dict(params))
    if tokenizer is not None:
        tokenizer.save(folder)
    (folder / CONFIG_FILE).write_text(config.to_json(), encoding="utf-8")


def restore(path: Path | str, target: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    """Reads the tensors of `target`, and no others, each shard of each straight to its device.

    `target` gives shape, dtype (cast on the way) and sharding; it may be a part of the model, as a pipeline stage needs.
    Raises UserError when a tensor is missing, has another shape, or the files are damaged.
    """
    folder = Path(path).absolute()
    check_target(folder, parameter_shapes(_read_config(folder)), target)
    wanted = dict(target)
    return _restore(folder, wanted, ocp.checkpoint_utils.construct_restore_args(wanted))


def open_orbax(path: Path | str) -> Checkpoint:
    """Opens a folder that `save` wrote. Raises UserError when it is incomplete or damaged."""
    folder = Path(path).absolute()
    config = _read_config(folder)

    def read_tensor(name: str) -> np.ndarray:
        return _restore(folder, {name: 0}, {name: ocp.RestoreArgs(restore_type=np.ndarray)})[name]

    names = tuple(parameter_shapes(config))
    return Checkpoint(folder, config, names, read_tensor, lambda target: restore(folder, target))


def _read_config(folder: Path) -> ModelConfig:
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} has no {CONFIG_FILE}: it is no finished checkpoint of this project.")
    if not (folder / _PARAMS / "_METADATA").is_file():
        raise UserError(f"{folder / _PARAMS} holds no Orbax checkpoint; save it again.")
    try:
        return ModelConfig.from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG_FILE} cannot be understood ({error}); save the checkpoint again.") from error


def _restore(folder: Path, item: dict, restore_args: dict) -> dict:
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            arguments = ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
            return checkpointer.restore(folder / _PARAMS, args=arguments)
    except (ValueError, FileNotFoundError) as error:
        # TensorStore's errors are ValueErrors of several lines; the first names the file.
        raise UserError(f"{folder / _PARAMS} is damaged: {str(error).splitlines()[0]}") from error
