"""An index file read the slow obvious way: every slot, every entry, every chain, one at a time in plain
Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import comb
from pathlib import Path

from broker_store.formats import index_file
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader


@dataclass
class PlainIndex:
    """What lies in a file."""

    geometry: IndexGeometry
    header: IndexHeader
    slots: list[int]
    entries: dict[int, IndexEntry]
    # Entry numbers by the slot that their hash falls into
    of_slot: dict[int, list[int]] = field(default_factory=dict)

    def used_in(self, first: int, last: int) -> int:
        """How many of the slots `first` to `last` name an entry that the file has room for."""
        return sum(0 < number < self.geometry.entries for number in self.slots[first : last + 1])

    def cells(self, per_cell: int) -> list[int]:
        return [
            self.used_in(first, first + per_cell - 1) for first in range(0, self.geometry.slots, per_cell)
        ]

    def chain(self, slot: int) -> list[int]:
        """The entry numbers that a lookup visits."""
        visited, number = [], self.slots[slot]
        while 0 < number < self.header.count:
            visited.append(number)
            if self.entries[number].previous >= number:
                break
            number = self.entries[number].previous
        return visited

    def lengths(self) -> Counter[int]:
        """How many slots have so many entries, however they are linked."""
        return Counter(len(self.of_slot.get(slot, [])) for slot in range(self.geometry.slots))

    def unreachable(self) -> int:
        return sum(len(set(numbers) - set(self.chain(slot))) for slot, numbers in self.of_slot.items())

    def even(self, length: int) -> float:
        """How many slots an even hash would give so many entries."""
        n, share = len(self.entries), 1 / self.geometry.slots
        return self.geometry.slots * comb(n, length) * share**length * (1 - share) ** (n - length)


def read(path: Path, geometry: IndexGeometry) -> PlainIndex:
    content = path.read_bytes()
    assert len(content) == geometry.file_bytes
    header = index_file.decode_header(content)
    header = header._replace(count=min(header.count, geometry.entries))
    slots = [index_file.decode_slot(content, geometry.slot_at(slot)) for slot in range(geometry.slots)]
    entries = {
        number: index_file.decode_entry(content, geometry.entry_at(number))
        for number in range(1, header.count)
    }
    plain = PlainIndex(geometry, header, slots, entries)
    for number, entry in entries.items():
        if entry.key_hash >= 0:
            plain.of_slot.setdefault(entry.key_hash % geometry.slots, []).append(number)
    return plain
