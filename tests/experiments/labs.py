"""Experiments from conf/experiment, run in this process on workloads of a test's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from mooncake_jax import launch
from mooncake_jax.config import make, register
from mooncake_jax.experiments import Experiment, Lab, Report
from tests.support import published_trace


def starts_of_traces(folder: Path, requests: int) -> Path:
    """A folder, for MOONCAKE_JAX_TRACES, with the first requests of the published traces; skips the test without them."""
    for name in ("conversation", "synthetic"):
        with published_trace(name).open(encoding="utf-8") as file:
            (folder / f"{name}_trace.jsonl").write_text("".join(islice(file, requests)), encoding="utf-8")
    return folder


@contextmanager
def laboratory(folder: Path, *overrides: str) -> Iterator[Lab]:
    """A lab whose user gave `overrides` on the command line."""
    register()
    with initialize_config_dir(str(launch.CONF), version_base="1.3"):
        config = compose("simulate", list(overrides), return_hydra_config=True)
        config.hydra.overrides.task = list(overrides)
        HydraConfig.instance().set_config(config)
        try:
            yield Lab(folder)
        finally:
            HydraConfig.instance().cfg = None
    GlobalHydra.instance().clear()


def report_of(name: str, folder: Path, *overrides: str) -> Report:
    with laboratory(folder, f"+experiment={name}", *overrides) as lab:
        return make(lab.settings().experiment, "experiment", Experiment).run(lab)


def ours(report: Report, comparison: int = 0) -> dict[str, float]:
    return {row.label: row.ours for row in report.comparisons[comparison].rows}
