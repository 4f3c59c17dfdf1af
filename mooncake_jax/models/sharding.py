"""Which logical axis of a parameter or activation lies on which mesh axis: one table, used everywhere."""

from collections.abc import Mapping, Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mooncake_jax.errors import UserError
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.types import TENSOR_AXIS

RULES: Mapping[str, str | None] = {
    "vocab": TENSOR_AXIS,
    "q_heads": TENSOR_AXIS,
    "kv_heads": TENSOR_AXIS,
    "mlp": TENSOR_AXIS,
    "hidden": None,
    "head_dim": None,
}
_MAY_REPLICATE = ("vocab",)
"""Axes that are kept whole where the mesh does not divide them; the others are refused by `check_mesh`."""


def partition(axes: Sequence[str], shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Sharding of an array with these logical axes and this shape."""
    spec = []
    for axis, size in zip(axes, shape, strict=True):
        name = RULES[axis]
        whole = name is None or name not in mesh.shape or (axis in _MAY_REPLICATE and size % mesh.shape[name])
        spec.append(None if whole else name)
    return NamedSharding(mesh, PartitionSpec(*spec))


def check_mesh(config: ModelConfig, tensor: int, stages: int = 1) -> None:
    """Raises UserError, naming both numbers, when a mesh of `tensor` × `stages` cannot hold the model."""
    for what, size in (("query heads", config.q_heads), ("KV heads", config.kv_heads), ("feed-forward width", config.mlp)):
        if size % tensor:
            raise UserError(
                f"{config.name} has {size} {what}, which tensor={tensor} does not divide; choose a divisor of {size}"
            )
    if config.layers % stages:
        raise UserError(
            f"{config.name} has {config.layers} layers, which stage={stages} does not divide; "
            f"choose a divisor of {config.layers}"
        )
