"""The plain simulators by hand: binary fractions, so every expected time is exact and was worked out on paper.

A prompt token takes 1 s to prefill, 1/4 s to cross the network and 1/8 s to load; a decode step takes 1 s and 1/8 s a token of
context.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from mooncake_jax.types import SLO, Request, Status
from tests.sim.plain import PlainCluster, PlainCost, mean_of_longest_tenth, simulate_plain
from tests.sim.plain_coupled import PlainCoupled, simulate_plain_coupled

COST = PlainCost(
    prefill_linear=1.0, prefill_quadratic=0.0, decode_constant=1.0, decode_token=0.125, kv_bytes=1.0, bandwidth=4.0, h2d=8.0
)
ONE = PlainCluster(prefill=1, decode=1, block_size=4, capacity=100, cost=COST)
TWO = replace(ONE, prefill=2)


def requests(*rows) -> list[Request]:
    """Rows of (arrival, n, o) or (arrival, n, o, keys); a prompt without keys shares nothing."""
    made = []
    for index, (arrival, n, o, *keys) in enumerate(rows):
        own = tuple(range(1000 * (index + 1), 1000 * (index + 1) + -(-n // 4)))
        made.append(Request(str(index), float(arrival), n, o, tuple(keys[0]) if keys else own))
    return made


@pytest.mark.parametrize(("first_token", "first", "tbt"), [("prefill", 9.0, 3.125), ("decode", 10.0, 2.25)])
def test_one_request_is_prefilled_moved_loaded_and_stepped(first_token, first, tbt):
    out = simulate_plain(requests((1, 8, 3)), replace(ONE, first_token=first_token), "load_balance")
    assert out.token_times == [[first, 12.125, 14.375]]
    assert (out.ttft[0], out.tbt[0], out.finished[0]) == (first - 1, tbt, 14.375)


def test_kv_is_late_by_what_the_transfer_takes_longer_than_the_prefill():
    slow = replace(ONE, cost=replace(COST, bandwidth=0.5), first_token="decode")
    assert simulate_plain(requests((0, 8, 2)), slow, "random").token_times == [[17.0, 19.125]]


def test_one_output_token_ends_at_prefill_finish_and_books_no_decode_instance():
    out = simulate_plain(requests((0, 8, 1), (0, 4, 2)), replace(ONE, decode=2, first_token="decode"), "random")
    assert (out.ttft[0], out.tbt[0], out.finished[0], out.decode[0]) == (8.0, 0.0, 8.0, -1)
    assert out.decode[1] == 0


def test_tbt_is_the_mean_of_the_longest_tenth_of_the_intervals():
    assert mean_of_longest_tenth([0.0, *np.cumsum(range(1, 22))]) == 20.0
    assert mean_of_longest_tenth([5.0]) == 0.0


def test_kv_that_arrives_at_the_end_of_a_step_joins_the_next_and_meanwhile_waits():
    out = simulate_plain(requests((0, 8, 3), (2.125, 8, 2), (5, 8, 2)), TWO, "round_robin")
    assert out.token_times[0] == [8.0, 11.125, 14.5]
    assert out.token_times[1] == [10.125, 14.5]
    # Its KV arrives at 17, when no batch is left.
    assert out.token_times[2] == [16.0, 19.125]


@pytest.mark.parametrize(("arrival", "decode"), [(11.0, 1), (11.125, 0)])
def test_a_request_that_arrives_at_the_end_of_a_step_sees_the_freed_instance(arrival, decode):
    out = simulate_plain(requests((0, 8, 2), (arrival, 4, 2)), replace(ONE, decode=2), "random")
    assert out.decode[1] == decode


def test_decode_instance_is_the_one_with_least_context_of_unfinished_requests():
    out = simulate_plain(requests((0, 8, 9), (0, 5, 9), (0, 2, 9), (0, 2, 9)), replace(ONE, decode=2), "random")
    assert out.decode.tolist() == [0, 1, 1, 1]


def test_cache_keeps_the_latest_blocks_and_a_prefix_counts_from_the_first():
    rows = [(0, 8, 1, [1, 2]), (0, 8, 1, [3, 4]), (0, 8, 1, [1, 2]), (0, 8, 1, [3, 4]), (0, 8, 1, [2, 3])]
    out = simulate_plain(requests(*rows), replace(ONE, capacity=3), "random")
    assert out.reuse.tolist() == [0, 0, 0, 0, 2]
    assert (out.host[4], out.peer[4], out.computed[4]) == (7, 0, 1)


def test_a_prompt_longer_than_the_cache_pushes_out_its_own_head():
    out = simulate_plain(requests(*2 * [(0, 20, 1, range(5))]), replace(ONE, capacity=3), "random")
    assert out.reuse.tolist() == [0, 0]
    assert out.finished.tolist() == [20.0, 40.0]


def test_a_fetch_waits_until_the_source_has_made_the_blocks():
    shared = (40, 1, range(10))
    out = simulate_plain(requests((0, *shared), (1, *shared), (2, *shared)), replace(ONE, prefill=3), "kvcache_centric")
    assert out.prefill.tolist() == [0, 1, 2]
    assert out.fetch_source.tolist() == [-1, 0, 0]
    assert out.fetch_blocks.tolist() == [0, 10, 10]
    assert out.peer.tolist() == [0, 39, 39]
    assert out.finished.tolist() == [40.0, 50.75, 50.75]


@pytest.mark.parametrize(("balancing_threshold", "finished", "peer"), [(1.5, 109.0, 0), (1.25, 103.75, 7)])
def test_an_instance_fetches_only_above_the_balancing_threshold(balancing_threshold, finished, peer):
    rows = [
        (0, 16, 1, range(4)),
        (0, 16, 1),
        (20, 80, 1),
        (21, 16, 1, range(4)),
        (30, 24, 1, range(6)),
        (99, 80, 1),
        (101, 24, 1, range(6)),
    ]
    out = simulate_plain(requests(*rows), TWO, "kvcache_centric", balancing_threshold=balancing_threshold)
    assert out.prefill.tolist() == [0, 1, 0, 1, 1, 1, 0]
    assert out.finished.tolist() == [16.0, 16.0, 100.0, 25.75, 38.0, 179.0, finished]
    assert (out.host[6], out.peer[6]) == (16, peer)


@pytest.mark.parametrize(
    ("policy", "arrival", "chosen"),
    [("cache_aware", 1.0, 0), ("cache_aware", 0.5, 1), ("load_balance", 1.0, 1), ("round_robin", 99.0, 1)],
)
def test_each_pairing_policy_chooses_by_its_own_rule(policy, arrival, chosen):
    out = simulate_plain(requests((0, 40, 1, range(10)), (arrival, 40, 1, range(10))), TWO, policy)
    assert out.prefill.tolist() == [0, chosen]


def test_random_pairing_is_one_draw_a_request():
    rng = random.Random(7)
    out = simulate_plain(requests(*50 * [(0, 4, 1)]), replace(ONE, prefill=3), "random", seed=7)
    assert out.prefill.tolist() == [int(rng.random() * 3) for _ in range(50)]


def test_early_rejection_weighs_ttft_and_the_step_of_everyone_assigned():
    rows = [(0, 8, 10), (1, 2, 10), (2, 6, 10), (9, 7, 10), (9, 5, 10)]
    out = simulate_plain(requests(*rows), ONE, "load_balance", "early_rejection", slo=SLO(10.0, 3.0))
    assert [status is Status.COMPLETED for status in out.status] == [True, True, False, False, True]
    assert out.prefill.tolist() == [0, 0, -1, -1, 0]
    assert out.finished[2:4].tolist() == [2.0, 9.0]
    assert np.isnan(out.ttft[2:4]).all()
    assert out.computed.tolist() == [8, 2, 0, 0, 5]


def test_stage_by_stage_rejects_after_prefill_what_decode_cannot_take():
    rows = [(0, 8, 4), (1, 2, 4), (5, 5, 4), (5, 6, 4)]
    out = simulate_plain(requests(*rows), ONE, "load_balance", "stage_by_stage", slo=SLO(10.0, 3.0))
    assert [status is Status.COMPLETED for status in out.status] == [True, True, False, False]
    assert (out.prefill[2], out.computed[2], out.finished[2], out.token_times[2]) == (0, 5, 15.0, [])
    assert (out.prefill[3], out.finished[3]) == (-1, 5.0)
    assert out.token_times[0] == [8.0, 11.125, 13.75, 16.625]


@pytest.mark.parametrize(
    ("n", "o", "t_d", "accepted"),
    [(4, 9, 5.0, True), (4, 9, 6.0, False), (6, 9, 5.0, False), (4, 1, 6.0, True)],
)
def test_predictive_counts_who_will_be_decoding_when_the_prefill_ends(n, o, t_d, accepted):
    cluster = replace(TWO, decode=2, cost=replace(COST, decode_sequence=0.5))
    rows = requests((0, 8, 99), (9, 7, 99), (10, n, o))
    out = simulate_plain(rows, cluster, "round_robin", "predictive", threshold=0.5, t_d=t_d, slo=SLO(100.0, 4.0))
    assert [status is Status.COMPLETED for status in out.status] == [True, True, accepted]


# --- coupled ---------------------------------------------------------------------------------------------------------

COUPLED = PlainCoupled(instances=1, cost=replace(COST, prefill_constant=2.0), max_batched_tokens=8, block_size=4)
QUEUE = [(0, 4, 3), (1, 3, 2), (2, 5, 1), (3, 2, 1)]


def test_waiting_prompts_are_prefilled_together_while_decoding_stands_still():
    out = simulate_plain_coupled(requests(*QUEUE), COUPLED)
    assert out.token_times == [[6.0, 22.125, 23.875], [16.0, 22.125], [16.0], [20.0]]
    assert out.ttft.tolist() == [6.0, 15.0, 14.0, 17.0]
    assert out.tbt.tolist() == [16.125, 6.125, 0.0, 0.0]


def test_memory_blocks_the_head_of_the_queue_and_all_behind_it():
    out = simulate_plain_coupled(requests(*QUEUE), replace(COUPLED, capacity_tokens=12))
    assert out.token_times == [[6.0, 13.125, 14.875], [11.0, 13.125], [23.875], [23.875]]


def test_a_prompt_hits_the_blocks_of_the_one_before_it_in_the_same_iteration():
    out = simulate_plain_coupled(requests((0, 4, 1, [1]), (0, 8, 1, [1, 2])), replace(COUPLED, cache_blocks=10))
    assert out.cached.tolist() == [0, 4]
    assert out.ttft.tolist() == [10.0, 10.0]


def test_chunks_fill_the_budget_that_running_requests_leave():
    chunked = PlainCoupled(instances=1, cost=replace(COST, prefill_quadratic=0.125), chunked=4)
    out = simulate_plain_coupled(requests((0, 6, 3), (0, 3, 2)), chunked)
    assert out.token_times == [[10.5, 16.5, 19.0], [16.5, 19.0]]


def test_no_prompt_advances_while_running_requests_take_the_whole_budget():
    out = simulate_plain_coupled(requests((0, 6, 3), (0, 3, 2)), PlainCoupled(instances=1, cost=COST, chunked=1))
    assert out.token_times[1][0] == out.finished[0] + 3.0


def test_routers_take_turns_or_follow_the_unfinished_tokens():
    rows = requests((0, 10, 2), (0, 4, 2), (0, 5, 2), (0, 3, 2), (0, 1, 2))
    two = replace(COUPLED, instances=2)
    assert simulate_plain_coupled(rows, two).instance.tolist() == [0, 1, 0, 1, 0]
    assert simulate_plain_coupled(rows, replace(two, router="least_tokens")).instance.tolist() == [0, 1, 1, 1, 0]
