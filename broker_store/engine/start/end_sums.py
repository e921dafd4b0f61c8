"""Sums of queue and index files for the record of ends: read by position, in any thread, while the loop
writes."""

from __future__ import annotations

import numpy as np

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.files import IndexFile
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.start.ends import BOUND, FIRST_SUM, FileEnd, IndexEnd, QueueChange
from broker_store.errors import StoreError
from broker_store.formats import index_file, queue_unit
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, IndexGeometry
from broker_store.kernels.scan import sum_units

# 1.3 MB of an index file. A start compares only the last entries of each file: all would be 400 MB a file.
_MAX_ENTRIES = 65_536


def sum_of(raw: bytes, before: int = FIRST_SUM) -> int:
    """Return the sum of units, or of any bytes, which count as if zeros followed up to a whole unit."""
    padded = np.frombuffer(raw.ljust(-(-len(raw) // UNIT) * UNIT, b"\0"), np.uint8)
    return sum_units(padded.ctypes.data, len(padded) // UNIT, before)


def mapped_sum(file: MappedFile, count: int) -> int:
    """Return the sum of the first `count` units of a queue file, which is mapped meanwhile."""
    with file.mapped() as region:
        return sum_units(region.address, count, FIRST_SUM)


def queue_change(queue: ConsumeQueue, known: dict[int, FileEnd], following: int) -> QueueChange:
    """Return the new rows of a queue whose next unit is `following`; `known` are its rows so far. Raises
    StoreError."""
    forget = any(end.following > following for end in known.values())
    if forget:
        known = {}
    ends = []
    for file in list(queue.files):
        first, after = file.base // UNIT, min(file.end // UNIT, following)
        before = known.get(first)
        if first >= following:
            break
        if before is not None and before.following == after:
            continue
        start, total = (first, FIRST_SUM) if before is None else (before.following, before.sum)
        with queue.disk.open_reader(file.path) as reader:
            raw = reader.read(start * UNIT - file.base, (after - start) * UNIT)
        last = queue_unit.decode(raw, len(raw) - UNIT)
        ends.append(
            FileEnd(first, after, 0 if last.is_pre_blank else last.log_offset + last.size, sum_of(raw, total))
        )
    if not queue.files and following:
        ends.append(FileEnd(BOUND, following, 0, 0))
    return QueueChange(queue.topic, queue.queue_id, tuple(ends), forget)


def index_ends(index: HashIndex, known: tuple[IndexEnd, ...], with_slots: bool) -> tuple[IndexEnd, ...]:
    """Return a row for each index file. `with_slots` also sums the slots of the newest file, which must not
    be written then."""
    rows, by_name = [], {end.name: end for end in known}
    files = list(index.files)
    for file in files:
        before = by_name.get(int(file.name))
        is_newest = file is files[-1]
        try:
            # A row of the last close has a sum of the slots too, and entries may have been added since.
            if (
                not is_newest
                and before is not None
                and before.slots
                and (before.count >= file.geometry.entries or before.count == _count_of(file))
            ):
                rows.append(before)  # it gets no more entries
                continue
            rows.append(index_end(file, before, with_slots or not is_newest))
        except StoreError:
            continue  # the loop has removed it meanwhile
    return tuple(rows)


def index_end(file: IndexFile, before: IndexEnd | None, with_slots: bool) -> IndexEnd:
    """Return the row of one file as it is now; the sum of its entries continues from the row `before`. Raises
    StoreError."""
    geometry = file.geometry
    with file.disk.open_reader(file.path) as reader:
        raw = reader.read(0, HEADER.size)
        header = index_file.decode_header(raw)
        count = min(max(header.count, FIRST_ENTRY), geometry.entries)
        first = max(FIRST_ENTRY, count - _MAX_ENTRIES)
        total = sum_of(reader.read(geometry.entry_at(first), (count - first) * ENTRY.size), sum_of(raw))
        known = before if before is not None and before.count <= count else None
        begin, entries = (FIRST_ENTRY, FIRST_SUM) if known is None else (known.count, known.entries)
        entries = sum_of_entries(reader, geometry, begin, count, entries)
        slots = sum_of_slots(reader, geometry) if with_slots else 0
    if not with_slots and before is not None and (before.count, before.sum) == (count, total):
        slots = before.slots
    return IndexEnd(int(file.name), count, header.end_offset, total, entries, slots, geometry.file_bytes)


def _count_of(file: IndexFile) -> int:
    """Return the number of entries that the file's header states. Raises StoreError."""
    with file.disk.open_reader(file.path) as reader:
        return index_file.decode_header(reader.read(0, HEADER.size)).count


def sum_of_entries(
    reader: Reader, geometry: IndexGeometry, begin: int, end: int, before: int = FIRST_SUM
) -> int:
    """Return the sum of entries [begin, end), continued from the sum `before`."""
    total = before
    for at in range(begin, end, _MAX_ENTRIES):
        total = sum_of(
            reader.read(geometry.entry_at(at), (min(at + _MAX_ENTRIES, end) - at) * ENTRY.size), total
        )
    return total


def sum_of_slots(reader: Reader, geometry: IndexGeometry) -> int:
    return sum_of(reader.read(HEADER.size, geometry.entries_at - HEADER.size))


def ends_as_recorded(file: IndexFile, end: IndexEnd) -> bool:
    """Return whether header, last entries and, where they were recorded, slots of an index file have their
    recorded sums. Raises StoreError."""
    geometry = file.geometry
    with file.disk.open_reader(file.path) as reader:
        raw = reader.read(0, HEADER.size)
        header = index_file.decode_header(raw)
        if (header.count, header.end_offset, geometry.file_bytes) != (
            end.count,
            end.end_offset,
            end.file_bytes,
        ):
            return False
        first = max(FIRST_ENTRY, end.count - _MAX_ENTRIES)
        total = sum_of(reader.read(geometry.entry_at(first), (end.count - first) * ENTRY.size), sum_of(raw))
        return total == end.sum and (not end.slots or sum_of_slots(reader, geometry) == end.slots)


def has_recorded_entries(file: IndexFile, end: IndexEnd) -> bool:
    """Return whether all entries of an index file have their recorded sum; it reads the whole file. Raises
    StoreError."""
    with file.disk.open_reader(file.path) as reader:
        return sum_of_entries(reader, file.geometry, FIRST_ENTRY, end.count) == end.entries
