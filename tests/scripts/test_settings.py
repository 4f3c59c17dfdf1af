"""The settings under conf/: what the documented overrides come to."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from mooncake_jax import config, launch
from mooncake_jax.config import read, register
from mooncake_jax.runtime import InstancesConfig, MeshShape
from mooncake_jax.sched import (
    AdmissionPolicy,
    Damping,
    DecodePolicy,
    EarlyRejection,
    Estimator,
    Hysteresis,
    PairingPolicy,
    QueueOrder,
    ReplicationPolicy,
    RolePolicy,
)


def settings(script: str, *overrides: str) -> Any:
    register()
    with initialize_config_dir(str(launch.CONF), version_base="1.3"):
        return read(compose(script, list(overrides)))


def test_the_documented_command_line():
    got = settings(
        "replay",
        "model=smollm2_135m",
        "cluster=demo",
        "workload=mooncake",
        "workload.path=FILE",
        "workload.scale=0.015625",
        "workload.limit=200",
    )
    assert got.cluster.prefill == InstancesConfig(2, MeshShape(3))
    assert got.cluster.decode == InstancesConfig(2, MeshShape(1))
    assert (got.workload.path, got.workload.scale, got.workload.limit) == ("FILE", 1 / 64, 200)


def test_short_names_of_the_cluster_reach_the_engine():
    got = settings("replay", "cluster.block_size=32", "cluster.prefill.count=1", "cluster.host_pool.blocks=7", "slo.tbt=0.25")
    assert got.cluster.engine.block_size == 32
    assert (got.cluster.prefill.count, got.cluster.host_pool.blocks, got.slo.tbt) == (1, 7, 0.25)


@pytest.mark.parametrize("cluster", ["demo", "small", "pipeline"])
def test_every_cluster_fits_eight_devices(cluster: str):
    assert settings("generate", f"cluster={cluster}", "prompts=[x]").cluster.devices <= 8


PROTOCOLS = {
    "pairing": PairingPolicy,
    "decode_choice": DecodePolicy,
    "admission": AdmissionPolicy,
    "estimator": Estimator,
    "replication": ReplicationPolicy,
    "roles": RolePolicy,
    "queue_order": QueueOrder,
}
POLICIES = [
    (path.parent.name, path.stem)
    for path in sorted((Path(launch.CONF) / "conductor").glob("*/*.yaml"))
    if path.stem not in ("custom", "regression", "roofline")  # which need more than their file: test_profiles.py
]


@pytest.mark.parametrize(("group", "name"), POLICIES)
def test_every_policy_of_the_groups_can_be_made(group: str, name: str):
    component = getattr(settings("replay", f"conductor/{group}={name}").conductor, group)
    config.make(component, group, PROTOCOLS[group])


def test_policies_that_wrap_another_take_any_that_judges_by_a_load():
    got = settings(
        "replay",
        "conductor/admission=hysteresis",
        "conductor/admission@conductor.admission.policy=damping",
        "conductor/admission@conductor.admission.policy.policy=early_rejection",
        "conductor.admission.policy.policy.threshold=0.9",
    )
    made = config.make(got.conductor.admission, "conductor.admission", AdmissionPolicy)
    assert isinstance(made, Hysteresis)
    assert isinstance(made.policy, Damping)
    assert isinstance(made.policy.policy, EarlyRejection)
    assert (made.low, made.policy.threshold) == (0.8, 0.9)


@pytest.mark.parametrize("name", ["device", "throttled"])
def test_every_messenger_can_be_made(name: str):
    assert hasattr(config.make(settings("replay", f"messenger={name}").messenger, "messenger"), "send")


@pytest.mark.parametrize("name", ["none", "jsonl", "wandb"])
def test_every_tracker_can_be_made(name: str):
    assert hasattr(config.make(settings("replay", f"tracker={name}").tracker, "tracker"), "build")


TEXTS = (
    "Hello, world!",
    "What's up?",
    "[a] {b: c} = (d)",
    r"a \' b\\",
    "costs ${HOME} $5",
    'a "word"',
    "end\\",
    "日本",
    "null",
)


@pytest.mark.parametrize("text", TEXTS)
def test_prompts_need_no_quotes_for_hydra(text: str):
    arguments = launch.quote_texts([f"prompt={text}", "max_tokens=3", "prompt=and, more"])
    got = settings("generate", *arguments)
    assert (got.prompts, got.max_tokens) == ([text, "and, more"], 3)


def test_a_question_needs_no_quotes_for_hydra():
    assert settings("replay", *launch.quote_texts(["ask=What's this, then?"])).ask == "What's this, then?"
    assert settings("replay", *launch.quote_texts(["ask=null"])).ask is None
