"""What a live cluster is: how many instances, on what meshes, with what pools. One frozen record, filled by Hydra."""

from dataclasses import dataclass, field

from mooncake_jax.engine import EngineConfig
from mooncake_jax.errors import UserError


@dataclass(frozen=True)
class MeshShape:
    """Devices of one instance."""

    tensor: int = 1
    """Tensor parallelism: heads, feed-forward width and vocabulary are cut into this many."""
    stage: int = 1
    """Pipeline stages: layers are cut into this many, each on its own tensor-parallel mesh. Prefill only."""

    @property
    def devices(self) -> int:
        return self.tensor * self.stage


@dataclass(frozen=True)
class InstancesConfig:
    """Instances of one role."""

    count: int = 1
    mesh: MeshShape = field(default_factory=MeshShape)


@dataclass(frozen=True)
class HostPoolConfig:
    blocks: int = 1024
    """Blocks of DRAM cache at each prefill instance. 0 leaves only what is still in device memory, of which the Conductor does
    not know."""


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster of one model in one process."""

    prefill: InstancesConfig = field(default_factory=InstancesConfig)
    decode: InstancesConfig = field(default_factory=InstancesConfig)
    host_pool: HostPoolConfig = field(default_factory=HostPoolConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    first_token: str = "prefill"
    """`prefill`: the first token is streamed when prefill ends. `decode`: when decoding starts (the paper's accounting)."""
    timeout: float = 300.0
    """Seconds after its arrival at which a request without a deadline of its own is given up."""
    tries: int = 3
    """Times a request is placed before losing its KV (a dead instance, a failed transfer) fails it."""

    def __post_init__(self) -> None:
        if self.first_token not in ("prefill", "decode"):
            raise UserError(f"cluster.first_token={self.first_token!r} must be prefill or decode")
        for name, group in (("prefill", self.prefill), ("decode", self.decode)):
            if min(group.count, group.mesh.tensor, group.mesh.stage) < 1:
                raise UserError(f"cluster.{name}: count, mesh.tensor and mesh.stage must be at least 1, got {group}")
        if self.decode.mesh.stage != 1:
            raise UserError(f"cluster.decode.mesh.stage={self.decode.mesh.stage}: only prefill instances have pipeline stages")
        if self.host_pool.blocks < 0 or self.timeout <= 0 or self.tries < 1:
            raise UserError(
                f"cluster: host_pool.blocks={self.host_pool.blocks} must be at least 0, timeout={self.timeout} above 0 "
                f"and tries={self.tries} at least 1"
            )

    @property
    def devices(self) -> int:
        """Devices the cluster needs."""
        return self.prefill.count * self.prefill.mesh.devices + self.decode.count * self.decode.mesh.devices
