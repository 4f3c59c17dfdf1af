"""What a live cluster is: its instances, their meshes, pools and engines. Frozen records, filled by Hydra.

They stand outside the rooms because the command line reads them before anything that needs jax is imported.
"""

from dataclasses import dataclass, field

from mooncake_jax.errors import UserError

_DTYPES = ("float32", "bfloat16", "float16")
_ATTENTION = ("auto", "reference", "xla")


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of one instance's engine. Tokens unless said otherwise."""

    page_size: int = 16
    """Tokens a page: the unit of the kernels."""
    block_size: int = 16
    """Tokens a block: the unit of hashing, caching and eviction. A whole number of pages."""
    chunk_tokens: int = 128
    """Most tokens a prefill pass computes; a longer prompt takes several passes."""
    pack: int = 8
    """Most requests that share a prefill pass."""
    layer_group: int = 5
    """Layers computed before their KV leaves for the decode instance. 0 means all layers of a stage at once."""
    max_context: int = 2048
    """Most tokens, prompt and output together, of one request."""
    max_batch: int = 8
    """Most requests in one decode step."""
    prefill_pages: int = 256
    """Device pages of a prefill instance, in use and cached."""
    decode_pages: int = 512
    """Device pages of a decode instance."""
    dtype: str = "float32"
    """Of weights, activations and KV. float32 is the fast one on CPU, bfloat16 on TPU and GPU."""
    attention: str = "auto"
    """Implementation of the attention kernels: auto (by the platform), reference, or xla."""
    send_ahead: int = 8
    """Chunks of KV that may wait for the network before prefill pauses: what a slow link can make it hold."""
    lookahead: int = 2
    """Decode steps under way at once: 2 hides the host's work behind the step before, at one wasted row per stop token."""

    def __post_init__(self) -> None:
        for name in ("page_size", "block_size", "chunk_tokens", "pack", "max_context", "max_batch", "send_ahead", "lookahead"):
            if getattr(self, name) < 1:
                raise UserError(f"cluster.engine.{name}={getattr(self, name)} must be at least 1")
        if self.layer_group < 0:
            raise UserError(f"cluster.engine.layer_group={self.layer_group} must be at least 1, or 0 for all layers at once")
        for name, value, known in (("dtype", self.dtype, _DTYPES), ("attention", self.attention, _ATTENTION)):
            if value not in known:
                raise UserError(f"cluster.engine.{name}={value} must be one of {', '.join(known)}")
        for name in ("block_size", "chunk_tokens", "max_context"):
            if getattr(self, name) % self.page_size:
                raise UserError(
                    f"cluster.engine.{name}={getattr(self, name)} must be a whole number of pages of "
                    f"page_size={self.page_size} tokens"
                )
        for name in ("prefill_pages", "decode_pages"):
            if getattr(self, name) * self.page_size < self.max_context:
                raise UserError(
                    f"cluster.engine.{name}={getattr(self, name)} pages of {self.page_size} tokens cannot hold one request of "
                    f"max_context={self.max_context} tokens"
                )

    @property
    def max_pages(self) -> int:
        """Width of a page table."""
        return self.max_context // self.page_size

    @property
    def pages_per_block(self) -> int:
        return self.block_size // self.page_size


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
