"""Decoders in flax nnx, and the checkpoints they are read from."""

from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.decoder import forward, param_targets, random_params
from mooncake_jax.models.sharding import check_mesh

__all__ = ["ModelConfig", "check_mesh", "forward", "param_targets", "random_params"]
