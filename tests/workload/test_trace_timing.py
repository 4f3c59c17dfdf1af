"""Windows, rates and Poisson arrivals change when requests arrive and nothing else."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.workload import (
    GeneratorConfig,
    Trace,
    TraceRequest,
    WorkloadConfig,
    generate,
    load_trace,
    mean_rate,
    poisson,
    poisson_times,
    set_rate,
    window,
)

TIMES = st.lists(st.floats(0, 1e6), min_size=2, max_size=30).map(sorted)


def _trace(arrivals) -> Trace:
    return Trace(tuple(TraceRequest(at, 1 + i, 1 + i, (i,), f"s{i}") for i, at in enumerate(arrivals)))


def _but_arrivals(trace: Trace) -> list[TraceRequest]:
    return [replace(one, arrival=0.0) for one in trace.requests]


@given(TIMES, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_window_holds_what_arrives_in_it_counted_from_its_start(arrivals, start, end):
    kept = [at for at in arrivals if start <= at < end]
    if not kept:
        with pytest.raises(UserError, match=r"workload\.window=.* holds no request"):
            window(_trace(arrivals), start, end)
        return
    cut = window(_trace(arrivals), start, end)
    assert [one.arrival for one in cut.requests] == [at - start for at in kept]
    assert _but_arrivals(cut) == [one for one, at in zip(_but_arrivals(_trace(arrivals)), arrivals) if start <= at < end]


def test_windows_side_by_side_hold_every_request_once():
    trace = generate(GeneratorConfig(), seed=0, limit=500)
    assert trace.requests[-1].arrival == 138.0
    parts = [window(trace, at, at + 35) for at in range(0, 140, 35)]
    assert [one for part in parts for one in _but_arrivals(part)] == _but_arrivals(trace)


@given(TIMES.filter(lambda times: times[-1] - times[0] > 1e-3), st.floats(1e-3, 1e3))
def test_a_rate_is_met_exactly_and_gaps_keep_their_proportions(arrivals, rate):
    trace = _trace(arrivals)
    stretched = set_rate(trace, rate)
    assert mean_rate(stretched) == pytest.approx(rate)
    assert _but_arrivals(stretched) == _but_arrivals(trace)
    gaps, before = np.diff([one.arrival for one in stretched.requests]), np.diff(arrivals)
    assert (gaps >= 0).all()
    assert gaps / gaps.sum() == pytest.approx(before / before.sum(), abs=1e-6)


def test_poisson_arrivals_keep_the_requests_in_their_order():
    trace = generate(GeneratorConfig(), seed=0, limit=4_000)
    drawn = poisson(trace, 5, seed=1)
    assert _but_arrivals(drawn) == _but_arrivals(trace)
    gaps = np.diff([0.0, *(one.arrival for one in drawn.requests)])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)
    # Of an exponential distribution, a share of 1 - 1/e lies below the mean.
    assert (gaps < 1 / 5).mean() == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_poisson_times_depend_on_seed_and_rate_alone_and_fewer_are_the_first_of_more():
    times = poisson_times(100, 2.0, seed=9)
    assert poisson_times(40, 2.0, seed=9) == times[:40]
    assert poisson_times(100, 4.0, seed=9) == pytest.approx([at / 2 for at in times])
    assert poisson_times(100, 2.0, seed=10) != times
    program = "from mooncake_jax.workload import poisson_times; print(poisson_times(100, 2.0, seed=9))"
    environment = os.environ | {"PYTHONHASHSEED": "42"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == times


def test_poisson_times_stay_what_they_are():
    # -ln(u) of PCG64 seeded (5, 0). Other values here would mean that every recorded run becomes another one.
    raw = [int(word) for word in np.random.PCG64((5, 0)).random_raw(3)]
    expected = np.cumsum([-np.log1p(((word >> 11) + 1) / 2**53 - 1) for word in raw])
    assert poisson_times(3, 1.0, seed=5) == pytest.approx(expected)
    assert poisson_times(3, 1.0, seed=5) == pytest.approx(TIMES_OF_SEED_5)


TIMES_OF_SEED_5 = [0.21690936958833043, 0.4301758727635764, 1.0931322934458922]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_that_are_none_are_refused(rate):
    for change in (set_rate, poisson):
        with pytest.raises(UserError, match=r"workload\.rate must be more than 0 and finite"):
            change(_trace([0.0, 1.0]), rate)


def test_requests_of_one_instant_have_no_rate_but_can_be_spread():
    with pytest.raises(UserError, match=r"arrive at one instant, .* set workload\.rate and workload\.poisson=true"):
        set_rate(_trace([3.0, 3.0]), 1.0)
    assert len({one.arrival for one in poisson(_trace([3.0, 3.0]), 1.0).requests}) == 2


def test_the_config_cuts_the_window_then_the_limit_then_sets_the_rate_then_the_speed():
    whole = generate(GeneratorConfig(), seed=2)
    config = WorkloadConfig(seed=2, window=[60.0, 3000.0], limit=500, rate=7.0, speed=2.0)
    trace = load_trace(config)
    assert _but_arrivals(trace) == [replace(one, arrival=0.0) for one in whole.requests if one.arrival >= 60][:500]
    assert mean_rate(trace) == pytest.approx(14.0)


def test_the_config_draws_poisson_arrivals_at_the_rate_or_at_that_of_the_trace():
    config = WorkloadConfig(seed=2, limit=3_000, poisson=True)
    own = mean_rate(generate(GeneratorConfig(), seed=2, limit=3_000))
    assert [one.arrival for one in load_trace(config).requests] == poisson_times(3_000, own, seed=2)
    assert [one.arrival for one in load_trace(replace(config, rate=9.0)).requests] == poisson_times(3_000, 9.0, seed=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", [5.0]),
        ("window", [5.0, 5.0]),
        ("window", [-1.0, 5.0]),
        ("window", [0.0, float("nan")]),
        ("rate", 0.0),
        ("format", "csv"),
        ("mix", ["b.jsonl"]),
    ],
)
def test_a_config_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=rf"workload\.{field} must be .*, but is "):
        WorkloadConfig(**{field: value})
