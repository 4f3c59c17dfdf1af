"""An open-loop client: every request leaves at its arrival time, however many are still on their way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from mooncake_jax.types import Request, RequestRecord


@dataclass(frozen=True)
class Replay:
    """What came of a replay."""

    records: tuple[RequestRecord, ...]
    """One per request, in order of arrival."""
    max_lag: float
    """Seconds by which the latest submission missed its arrival time. A large one means that the client is the slow part."""


async def replay(
    requests: Sequence[Request],
    submit: Callable[[Request], Awaitable[RequestRecord]],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
    on_progress: Callable[[int, int], None] | None = None,
    *,
    drain: float | None = None,
) -> Replay:
    """Calls `submit` for every request at its arrival time after the start, and gathers the records.

    The start is `clock()` at the call. `submit` gets the request with `arrival` and `deadline` moved to the run's clock, that
    is with the start added: times to first token then run from when the request was due, even if it was submitted late.
    `on_progress(done, total)` is called after each record. `drain` bounds the wait after the last arrival, in seconds of
    `sleep`; None waits for as long as the requests take.

    When a `submit` raises, all others are cancelled and awaited and its exception leaves `replay`; cancelling `replay` cancels
    and awaits them too. Raises TimeoutError, naming the requests, when `drain` has passed and records are missing.
    """
    start = clock()
    ordered = sorted(requests, key=lambda request: request.arrival)
    tasks: list[asyncio.Task[RequestRecord]] = []
    done = 0
    max_lag = 0.0

    async def send(request: Request) -> RequestRecord:
        nonlocal done, max_lag
        max_lag = max(max_lag, clock() - request.arrival)
        record = await submit(request)
        done += 1
        if on_progress is not None:
            on_progress(done, len(ordered))
        return record

    async def give_up(seconds: float) -> None:
        await sleep(seconds)
        missing = [task.get_name() for task in tasks if not task.done()]
        if missing:
            raise TimeoutError(
                f"{len(missing)} of {len(ordered)} requests have no record {seconds} s after the last arrival: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}."
            )

    try:
        async with asyncio.TaskGroup() as group:
            for request in ordered:
                due = start + request.arrival
                # Sleeps even when late, since the tasks begun so far start only when this one yields.
                await sleep(max(0.0, due - clock()))
                while (early := due - clock()) > 0:
                    await sleep(early)
                deadline = None if request.deadline is None else start + request.deadline
                tasks.append(group.create_task(send(replace(request, arrival=due, deadline=deadline)), name=request.id))
            if drain is not None and tasks:
                guard = group.create_task(give_up(drain))
                await asyncio.wait(tasks)
                guard.cancel()
    except ExceptionGroup as failures:
        # The first failure cancelled the others: callers handle that one by its type.
        raise failures.exceptions[0] from failures
    return Replay(tuple(task.result() for task in tasks), max_lag)
