"""What must hold of the plain simulators on any case, checked from their answers alone."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from mooncake_jax.types import Status
from tests.sim.cases import small_cases, small_coupled_cases
from tests.sim.plain import PlainOutcome, simulate_plain
from tests.sim.plain_coupled import simulate_plain_coupled

EPSILON = 1e-9


def outcome(case) -> PlainOutcome:
    settings = {name: getattr(case, name) for name in ("threshold", "balancing_threshold", "t_d", "slo", "seed")}
    return simulate_plain(case.requests, case.cluster, case.policy, case.admission, **settings)


@settings(max_examples=60, deadline=None)
@given(small_cases())
def test_tokens_are_conserved(case):
    out = outcome(case)
    placed = out.prefill >= 0
    tokens = np.array([request.input_tokens for request in case.requests])
    np.testing.assert_array_equal(out.host + out.peer + out.computed, np.where(placed, tokens, 0))
    assert (out.computed[placed] >= 1).all()
    for request, status, times in zip(case.requests, out.status, out.token_times):
        assert len(times) == (request.output_tokens if status is Status.COMPLETED else 0)


@settings(max_examples=60, deadline=None)
@given(small_cases())
def test_an_instance_prefills_one_request_at_a_time_in_order_of_arrival(case):
    case = replace(case, admission="accept_all", cluster=replace(case.cluster, first_token="prefill"))
    out = outcome(case)
    finish = np.array([times[0] for times in out.token_times])
    cached = out.host + out.peer
    for instance in range(case.cluster.prefill):
        free = 0.0
        for index in np.flatnonzero(out.prefill == instance):
            request = case.requests[index]
            service = case.cluster.cost.prefill_s(request.input_tokens, int(cached[index]))
            earliest = max(free, request.arrival) + service
            if out.fetch_source[index] >= 0:
                assert finish[index] >= earliest - EPSILON
            else:
                assert abs(finish[index] - earliest) < EPSILON
            free = finish[index]


@settings(max_examples=60, deadline=None)
@given(small_cases())
def test_every_step_lasts_what_its_batch_costs_and_leaves_out_nobody_who_was_there(case):
    case = replace(case, cluster=replace(case.cluster, first_token="decode"))
    out = outcome(case)
    for instance in range(case.cluster.decode):
        members = [i for i in np.flatnonzero(out.decode == instance) if out.token_times[i]]
        ends = sorted({time for i in members for time in out.token_times[i][1:]})
        for before, end in zip([-np.inf, *ends], ends):
            batch = [i for i in members if end in out.token_times[i][1:]]
            context = sum(case.requests[i].input_tokens + out.token_times[i].index(end) for i in batch)
            start = end - case.cluster.cost.decode_step_s(len(batch), context)
            last = [out.token_times[i][out.token_times[i].index(end) - 1] for i in batch]
            assert abs(start - max(before, min(last))) < EPSILON
            assert max(last) <= start + EPSILON
            there = [i for i in members if out.token_times[i][0] <= start - EPSILON and out.token_times[i][-1] >= end]
            assert set(there) <= set(batch)


@settings(max_examples=60, deadline=None)
@given(small_coupled_cases())
def test_coupled_iterations_follow_each_other_without_a_pause_while_there_is_work(case):
    case = replace(case, cluster=replace(case.cluster, chunked=None))
    out, cost = simulate_plain_coupled(case.requests, case.cluster), case.cluster.cost
    for instance in range(case.cluster.instances):
        members = np.flatnonzero(out.instance == instance)
        ends = sorted({time for i in members for time in out.token_times[i]})
        for before, end in zip([-np.inf, *ends], ends):
            first = [i for i in members if out.token_times[i][0] == end]
            batch = [i for i in members if end in out.token_times[i][1:]]
            assert not (first and batch)
            if first:
                prompts = sum(cost.prefill_s(case.requests[i].input_tokens, int(out.cached[i])) for i in first)
                start = end - prompts + (len(first) - 1) * cost.prefill_constant
                assert abs(start - max(before, min(case.requests[i].arrival for i in first))) < EPSILON
            else:
                context = sum(case.requests[i].input_tokens + out.token_times[i].index(end) for i in batch)
                assert abs(end - cost.decode_step_s(len(batch), context) - before) < EPSILON


@settings(max_examples=60, deadline=None)
@given(small_coupled_cases())
def test_chunks_add_up_to_no_less_than_the_prompt_alone(case):
    case = replace(case, cluster=replace(case.cluster, chunked=case.cluster.chunked or 16))
    out, cost = simulate_plain_coupled(case.requests, case.cluster), case.cluster.cost
    for request, cached, ttft, times in zip(case.requests, out.cached, out.ttft, out.token_times):
        assert len(times) == request.output_tokens
        assert ttft >= cost.prefill_s(request.input_tokens, int(cached)) - EPSILON
        for position, interval in enumerate(np.diff(times), start=1):
            assert interval >= cost.decode_step_s(1, request.input_tokens + position) - EPSILON
