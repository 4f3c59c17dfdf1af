"""PrefixIndex against brute force over plain sets."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import PrefixIndex


def brute_force(held: list[set[int]], keys: list[int]) -> list[int]:
    return [next((i for i, key in enumerate(keys) if key not in blocks), len(keys)) for blocks in held]


def test_each_instance_gets_its_own_leading_match():
    index = PrefixIndex(4)
    index.add(0, [1, 2, 3])
    index.add(1, [1, 3])
    index.add(3, [2, 3])
    assert index.match([1, 2, 3, 4]).tolist() == [3, 1, 0, 0]
    assert index.match([]).tolist() == [0, 0, 0, 0]
    assert index.match([9]).tolist() == [0, 0, 0, 0]


def test_removing_what_is_not_held_changes_nothing():
    index = PrefixIndex(2)
    index.add(0, [1])
    index.remove(1, [1, 2])
    index.remove(0, [2])
    assert index.match([1]).tolist() == [1, 0]
    index.remove(0, [1])
    assert len(index) == 0


def test_a_cleared_instance_holds_nothing_and_can_be_announced_afresh():
    index = PrefixIndex(2)
    index.add(0, [1, 2])
    index.add(1, [2, 3])
    index.clear(1)
    assert (index.keys(0), index.keys(1), len(index)) == ([1, 2], [], 2)
    index.add(1, [1])
    assert index.match([1, 2]).tolist() == [2, 1]


def test_instances_can_be_added_and_taken_away():
    index = PrefixIndex(1)
    index.add(0, [1])
    index.resize(3)
    index.add(2, [1, 2])
    assert index.match([1, 2]).tolist() == [1, 0, 2]
    index.resize(1)
    assert (index.match([1, 2]).tolist(), len(index), index.instances) == ([1], 1, 1)
    index.resize(3)
    assert index.match([1, 2]).tolist() == [1, 0, 0]


def test_an_unknown_instance_is_refused():
    index = PrefixIndex(2)
    for call in (index.add, index.remove):
        with pytest.raises(ValueError, match="instance 2 is unknown"):
            call(2, [1])
    with pytest.raises(ValueError, match="instance -1 is unknown"):
        index.clear(-1)
    with pytest.raises(UserError, match="0 or more"):
        PrefixIndex(-1)


changes = st.tuples(
    st.sampled_from(["add", "add", "add", "remove", "clear"]), st.integers(0, 69), st.lists(st.integers(0, 9), max_size=8)
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 3, 8, 9, 70]),
    st.lists(changes, max_size=60),
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=6),
)
def test_matches_equal_brute_force_over_sets(instances: int, steps: list[tuple[str, int, list[int]]], prompts: list[list[int]]):
    index, held = PrefixIndex(instances), [set() for _ in range(instances)]
    for action, where, keys in steps:
        where %= instances
        if action == "add":
            index.add(where, keys)
            held[where] |= set(keys)
        elif action == "remove":
            index.remove(where, keys)
            held[where] -= set(keys)
        else:
            index.clear(where)
            held[where].clear()
        for prompt in prompts:
            assert index.match(prompt).tolist() == brute_force(held, prompt)
    assert [set(index.keys(i)) for i in range(instances)] == held
    assert len(index) == len(set().union(*held))


def test_many_instances_that_drop_out_together_are_all_counted():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 30, 1000)
    index = PrefixIndex(1000)
    for instance, length in enumerate(lengths):
        index.add(instance, range(100, 100 + int(length)))
    assert (index.match(range(100, 125)) == np.minimum(lengths, 25)).all()


def test_the_books_and_the_scheduler_are_imported_without_jax():
    program = "import sys, mooncake_jax.kvcache, mooncake_jax.sched; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
