"""The real model on the demo's pair of unequal meshes, over 50 real prompts."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from mooncake_jax.engine import EngineConfig, stage_meshes
from mooncake_jax.models import forward, load_params, open_checkpoint, param_targets
from mooncake_jax.runtime import ClusterConfig, InstancesConfig, MeshShape, build_cluster
from mooncake_jax.sched import AcceptAll, Conductor, KVCacheCentric, LeastTokens, Measured
from mooncake_jax.transfer import DeviceMessenger
from mooncake_jax.types import SLO
from tests.support import assert_empty, request, serve

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS = 24


def test_disaggregated_smollm2_says_what_a_plain_forward_and_transformers_say(smollm2):
    golden = np.load(GOLDEN / "smollm2.npz")
    prompts = [row[:n].astype(np.int32) for row, n in zip(golden["prompts"], golden["lengths"], strict=True)]
    checkpoint = open_checkpoint(smollm2)
    model = checkpoint.config
    config = ClusterConfig(
        prefill=InstancesConfig(1, MeshShape(tensor=3)),
        decode=InstancesConfig(2, MeshShape(tensor=1)),
        engine=EngineConfig(chunk_tokens=64, max_context=256, max_batch=16, prefill_pages=256, decode_pages=512),
        timeout=600.0,
    )
    conductor = Conductor(KVCacheCentric(), LeastTokens(), AcceptAll(), Measured(), SLO())
    start = time.perf_counter()
    live = build_cluster(
        config, model, partial(load_params, checkpoint), conductor, DeviceMessenger(), lambda: time.perf_counter() - start
    )
    asked = [request(f"r{i}", tokens, TOKENS, ignore_eos=True) for i, tokens in enumerate(prompts)]
    _, said = serve(live, [replace(one, deadline=None) for one in asked])
    assert len(said) == 50
    for i, tokens in enumerate(said):
        assert tokens == golden["greedy"][i].tolist(), f"prompt {i} differs from transformers"
    assert_empty(live)

    mesh = stage_meshes(jax.devices()[:1], 1, 1)[0]
    params = load_params(checkpoint, param_targets(model, mesh, jnp.float32))
    likeliest = jax.jit(lambda params, tokens: jnp.argmax(forward(model, params, tokens), axis=-1))
    for tokens, output in zip(prompts, said, strict=True):
        whole = np.concatenate([tokens, output])
        padded = np.zeros((-(-len(whole) // 64) * 64,), np.int32)
        padded[: len(whole)] = whole
        best = np.asarray(likeliest(params, jnp.asarray(padded)))
        assert best[len(tokens) - 1 : len(whole) - 1].tolist() == output
