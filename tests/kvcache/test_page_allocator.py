"""PageAllocator against a model that keeps one plain list of blocks, and its promises one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import OutOfPages, PageAllocator


def test_allocated_pages_are_distinct_and_come_back():
    pool = PageAllocator(8, 2)
    a, b = pool.allocate(3), pool.allocate(5)
    assert sorted(a + b) == list(range(8))
    assert (pool.free, pool.used, pool.total) == (0, 8, 8)
    pool.release(a + b)
    assert (pool.free, pool.used) == (8, 0)
    pool.check()


def test_published_blocks_are_matched_and_shared():
    pool = PageAllocator(8, 2)
    pages = pool.allocate(4)
    pool.publish([10, 11], pages)
    assert pool.match([10, 11, 12]) == 2
    assert pool.match([11]) == 1
    assert pool.match([12, 10]) == 0
    assert pool.acquire([10, 12, 11]) == pages[:2]
    pool.release(pages)
    assert pool.used == 2
    pool.release(pages[:2])
    assert (pool.used, pool.free, pool.match([10, 11])) == (0, 8, 2)
    pool.check()


def test_the_least_recently_used_block_is_evicted_first_and_only_when_needed():
    pool = PageAllocator(6, 2)
    pages = pool.allocate(6)
    pool.publish([1, 2, 3], pages)
    pool.release(pages)
    pool.release(pool.acquire([1]))
    private = pool.allocate(2)
    assert [pool.match([key]) for key in (1, 2, 3)] == [1, 0, 1]
    pool.release(private)
    pool.allocate(2)
    assert [pool.match([key]) for key in (1, 2, 3)] == [1, 0, 1]


def test_referenced_blocks_are_never_evicted():
    pool = PageAllocator(4, 2)
    pages = pool.allocate(4)
    pool.publish([1, 2], pages)
    pool.release(pages[:2])
    with pytest.raises(OutOfPages, match="3 pages asked, 2 of 4 free"):
        pool.allocate(3)
    assert pool.match([1, 2]) == 2
    assert set(pool.allocate(2)) == set(pages[:2])
    assert (pool.match([1]), pool.match([2])) == (0, 1)
    pool.check()


def test_a_block_with_one_page_still_in_use_is_not_evictable():
    pool = PageAllocator(2, 2)
    pages = pool.allocate(2)
    pool.publish([1], pages)
    pool.release(pages[:1])
    assert pool.free == 0
    pool.release(pages[1:])
    assert pool.free == 2
    pool.check()


def test_a_key_published_twice_keeps_its_first_pages():
    pool = PageAllocator(4, 2)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.publish([1], first)
    pool.publish([1], second)
    pool.publish([1], first)
    pool.release(second)
    assert pool.free == 2
    assert pool.acquire([1]) == first
    pool.check()


def test_clear_forgets_blocks_but_not_the_references_to_them():
    pool = PageAllocator(4, 2)
    pages = pool.allocate(4)
    pool.publish([1, 2], pages)
    pool.release(pages[:2])
    pool.clear()
    assert (pool.match([1]), pool.match([2]), pool.free) == (0, 0, 2)
    pool.check()
    pool.release(pages[2:])
    assert pool.free == 4
    pool.check()


def test_a_double_release_is_refused_whole():
    pool = PageAllocator(4, 2)
    pages = pool.allocate(2)
    with pytest.raises(ValueError, match="released too often"):
        pool.release([pages[1], pages[0], pages[0]])
    assert pool.used == 2
    pool.release(pages)
    with pytest.raises(ValueError, match="released too often"):
        pool.release(pages[:1])
    with pytest.raises(ValueError, match="page 4 is unknown"):
        pool.release([4])
    with pytest.raises(ValueError, match="page -1 is unknown"):
        pool.release([-1])
    pool.check()


def test_pages_that_cannot_be_a_block_are_not_published():
    pool = PageAllocator(6, 2)
    pages = pool.allocate(4)
    with pytest.raises(ValueError, match="1 pages for 1 blocks"):
        pool.publish([1], pages[:1])
    with pytest.raises(ValueError, match="given twice"):
        pool.publish([1], [pages[0], pages[0]])
    with pytest.raises(ValueError, match="0 references"):
        pool.publish([1], [pages[0], 5])
    pool.publish([1], pages[:2])
    with pytest.raises(ValueError, match="belongs to block 0x1"):
        pool.publish([2], pages[1:3])
    pool.check()


@pytest.mark.parametrize("sizes", [(0, 1), (4, 0)])
def test_sizes_below_one_are_the_users_mistake(sizes: tuple[int, int]):
    with pytest.raises(UserError, match="at least 1 page"):
        PageAllocator(*sizes)


class _NaiveModel:
    """Blocks in one list, least recently used first; references counted by looking through all holders."""

    def __init__(self, pages: int, width: int):
        self.pages, self.width = pages, width
        self.cached: list[tuple[int, tuple[int, ...]]] = []
        self.holders: list[list[int]] = []

    def refs(self, page: int) -> int:
        return sum(holder.count(page) for holder in self.holders)

    def evictable(self) -> list[int]:
        return [key for key, block in self.cached if not any(self.refs(p) for p in block)]

    def free(self) -> int:
        cached_pages = {p for key, block in self.cached if key not in self.evictable() for p in block}
        return sum(1 for p in range(self.pages) if not self.refs(p) and p not in cached_pages)

    def match(self, keys: list[int]) -> int:
        known = dict(self.cached)
        return next((i for i, key in enumerate(keys) if key not in known), len(keys))

    def make_room(self, n: int) -> None:
        while True:
            plain = [p for p in range(self.pages) if not self.refs(p) and all(p not in block for _, block in self.cached)]
            if len(plain) >= n:
                return
            victim = self.evictable()[0]
            self.cached = [entry for entry in self.cached if entry[0] != victim]

    def release(self, holder: list[int]) -> None:
        self.holders.remove(holder)
        for page in holder:
            for entry in list(self.cached):
                if page == entry[1][-1] and not any(self.refs(p) for p in entry[1]):
                    self.cached.remove(entry)
                    self.cached.append(entry)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["run", "run", "run", "finish", "finish", "clear"]), st.integers(0, 9)), max_size=40),
)
def test_any_sequence_of_requests_agrees_with_the_naive_model(width: int, steps: list[tuple[str, int]]):
    """Each `run` is a request as an engine makes it: acquire the prefix, allocate the rest, publish; `finish` releases."""
    total = 5 * width + 1
    pool, model = PageAllocator(total, width), _NaiveModel(total, width)
    prompts = [[1], [1, 2], [1, 2, 3], [4], [4, 5], [6, 7, 8], [9], [1, 5], [6], [4, 2, 3]]
    for action, which in steps:
        if action == "run":
            keys = prompts[which]
            assert pool.match(keys) == model.match(keys)
            shared = pool.acquire(keys)
            assert len(shared) == model.match(keys) * width
            assert shared == [p for key in keys[: model.match(keys)] for p in dict(model.cached)[key]]
            model.holders.append(shared)
            missing = len(keys) * width - len(shared) + 1
            assert pool.free == model.free()
            if missing > model.free():
                with pytest.raises(OutOfPages):
                    pool.allocate(missing)
                pool.release(shared)
                model.release(shared)
            else:
                model.make_room(missing)
                fresh = pool.allocate(missing)
                assert all(model.refs(page) == 0 for page in fresh)
                pages = shared + fresh
                model.holders.remove(shared)
                model.holders.append(pages)
                pool.publish(keys, pages[:-1])
                for i, key in enumerate(keys):
                    if key not in dict(model.cached):
                        model.cached.append((key, tuple(pages[i * width : (i + 1) * width])))
        elif action == "finish" and model.holders:
            holder = model.holders[which % len(model.holders)]
            pool.release(holder)
            model.release(holder)
        elif action == "clear":
            pool.clear()
            model.cached = []
        pool.check()
        assert pool.free == model.free()
        assert [pool.match([key]) for key in range(10)] == [model.match([key]) for key in range(10)]
    for holder in list(model.holders):
        pool.release(holder)
        model.release(holder)
    assert pool.free == pool.total
    pool.check()
