"""Simulates a cluster on a trace: `python scripts/simulate.py workload=mooncake workload.path=conversation`."""

import contextlib
from collections.abc import Callable, Iterator

from mooncake_jax import experiments, launch, report, simulate
from mooncake_jax.config import SimulateSettings, make
from mooncake_jax.sched import Decision


def main(settings: SimulateSettings, run: launch.Run) -> None:
    if settings.experiment is not None:
        experiment(settings, run)
        return
    tracker = make(settings.tracker, "tracker", report.TrackerConfig).build(run.folder, run.settings)
    try:
        with launch.progress() as show, decisions(settings, run) as log:
            show("reading the workload", 0, None)
            done = simulate.run(settings, lambda arrived, total: show("simulating", arrived, total), log)
        summary = simulate.write(done, run.folder, tracker, report.provenance(settings.workload.seed))
    finally:
        tracker.finish()
    print(report.format_table(summary))
    for line in simulate.remarks(done):
        print(line)
    print(run.folder)


def experiment(settings: SimulateSettings, run: launch.Run) -> None:
    """Makes a published table or figure, and prints the paper's numbers beside ours."""
    chosen = make(settings.experiment, "experiment", experiments.Experiment)
    with launch.progress() as show:
        found = chosen.run(experiments.Lab(run.folder, show))
    for comparison in found.comparisons:
        report.write_comparison(run.folder, comparison)
        print(report.format_comparison(comparison))
    for line in found.remarks:
        print(line)
    for plot in found.plots:
        print(plot)
    print(run.folder)


@contextlib.contextmanager
def decisions(settings: SimulateSettings, run: launch.Run) -> Iterator[Callable[[Decision], None] | None]:
    """Writes decisions.jsonl if the settings ask for it."""
    if not settings.log_decisions:
        yield None
        return
    with (run.folder / "decisions.jsonl").open("w", encoding="utf-8") as file:
        yield lambda decision: file.write(decision.to_json() + "\n")


if __name__ == "__main__":
    launch.run(main, "simulate")
