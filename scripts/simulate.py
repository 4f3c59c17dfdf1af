"""Simulates a cluster on a trace: `python scripts/simulate.py workload=mooncake workload.path=conversation`."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from mooncake_jax import experiments, launch, redecide, report, simulate
from mooncake_jax.config import SimulateSettings, make
from mooncake_jax.errors import UserError
from mooncake_jax.sched import Decision

SHOWN = 5
"""Differences that are printed; all are in differences.jsonl."""


def main(settings: SimulateSettings, run: launch.Run) -> None:
    if settings.experiment is not None:
        experiment(settings, run)
        return
    if settings.redecide is not None:
        decide_again(settings, run)
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
    if settings.log_decisions or settings.redecide is not None:
        raise UserError("log_decisions and redecide are for single runs; leave them out with +experiment=")
    chosen = make(settings.experiment, "experiment", experiments.Experiment)
    tracker = make(settings.tracker, "tracker", report.TrackerConfig).build(run.folder, run.settings)
    with launch.progress() as show:
        lab = experiments.Lab(run.folder, show)
        found = chosen.run(lab)
    experiments.write(found, run.folder)
    for comparison in found.comparisons:
        tracker.summary({f"{comparison.name}/{row.label}": row.ours for row in comparison.rows if row.ours is not None})
    for plot in found.plots:
        tracker.artifact(plot)
    tracker.finish()
    for comparison in found.comparisons:
        print(report.format_comparison(comparison))
    for line in found.remarks:
        print(line)
    for plot in found.plots:
        print(plot)
    print(f"digest {lab.digest(found)}")
    print(run.folder)


def decide_again(settings: SimulateSettings, run: launch.Run) -> None:
    """Decides a log again. Exits with 1 when some decisions come out differently."""
    settings = redecide.settings_of_log(settings, run.settings, HydraConfig.get().overrides.task)
    if settings.conductor.estimator is None:
        conductor = simulate.conductor_of(settings, simulate.hardware_of(settings))
    else:
        conductor = launch.make_conductor(settings.conductor, settings.slo)
    with launch.progress() as show:
        found = redecide.redecide_log(Path(settings.redecide), conductor, lambda done: show("deciding again", done, None))
    with (run.folder / "differences.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(difference.to_json() + "\n" for difference in found.differences)
    print(f"{found.identical} of {found.decisions} decisions are identical")
    for difference in found.differences[:SHOWN]:
        print(difference)
    if more := len(found.differences[SHOWN:]):
        print(f"... and {more} more differences")
    print(run.folder)
    if found.differences:
        sys.exit(1)


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
