"""The open-loop client: on time, in order, never waiting for answers; failures and cancellation reach everyone."""

import asyncio
import time

import pytest

from mooncake_jax.types import Request, RequestRecord, Status
from mooncake_jax.workload import Replay, replay


def _request(index: int, arrival: float, deadline: float | None = None) -> Request:
    return Request(id=f"r{index:06d}", arrival=arrival, input_tokens=1, output_tokens=1, deadline=deadline)


def _record(request: Request) -> RequestRecord:
    return RequestRecord(request.id, request.arrival, Status.COMPLETED, request.input_tokens, request.output_tokens)


class _VirtualTime:
    """A clock that moves only when someone sleeps."""

    def __init__(self, now: float) -> None:
        self.now = now

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_every_request_leaves_at_its_time_though_no_earlier_one_is_answered():
    arrivals = [0.0, 0.05, 0.05, 0.1, 0.2]
    late: list[float] = []

    async def main() -> Replay:
        all_submitted = asyncio.Event()

        async def submit(request: Request) -> RequestRecord:
            late.append(time.monotonic() - request.arrival)
            if len(late) == len(arrivals):
                all_submitted.set()
            await asyncio.wait_for(all_submitted.wait(), timeout=10)
            return _record(request)

        return await replay([_request(i, a) for i, a in enumerate(arrivals)], submit, time.monotonic, asyncio.sleep)

    result = asyncio.run(main())
    assert min(late) >= 0
    assert max(late) < 2
    assert result.max_lag == pytest.approx(max(late), abs=0.1)
    assert [record.id for record in result.records] == [f"r{index:06d}" for index in range(5)]


def test_records_come_in_arrival_order_whatever_the_order_given_or_answered():
    async def submit(request: Request) -> RequestRecord:
        await asyncio.sleep(0.05 - request.input_tokens / 100)
        return _record(request)

    given = [_request(0, 0.03), _request(1, 0.0), _request(2, 0.03), _request(3, 0.01)]
    time_ = _VirtualTime(0.0)
    result = asyncio.run(replay(given, submit, time_.clock, time_.sleep))
    assert [record.id for record in result.records] == ["r000001", "r000003", "r000000", "r000002"]


def test_arrival_and_deadline_are_moved_to_the_clock_of_the_run():
    got: list[Request] = []

    async def submit(request: Request) -> RequestRecord:
        got.append(request)
        return _record(request)

    time_ = _VirtualTime(100.0)
    asyncio.run(replay([_request(0, 0.5), _request(1, 7.0, deadline=9.0)], submit, time_.clock, time_.sleep))
    assert [(one.arrival, one.deadline) for one in got] == [(100.5, None), (107.0, 109.0)]


def test_a_late_client_tells_its_lag_and_starts_requests_in_order():
    started: list[str] = []

    async def submit(request: Request) -> RequestRecord:
        started.append(request.id)
        time.sleep(0.1)  # holds up the whole client
        return _record(request)

    requests = [_request(0, 0.0), _request(1, 0.02), _request(2, 0.04)]
    result = asyncio.run(replay(requests, submit, time.monotonic, asyncio.sleep))
    assert started == ["r000000", "r000001", "r000002"]
    assert 0.15 < result.max_lag < 5.0


def test_a_sleep_that_wakes_early_is_slept_again():
    time_ = _VirtualTime(0.0)
    seen: list[float] = []

    async def half(seconds: float) -> None:
        await time_.sleep(seconds / 2 if seconds > 1e-3 else seconds)

    async def submit(request: Request) -> RequestRecord:
        seen.append(time_.now)
        return _record(request)

    asyncio.run(replay([_request(0, 8.0)], submit, time_.clock, half))
    assert seen == [8.0]


def test_progress_is_told_after_each_record():
    told: list[tuple[int, int]] = []

    async def submit(request: Request) -> RequestRecord:
        return _record(request)

    time_ = _VirtualTime(0.0)
    requests = [_request(i, float(i)) for i in range(3)]
    asyncio.run(replay(requests, submit, time_.clock, time_.sleep, lambda done, total: told.append((done, total))))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_nothing_to_replay_gives_no_records():
    async def submit(request: Request) -> RequestRecord:
        raise AssertionError(request.id)

    assert asyncio.run(replay([], submit, time.monotonic, asyncio.sleep, drain=1.0)) == Replay((), 0.0)


def _hanging(cancelled: list[str]):
    async def submit(request: Request) -> RequestRecord:
        if request.id == "r000001":
            raise ConnectionError("r000001: the server went away")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.id)
            raise
        return _record(request)

    return submit


def test_a_failing_submit_ends_the_replay_at_once_with_its_own_exception():
    cancelled: list[str] = []
    requests = [_request(0, 0.0), _request(1, 0.02), _request(2, 60.0)]
    started = time.monotonic()
    with pytest.raises(ConnectionError, match="r000001"):
        asyncio.run(replay(requests, _hanging(cancelled), time.monotonic, asyncio.sleep))
    assert time.monotonic() - started < 10
    assert cancelled == ["r000000"]


def test_cancelling_the_replay_cancels_and_awaits_what_is_in_flight():
    cancelled: list[str] = []

    async def main() -> int:
        task = asyncio.create_task(
            replay([_request(0, 0.0), _request(2, 0.0), _request(3, 60.0)], _hanging(cancelled), time.monotonic, asyncio.sleep)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert sorted(cancelled) == ["r000000", "r000002"]


def test_a_request_without_a_record_is_named_when_the_drain_time_is_over():
    cancelled: list[str] = []
    with pytest.raises(
        TimeoutError, match=r"2 of 2 requests have no record 0\.05 s after the last arrival: r000000, r000002\."
    ):
        asyncio.run(
            replay([_request(0, 0.0), _request(2, 0.0)], _hanging(cancelled), time.monotonic, asyncio.sleep, drain=0.05)
        )
    assert sorted(cancelled) == ["r000000", "r000002"]


def test_a_drain_time_that_suffices_changes_nothing():
    async def submit(request: Request) -> RequestRecord:
        await asyncio.sleep(0.01)
        return _record(request)

    result = asyncio.run(replay([_request(0, 0.0)], submit, time.monotonic, asyncio.sleep, drain=60.0))
    assert [record.status for record in result.records] == [Status.COMPLETED]
