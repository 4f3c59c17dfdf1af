"""Requests to serve: trace readers, a generator, changes of traces, token ids, an open-loop replay client. No jax in here."""

from mooncake_jax.workload.azure import read_azure
from mooncake_jax.workload.blocks import split_blocks
from mooncake_jax.workload.burstgpt import read_burstgpt
from mooncake_jax.workload.config import FORMATS, WorkloadConfig, load_trace
from mooncake_jax.workload.generate import GeneratorConfig, LogNormal, Normal, generate
from mooncake_jax.workload.mix import mix
from mooncake_jax.workload.mooncake import read_mooncake
from mooncake_jax.workload.published import TRACES, cache_dir, find_trace
from mooncake_jax.workload.qwen import read_qwen
from mooncake_jax.workload.replay import Replay, replay
from mooncake_jax.workload.scale import first, scale_lengths, set_output, speed_up
from mooncake_jax.workload.sharegpt import about_tokens, read_sharegpt
from mooncake_jax.workload.simulated import simulated_requests
from mooncake_jax.workload.timing import mean_rate, poisson, poisson_times, set_rate, window
from mooncake_jax.workload.tokens import requests, split_by_length
from mooncake_jax.workload.trace import BLOCK_TOKENS, Trace, TraceRequest

__all__ = [
    "BLOCK_TOKENS",
    "FORMATS",
    "TRACES",
    "GeneratorConfig",
    "LogNormal",
    "Normal",
    "Replay",
    "Trace",
    "TraceRequest",
    "WorkloadConfig",
    "about_tokens",
    "cache_dir",
    "find_trace",
    "first",
    "generate",
    "load_trace",
    "mean_rate",
    "mix",
    "poisson",
    "poisson_times",
    "read_azure",
    "read_burstgpt",
    "read_mooncake",
    "read_qwen",
    "read_sharegpt",
    "replay",
    "requests",
    "scale_lengths",
    "set_output",
    "set_rate",
    "simulated_requests",
    "speed_up",
    "split_blocks",
    "split_by_length",
    "window",
]
