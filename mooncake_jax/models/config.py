"""What a model is: sizes and switches of a Llama-like decoder, whatever file they came from.

The families differ in little: qwen2 adds biases to q, k and v; qwen3 normalises q and k per head; mistral is llama
under another name; SmolLM says `llama`. What none of these switches can express is refused with a `UserError`
instead of being computed wrongly.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash
from jaxtyping import Float

from mooncake_jax.errors import UserError

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type` values of Hugging Face that are supported. SmolLM and SmolLM2 are `llama`."""

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""`general.architecture` values of GGUF files that are supported. Mistral is `llama` there."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the positions the model was first trained on."""

    kind: Literal["llama3", "linear"]
    factor: float
    """linear: every frequency is divided by it. llama3: the low ones are."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_max_positions / low_freq_factor are wholly scaled."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_max_positions / high_freq_factor are left alone."""
    original_max_positions: int = 8192
    """llama3: context length of the first training."""

    def divisors(self, frequencies: Float[np.ndarray, "half_dim"]) -> Float[np.ndarray, "half_dim"]:
        """What each rotary frequency is divided by. Source: `rope_type` llama3 and linear of Hugging Face transformers."""
        if self.kind == "linear":
            return np.full_like(frequencies, self.factor)
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        return 1.0 / ((1.0 - smooth) / self.factor + smooth)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder. Every reader of checkpoints makes one; the decoder needs nothing else."""

    name: str
    """For people: the folder's name, or `general.name` of a GGUF file."""
    model_type: str
    """One of `MODEL_TYPES`."""
    layers: int
    hidden: int
    """Width of the residual stream."""
    mlp: int
    """Width of the gated feed-forward layer."""
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    """Rows of the embedding, padding rows included."""
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    qkv_bias: bool = False
    """q, k and v projections have biases (qwen2)."""
    qk_norm: bool = False
    """RMS norm over head_dim of q and k before the rotation (qwen3)."""
    tie_embeddings: bool = False
    """The output projection is the embedding, transposed; the checkpoint then has no `lm_head.kernel`."""
    max_positions: int = 2048
    """Longest context the model was made for, in tokens."""
    eos_ids: tuple[int, ...] = ()
    """Tokens that end a generation."""
    bos_id: int | None = None
    weights: str = ""
    """Fingerprint of the weights, set by the readers; empty for weights that come from no file."""

    def __post_init__(self) -> None:
        if self.q_heads % self.kv_heads:
            raise UserError(f"{self.name}: {self.q_heads} query heads cannot be shared by {self.kv_heads} KV heads evenly.")
        if self.head_dim % 2:
            raise UserError(f"{self.name}: head_dim {self.head_dim} is odd; rotary embedding needs pairs.")

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of keys and values of one token over all layers, `itemsize` bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    @property
    def identity(self) -> str:
        """Seeds block keys: equal iff sizes, switches and weights are. The name counts only without a fingerprint."""
        facts = dataclasses.asdict(self)
        if self.weights:
            del facts["name"]
        return f"{self.model_type}-{xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())}"

    def rope_frequencies(self) -> Float[np.ndarray, "half_dim"]:
        """Radians a position turns each pair (i, i + head_dim/2), float32, scaling applied. Rotate-half layout."""
        frequencies = self.rope_theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        if self.rope_scaling is not None:
            frequencies = frequencies / self.rope_scaling.divisors(frequencies)
        return frequencies.astype(np.float32)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """Inverse of `to_json`. Raises ValueError, KeyError or TypeError on other text."""
        facts = json.loads(text)
        scaling = facts["rope_scaling"] and RopeScaling(**facts["rope_scaling"])
        return cls(**{**facts, "rope_scaling": scaling, "eos_ids": tuple(facts["eos_ids"])})

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], name: str = "config.json", weights: str = "") -> "ModelConfig":
        """From the contents of a Hugging Face `config.json`, of older (`rope_scaling`) or newer (`rope_parameters`) make.

        Defaults of absent keys are those of transformers' configuration classes.
        Raises UserError for an unknown model type, a missing size, or a feature the decoder does not have.
        """
        model_type = config.get("model_type")
        if model_type not in MODEL_TYPES:
            raise UserError(f"{name}: model type {model_type!r} is not supported; supported are {', '.join(MODEL_TYPES)}.")
        _refuse_hf_features(config, name)
        heads = _number(config, "num_attention_heads", name)
        hidden = _number(config, "hidden_size", name)
        theta, scaling = _hf_rope(config, name)
        default_positions = {"llama": 2048, "mistral": 131072}.get(model_type, 32768)
        default_head_dim = 128 if model_type == "qwen3" else hidden // heads
        return cls(
            name=name,
            model_type=model_type,
            layers=_number(config, "num_hidden_layers", name),
            hidden=hidden,
            mlp=_number(config, "intermediate_size", name),
            q_heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or default_head_dim,
            vocab=_number(config, "vocab_size", name),
            rope_theta=theta,
            rope_scaling=scaling,
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            qkv_bias=model_type == "qwen2",
            qk_norm=model_type == "qwen3",
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            max_positions=config.get("max_position_embeddings", default_positions),
            eos_ids=token_ids(config.get("eos_token_id")),
            bos_id=config.get("bos_token_id"),
            weights=weights,
        )

    @classmethod
    def from_gguf(
        cls,
        fields: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        rope_factors: Float[np.ndarray, "half_dim"] | None = None,
        name: str = "GGUF file",
        weights: str = "",
    ) -> "ModelConfig":
        """From the key-value fields of a GGUF file, its tensors' shapes (rows first) and its `rope_freqs.weight`, if any.

        Raises UserError for an unknown architecture, a missing key, or a feature the decoder does not have.
        """
        arch = fields.get("general.architecture")
        if arch not in GGUF_ARCHITECTURES:
            raise UserError(f"{name}: architecture {arch!r} is not supported; supported are {', '.join(GGUF_ARCHITECTURES)}.")
        own = {key.removeprefix(f"{arch}."): value for key, value in fields.items() if key.startswith(f"{arch}.")}
        if own.get("attention.sliding_window"):
            raise UserError(f"{name}: sliding-window attention ({arch}.attention.sliding_window) is not supported.")
        if "token_embd.weight" not in shapes:
            raise UserError(f"{name}: tensor token_embd.weight (for embed.embedding) is missing from the file.")
        heads = _number(own, "attention.head_count", name)
        hidden = _number(own, "embedding_length", name)
        head_dim = own.get("attention.key_length", hidden // heads)
        if own.get("rope.dimension_count", head_dim) != head_dim:
            raise UserError(
                f"{name}: rotary embedding over {own['rope.dimension_count']} of {head_dim} dimensions is not supported."
            )
        config = cls(
            name=str(fields.get("general.name", name)),
            model_type=arch,
            layers=_number(own, "block_count", name),
            hidden=hidden,
            mlp=_number(own, "feed_forward_length", name),
            q_heads=heads,
            kv_heads=_number(own, "attention.head_count_kv", name) if "attention.head_count_kv" in own else heads,
            head_dim=head_dim,
            vocab=shapes["token_embd.weight"][0],
            rope_theta=own.get("rope.freq_base", 10000.0),
            norm_eps=own.get("attention.layer_norm_rms_epsilon", 1e-6),
            qkv_bias=arch == "qwen2",
            qk_norm=arch == "qwen3",
            tie_embeddings="output.weight" not in shapes,
            max_positions=_number(own, "context_length", name),
            eos_ids=token_ids([fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]),
            bos_id=fields.get("tokenizer.ggml.bos_token_id"),
            weights=weights,
        )
        return dataclasses.replace(config, rope_scaling=_gguf_scaling(config, own, rope_factors, name))


def token_ids(value: int | list[int | None] | None) -> tuple[int, ...]:
    """An id, a list of ids with gaps, or nothing, as a tuple without repetitions."""
    ids = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _number(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UserError(f"{name}: {key} must be a positive whole number, found {value!r}.")
    return value


def _refuse_hf_features(config: Mapping[str, Any], name: str) -> None:
    model_type = config["model_type"]
    window = config.get("sliding_window", 4096) if model_type == "mistral" else None
    if window is not None or config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise UserError(f"{name}: sliding-window attention is not supported; take a {model_type} whose sliding_window is null.")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UserError(f"{name}: weights quantised by {method} are not supported; take the float or a GGUF checkpoint.")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UserError(f"{name}: {key}=true is not supported for model type {model_type}.")
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"{name}: activation {config['hidden_act']!r} is not supported; only silu is.")


def _hf_rope(config: Mapping[str, Any], name: str) -> "tuple[float, RopeScaling | None]":
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if partial != 1.0:
        raise UserError(f"{name}: partial_rotary_factor {partial} is not supported.")
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling("linear", float(rope["factor"]))
        if kind == "llama3":
            low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
            original = int(rope["original_max_position_embeddings"])
            return theta, RopeScaling("llama3", float(rope["factor"]), low, high, original)
    except KeyError as missing:
        raise UserError(f"{name}: rope scaling of type {kind} lacks {missing}.") from missing
    raise UserError(f"{name}: rope scaling of type {kind!r} is not supported; supported are llama3 and linear.")


def _gguf_scaling(
    config: ModelConfig, own: Mapping[str, Any], rope_factors: Float[np.ndarray, "half_dim"] | None, name: str
) -> RopeScaling | None:
    """The scaling a GGUF file means by its keys, or by the divisors that converters of Llama 3.x store as a tensor."""
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if kind == "linear":
        return RopeScaling("linear", float(own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0))))
    if kind != "none":
        raise UserError(f"{name}: rope scaling of type {kind!r} is not supported; supported are llama3 and linear.")
    if rope_factors is None or np.all(rope_factors == 1.0):
        return None
    original = own.get("rope.scaling.original_context_length", 8192)
    guess = RopeScaling("llama3", float(rope_factors.max()), original_max_positions=original)
    unscaled = config.rope_frequencies().astype(np.float64)
    if rope_factors.shape != unscaled.shape or not np.allclose(guess.divisors(unscaled), rope_factors, rtol=1e-3):
        raise UserError(f"{name}: the factors in rope_freqs.weight are not those of llama3 scaling; no other is supported.")
    return guess
