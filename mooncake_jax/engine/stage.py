"""The device side of an instance: its stages, and in each its layer groups with weights and pages.

A prefill instance has one stage or several (chunked pipeline parallelism), each on its own mesh of tensor-parallel
devices; a decode instance has one stage of one group. Work is dispatched in order and nothing here waits for it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from mooncake_jax.cluster_config import EngineConfig
from mooncake_jax.engine import programs
from mooncake_jax.engine.shapes import bucket
from mooncake_jax.models.config import ModelConfig
from mooncake_jax.models.decoder import slice_params
from mooncake_jax.types import TENSOR_AXIS


@dataclass
class Group:
    """A layer group: the layers (numbers in the model), their weights, and their pages, replaced by every program."""

    layers: range
    params: programs.Params
    pages: programs.Pages


class Stage:
    """Layers of one stage on one mesh with a tensor axis."""

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        layers: range,
        params: programs.Params,
        engine: EngineConfig,
        pages: int,
        *,
        whole: bool = False,
    ):
        """`whole` makes one group of all layers, whatever `engine.layer_group` says."""
        self.model = programs.Model(config, mesh, engine.attention)
        self.layers, self.pages = layers, pages
        self._page_size, self._chunk_pages = engine.page_size, engine.chunk_tokens // engine.page_size
        shape = (pages, engine.page_size, 2 * config.kv_heads, config.head_dim)
        sharding = NamedSharding(mesh, programs.PAGES)
        new_page = jax.jit(lambda: jnp.zeros(shape, engine.dtype), out_shardings=sharding)
        size = len(layers) if whole else engine.layer_group or len(layers)
        self.groups = []
        for start in range(layers.start, layers.stop, size):
            part = range(start, min(start + size, layers.stop))
            weights = slice_params(params, part)
            self.groups.append(Group(part, weights, tuple(new_page() for _ in part)))
        self.embedding = slice_params(params, range(0), embed=True) if layers.start == 0 else None
        self.head = slice_params(params, range(0), head=True) if layers.stop == config.layers else None
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._wire = NamedSharding(mesh, programs.WIRE)
        kinds = {memory.kind for memory in mesh.devices.flat[0].addressable_memories()}
        dram = "pinned_host" if "pinned_host" in kinds else None
        self.arrivals = NamedSharding(mesh, programs.WIRE, memory_kind=dram)
        """Where KV from elsewhere lands: host memory beside this mesh, where the platform has such."""

    def place(self, tree):
        """A pytree of small host arrays (or of activations of another stage), on every device of this mesh."""
        return jax.device_put(tree, self._replicated)

    def _page_ids(self, ids: list[int]) -> Array:
        size = bucket(len(ids), 1, self._chunk_pages)
        padded = np.full((size,), self.pages, np.int32)
        padded[: len(ids)] = ids
        return self.place(padded)

    def gather(self, group: Group, ids: list[int]) -> Array:
        """KV of at most chunk_tokens / page_size pages of a group in the wire layout, padded to a bucket of pages."""
        return programs.gather_pages(self.model, group.pages, self._page_ids(ids))

    def load(self, group: Group, kv: Array | np.ndarray, ids: list[int], layers: range) -> None:
        """Writes a wire unit of `layers` (within the group) into pages `ids`; `kv` may be padded."""
        a, b = layers.start - group.layers.start, layers.stop - group.layers.start
        padded = self._page_ids(ids)
        missing = len(padded) * self._page_size - kv.shape[1]
        if missing > 0:  # only a unit from host memory is not padded yet
            kv = np.pad(kv, ((0, 0), (0, missing), (0, 0), (0, 0)))
        on_device = jax.device_put(kv, self._wire)
        pages = programs.load_pages(self.model, group.pages[a:b], on_device, padded)
        group.pages = (*group.pages[:a], *pages, *group.pages[b:])


def stage_meshes(devices: list[jax.Device], tensor: int, stages: int) -> list[Mesh]:
    """One mesh of `tensor` devices a stage. Auto axes: GSPMD shards what the rules table does not pin."""
    grid = np.array(devices).reshape(stages, tensor)
    return [Mesh(row, (TENSOR_AXIS,)) for row in grid]
