"""Books of the pages of one device pool, with prefix caching. No bytes: a page is an index into the engine's KV arrays.

A page is in one of three conditions:

    free       on the free list, refcount 0
    private    refcount >= 1, known to its holders only
    published  one of the pages of a cached block, refcount >= 0

A block is *evictable* while every page of it has refcount 0. Evictable blocks leave, least recently used first, only when an
allocation needs their pages. A block is used when it is acquired and until it is released, and blocks are visited in the order
given: first key to last.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from mooncake_jax.errors import UserError


class OutOfPages(Exception):
    """The pool cannot give the pages asked for. Nothing has changed; retry after a release."""

    def __init__(self, needed: int, free: int, total: int):
        super().__init__(f"{needed} pages asked, {free} of {total} free or evictable; wait for a release or enlarge the pool")
        self.needed = needed
        self.free = free


class PageAllocator:
    """References, prefix cache and LRU eviction over `num_pages` pages, `pages_per_block` of which hold one block.

    Raises UserError for a pool of no page or a block of no page.
    """

    def __init__(self, num_pages: int, pages_per_block: int):
        if num_pages < 1:
            raise UserError(f"num_pages is {num_pages}; a device pool needs at least 1 page")
        if pages_per_block < 1:
            raise UserError(f"pages_per_block is {pages_per_block}; a block needs at least 1 page")
        self.total = num_pages
        self.pages_per_block = pages_per_block
        self._refs = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._key_of: dict[int, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages that `allocate` can give now: the free list and all evictable blocks."""
        return len(self._free) + len(self._evictable) * self.pages_per_block

    @property
    def used(self) -> int:
        """Pages that a live request keeps from being given away."""
        return self.total - self.free

    def match(self, keys: Sequence[int]) -> int:
        """Leading blocks of `keys` that are cached. No side effect."""
        for i, key in enumerate(keys):
            if key not in self._blocks:
                return i
        return len(keys)

    def acquire(self, keys: Sequence[int]) -> list[int]:
        """Reference the leading cached blocks of `keys` and return their pages in order, `match(keys)` blocks of them.

        The caller owns one reference to each page and gives it back with `release`, also when a following `allocate` raises.
        """
        pages: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            self._evictable.pop(key, None)
            for page in block:
                self._refs[page] += 1
            pages.extend(block)
        return pages

    def allocate(self, n: int) -> list[int]:
        """`n` private pages with one reference each, evicting least recently used cached blocks as needed.

        Raises OutOfPages, with nothing changed, when fewer than `n` pages are free.
        """
        if n < 0:
            raise ValueError(f"{n} pages asked; the number must not be negative")
        if n > self.free:
            raise OutOfPages(n, self.free, self.total)
        while len(self._free) < n:
            key, _ = self._evictable.popitem(last=False)
            self._free.extend(reversed(self._forget(key)))
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def publish(self, keys: Sequence[int], pages: Sequence[int]) -> None:
        """Register computed whole blocks so that later requests can acquire them.

        `pages` holds `pages_per_block` pages for each key, in order, all referenced by the caller. Where a key is cached
        already its pages stay and the caller's remain private, so republishing acquired pages is harmless.

        Raises ValueError, with nothing changed, for wrong lengths, an unreferenced page, a page given twice, or one that
        belongs to another block.
        """
        width = self.pages_per_block
        if len(pages) != len(keys) * width:
            raise ValueError(f"{len(pages)} pages for {len(keys)} blocks of {width} pages each")
        if len(set(pages)) != len(pages):
            raise ValueError(f"a page is given twice in {list(pages)}")
        for i, page in enumerate(pages):
            self._require_references(page, 1)
            key = keys[i // width]
            owner = self._key_of.get(page)
            if owner is not None and (owner != key or self._blocks[owner][i % width] != page):
                raise ValueError(f"page {page} belongs to block {owner:#x} already; it cannot hold block {key:#x} too")
        for i, key in enumerate(keys):
            if key not in self._blocks:
                block = tuple(pages[i * width : (i + 1) * width])
                self._blocks[key] = block
                for page in block:
                    self._key_of[page] = key

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference from each page: a private one becomes free, a published block evictable (most recently used).

        Raises ValueError, with nothing changed, for an unknown page or one released more often than it is referenced.
        """
        for page, times in Counter(pages).items():
            self._require_references(page, times)
        for page in pages:
            self._refs[page] -= 1
            if self._refs[page]:
                continue
            key = self._key_of.get(page)
            if key is None:
                self._free.append(page)
            elif not any(self._refs[p] for p in self._blocks[key]):
                self._evictable[key] = None

    def clear(self) -> None:
        """Forget all cached blocks: unreferenced pages become free, referenced ones private to their holders."""
        for key in list(self._blocks):
            for page in self._forget(key):
                if not self._refs[page]:
                    self._free.append(page)
        self._evictable.clear()

    def check(self) -> None:
        """Assert the invariants of the books; for tests and for hunting a leak."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        assert all(refs >= 0 for refs in self._refs), "a negative refcount"
        assert self._key_of == {p: key for key, block in self._blocks.items() for p in block}, "page and block books differ"
        for page, refs in enumerate(self._refs):
            assert (page in free) == (refs == 0 and page not in self._key_of), f"page {page} is lost or wrongly free"
        for key, block in self._blocks.items():
            assert len(block) == self.pages_per_block, f"block {key:#x} has {len(block)} pages"
            unused = not any(self._refs[page] for page in block)
            assert (key in self._evictable) == unused, f"block {key:#x} is wrongly evictable, or wrongly not"
        assert self._evictable.keys() <= self._blocks.keys(), "an evictable block is not cached"

    def _forget(self, key: int) -> tuple[int, ...]:
        block = self._blocks.pop(key)
        for page in block:
            del self._key_of[page]
        return block

    def _require_references(self, page: int, times: int) -> None:
        if not 0 <= page < self.total:
            raise ValueError(f"page {page} is unknown; the pool has pages 0..{self.total - 1}")
        if self._refs[page] < times:
            raise ValueError(f"page {page} has {self._refs[page]} references, {times} needed; it was released too often")
