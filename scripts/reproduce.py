"""Makes the paper's tables and figures, one after another, and one report of all: `python scripts/reproduce.py`."""

import sys
from pathlib import Path

from mooncake_jax import launch
from mooncake_jax.config import ReproduceSettings
from mooncake_jax.experiments import reproduction


def main(settings: ReproduceSettings, run: launch.Run) -> None:
    names = reproduction.choose(launch.CONF / "experiment", settings.only)
    done = []
    with launch.progress() as show:
        for number, name in enumerate(names):
            show(name, number, len(names))
            one = reproduction.reproduce(
                name,
                launch.CONF / "experiment" / f"{name}.yaml",
                run.folder,
                settings.overrides,
                lambda line, name=name, number=number: show(f"{name}: {line}", number, len(names)),
            )
            done.append(one)
            launch.stderr.print(f"{name}: {one.verdict} ({one.seconds:.0f} s)", markup=False)
            reproduction.write(run.folder, done)  # so that what is done is there when a later one is broken off
    print((run.folder / "report.md").read_text(encoding="utf-8").partition("\n## ")[0])
    print(Path(run.folder / "report.md"))
    print(run.folder)
    if any(one.error for one in done):
        sys.exit(1)


if __name__ == "__main__":
    launch.run(main, "reproduce")
