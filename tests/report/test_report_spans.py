"""The interval arithmetic against plain loops over small random integers."""

import itertools

import numpy as np
import pytest

from mooncake_jax.report.spans import instance_order, lanes, mean_open, merge, peak_open


@pytest.fixture(params=range(5))
def intervals(request) -> np.ndarray:
    rng = np.random.default_rng(request.param)
    starts = rng.integers(0, 40, 30)
    return np.stack([starts, starts + rng.integers(0, 8, 30)], axis=1).astype(np.float64)


def open_at(intervals: np.ndarray, time: float) -> int:
    return sum(bool(start <= time < end) for start, end in intervals)


def test_merged_intervals_cover_the_same_time_once(intervals):
    merged = merge(intervals)
    for time in np.arange(0, 50, 0.5):
        assert open_at(merged, time) == min(open_at(intervals, time), 1)
    assert np.all(merged[1:, 0] > merged[:-1, 1])


def test_peak_is_the_most_open_at_any_one_time(intervals):
    assert peak_open(intervals) == max(open_at(intervals, time) for time in range(50))


def test_mean_open_integrates_the_count_over_each_bin(intervals):
    edges = np.array([0.0, 2.5, 3.0, 17.0, 50.0])
    tenths = np.arange(0, 50, 0.1) + 0.05
    counts = np.array([open_at(intervals, time) for time in tenths])
    expected = [counts[(tenths >= a) & (tenths < b)].mean() for a, b in itertools.pairwise(edges)]
    assert mean_open(intervals, edges) == pytest.approx(expected)


def test_lanes_are_free_of_overlap_and_as_few_as_the_peak(intervals):
    lasting = intervals[intervals[:, 1] > intervals[:, 0]]
    assigned = lanes(lasting)
    assert assigned.max() + 1 == peak_open(lasting)
    for lane in range(assigned.max() + 1):
        own = lasting[assigned == lane]
        own = own[np.argsort(own[:, 0])]
        assert np.all(own[1:, 0] >= own[:-1, 1])


def test_empty_input_is_no_interval():
    none = np.zeros((0, 2))
    assert len(merge(none)) == len(lanes(none)) == peak_open(none) == 0
    assert mean_open(none, np.array([0.0, 1.0])).tolist() == [0.0]


def test_instances_are_ordered_by_role_then_number():
    names = ["store", "coupled-0", "decode-1", "prefill-10", "decode-0", "prefill-2"]
    assert sorted(names, key=instance_order) == ["prefill-2", "prefill-10", "decode-0", "decode-1", "coupled-0", "store"]
