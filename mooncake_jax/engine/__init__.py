"""Prefill and decode instances: chunking, layer groups, batching, sampling."""

from mooncake_jax.cluster_config import EngineConfig
from mooncake_jax.engine import programs
from mooncake_jax.engine.completion import Completion, Detokenizer, FinishReason, TokenOutput
from mooncake_jax.engine.decode import DecodeInstance, DecodeJob, DecodeState, Ended, Joined, Lost
from mooncake_jax.engine.prefill import FirstToken, PrefillInstance, PrefillJob, PrefillState, Shipped
from mooncake_jax.engine.stage import stage_meshes
from mooncake_jax.engine.store import PoolWriter
from mooncake_jax.engine.warmup import warm_decode, warm_link, warm_prefill

__all__ = [
    "Completion",
    "DecodeInstance",
    "DecodeJob",
    "DecodeState",
    "Detokenizer",
    "Ended",
    "EngineConfig",
    "FinishReason",
    "FirstToken",
    "Joined",
    "Lost",
    "PoolWriter",
    "PrefillInstance",
    "PrefillJob",
    "PrefillState",
    "Shipped",
    "TokenOutput",
    "programs",
    "stage_meshes",
    "warm_decode",
    "warm_link",
    "warm_prefill",
]
