"""Block keys: XXH3-64 chained over the prefix, so that an equal key means an equal whole prefix.

    key[0] = XXH3(tokens[0:B],               seed)
    key[i] = XXH3(key[i-1] || tokens[iB:(i+1)B], seed)

Tokens are little-endian u32, the previous key little-endian u64, and the seed stands for the model, so that KV of two models
never meets. The scheme is the one of Mooncake's open indexer (docs/source/api-reference/http/conductor-indexer.md) and of
arXiv 2407.00079 Fig 3. Python's `hash` is not used: it differs between processes.
"""

import numpy as np
import xxhash
from jaxtyping import Integer


def model_seed(identity: str) -> int:
    """Seed (u64) for the block keys of one model. `identity` names all that changes KV: checkpoint, dtype, even a tenant."""
    return xxhash.xxh3_64_intdigest(identity.encode())


def block_keys(tokens: Integer[np.ndarray, "tokens"], block_size: int, seed: int) -> tuple[int, ...]:
    """Chained keys (u64) of the whole blocks of a prompt, first to last; a trailing partial block has none.

    Args:
      tokens: token ids, each in [0, 2**32).
      block_size: tokens in a block, at least 1.
      seed: `model_seed` of the model, in [0, 2**64).

    Raises:
      ValueError: block_size, seed or a token is out of range.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be at least 1 token")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it must be an unsigned 64-bit integer, as model_seed returns")
    blocks = len(tokens) // block_size
    if blocks == 0:
        return ()
    whole = tokens[: blocks * block_size]
    if whole.dtype.itemsize > 4 or whole.dtype.kind == "i":
        low, high = int(whole.min()), int(whole.max())
        if low < 0 or high >= 2**32:
            raise ValueError(f"token ids span {low}..{high}; each must be in 0..{2**32 - 1}")
    data = memoryview(np.ascontiguousarray(whole, dtype="<u4")).cast("B")
    width = 4 * block_size
    key = xxhash.xxh3_64_intdigest(data[:width], seed)
    keys = [key]
    for start in range(width, len(data), width):
        key = xxhash.xxh3_64_intdigest(key.to_bytes(8, "little") + data[start : start + width], seed)
        keys.append(key)
    return tuple(keys)
