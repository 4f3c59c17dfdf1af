"""Serves a trace by a live cluster, open loop: `python scripts/replay.py workload=mooncake workload.path=FILE`."""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping

from mooncake_jax import launch, report, workload
from mooncake_jax.config import ReplaySettings, make
from mooncake_jax.errors import UserError
from mooncake_jax.sched import write_samples
from mooncake_jax.types import InstanceId, Request, RequestRecord, Role, SamplingParams, Status

GAUGES_S = 1.0
"""Seconds between two looks at the cluster's gauges."""


LONGER = "raise cluster.engine.max_context"


def main(settings: ReplaySettings, run: launch.Run) -> None:
    trace = workload.load_trace(settings.workload)
    limit = settings.cluster.engine.max_context
    if all(one.input_length + one.output_length > limit for one in trace.requests):
        raise UserError(f"no request of the workload fits the cache of {limit} tokens: lower workload.scale or {LONGER}")
    tracking = make(settings.tracker, "tracker", report.TrackerConfig)
    with (run.folder / "decisions.jsonl").open("w", encoding="utf-8") as decisions:
        live = launch.build(
            settings,
            words=settings.ask is not None,
            on_decision=lambda decision: decisions.write(decision.to_json() + "\n"),
        )
        seed, special = settings.workload.seed, live.model.special_ids
        requests = workload.requests(trace, live.model.vocab, seed=seed, reserved=special)
        if settings.ask is not None:
            asyncio.run(launch.serving(live.cluster, ask(live, settings.ask)))
            live.busy.clear()
            live.samples.clear()
        tracker = tracking.build(run.folder, run.settings)
        try:
            compiled = live.compilations.count
            outcome = asyncio.run(launch.serving(live.cluster, replay(live, requests, tracker)))
            facts = {"compilations_while_serving": live.compilations.count - compiled, "client_lag_s": outcome.max_lag}
            write_samples(run.folder / "samples.csv", live.samples)
            summary = report.write_run(
                run.folder,
                outcome.records,
                settings.slo,
                busy=live.busy,
                utilisation=utilisation(live, outcome.records),
                provenance=report.provenance(seed) | facts,
                tracker=tracker,
            )
        finally:
            tracker.finish()

    seconds = trace.requests[-1].arrival
    print(report.format_table(summary, request_rate=len(requests) / seconds if seconds else None))
    if too_long := sum(not fits(request, limit) for request in requests):
        print(f"{too_long} of {len(requests)} requests were rejected as longer than the cache of {limit} tokens: {LONGER}.")
    if missed := facts["compilations_while_serving"]:
        print(f"{missed} programs were compiled while requests waited: the warm-up missed their shapes.")
    if outcome.max_lag > 0.25:
        print(f"At the busiest moment a request left {outcome.max_lag:.2f} s late; latencies count from when it was due.")
    print(run.folder)


def fits(request: Request, limit: int) -> bool:
    return request.input_tokens + request.output_tokens <= limit


async def ask(live: launch.Live, prompt: str) -> None:
    print(f"> {prompt}")
    chat = live.model.words().chat_template is not None
    request = launch.question(live, "ask", prompt, 256, SamplingParams(), chat=chat)
    answer = await launch.answer(live, request, lambda text: print(text, end="", flush=True))
    print(f"\n[{launch.remark(answer.record)}]")


async def replay(live: launch.Live, requests: list[Request], tracker: report.Tracker) -> workload.Replay:
    """Serves the requests at their times, with a progress bar, and tells the tracker the cluster's gauges every second."""
    cluster, limit = live.cluster, live.cluster.config.engine.max_context

    async def submit(request: Request) -> RequestRecord:
        if not fits(request, limit):
            reason = f"{request.input_tokens + request.output_tokens} tokens are more than the cache of {limit}"
            return RequestRecord(
                request.id, request.arrival, Status.REJECTED, request.input_tokens, 0, finished=request.arrival, reason=reason
            )
        return await cluster.submit(request).record()

    done = 0

    def count(so_far: int, total: int) -> None:
        nonlocal done
        done = so_far

    async def watch(show: launch.Show) -> None:
        for step in itertools.count():
            gauges = cluster.gauges()
            tracker.log(gauges, step)
            show(f"serving: {load(gauges)}", done, len(requests))
            await asyncio.sleep(GAUGES_S)

    with launch.progress() as show:
        watcher = asyncio.create_task(watch(show))
        try:
            return await workload.replay(requests, submit, cluster.clock, asyncio.sleep, count)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher  # a tracker that failed is heard of


def load(gauges: Mapping[str, float]) -> str:
    """The load of the moment in a few words."""

    def total(what: str) -> int:
        return int(sum(value for name, value in gauges.items() if name.endswith(what)))

    return f"{total('/queue')} at prefill, {total('/waiting')} wait for decode, {total('/running')} decode"


def utilisation(live: launch.Live, records: tuple[RequestRecord, ...]) -> dict[str, float]:
    """Busy share of every instance, from the first arrival to the last end; those that did nothing are there with 0."""
    start, end = min(record.arrival for record in records), max(record.finished for record in records)
    counts = {Role.PREFILL: live.cluster.config.prefill.count, Role.DECODE: live.cluster.config.decode.count}
    idle = {str(InstanceId(role, index)): 0.0 for role, count in counts.items() for index in range(count)}
    return idle | dict(report.busy_fraction(live.busy, start, end))


if __name__ == "__main__":
    launch.run(main, "replay")
