"""Downloads a model or a trace: `python scripts/fetch.py model=smollm2_135m`, `python scripts/fetch.py trace=conversation`."""

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from mooncake_jax import launch
from mooncake_jax.config import FetchSettings
from mooncake_jax.errors import UserError


def main(settings: FetchSettings, run: launch.Run) -> None:
    from mooncake_jax.models.fetch import TRACES, fetch_model, fetch_trace

    if settings.model.name is None and settings.trace is None:
        raise UserError(f"nothing to fetch; add model=smollm2_135m or trace=NAME, where NAME is one of {', '.join(TRACES)}")
    if settings.model.name is not None:
        with launch.progress() as show:
            path = fetch_model(settings.model.name, log=lambda line: show(line, 0, None))
        print(path)
    if settings.trace is not None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=launch.stderr, transient=True) as bar:
            task = bar.add_task(f"{settings.trace} trace")
            path = fetch_trace(settings.trace, lambda done, total: bar.update(task, completed=done, total=total))
        print(path)


if __name__ == "__main__":
    launch.run(main, "fetch")
