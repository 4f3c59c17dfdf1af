"""What an instance is told: sizes of pages, chunks, groups and batches. Both roles read the same record."""

from dataclasses import dataclass

from mooncake_jax.errors import UserError


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of one instance's engine. Tokens unless said otherwise."""

    page_size: int = 16
    """Tokens a page: the unit of the kernels."""
    block_size: int = 16
    """Tokens a block: the unit of hashing, caching and eviction. A whole number of pages."""
    chunk_tokens: int = 256
    """Most tokens a prefill pass computes; a longer prompt takes several passes."""
    pack: int = 8
    """Most requests that share a prefill pass."""
    layer_group: int = 10
    """Layers computed before their KV leaves for the decode instance. 0 means all layers of a stage at once."""
    max_context: int = 2048
    """Most tokens, prompt and output together, of one request."""
    max_batch: int = 16
    """Most requests in one decode step."""
    prefill_pages: int = 512
    """Device pages of a prefill instance, in use and cached."""
    decode_pages: int = 1024
    """Device pages of a decode instance."""
    dtype: str = "float32"
    """Of weights, activations and KV. float32 is the fast one on CPU, bfloat16 on TPU and GPU."""
    attention: str = "auto"
    """Implementation of the attention kernels: auto, or one of `attention.IMPLEMENTATIONS`."""
    send_ahead: int = 8
    """Chunks of KV that may wait for the network before prefill pauses: what a slow link can make it hold."""
    lookahead: int = 2
    """Decode steps under way at once: 2 hides the host's work behind the step before, at one wasted row per stop token."""

    def __post_init__(self) -> None:
        for name in ("page_size", "block_size", "chunk_tokens", "pack", "max_context", "max_batch", "send_ahead", "lookahead"):
            if getattr(self, name) < 1:
                raise UserError(f"engine.{name}={getattr(self, name)} must be at least 1")
        for name in ("block_size", "chunk_tokens", "max_context"):
            if getattr(self, name) % self.page_size:
                raise UserError(
                    f"engine.{name}={getattr(self, name)} must be a whole number of pages of page_size={self.page_size} tokens"
                )
        for name in ("prefill_pages", "decode_pages"):
            if getattr(self, name) * self.page_size < self.max_context:
                raise UserError(
                    f"engine.{name}={getattr(self, name)} pages of {self.page_size} tokens cannot hold one request of "
                    f"max_context={self.max_context} tokens"
                )

    @property
    def max_pages(self) -> int:
        """Width of a page table."""
        return self.max_context // self.page_size

    @property
    def pages_per_block(self) -> int:
        return self.block_size // self.page_size
