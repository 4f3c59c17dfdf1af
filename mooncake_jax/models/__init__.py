"""Models: what they are (config), where they come from (checkpoints, tokenizers), and how they compute (decoder)."""

from mooncake_jax.models.checkpoint import load_params, open_checkpoint
from mooncake_jax.models.config import ModelConfig, RopeScaling
from mooncake_jax.models.decoder import forward, param_targets, random_params
from mooncake_jax.models.fetch import cache_dir, fetch_model, fetch_trace
from mooncake_jax.models.orbax import save as save_checkpoint
from mooncake_jax.models.parameters import Checkpoint, parameter_shapes
from mooncake_jax.models.sharding import check_mesh
from mooncake_jax.models.tokenizer import Tokenizer, TokenStream, open_tokenizer

__all__ = [
    "Checkpoint",
    "ModelConfig",
    "RopeScaling",
    "TokenStream",
    "Tokenizer",
    "cache_dir",
    "check_mesh",
    "fetch_model",
    "fetch_trace",
    "forward",
    "load_params",
    "open_checkpoint",
    "open_tokenizer",
    "param_targets",
    "parameter_shapes",
    "random_params",
    "save_checkpoint",
]
