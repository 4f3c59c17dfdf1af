"""The roofline: against the paper's single-request figures, and against what is published of machines and models."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mooncake_jax.errors import UserError
from mooncake_jax.sched import Chip, HardwareModel, ModelShape, Node, Roofline
from mooncake_jax.sched.profiles import read_record

CONF = Path(__file__).resolve().parents[2] / "conf"
MODELS = ("llama2_70b", "llama3_8b", "llama3_70b", "qwen3_235b_a22b", "deepseek_v3", "kimi_k2", "smollm2_135m")
HARDWARE = ("a800x8", "h800x8", "h200x8", "tpu_v5e_8", "tpu_v5p_8", "tpu_v6e_8", "tpu_7x_8")

# Read from the papers' vector drawings: FAST'25 Fig 14 (s, LLaMA3-70B on 8 x A800), arXiv v3 Fig 2 (normalised, LLaMA2-70B).
LENGTHS = [8192 * 2**i for i in range(5)]
FIG14_PREFILL = [1.002, 2.056, 4.479, 10.587, 27.512]
FIG14_PREFILL_95 = [0.135, 0.226, 0.407, 0.881, 2.328]
FIG14_DECODE_128 = [3.394, 3.433, 3.521, 3.659, 3.939]
FIG2_PREFILL = [0.034, 0.071, 0.112, 0.158, 0.207, 0.259, 0.315, 0.373, 0.437, 0.505, 0.577, 0.653, 0.734, 0.82, 0.908, 1.0]
FIG2_DECODE = [0.801, 0.802, 0.802, 0.826, 0.832, 0.84, 0.861, 0.876, 0.891, 0.918, 0.936, 0.938, 0.96, 1.0, 0.992, 0.995]


def shape(name: str) -> ModelShape:
    return read_record(ModelShape, OmegaConf.to_container(OmegaConf.load(CONF / f"model/{name}.yaml")["shape"]), "model.shape")


def node(name: str) -> Node:
    return read_record(Node, OmegaConf.to_container(OmegaConf.load(CONF / f"hardware/{name}.yaml")), "hardware")


def worst(predicted: list[float], measured: list[float]) -> float:
    return max(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))


def test_llama3_70b_on_a800_takes_the_papers_prefill_times_within_2_percent():
    roofline = Roofline(shape("llama3_70b"), node("a800x8"), 8)
    assert worst([roofline.prefill_s(n, 0) for n in LENGTHS], FIG14_PREFILL) < 0.02


def test_with_95_percent_cached_it_is_within_8_percent_once_loading_the_prefix_is_added():
    # In the paper's data loading adds to computing: p * 327,680 B at 128 GB/s and 0.06 s (mooncake.md 3.19).
    roofline = Roofline(shape("llama3_70b"), node("a800x8"), 8)
    cached = [int(0.95 * n) for n in LENGTHS]
    predicted = [roofline.prefill_s(n, p) + p * 327_680 / 128e9 + 0.06 for n, p in zip(LENGTHS, cached)]
    assert worst(predicted, FIG14_PREFILL_95) < 0.08


def test_decoding_128_tokens_takes_the_papers_times_within_3_percent():
    roofline = Roofline(shape("llama3_70b"), node("a800x8"), 8)
    assert worst([sum(roofline.decode_step_s(1, n + k) for k in range(128)) for n in LENGTHS], FIG14_DECODE_128) < 0.03


def test_the_shape_of_both_stages_is_the_papers_within_9_percent():
    roofline = Roofline(shape("llama2_70b"), node("a800x8"), 8)
    prefill = [roofline.prefill_s(8192 * k, 0) / roofline.prefill_s(131072, 0) for k in range(1, 17)]
    assert worst(prefill, FIG2_PREFILL) < 0.09
    decode = [roofline.decode_step_s(b, 8192 * b) / roofline.decode_step_s(16, 16 * 8192) for b in range(1, 17)]
    assert worst(decode, [value / FIG2_DECODE[-1] for value in FIG2_DECODE]) < 0.09


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("llama2_70b", 327_680),
        ("llama3_70b", 327_680),
        ("llama3_8b", 131_072),
        ("qwen3_235b_a22b", 192_512),
        ("deepseek_v3", 70_272),
        ("kimi_k2", 70_272),
        ("smollm2_135m", 30 * 2 * 3 * 64 * 4),
    ],
)
def test_kv_bytes_of_published_models(name: str, kv_bytes: int):
    assert shape(name).kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize("name", MODELS)
def test_published_parameter_counts_follow_from_the_sizes(name: str):
    m = shape(name)
    if m.latent_dim:  # MLA of DeepSeek-V3 and Kimi K2: queries are compressed to 1,536
        attention = m.hidden * 1536 + 1536 * m.heads * (m.head_dim + m.rope_dim) + m.hidden * (m.latent_dim + m.rope_dim)
        attention += m.latent_dim * m.heads * 2 * m.head_dim + m.heads * m.head_dim * m.hidden
    else:
        attention = m.hidden * m.head_dim * 2 * (m.heads + m.kv_heads)
    dense, expert = 3 * m.hidden * m.ffn, 3 * m.hidden * m.expert_ffn
    moe_layers = m.layers - m.dense_layers if m.experts else 0
    always = m.layers * attention + (m.layers - moe_layers) * dense
    always += moe_layers * (m.shared_experts * expert + m.hidden * m.experts) + m.vocab * m.hidden
    embedding = 0 if name == "smollm2_135m" else m.vocab * m.hidden
    assert always + moe_layers * m.experts * expert + embedding == pytest.approx(m.params_total, rel=2e-3)
    assert always + moe_layers * m.active_experts * expert == pytest.approx(m.params_active, rel=2e-3)
    assert m.params_always == pytest.approx(always, rel=5e-3)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_that_fits_has_a_cost_on_every_machine(model: str, hardware: str):
    m, machine = shape(model), node(hardware)
    if m.params_total * m.weight_bytes > machine.hbm_bytes:
        with pytest.raises(UserError, match="GB of weights do not fit"):
            Roofline(m, machine, machine.chips)
        return
    roofline = Roofline(m, machine, machine.chips)
    assert isinstance(roofline, HardwareModel)
    # No machine computes faster than its peak, nor reads faster than its memory.
    assert roofline.prefill_s(8192, 0) > 2 * 8192 * m.params_always / (machine.chips * machine.chip.flops)
    assert roofline.decode_step_s(64, 64 * 8192) > 64 * 8192 * m.kv_bytes_per_token / (
        machine.chips * machine.chip.hbm_bandwidth
    )


MOE = Roofline(shape("qwen3_235b_a22b"), node("h200x8"), 8)


@given(st.integers(1, 512), st.integers(0, 10**7))
def test_decode_steps_are_exactly_their_line(batch: int, context: int):
    line = MOE.decode_line(batch)
    assert MOE.decode_step_s(batch, context) == line.seconds + line.seconds_per_token * context


def test_arrays_are_estimated_element_by_element():
    cached, batch = np.array([0, 100, 8000]), np.array([1, 8, 300])
    assert MOE.prefill_s(8192, cached).tolist() == [MOE.prefill_s(8192, int(p)) for p in cached]
    assert MOE.decode_step_s(batch, 10**5).tolist() == pytest.approx([MOE.decode_step_s(int(b), 10**5) for b in batch])


def test_a_batch_reads_the_distinct_experts_that_its_tokens_draw():
    model = ModelShape(1, 64, 4, 4, 16, 64, 256, 3e5, 5e4, experts=16, active_experts=2, expert_ffn=64)
    machine = Node(Chip(1e18, 1e12, 1e12, 1e15), 1, 1e9, 1e9, 1e9, 1e9)
    roofline = Roofline(model, machine, 1, memory=1.0, layer_overhead=0.0)
    rng = np.random.default_rng(0)
    for batch in (1, 4, 32):
        draws = [len(np.unique(rng.random((batch, 16)).argsort()[:, :2])) for _ in range(2000)]
        weights = model.params_always + np.mean(draws) * 3 * 64 * 64
        assert roofline.decode_step_s(batch, 0) == pytest.approx(2 * weights / 1e12, rel=0.01)


def test_latent_attention_pays_for_full_heads_in_prefill_and_for_latent_ones_in_decode():
    model, machine = shape("deepseek_v3"), node("h200x8")
    roofline = Roofline(model, machine, 8, attention=1.0, memory=1.0)
    flops = 8 * machine.chip.flops
    grown = roofline.prefill_s(2 * 131072, 131072) - roofline.prefill_s(131072, 0)
    assert grown == pytest.approx(131072**2 * 61 * 128 * 2 * (192 + 128) / flops, rel=1e-6)
    # 128 heads do 278,528 operations on the 1,152 bytes of a token and layer: reading them is the shorter part on an H200.
    assert roofline.decode_line(8).seconds_per_token == pytest.approx(61 * 128 * 2 * (576 + 512) / flops)


def test_more_chips_a_layer_make_a_pass_shorter_and_more_stages_only_make_it_fit():
    model, machine = shape("llama3_8b"), node("a800x8")
    one, eight = Roofline(model, machine, 1), Roofline(model, machine, 8)
    assert one.prefill_s(8192, 0) / 8 < eight.prefill_s(8192, 0) < one.prefill_s(8192, 0)
    staged = Roofline(shape("deepseek_v3"), machine, 8, pipeline=2)
    # one hand-over of 1,000 activations of 7,168 numbers of 2 bytes
    assert staged.prefill_s(1000, 0) == pytest.approx(
        Roofline(shape("deepseek_v3"), machine, 8, pipeline=4).prefill_s(1000, 0) - 2 * 1000 * 7168 * 2 / 87e9
    )
    assert staged.transfer_s(87 * 10**9, 0, 1) == pytest.approx(1.0)


def test_settings_are_read_and_what_cannot_be_is_told():
    model, machine = OmegaConf.load(CONF / "model/llama3_8b.yaml")["shape"], OmegaConf.load(CONF / "hardware/h200x8.yaml")
    settings = {"model": OmegaConf.to_container(model), "node": OmegaConf.to_container(machine)}
    assert Roofline.from_config(**settings, memory=0.9) == Roofline(shape("llama3_8b"), node("h200x8"), 8, memory=0.9)
    for change, told in (
        ({"model": None}, r"needs model\.shape; choose a model"),
        ({"node": None}, r"\+hardware@conductor\.estimator\.node"),
        ({"node": {"chips": 8}}, "hardware cannot be read: .*chip"),
        ({"node": settings["node"] | {"nics": 4}}, r"hardware\.nics is not known; it must be one of chip, chips"),
        ({"mfu": 0.5}, "roofline mfu is not known"),
        ({"matmul": 1.5}, "matmul=1.5 must be more than 0 and at most 1"),
        ({"tensor": 16}, "tensor=16 must be from 1 to the 8 chips"),
        ({"pipeline": 99}, "pipeline=99 must be from 1 to the 32 layers"),
        ({"model": settings["model"] | {"heads": 30}}, "heads=30 is not a multiple"),
        ({"model": settings["model"] | {"experts": 8}}, "experts=8 needs active_experts from 1 to 8"),
        ({"model": settings["model"] | {"params_active": 1e12}}, "params_active=1e\\+12 does not fit"),
    ):
        with pytest.raises(UserError, match=told):
            Roofline.from_config(**(settings | change))
    with pytest.raises(UserError, match=r"hardware\.chip\.flops is inf"):
        Chip(math.inf, 1.0, 1.0, 1.0)
