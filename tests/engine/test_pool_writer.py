"""KV on its way into a host pool: blocks complete once, by one owner, and nothing is left behind."""

import itertools

import jax
import numpy as np
import pytest

from mooncake_jax.engine import PoolWriter
from mooncake_jax.kvcache import BlockState
from mooncake_jax.transfer import HostPool
from tests.transfer.units import DIM, ROWS, kv, same_bits, wire

LAYERS, BLOCK = 4, 4
KEYS = (11, 12, 13)
"""Of a prompt of 14 tokens: three whole blocks and a rest that is not kept."""
PROMPT = 14
GROUPS = [range(0, 2), range(2, 4)]


class Node:
    """A pool, its writer, and what was announced."""

    def __init__(self, slots: int = 8):
        self.pool = HostPool(slots, LAYERS, BLOCK, ROWS, DIM, np.dtype("float32"))
        self.stored: list[int] = []
        self.evicted: list[int] = []
        self.writer = PoolWriter(self.pool, self.stored.append, self.evicted.append)

    def read(self, *keys: int) -> np.ndarray:
        self.pool.books.pin(keys)
        out = self.pool.read(keys, range(LAYERS))
        self.pool.books.unpin(keys)
        return out


def prompt(seed: int = 0) -> np.ndarray:
    return kv(LAYERS, 16, seed=seed)


def piece(x: np.ndarray, layers: range, tokens: range, gate=None):
    """KV of a unit; on two devices and still being computed if a gate holds it."""
    part = np.ascontiguousarray(x[layers.start : layers.stop, tokens.start : tokens.stop])
    return part if gate is None else gate.hold(jax.device_put(part, wire(slice(0, 2))))


def write(node: Node, owner: str, x: np.ndarray, chunks: list[range], keys=KEYS, groups=GROUPS, gate=None) -> None:
    for tokens in chunks:
        node.writer.open(owner, keys, tokens)
        for layers in groups:
            node.writer.add(owner, keys, layers, tokens, piece(x, layers, tokens, gate))


def ranges(*cuts: int) -> list[range]:
    return list(itertools.starmap(range, itertools.pairwise(cuts)))


CHUNKS = [(0, 14), (0, 4, 14), (0, 2, 14), (0, 3, 6, 9, 12, 14), (0, 5, 14), tuple(range(15))]


@pytest.mark.parametrize("groups", [(0, 4), (0, 2, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("cuts", CHUNKS)
def test_layer_groups_and_chunks_complete_every_whole_block_once(cuts, groups):
    node, x = Node(), prompt()
    write(node, "r", x, ranges(*cuts), groups=ranges(*groups))
    assert node.stored == list(KEYS)
    assert node.writer.idle
    assert node.pool.open_blocks == 0
    assert len(node.pool.books) == 3
    assert same_bits(node.read(*KEYS), x[:, :12])


def test_what_is_still_being_computed_is_written_when_it_is_there(gate):
    node, x = Node(), prompt()
    write(node, "r", x, ranges(0, 6, 14), gate=gate)
    node.writer.poll()
    assert node.stored == []
    assert not node.writer.idle
    assert node.pool.open_blocks == 3
    gate.open()
    while not node.writer.idle:
        node.writer.poll()
    assert node.stored == list(KEYS)
    assert same_bits(node.read(*KEYS), x[:, :12])


def test_padding_of_a_unit_is_not_written(gate):
    node, x = Node(), prompt()
    node.writer.open("r", KEYS, range(6))
    node.writer.add("r", KEYS, range(LAYERS), range(6), piece(x, range(LAYERS), range(16), gate))
    gate.open()
    while node.pool.open_blocks > 1:
        node.writer.poll()
    assert node.stored == [11]
    node.writer.open("r", KEYS, range(6, 8))
    node.writer.add("r", KEYS, range(LAYERS), range(6, 8), piece(x, range(LAYERS), range(6, 8)))
    assert same_bits(node.read(11, 12), x[:, :8])


def test_blocks_begun_before_the_first_unit_are_not_opened():
    node, x = Node(), prompt()
    write(node, "r", x, [range(2, 14)])
    assert node.stored == [12, 13]
    assert same_bits(node.read(12, 13), x[:, 4:12])


def test_a_prompt_shorter_than_a_block_leaves_nothing():
    node = Node()
    write(node, "r", prompt(), [range(3)], keys=())
    assert node.writer.idle
    assert len(node.pool.books) == 0


def test_two_owners_of_one_block_do_not_mix():
    node, mine, other = Node(), prompt(1), prompt(2)
    whole = range(PROMPT)
    for owner in ("first", "second"):
        node.writer.open(owner, KEYS, whole)
    assert node.writer.wants("first", KEYS, whole)
    assert not node.writer.wants("second", KEYS, whole)
    for layers in GROUPS:
        node.writer.add("second", KEYS, layers, whole, piece(other, layers, whole))
        node.writer.add("first", KEYS, layers, whole, piece(mine, layers, whole))
    assert node.stored == list(KEYS)
    assert same_bits(node.read(*KEYS), mine[:, :12])


def test_owners_of_different_ends_of_a_shared_prefix_each_store_their_own():
    node, first, second = Node(), prompt(1), prompt(2)
    second[:, :BLOCK] = first[:, :BLOCK]
    ours = (11, 22, 23)
    node.writer.open("first", KEYS, range(PROMPT))
    node.writer.open("second", ours, range(PROMPT))
    for layers in GROUPS:
        node.writer.add("second", ours, layers, range(PROMPT), piece(second, layers, range(PROMPT)))
    assert node.stored == [22, 23]
    for layers in GROUPS:
        node.writer.add("first", KEYS, layers, range(PROMPT), piece(first, layers, range(PROMPT)))
    assert same_bits(node.read(*KEYS), first[:, :12])
    assert same_bits(node.read(*ours), second[:, :12])


def test_a_block_that_is_in_the_pool_is_not_written_again():
    node = Node()
    write(node, "r", prompt(1), [range(PROMPT)])
    write(node, "again", prompt(2), [range(PROMPT)])
    assert node.stored == list(KEYS)
    assert same_bits(node.read(*KEYS), prompt(1)[:, :12])


def test_wants_tells_which_tokens_belong_to_open_blocks():
    node = Node()
    node.writer.open("r", KEYS, range(4, 8))
    wants = [node.writer.wants("r", KEYS, range(i, i + 1)) for i in range(PROMPT)]
    assert wants == [4 <= i < 8 for i in range(PROMPT)]
    assert node.writer.wants("r", KEYS, range(0, 5))
    assert not node.writer.wants("r", KEYS, range(8, 14))
    node.writer.abandon("r", KEYS)


def test_abandoned_blocks_give_their_slots_back_and_those_of_others_stay():
    node = Node()
    node.writer.open("r", KEYS, range(PROMPT))
    node.writer.open("other", (31, 32), range(8))
    node.writer.abandon("r", KEYS[1:])
    assert [node.pool.books.state(key) for key in (*KEYS, 31, 32)] == ["filling", "absent", "absent", "filling", "filling"]
    node.writer.abandon("r", (31, 32))
    node.writer.abandon("r", KEYS)
    node.writer.abandon("r", KEYS)
    assert [node.pool.books.state(key) for key in (*KEYS, 31, 32)] == ["absent"] * 3 + ["filling"] * 2
    assert not node.writer.idle
    node.writer.abandon("other", (31, 32))
    assert node.writer.idle
    assert node.stored == []


def test_units_under_way_when_their_blocks_are_abandoned_are_dropped(gate):
    node = Node()
    write(node, "r", prompt(), [range(6)], gate=gate)
    node.writer.abandon("r", KEYS)
    assert node.writer.idle
    gate.open()
    node.writer.poll()
    assert node.stored == []
    assert len(node.pool.books) == 0


def test_blocks_completed_before_the_abandonment_are_still_stored(gate):
    node, x = Node(), prompt()
    write(node, "r", x, [range(6)], gate=gate)
    node.writer.abandon("r", KEYS[1:])
    gate.open()
    while not node.writer.idle:
        node.writer.poll()
    assert node.stored == [11]
    assert same_bits(node.read(11), x[:, :4])


def test_a_request_served_again_after_it_was_abandoned_starts_its_blocks_anew(gate):
    node, old, new = Node(), prompt(1), prompt(2)
    write(node, "r", old, [range(2)], gate=gate)
    node.writer.abandon("r", KEYS)
    node.writer.open("r", KEYS, range(2))
    node.writer.add("r", KEYS, GROUPS[0], range(2), piece(new, GROUPS[0], range(2)))
    gate.open()
    for _ in range(100):
        node.writer.poll()
    assert node.stored == []  # a third of the block is there; the units of the first attempt do not count
    assert node.pool.books.state(11) is BlockState.FILLING
    node.writer.add("r", KEYS, GROUPS[1], range(2), piece(new, GROUPS[1], range(2)))
    write(node, "r", new, [range(2, PROMPT)])
    assert node.stored == list(KEYS)
    assert same_bits(node.read(*KEYS), new[:, :12])


def test_blocks_that_find_no_slot_are_passed_over():
    node, x = Node(slots=2), prompt()
    write(node, "r", x, [range(PROMPT)])
    assert node.stored == [11, 12]
    assert same_bits(node.read(11, 12), x[:, :8])
    assert node.writer.idle
    none = Node(slots=0)
    write(none, "r", x, [range(PROMPT)])
    assert none.writer.idle
    assert none.stored == none.evicted == []


def test_evictions_are_announced_and_open_blocks_stay():
    node = Node(slots=3)
    write(node, "r", prompt(), [range(PROMPT)])
    node.writer.open("open", (21,), range(4))
    assert node.evicted == [11]
    write(node, "next", prompt(3), [range(PROMPT)], keys=(31, 32, 33))
    assert node.evicted == [11, 12, 13]
    assert set(node.stored) == {*KEYS, 31, 32}
    assert node.pool.books.state(21) is BlockState.FILLING
    assert set(node.pool.books.keys()) == {31, 32}
    node.writer.abandon("open", (21,))
