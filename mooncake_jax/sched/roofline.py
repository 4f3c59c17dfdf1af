"""How long a published machine would take for a published model, from peak speeds and the shares of them that are reached."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Real

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import DecodeLine, Numbers, Seconds
from mooncake_jax.sched.profiles import ModelShape, Node, read_record

_ACTIVATION_BYTES = 2
"""bfloat16."""


@dataclass(frozen=True)
class Roofline:
    """Seconds of a model on a node: each part of a pass takes the longer of computing and reading, and the parts add up.

    With c = n - p new tokens, t chips of a stage, and L layers:

        matrices      max(2 * params_active * c / flops, bytes of the weights touched / hbm_bandwidth), once a pass
        attention     max(pairs of query and key / flops, bytes of KV / hbm_bandwidth); prefill has (n^2 - p^2) / 2 pairs
                      (causal: the masked half is not computed), a decode step has one a token of context
        all-reduces   2 L a pass, each of 2 (t - 1) / t * c * hidden numbers a chip (ring)
        overhead      L * layer_overhead

    A pass over c tokens touches experts * (1 - (1 - active / experts)^c) routed experts of a layer, if tokens choose them
    evenly and independently. A decode step is a part that depends on the batch plus a part proportional to context: reading
    KV cannot overlap with the matrices of the same layer, which wait for it, so that the sum is the right form as well as the
    affine one that `decode_line` promises. MLA computes prefill with full keys and values and decode on the latent ones
    (DeepSeek-V2 §2.1). KV is spread evenly over chips, by heads or, where heads do not suffice, by requests.

    Pipeline stages cut the layers. They do not shorten one pass through all of them, which is what is estimated here; it pays
    for handing activations from node to node.

    The defaults of the shares are single-request measurements of LLaMA3-70B on 8 x A800 (FAST Fig 14), read part by part:
    the term in n^2 gives .73 for attention, as FlashAttention-2 reports for A100 (50 to 73 %); the term in context of
    decoding gives .58 for memory; .65 for matrices is what the term in n leaves after all-reduces at .8; the rest of a
    decode step at batch 1 is 1.5e-4 s a layer. Newer software and compiled TPU programs have far less `layer_overhead`.

    Raises UserError for a share outside (0, 1], a mesh that the node or the model cannot have, or weights that do not fit.
    """

    model: ModelShape
    node: Node
    tensor: int
    """Chips that share every layer."""
    pipeline: int = 1
    """Stages, each on a node of its own."""
    matmul: float | int = 0.65
    """Share of peak FLOP/s in matrix products with weights."""
    attention: float | int = 0.73
    """Share of peak FLOP/s in attention."""
    memory: float | int = 0.58
    """Share of HBM bandwidth."""
    interconnect: float | int = 0.8
    """Share of the bandwidth between the chips of a node."""
    layer_overhead: float | int = 1.5e-4
    """s a layer and pass, whatever its size: launching kernels, starting two all-reduces."""

    def __post_init__(self) -> None:
        for name in ("matmul", "attention", "memory", "interconnect"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"roofline {name}={getattr(self, name)} must be more than 0 and at most 1")
        if not 0 <= self.layer_overhead < 1:
            raise UserError(f"roofline layer_overhead={self.layer_overhead} s must be from 0 to less than 1")
        if not 1 <= self.tensor <= self.node.chips:
            raise UserError(f"roofline tensor={self.tensor} must be from 1 to the {self.node.chips} chips of a node")
        if not 1 <= self.pipeline <= self.model.layers:
            raise UserError(f"roofline pipeline={self.pipeline} must be from 1 to the {self.model.layers} layers of the model")
        weights = self.model.params_total * self.model.weight_bytes
        room = self.tensor * self.pipeline * self.node.chip.hbm_bytes
        if weights > room:
            raise UserError(
                f"{weights / 1e9:.0f} GB of weights do not fit the {room / 1e9:.0f} GB of HBM of tensor={self.tensor} × "
                f"pipeline={self.pipeline} chips; raise pipeline or take other hardware"
            )

    @classmethod
    def from_config(cls, model: Any, node: Any, tensor: int | None = None, **settings: Any) -> "Roofline":
        """As the settings describe it: `model` and `node` as nodes of the settings, `tensor` by default all chips of the node.

        Raises UserError if either is missing or not as `ModelShape` and `Node` need it, or a setting is unknown.
        """
        if model is None:
            raise UserError("a roofline needs model.shape; choose a model that has one, such as model=llama3_70b")
        if node is None:
            raise UserError("a roofline needs hardware; for a live run add +hardware@conductor.estimator.node=a800x8")
        shape, hardware = read_record(ModelShape, model, "model.shape"), read_record(Node, node, "hardware")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in settings if name not in known]:
            raise UserError(f"roofline {unknown[0]} is not known; it must be one of {', '.join(known)}")
        return cls(shape, hardware, hardware.chips if tensor is None else tensor, **settings)

    def prefill_s(self, tokens: Numbers, cached: Numbers) -> Seconds:
        rates, new = self._rates, tokens - cached
        pairs = 0.5 * (tokens * tokens - cached * cached)
        attention = _longer(pairs * rates.prefill_pair, (tokens + new) * rates.kv_token)
        return rates.overhead + self._matrices(new) + attention + new * rates.communication

    def decode_line(self, batch: Numbers) -> DecodeLine:
        rates = self._rates
        return DecodeLine(rates.overhead + self._matrices(batch) + batch * rates.communication, rates.context)

    def decode_step_s(self, batch: Numbers, context: Numbers) -> Seconds:
        line = self.decode_line(batch)
        return line.seconds + line.seconds_per_token * context

    def transfer_s(self, nbytes: Numbers, src: int, dst: int | Real[np.ndarray, "*batch"]) -> Seconds:
        return nbytes / self.node.nic_bandwidth

    def _matrices(self, tokens: Numbers) -> Seconds:
        rates, experts = self._rates, self.model.experts
        touched = (1 - (1 - self.model.active_experts / experts) ** tokens) if experts else 0.0
        return _longer(tokens * rates.matmul_token, rates.weights + touched * rates.experts)

    @cached_property
    def _rates(self) -> "_Rates":
        model, chip = self.model, self.node.chip
        flops, bandwidth = self.tensor * chip.flops, self.tensor * self.memory * chip.hbm_bandwidth
        latent, full = model.latent_dim + model.rope_dim, model.head_dim
        per_head = 2 * (full + model.rope_dim + full)
        per_head_decode = 2 * (latent + model.latent_dim) if model.latent_dim else per_head
        pair = model.layers * model.heads / (flops * self.attention)
        activations = model.hidden * _ACTIVATION_BYTES
        ring = 4 * model.layers * (self.tensor - 1) / self.tensor / (chip.interconnect_bandwidth * self.interconnect)
        kv_token = model.kv_bytes_per_token / bandwidth
        return _Rates(
            overhead=float(model.layers * self.layer_overhead),
            matmul_token=2 * model.params_active / (flops * self.matmul),
            weights=model.params_always * model.weight_bytes / bandwidth,
            experts=model.moe_layers * model.experts * model.params_expert * model.weight_bytes / bandwidth,
            prefill_pair=pair * per_head,
            kv_token=kv_token,
            context=max(pair * per_head_decode, kv_token),
            communication=activations * (ring + (self.pipeline - 1) / self.node.nic_bandwidth),
        )


@dataclass(frozen=True)
class _Rates:
    """Seconds."""

    overhead: float
    """A pass."""
    matmul_token: float
    """Computing a new token's products with weights."""
    weights: float
    """Reading the weights that every pass needs."""
    experts: float
    """Reading all routed experts."""
    prefill_pair: float
    """Computing the attention of one query to one key, all layers and heads."""
    kv_token: float
    """Reading or writing a token's KV."""
    context: float
    """A decode step's attention to one token of context."""
    communication: float
    """All-reduces, and hand-overs between stages, of a new token."""


def _longer(computing: Numbers, reading: Numbers) -> Seconds:
    if isinstance(computing, np.ndarray) or isinstance(reading, np.ndarray):
        return np.maximum(computing, reading)
    return max(computing, reading)
