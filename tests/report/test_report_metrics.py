"""Expected values are worked out by hand or with the standard library's `statistics`, never with the code under test."""

import random
import statistics
from dataclasses import replace

import pytest

from mooncake_jax.report import Goodput, Reuse, check_record, measure, summarize
from mooncake_jax.types import SLO, RequestRecord, Span, Status, Tier


def tokens_at(times: list[float]) -> RequestRecord:
    return RequestRecord("r", 0.0, Status.COMPLETED, 10, len(times), tuple(times))


def test_latencies_of_a_request_follow_their_definitions(slow):
    latency = measure(slow)
    assert latency.ttft == pytest.approx(2.0)
    assert latency.e2e == pytest.approx(2.4)
    assert latency.tpot == pytest.approx(0.4 / 3)
    assert latency.tbt == pytest.approx(0.2)
    assert latency.itl.tolist() == pytest.approx([0.1, 0.2, 0.1])


def test_one_token_has_no_time_between_tokens(single):
    latency = measure(single)
    assert (latency.ttft, latency.e2e, latency.tbt, latency.tpot, len(latency.itl)) == (0.5, 0.5, 0.0, 0.0, 0)


def test_a_request_without_a_token_has_no_latency(rejected):
    assert measure(rejected) is None


@pytest.mark.parametrize(("gaps", "longest"), [(1, 1), (9, 1), (10, 1), (11, 2), (21, 3), (30, 3)])
def test_tbt_is_the_mean_of_the_longest_tenth_rounded_up(gaps, longest):
    intervals = list(range(1, gaps + 1))
    random.Random(gaps).shuffle(intervals)
    times = [float(sum(intervals[:i])) for i in range(gaps + 1)]
    top = range(gaps - longest + 1, gaps + 1)
    assert measure(tokens_at(times)).tbt == pytest.approx(statistics.mean(top))


def test_summary_of_a_small_run_is_as_worked_out_by_hand(run):
    summary = summarize(run, SLO(ttft=1.0, tbt=0.15))
    assert summary.requests == 4
    assert summary.completed == 2
    assert summary.status == {"completed": 2, "rejected": 1, "aborted": 1, "expired": 0, "failed": 0}
    assert summary.duration == 3.0
    assert (summary.input_tokens, summary.output_tokens) == (160, 5)
    assert summary.request_throughput == pytest.approx(2 / 3)
    assert summary.output_throughput == pytest.approx(5 / 3)
    assert summary.total_throughput == pytest.approx(165 / 3)
    assert summary.peak_output_throughput == 4.0  # all of `slow`, in the third second
    assert summary.peak_concurrency == 2  # `single` ends as `left` arrives; the rejected one stays no time
    assert summary.ttft.mean == pytest.approx(1.25)
    assert summary.ttft.std == pytest.approx(0.75)
    assert (summary.ttft.min, summary.ttft.p50, summary.ttft.max) == pytest.approx((0.5, 1.25, 2.0))
    assert summary.ttft.p90 == pytest.approx(1.85)
    assert summary.tbt.mean == pytest.approx(0.1)
    assert summary.tpot.mean == pytest.approx(0.2 / 3)
    assert (summary.itl.count, summary.itl.mean) == (3, pytest.approx(0.4 / 3))
    assert summary.e2e.mean == pytest.approx(1.45)


def test_percentiles_agree_with_the_standard_library():
    rng = random.Random(1)
    ttfts = [rng.expovariate(1.0) for _ in range(101)]
    summary = summarize([tokens_at([ttft]) for ttft in ttfts], SLO())
    hundredths = statistics.quantiles(ttfts, n=100, method="inclusive")
    assert summary.ttft.p50 == pytest.approx(statistics.median(ttfts))
    assert summary.ttft.p90 == pytest.approx(hundredths[89])
    assert summary.ttft.p99 == pytest.approx(hundredths[98])
    assert summary.ttft.std == pytest.approx(statistics.pstdev(ttfts))


def test_goodput_counts_only_completed_requests_within_both_limits(run):
    goodput = summarize(run, SLO(ttft=1.0, tbt=0.15)).goodput
    assert goodput == Goodput(effective=1, rate=1 / 3, share=0.25, within_ttft=0.5, within_tbt=0.5)
    assert summarize(run, SLO(ttft=2.0, tbt=0.15)).goodput.effective == 1  # `slow` still misses TBT
    assert summarize(run, SLO(ttft=2.0, tbt=0.25)).goodput.effective == 2  # a TTFT equal to the SLO is within it
    assert summarize(run, SLO(ttft=0.1, tbt=0.15)).goodput.effective == 0


def test_reused_and_computed_tokens_add_up_to_the_prompt_tokens(run):
    reuse = summarize(run, SLO()).reuse
    tiers = {Tier.DEVICE: 40, Tier.HOST: 30, Tier.PEER: 20, Tier.DISK: 0, Tier.STORE: 0}
    assert reuse == Reuse(prompt=160, computed=70, by_tier=tiers)
    assert reuse.computed + sum(reuse.by_tier.values()) == reuse.prompt
    assert reuse.share == pytest.approx(90 / 160)


@pytest.mark.parametrize("cached", [{Tier.HOST: 80, Tier.STORE: 21}, {Tier.HOST: -1}])
def test_more_reused_tokens_than_the_prompt_has_raise_with_the_request_id(run, slow, cached):
    run[2] = replace(slow, cached=cached)
    with pytest.raises(ValueError, match=r"request slow: reused .* sum to the 100 prompt tokens"):
        summarize(run, SLO())


def test_mean_split_of_ttft_adds_up_to_mean_ttft(run):
    summary = summarize(run, SLO())
    expected = {"queue": 0.3, "fetch": 0.125, "compute": 0.7, "transfer": 0.075, "decode_wait": 0.05}
    assert summary.ttft_split == pytest.approx(expected)
    assert sum(summary.ttft_split.values()) == pytest.approx(summary.ttft.mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_tokens": 5}, "5 output tokens but 4 token times"),
        ({"token_times": (12.0, 12.3, 12.1, 12.4)}, "not run backwards"),
        ({"token_times": (9.0, 12.1, 12.2, 12.4)}, "not run backwards"),
        ({"token_times": (12.0, float("nan"), 12.2, 12.4)}, "finite"),
        ({"token_times": (), "output_tokens": 0}, "completed without an output token"),
        ({"split": {"queue": 0.5, "compute": 1.0}}, "sums to 1.5 s but TTFT is 2.0 s"),
    ],
)
def test_a_record_that_contradicts_itself_raises_with_the_request_id(slow, change, message):
    check_record(slow)
    with pytest.raises(ValueError, match=f"request slow: .*{message}"):
        check_record(replace(slow, **change))


def test_utilisation_is_taken_as_given_in_order_of_instances_or_follows_from_spans(run):
    given = summarize(run, SLO(), {"decode-0": 0.5, "prefill-10": 0.25, "prefill-9": 1.0}).utilisation
    assert list(given) == ["prefill-9", "prefill-10", "decode-0"]
    from_spans = summarize(run, SLO()).utilisation  # compute 1 s and 0.4 s, decode 0.4 s, of 3 s
    assert from_spans == pytest.approx({"prefill-0": 1 / 3, "prefill-1": 0.4 / 3, "decode-1": 0.4 / 3})
    with pytest.raises(ValueError, match="prefill-0"):
        summarize(run, SLO(), {"prefill-0": 1.2})


def test_a_run_with_nothing_completed_has_counts_and_no_latencies(rejected, aborted):
    for records in ([], [rejected], [rejected, aborted]):
        summary = summarize(records, SLO())
        assert summary.requests == len(records)
        assert summary.completed == summary.goodput.effective == summary.reuse.prompt == 0
        assert summary.ttft is summary.tbt is summary.tpot is summary.itl is summary.e2e is None
        assert summary.goodput.share == summary.request_throughput == summary.reuse.share == 0.0


def test_a_span_that_lasts_over_the_end_counts_only_within_the_run():
    from mooncake_jax.report import busy_fraction

    busy = [Span("step", 0.0, 4.0, "decode-0"), Span("step", 3.0, 5.0, "decode-0"), Span("step", 9.0, 12.0, "decode-0")]
    assert busy_fraction(busy, 0.0, 10.0) == {"decode-0": pytest.approx(0.6)}
