"""A run's output folder: everything a finished run leaves behind, written in one place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mooncake_jax.report.columns import RequestColumns, columns_of
from mooncake_jax.report.metrics import Summary, bounds, summarize_columns
from mooncake_jax.report.plots import write_plots
from mooncake_jax.report.rows import write_columns, write_requests
from mooncake_jax.report.spans import Busy, busy_fraction, busy_spans
from mooncake_jax.report.summary_json import flat_metrics, write_summary
from mooncake_jax.report.timeline import write_timeline
from mooncake_jax.report.trackers import NoTracker, Tracker
from mooncake_jax.types import SLO, RequestRecord


def write_run(
    folder: Path,
    run: Sequence[RequestRecord] | RequestColumns,
    slo: SLO,
    *,
    busy: Busy = (),
    utilisation: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    digest: str | None = None,
    tracker: Tracker | None = None,
) -> Summary:
    """Writes requests.jsonl, summary.json, timeline.json and plots/*.png into `folder` (made if missing); returns the summary.

    `run` are a live run's records or a simulated run's columns; the timeline is written for records only, for columns have
    no spans. `busy` is what each instance did; without it, it follows from the records' spans. `utilisation` is each
    instance's busy fraction; without it, it follows from `busy`. `provenance` (see `provenance()`) and `digest`, a checksum of
    the results that equal runs share, go into summary.json. `tracker` gets the final numbers, the plots and summary.json;
    finishing it is left to the caller.

    Raises ValueError if a request breaks its contract; requests.jsonl is written before, so that it can be looked at.
    """
    tracker = tracker or NoTracker()
    folder.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("writing the run's folder", total=4)
        if isinstance(run, RequestColumns):
            write_columns(folder / "requests.jsonl", run)
            columns, doing = run, busy
        else:
            write_requests(folder / "requests.jsonl", run)
            columns, doing = columns_of(run), busy or busy_spans(run)
        progress.advance(task)
        if utilisation is None:
            utilisation = busy_fraction(doing, *bounds(columns))
        summary = summarize_columns(columns, slo, utilisation)
        write_summary(folder / "summary.json", summary, provenance, digest)
        progress.advance(task)
        if not isinstance(run, RequestColumns):
            write_timeline(folder / "timeline.json", run, () if isinstance(busy, Mapping) else busy)
        progress.advance(task)
        plots = write_plots(folder / "plots", run, summary, busy)
        progress.advance(task)
    tracker.summary(flat_metrics(summary))
    for path in (*plots, folder / "summary.json"):
        tracker.artifact(path)
    return summary
