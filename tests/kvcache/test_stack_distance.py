"""Stack distances against their definition, by sets."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.kvcache import stack_distances
from mooncake_jax.kvcache.stack_distance import NEVER


def by_definition(requests: list[list[int]], sizes: dict[int, int] | None = None) -> list[int]:
    sizes = sizes or dict.fromkeys(range(10), 1)
    distances, past = [], []
    for keys in requests:
        for key in keys:
            last = max((at for at, one in enumerate(past) if one == key), default=None)
            distances.append(NEVER if last is None else sum(map(sizes.get, set(past[last + 1 :]))))
        past += keys
    return distances


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20))
def test_distances_are_the_distinct_keys_used_since_the_last_use(requests: list[list[int]]):
    assert stack_distances(requests).tolist() == by_definition(requests)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20), st.lists(st.integers(1, 512), min_size=10, max_size=10))
def test_distances_in_sizes_add_up_the_sizes_of_these_keys(requests: list[list[int]], sizes: list[int]):
    sizes = dict(enumerate(sizes))
    assert stack_distances(requests, sizes).tolist() == by_definition(requests, sizes)


def test_distances_are_taken_when_the_request_arrives_not_as_its_keys_are_used():
    assert stack_distances([[1, 2], [3], [1, 2]]).tolist() == [NEVER, NEVER, NEVER, 2, 1]
