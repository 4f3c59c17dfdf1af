"""KV between meshes of every pair of sizes: the same bytes, K and V of a head together, and nobody waits."""

import jax
import numpy as np
import pytest

from mooncake_jax.transfer import reshard
from tests.transfer.units import DIM, same_bits, wire

SIZES, KV_HEADS = (1, 2, 3, 4, 8), (1, 2, 3, 6, 8)
MATRIX = [(p, d, heads) for heads in KV_HEADS for p in SIZES for d in SIZES if heads % p == 0 and heads % d == 0]
HEADS = 2
"""Axis of K and V rows."""


def numbered(heads: int, dtype="float32") -> np.ndarray:
    """KV whose values tell layer, token, head and whether they are K (even) or V (odd)."""
    shape = (2, 5, 2 * heads, DIM)
    layer, token, row, _ = np.indices(shape)
    return (1000 * layer + 100 * token + row).astype(dtype)


def on(first: int, size: int, memory_kind: str | None = None):
    return wire(slice(first, first + size), memory_kind)


@pytest.mark.parametrize("memory_kind", ["device", "pinned_host"])
@pytest.mark.parametrize(("prefill", "decode", "heads"), MATRIX)
def test_every_pair_of_meshes_gets_the_same_bytes_with_heads_whole(prefill, decode, heads, memory_kind):
    x = numbered(heads)
    target = on(8 - decode, decode, memory_kind)
    moved = reshard(jax.device_put(x, on(0, prefill)), target, HEADS)
    assert moved.sharding == target
    assert same_bits(moved, x)
    for i, shard in enumerate(sorted(moved.addressable_shards, key=lambda shard: shard.index[HEADS].start or 0)):
        mine = range(i * heads // decode, (i + 1) * heads // decode)
        assert shard.device == target.mesh.devices[i]
        assert np.asarray(shard.data)[0, 0, :, 0].tolist() == [row for g in mine for row in (2 * g, 2 * g + 1)]


@pytest.mark.parametrize("memory_kind", ["device", "pinned_host"])
@pytest.mark.parametrize(
    ("prefill", "decode", "heads"), [(1, 8, 8), (8, 1, 8), (2, 4, 8), (4, 2, 8), (2, 2, 2), (2, 3, 6), (3, 2, 6), (1, 1, 1)]
)
def test_a_source_that_is_still_being_computed_is_not_waited_for(gate, prefill, decode, heads, memory_kind):
    x = numbered(heads)
    held = gate.hold(jax.device_put(x, on(0, prefill)))
    moved = reshard(held, on(8 - decode, decode, memory_kind), HEADS)
    assert not held.is_ready()
    assert not moved.is_ready()
    gate.open()
    assert same_bits(moved, x)


@pytest.mark.parametrize(("source", "target"), [("pinned_host", "device"), ("pinned_host", "pinned_host")])
def test_host_memory_may_be_the_source(source, target):
    x = numbered(6, "bfloat16")
    moved = reshard(jax.device_put(x, on(0, 3, source)), on(6, 2, target), HEADS)
    assert moved.sharding.memory_kind == target
    assert same_bits(moved, x)


def test_a_replicated_source_is_read_once():
    x = numbered(8)
    replicated = jax.device_put(x, jax.sharding.NamedSharding(on(0, 4).mesh, jax.sharding.PartitionSpec()))
    assert same_bits(reshard(replicated, on(4, 4), HEADS), x)


def test_meshes_may_overlap_and_be_the_same():
    x = numbered(8)
    for first, size in ((0, 4), (2, 4), (1, 2)):
        assert same_bits(reshard(jax.device_put(x, on(0, 4)), on(first, size), HEADS), x)


def test_heads_that_the_target_cannot_cut_are_refused_with_the_shape():
    with pytest.raises(ValueError, match=r"\(2, 5, 4, 3\)"):
        reshard(jax.device_put(numbered(2), on(0, 2)), on(4, 3), HEADS)


def test_other_axes_may_be_cut_too():
    x = np.arange(2 * 6 * 4 * DIM, dtype=np.float32).reshape(2, 6, 4, DIM)
    spec = jax.sharding.PartitionSpec(None, "tensor")
    source, target = (jax.sharding.NamedSharding(on(first, size).mesh, spec) for first, size in ((0, 2), (4, 3)))
    assert same_bits(reshard(jax.device_put(x, source), target, 1), x)
