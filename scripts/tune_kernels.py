"""Ranks block sizes of the attention kernels and keeps the best: `python scripts/tune_kernels.py --topology v5e:2x2`.

With `--topology`, for chips that are not here, each candidate is compiled by the chip's own compiler, which refuses what
exceeds its on-chip memory; the rest are ranked by the work that the kernel does with these blocks over the chip's published
speeds, with the latency that the bytes under way do not hide. What XLA reports of the compiled program is kept beside.
Without, they are timed on the device that is here. The winners go into mooncake_jax/attention/blocks.json, which the kernels
read; a ranking without time never replaces a measured one.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_kernels as bench
from omegaconf import OmegaConf

from mooncake_jax.attention import block_table
from mooncake_jax.attention.contract import Options

LATENCY_S = 1e-6
"""From asking HBM to the first byte."""
WORKS = {"decode": bench.Work("decode", 32, 8192), "prefill": bench.Work("prefill", 1, 16384, chunk=2048)}


def candidates(backend: str, function: str, page: int) -> Iterator[Any]:
    """Blocks to try, a few hundred tokens to a few thousand."""
    if backend == "tpu":
        from mooncake_jax.attention.tpu.blocks import Blocks

        tokens, rows = {"decode": ((64, 128, 256, 512), (4, 8, 16)), "prefill": ((128, 256, 512), (64, 128, 256))}[function]
        for size, count in itertools.product(tokens, rows):
            if size >= page:
                yield Blocks(size // page, count)
    else:
        from mooncake_jax.attention.gpu.blocks import Blocks

        for size, stages in itertools.product((32, 64, 128), (2, 3, 4)):
            yield Blocks(size, stages)


def tables(backend: str) -> dict[str, dict]:
    """The tables that the kernels look into as they are traced."""
    if backend == "tpu":
        from mooncake_jax.attention.tpu import blocks
    else:
        from mooncake_jax.attention.gpu import blocks
    return {"decode": blocks.DECODE, "prefill": blocks.PREFILL}


def structs(work: bench.Work, sharding: Any) -> tuple:
    """Arguments of `bench.ours` as shapes."""
    struct = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    per = work.context // work.page
    pages, rows = work.seqs * per, 2 * work.kv_heads
    scales = struct((pages, rows), jnp.float32) if work.kv_dtype else None
    return (
        struct((work.seqs * work.chunk, work.kv_heads * work.group, work.dim), work.dtype),
        struct((pages, work.page, rows, work.dim), work.kv_dtype or work.dtype),
        scales,
        struct((work.seqs + 1,), jnp.int32),
        struct((work.seqs,), jnp.int32),
        struct((work.seqs, per), jnp.int32),
    )


def computed(backend: str, function: str, work: bench.Work, blocks: Any) -> tuple[float, float]:
    """Operations of the kernel with these blocks, padding of blocks included, and bytes under way while it computes."""
    flops, size = work.flops, jnp.dtype(work.kv_dtype or work.dtype).itemsize
    if backend == "gpu":
        return flops, blocks.kv * 2 * work.dim * size * (blocks.stages - 1)
    from mooncake_jax.attention.tpu.layout import PageLayout
    from mooncake_jax.attention.tpu.stream import SLOTS
    from mooncake_jax.attention.tpu.work import decode_cost, prefill_cost

    layout, heads = PageLayout(work.page, work.kv_heads, work.dim, work.kv_dtype or work.dtype), work.kv_heads * work.group
    lengths = np.full(work.seqs, work.context)
    if function == "decode":
        flops = decode_cost(lengths, heads, layout, work.dtype, Options(1.0)).flops
    else:
        starts = np.arange(work.seqs + 1) * work.chunk
        flops = prefill_cost(starts, lengths, work.seqs * work.chunk, heads, layout, blocks, work.dtype, Options(1.0)).flops
    return flops, blocks.pages * work.page * 2 * work.kv_heads * work.dim * size * (SLOTS - 1)


def rank_compiled(backend: str, function: str, work: bench.Work, mesh: Any, chip: Any, blocks: Any) -> dict:
    """What the compiler and the chip's published speeds say of one candidate."""
    run, _ = bench.ours(work, backend)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with jax.set_mesh(mesh):
        compiled = jax.jit(run).lower(*structs(work, sharding)).compile()
    cost = compiled.cost_analysis() or {}
    flops, flying = computed(backend, function, work, blocks)
    reading = work.bytes / chip.hbm_bandwidth * max(1.0, LATENCY_S * chip.hbm_bandwidth / flying)
    seconds = max(flops / chip.flops, reading) + flying / chip.hbm_bandwidth
    return {
        "seconds": seconds,
        "flops": flops,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "xla_bytes": cost.get("bytes accessed", 0.0),
        "xla_seconds": cost.get("optimal_seconds", 0.0),
    }


def rank_timed(backend: str, work: bench.Work, blocks: Any) -> dict:
    """Median seconds on the device that is here of one candidate, which is in the table already."""
    run, arguments = bench.ours(work, backend)
    inputs = [arguments(bench.make(work, seed)) for seed in (1, 2)]
    return {"seconds": statistics.median(bench.clock(jax.jit(run), inputs, 20, 1.0))}


def tune(backend: str, function: str, work: bench.Work, kind: str, judge: Any) -> dict | None:
    """The best candidate as a row of the table, or None when none can run. Prints them all."""
    table, key = tables(backend)[function], (kind, work.kv_dtype or work.dtype, work.dim, work.page)
    before, found = table.pop(key, None), []
    for blocks in candidates(backend, function, work.page):
        table[key] = blocks
        jax.clear_caches()
        label = f"{kind:<14}{function:<9}{key[1]:<15}{work.dim:>4}{work.page:>5}  {json.dumps(asdict(blocks)):<28}"
        try:
            facts = judge(blocks)
        except bench.FAILURES as error:
            print(f"{label}  refused: {str(error).strip().splitlines()[0][:110]}", flush=True)
            continue
        print(f"{label}{1e6 * facts['seconds']:>10.1f} us", flush=True)
        found.append((facts["seconds"], blocks, facts))
    table.pop(key)
    if before is not None:
        table[key] = before
    if not found:
        return None
    _, blocks, facts = min(found, key=lambda one: one[0])
    names = dict(zip(("chip", "dtype", "dim", "page"), key, strict=True))
    return {"backend": backend, "function": function, **names, "blocks": asdict(blocks), **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", nargs="*", default=[], help="chips that are not here, such as v5e:2x2 or h100:1")
    parser.add_argument("--dims", type=int, nargs="+", default=[128])
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16"], help="of the pages: bfloat16, float32, int8, float8_e4m3fn"
    )
    parser.add_argument("--functions", nargs="+", choices=sorted(WORKS), default=sorted(WORKS))
    args = parser.parse_args()
    rows: list[dict] = []
    for name in args.topology or [None]:
        if name is None:
            device, mesh, chip = jax.devices()[0], None, None
            backend = device.platform
            if backend == "cpu":
                sys.exit("error: there is no accelerator here to time kernels on; name chips by --topology, such as v5e:2x2")
        else:
            from mooncake_jax.aot import topology

            from mooncake_jax.errors import UserError
            from mooncake_jax.sched import Chip

            try:
                named = topology(name)
                device = named.devices()[0]
            except UserError as error:
                sys.exit(f"error: {error}")
            mesh = jax.sharding.Mesh(np.array([device]), ("x",))
            hardware = OmegaConf.load(bench.ROOT / "conf" / "hardware" / f"{named.hardware}.yaml")
            chip = Chip(**OmegaConf.to_container(hardware.chip))
            backend = "gpu" if device.platform in ("gpu", "cuda") else device.platform
        for function, dtype, dim, page in itertools.product(args.functions, args.dtypes, args.dims, args.pages):
            quantised = dtype in ("int8", "float8_e4m3fn")
            sizes = {"dim": dim, "page": page, "dtype": "bfloat16" if quantised else dtype}
            work = bench.Work(**(asdict(WORKS[function]) | sizes | {"kv_dtype": dtype if quantised else None}))
            judge = (
                functools.partial(rank_timed, backend, work)
                if mesh is None
                else functools.partial(rank_compiled, backend, function, work, mesh, chip)
            )
            row = tune(backend, function, work, device.device_kind, judge)
            if row is not None:
                rows.append(row | {"evidence": "time" if mesh is None else "compiled"})
                block_table.write(rows)
    print(f"{len(rows)} entries of {block_table.PATH.relative_to(bench.ROOT)}")


if __name__ == "__main__":
    main()
