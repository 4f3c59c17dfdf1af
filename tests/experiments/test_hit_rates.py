"""Hit rates without time: FAST Fig 9 and arXiv Table 1."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.experiments.shared_tokens import pieces, token_curve
from mooncake_jax.sim.study import lru_curve
from mooncake_jax.workload import Trace, TraceRequest, read_mooncake
from tests.experiments.labs import ours, report_of, starts_of_traces
from tests.support import published_trace


def trace_of(*prompts: tuple[int, tuple[int, ...]]) -> Trace:
    return Trace(tuple(TraceRequest(float(at), tokens, 1, keys) for at, (tokens, keys) in enumerate(prompts)), 10)


def hits(*prompts: tuple[int, tuple[int, ...]]) -> int:
    """Tokens hit without limit."""
    return token_curve(trace_of(*prompts)).hit_tokens(10**9)


def test_the_next_turn_shares_all_of_the_prompt_before_it():
    assert hits((13, (1, 2)), (27, (1, 3, 4))) == 13


def test_prompts_that_part_in_a_full_block_share_half_of_it():
    assert hits((30, (1, 2, 3)), (30, (1, 4, 5))) == 15


def test_prompts_that_part_share_no_more_than_the_shortest_of_them_has():
    assert hits((30, (1, 2, 3)), (16, (1, 4)), (14, (1, 5))) == 14 + 14
    assert hits((14, (1, 2)), (14, (1, 3))) == 14


def test_prompts_without_a_common_first_block_share_nothing():
    assert hits((5, (1,)), (9, (2,)), (30, (3, 4, 5))) == 0


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12)


def chained(requests: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """One key for every prefix."""
    known: dict[tuple[int, ...], int] = {}
    return [tuple(known.setdefault(one[: i + 1], len(known)) for i in range(len(one))) for one in requests]


@settings(max_examples=100, deadline=None)
@given(prompts, st.lists(st.integers(1, 10), min_size=12, max_size=12))
def test_pieces_keep_every_token_and_hit_no_less_than_whole_blocks(requests, rests):
    # Equal keys must mean equal tokens, so a last block's size hangs on its key and no prompt goes on after a partial one.
    keys = chained(requests)
    inner = {key for one in keys for key in one[:-1]}
    sizes = [10 * (len(one) - 1) + (10 if one[-1] in inner else rests[one[-1] % 12]) for one in keys]
    trace = trace_of(*zip(sizes, keys, strict=True))
    cut = pieces(trace)
    assert [sum(cut.sizes[piece] for piece in one) for one in cut.requests] == sizes
    assert all(size > 0 for size in (cut.sizes[piece] for one in cut.requests for piece in one))
    assert token_curve(trace).hit_tokens(10**9) >= lru_curve(trace).hit_tokens(10**9)


@settings(max_examples=100, deadline=None)
@given(prompts, st.integers(1, 200))
def test_the_curve_in_tokens_is_an_lru_cache_of_pieces(requests, capacity):
    trace = trace_of(*((10 * len(one), one) for one in chained(requests)))
    cut = pieces(trace)
    hit = 0
    recent: list[int] = []
    for one in cut.requests:
        # The cache is what fits of the most recently used pieces, whole, up to the first that does not.
        held, room = set(), capacity
        for piece in reversed(recent):
            room -= cut.sizes[piece]
            if room < 0:
                break
            held.add(piece)
        for piece in one:
            if piece not in held:
                break
            hit += cut.sizes[piece]
        for piece in one:
            if piece in recent:
                recent.remove(piece)
            recent.append(piece)
    assert token_curve(trace).hit_tokens(capacity) == hit


FIG9 = json.loads((Path(__file__).parent / "fig9.json").read_text())
"""Capacities in tokens and hit rates read from the drawing of FAST Fig 9."""


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_figure_9_is_met_at_every_capacity(name: str):
    curve = token_curve(read_mooncake(published_trace(name)))
    for capacity, rate in zip(FIG9["capacity"], FIG9[name], strict=True):
        assert curve.token_rate(capacity) == pytest.approx(rate, abs=0.005)


def test_capacity_leaves_out_traces_that_are_not_here_and_says_how_to_get_them(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MOONCAKE_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("MOONCAKE_JAX_TRACES", str(starts_of_traces(tmp_path, 100)))
    report = report_of("fast25/fig9_capacity", tmp_path)
    assert {label.partition(",")[0] for label in ours(report)} == {"conversation", "synthetic"}
    assert any("toolagent" in remark and "fetch.py" in remark for remark in report.remarks)
    assert all(plot.stat().st_size > 10_000 for plot in report.plots)
    in_tokens, in_blocks = ours(report, 0), ours(report, 1)
    assert in_tokens["conversation, 1,000,000 tokens"] > in_blocks["conversation, 1,000,000 tokens"]


def test_no_policy_beats_the_bound_and_all_meet_without_limit(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MOONCAKE_JAX_TRACES", str(starts_of_traces(tmp_path, 40)))
    report = report_of("arxiv/table1_eviction", tmp_path, "workload.path=synthetic")
    rates = ours(report, 1)
    for label, rate in rates.items():
        capacity = label.partition(", ")[2]
        assert rate <= rates[f"bound (Belady), {capacity}"] + 1e-12
        assert rate <= rates[f"{label.partition(', ')[0]}, no limit"] == rates["LRU, no limit"]
    assert [row.tolerance for row in report.comparisons[0].rows] == ["abs 0"] * 12
