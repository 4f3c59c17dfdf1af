"""Bucketed shapes: few, and every size fits in one."""

import pytest

from mooncake_jax.engine.shapes import bucket, buckets


@pytest.mark.parametrize(
    ("smallest", "largest", "sizes"),
    [
        (16, 256, (16, 32, 64, 128, 256)),
        (16, 200, (16, 32, 64, 128, 200)),
        (1, 1, (1,)),
        (1, 6, (1, 2, 4, 6)),
        (16, 4, (4,)),
        (3, 13, (3, 6, 12, 13)),
    ],
)
def test_shapes_double_from_the_smallest_and_end_at_the_largest(smallest, largest, sizes):
    assert buckets(smallest, largest) == sizes


@pytest.mark.parametrize(("smallest", "largest"), [(1, 16), (4, 48), (3, 13), (16, 4)])
def test_every_size_gets_the_smallest_shape_that_holds_it(smallest, largest):
    for n in range(largest + 1):
        assert bucket(n, smallest, largest) == min(size for size in buckets(smallest, largest) if size >= n)


def test_what_fits_no_shape_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="17 exceeds the largest shape, 16"):
        bucket(17, 1, 16)
