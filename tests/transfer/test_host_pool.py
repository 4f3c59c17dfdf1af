"""The bytes of a host pool against plain arrays: what was written in pieces is read back whole."""

import itertools

import numpy as np
import pytest

from mooncake_jax.kvcache import BlockState, IllegalTransition
from mooncake_jax.transfer import HostPool
from tests.transfer.units import DIM, ROWS, kv, same_bits

LAYERS, BLOCK = 4, 8
LAYER_CUTS = [(0, 4), (0, 1, 4), (0, 2, 4), (0, 3, 4), (0, 1, 2, 3, 4)]
TOKEN_CUTS = [(0, 8), (0, 4, 8), (0, 1, 8), (0, 3, 5, 8)]


def pool(slots: int = 3, dtype="float32") -> HostPool:
    return HostPool(slots, LAYERS, BLOCK, ROWS, DIM, np.dtype(dtype))


def block(seed: int, dtype="float32") -> np.ndarray:
    return kv(LAYERS, BLOCK, dtype=dtype, seed=seed)


def store(host: HostPool, key: int) -> list[int] | None:
    """Writes block number `key` whole; what `open` said."""
    opened = host.open(key)
    if opened is not None:
        assert host.write(key, range(LAYERS), 0, block(key))
    return opened


def read(host: HostPool, *keys: int, layers: range = range(LAYERS)) -> np.ndarray:
    host.books.pin(keys)
    out = host.read(keys, layers)
    host.books.unpin(keys)
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("layer_cuts", "token_cuts"), itertools.product(LAYER_CUTS, TOKEN_CUTS))
def test_a_block_written_in_pieces_of_any_order_reads_back_bit_equal(layer_cuts, token_cuts, dtype):
    host, x = pool(dtype=dtype), block(1, dtype)
    pieces = [
        (range(*layers), range(*tokens))
        for layers in itertools.pairwise(layer_cuts)
        for tokens in itertools.pairwise(token_cuts)
    ]
    for seed in range(3):
        key = 10 + seed
        assert host.open(key) == []
        order = np.random.default_rng(seed).permutation(len(pieces))
        for n, i in enumerate(order, start=1):
            layers, tokens = pieces[i]
            assert host.books.state(key) is BlockState.FILLING
            part = x[layers.start : layers.stop, tokens.start : tokens.stop]
            assert host.write(key, layers, tokens.start, part) == (n == len(pieces))
        assert host.books.state(key) is BlockState.READY
        assert same_bits(read(host, key), x)
    assert host.open_blocks == 0


def test_blocks_are_read_in_the_order_asked_for_and_some_layers_only():
    host = pool()
    for key in (1, 2, 3):
        store(host, key)
    want = np.concatenate([block(3), block(1)], axis=1)
    assert same_bits(read(host, 3, 1), want)
    assert same_bits(read(host, 3, 1, layers=range(1, 3)), want[1:3])
    assert read(host).shape == (LAYERS, 0, ROWS, DIM)


def test_what_was_read_is_a_copy():
    host = pool(1)
    store(host, 1)
    taken = read(host, 1)
    store(host, 2)
    assert same_bits(taken, block(1))


def test_a_block_is_readable_only_when_it_is_complete():
    host = pool()
    host.open(1)
    host.write(1, range(3), 0, block(1)[:3])
    assert (host.books.match([1]), host.open_blocks) == (0, 1)
    with pytest.raises(IllegalTransition):
        host.books.pin([1])
    host.write(1, range(3, 4), 0, block(1)[3:])
    assert (host.books.match([1]), host.open_blocks) == (1, 0)


def test_a_block_that_is_here_or_being_written_is_not_opened_again():
    host = pool()
    assert host.open(1) == []
    assert host.open(1) is None
    host.write(1, range(LAYERS), 0, block(1))
    assert host.open(1) is None
    assert same_bits(read(host, 1), block(1))


def test_the_least_recently_used_block_leaves_and_the_others_keep_their_bytes():
    host = pool(3)
    for key in (1, 2, 3):
        assert store(host, key) == []
    host.books.touch([1])
    assert store(host, 4) == [2]
    assert store(host, 5) == [3]
    assert host.books.keys() == (1, 4, 5)
    for key in (1, 4, 5):
        assert same_bits(read(host, key), block(key))


def test_pinned_and_open_blocks_do_not_leave():
    host = pool(3)
    store(host, 1)
    store(host, 2)
    host.books.pin([1])
    host.open(3)
    assert store(host, 4) == [2]
    host.books.pin([4])
    assert host.open(5) is None
    assert host.books.state(5) is BlockState.ABSENT
    host.books.unpin([1])
    assert store(host, 5) == [1]
    assert same_bits(read(host, 4), block(4))


def test_an_abandoned_block_gives_its_slot_back_without_a_trace():
    host = pool(1)
    host.open(1)
    host.write(1, range(2), 0, block(1)[:2])
    host.abandon(1)
    assert (len(host.books), host.open_blocks, host.books.match([1])) == (0, 0, 0)
    assert host.open(1) == []
    assert not host.write(1, range(2, 4), 0, block(1)[2:])  # what was written before does not count any more
    assert host.write(1, range(2), 0, block(1)[:2])
    assert same_bits(read(host, 1), block(1))


def test_a_complete_block_cannot_be_abandoned():
    host = pool()
    store(host, 1)
    with pytest.raises(KeyError):
        host.abandon(1)
    assert same_bits(read(host, 1), block(1))


def test_a_pool_without_slots_takes_nothing():
    host = pool(0)
    assert store(host, 1) is None
    assert (host.block_bytes, host.open_blocks, len(host.books)) == (0, 0, 0)


def test_a_block_has_the_bytes_of_all_its_layers():
    assert pool().block_bytes == block(0).nbytes
    assert pool(dtype="bfloat16").block_bytes == block(0).nbytes // 2
