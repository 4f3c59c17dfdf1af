"""The simulator equals the plain one, in decisions and (within rounding) in times, on small clusters and published traces."""

import numpy as np
import pytest
from hypothesis import given, settings

from mooncake_jax.sched import (
    AcceptAll,
    CacheAware,
    ClosedForm,
    Conductor,
    EarlyRejection,
    KVCacheCentric,
    LeastTokens,
    LoadBalance,
    Predictive,
    Random,
    RoundRobin,
    StageByStage,
)
from mooncake_jax.sim import (
    Rates,
    SimClusterConfig,
    SimDecodeConfig,
    SimHostPoolConfig,
    SimPrefillConfig,
    Simulation,
    outcome,
)
from mooncake_jax.types import Tier
from tests.sim.cases import PAPER, Case, CoupledCase, overloaded, small_cases, small_coupled_cases, trace_head
from tests.sim.plain import ADMISSIONS, POLICIES, simulate_plain
from tests.sim.plain_coupled import PlainCoupled, simulate_plain_coupled
from tests.sim.test_coupled import simulate as simulate_coupled
from tests.support import published_trace

RELATIVE = 1e-9
ROUNDING_S = 2e-11
"""What thousands of additions lose in the differences of times: a float64 at 3,600 s has steps of 5e-13 s."""


def simulate_real(case: Case | CoupledCase, **options) -> dict[str, np.ndarray]:
    """The simulator's answer under the names of `PlainOutcome` or `PlainCoupledOutcome`, one entry a request, in order.

    No instance or source is -1, no first token is NaN, `status` holds the strings of `Status`. A request rejected at arrival
    has no instances, and reuses and computes nothing. `token_times` is left out: simulated runs keep none.
    """
    if isinstance(case, CoupledCase):
        result = simulate_coupled(case)
        columns = result.columns
        return {
            "instance": columns.prefill,
            "ttft": columns.ttft,
            "tbt": columns.tbt,
            "finished": columns.finished,
            "cached": columns.cached[Tier.DEVICE],
        }
    cost = case.cluster.cost
    hardware = ClosedForm(
        cost.prefill_constant,
        cost.prefill_linear,
        cost.prefill_quadratic,
        cost.decode_constant,
        cost.decode_sequence,
        cost.decode_token,
        cost.bandwidth,
    )
    pairing = {
        "random": lambda: Random(case.seed),
        "round_robin": RoundRobin,
        "load_balance": LoadBalance,
        "cache_aware": CacheAware,
        "kvcache_centric": lambda: KVCacheCentric(case.balancing_threshold),
    }[case.policy]()
    admission = {
        "accept_all": AcceptAll,
        "early_rejection": lambda: EarlyRejection(case.threshold),
        "stage_by_stage": lambda: StageByStage(case.threshold),
        "predictive": lambda: Predictive(case.threshold, case.t_d),
    }[case.admission]()
    cluster = SimClusterConfig(
        prefill=SimPrefillConfig(count=case.cluster.prefill),
        decode=SimDecodeConfig(count=case.cluster.decode),
        host_pool=SimHostPoolConfig(blocks=case.cluster.capacity),
        block_size=case.cluster.block_size,
        first_token=case.cluster.first_token,
    )
    conductor = Conductor(pairing, LeastTokens(), admission, hardware, case.slo)
    kv_bytes = int(cost.kv_bytes)
    simulation = Simulation(
        cluster, hardware, conductor, case.requests, kv_bytes, Rates(node=cost.bandwidth, load=cost.h2d), **options
    )
    ledger = simulation.run()
    result = outcome(case.requests, ledger, simulation.logs)
    placed = np.array(ledger.placements) > 0
    host = np.where(placed, np.array(ledger.host_tokens), 0)
    peer = np.where(placed, np.array(ledger.peer_tokens), 0)
    columns = result.columns
    return {
        "status": np.array([str(one) for one in ledger.status]),
        "prefill": columns.prefill,
        "decode": columns.decode,
        "ttft": columns.ttft,
        "tbt": columns.tbt,
        "finished": columns.finished,
        "host": host,
        "peer": peer,
        "computed": np.where(placed, columns.input_tokens - host - peer, 0),
        "reuse": result.reuse_blocks,
        "fetch_source": result.fetch_source,
        "fetch_blocks": result.fetch_blocks,
    }


def simulate_slowly(case: Case | CoupledCase) -> dict[str, np.ndarray]:
    if isinstance(case, CoupledCase):
        outcome = vars(simulate_plain_coupled(case.requests, case.cluster))
    else:
        outcome = vars(
            simulate_plain(
                case.requests,
                case.cluster,
                case.policy,
                case.admission,
                threshold=case.threshold,
                balancing_threshold=case.balancing_threshold,
                t_d=case.t_d,
                slo=case.slo,
                seed=case.seed,
            )
        )
    return {name: np.asarray(values) for name, values in outcome.items() if name != "token_times"}


def assert_equal(case: Case | CoupledCase) -> None:
    real = simulate_real(case)
    for name, expected in simulate_slowly(case).items():
        if expected.dtype == float:
            np.testing.assert_allclose(real[name], expected, rtol=RELATIVE, atol=ROUNDING_S, err_msg=name)
        else:
            np.testing.assert_array_equal(real[name], expected, err_msg=name)


@settings(max_examples=200, deadline=None)
@given(small_cases())
def test_small_clusters_decide_and_time_every_request_alike(case):
    assert_equal(case)


@settings(max_examples=100, deadline=None)
@given(small_coupled_cases())
def test_small_coupled_clusters_time_every_request_alike(case):
    assert_equal(case)


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_head_of_a_published_trace_is_placed_and_timed_alike(trace, policy):
    assert_equal(Case(trace_head(published_trace(trace), 2000), PAPER, policy))


@pytest.mark.parametrize("admission", ADMISSIONS[1:])
def test_the_head_of_a_published_trace_is_admitted_alike(admission):
    assert_equal(overloaded(trace_head(published_trace("conversation"), 2000), admission))


@pytest.mark.parametrize(
    "cluster",
    [PlainCoupled(16), PlainCoupled(16, router="least_tokens", cache_blocks=5859), PlainCoupled(16, chunked=2048)],
    ids=["prefill_first", "prefix_cache", "chunked"],
)
def test_coupled_instances_time_the_head_of_a_published_trace_alike(cluster):
    assert_equal(CoupledCase(trace_head(published_trace("conversation"), 2000), cluster))


@settings(max_examples=50, deadline=None)
@given(small_cases())
def test_queueing_jobs_where_a_placement_settles_everything_changes_no_bit(case):
    settled, queued = simulate_real(case), simulate_real(case, certain=False)
    for name, expected in settled.items():
        np.testing.assert_array_equal(queued[name], expected, err_msg=name)
