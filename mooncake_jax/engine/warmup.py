"""Runs every program of an instance once in every shape it may meet, and times the ones an estimator wants to know.

Only call it on an idle instance: nothing is left in the books, and what is written to pages is in no request's.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
from jax import Array

from mooncake_jax.engine import programs, sampling
from mooncake_jax.engine.decode import DecodeInstance
from mooncake_jax.engine.prefill import PrefillInstance
from mooncake_jax.engine.shapes import buckets
from mooncake_jax.transfer import HEADS_AXIS, reshard

_REPEATS = 2


def page_buckets(instance: PrefillInstance | DecodeInstance) -> tuple[int, ...]:
    """Pages a wire unit may have."""
    engine = instance.engine
    return buckets(1, engine.chunk_tokens // engine.page_size)


def _timed(run: Callable[[], Array]) -> float:
    """Seconds of the fastest of a few runs, compiled before."""
    jax.block_until_ready(run())
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - start)
    return best


def warm_prefill(instance: PrefillInstance, sampled: bool, timed: bool = True) -> list[tuple[int, int, float]]:
    """Compiles all passes; (tokens, cached, seconds) of passes of every size, without and with a long prefix, if `timed`."""
    engine, seqs = instance.engine, instance.engine.pack
    samples = []

    def run(size: int, cached: int, sampled: bool) -> Array:
        starts = np.full((seqs + 1,), size, np.int32)
        starts[0] = 0
        lengths = np.zeros((seqs,), np.int32)
        lengths[0] = cached + size
        batch = programs.PrefillBatch(
            tokens=np.zeros((size,), np.int32),
            positions=np.arange(cached, cached + size, dtype=np.int32),
            page=np.full((size,), engine.prefill_pages, np.int32),
            slot=np.zeros((size,), np.int32),
            query_starts=starts,
            lengths=lengths,
            page_table=np.zeros((seqs, engine.max_pages), np.int32),
            last_rows=np.zeros((seqs,), np.int32),
        )
        x = None
        for stage in instance.stages:
            placed = stage.place(batch)
            if stage.embedding is not None:
                x = programs.embed(stage.model, stage.embedding, placed.tokens)
            else:
                x = stage.place(x)
            for group in stage.groups:
                x, group.pages = programs.prefill_group(stage.model, group.params, group.pages, x, placed)
        stage = instance.stages[-1]
        choice = stage.place(sampling.pack_sampling([], [], seqs))
        return programs.first_token(stage.model, stage.head, x, placed.last_rows, choice, sampled=sampled).token

    for size in buckets(engine.page_size, engine.chunk_tokens):
        for cached in sorted({0, max(0, engine.max_context - engine.chunk_tokens)}) if timed else ():
            samples.append((cached + size, cached, _timed(lambda s=size, c=cached: run(s, c, False))))
        if not timed:
            jax.block_until_ready(run(size, 0, False))
        if sampled:
            jax.block_until_ready(run(size, 0, True))
    for pages in page_buckets(instance):
        kv_shape = (pages * engine.page_size, 2 * instance.config.kv_heads, instance.config.head_dim)
        for stage in instance.stages:
            for group in stage.groups:
                kv = np.zeros((len(group.layers), *kv_shape), engine.dtype)
                stage.load(group, kv, [engine.prefill_pages] * pages, group.layers)
                jax.block_until_ready(stage.gather(group, [0] * pages))
    return samples


def warm_decode(instance: DecodeInstance, sampled: bool, timed: bool = True) -> list[tuple[int, int, float]]:
    """Compiles all steps; (batch, context, seconds) of steps of every size at short and at full context, if `timed`."""
    engine, stage = instance.engine, instance.stage
    group = stage.groups[0]
    samples = []

    def run(rows: int, context: int, sampled: bool) -> Array:
        batch = programs.DecodeBatch(
            source=np.full((rows,), -1, np.int32),
            fresh=np.zeros((rows,), np.int32),
            lengths=np.full((rows,), context, np.int32),
            page_table=np.full((rows, engine.max_pages), engine.decode_pages - 1, np.int32),
        )
        batch, choice = stage.place((batch, sampling.pack_sampling([], [], rows)))
        logits, group.pages = programs.decode_step(stage.model, instance.params, group.pages, instance.previous, batch)
        out, instance.previous = programs.choose(stage.model, logits, choice, sampled=sampled, width=engine.max_batch)
        return out.token

    for rows in buckets(1, engine.max_batch):
        for context in (engine.page_size, engine.max_context) if timed else ():
            samples.append((rows, rows * context, _timed(lambda r=rows, c=context: run(r, c, False))))
        if not timed:
            jax.block_until_ready(run(rows, 1, False))
        if sampled:
            jax.block_until_ready(run(rows, 1, True))
    return samples


def warm_link(source: PrefillInstance, target: DecodeInstance) -> None:
    """Compiles the way of every wire unit from a prefill instance into the pages of a decode instance.

    It goes past the Messenger, which may emulate a slow or failing network.
    """
    for pages in page_buckets(source):
        for stage in source.stages:
            for group in stage.groups:
                kv = reshard(stage.gather(group, [0] * pages), target.stage.arrivals, HEADS_AXIS)
                ids = [target.engine.decode_pages] * pages
                target.stage.load(target.stage.groups[0], kv, ids, group.layers)
