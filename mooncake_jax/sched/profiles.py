"""What a cost model needs to know of a machine and of a model: published sizes and speeds, as frozen records.

Bandwidths are bytes per second, in one direction. `conf/hardware` and `conf/model` hold filled records with their sources.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mooncake_jax.errors import UserError


@dataclass(frozen=True)
class Chip:
    """One accelerator. Raises UserError for a value that is not positive and finite."""

    flops: float
    """Floating-point operations per second in bfloat16, without sparsity."""
    hbm_bytes: float
    hbm_bandwidth: float
    interconnect_bandwidth: float
    """What a chip sends to the others of its node: NVLink or ICI, one direction (half of what vendors add up)."""

    def __post_init__(self) -> None:
        _check("hardware.chip", self, positive=[field.name for field in fields(self)])


@dataclass(frozen=True)
class Node:
    """The machine that one instance runs on. Raises UserError for values out of range."""

    chip: Chip
    chips: int
    nic_bandwidth: float
    """Node to node, all NICs together."""
    host_to_device_bandwidth: float
    """DRAM to HBM, all chips together."""
    device_to_host_bandwidth: float
    dram_bytes: float
    """Lent to the KVCache pool."""
    disk_bytes: float = 0.0
    disk_bandwidth: float = 0.0
    """Reading; 0 where there is no disk."""

    def __post_init__(self) -> None:
        positive = ["chips", "nic_bandwidth", "host_to_device_bandwidth", "device_to_host_bandwidth"]
        _check("hardware", self, positive, ["dram_bytes", "disk_bytes", "disk_bandwidth"])

    @property
    def hbm_bytes(self) -> float:
        return self.chips * self.chip.hbm_bytes


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer, dense or mixture of experts. Raises UserError for sizes that do not fit together.

    KV of a token and layer is `2 * kv_heads * head_dim` numbers or, with multi-head latent attention (MLA, `latent_dim` > 0:
    DeepSeek-V3, Kimi K2), `latent_dim + rope_dim`.
    """

    layers: int
    hidden: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    """MLA: of the part of a key without position, and of a value."""
    ffn: int
    """Width of the dense feed-forward layers."""
    vocab: int
    params_total: float
    params_active: float
    """Parameters that a token is multiplied with, the output head included and the input embedding (a look-up) not."""
    experts: int = 0
    """Routed experts of a layer; 0 is a dense model."""
    active_experts: int = 0
    """Of them, how many a token visits."""
    shared_experts: int = 0
    """Experts that every token visits."""
    expert_ffn: int = 0
    """Width of one expert."""
    dense_layers: int = 0
    """Leading layers without experts."""
    latent_dim: int = 0
    """MLA: what keys and values are compressed to."""
    rope_dim: int = 0
    """MLA: the part of a key with position, shared by all heads."""
    weight_bytes: float = 2.0
    """Bytes a parameter."""
    kv_bytes: int = 2
    """Bytes a number of KV."""

    def __post_init__(self) -> None:
        positive = ["layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "params_total", "params_active"]
        rest = ["experts", "active_experts", "shared_experts", "expert_ffn", "dense_layers", "latent_dim", "rope_dim"]
        _check("model.shape", self, [*positive, "weight_bytes", "kv_bytes"], rest)
        if self.heads % self.kv_heads:
            raise UserError(f"model.shape.heads={self.heads} is not a multiple of model.shape.kv_heads={self.kv_heads}")
        if self.experts and not (0 < self.active_experts <= self.experts and self.expert_ffn):
            raise UserError(
                f"model.shape.experts={self.experts} needs active_experts from 1 to {self.experts} and expert_ffn of 1 or "
                f"more, but they are {self.active_experts} and {self.expert_ffn}"
            )
        if self.params_always <= 0 or self.params_active > self.params_total:
            raise UserError(
                f"model.shape.params_active={self.params_active:g} does not fit params_total={self.params_total:g} and the "
                f"{self.moe_layers * self.active_experts * self.params_expert:g} parameters of the experts a token visits"
            )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV of one token, all layers: 327,680 for LLaMA3-70B, as in FAST Table 1."""
        latent = self.latent_dim + self.rope_dim
        return self.layers * (latent if self.latent_dim else 2 * self.kv_heads * self.head_dim) * self.kv_bytes

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def params_expert(self) -> int:
        """Parameters of one expert of one layer: gate, up and down projection."""
        return 3 * self.hidden * self.expert_ffn

    @property
    def params_always(self) -> float:
        """Parameters that every token is multiplied with: all but routed experts and input embedding."""
        return self.params_active - self.moe_layers * self.active_experts * self.params_expert


def read_record[T](record: type[T], values: Any, where: str) -> T:
    """`values` if they are a `record` already, else the record that a mapping (a node of the settings) describes.

    Raises UserError if a field is missing or unknown.
    """
    if isinstance(values, record):
        return values
    if not isinstance(values, Mapping):
        raise UserError(f"{where} is {values}; it must be a record of {', '.join(field.name for field in fields(record))}")
    known = {field.name: field.type for field in fields(record)}
    if unknown := [name for name in values if name not in known]:
        raise UserError(f"{where}.{unknown[0]} is not known; it must be one of {', '.join(known)}")
    try:
        parts = {
            name: read_record(Chip, value, f"{where}.chip") if known[name] is Chip else known[name](value)
            for name, value in values.items()
        }
        return record(**parts)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} cannot be read: {error}") from error


def _check(where: str, record: Any, positive: Sequence[str], nonnegative: Sequence[str] = ()) -> None:
    for name in [*positive, *nonnegative]:
        value = getattr(record, name)
        if not 0 <= value < math.inf or (value == 0 and name in positive):
            raise UserError(
                f"{where}.{name} is {value}; it must be finite and {'more than 0' if name in positive else '0 or more'}"
            )
