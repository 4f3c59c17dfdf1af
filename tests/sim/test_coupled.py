"""Coupled instances time every request as the plain simulator does, at a cost of changes, not of tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from mooncake_jax.errors import UserError
from mooncake_jax.sched import ClosedForm
from mooncake_jax.sim.config import CoupledConfig, SimClusterConfig, Slow
from mooncake_jax.sim.coupled import CoupledSimulation
from mooncake_jax.sim.outcome import Outcome, outcome
from mooncake_jax.types import Request, Status, Tier
from tests.sim.cases import COST, CoupledCase, small_coupled_cases, trace_head
from tests.sim.plain import PlainCost
from tests.sim.plain_coupled import PlainCoupled, PlainCoupledOutcome, simulate_plain_coupled
from tests.support import published_trace

RELATIVE = 1e-9
ROUNDING_S = 2e-11
"""Stepping every token adds up thousands of roundings."""


def hardware_of(cost: PlainCost) -> ClosedForm:
    return ClosedForm(
        cost.prefill_constant,
        cost.prefill_linear,
        cost.prefill_quadratic,
        cost.decode_constant,
        cost.decode_sequence,
        cost.decode_token,
    )


def simulation_of(case: CoupledCase) -> CoupledSimulation:
    plain = case.cluster
    coupled = CoupledConfig(
        count=plain.instances,
        router=plain.router,
        prefix_cache_blocks=plain.cache_blocks,
        chunk_budget=plain.chunked,
        max_batched_tokens=plain.max_batched_tokens,
        capacity_tokens=plain.capacity_tokens,
    )
    return CoupledSimulation(
        SimClusterConfig(coupled=coupled, block_size=plain.block_size), hardware_of(plain.cost), case.requests
    )


def simulate(case: CoupledCase) -> Outcome:
    simulation = simulation_of(case)
    return outcome(case.requests, simulation.run(), simulation.logs)


def assert_equals_plain(case: CoupledCase) -> PlainCoupledOutcome:
    plain, ours = simulate_plain_coupled(case.requests, case.cluster), simulate(case)
    columns = ours.columns
    np.testing.assert_array_equal(columns.prefill, plain.instance)
    np.testing.assert_array_equal(columns.decode, plain.instance)
    np.testing.assert_array_equal(columns.cached[Tier.DEVICE], plain.cached)
    np.testing.assert_array_equal(columns.output_tokens, [len(times) for times in plain.token_times])
    for name in ("ttft", "tbt", "finished"):
        np.testing.assert_allclose(getattr(columns, name), getattr(plain, name), rtol=RELATIVE, atol=ROUNDING_S, err_msg=name)
    intervals = np.sort(np.concatenate([np.diff(times) for times in plain.token_times]))
    order = np.argsort(columns.itl.values)
    mine = np.repeat(columns.itl.values[order], columns.itl.weights[order].astype(int))
    np.testing.assert_allclose(mine, intervals, rtol=RELATIVE, atol=ROUNDING_S)
    return plain


@settings(max_examples=100, deadline=None)
@given(small_coupled_cases())
def test_small_clusters_route_and_time_every_request_and_interval_as_the_plain_simulator_does(case):
    assert_equals_plain(case)


@pytest.mark.parametrize(
    "cluster",
    [
        PlainCoupled(16, max_batched_tokens=131_072),
        PlainCoupled(16, router="least_tokens", cache_blocks=2596, capacity_tokens=1_300_000),
        PlainCoupled(16, chunked=512),
        PlainCoupled(4, router="least_tokens", chunked=2048, cache_blocks=2596, capacity_tokens=300_000),
    ],
    ids=["prefill_first", "prefix_cache", "chunked", "chunked_short_of_memory"],
)
def test_the_head_of_a_published_trace_is_timed_as_the_plain_simulator_does(cluster):
    assert_equals_plain(CoupledCase(trace_head(published_trace("conversation"), 500), cluster))


# By hand: prefill takes 1 s a token, a decode step 1 s and 1/8 s a token of context.
HAND = PlainCost(prefill_linear=1.0, prefill_quadratic=0.0, decode_constant=1.0, decode_token=0.125)
ROWS = ((0.0, 8, 4, (1, 2)), (10.5, 4, 3, (3,)))
PAUSED = PlainCoupled(1, HAND, block_size=4)


def test_a_prefill_makes_the_interval_of_those_that_run_longer_and_the_newcomer_waits_for_its_step_only():
    columns = simulate(CoupledCase(ROWS, PAUSED)).columns
    # The first request has tokens at 8, 10.125 and 12.375; then 4 s of prefill, and a step of 3 s for both.
    np.testing.assert_array_equal(columns.ttft, [8.0, 5.875])
    np.testing.assert_array_equal(columns.finished, [19.375, 21.125])
    np.testing.assert_array_equal(columns.tbt, [7.0, 3.0])
    np.testing.assert_array_equal(np.repeat(columns.itl.values, columns.itl.weights.astype(int)), [2.125, 3.0, 2.25, 7.0, 1.75])


def test_times_of_a_request_are_those_of_its_first_iteration_and_of_the_end_of_its_prefill():
    simulation = simulation_of(CoupledCase(ROWS, PAUSED))
    ledger = simulation.run()
    assert ledger.status == [Status.COMPLETED] * 2
    assert ledger.start == [0.0, 12.375]
    assert ledger.prefilled == ledger.first == ledger.last == ledger.sent
    assert ledger.prefill_s == [8.0, 4.0]


def test_prompts_of_one_iteration_share_its_fixed_cost():
    rows = ((0.0, 4, 1, (1,)), (0.0, 8, 1, (2, 3)))
    cost = replace(HAND, prefill_constant=2.0)
    assert simulation_of(CoupledCase(rows, PlainCoupled(1, cost, block_size=4))).run().prefill_s == [5.0, 9.0]


def test_chunks_are_charged_to_their_request_without_the_decode_steps_they_ride_with():
    cost = replace(HAND, prefill_constant=2.0)
    cluster = PlainCoupled(1, cost, chunked=4, block_size=4)
    assert simulation_of(CoupledCase(((0.0, 8, 9, (1, 2)), (12.0, 4, 1, (3,))), cluster)).run().prefill_s == [12.0, 8.0]


def test_log_and_runs_grow_with_changes_not_with_tokens():
    rows = tuple((0.5 * index, 16, 10_000, (index,)) for index in range(20))
    simulation = simulation_of(CoupledCase(rows, PlainCoupled(1, COST, block_size=16)))
    ledger = simulation.run()
    assert len(simulation.logs[0].segments().first) <= 3 * 20
    assert len(ledger.runs) == len(ledger.gaps) == 20


@pytest.mark.parametrize(
    ("config", "requests", "message"),
    [
        ({"coupled": None}, [], "coupled is null"),
        ({"slow": [Slow()]}, [], "do not apply"),
        ({}, [Request("late", 1.0, 4, 1), Request("early", 0.0, 4, 1)], "in order of arrival"),
        ({}, [Request("big", 0.0, 90, 20)], "request big of 90 \\+ 20 tokens never fits"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(config, requests, message):
    settings = {"coupled": CoupledConfig(capacity_tokens=100)} | config
    with pytest.raises(UserError, match=message):
        CoupledSimulation(SimClusterConfig(**settings), ClosedForm(), requests)
