"""load_params and Orbax: parameters arrive in the asked dtype, on the asked devices, each device with its own part only."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.models import Checkpoint, load_params, open_checkpoint, open_tokenizer, orbax, save_checkpoint

FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")
MakeTarget = Callable[..., dict[str, jax.ShapeDtypeStruct]]


def assert_placed(params: dict[str, jax.Array], target: dict[str, jax.ShapeDtypeStruct], source: Checkpoint) -> None:
    """Same numbers as the source after the cast, in the target's sharding, and no device holds more than its part."""
    assert set(params) == set(target)
    for name, wanted in target.items():
        array, expected = params[name], np.asarray(source.read(name), wanted.dtype)
        assert (array.shape, array.dtype, array.sharding) == (wanted.shape, wanted.dtype, wanted.sharding)
        for shard in array.addressable_shards:
            assert shard.data.size == array.size // len(wanted.sharding.device_set)
            np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index], err_msg=name)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_device_gets_its_part(golden: Path, make_target: MakeTarget, family: str, devices: int) -> None:
    checkpoint = open_checkpoint(golden / "families" / family)
    target = make_target(checkpoint.config, devices, jnp.float32)
    assert_placed(load_params(checkpoint, target), target, checkpoint)


def test_weights_are_cast_to_the_target(golden: Path, make_target: MakeTarget) -> None:
    checkpoint = open_checkpoint(golden / "families/llama3")
    target = make_target(checkpoint.config, 2, jnp.bfloat16)
    assert_placed(load_params(checkpoint, target), target, checkpoint)


def test_a_stage_loads_its_layers_only_and_each_tensor_once(golden: Path, make_target: MakeTarget) -> None:
    checkpoint, read = open_checkpoint(golden / "families/qwen3"), []
    counting = dataclasses.replace(checkpoint, read_tensor=lambda name: read.append(name) or checkpoint.read(name))
    everything = make_target(checkpoint.config, 2, jnp.float32, first=4)
    target = {name: wanted for name, wanted in everything.items() if name.startswith(("layers.1.", "final_norm", "lm_head"))}
    steps = []
    params = load_params(counting, target, progress=lambda done, total: steps.append((done, total)))
    assert_placed(params, target, checkpoint)
    assert sorted(read) == sorted(target)
    assert steps == [(i + 1, len(target)) for i in range(len(target))]


def test_a_target_that_does_not_fit_is_refused_with_both_shapes(golden: Path, make_target: MakeTarget, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(golden / "families/qwen2")
    target = make_target(checkpoint.config, 1, jnp.float32)
    save_checkpoint(tmp_path / "saved", checkpoint.config, load_params(checkpoint, target))
    wrong = {"layers.0.k.kernel": jax.ShapeDtypeStruct((64, 4, 16), jnp.float32, sharding=target["layers.0.k.kernel"].sharding)}
    unknown = {"layers.7.k.kernel": wrong["layers.0.k.kernel"]}
    for source in (checkpoint, open_checkpoint(tmp_path / "saved")):
        with pytest.raises(UserError, match=r"layers\.0\.k\.kernel has shape \(64, 2, 16\), but \(64, 4, 16\) is wanted"):
            load_params(source, wrong)
        with pytest.raises(UserError, match=r"no tensor layers\.7\.k\.kernel"):
            load_params(source, unknown)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("saved_on", [1, 4])
def test_orbax_restores_onto_other_meshes(
    golden: Path, make_target: MakeTarget, tmp_path: Path, saved_on: int, devices: int
) -> None:
    source = open_checkpoint(golden / "families/qwen2")
    save_checkpoint(tmp_path / "saved", source.config, load_params(source, make_target(source.config, saved_on, jnp.float32)))
    saved = open_checkpoint(tmp_path / "saved")
    assert saved.config == source.config
    assert saved.config.identity == source.config.identity
    assert saved.names == source.names
    target = make_target(saved.config, devices, jnp.float32, first=4)
    assert_placed(load_params(saved, target), target, source)


def test_orbax_restores_a_stage_in_another_dtype(golden: Path, make_target: MakeTarget, tmp_path: Path) -> None:
    source = open_checkpoint(golden / "families/llama3")
    save_checkpoint(tmp_path / "saved", source.config, load_params(source, make_target(source.config, 2, jnp.float32)))
    everything = make_target(source.config, 2, jnp.bfloat16, first=2)
    target = {name: wanted for name, wanted in everything.items() if name.startswith("layers.1.")}
    assert_placed(orbax.restore(tmp_path / "saved", target), target, source)


def test_orbax_reads_single_tensors_to_the_host(golden: Path, make_target: MakeTarget, tmp_path: Path) -> None:
    source = open_checkpoint(golden / "families/qwen3")
    save_checkpoint(tmp_path / "saved", source.config, load_params(source, make_target(source.config, 2, jnp.bfloat16)))
    found = open_checkpoint(tmp_path / "saved").read("layers.0.o.kernel")
    np.testing.assert_array_equal(found, source.read("layers.0.o.kernel"))


def test_orbax_takes_the_tokenizer_along(golden: Path, make_target: MakeTarget, tmp_path: Path, smollm2: Path) -> None:
    source, tokenizer = open_checkpoint(golden / "families/qwen3"), open_tokenizer(smollm2)
    params = load_params(source, make_target(source.config, 1, jnp.float32))
    save_checkpoint(tmp_path / "saved", source.config, params, tokenizer)
    again = open_tokenizer(tmp_path / "saved")
    messages = [{"role": "user", "content": "Two  spaces, 2024 and ünïcode 🦙"}]
    assert again.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    assert (again.eos_ids, again.special) == (tokenizer.eos_ids, tokenizer.special)


def test_orbax_refuses_to_overwrite_and_to_save_half_a_model(golden: Path, make_target: MakeTarget, tmp_path: Path) -> None:
    source = open_checkpoint(golden / "families/qwen3")
    params = load_params(source, make_target(source.config, 1, jnp.float32))
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(UserError, match="exists already"):
        save_checkpoint(tmp_path / "used", source.config, params)
    del params["layers.1.up.kernel"]
    with pytest.raises(UserError, match=r"layers\.1\.up\.kernel"):
        save_checkpoint(tmp_path / "half", source.config, params)
    assert not (tmp_path / "half").exists()


def test_a_damaged_orbax_folder(golden: Path, make_target: MakeTarget, tmp_path: Path) -> None:
    source = open_checkpoint(golden / "families/qwen3")
    target = make_target(source.config, 1, jnp.float32)
    folder = tmp_path / "saved"
    save_checkpoint(folder, source.config, load_params(source, target))
    saved = open_checkpoint(folder)

    for file in folder.glob("params/**/d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="params is damaged"):
        load_params(saved, {"final_norm.scale": target["final_norm.scale"]})
    (folder / "model.json").write_text('{"name": "half"}')
    with pytest.raises(UserError, match=r"model\.json cannot be understood"):
        open_checkpoint(folder)
    (folder / "params/_METADATA").unlink()
    with pytest.raises(UserError, match="holds no Orbax checkpoint"):
        open_checkpoint(folder)
    with pytest.raises(UserError, match=r"no model\.json"):
        orbax.open_orbax(tmp_path / "nowhere")
