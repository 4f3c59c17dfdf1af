"""Every switch of the simulator against numbers worked out on paper (costs: `runs.COST`), and what holds under all of them."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.kvcache import FIFO, LFU, LRU, PGDSF, Belady, BlockCache, LeafFirstLRU, LengthAware, PrefixIndex
from mooncake_jax.sched import (
    AcceptAll,
    CacheAware,
    CacheAwareReorder,
    ClosedForm,
    EarlyRejection,
    HotReplicas,
    KVCacheCentric,
    LoadBalance,
    LoadRoles,
    Predictive,
    Random,
    ShortestFirst,
    StageByStage,
)
from mooncake_jax.sim import DiskConfig, Failure, Loading, Pipelined, Rates, Slow
from mooncake_jax.types import SLO, Status, Tier
from tests.sim.cases import COST as DECIMALS
from tests.sim.cases import SMALL_SLO, requests_of, small_traces
from tests.sim.runs import COST, cluster, metrics, requests, run

FIXED = ClosedForm(2.0, 1.0, 0.0, 1.0, 0.0, 0.125, 4.0)
"""`COST` with 2 s that every pass takes."""


# --- decode memory ---------------------------------------------------------------------------------------------------


def test_a_request_beyond_the_decode_memory_waits_in_dram_and_loads_when_another_has_left():
    rows = requests((0, 8, 3), (0, 8, 3))
    done = run(rows, cluster(2, capacity=21, first_token="decode"))
    assert done.ttft == [9.0, 14.375]
    assert done.finished == [13.375, 18.75]
    assert done.split(0) == {"compute": 8.0, "transfer": 1.0}
    assert done.split(1) == {"compute": 8.0, "transfer": 1.0, "decode_wait": 5.375}
    assert run(rows, cluster(2, capacity=22, first_token="decode")).ttft == [9.0, 9.0]


def test_a_request_larger_than_the_whole_decode_memory_goes_alone():
    done = run(requests((0, 8, 3), (0, 8, 3), (0, 2, 2)), cluster(3, capacity=10, first_token="decode"))
    # The small one is there first, at 2 + 1/4, and steps once at 1 + 3/8; then one large one at a time.
    assert done.ttft == [9.0, 14.375, 2.25]
    assert done.finished == [13.375, 18.75, 3.625]


def test_the_head_of_the_queue_for_decode_memory_is_not_overtaken():
    rows = requests((0, 8, 3), (0, 9, 3), (0, 10, 2), (10, 1, 2))
    done = run(rows, cluster(4, capacity=27, first_token="decode"))
    # The first two take 11 and 12 tokens; the third, of 12, waits until the first ends at 14.625, and so does the small one.
    assert done.ttft == [9.0, 10.125, 14.625 + 1.25, 4.625 + 0.125]


@settings(max_examples=15, deadline=None)
@given(small_traces(16), st.integers(1, 400), st.sampled_from(["decode", "prefill"]))
def test_decode_memory_is_never_overfull_and_enough_of_it_is_like_no_limit(rows, capacity, first_token):
    rows = requests_of(rows)
    options = {"hardware": HARDWARE, "rates": SMALL_RATES}
    done = run(rows, cluster(2, 2, block_size=16, capacity=capacity, first_token=first_token), **options)
    free = run(rows, cluster(2, 2, block_size=16, first_token=first_token), **options)
    enough = run(rows, cluster(2, 2, block_size=16, capacity=100_000, first_token=first_token), **options)
    for name, values in metrics(free).items():
        np.testing.assert_array_equal(metrics(enough)[name], values, err_msg=name)
    if first_token == "prefill":
        return
    columns = done.columns
    loading = columns.arrival + columns.ttft - columns.input_tokens / SMALL_RATES.load
    needs = columns.input_tokens + np.array([request.output_tokens for request in rows])
    for i in np.flatnonzero(columns.decode >= 0):
        there = (columns.decode == columns.decode[i]) & (loading <= loading[i]) & (columns.finished > loading[i] + 1e-9)
        assert there.sum() == 1 or needs[there].sum() <= capacity


# --- prefill: chunks, packs, pipelines -------------------------------------------------------------------------------


def test_every_chunk_pays_the_fixed_cost_of_a_pass_and_attends_to_what_came_before():
    hardware = ClosedForm(0.5, 1.0, 0.125, 1.0, 0.0, 0.125, 4.0)
    rows = requests((0, 8, 1, [1, 2]), (100, 20, 1, [1, 2, 3, 4, 5]))
    assert run(rows, cluster(), hardware=hardware).ttft == [0.5 + 8 + 8, 0.5 + 12 + 0.125 * (400 - 64)]
    assert run(rows, cluster(chunk=5), hardware=hardware).ttft == [2 * 0.5 + 8 + 8, 3 * 0.5 + 12 + 0.125 * (400 - 64)]


def test_waiting_prompts_share_a_pass_and_its_fixed_cost():
    done = run(requests((0, 4, 1), (1, 3, 1), (2, 5, 1), (3, 2, 1)), cluster(pack=8), hardware=FIXED)
    assert done.finished == [6.0, 16.0, 16.0, 20.0]
    np.testing.assert_allclose(done.result.prefill_s, [6, 10 * 5 / 12, 10 * 7 / 12, 4])


def test_a_prompt_does_not_share_the_pass_that_makes_its_prefix_if_it_would_have_to_compute_that_too():
    done = run(requests((0, 4, 1), (1, 8, 1, [1, 2]), (2, 8, 1, [1, 2])), cluster(pack=8), hardware=FIXED)
    assert done.finished == [6.0, 16.0, 19.0]
    assert done.columns.cached[Tier.HOST].tolist() == [0, 0, 7]


def test_the_queue_ahead_counts_all_prompts_of_a_pass():
    rows = requests((0, 4, 1), (0, 13, 1), (1, 4, 1), (1, 4, 1), (7, 1, 1))
    done = run(rows, cluster(2, pack=8), hardware=FIXED, pairing=LoadBalance())
    # At 7 prefill-0 is thought to be busy until 6 + 6 + 6, prefill-1 until 15.
    assert done.columns.prefill.tolist() == [0, 1, 0, 0, 1]
    assert done.finished == [6.0, 15.0, 16.0, 16.0, 18.0]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.integers(2, 8), st.integers(0, 3))
def test_a_pipelined_group_takes_chunks_plus_stages_less_one_stage_times(chunks, stages, cached):
    stage_s = 4 * stages / stages  # a chunk of 4 · stages tokens takes 4 s at each of the stages
    prefix = cached * stages
    rows = requests((0, 4 * prefix, 1, range(prefix))) if cached else []
    tokens = 4 * (prefix + chunks * stages)
    rows += [*requests((1000, tokens, 1, range(tokens // 4)))]
    done = run(rows, cluster(stages=stages, chunk=4 * stages))
    assert done.ttft[-1] == pytest.approx((chunks + stages - 1) * stage_s)
    assert done.columns.cached[Tier.HOST][-1] == 4 * prefix


def test_the_next_prompt_enters_the_first_stage_while_the_one_before_is_in_the_second():
    done = run(requests((0, 16, 1), (0, 8, 1)), cluster(stages=4, chunk=4))
    assert done.ttft == [7.0, 9.0]
    assert done.split(1) == {"queue": 4.0, "compute": 5.0}
    assert done.result.prefill_s.tolist() == [16.0, 8.0]


def test_kv_leaves_a_pipelined_group_for_as_long_as_the_prompt_passes_through_it():
    hardware = ClosedForm(0.0, 1.0, 0.0, 1.0, 0.0, 0.125, 1.0)
    done = run(requests((0, 16, 2)), cluster(stages=4, chunk=4, first_token="decode"), hardware=hardware)
    assert done.ttft == [7.0 + (16 - 7) + 2]


def test_the_queue_of_a_pipelined_group_is_what_keeps_its_first_stage_busy():
    hardware, rows = COST, requests((0, 16, 1), (0, 16, 1), (3, 16, 1), (5, 16, 1))
    done = run(rows, cluster(2, stages=4, chunk=4), estimator=Pipelined(hardware, 4, 4), pairing=LoadBalance())
    assert done.columns.prefill.tolist() == [0, 1, 0, 1]
    assert done.finished == [7.0, 7.0, 11.0, 12.0]


# --- moving KV -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load_s", "serial", "seconds"), [(0.125, False, 4.0), (1.0, False, 8.0), (0.125, True, 5.25)])
def test_loading_the_prefix_and_storing_the_new_blocks_overlap_with_computing_or_add_to_it(load_s, serial, seconds):
    hardware = Loading(COST, load_s, 1 / 16, serial=serial)
    done = run(requests((0, 8, 1, [1, 2]), (100, 12, 1, [1, 2, 3])), cluster(), hardware=hardware)
    assert done.ttft[1] == seconds
    assert done.columns.cached[Tier.HOST].tolist() == [0, 8]


@pytest.mark.parametrize(("sending", "first"), [("layerwise", 9.0), ("serial", 11.0)])
def test_kv_leaves_while_prefill_computes_or_after_it(sending, first):
    done = run(requests((0, 8, 3)), cluster(sending=sending, first_token="decode"))
    assert done.ttft == [first]
    assert done.split(0) == {"compute": 8.0, "transfer": first - 8}


@pytest.mark.parametrize(("sending", "first"), [("layerwise", [18.0, 18.0]), ("serial", [26.0, 26.0])])
def test_transfers_to_one_decode_instance_share_its_network(sending, first):
    done = run(requests((0, 16, 2), (0, 16, 2)), cluster(2, contention=True, sending=sending, first_token="decode"))
    assert done.ttft == first
    apart = run(requests((0, 16, 2), (0, 16, 2)), cluster(2, 2, contention=True, sending=sending, first_token="decode"))
    assert apart.ttft == [18.0 if sending == "layerwise" else 22.0] * 2


def test_a_request_rejected_after_prefill_does_not_decode_when_its_kv_arrives_late():
    rows = requests(*[(0, 8, 9)] * 4)
    slow = Rates(node=0.5, load=8.0)
    config = cluster(4, contention=True)
    done = run(rows, config, admission=StageByStage(), slo=SLO(100.0, 3.5), rates=slow)
    assert done.status.count(Status.REJECTED) == 2


@settings(max_examples=15, deadline=None)
@given(small_traces(16), st.sampled_from(["decode", "prefill"]), st.sampled_from(["layerwise", "serial"]))
def test_an_uncontended_network_is_no_network(rows, first_token, sending):
    rows = requests_of(rows[:1])
    times = []
    for contention in (False, True):
        config = cluster(contention=contention, sending=sending, first_token=first_token, block_size=16)
        times.append(run(rows, config, hardware=HARDWARE, rates=SMALL_RATES).columns.e2e)
    np.testing.assert_allclose(times[0], times[1], rtol=1e-12)


# --- disk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("disk", "held"), [(10, {1, 2, 3, 4, 5}), (2, {1, 2, 4, 5}), (1, {1, 2, 5})])
def test_blocks_that_leave_dram_come_back_from_disk_and_push_others_down(disk, held):
    rows = requests((0, 8, 1, [1, 2]), (10, 8, 1, [3, 4]), (100, 12, 1, [1, 2, 5]))
    done = run(rows, cluster(blocks=2, disk=DiskConfig(disk, 2.0)))
    assert set(done.simulation.index.keys(0)) == held
    assert set(done.simulation.prefill[0].cache.keys()) == {2, 5}
    read = {10: 8, 2: 8, 1: 0}[disk]  # of one disk block the second is left, and a prefix begins with the first
    assert done.columns.cached[Tier.DISK].tolist() == [0, 0, read]
    assert done.columns.cached[Tier.HOST].sum() == 0
    assert done.split(2) == ({"fetch": 4.0, "compute": 4.0} if read else {"compute": 12.0})


def test_a_prefix_partly_in_dram_is_read_from_disk_for_the_rest_only():
    rows = requests((0, 12, 1, [1, 2, 3]), (20, 4, 1, [9]), (100, 13, 1, [1, 2, 3, 4]))
    done = run(rows, cluster(blocks=3, disk=DiskConfig(10, 2.0)))
    assert done.columns.cached[Tier.DISK].tolist() == [0, 0, 4]
    assert done.columns.cached[Tier.HOST].tolist() == [0, 0, 8]
    assert done.split(2) == {"fetch": 2.0, "compute": 1.0}


# --- blocks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 40)), min_size=2, max_size=15))
def test_finer_blocks_hit_no_less_and_every_prompt_token_is_reused_or_computed(prompts):
    texts = []
    for index, (document, shared, own) in enumerate(prompts):
        texts.append(tuple((document, i) for i in range(shared)) + tuple((100 + index, i) for i in range(own)))
    hits = []
    for block in (16, 8, 4):
        ids: dict[tuple, int] = {}
        keys = [[ids.setdefault(text[: at + block], len(ids)) for at in range(0, len(text), block)] for text in texts]
        rows = requests(*[(1000 * i, len(text), 1, own) for i, (text, own) in enumerate(zip(texts, keys))])
        done = run(rows, cluster(block_size=block, blocks=None))
        hits.append(done.columns.reused)
        np.testing.assert_array_equal(hits[-1] + done.columns.computed, [len(text) for text in texts])
    assert (hits[0] <= hits[1]).all()
    assert (hits[1] <= hits[2]).all()


# --- failures --------------------------------------------------------------------------------------------------------


def test_the_queue_of_a_dead_prefill_instance_is_served_by_others():
    done = run(requests(*[(0, 8, 1)] * 4), cluster(2, failures=[Failure("prefill-0", 2.0)]))
    assert done.finished == [24.0, 8.0, 32.0, 16.0]
    assert done.ledger.placements == [2, 1, 2, 1]
    assert done.columns.prefill.tolist() == [1, 1, 1, 1]


def test_a_restarted_prefill_instance_has_an_empty_cache_and_nobody_is_served_meanwhile():
    rows = requests((0, 8, 1, [1, 2]), (12, 8, 1), (20, 8, 1, [1, 2]), (50, 8, 1, [1, 2]))
    done = run(rows, cluster(failures=[Failure("prefill-0", 10.0, 5.0)]))
    assert done.status == [Status.COMPLETED, Status.REJECTED, Status.COMPLETED, Status.COMPLETED]
    assert done.columns.reason[1] == "no live prefill instance"
    assert done.finished == [8.0, 12.0, 28.0, 51.0]


def test_a_request_goes_on_elsewhere_with_the_tokens_it_has_when_its_decode_instance_dies():
    done = run(requests((0, 8, 5), (0, 8, 9)), cluster(2, 2, failures=[Failure("decode-0", 12.0)]))
    # Tokens at 8 and 11.125; the KV of the 2 new ones is computed until 14, is there at 14.5, and loaded at 15.75.
    assert done.finished == [23.75, 32.375]
    gaps = [3.125, 2.875, 5.625, 4.125, 3.125, 2.25, 2.375, 3.875, 4.125, 2.75, 2.875, 3.0]
    assert done.intervals == [(gap, gaps.count(gap)) for gap in sorted(set(gaps))]
    assert done.columns.tbt.tolist() == [5.625, 4.125]
    assert done.ledger.placements == [2, 1]
    assert done.columns.cached[Tier.HOST].tolist() == [0, 0]


def test_a_request_that_lost_its_instance_as_often_as_allowed_fails_with_what_it_has():
    done = run(requests((0, 8, 5), (0, 8, 9)), cluster(2, 2, failures=[Failure("decode-0", 12.0)], tries=1))
    assert done.status == [Status.FAILED, Status.COMPLETED]
    assert (done.columns.output_tokens[0], done.finished[0]) == (2, 12.0)
    assert done.columns.reason[0] == "lost its instance 1 times"


def test_a_queue_goes_on_when_the_decode_instance_of_the_running_prefill_dies():
    done = run(requests((0, 8, 9), (0, 8, 9), (0, 8, 1)), cluster(1, 2, failures=[Failure("decode-0", 2.0)]))
    # The pass of the first ends in vain at 8; placed again, it is last.
    assert done.ttft == [32.0, 16.0, 24.0]
    assert done.result.prefill_s.tolist() == [8.0, 8.0, 8.0]


def test_blocks_that_were_never_made_are_neither_reused_nor_fetched():
    shared = (8, 9, [1, 2])
    rows = requests((0, *shared), (1, *shared), (3, *shared), (60, *shared))
    for pairing in (CacheAware(), KVCacheCentric()):
        done = run(rows, cluster(2, 2, failures=[Failure("decode-0", 2.0)]), pairing=pairing)
        made = done.result.prefill_s.sum()
        assert made >= 8
        assert done.columns.cached[Tier.HOST][3] + done.columns.cached[Tier.PEER][3] == 7


def test_the_first_token_has_left_when_its_kv_was_loaded_even_if_no_step_began_before_the_instance_died():
    rows = requests((0, 8, 9), (0, 8, 9), (0, 9, 9))
    done = run(rows, cluster(3, 2, failures=[Failure("decode-0", 11.0)], first_token="decode"))
    assert done.columns.decode[2] == 1
    assert done.ttft == [9.0, 9.0, 10.125]


def test_kv_under_way_from_a_dead_prefill_instance_is_computed_again():
    hardware = ClosedForm(0.0, 1.0, 0.0, 1.0, 0.0, 0.125, 0.5)
    done = run(requests((0, 8, 2)), cluster(2, first_token="decode", failures=[Failure("prefill-0", 10.0)]), hardware=hardware)
    assert done.ttft == [10 + 8 + 8 + 1.0]
    assert done.result.prefill_s.tolist() == [16.0]


def test_an_instance_that_dies_while_it_drains_does_not_come_back_twice():
    rows = requests(*[(0, 2, 60)] * 12, (0, 80, 1), (200, 2, 2))
    roles = LoadRoles(period=5.0, high=0.5, low=0.45, patience=1)
    config = cluster(2, 1, failures=[Failure("prefill-0", 30.0, 10.0), Failure("prefill-1", 30.0, 10.0)])
    done = run(rows, config, roles=roles, slo=SLO(200.0, 4.0))
    alive = [one for one in (*done.simulation.prefill, *done.simulation.decode) if one.alive]
    assert len(alive) == 3


# --- slow instances --------------------------------------------------------------------------------------------------


def test_nobody_tells_the_conductor_that_a_prefill_instance_is_slow():
    done = run(requests((0, 8, 1), (0, 8, 1), (9, 8, 1)), cluster(2, slow=[Slow("prefill-0", 2.0)]), pairing=LoadBalance())
    assert done.columns.prefill.tolist() == [0, 1, 0]
    assert done.finished == [16.0, 8.0, 32.0]


def test_steps_of_a_slow_decode_instance_take_longer():
    done = run(requests((0, 8, 3)), cluster(slow=[Slow("decode-0", 2.0)]))
    assert done.finished == [9 + 4.25 + 4.5]


# --- queue orders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ageing", "finished"), [(0, [8.0, 32.0, 12.0]), (20, [8.0, 28.0, 32.0])])
def test_shorter_prompts_go_first_unless_age_counts_for_more(ageing, finished):
    done = run(requests((0, 8, 1), (1, 20, 1), (2, 4, 1)), cluster(), queue_order=lambda: ShortestFirst(ageing))
    assert done.finished == finished


def test_a_prompt_that_overtakes_the_one_whose_blocks_it_counts_on_computes_them():
    rows = requests((0, 8, 1), (1, 20, 1, range(5)), (2, 8, 1, range(2)))
    done = run(rows, cluster(), queue_order=lambda: ShortestFirst(0))
    assert done.finished == [8.0, 36.0, 16.0]
    assert done.columns.cached[Tier.HOST].tolist() == [0, 0, 0]
    assert run(rows, cluster()).finished == [8.0, 28.0, 29.0]


def test_prompts_with_more_of_them_cached_go_first_but_overtake_at_most_a_window():
    rows = requests((0, 8, 1, [1, 2]), (1, 8, 1), (2, 8, 1, [1, 2]), (3, 8, 1, [1, 2]))
    assert run(rows, cluster(), queue_order=lambda: CacheAwareReorder(8)).finished == [8.0, 18.0, 9.0, 10.0]
    assert run(rows, cluster(), queue_order=lambda: CacheAwareReorder(1)).finished == [8.0, 17.0, 9.0, 18.0]


# --- roles and replicas ----------------------------------------------------------------------------------------------


def test_instances_follow_a_load_that_moves_from_prefill_to_decode_and_nobody_is_lost():
    heavy_prefill = [(i, 40, 1) for i in range(40)]
    heavy_decode = [(1500 + 5 * i, 2, 120) for i in range(60)]
    roles = LoadRoles(period=10.0, high=0.8, low=0.4, patience=2)
    done = run(requests(*heavy_prefill, *heavy_decode), cluster(3, 3), roles=roles, slo=SLO(60.0, 6.0), pairing=LoadBalance())
    assert set(done.status) == {Status.COMPLETED}
    first, then = done.columns.prefill[:40], done.columns.decode[40:]
    # A decode instance came to help with the prompts, and prefill instances with the tokens.
    assert first.max() >= 3
    assert then.max() >= 3
    alive = [one for one in (*done.simulation.prefill, *done.simulation.decode) if one.alive]
    assert len(alive) == 6
    fixed = run(requests(*heavy_prefill, *heavy_decode), cluster(3, 3), slo=SLO(60.0, 6.0), pairing=LoadBalance())
    assert done.columns.ttft[:40].mean() < fixed.columns.ttft[:40].mean()
    assert done.columns.tbt[40:].mean() < fixed.columns.tbt[40:].mean()


def test_second_judgements_go_on_while_a_decode_instance_drains():
    rows = requests(*[(i, 40, 30) for i in range(30)])
    roles = LoadRoles(period=5.0, high=0.3, low=0.29, patience=1)
    done = run(rows, cluster(1, 3), roles=roles, slo=SLO(2000.0, 1000.0), admission=StageByStage(), pairing=LoadBalance())
    assert len(done.simulation.prefill) > 1


def hot(*more) -> list:
    return requests((0, 40, 1, range(10)), *more)


def replicas(cold_s: float = 1e6) -> HotReplicas:
    return HotReplicas(period=10.0, hot_rate=0.025, cold_s=cold_s)


def test_hot_blocks_are_copied_so_that_other_instances_hit_them():
    rows = hot(*[(100 * i, 40, 1, range(10)) for i in range(1, 4)])
    done = run(rows, cluster(4), replication=replicas())
    assert done.columns.cached[Tier.HOST].tolist() == [0, 39, 39, 39]
    assert done.finished == [40.0, 101.0, 201.0, 301.0]
    assert run(rows, cluster(4)).columns.cached[Tier.HOST].sum() == 0


@pytest.mark.parametrize("contention", [False, True])
@pytest.mark.parametrize("order", [None, lambda: ShortestFirst(0)])
def test_a_copy_can_be_used_once_the_original_is_made_and_has_been_moved(contention, order):
    rows = hot((30, 41, 1, [*range(10), 99]))
    done = run(rows, cluster(2, contention=contention), replication=replicas(), queue_order=order)
    # Ordered at 10, made at 40, moved until 50.
    assert done.columns.cached[Tier.HOST].tolist() == [0, 40]
    assert done.finished == [40.0, 51.0]
    assert done.split(1) == {"fetch": 20.0, "compute": 1.0}


def test_cold_replicas_are_dropped_but_one():
    rows = hot(*[(100 * i, 40, 1, range(10)) for i in range(1, 4)], (5000, 4, 1))
    index = run(rows, cluster(4), replication=replicas(cold_s=1000.0)).simulation.index
    assert [index.holders(key).bit_count() for key in range(10)] == [1] * 10
    index = run(rows, cluster(4), replication=replicas()).simulation.index
    assert [index.holders(key).bit_count() for key in range(10)] == [4] * 10


# --- caches ----------------------------------------------------------------------------------------------------------


class AnyOther:
    """LRU, but no `LRU`: a cache treats it as any policy."""

    def __init__(self) -> None:
        self._inner = LRU()
        self.insert, self.touch = self._inner.insert, self._inner.touch
        self.remove, self.order = self._inner.remove, self._inner.order


class TwoTiers:
    """An LRU cache over another, as loops; `maker` is told whose each block is."""

    def __init__(self, capacity: int | None, below: int):
        self.capacity, self.below_capacity = capacity, below
        self.above: OrderedDict[int, int] = OrderedDict()
        self.below: OrderedDict[int, int] = OrderedDict()

    def use(self, keys: list[int], maker: int) -> None:
        for key in keys:
            if key in self.above:
                self.above.move_to_end(key)
                continue
            self.below.pop(key, None)
            self.above[key] = maker
            if self.capacity is not None and len(self.above) > self.capacity:
                gone, its = self.above.popitem(last=False)
                if self.below_capacity:
                    self.below[gone] = its
                    if len(self.below) > self.below_capacity:
                        self.below.popitem(last=False)


@st.composite
def prompts(draw: Callable) -> list[tuple[int, ...]]:
    """Prompts whose blocks are a path in a small tree, so that they share heads."""
    tree = draw(st.lists(st.integers(-1, 12), min_size=4, max_size=25))
    parents = [parent if parent < at else -1 for at, parent in enumerate(tree)]
    found = []
    for leaf in draw(st.lists(st.integers(0, len(parents) - 1), min_size=5, max_size=40)):
        path = []
        while leaf >= 0:
            path.append(leaf)
            leaf = parents[leaf]
        found.append(tuple(path[::-1]))
    return found


@settings(max_examples=150, deadline=None)
@given(prompts(), st.sampled_from([0, 1, 2, 3, 5, 8, None]), st.sampled_from([0, 0, 1, 4, 100]), st.data())
def test_a_cache_holds_what_plain_loops_say_by_any_way_through_it(sequence, capacity, disk, data):
    def cache(policy=None) -> BlockCache:
        index = PrefixIndex(2)
        return BlockCache(capacity, index, 1, policy, BlockCache(disk, index, 1) if disk else None)

    plain, quick, slow, other = TwoTiers(capacity, disk), cache(), cache(), cache(AnyOther())
    for maker, keys in enumerate(sequence):
        if data.draw(st.integers(0, 9)) == 0:
            # Orphans: the middle of a prompt is dropped, so that its tail is held without what comes before.
            gone = keys[len(keys) // 2 : len(keys) // 2 + 1]
            for one in (quick, slow, other):
                one.drop(gone)
            for key in gone:
                plain.above.pop(key, None)
        held = int(quick.index.match(keys)[1])
        if disk or data.draw(st.booleans()):
            held = 0
        plain.use(list(keys), maker)
        quick.use(keys, maker, held)
        slow._use_one_by_one(keys, maker)
        other.use(keys, maker)
        expected = list(plain.above.items())
        for one in (quick, slow):
            assert [(key, one.maker(key)) for key in one.keys()] == expected  # noqa: SIM118, a cache is no mapping
            assert set(one.index.keys(1)) == {*plain.above, *plain.below}
            assert not one.index.keys(0)
            assert one.below is None or one.below.keys() == list(plain.below)
        assert {key: other.maker(key) for key in other.keys()} == plain.above  # noqa: SIM118
        assert set(other.index.keys(1)) >= set(plain.above)
        if not disk:
            assert other.index.masks == quick.index.masks


POLICIES = {
    "lru": LRU,
    "any": AnyOther,
    "fifo": FIFO,
    "lfu": LFU,
    "lfu_persistent": lambda: LFU(persistent=True),
    "length_aware": LengthAware,
    "leaf_first": LeafFirstLRU,
    "pgdsf": PGDSF,
}

HARDWARE = ClosedForm(
    DECIMALS.prefill_constant,
    DECIMALS.prefill_linear,
    DECIMALS.prefill_quadratic,
    DECIMALS.decode_constant,
    DECIMALS.decode_sequence,
    DECIMALS.decode_token,
    DECIMALS.bandwidth,
)
SMALL_RATES = Rates(node=DECIMALS.bandwidth, load=DECIMALS.h2d)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=6, deadline=None)
@given(small_traces(16), st.integers(1, 60), st.sampled_from([0, 20]))
def test_a_timed_run_with_any_eviction_policy_keeps_its_books(policy, rows, blocks, disk):
    config = cluster(2, 2, block_size=16, blocks=blocks, disk=DiskConfig(disk, 5000.0))
    options = {"hardware": HARDWARE, "rates": SMALL_RATES, "pairing": KVCacheCentric(), "eviction": POLICIES[policy]}
    done = run(requests_of(rows), config, **options)
    assert set(done.status) == {Status.COMPLETED}


@settings(max_examples=15, deadline=None)
@given(small_traces(16), st.integers(1, 60))
def test_the_bound_that_knows_the_future_runs_in_time_too(rows, blocks):
    rows = requests_of(rows)
    future = [request.keys for request in rows]
    run(rows, cluster(1, 2, block_size=16, blocks=blocks), hardware=HARDWARE, eviction=lambda: Belady(future))


@settings(max_examples=15, deadline=None)
@given(small_traces(16), st.integers(1, 60), st.sampled_from(["kvcache_centric", "cache_aware"]))
def test_lru_as_a_policy_among_others_changes_no_decision(rows, blocks, pairing):
    both = []
    for eviction in (None, AnyOther):
        policy = {"kvcache_centric": KVCacheCentric, "cache_aware": CacheAware}[pairing]()
        config = cluster(3, 2, block_size=16, blocks=blocks)
        both.append(metrics(run(requests_of(rows), config, hardware=HARDWARE, pairing=policy, eviction=eviction)))
    for name, values in both[0].items():
        np.testing.assert_array_equal(both[1][name], values, err_msg=name)


# --- all at once -----------------------------------------------------------------------------------------------------


@st.composite
def cluster_settings(draw: Callable) -> dict:
    prefill, decode = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    names = [f"prefill-{i}" for i in range(prefill)] + [f"decode-{i}" for i in range(decode)]
    stages = draw(st.sampled_from([1, 1, 3]))
    times = st.floats(0.0, 2.0, allow_nan=False)
    failures = st.builds(Failure, st.sampled_from(names), times, st.sampled_from([None, 0.05, 0.3, 1.0]))
    slow = st.builds(Slow, st.sampled_from(names), st.sampled_from([0.5, 3.0]))
    chunk = draw(st.sampled_from([16, 64])) if stages > 1 else draw(st.sampled_from([None, 40]))
    return dict(
        prefill=prefill,
        decode=decode,
        stages=stages,
        chunk=chunk,
        pack=draw(st.sampled_from([None, 100, 400] if chunk is None else [None, chunk])),
        capacity=draw(st.sampled_from([None, 50, 500])),
        blocks=draw(st.sampled_from([3, 20, None])),
        disk=DiskConfig(draw(st.sampled_from([0, 10])), 20000.0),
        block_size=16,
        first_token=draw(st.sampled_from(["decode", "prefill"])),
        sending=draw(st.sampled_from(["layerwise", "serial"])),
        contention=draw(st.booleans()),
        failures=draw(st.lists(failures, max_size=4, unique_by=lambda one: one.instance)),
        slow=draw(st.lists(slow, max_size=2, unique_by=lambda one: one.instance)),
        role_switch_s=draw(st.sampled_from([0.0, 0.1])),
        tries=draw(st.sampled_from([1, 2, 5])),
    )


@settings(max_examples=30, deadline=None)
@given(
    small_traces(16),
    cluster_settings(),
    st.sampled_from([Random, LoadBalance, CacheAware, KVCacheCentric]),
    st.sampled_from([AcceptAll, StageByStage, EarlyRejection, lambda: Predictive(1.0, 0.3)]),
    st.sampled_from([None, lambda: ShortestFirst(1.0), lambda: CacheAwareReorder(2)]),
    st.sampled_from([None, lambda: HotReplicas(0.05, 2.0, 0.2, 3, 20)]),
    st.sampled_from([None, lambda: LoadRoles(0.05, 0.4, 0.3, 1), lambda: LoadRoles(0.02, 0.2, 0.2, 1)]),
    st.sampled_from([None, LFU, LeafFirstLRU, PGDSF]),
    st.booleans(),
)
def test_whatever_is_switched_on_every_request_ends_once_with_all_its_tokens_or_a_reason(
    rows, switched, pairing, admission, order, replication, roles, eviction, serial
):
    config = cluster(**switched)
    hardware = Loading(HARDWARE, 0.0001, 0.0002, serial=serial)
    estimator = hardware
    if config.prefill.stages > 1:
        estimator = Pipelined(hardware, config.prefill.stages, config.prefill.chunk_tokens)
    run(
        requests_of(rows),
        config,
        pairing=pairing(),
        admission=admission(),
        hardware=hardware,
        estimator=estimator,
        slo=SMALL_SLO,
        replication=replication and replication(),
        roles=roles and roles(),
        rates=SMALL_RATES,
        eviction=eviction,
        queue_order=order,
    )
