"""Attention kernels on whatever device is here, ours beside others': `python scripts/bench_kernels.py`.

Needs jax, numpy and jaxtyping only. Every implementation computes the same batch, from fresh random numbers that no cache
holds, and is compared with the plain one before it is timed. Bytes and operations per second are the least that the batch
needs, over the median time, and stand beside a copy and a matrix product measured on the same device in the same run.

Layouts other than ours are made before the clock starts, unless a row says `gather`: that one starts from the pages.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mooncake_jax import attention  # noqa: E402

TOLERANCE = 2e-2
"""Relative error above which a result is called wrong."""
FAILURES = (ImportError, AttributeError, NotImplementedError, TypeError, ValueError, RuntimeError, AssertionError)
"""What others' kernels raise where they do not fit."""


@dataclass(frozen=True)
class Work:
    """A batch: sequences of `context` tokens; of each the last `chunk` are queries (1: decode)."""

    name: str
    seqs: int
    context: int
    chunk: int = 1
    kv_heads: int = 8
    group: int = 8
    dim: int = 128
    page: int = 64
    dtype: str = "bfloat16"
    kv_dtype: str | None = None

    @property
    def bytes(self) -> float:
        """Q, the output, and each token's K and V once."""
        size = jnp.dtype(self.kv_dtype or self.dtype).itemsize
        rows = self.seqs * self.chunk * self.kv_heads * self.group
        return (
            2 * self.seqs * self.context * self.kv_heads * self.dim * size
            + 2 * rows * self.dim * jnp.dtype(self.dtype).itemsize
        )

    @property
    def flops(self) -> float:
        """Multiplications and additions of both products, under the causal mask."""
        pairs = self.seqs * (self.chunk * (self.context - self.chunk) + self.chunk * (self.chunk + 1) / 2)
        return 4 * pairs * self.kv_heads * self.group * self.dim


ON_DEVICE = (
    Work("decode 32 x 8k", 32, 8192),
    Work("decode 32 x 8k, page 16", 32, 8192, page=16),
    Work("decode 32 x 8k, int8 KV", 32, 8192, kv_dtype="int8"),
    Work("decode 8 x 32k, GQA 4", 8, 32768, group=4),
    Work("prefill 2k over 30k", 1, 32768, chunk=2048),
    Work("prefill 8k alone", 1, 8192, chunk=8192),
    Work("prefill 4 x 512 over 8k", 4, 8192, chunk=512),
)
ON_CPU = (
    Work("decode 8 x 512", 8, 512, kv_heads=2, group=4, dtype="float32"),
    Work("decode 8 x 512, int8 KV", 8, 512, kv_heads=2, group=4, dtype="float32", kv_dtype="int8"),
    Work("prefill 128 over 384", 1, 512, chunk=128, kv_heads=2, group=4, dtype="float32"),
    Work("prefill 512 alone", 1, 512, chunk=512, kv_heads=2, group=4, dtype="float32"),
)


@dataclass(frozen=True)
class Batch:
    """Arrays of a `Work` on the device. `k` and `v` [seqs, context, kv_heads, dim] are what the pages hold."""

    q: jax.Array
    kv_pages: jax.Array
    kv_scales: jax.Array | None
    query_starts: jax.Array
    lengths: jax.Array
    page_table: jax.Array


def make(work: Work, seed: int) -> Batch:
    """Fresh numbers in pages of a random order."""
    rng = np.random.default_rng(seed)
    per = work.context // work.page
    pages = work.seqs * per
    keys = jax.random.split(jax.random.key(seed), 2)
    shape = (pages, work.page, 2 * work.kv_heads, work.dim)
    scales = None
    if work.kv_dtype is None:
        kv = jax.random.normal(keys[0], shape, work.dtype)
    else:
        kv = jax.random.randint(keys[0], shape, -127, 128, jnp.int8).astype(work.kv_dtype)
        scales = jnp.full((pages, 2 * work.kv_heads), 1 / 64, jnp.float32)
    q = jax.random.normal(keys[1], (work.seqs * work.chunk, work.kv_heads * work.group, work.dim), work.dtype)
    starts = jnp.arange(work.seqs + 1, dtype=jnp.int32) * work.chunk
    table = jnp.asarray(rng.permutation(pages).reshape(work.seqs, per), jnp.int32)
    return Batch(q, kv, scales, starts, jnp.full((work.seqs,), work.context, jnp.int32), table)


def gathered(work: Work, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """K and V [seqs, context, kv_heads, dim] out of the pages."""
    kv = batch.kv_pages[batch.page_table]
    if batch.kv_scales is not None:
        kv = (kv.astype(jnp.float32) * batch.kv_scales[batch.page_table][:, :, None, :, None]).astype(work.dtype)
    kv = kv.reshape(work.seqs, work.context, work.kv_heads, 2, work.dim)
    return kv[:, :, :, 0], kv[:, :, :, 1]


Run = tuple[Callable[..., jax.Array], Callable[[Batch], tuple]]
"""A function to jit, and what makes its arguments of a batch before the clock starts."""


def ours(work: Work, implementation: str) -> Run:
    """The contract of this package."""

    def run(q, kv, scales, starts, lengths, table):
        more = {"kv_scales": scales, "implementation": implementation}
        if work.chunk == 1:
            return attention.paged_decode(q, kv, lengths, table, **more)
        return attention.chunked_prefill(q, kv, starts, lengths, table, **more)

    return run, lambda b: (b.q, b.kv_pages, b.kv_scales, b.query_starts, b.lengths, b.page_table)


def _split_pages(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """[kv_heads, pages, page, dim] of K and of V, as JAX's paged attention has them."""
    kv = batch.kv_pages.transpose(2, 0, 1, 3)
    return kv[0::2], kv[1::2]


def jax_tpu_paged(work: Work) -> Run:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    run = functools.partial(paged_attention, pages_per_compute_block=max(1, min(512, work.context) // work.page))
    return run, lambda b: (b.q * work.dim**-0.5, *_split_pages(b), b.lengths, b.page_table)


def jax_tpu_ragged(work: Work) -> Run:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    run = functools.partial(ragged_paged_attention, sm_scale=work.dim**-0.5)
    one = jnp.array([work.seqs], jnp.int32)
    return run, lambda b: (b.q, b.kv_pages, b.lengths, b.page_table, b.query_starts, one)


def _heads_first(work: Work, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[seqs, q_heads, tokens, dim] of q, k and v, KV heads repeated."""
    q = batch.q.reshape(work.seqs, work.chunk, -1, work.dim).transpose(0, 2, 1, 3)
    k, v = (jnp.repeat(x.transpose(0, 2, 1, 3), work.group, axis=1) for x in gathered(work, batch))
    return q, k, v


def jax_tpu_flash(work: Work) -> Run:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    if work.chunk != work.context:
        raise NotImplementedError("its causal mask has no offset: prompts without prefix only")

    def run(q, k, v):
        out = flash_attention(q, k, v, causal=True, sm_scale=work.dim**-0.5)
        return out.transpose(0, 2, 1, 3).reshape(-1, q.shape[1], work.dim)

    return run, lambda b: _heads_first(work, b)


def jax_tpu_splash(work: Work) -> Run:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    heads, mask = work.kv_heads * work.group, splash_attention_mask
    causal = mask.CausalMask((work.chunk, work.context), offset=work.context - work.chunk)
    kernel = splash_attention_kernel.make_splash_mha(mask.MultiHeadMask([causal] * heads), head_shards=1, q_seq_shards=1)

    def run(q, k, v):
        return jax.vmap(kernel)(q * work.dim**-0.5, k, v).transpose(0, 2, 1, 3).reshape(-1, heads, work.dim)

    return run, lambda b: _heads_first(work, b)


def jax_gpu_paged(work: Work) -> Run:
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    splits = max(n for n in (1, 2, 4, 8, 16) if (work.context // work.page) % n == 0)
    per = max(n for n in (1, 2, 4, 8) if (work.context // work.page // splits) % n == 0)
    run = functools.partial(paged_attention, k_splits=splits, pages_per_compute_block=per)
    return run, lambda b: (b.q * work.dim**-0.5, *_split_pages(b), b.page_table, b.lengths)


def cudnn(work: Work, gather: bool, masked: bool = True) -> Run:
    """`masked` False leaves the causal mask out: not the same result, and the most that cuDNN could do."""
    if work.kv_dtype is not None and not gather:
        raise NotImplementedError("has no quantised KV: see the row with gather")
    mask = None
    if work.chunk > 1 and masked and work.chunk != work.context:
        row = jnp.arange(work.chunk)[:, None] + work.context - work.chunk
        mask = (jnp.arange(work.context)[None, :] <= row)[None, None]

    def attend(q, k, v):
        q = q.reshape(work.seqs, work.chunk, -1, work.dim)
        causal = masked and work.chunk == work.context
        out = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, implementation="cudnn")
        return out.reshape(-1, q.shape[2], work.dim)

    if not gather:
        return attend, lambda b: (b.q, *gathered(work, b))

    def run(q, kv, scales, starts, lengths, table):
        return attend(q, *gathered(work, Batch(q, kv, scales, starts, lengths, table)))

    return run, lambda b: (b.q, b.kv_pages, b.kv_scales, b.query_starts, b.lengths, b.page_table)


def tokamax_ragged(work: Work) -> Run:
    from tokamax import ragged_paged_attention

    run = functools.partial(ragged_paged_attention, sm_scale=work.dim**-0.5)
    one = jnp.array([work.seqs], jnp.int32)
    return run, lambda b: (b.q, b.kv_pages, b.lengths, b.page_table, b.query_starts, one)


def candidates(work: Work, platform: str) -> Iterator[tuple[str, Callable[[], Run]]]:
    """What to try on a platform, by name."""
    names = {"tpu": ("tpu", "xla"), "gpu": ("gpu", "triton", "xla"), "cuda": ("gpu", "triton", "xla")}.get(platform, ("xla",))
    for name in names:
        yield f"ours: {name}", lambda name=name: ours(work, name)
    decode, plain = work.chunk == 1, work.kv_dtype is None
    if platform == "tpu":
        if plain:
            yield "jax: ragged_paged_attention", lambda: jax_tpu_ragged(work)
            yield "tokamax: ragged_paged_attention", lambda: tokamax_ragged(work)
        if plain and decode:
            yield "jax: paged_attention", lambda: jax_tpu_paged(work)
        if plain and not decode:
            yield "jax: flash_attention", lambda: jax_tpu_flash(work)
            yield "jax: splash_attention", lambda: jax_tpu_splash(work)
    elif platform in ("gpu", "cuda"):
        if plain and decode:
            yield "jax: gpu.paged_attention", lambda: jax_gpu_paged(work)
        yield "cuDNN: gather", lambda: cudnn(work, True)
        yield "cuDNN", lambda: cudnn(work, False)
        if not decode and work.chunk != work.context:
            yield "cuDNN: no mask (other result)", lambda: cudnn(work, False, masked=False)


def clock(function: Callable[..., jax.Array], inputs: list[tuple], rounds: int, seconds: float) -> list[float]:
    """Seconds a call, `rounds` times (fewer when `seconds` are over): each round queues several calls, on inputs in turn."""
    for args in inputs:
        jax.block_until_ready(function(*args))
    begin = time.perf_counter()
    jax.block_until_ready(function(*inputs[0]))
    calls = max(1, min(32, int(0.02 / max(time.perf_counter() - begin, 1e-9))))
    times, end = [], time.perf_counter() + seconds
    while len(times) < rounds and (len(times) < 3 or time.perf_counter() < end):
        begin = time.perf_counter()
        out = [function(*inputs[i % len(inputs)]) for i in range(calls)]
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / calls)
        del out
    return times


def yardsticks(cpu: bool, rounds: int, seconds: float) -> tuple[float, float]:
    """Bytes / s of a copy (read and written) and operations / s of a matrix product, in bfloat16 (CPU: float32)."""
    dtype, numbers, size = (jnp.float32, 1 << 25, 1024) if cpu else (jnp.bfloat16, 1 << 29, 8192)
    arrays = [(jax.random.normal(jax.random.key(i), (numbers // 1024, 1024), dtype),) for i in range(2)]
    copy = statistics.median(clock(jax.jit(lambda x: x + jnp.ones((), dtype)), arrays, rounds, seconds))
    squares = [tuple(jax.random.normal(jax.random.key(2 * i + j), (size, size), dtype) for j in range(2)) for i in range(2)]
    product = statistics.median(clock(jax.jit(jnp.matmul), squares, rounds, seconds))
    return 2 * numbers * jnp.dtype(dtype).itemsize / copy, 2 * size**3 / product


def wrong_by(got: jax.Array, want: jax.Array) -> float:
    got, want = (np.asarray(x.astype(jnp.float32), np.float64) for x in (got, want))
    return float(np.linalg.norm(got.reshape(want.shape) - want) / np.linalg.norm(want))


def measure(work: Work, name: str, build: Callable[[], Run], batches: list[Batch], want: jax.Array, args) -> dict:
    """One row of the table."""
    row = {"work": work.name, "implementation": name}
    try:
        run, arguments = build()
        run, inputs = jax.jit(run), [jax.block_until_ready(arguments(batch)) for batch in batches]
        row["error"] = wrong_by(run(*inputs[0]), want)
        times = clock(run, inputs, args.rounds, args.seconds)
    except FAILURES as error:
        return row | {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}"}
    median = statistics.median(times)
    return row | {"seconds": median, "times": times, "bytes_per_s": work.bytes / median, "flops_per_s": work.flops / median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="times each is measured; the median counts")
    parser.add_argument("--seconds", type=float, default=2.0, help="most time to spend on one measurement")
    parser.add_argument("--only", default="", help="batches whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench_kernels"), help="folder of the results")
    args = parser.parse_args()
    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    works = [work for work in (ON_CPU if cpu else ON_DEVICE) if args.only in work.name]
    if not works:
        sys.exit(f"error: no batch is named like {args.only!r}: {', '.join(w.name for w in (ON_CPU if cpu else ON_DEVICE))}")
    if args.rounds < 1 or args.seconds <= 0:
        sys.exit(f"error: --rounds={args.rounds} must be at least 1 and --seconds={args.seconds} above 0")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "bench_kernels.json"

    copy, product = yardsticks(cpu, args.rounds, args.seconds)
    print(
        f"{device.device_kind}, jax {jax.__version__}: copy {copy / 1e9:.1f} GB/s, matrix product {product / 1e12:.3f} TFLOP/s"
    )
    print(
        f"{'batch':<26}{'implementation':<34}{'ms':>10}{'GB/s':>9}{'of copy':>9}{'TFLOP/s':>10}{'of matmul':>10}{'error':>10}"
    )
    rows: list[dict] = []
    for work in works:
        batches = [make(work, seed) for seed in np.random.default_rng().integers(1 << 30, size=2).tolist()]
        reference, arguments = ours(work, "xla")
        want = jax.jit(reference)(*arguments(batches[0]))
        for name, build in candidates(work, device.platform):
            row = measure(work, name, build, batches, want, args)
            rows.append(row)
            head = f"{work.name:<26}{name:<34}"
            if "failed" in row:
                print(f"{head}  not run: {row['failed']}", flush=True)
                continue
            by, fl = row["bytes_per_s"], row["flops_per_s"]
            wrong = "" if row["error"] < TOLERANCE or "other result" in name else "  WRONG"
            print(
                f"{head}{1e3 * row['seconds']:>10.3f}{by / 1e9:>9.1f}{by / copy:>9.1%}{fl / 1e12:>10.3f}{fl / product:>10.1%}"
                f"{row['error']:>10.1e}{wrong}",
                flush=True,
            )
        facts = {"device": device.device_kind, "jax": jax.__version__, "copy_bytes_per_s": copy, "matmul_flops_per_s": product}
        path.write_text(json.dumps(facts | {"batches": [asdict(w) for w in works], "rows": rows}, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
