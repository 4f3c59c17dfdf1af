"""Where numbers go while a run goes on: wandb, a JSONL file, or nowhere. Each has a config that Hydra can select."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mooncake_jax.errors import UserError

METRICS_FILE = "metrics.jsonl"


@runtime_checkable
class Tracker(Protocol):
    """Takes the numbers of one run. Steps never go back; artifacts come after the last step; `finish` is called once."""

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Numbers as they are at `step`."""
        ...

    def summary(self, metrics: Mapping[str, float | int]) -> None:
        """Final numbers of the run."""
        ...

    def artifact(self, path: Path) -> None:
        """A file of the run's folder to keep with the run; a PNG is shown as a plot."""
        ...

    def finish(self) -> None:
        """Flushes and closes."""
        ...


@runtime_checkable
class TrackerConfig(Protocol):
    """What all tracker configs offer."""

    def build(self, folder: Path, config: Mapping[str, Any] | None = None) -> Tracker:
        """Starts the tracker of the run in `folder`; `config` is the run's resolved configuration as plain values."""
        ...


class NoTracker:
    """Forgets everything."""

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        pass

    def summary(self, metrics: Mapping[str, float | int]) -> None:
        pass

    def artifact(self, path: Path) -> None:
        pass

    def finish(self) -> None:
        pass


class JsonlTracker:
    """Appends each log as a line {"step": ..., name: number, ...} to metrics.jsonl in the run's folder, at once.

    Numbers that are not finite become null. Summary and artifacts are in the folder already.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / METRICS_FILE).open("w", encoding="utf-8", buffering=1)
        self._step = 0

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Raises ValueError if `step` is lower than one before: wandb would drop such a line without a word."""
        if step < self._step:
            raise ValueError(f"step {step} is logged after step {self._step}; steps must not go back")
        self._step = step
        numbers = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")

    def summary(self, metrics: Mapping[str, float | int]) -> None:
        pass

    def artifact(self, path: Path) -> None:
        pass

    def finish(self) -> None:
        self._file.close()


class WandbTracker:
    """A wandb run, its files in `folder`/wandb. It writes metrics.jsonl too, so that the folder is whole without wandb."""

    def __init__(self, settings: "WandbTrackerConfig", folder: Path, config: Mapping[str, Any]):
        import wandb

        self._jsonl = JsonlTracker(folder)
        self._image = wandb.Image
        self._run = wandb.init(
            dir=str(folder),
            project=settings.project,
            group=settings.group,
            name=settings.name,
            tags=list(settings.tags),
            mode=settings.mode,
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(
                silent=settings.mode != "online", console="off", disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        self._jsonl.log(metrics, step)
        self._run.log(dict(metrics), step=step)

    def summary(self, metrics: Mapping[str, float | int]) -> None:
        self._run.summary.update(dict(metrics))

    def artifact(self, path: Path) -> None:
        if path.suffix == ".png":
            self._run.log({f"plots/{path.stem}": self._image(str(path))})
        else:
            copy = shutil.copy(path, self._run.dir)  # saved from elsewhere it would be a link, which does not travel
            self._run.save(copy, base_path=self._run.dir, policy="now")

    def finish(self) -> None:
        self._jsonl.finish()
        self._run.finish()


@dataclass(frozen=True)
class NoTrackerConfig:
    """Track nothing; the run's folder still gets everything but metrics.jsonl."""

    def build(self, folder: Path, config: Mapping[str, Any] | None = None) -> Tracker:
        return NoTracker()


@dataclass(frozen=True)
class JsonlTrackerConfig:
    """Track into metrics.jsonl."""

    def build(self, folder: Path, config: Mapping[str, Any] | None = None) -> Tracker:
        return JsonlTracker(folder)


@dataclass(frozen=True)
class WandbTrackerConfig:
    """Track into wandb, offline unless told otherwise (`wandb sync FOLDER/wandb/offline-run-*` uploads later)."""

    project: str = "mooncake_jax"
    group: str | None = None
    """Runs compared with each other, such as the points of one sweep."""
    name: str | None = None
    """Name of the run; wandb makes one up if None."""
    tags: list[str] = field(default_factory=list)
    mode: str = "offline"
    """`offline` (files only, no network) or `online`."""

    def __post_init__(self) -> None:
        if self.mode not in ("offline", "online"):
            raise UserError(f"tracker.mode is {self.mode!r}; choose offline or online")

    def build(self, folder: Path, config: Mapping[str, Any] | None = None) -> Tracker:
        return WandbTracker(self, folder, config or {})
