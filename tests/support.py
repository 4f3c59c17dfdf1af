"""Small real clusters for tests: a random model with 8 KV heads, and an oracle that knows nothing of caches."""

import asyncio
import os
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mooncake_jax.engine import EngineConfig
from mooncake_jax.models import ModelConfig, forward, random_params
from mooncake_jax.runtime import Cluster, ClusterConfig, HostPoolConfig, InstancesConfig, MeshShape, build_cluster
from mooncake_jax.sched import AcceptAll, Conductor, KVCacheCentric, LeastTokens, Measured
from mooncake_jax.transfer import DeviceMessenger
from mooncake_jax.types import SLO, Request, RequestRecord, SamplingParams

MODEL = ModelConfig(
    name="tiny", model_type="llama", layers=4, hidden=64, mlp=128, q_heads=16, kv_heads=8, head_dim=16, vocab=256
)
ENGINE = EngineConfig(
    page_size=4,
    block_size=8,
    chunk_tokens=16,
    pack=4,
    layer_group=2,
    max_context=128,
    max_batch=4,
    prefill_pages=96,
    decode_pages=128,
)


def published_trace(name: str) -> Path:
    """Mooncake's `conversation` or `synthetic` trace, from the folder MOONCAKE_JAX_TRACES; skips the test where it is not."""
    folder = os.environ.get("MOONCAKE_JAX_TRACES") or Path(__file__).parents[2] / "shared/data/traces"
    path = Path(folder) / f"{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the folder that MOONCAKE_JAX_TRACES names")
    return path


@lru_cache(maxsize=4)
def params(model: ModelConfig = MODEL) -> dict:
    return random_params(model, seed=0)


def load(targets: dict) -> dict:
    return {name: jax.device_put(params()[name], target.sharding) for name, target in targets.items()}


def cluster(
    *,
    prefill=(1, 1, 1),
    decode=(1, 1),
    engine: dict | None = None,
    blocks=64,
    pairing=None,
    choice=None,
    messenger=None,
    meshes=None,
    eviction=None,
    **kwargs,
) -> Cluster:
    """`prefill` is (count, tensor, stages), `decode` (count, tensor); the rest goes to ClusterConfig."""
    config = ClusterConfig(
        prefill=InstancesConfig(prefill[0], MeshShape(prefill[1], prefill[2])),
        decode=InstancesConfig(decode[0], MeshShape(decode[1])),
        host_pool=HostPoolConfig(blocks),
        engine=replace(ENGINE, **(engine or {})),
        **({"timeout": 60.0} | kwargs),
    )
    conductor = Conductor(pairing or KVCacheCentric(), choice or LeastTokens(), AcceptAll(), Measured(), SLO())
    start = time.perf_counter()
    messenger = messenger or DeviceMessenger()
    return build_cluster(
        config, MODEL, load, conductor, messenger, lambda: time.perf_counter() - start, meshes=meshes, eviction=eviction
    )


def request(id: str, tokens, output: int = 8, *, arrival: float = 0.0, deadline=None, **sampling) -> Request:
    tokens = np.asarray(tokens, np.int32)
    return Request(id, arrival, len(tokens), output, tokens=tokens, deadline=deadline, sampling=SamplingParams(**sampling))


def prompt(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, MODEL.vocab, n, dtype=np.int32)


def serve(cluster: Cluster, *batches: list[Request]) -> tuple[list[RequestRecord], list[list[int]]]:
    """Serves each batch of requests at once, one batch after another; records and tokens in order of submission."""

    async def one(request: Request) -> tuple[RequestRecord, list[int]]:
        stream = cluster.submit(replace(request, arrival=cluster.clock()))
        tokens = [output.token async for output in stream]
        return await stream.record(), tokens

    async def main() -> list:
        task = asyncio.create_task(cluster.serve())
        done = []
        for batch in batches:
            done += await asyncio.gather(*(one(request) for request in batch))
        task.cancel()
        return done

    done = asyncio.run(main())
    return [record for record, _ in done], [tokens for _, tokens in done]


@lru_cache(maxsize=1)
def _logits():
    return jax.jit(forward, static_argnums=0)


def assert_greedy(tokens, output: list[int]) -> None:
    """`output` is what greedy decoding with a dense forward over the whole sequence says after `tokens`.

    One forward over both: by induction each token must be the likeliest after all before it.
    """
    whole = [*np.asarray(tokens).tolist(), *output]
    padded = np.zeros((-(-len(whole) // 64) * 64,), np.int32)
    padded[: len(whole)] = whole
    best = np.argmax(np.asarray(_logits()(MODEL, params(), jnp.asarray(padded))), axis=-1)
    assert best[len(tokens) - 1 : len(whole) - 1].tolist() == output


_COMPILED: list[str] = []


def compilations() -> int:
    """Programs compiled by XLA in this process since the first call."""
    if not _COMPILED:
        _COMPILED.append("listening")
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, _, **kw: _COMPILED.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
        )
    return len(_COMPILED) - 1


def assert_empty(cluster: Cluster) -> None:
    """Every page, block, pin and transfer is back."""
    for _ in range(1000):
        cluster.tick()
        time.sleep(0.001)
        instances = [*cluster.instances.prefill.values(), *cluster.instances.decode.values()]
        if all(instance.idle for instance in instances):
            break
    assert not cluster.live
    for instance in instances:
        instance.books.check()
        assert instance.books.used == 0, f"{instance.id} holds {instance.books.used} pages"
        assert instance.idle, f"{instance.id} has work left"
    for index, instance in cluster.instances.prefill.items():
        assert instance.pool.books.pins == 0
        assert instance.pool.open_blocks == 0
        assert set(cluster.books.index.keys(index)) == set(instance.pool.books.keys())
