"""What a simulated cluster is. Frozen records, filled by Hydra; every effect beyond the plain semantics is off unless named."""

from dataclasses import dataclass, field
from math import inf

from mooncake_jax.errors import UserError


@dataclass(frozen=True)
class SimPrefillConfig:
    """Prefill instances."""

    count: int = 8
    stages: int = 1
    """Nodes of one instance, among which the layers are cut: a pipelined group of X nodes (CPP, FAST §3.3) if more than 1."""
    chunk_tokens: int | None = None
    """Most tokens of one pass; a longer prompt takes several, which follow each other through the stages. None: no limit."""
    pack_tokens: int | None = None
    """Waiting prompts share a pass while they have at most so many tokens to compute together, the first chosen by the queue
    order, the others in order of placement; None: one prompt a pass."""

    def __post_init__(self) -> None:
        for name in ("count", "stages"):
            if getattr(self, name) < 1:
                raise UserError(f"cluster.prefill.{name}={getattr(self, name)} must be at least 1")
        for name in ("chunk_tokens", "pack_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"cluster.prefill.{name}={getattr(self, name)} must be at least 1, or null")
        if self.pack_tokens is not None and self.chunk_tokens is not None and self.pack_tokens > self.chunk_tokens:
            raise UserError(
                f"cluster.prefill.pack_tokens={self.pack_tokens} is more than chunk_tokens={self.chunk_tokens}: prompts that "
                "share a pass are one chunk"
            )
        if self.stages > 1 and self.chunk_tokens is None:
            raise UserError(
                f"cluster.prefill.stages={self.stages} needs cluster.prefill.chunk_tokens: chunks fill the pipeline"
            )


@dataclass(frozen=True)
class SimDecodeConfig:
    """Decode instances."""

    count: int = 8
    capacity_tokens: int | None = None
    """Tokens of KV that the device memory of one holds; requests beyond it wait in DRAM. None: no limit."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"cluster.decode.count={self.count} must be at least 1")
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise UserError(f"cluster.decode.capacity_tokens={self.capacity_tokens} must be at least 1, or null")


@dataclass(frozen=True)
class SimHostPoolConfig:
    blocks: int | None = 5859
    """Blocks of DRAM cache at each prefill instance; 5,859 of 512 tokens are the paper's 3 M tokens. None: no limit."""

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 0:
            raise UserError(f"cluster.host_pool.blocks={self.blocks} must be 0 or more, or null")


@dataclass(frozen=True)
class DiskConfig:
    """The tier below each host pool: what leaves DRAM goes there, and comes back at its bandwidth when it is reused."""

    blocks: int = 0
    bandwidth: float = 6e9
    """bytes / s, read; 6 GB/s is what a PCIe 4 SSD gives."""

    def __post_init__(self) -> None:
        if self.blocks < 0 or (self.blocks and not self.bandwidth > 0):
            raise UserError(f"cluster.disk.blocks={self.blocks} must be 0 or more and bandwidth={self.bandwidth} more than 0")


@dataclass(frozen=True)
class Failure:
    """An instance is dead from `at` on, and back with empty memory after `seconds` (None: never)."""

    instance: str = "prefill-0"
    at: float = 0.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        _check_instance("cluster.failures", self.instance)
        if self.at < 0 or (self.seconds is not None and self.seconds <= 0):
            raise UserError(f"cluster.failures: at={self.at} must be 0 or more and seconds={self.seconds} positive, or null")


@dataclass(frozen=True)
class Slow:
    """An instance takes `factor` times as long as the others for everything it computes; nobody tells the Conductor."""

    instance: str = "prefill-0"
    factor: float = 2.0

    def __post_init__(self) -> None:
        _check_instance("cluster.slow", self.instance)
        if not self.factor > 0:
            raise UserError(f"cluster.slow: factor={self.factor} must be more than 0")


@dataclass(frozen=True)
class CoupledConfig:
    """Instances that prefill and decode both: vLLM-like continuous batching."""

    count: int = 16
    router: str = "round_robin"
    """`round_robin`, or `least_tokens`: the instance with the least prompt and generated tokens of unfinished requests."""
    prefix_cache_blocks: int = 0
    """Blocks of prefix cache in device memory, least recently used first out. 0: no prefix caching."""
    chunk_budget: int | None = None
    """Tokens an iteration: running requests take one each, the rest is a chunk of the next prompt (Sarathi). None: whole
    prompts, and all decoding waits meanwhile (prefill first)."""
    max_batched_tokens: int = 131_072
    """Prompts that wait share a prefill iteration up to so many tokens to compute."""
    capacity_tokens: int | None = None
    """Tokens of KV the device memory holds; the next prompt waits until there is room for it and its output. None: no limit."""

    def __post_init__(self) -> None:
        if self.router not in ("round_robin", "least_tokens"):
            raise UserError(f"cluster.coupled.router={self.router} must be round_robin or least_tokens")
        if self.count < 1 or self.prefix_cache_blocks < 0 or self.max_batched_tokens < 1:
            raise UserError(
                f"cluster.coupled: count={self.count} and max_batched_tokens={self.max_batched_tokens} must be at least 1, "
                f"prefix_cache_blocks={self.prefix_cache_blocks} at least 0"
            )
        for name in ("chunk_budget", "capacity_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"cluster.coupled.{name}={getattr(self, name)} must be at least 1, or null")


@dataclass(frozen=True)
class SimClusterConfig:
    """A cluster to simulate. Raises UserError for a value that cannot be."""

    prefill: SimPrefillConfig = field(default_factory=SimPrefillConfig)
    decode: SimDecodeConfig = field(default_factory=SimDecodeConfig)
    coupled: CoupledConfig | None = None
    """If given, these instances serve instead, and no Conductor is asked."""
    host_pool: SimHostPoolConfig = field(default_factory=SimHostPoolConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    block_size: int = 512
    """Tokens a block; finer than the trace's, each of its ids is split."""
    first_token: str = "decode"
    """`decode`: the first token leaves when the KV has arrived at the decode instance (the paper's accounting). `prefill`: when
    prefill ends."""
    loading: str = "free"
    """Moving KV between DRAM and device at prefill: `free` (hidden wholly), `layerwise` (a prefill takes the longest of
    computing, loading and storing), `serial` (their sum)."""
    sending: str = "layerwise"
    """KV leaves for the decode instance `layerwise`, while prefill computes, or in one piece after it: `serial`."""
    contention: bool = False
    """Transfers share the bandwidth of the nodes' network interfaces (max-min fair); otherwise each has all of it."""
    failures: list[Failure] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)
    role_switch_s: float = 5.0
    """Seconds from the end of its last request until an instance works in its new role."""
    tries: int = 3
    """Times a request is placed before losing its instance fails it."""

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UserError(f"cluster.block_size={self.block_size} must be at least 1")
        for name, known in (
            ("first_token", ("decode", "prefill")),
            ("loading", ("free", "layerwise", "serial")),
            ("sending", ("layerwise", "serial")),
        ):
            if getattr(self, name) not in known:
                raise UserError(f"cluster.{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        if self.loading != "free" and self.prefill.chunk_tokens is not None:
            raise UserError(
                f"cluster.loading={self.loading} counts loading a prefix once a prompt, so it cannot be used with "
                f"cluster.prefill.chunk_tokens={self.prefill.chunk_tokens}"
            )
        if self.coupled is not None and (self.loading != "free" or self.disk.blocks):
            raise UserError("cluster.loading and cluster.disk do not apply to coupled instances, which cache in device memory")
        self._check_accidents()
        if self.tries < 1 or self.role_switch_s < 0:
            raise UserError(f"cluster.tries={self.tries} must be at least 1 and role_switch_s={self.role_switch_s} at least 0")

    def _check_accidents(self) -> None:
        slow = [one.instance for one in self.slow]
        if len(set(slow)) < len(slow):
            raise UserError(f"cluster.slow names an instance twice: {', '.join(slow)}")
        until: dict[str, float] = {}
        for failure in sorted(self.failures, key=lambda one: one.at):
            if failure.at < until.get(failure.instance, 0.0):
                raise UserError(f"cluster.failures: {failure.instance} fails at {failure.at} s, when it is dead already")
            until[failure.instance] = inf if failure.seconds is None else failure.at + failure.seconds


@dataclass(frozen=True)
class Rates:
    """What moves KV, in bytes / s."""

    node: float = 87e9
    """Of one node's network interfaces, each way. 4 × 200 Gbit/s gave the paper's Transfer Engine 87 GB/s (FAST Fig 12)."""
    load: float = 100e9
    """DRAM to device (FAST Fig 14: 0.42 s for 128k tokens of 320 KB)."""

    def __post_init__(self) -> None:
        for name in ("node", "load"):
            if not getattr(self, name) > 0:
                raise UserError(f"a bandwidth of {getattr(self, name)} bytes/s ({name}) must be more than 0")


def _check_instance(where: str, name: str) -> None:
    role, _, index = name.rpartition("-")
    if role not in ("prefill", "decode") or not index.isdecimal():
        raise UserError(f"{where}: instance={name!r} must be a name such as prefill-0 or decode-3")
