"""A run's output folder: everything a finished run leaves behind, written in one place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mooncake_jax.report.metrics import Summary, end_of, summarize
from mooncake_jax.report.plots import write_plots
from mooncake_jax.report.rows import write_requests
from mooncake_jax.report.spans import busy_fraction, busy_spans
from mooncake_jax.report.summary_json import flat_metrics, write_summary
from mooncake_jax.report.timeline import write_timeline
from mooncake_jax.report.trackers import NoTracker, Tracker
from mooncake_jax.types import SLO, RequestRecord, Span


def write_run(
    folder: Path,
    records: Sequence[RequestRecord],
    slo: SLO,
    *,
    busy: Sequence[Span] = (),
    utilisation: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    tracker: Tracker | None = None,
) -> Summary:
    """Writes requests.jsonl, summary.json, timeline.json and plots/*.png into `folder` (made if missing); returns the summary.

    `busy` are spans of what each instance did; without them, they follow from the requests' spans. `utilisation` is each
    instance's busy fraction; without it, it follows from `busy`. `provenance` (see `provenance()`) goes into summary.json.
    `tracker` gets the final numbers, the plots and summary.json; finishing it is left to the caller.

    Raises ValueError if a record breaks its contract; requests.jsonl is written before, so that the record can be looked at.
    """
    tracker = tracker or NoTracker()
    folder.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("writing the run's folder", total=4)
        write_requests(folder / "requests.jsonl", records)
        progress.advance(task)
        if utilisation is None:
            utilisation = _utilisation(records, busy or busy_spans(records))
        summary = summarize(records, slo, utilisation)
        write_summary(folder / "summary.json", summary, provenance)
        progress.advance(task)
        write_timeline(folder / "timeline.json", records, busy)
        progress.advance(task)
        plots = write_plots(folder / "plots", records, summary, busy)
        progress.advance(task)
    tracker.summary(flat_metrics(summary))
    for path in (*plots, folder / "summary.json"):
        tracker.artifact(path)
    return summary


def _utilisation(records: Sequence[RequestRecord], busy: Sequence[Span]) -> Mapping[str, float]:
    start = min((record.arrival for record in records), default=0.0)
    end = max((end_of(record) for record in records), default=0.0)
    return busy_fraction(busy, start, end)
