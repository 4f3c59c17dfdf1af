import io
import json
import math

import pytest
from rich.console import Console

from mooncake_jax.report import flat_metrics, format_table, rich_table, summarize, summary_dict, write_summary
from mooncake_jax.types import SLO


def test_table_has_the_shape_of_vllm_bench_serve(run):
    lines = format_table(summarize(run, SLO(ttft=1.0, tbt=0.15)), request_rate=2.5, max_concurrency=8).splitlines()
    assert lines[:6] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2         ",
        "Failed requests:                         2         ",
        "  of these rejected:                     1         ",
        "  of these aborted:                      1         ",
        "Maximum request concurrency:             8         ",
    ]
    assert "Request rate configured (RPS):           2.50      " in lines
    assert "Benchmark duration (s):                  3.00      " in lines
    assert "Total input tokens:                      160       " in lines
    assert "Request goodput (req/s):                 0.33      " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "Mean TTFT (ms):                          1250.00   " in lines
    assert "P90 TTFT (ms):                           1850.00   " in lines
    assert "Mean TBT (ms):                           100.00    " in lines
    assert "Effective requests (% of all):           25.00     " in lines
    assert "Prompt tokens from host:                 30        " in lines
    assert "Prompt tokens computed:                  70        " in lines
    assert "prefill-0 busy (%):                      33.33     " in lines
    assert lines[-1] == "=" * 50


def test_every_line_is_a_label_in_40_columns_and_a_number_in_10(run):
    for line in format_table(summarize(run, SLO())).splitlines():
        title = line.startswith(("=", "-"))
        assert len(line) >= 50
        assert title or (line[:40].rstrip().endswith(":") and line[40] == " " and float(line[41:]) >= 0)


def test_configured_values_appear_only_if_given(run):
    table = format_table(summarize(run, SLO()))
    assert "configured" not in table
    assert "Maximum" not in table


def test_what_was_not_measured_is_a_dash(rejected):
    assert "Mean TTFT (ms):                          -         " in format_table(summarize([rejected], SLO()))
    assert "Successful requests:                     0         " in format_table(summarize([], SLO()))


def test_rich_table_shows_latencies_goodput_and_reuse(run, rejected):
    def shown(records):
        console = Console(file=io.StringIO(), width=120)
        console.print(rich_table(summarize(records, SLO(ttft=1.0, tbt=0.15)), "demo"))
        return console.file.getvalue()

    text = shown(run)
    assert "demo" in text
    assert "1,250.0" in text
    assert "2 completed, 1 rejected, 1 aborted in 3.0 s" in text
    assert "goodput 0.33 req/s, 25.0% of all requests" in text
    assert "56.2% of 160 prompt tokens reused" in text
    assert "1 rejected in 0.0 s" in shown([rejected])
    assert "no requests" in shown([])


def test_summary_json_has_the_keys_of_the_ecosystem_in_ms_and_ours_in_seconds(tmp_path, run):
    write_summary(tmp_path / "summary.json", summarize(run, SLO(ttft=1.0, tbt=0.15)), {"seed": 3})
    values = json.loads((tmp_path / "summary.json").read_text())
    assert values["completed"] == values["failed"] == 2
    assert values["request_goodput"] == pytest.approx(1 / 3)
    assert values["mean_ttft_ms"] == pytest.approx(1250)
    assert values["median_ttft_ms"] == pytest.approx(1250)
    assert values["p90_ttft_ms"] == pytest.approx(1850)
    assert values["p99_tpot_ms"] == pytest.approx(0.99 * 400 / 3)
    assert values["mean_e2el_ms"] == pytest.approx(1450)
    assert values["max_concurrent_requests"] == 2
    assert values["ttft"]["mean"] == pytest.approx(1.25)
    assert values["goodput"]["share"] == 0.25
    assert values["reuse"] == {
        **{"prompt": 160, "computed": 70, "share": pytest.approx(0.5625)},
        **{"device": 40, "host": 30, "peer": 20, "disk": 0, "store": 0},
    }
    assert values["slo"] == {"ttft": 1.0, "tbt": 0.15}
    assert values["provenance"] == {"seed": 3}


def test_unmeasured_latencies_are_null_and_left_out_of_the_flat_metrics(rejected, run):
    summary = summarize([rejected], SLO())
    assert summary_dict(summary)["mean_ttft_ms"] is summary_dict(summary)["ttft"] is None
    flat = flat_metrics(summary)
    assert all(math.isfinite(value) for value in flat.values())
    assert "mean_ttft_ms" not in flat
    assert flat["status/rejected"] == 1.0
    assert flat_metrics(summarize(run, SLO()))["ttft/p90"] == pytest.approx(1.85)
