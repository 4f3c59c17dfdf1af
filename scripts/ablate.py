"""Gathers a sweep into one table, plots, and a wandb group: `python scripts/ablate.py folder=multirun/DATE/TIME`."""

from pathlib import Path

from rich.console import Console

from mooncake_jax import launch, report
from mooncake_jax.config import AblateSettings, make


def main(settings: AblateSettings, run: launch.Run) -> None:
    tracking = make(settings.tracker, "tracker", report.TrackerConfig)
    sweep = report.read_sweep(Path(settings.folder), settings.metrics)
    folder = Path(settings.folder) / "ablation"
    report.write_ablation(folder, sweep, settings.metrics)
    with launch.progress() as show:
        show("drawing the plots", 0, None)
        report.plot_sweep(folder, sweep, settings.metrics)
        show("telling the tracker", 0, None)
        report.track_sweep(folder, sweep, tracking)
    console = Console()
    console.print(report.ablation_table(sweep, settings.metrics), width=None if console.is_terminal else 120)
    if sweep.unfinished:
        print(f"{len(sweep.unfinished)} of {len(sweep.points)} runs have not finished: {', '.join(sweep.unfinished)}.")
    print(folder)


if __name__ == "__main__":
    launch.run(main, "ablate")
