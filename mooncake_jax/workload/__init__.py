"""Requests to serve: trace readers, a generator, scaling, token ids, and an open-loop replay client. No jax in here."""

from mooncake_jax.workload.config import WorkloadConfig, load_trace
from mooncake_jax.workload.generate import GeneratorConfig, LogNormal, Normal, generate
from mooncake_jax.workload.replay import Replay, replay
from mooncake_jax.workload.scale import first, scale_lengths, speed_up
from mooncake_jax.workload.tokens import requests, split_by_length
from mooncake_jax.workload.trace import BLOCK_TOKENS, Trace, TraceRequest, read_mooncake

__all__ = [
    "BLOCK_TOKENS",
    "GeneratorConfig",
    "LogNormal",
    "Normal",
    "Replay",
    "Trace",
    "TraceRequest",
    "WorkloadConfig",
    "first",
    "generate",
    "load_trace",
    "read_mooncake",
    "replay",
    "requests",
    "scale_lengths",
    "speed_up",
    "split_by_length",
]
