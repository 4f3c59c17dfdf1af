"""Metrics, tables, plots, timelines and trackers of a run, live or simulated. Imports no jax."""

from mooncake_jax.report.folder import write_run
from mooncake_jax.report.metrics import (
    Goodput,
    RequestLatency,
    Reuse,
    Statistics,
    Summary,
    check_record,
    measure,
    summarize,
)
from mooncake_jax.report.plots import plot_latency, plot_load, plot_reuse, write_plots
from mooncake_jax.report.provenance import provenance
from mooncake_jax.report.rows import read_requests, request_row, write_requests
from mooncake_jax.report.spans import busy_fraction, busy_spans
from mooncake_jax.report.summary_json import flat_metrics, summary_dict, write_summary
from mooncake_jax.report.table import format_table, rich_table
from mooncake_jax.report.timeline import chrome_trace, write_timeline
from mooncake_jax.report.trackers import (
    JsonlTracker,
    JsonlTrackerConfig,
    NoTracker,
    NoTrackerConfig,
    Tracker,
    TrackerConfig,
    WandbTracker,
    WandbTrackerConfig,
)

__all__ = [
    "Goodput",
    "JsonlTracker",
    "JsonlTrackerConfig",
    "NoTracker",
    "NoTrackerConfig",
    "RequestLatency",
    "Reuse",
    "Statistics",
    "Summary",
    "Tracker",
    "TrackerConfig",
    "WandbTracker",
    "WandbTrackerConfig",
    "busy_fraction",
    "busy_spans",
    "check_record",
    "chrome_trace",
    "flat_metrics",
    "format_table",
    "measure",
    "plot_latency",
    "plot_load",
    "plot_reuse",
    "provenance",
    "read_requests",
    "request_row",
    "rich_table",
    "summarize",
    "summary_dict",
    "write_plots",
    "write_requests",
    "write_run",
    "write_summary",
    "write_timeline",
]
