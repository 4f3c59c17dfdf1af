"""Who goes next at a prefill instance, and that nobody waits for ever."""

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.sched import CacheAwareReorder, FirstCome, QueuedPrefill, QueueOrder, ShortestFirst


def waiting(serial: int, tokens: int = 100, cached: int = 0, seconds: float = 1.0, arrival: float = 0.0) -> QueuedPrefill:
    return QueuedPrefill(arrival, tokens, cached, seconds, serial)


def drained(order: QueueOrder, queue: list[QueuedPrefill], now: float = 0.0) -> list[int]:
    queue, serials = list(queue), []
    while queue:
        serials.append(queue.pop(order.first(queue, now)).serial)
    return serials


def test_first_come_first_served_keeps_the_order_of_placement():
    assert drained(FirstCome(), [waiting(3, seconds=9.0), waiting(4), waiting(8)]) == [3, 4, 8]


def test_the_largest_cached_to_computed_ratio_goes_first_ties_in_order_of_placement():
    # 1/3, 3, 0, 3, 1
    queue = [waiting(0, 100, 25), waiting(1, 100, 75), waiting(2), waiting(3, 400, 300), waiting(4, 100, 50)]
    assert drained(CacheAwareReorder(window=32), queue) == [1, 3, 4, 0, 2]


def test_a_request_is_overtaken_by_no_more_than_the_window_of_later_ones():
    order, queue, started = CacheAwareReorder(window=3), [waiting(0), waiting(1)], []
    for serial in range(2, 12):
        queue.append(waiting(serial, 100, 90))
        started.append(queue.pop(order.first(queue, 0.0)).serial)
    assert started == [2, 3, 4, 0, 1, 5, 6, 7, 8, 9]
    assert drained(CacheAwareReorder(window=0), [waiting(0), waiting(1, 100, 90)]) == [0, 1]


def test_the_shortest_goes_first_unless_another_has_waited_long_enough():
    queue = [waiting(0, seconds=5.0, arrival=0.0), waiting(1, seconds=1.0, arrival=30.0), waiting(2, seconds=1.0, arrival=30.0)]
    assert drained(ShortestFirst(ageing=0), queue, now=30.0) == [1, 2, 0]
    assert drained(ShortestFirst(ageing=0.1), queue, now=30.0) == [1, 2, 0]  # 5 - 3 is more than 1
    assert drained(ShortestFirst(ageing=0.2), queue, now=30.0) == [0, 1, 2]  # 5 - 6 is less


def test_values_out_of_range_are_refused_by_name():
    with pytest.raises(UserError, match=r"queue_order\.window is -1"):
        CacheAwareReorder(-1)
    with pytest.raises(UserError, match=r"queue_order\.ageing is -0\.5"):
        ShortestFirst(-0.5)
