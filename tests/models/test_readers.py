"""Readers of Hugging Face folders and GGUF files: right names, right shapes, right numbers, clear refusals."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mooncake_jax.errors import UserError
from mooncake_jax.models import RopeScaling, open_checkpoint, parameter_shapes

FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")
WriteGguf = Callable[..., Path]


@pytest.fixture
def family(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a family's folder, to be damaged."""
    return lambda name: Path(shutil.copytree(golden / "families" / name, tmp_path / name))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_a_family_has_its_name_and_shape(golden: Path, name: str) -> None:
    checkpoint = open_checkpoint(golden / "families" / name)
    shapes = parameter_shapes(checkpoint.config)
    assert set(checkpoint.names) == set(shapes)
    assert {name: checkpoint.read(name).shape for name in checkpoint.names} == shapes
    assert ("lm_head.kernel" in shapes) == (name != "llama3")
    assert ("layers.0.q.bias" in shapes) == (name == "qwen2")
    assert ("layers.1.k_norm.scale" in shapes) == (name == "qwen3")


def test_numbers_and_dtypes_are_those_of_the_file(golden: Path) -> None:
    qwen3 = load_file(golden / "families/qwen3/model.safetensors")
    checkpoint = open_checkpoint(golden / "families/qwen3")
    q = checkpoint.read("layers.1.q.kernel")
    assert q.dtype == ml_dtypes.bfloat16
    x = np.arange(64, dtype=np.float32)
    heads = np.einsum("i,ihd->hd", x, q.astype(np.float32))
    np.testing.assert_allclose(heads.ravel(), qwen3["model.layers.1.self_attn.q_proj.weight"].astype(np.float32) @ x, rtol=1e-5)
    o = checkpoint.read("layers.0.o.kernel").astype(np.float32)
    mixed = np.einsum("hd,hdo->o", heads, o)
    stored = qwen3["model.layers.0.self_attn.o_proj.weight"].astype(np.float32)
    np.testing.assert_allclose(mixed, stored @ heads.ravel(), rtol=1e-4, atol=1e-3)
    assert open_checkpoint(golden / "families/mistral").read("final_norm.scale").dtype == np.float32  # float16 there


def test_the_tokens_that_end_a_turn_come_from_generation_config(family: Callable[[str], Path]) -> None:
    folder = family("llama3")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert open_checkpoint(folder).config.eos_ids == (2, 5)


def test_a_copied_folder_keeps_its_identity_and_changed_weights_lose_it(family: Callable[[str], Path], golden: Path) -> None:
    folder = family("llama3")
    before = open_checkpoint(golden / "families/llama3").config.identity
    assert open_checkpoint(folder).config.identity == before
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1}, folder / "model.safetensors")
    assert open_checkpoint(folder).config.identity != before


@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_and_hugging_face_give_the_same_parameters(golden: Path, write_gguf: WriteGguf, name: str) -> None:
    expected = open_checkpoint(golden / "families" / name)
    found = open_checkpoint(write_gguf(name))
    assert set(found.names) == set(expected.names)
    for tensor in expected.names:
        np.testing.assert_array_equal(found.read(tensor), expected.read(tensor).astype(np.float32), err_msg=tensor)


def test_gguf_rope_factors_of_llama3_become_its_scaling(write_gguf: WriteGguf) -> None:
    # head_dim 8, θ = 500 000 and the scaling of Llama 3.1, by the branches of llama.cpp's converter.
    frequencies = 500_000.0 ** (-np.arange(0, 8, 2) / 8)
    factors = []
    for wavelength in 2 * np.pi / frequencies:
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        middle = 1 / ((1 - smooth) / 8.0 + smooth)
        factors.append(1.0 if wavelength < 8192 / 4.0 else 8.0 if wavelength > 8192 else middle)
    path = write_gguf(
        "llama3",
        fields={"llama.rope.freq_base": 500_000.0},
        tensors={"rope_freqs.weight": np.array(factors, np.float32)},
    )
    assert open_checkpoint(path).config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def test_gguf_linear_scaling(write_gguf: WriteGguf) -> None:
    path = write_gguf("llama3", fields={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert open_checkpoint(path).config.rope_scaling == RopeScaling("linear", 4.0)


def test_the_real_smollm2_opens(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    config = checkpoint.config
    assert (config.layers, config.hidden, config.q_heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab, config.mlp, config.rope_theta, config.tie_embeddings) == (49152, 1536, 100_000.0, True)
    assert (config.max_positions, config.eos_ids, config.bos_id) == (8192, (2,), 1)
    assert checkpoint.read("layers.29.k.kernel").shape == (576, 3, 64)
    assert checkpoint.read("embed.embedding").dtype == np.float32


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"neither config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 20, 2_000, -1])
def test_a_truncated_gguf_file(write_gguf: WriteGguf, keep: int) -> None:
    path = write_gguf("qwen3")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"qwen3\.gguf is no GGUF file, or is cut short"):
        open_checkpoint(path)


def test_a_gguf_file_without_a_tensor(write_gguf: WriteGguf) -> None:
    with pytest.raises(UserError, match=r"blk\.1\.ffn_up\.weight \(for layers\.1\.up\.kernel\) is missing"):
        open_checkpoint(write_gguf("qwen2", drop="blk.1.ffn_up.weight"))
    with pytest.raises(UserError, match=r"token_embd\.weight"):
        open_checkpoint(write_gguf("qwen2", drop="token_embd.weight"))


def test_a_gguf_file_with_a_tensor_of_another_shape(write_gguf: WriteGguf) -> None:
    path = write_gguf("qwen2", tensors={"blk.0.attn_k.weight": np.zeros((16, 64), np.float32)})
    with pytest.raises(UserError, match=r"blk\.0\.attn_k\.weight.*\(16, 64\).*\(32, 64\)"):
        open_checkpoint(path)


def test_a_gguf_file_with_tensors_the_decoder_has_no_place_for(write_gguf: WriteGguf) -> None:
    path = write_gguf("llama3", tensors={"blk.0.ffn_gate_inp.weight": np.zeros((8, 64), np.float32)})
    with pytest.raises(UserError, match=r"no place.*ffn_gate_inp"):
        open_checkpoint(path)


def test_gguf_quantisation_is_undone_or_refused(write_gguf: WriteGguf, golden: Path) -> None:
    weights = open_checkpoint(golden / "families/qwen2").read("layers.0.up.kernel").astype(np.float32).T
    q8 = gguf.quantize(np.ascontiguousarray(weights), gguf.GGMLQuantizationType.Q8_0)
    name = "blk.0.ffn_up.weight"
    path = write_gguf("qwen2", tensors={name: q8}, raw={name: gguf.GGMLQuantizationType.Q8_0})
    np.testing.assert_allclose(open_checkpoint(path).read("layers.0.up.kernel").T, weights, atol=0.01)

    blocks = np.zeros((48, 2 * 40), np.uint8)
    path = write_gguf("qwen2", tensors={name: blocks}, raw={name: gguf.GGMLQuantizationType.Q8_1})
    with pytest.raises(UserError, match=r"blk\.0\.ffn_up\.weight is quantised as Q8_1"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"qwen3.attention.sliding_window": 128}, "sliding-window"),
        ({"qwen3.rope.scaling.type": "yarn"}, "'yarn'"),
        ({"qwen3.rope.dimension_count": 12}, "12 of 24 dimensions"),
        ({"qwen3.block_count": 0}, "block_count"),
        ({"split.count": 3}, "one of 3 pieces"),
    ],
)
def test_gguf_metadata_the_decoder_cannot_serve(write_gguf: WriteGguf, fields: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        open_checkpoint(write_gguf("qwen3", fields=fields))


def test_a_gguf_file_of_another_architecture(write_gguf: WriteGguf) -> None:
    with pytest.raises(UserError, match=r"architecture 'mamba' is not supported; supported are llama, qwen2, qwen3"):
        open_checkpoint(write_gguf("qwen3", arch="mamba"))


def test_gguf_rope_factors_of_another_scaling_are_refused(write_gguf: WriteGguf) -> None:
    with pytest.raises(UserError, match=r"rope_freqs\.weight"):
        open_checkpoint(write_gguf("llama3", tensors={"rope_freqs.weight": np.array([1, 2, 3, 4], np.float32)}))


@pytest.mark.parametrize("keep", [0, 4, 300, -1])
def test_a_truncated_safetensors_file(family: Callable[[str], Path], keep: int) -> None:
    file = family("llama3") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors is no safetensors file, or is cut short"):
        open_checkpoint(file.parent)


def test_a_missing_shard(family: Callable[[str], Path]) -> None:
    folder = family("qwen2")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"Shard .*model-00002-of-00002\.safetensors is missing"):
        open_checkpoint(folder)


def test_a_folder_without_weights_or_with_a_broken_index(family: Callable[[str], Path]) -> None:
    folder = family("qwen2")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="no weight_map"):
        open_checkpoint(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"neither model\.safetensors"):
        open_checkpoint(folder)


def test_a_folder_whose_config_is_not_json(family: Callable[[str], Path]) -> None:
    folder = family("qwen2")
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not valid JSON"):
        open_checkpoint(folder)


def test_a_safetensors_file_without_a_tensor_or_with_a_wrong_one(family: Callable[[str], Path]) -> None:
    folder = family("qwen3")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_norm.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"q_norm\.weight \(for layers\.0\.q_norm\.scale\) is missing"):
        open_checkpoint(folder)
    save_file({**tensors, name: np.ones(7, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"q_norm\.weight.*\(7,\).*\(24,\)"):
        open_checkpoint(folder)
    save_file({**tensors, name: np.ones(24, np.int8)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="is I8"):
        open_checkpoint(folder)
    save_file({**tensors, "model.layers.0.self_attn.o_proj.bias": np.ones(64, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"no place.*o_proj\.bias"):
        open_checkpoint(folder)


def test_an_unknown_model_type_in_a_folder(family: Callable[[str], Path]) -> None:
    folder = family("qwen3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "rwkv"}))
    with pytest.raises(UserError, match=r"'rwkv' is not supported"):
        open_checkpoint(folder)


def test_reading_a_tensor_that_is_not_there(golden: Path) -> None:
    with pytest.raises(UserError, match=r"no tensor layers\.9\.q\.kernel"):
        open_checkpoint(golden / "families/qwen3").read("layers.9.q.kernel")
