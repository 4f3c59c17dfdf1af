import json

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.report import (
    JsonlTrackerConfig,
    NoTrackerConfig,
    Tracker,
    TrackerConfig,
    WandbTrackerConfig,
    plot_reuse,
    summarize,
)
from mooncake_jax.types import SLO


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def quiet_wandb(monkeypatch, tmp_path):
    """wandb that reports no errors home and keeps its caches in the test's folder."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("WANDB_MODE", raising=False)


def test_jsonl_tracker_writes_a_line_a_log_at_once(tmp_path):
    tracker = JsonlTrackerConfig().build(tmp_path / "run")
    tracker.log({"queue": 3, "load": 0.5}, 0)
    tracker.log({"queue": 4, "load": float("nan")}, 7)
    expected = [{"step": 0, "queue": 3.0, "load": 0.5}, {"step": 7, "queue": 4.0, "load": None}]
    assert lines_of(tmp_path / "run" / "metrics.jsonl") == expected
    tracker.finish()


def test_steps_that_go_back_raise(tmp_path):
    tracker = JsonlTrackerConfig().build(tmp_path)
    tracker.log({}, 5)
    with pytest.raises(ValueError, match="step 4 is logged after step 5"):
        tracker.log({}, 4)
    tracker.finish()


def test_no_tracker_leaves_nothing(tmp_path):
    tracker = NoTrackerConfig().build(tmp_path)
    tracker.log({"x": 1.0}, 0)
    tracker.summary({"x": 1.0})
    tracker.artifact(tmp_path)
    tracker.finish()
    assert list(tmp_path.iterdir()) == []


def test_offline_wandb_run_lies_in_the_run_folder_and_says_nothing(tmp_path, run, quiet_wandb, capfd):
    folder = tmp_path / "run"
    plot_reuse(folder / "reuse.png", summarize(run, SLO()))
    (folder / "summary.json").write_text("{}")
    settings = WandbTrackerConfig(project="tests", group="sweep", name="first", tags=["a"])
    tracker = settings.build(folder, {"cluster": {"prefill": 2}})
    assert isinstance(tracker, Tracker)
    tracker.log({"load": 0.25}, 3)
    tracker.summary({"goodput": 1.5})
    tracker.artifact(folder / "reuse.png")
    tracker.artifact(folder / "summary.json")
    tracker.finish()
    (offline,) = (folder / "wandb").glob("offline-run-*")
    (log,) = offline.glob("run-*.wandb")
    assert log.stat().st_size > 0
    assert (offline / "files" / "summary.json").read_text() == "{}"
    assert list(offline.glob("files/media/images/plots/reuse*.png"))
    assert lines_of(folder / "metrics.jsonl") == [{"step": 3, "load": 0.25}]
    assert "".join(capfd.readouterr()) == ""


def test_wandb_is_offline_by_default_and_unknown_modes_are_refused():
    assert WandbTrackerConfig().mode == "offline"
    with pytest.raises(UserError, match=r"dryrun.*choose offline"):
        WandbTrackerConfig(mode="dryrun")


@pytest.mark.parametrize("config", [NoTrackerConfig(), JsonlTrackerConfig(), WandbTrackerConfig(tags=["x"])])
def test_configs_are_schemas_that_hydra_can_hold(config):
    from omegaconf import OmegaConf

    assert isinstance(config, TrackerConfig)
    assert OmegaConf.to_object(OmegaConf.structured(config)) == config
