"""Every shape that a program is compiled for comes from here: powers of two between bounds, so they are few."""


def buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """Sizes smallest·2ⁱ below `largest`, and `largest`: what `bucket` may answer."""
    sizes = []
    size = min(smallest, largest)
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def bucket(n: int, smallest: int, largest: int) -> int:
    """The smallest size of `buckets(smallest, largest)` that holds `n`. Raises ValueError if none does."""
    for size in buckets(smallest, largest):
        if n <= size:
            return size
    raise ValueError(f"{n} exceeds the largest shape, {largest}")
