"""Places in the index: the entry after those of the records below a log offset.

    file number      0                    1                    2
    entries          1 2 3 ... full     | 1 2 3 ... full     | 1 2 3 . 0 0 0 0
    log offsets      ascending ------------------------------------>
                                               ^ IndexPlace(file 1, entry 3, log offset of entry 2)

Entries are written in the order of the log, and all entries of a record before those of the next. So entries
that step back, or zeros, are what a crash left. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_store.engine.index.files import IndexFile
from broker_store.engine.rows import Words
from broker_store.formats.index_file import FIRST_ENTRY
from broker_store.kernels.index import entries_below


class IndexPlace(NamedTuple):
    """Where entries continue: the number of the file in `HashIndex.files`, the number of its next entry, and
    the log offset of the last entry (-1: none)."""

    file: int
    entry: int
    log_offset: int


class PassedEntries(NamedTuple):
    """Entries from `first` to before `last`: those of records from `log_offset` to before `log_end`, which
    cannot be compared."""

    first: IndexPlace
    last: IndexPlace
    log_offset: int
    log_end: int


def place_of(files: list[IndexFile], log_offset: int) -> IndexPlace:
    """Return the place after the entries of records below `log_offset`: the leading entries that are in
    order, up to the first that steps back."""
    for number in reversed(range(len(files))):
        entry, last = entries_in_order(files[number], log_offset)
        if entry > FIRST_ENTRY or number == 0:
            return IndexPlace(number, entry, last)
    return IndexPlace(0, FIRST_ENTRY, -1)


def whole_place_of(
    files: list[IndexFile], log_offset: int, log_minimum: int, begins_record: Callable[[int], bool]
) -> IndexPlace:
    """Return the place of `place_of`, moved before the entries of its last whole record, if the log has that
    record: damage may have taken some of its entries.

    `begins_record` returns whether a good record begins at a log offset: an entry whose record does not begin
    there is damaged. If the entry after the place steps back, the entries before it may state wrong offsets:
    then the place is before that file. At a file's end the place is moved back by one more record: it is not
    known whether the next file is the original one, or lacks entries of that record.
    """
    place = place_of(files, log_offset)
    while place.log_offset >= log_minimum and not _steps_back_at(files, place):
        before = place_of(files, place.log_offset)
        if _goes_on_with(files, before, place.log_offset) and begins_record(place.log_offset):
            return _within_file(files, before)
        place = before  # it stopped at damage: entries of its last record may lie there too
    return place_before(files, place.file) if _steps_back_at(files, place) else place


def place_before(files: list[IndexFile], number: int) -> IndexPlace:
    """Return the place after the entries that are whole in the files before number `number`: the next file
    may hold some of the last record."""
    for before in reversed(range(number)):
        file = files[before]
        end_offset = file.header().end_offset
        place = IndexPlace(before, *entries_in_order(file, end_offset))
        while place.entry > FIRST_ENTRY:
            if _goes_on_with(files, place, end_offset):
                return place
            end_offset = place.log_offset
            place = IndexPlace(before, *entries_in_order(file, end_offset))
    return IndexPlace(0, FIRST_ENTRY, -1)


def place_at_end(files: list[IndexFile]) -> IndexPlace:
    """Return the place after the last entry. After a clean stop all entries of its record are in the
    index."""
    number = next(
        (number for number in reversed(range(len(files))) if files[number].header().count > FIRST_ENTRY),
        None,
    )
    if number is None:
        return IndexPlace(0, FIRST_ENTRY, -1)
    header = files[number].header()
    return IndexPlace(number, header.count, header.end_offset)


def _within_file(files: list[IndexFile], place: IndexPlace) -> IndexPlace:
    """Return `place`, or at a file's end the one before the entries of its last record."""
    file = files[place.file]
    if FIRST_ENTRY < file.bounded_count <= place.entry:
        return IndexPlace(place.file, *entries_in_order(file, place.log_offset))
    return place


def _steps_back_at(files: list[IndexFile], place: IndexPlace) -> bool:
    """Return whether the entry at `place` belongs to an earlier record than the entry before it. Zeros, which
    a crash leaves, do not count."""
    if not files:
        return False
    file = files[place.file]
    return (
        FIRST_ENTRY < place.entry < file.bounded_count
        and 0 < file.entry(place.entry).log_offset < place.log_offset
    )


def _goes_on_with(files: list[IndexFile], place: IndexPlace, log_offset: int) -> bool:
    """Return whether the entry at `place`, or the first of the next file, belongs to the record at
    `log_offset`."""
    file, entry = files[place.file], place.entry
    if entry >= file.bounded_count and place.file + 1 < len(files):
        file, entry = files[place.file + 1], FIRST_ENTRY
    return entry < file.bounded_count and file.entry(entry).log_offset == log_offset


def entries_in_order(file: IndexFile, log_offset: int, most: int | None = None) -> tuple[int, int]:
    """Return (next entry number, last log offset) of the leading entries that do not step back and lie below
    `log_offset`."""
    header, entries, limit = (
        file.header(),
        file.map().address + file.geometry.entries_at,
        file.bounded_count,
    )
    if most is not None:
        limit = min(limit, most)
    # A file whose entries never reached the disk holds zeros, which look like entries of the log's first
    # record.
    if limit <= FIRST_ENTRY or file.entry(FIRST_ENTRY).log_offset != header.begin_offset:
        return FIRST_ENTRY, -1
    last = Words(1)
    return entries_below(entries, limit, log_offset, last.address), last[0]
