"""Small wire units, meshes of emulated devices, and computations that end when a test says so."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mooncake_jax.transfer import Endpoint, KVBlocks, Transfer, TransferState
from mooncake_jax.types import TENSOR_AXIS, InstanceId, Role

LAYERS, TOKENS, ROWS, DIM = 4, 8, 8, 3
SOURCE, TARGET, HOST = InstanceId(Role.PREFILL, 0), InstanceId(Role.DECODE, 0), InstanceId(Role.PREFILL, 1)
LATE = 1e9
"""A deadline that does not come."""


def wire(devices: slice, memory_kind: str | None = None) -> NamedSharding:
    """The wire layout over a mesh of some of the eight devices."""
    mesh = Mesh(np.array(jax.devices()[devices]), (TENSOR_AXIS,))
    return NamedSharding(mesh, PartitionSpec(None, None, TENSOR_AXIS), memory_kind=memory_kind)


def kv(layers: int = 2, tokens: int = TOKENS, rows: int = ROWS, dtype="float32", seed: int = 0) -> np.ndarray:
    """KV with values that arithmetic, but not a copy, would change."""
    x = np.random.default_rng(seed).standard_normal((layers, tokens, rows, DIM))
    x.flat[:4] = np.nan, -np.inf, -0.0, 1e-42
    return np.asarray(x, dtype)


def same_bits(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def unit(x, *, first_layer: int = 0, start: int = 16, tokens: int | None = None, source: InstanceId = SOURCE) -> KVBlocks:
    stop = start + (x.shape[1] if tokens is None else tokens)
    return KVBlocks("request-7", source, range(first_layer, first_layer + x.shape[0]), range(start, stop), x)


def endpoint(sharding: NamedSharding | None = None, dtype="float32") -> Endpoint:
    return Endpoint(LAYERS, ROWS, DIM, np.dtype(dtype), sharding)


def drive(transfer: Transfer, now: float = 0.0, step: float = 0.0) -> TransferState:
    """Polls until the end. The fake clock goes on by `step` a poll; a real minute is the limit."""
    limit = time.monotonic() + 60
    while not transfer.poll(now).terminal:
        assert time.monotonic() < limit, f"transfer still {transfer.state}"
        time.sleep(0.0005)
        now += step
    return transfer.state


class Gate:
    """Holds computations back until it is opened, or makes them fail."""

    def __init__(self):
        self._opened, self._error = threading.Event(), ""

        def wait(x):
            self._opened.wait(30)
            if self._error:
                raise RuntimeError(self._error)
            return np.asarray(x)

        sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
        callback = lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # noqa: E731
        mapped = jax.shard_map(callback, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=sharding.spec)
        # On CPU a program of one device may run inside the call; one of two devices never does.
        self._zero = jax.jit(mapped)(jax.device_put(np.zeros(2, np.float32), sharding)).addressable_shards[0].data

    def hold(self, x: jax.Array) -> jax.Array:
        """`x`, ready once the gate is open."""
        pieces = []
        for shard in x.addressable_shards:
            pieces.append(_after(shard.data, jax.device_put(self._zero, shard.device)))
        held = jax.make_array_from_single_device_arrays(x.shape, x.sharding, pieces)
        assert not held.is_ready()
        return held

    def open(self) -> None:
        self._opened.set()

    def fail(self, error: str) -> None:
        """Opens it, and all that it held fails."""
        self._error = error
        self._opened.set()


@jax.jit
def _after(x: jax.Array, zero: jax.Array) -> jax.Array:
    return jnp.where(zero[0] == 0, x, jnp.zeros_like(x))
