"""Does moving KV hide behind computing it? `python scripts/bench_overlap.py`

The emulated link is set so that moving a request's KV takes as long as computing it. Without overlap the second token
would come after compute + move; with it, after little more than the larger of the two.
"""

import asyncio
import json
import statistics
from dataclasses import dataclass

import numpy as np

from mooncake_jax import launch
from mooncake_jax.config import BenchOverlapSettings
from mooncake_jax.errors import UserError
from mooncake_jax.types import Request, SamplingParams


@dataclass(frozen=True)
class Times:
    """Seconds from arrival to the first and to the second token."""

    first: float
    second: float


def main(settings: BenchOverlapSettings, run: launch.Run) -> None:
    from mooncake_jax.transfer import LinkConfig, ThrottledMessenger

    live = launch.build(settings, warm=False)
    messenger = live.cluster.messenger
    if not isinstance(messenger, ThrottledMessenger):
        raise UserError("bench_overlap sets the speed of the network: it needs messenger=throttled")
    tokens = settings.prompt_tokens
    messenger.set_link(LinkConfig())
    request(live, tokens, "warm")
    free = median([request(live, tokens, f"free {i}") for i in range(settings.rounds)])
    compute = free.first
    nbytes = tokens * live.model.checkpoint.config.kv_bytes_per_token(np.dtype(settings.cluster.engine.dtype).itemsize)
    messenger.set_link(LinkConfig(bandwidth=nbytes / compute))
    slow = median([request(live, tokens, f"slow {i}") for i in range(settings.rounds)])
    move, rest = nbytes / (nbytes / compute), free.second - free.first
    rows = {
        "compute: arrival to first token": compute,
        "move: KV over the link": move,
        "rest: load and one decode step": rest,
        "max(compute, move)": max(compute, move),
        "compute + move": compute + move,
        "measured: arrival to second token": slow.second,
    }
    link = nbytes / compute / 1e6
    print(f"{tokens} prompt tokens, {nbytes / 1e6:.1f} MB of KV, link {link:.1f} MB/s, medians of {settings.rounds}")
    for name, seconds in rows.items():
        print(f"  {name:<36} {seconds:8.3f} s")
    hidden = (compute + move + rest - slow.second) / move
    closer = abs(slow.second - max(compute, move)) < abs(slow.second - (compute + move))
    print(f"  {hidden:.0%} of the move is hidden; the measured time is closer to {'the maximum' if closer else 'THE SUM'}")
    (run.folder / "bench_overlap.json").write_text(json.dumps(rows | {"hidden": hidden, "closer_to_max": closer}, indent=1))
    print(run.folder)


def request(live: launch.Live, tokens: int, name: str) -> Times:
    """Serves one request of fresh random tokens, alone."""
    cluster = live.cluster
    prompt = np.random.default_rng(list(name.encode())).integers(0, live.model.vocab, tokens, dtype=np.int32)

    async def client() -> Times:
        arrival = cluster.clock()
        one = Request(name, arrival, tokens, 2, tokens=prompt, sampling=SamplingParams(ignore_eos=True))
        record = await cluster.submit(one).record()
        if len(record.token_times) != 2:
            raise UserError(f"the request ended as {record.status}: {record.reason}")
        return Times(record.token_times[0] - arrival, record.token_times[1] - arrival)

    return asyncio.run(launch.serving(cluster, client()))


def median(times: list[Times]) -> Times:
    return Times(statistics.median(t.first for t in times), statistics.median(t.second for t in times))


if __name__ == "__main__":
    launch.run(main, "bench_overlap")
