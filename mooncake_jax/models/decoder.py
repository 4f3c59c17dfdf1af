"""The Llama family as one file: Llama 2/3, SmolLM2, Qwen2/2.5 (biases), Qwen3 (q/k norm), Mistral without window.

A `Decoder` is any contiguous slice of the model: the embedding, some layers, the head, each optional. The whole model
is the slice with everything; a pipeline stage or a layer group is another. Slices of equal shape share a graph
definition, and so one compiled program. Tokens are a flat axis: batches are ragged rows with positions of their own.

What attention does with K and V is the caller's: each layer hands (q, k, v, its KV state) to `attend` and gets the
mixed values and the new state back. The same layer code so serves chunked prefill and paged decode over pages, and a
plain forward over the sequence itself.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.sharding import partition

Attend = Callable[[Array, Array, Array, Any], tuple[Array, Any]]
"""(q [tokens, q_heads, dim], k and v [tokens, kv_heads, dim], state) → (mixed [tokens, q_heads, dim], state)."""


class Linear(nnx.Module):
    """x·kernel (+ bias), contracting the axes named `inputs` of the kernel."""

    def __init__(self, sizes: dict[str, int], inputs: int, rngs: nnx.Rngs, *, bias: bool = False, dtype: Any = jnp.float32):
        shape, axes = tuple(sizes.values()), tuple(sizes)
        fan_in = 1
        for size in shape[:inputs]:
            fan_in *= size
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * fan_in**-0.5, axes=axes)
        self.bias = (
            nnx.Param(jax.random.normal(rngs.params(), shape[inputs:], dtype) * 0.1, axes=axes[inputs:]) if bias else None
        )
        self.inputs = inputs

    def __call__(self, x: Array) -> Array:
        y = jnp.tensordot(x, self.kernel[...], self.inputs)
        return y if self.bias is None else y + jnp.expand_dims(self.bias[...], 0)


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    def __init__(self, size: int, axis: str, eps: float, dtype: Any):
        self.scale = nnx.Param(jnp.ones((size,), dtype), axes=(axis,))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...].astype(jnp.float32)
        return (y * scale.reshape((1,) * (y.ndim - 1) + scale.shape)).astype(x.dtype)


class Embed(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, dtype: Any):
        shape = (config.vocab, config.hidden)
        init = jax.random.normal(rngs.params(), shape, dtype) * config.hidden**-0.5
        self.embedding = nnx.Param(init, axes=("vocab", "hidden"))

    def __call__(self, tokens: Array) -> Array:
        return self.embedding[...][tokens]


def rotate(x: Float[Array, "tokens heads dim"], angles: Float[Array, "tokens half_dim"]) -> Float[Array, "tokens heads dim"]:
    """Rotary position embedding in the Hugging Face layout: dimension i pairs with i + dim/2."""
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class DecoderLayer(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, dtype: Any):
        c = config
        hidden, mlp, dim = {"hidden": c.hidden}, {"mlp": c.mlp}, {"head_dim": c.head_dim}
        q_heads, kv_heads = {"q_heads": c.q_heads}, {"kv_heads": c.kv_heads}
        self.attn_norm = RMSNorm(c.hidden, "hidden", c.norm_eps, dtype)
        self.q = Linear(hidden | q_heads | dim, 1, rngs, bias=c.qkv_bias, dtype=dtype)
        self.k = Linear(hidden | kv_heads | dim, 1, rngs, bias=c.qkv_bias, dtype=dtype)
        self.v = Linear(hidden | kv_heads | dim, 1, rngs, bias=c.qkv_bias, dtype=dtype)
        self.q_norm = RMSNorm(c.head_dim, "head_dim", c.norm_eps, dtype) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, "head_dim", c.norm_eps, dtype) if c.qk_norm else None
        self.o = Linear(q_heads | dim | hidden, 2, rngs, dtype=dtype)
        self.mlp_norm = RMSNorm(c.hidden, "hidden", c.norm_eps, dtype)
        self.gate = Linear(hidden | mlp, 1, rngs, dtype=dtype)
        self.up = Linear(hidden | mlp, 1, rngs, dtype=dtype)
        self.down = Linear(mlp | hidden, 1, rngs, dtype=dtype)

    def __call__(self, x: Array, angles: Array, state: Any, attend: Attend) -> tuple[Array, Any]:
        y = self.attn_norm(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed, state = attend(rotate(q, angles), rotate(k, angles), v, state)
        x = x + self.o(mixed)
        y = self.mlp_norm(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y)), state


class Decoder(nnx.Module):
    """A slice of the model: `embed` (tokens → activations), `layers` of them, `head` (activations → logits)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, *, layers: int, embed: bool, head: bool, dtype: Any):
        tied_head = head and config.tie_embeddings
        self.embed = Embed(config, rngs, dtype) if embed or tied_head else None
        self.layers = nnx.Dict({str(i): DecoderLayer(config, rngs, dtype) for i in range(layers)})
        self.final_norm = RMSNorm(config.hidden, "hidden", config.norm_eps, dtype) if head else None
        sizes = {"hidden": config.hidden, "vocab": config.vocab}
        self.lm_head = Linear(sizes, 1, rngs, dtype=dtype) if head and not config.tie_embeddings else None
        self.config = config

    def __call__(
        self, x: Array, positions: Int[Array, " tokens"], states: Sequence[Any], attend: Attend
    ) -> tuple[Float[Array, "tokens hidden"], list[Any]]:
        """Runs the layers over activations `x`; `states` holds one KV state a layer."""
        angles = positions[:, None].astype(jnp.float32) * self.config.rope_frequencies()[None, :]
        new = []
        for i, state in enumerate(states):
            x, state = self.layers[str(i)](x, angles, state, attend)
            new.append(state)
        return x, new

    def logits(self, x: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        """float32 logits of final activations."""
        x = self.final_norm(x)
        if self.lm_head is None:  # this order of operands: XLA's CPU backend is 5 times slower on one row the other way
            return jnp.dot(self.embed.embedding[...], x.T, preferred_element_type=jnp.float32).T
        return jnp.dot(x, self.lm_head.kernel[...], preferred_element_type=jnp.float32)


@lru_cache(maxsize=256)
def _abstract(config: ModelConfig, layers: int, embed: bool, head: bool, dtype: Any) -> tuple[nnx.GraphDef, nnx.State]:
    make = lambda: Decoder(config, nnx.Rngs(0), layers=layers, embed=embed, head=head, dtype=dtype)  # noqa: E731
    return nnx.split(nnx.eval_shape(make))


def bind(config: ModelConfig, params: dict[str, Array], *, layers: int, embed: bool = False, head: bool = False) -> Decoder:
    """The slice whose parameters are `params`, a flat dict with the slice's own layer numbers (`layers.0.q.kernel`)."""
    dtype = next(iter(params.values())).dtype
    graph, _ = _abstract(config, layers, embed, head, dtype)
    nested: dict = {}
    for name, value in params.items():
        at = nested
        *path, leaf = name.split(".")
        for part in path:
            at = at.setdefault(part, {})
        at[leaf] = value
    nested.setdefault("layers", {})
    return nnx.merge(graph, nnx.State(nested))


def _renumber(name: str, offset: int) -> str:
    if not name.startswith("layers."):
        return name
    _, index, rest = name.split(".", 2)
    return f"layers.{int(index) + offset}.{rest}"


def slice_params(params: dict[str, Array], layers: range, *, embed: bool = False, head: bool = False) -> dict[str, Array]:
    """The part of a model's (or stage's) flat parameters that a slice needs, layers renumbered from 0.

    `layers` are numbers as they stand in `params`. A tied head takes the embedding along.
    """
    out = {}
    for name, value in params.items():
        top = name.split(".")[0]
        if top == "layers":
            if int(name.split(".")[1]) in layers:
                out[_renumber(name, -layers.start)] = value
        elif (top == "embed" and (embed or (head and "lm_head.kernel" not in params))) or (
            top in ("final_norm", "lm_head") and head
        ):
            out[name] = value
    return out


def param_targets(
    config: ModelConfig, mesh: Mesh, dtype: Any, *, layers: range | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of every parameter of a stage with these `layers` (default all), by its flat name.

    The first layer brings the embedding, the last one the head. Shapes are the model's: see the loaders.
    """
    layers = range(config.layers) if layers is None else layers
    embed, head = layers.start == 0, layers.stop == config.layers
    _, state = _abstract(config, len(layers), embed, head, jnp.dtype(dtype))
    targets = {}
    for path, param in nnx.to_flat_state(state):
        name = _renumber(".".join(map(str, path)), layers.start)
        shape = param.get_value().shape
        sharding = partition(param.get_metadata()["axes"], shape, mesh)
        targets[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
    return targets


def random_params(config: ModelConfig, seed: int, dtype: Any = jnp.float32) -> dict[str, Array]:
    """Flat parameters of a randomly initialised model, on the default device. For tests and benchmarks."""
    make = lambda: Decoder(config, nnx.Rngs(seed), layers=config.layers, embed=True, head=True, dtype=dtype)  # noqa: E731
    _, state = nnx.split(make())
    return {".".join(map(str, path)): param.get_value() for path, param in nnx.to_flat_state(state)}


def forward(config: ModelConfig, params: dict[str, Array], tokens: Int[Array, " tokens"]) -> Float[Array, "tokens vocab"]:
    """Logits after every token of one sequence: a plain dense causal forward, no cache, no pages. The oracle of tests."""

    def attend(q: Array, k: Array, v: Array, state: None) -> tuple[Array, None]:
        group = q.shape[1] // k.shape[1]
        k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
        scores = jnp.einsum("thd,shd->hts", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))[None]
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(v.dtype)
        return jnp.einsum("hts,shd->thd", weights, v), state

    model = bind(config, params, layers=config.layers, embed=True, head=True)
    x, _ = model(model.embed(tokens), jnp.arange(len(tokens)), [None] * config.layers, attend)
    return model.logits(x)
