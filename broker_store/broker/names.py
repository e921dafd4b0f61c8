"""The names of many topics or groups in order and by kind, so that a page of them needs no scan of all.

Several tables may hold a name (a group has settings, offsets, clients); it exists while one of them holds it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import overload

# Names in a block. Adding a name moves half of a block, and a slice of the order reads the length of each
# block before it.
BLOCK = 512
# New names that are added one by one; more are sorted together with those that exist. A request has at most
# 1,000.
MAX_ONE_BY_ONE = 1_000


Key = tuple[str, str]


def by_letters(name: str) -> Key:
    """Return the sort key of a name: first without regard to case, then with it."""
    folded = name.lower()
    return (name, name) if folded == name else (folded, name)  # most names need only one string


class _Order:
    """The keys of names in order, in blocks of at most 2 * BLOCK."""

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = [[]]
        self._lasts: list[Key] = []  # the last key of each block but the last one
        self.count = 0

    def add(self, key: Key) -> None:
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        insort(block, key)
        self.count += 1
        if len(block) > 2 * BLOCK:
            self._blocks[at : at + 1] = block[:BLOCK], block[BLOCK:]
            self._lasts.insert(at, block[BLOCK - 1])

    def add_all(self, keys: list[Key]) -> None:
        """Add many keys by one sort."""
        keys = sorted(chain(*self._blocks, keys))
        self._blocks = [keys[begin : begin + BLOCK] for begin in range(0, len(keys), BLOCK)] or [[]]
        self._lasts = [block[-1] for block in self._blocks[:-1]]
        self.count = len(keys)

    def remove(self, key: Key) -> None:
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        self.count -= 1
        if not block and len(self._blocks) > 1:
            del self._blocks[at]
            del self._lasts[min(at, len(self._lasts) - 1)]

    def slice(self, begin: int, count: int) -> list[str]:
        found: list[str] = []
        for block in self._blocks:
            if begin < len(block):
                found += [name for _, name in block[begin : begin + count - len(found)]]
                if len(found) >= count:
                    break
            begin = max(0, begin - len(block))
        return found

    def all(self) -> NameList:
        return NameList(self._blocks)

    def after(self, key: Key, count: int) -> list[str]:
        at = bisect_left(self._lasts, key)
        begin = bisect_right(self._blocks[at], key)
        found: list[str] = []
        for block in self._blocks[at:]:
            found += [name for _, name in block[begin : begin + count - len(found)]]
            begin = 0
            if len(found) >= count:
                break
        return found


class NameList(Sequence[str]):
    """Names in order as of one moment. Creating one copies the blocks, not the names: 0.2 ms for 100,000."""

    def __init__(self, blocks: Iterable[list[Key]]):
        self._blocks = [block.copy() for block in blocks]
        self._ends = list(accumulate(map(len, self._blocks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        return (name for block in self._blocks for _, name in block)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, int):
            return self[at : at + 1 or None][0]
        begin, end, step = at.indices(len(self))
        if step != 1:
            return list(self)[at]
        found: list[str] = []
        number = bisect_right(self._ends, begin)
        while number < len(self._blocks) and begin < end:
            block_begin = self._ends[number] - len(self._blocks[number])
            found += [name for _, name in self._blocks[number][begin - block_begin : end - block_begin]]
            begin, number = self._ends[number], number + 1
        return found


class Names:
    """Names by kind; `kind_of(name)` never changes for a name. Used on the loop; all results are copies."""

    def __init__(self, kind_of: Callable[[str], str]):
        self._kind_of = kind_of
        self._holders: dict[str, int] = {}
        self._all = _Order()
        self._by_kind: dict[str, _Order] = {}

    def __len__(self) -> int:
        return self._all.count

    def __contains__(self, name: str) -> bool:
        return name in self._holders

    def add(self, name: str) -> None:
        """Note that one more table holds `name`."""
        holders = self._holders.get(name, 0)
        self._holders[name] = holders + 1
        if not holders:
            key = by_letters(name)
            self._all.add(key)
            self._of(self._kind_of(name)).add(key)

    def add_all(self, names: Iterable[str]) -> None:
        """Call `add` for many names, faster."""
        by_kind: dict[str, list[Key]] = {}
        for name in names:
            if name not in self._holders:
                by_kind.setdefault(self._kind_of(name), []).append(by_letters(name))
            self._holders[name] = self._holders.get(name, 0) + 1
        for kind, new in by_kind.items():
            for order in (self._all, self._of(kind)):
                if len(new) <= MAX_ONE_BY_ONE:
                    for key in new:
                        order.add(key)
                else:
                    order.add_all(new)

    def discard(self, name: str) -> None:
        """Note that one table less holds `name`; without effect when none did."""
        holders = self._holders.pop(name, 0)
        if holders > 1:
            self._holders[name] = holders - 1
        elif holders:
            key = by_letters(name)
            self._all.remove(key)
            self._of(self._kind_of(name)).remove(key)

    def count(self, kind: str | None = None) -> int:
        """Return the number of names, of a kind or of all."""
        return self._of(kind).count

    def all(self, kind: str | None = None) -> NameList:
        """Return all names in order, of a kind or of all."""
        return self._of(kind).all()

    def slice(self, begin: int, count: int, kind: str | None = None) -> list[str]:
        """Return `count` names from the `begin`-th on."""
        return self._of(kind).slice(begin, count)

    def after(self, name: str | None, count: int, kind: str | None = None) -> list[str]:
        """Return the first `count` names after `name`, which need not exist; None starts at the first."""
        order = self._of(kind)
        return order.slice(0, count) if name is None else order.after(by_letters(name), count)

    def _of(self, kind: str | None) -> _Order:
        if kind is None:
            return self._all
        order = self._by_kind.get(kind)
        if order is None:
            order = self._by_kind[kind] = _Order()
        return order
