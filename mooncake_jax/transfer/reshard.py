"""Moves an array between meshes of different sizes, one axis sharded on both, without waiting for it to be computed.

`jax.device_put` between shardings of unequal shard counts blocks until the source is ready (measured on CPU, jax 0.12).
Single-device copies do not. So the axis is cut where either side cuts it, each piece goes to its device by itself, and
the receiving device joins its pieces. Every step is dispatched asynchronously.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding


@partial(jax.jit, static_argnames=("axis", "start", "stop"))
def _cut(x: jax.Array, *, axis: int, start: int, stop: int) -> jax.Array:
    return jax.lax.slice_in_dim(x, start, stop, axis=axis)


@partial(jax.jit, static_argnames=("axis",))
def _join(pieces: list[jax.Array], *, axis: int) -> jax.Array:
    return jnp.concatenate(pieces, axis=axis)


def _owners(x: jax.Array, axis: int) -> dict[tuple[int, int], jax.Array]:
    """One shard for every distinct interval of `axis`: replicas hold the same bytes."""
    out: dict[tuple[int, int], jax.Array] = {}
    for shard in x.addressable_shards:
        out.setdefault(_interval(shard.index[axis], x.shape[axis]), shard.data)
    return dict(sorted(out.items()))


def _interval(index: slice, size: int) -> tuple[int, int]:
    start, stop, _ = index.indices(size)
    return start, stop


def reshard(x: jax.Array, target: NamedSharding, axis: int) -> jax.Array:
    """`x`, sharded over `axis` only, as an array of `target`, sharded over `axis` only; asynchronous.

    Raises ValueError if a shape does not divide; equal bytes on every layout (see the tests' matrix).
    """
    sources = _owners(x, axis)
    pieces: list[jax.Array] = []
    index_map = target.devices_indices_map(x.shape)
    for device in target.mesh.devices.flat:
        start, stop = _interval(index_map[device][axis], x.shape[axis])
        place = SingleDeviceSharding(device, memory_kind=target.memory_kind)
        parts = []
        for (low, high), data in sources.items():
            a, b = max(low, start), min(high, stop)
            if a < b:
                part = data if (a, b) == (low, high) else _cut(data, axis=axis, start=a - low, stop=b - low)
                parts.append(part)
        if len(parts) == 1:
            pieces.append(jax.device_put(parts[0], place))
        else:
            moved = [jax.device_put(part, SingleDeviceSharding(device)) for part in parts]
            pieces.append(jax.device_put(_join(moved, axis=axis), place))
    return jax.make_array_from_single_device_arrays(x.shape, target, pieces)
