"""The engine's decode throughput beside a bare jitted loop over the same step function: `python scripts/bench_decode.py`."""

import json
import statistics
import time
from dataclasses import replace

import numpy as np

from mooncake_jax import launch
from mooncake_jax.config import BenchDecodeSettings
from mooncake_jax.types import InstanceId, Request, Role, SamplingParams

PROMPT = 48
"""Tokens before the first decode step."""


def main(settings: BenchDecodeSettings, run: launch.Run) -> None:
    results = {}
    print(f"{'batch':>5} {'bare tok/s':>12} {'engine tok/s':>13} {'ratio':>7}   (medians of {settings.rounds} rounds)")
    for batch in settings.batches:
        context = -(-(PROMPT + settings.steps + 2) // 64) * 64
        pages = batch * context // settings.cluster.engine.page_size
        sizes = {"max_batch": batch, "max_context": context, "decode_pages": pages, "prefill_pages": pages, "chunk_tokens": 64}
        sizes = {"max_batch": batch, "max_context": context, "decode_pages": pages, "prefill_pages": pages, "chunk_tokens": 64}
        engine = replace(settings.cluster.engine, **sizes)
        live = launch.build(replace(settings, cluster=replace(settings.cluster, engine=engine)), warm=False)
        bare_loop(live, batch, 2)
        engine_loop(live, batch, settings.steps, "warm")
        pairs = [
            (bare_loop(live, batch, settings.steps), engine_loop(live, batch, settings.steps, f"round {i}"))
            for i in range(settings.rounds)
        ]
        bare, served = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        results[batch] = {"bare_tokens_per_s": bare, "engine_tokens_per_s": served, "ratio": ratio, "rounds": pairs}
        print(f"{batch:>5} {bare:>12.1f} {served:>13.1f} {ratio:>7.3f}", flush=True)
    (run.folder / "bench_decode.json").write_text(json.dumps(results, indent=1))
    print(run.folder)


def bare_loop(live: launch.Live, batch: int, steps: int) -> float:
    """Tokens a second of nothing but the step: every step's tokens feed the next one on the device."""
    import jax

    from mooncake_jax.engine import programs, sampling

    instance = live.cluster.instances.decode[0]
    stage, engine = instance.stage, instance.engine
    table = np.arange(batch * engine.max_pages, dtype=np.int32).reshape(batch, engine.max_pages)
    source, choice = np.arange(batch, dtype=np.int32), sampling.pack_sampling([], [], batch)
    batches = [
        stage.place((programs.DecodeBatch(source, 0 * source, np.full((batch,), PROMPT + i, np.int32), table), choice))
        for i in range(1, steps + 1)
    ]
    group, previous = stage.groups[0], instance.previous
    jax.block_until_ready((batches, group.pages))
    start = time.perf_counter()
    for placed, drawn in batches:
        logits, group.pages = programs.decode_step(stage.model, instance.params, group.pages, previous, placed)
        _, previous = programs.choose(stage.model, logits, drawn, sampled=False, width=engine.max_batch)
    previous.block_until_ready()
    return batch * steps / (time.perf_counter() - start)


def engine_loop(live: launch.Live, batch: int, steps: int, name: str) -> float:
    """Tokens a second of the decode instance for as many requests that join at once, from its first full step to its last.

    Their KV comes through the Messenger like any other; prefill is left out, since it would share the processor.
    """
    from mooncake_jax.engine import Completion, DecodeJob
    from mooncake_jax.transfer import Delivery, KVBlocks

    cluster = live.cluster
    instance, model = cluster.instances.decode[0], cluster.model
    kv = np.zeros((model.layers, 64, 2 * model.kv_heads, model.head_dim), instance.engine.dtype)
    live.busy.clear()
    for i in range(batch):
        tokens = np.zeros((PROMPT,), np.int32)
        request = Request(f"{name}/{i}", 0.0, PROMPT, steps + 2, tokens=tokens, sampling=SamplingParams(ignore_eos=True))
        job = DecodeJob(request, Completion(request, frozenset(), None, lambda output: None))
        instance.expect(job)
        blocks = KVBlocks(request.id, InstanceId(Role.PREFILL, 0), range(model.layers), range(PROMPT), kv)
        instance.receive(job, Delivery(cluster.messenger, blocks, instance.id, deadline=float("inf")))
        job.completion.accept(0, 0.0, cluster.clock())
        instance.start(job, 0, 0.0)
    while not instance.idle:
        if not instance.step(cluster.clock()):
            time.sleep(0.0005)
    full = [span.end for span in live.busy if span.name == f"decode {batch}"]
    return batch * (len(full) - 1) / (full[-1] - full[0])


if __name__ == "__main__":
    launch.run(main, "bench_decode")
