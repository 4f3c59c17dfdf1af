"""The settings of models and machines, and the estimators that need more than their own file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from mooncake_jax import config, launch
from mooncake_jax.config import Component, ModelSource, make, read, register
from mooncake_jax.errors import UserError
from mooncake_jax.sched import (
    ClosedForm,
    DecodeSample,
    HardwareModel,
    ModelShape,
    Node,
    PrefillSample,
    Regression,
    Roofline,
    write_samples,
)

NAMES = {group: sorted(path.stem for path in (launch.CONF / group).glob("*.yaml")) for group in ("model", "hardware")}


@dataclass(frozen=True)
class Costs:
    """What of a simulation's settings is under test."""

    model: ModelSource = field(default_factory=ModelSource)
    hardware: Node = MISSING
    cost: Component = MISSING


def settings(script: str, *overrides: str) -> Any:
    register()
    node = OmegaConf.structured(Costs)
    config._open(node)
    ConfigStore.instance().store(name="costs_schema", node=node)
    defaults = ["costs_schema", {"model": "llama3_70b"}, {"hardware": "a800x8"}, {"cost": "a800x8_llama3_70b"}, "_self_"]
    ConfigStore.instance().store(name="costs", node={"defaults": defaults})
    with initialize_config_dir(str(launch.CONF), version_base="1.3"):
        return read(compose(script, list(overrides)))


def test_the_default_cost_model_is_that_of_the_paper():
    assert make(settings("costs").cost, "cost", HardwareModel) == ClosedForm()


@pytest.mark.parametrize("model", [name for name in NAMES["model"] if name != "custom"])
def test_every_model_has_a_shape(model: str):
    assert isinstance(settings("replay", f"model={model}").model.shape, ModelShape)


@pytest.mark.parametrize("hardware", NAMES["hardware"])
def test_every_machine_has_a_roofline(hardware: str):
    got = settings("costs", f"hardware={hardware}", "cost=roofline", "model=llama3_8b", "cost.memory=0.9")
    assert make(got.cost, "cost", HardwareModel) == Roofline(got.model.shape, got.hardware, 8, memory=0.9)


def test_sizes_of_models_and_machines_can_be_overridden():
    got = settings("costs", "model.shape.layers=40", "hardware.chip.hbm_bandwidth=1e12", "hardware.nic_bandwidth=25e9")
    assert (got.model.shape.layers, got.hardware.chip.hbm_bandwidth, got.hardware.nic_bandwidth) == (40, 1e12, 25e9)


def test_a_live_run_may_estimate_by_a_roofline():
    chosen = ("replay", "conductor/estimator=roofline")
    got = settings(*chosen, "+hardware@conductor.estimator.node=h200x8", "conductor.estimator.tensor=1")
    made = make(got.conductor.estimator, "conductor.estimator", HardwareModel)
    assert (made.node.chip.hbm_bytes, made.tensor, made.model) == (141e9, 1, got.model.shape)
    with pytest.raises(UserError, match=r"needs hardware; for a live run add \+hardware@conductor\.estimator\.node"):
        make(settings(*chosen).conductor.estimator, "conductor.estimator")


def test_a_live_run_may_estimate_by_the_samples_of_another(tmp_path: Path):
    path = tmp_path / "samples.csv"
    write_samples(path, [PrefillSample(100, 0, 1.0), DecodeSample(1, 100, 0.1)])
    got = settings("replay", "conductor/estimator=regression", f"conductor.estimator.path={path}")
    made = make(got.conductor.estimator, "conductor.estimator", HardwareModel)
    assert isinstance(made, Regression)
    assert made.prefill_s(50, 0) == pytest.approx(0.5)
    with pytest.raises(UserError, match=r"conductor\.estimator\.path has no value"):
        settings("replay", "conductor/estimator=regression")


def test_a_model_known_by_its_sizes_alone_cannot_run():
    with pytest.raises(UserError, match=r"give its weights by model\.path"):
        launch.open_model(settings("replay", "model=llama3_70b").model)
