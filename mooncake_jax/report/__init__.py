"""Metrics, tables, plots, timelines and trackers of a run, live or simulated. Imports no jax."""

from mooncake_jax.report.ablation import Point, Sweep, ablation_table, read_sweep, track_sweep, write_ablation
from mooncake_jax.report.ablation_plots import plot_sweep
from mooncake_jax.report.columns import STATUSES, Gaps, RequestColumns, check_columns, columns_of
from mooncake_jax.report.compare import (
    Comparison,
    Row,
    comparison_dict,
    format_comparison,
    markdown_comparison,
    write_comparison,
)
from mooncake_jax.report.comparison_plots import plot_bars, plot_curves
from mooncake_jax.report.distribution import Statistics, weighted_percentiles
from mooncake_jax.report.folder import write_run
from mooncake_jax.report.latency import TTFT_STAGES, RequestLatency, check_record, measure
from mooncake_jax.report.metrics import Goodput, Reuse, Summary, bounds, summarize, summarize_columns
from mooncake_jax.report.plots import plot_latency, plot_load, plot_reuse, write_plots
from mooncake_jax.report.provenance import provenance
from mooncake_jax.report.rows import read_columns, read_requests, request_row, write_columns, write_requests
from mooncake_jax.report.spans import busy_fraction, busy_spans, mean_open
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
    "STATUSES",
    "TTFT_STAGES",
    "Comparison",
    "Gaps",
    "Goodput",
    "JsonlTracker",
    "JsonlTrackerConfig",
    "NoTracker",
    "NoTrackerConfig",
    "Point",
    "RequestColumns",
    "RequestLatency",
    "Reuse",
    "Row",
    "Statistics",
    "Summary",
    "Sweep",
    "Tracker",
    "TrackerConfig",
    "WandbTracker",
    "WandbTrackerConfig",
    "ablation_table",
    "bounds",
    "busy_fraction",
    "busy_spans",
    "check_columns",
    "check_record",
    "chrome_trace",
    "columns_of",
    "comparison_dict",
    "flat_metrics",
    "format_comparison",
    "format_table",
    "markdown_comparison",
    "mean_open",
    "measure",
    "plot_bars",
    "plot_curves",
    "plot_latency",
    "plot_load",
    "plot_reuse",
    "plot_sweep",
    "provenance",
    "read_columns",
    "read_requests",
    "read_sweep",
    "request_row",
    "rich_table",
    "summarize",
    "summarize_columns",
    "summary_dict",
    "track_sweep",
    "weighted_percentiles",
    "write_ablation",
    "write_columns",
    "write_comparison",
    "write_plots",
    "write_requests",
    "write_run",
    "write_summary",
    "write_timeline",
]
