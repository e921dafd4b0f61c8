"""Repair of the index after a crash: cut after the entries that agree with the log, link its files again.

    header    count, slots used, times, offsets
    slots     by hash the number of the newest entry   <- not append-only: written at random places
    entries   hash, log offset, seconds, previous      <- append-only, in the order of the log

After a crash any page of a file may be old. Entries are kept as far as they agree with the log. Slots and
header are kept only where they follow from the entries (docs/durability.md section 5), else they are computed
from them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.region import Region
from broker_store.engine.index.files import IndexFile
from broker_store.engine.index.places import IndexPlace, PassedEntries, entries_in_order
from broker_store.formats import index_file
from broker_store.formats.index_file import FIRST_ENTRY, HEADER, IndexHeader
from broker_store.kernels.index import link_slots, settle_entries, slots_used
from broker_store.kernels.scan import data_end

_MAX_SECONDS = 2**31 - 1  # that an entry can state


def cut_index(
    files: list[IndexFile],
    place: IndexPlace,
    first_unsure: int,
    keep_away: Callable[[Path], None],
    stored_ms: Callable[[int], int | None],
) -> tuple[int, int, int]:
    """Keep only the entries before `place` of records below its log offset, in order; link files again that
    are not linked right.

    Files without any such entry are passed to `keep_away`. Return (entries cut, files gone, files linked
    again). Slots and header are kept only where they follow from the entries: this is checked in the last
    file, and in those from number `first_unsure` on, of which not everything was synced. `stored_ms` returns
    the store time of the record at a log offset, None when the log does not hold it any more.
    """
    entries_cut = gone = 0
    while files:
        file = files[-1]
        count = file.bounded_count
        most = (
            place.entry if len(files) - 1 == place.file else None if len(files) <= place.file else FIRST_ENTRY
        )
        good, last = entries_in_order(file, place.log_offset, most)
        if good > FIRST_ENTRY or len(files) == 1:
            entries_cut += count - good
            break
        entries_cut += count - FIRST_ENTRY
        file.unmap()
        files.pop()
        keep_away(file.path)
        gone += 1
    linked = 0
    for file in files[first_unsure:-1]:
        used, is_new = _link(file, file.bounded_count)
        stamp = file.header()._replace(slots_used=used, count=file.bounded_count)
        if stamp != file.header():
            file.map().write(0, index_file.encode_header(stamp))
        linked += is_new
    if files:
        linked += _cut_file(files[-1], good, last, stored_ms(last))
    return entries_cut, gone, linked


def _cut_file(file: IndexFile, good: int, last: int, end_ms: int | None) -> bool:
    """Keep entries below number `good`; the last of them is of a record at `last`, stored at `end_ms`. Return
    True when the file was linked again."""
    region, header = file.map(), file.header()
    stamp = IndexHeader(0, 0, 0, 0, 0, FIRST_ENTRY)
    if good > FIRST_ENTRY:
        if end_ms is None:
            end_ms = header.begin_timestamp + file.entry(good - 1).seconds * 1000
        stamp = IndexHeader(header.begin_timestamp, end_ms, header.begin_offset, last, 0, good)
    end = file.geometry.entry_at(good)
    if data_end(region.address, end, max(end, region.data_end())) > end:
        region.punch(end)
    used, is_new = _link(file, good)
    stamp = stamp._replace(slots_used=used)
    if stamp != header:
        region.write(0, index_file.encode_header(stamp))
    file.allocated_entries = good
    return is_new


def settle_passed(
    files: list[IndexFile], part: PassedEntries, keep_copy: Callable[[Path, Region], None]
) -> int:
    """Give entries of `part` that cannot belong to its records the offset and time of the entry before each;
    return how many there were.

    `keep_copy` is called with a file before it is changed. Without this change a lookup would end at such an
    entry, and miss the earlier entries of its chain. Slots and links must be made again afterwards
    (`cut_index`).
    """
    settled = 0
    for number in range(part.first.file, part.last.file + 1):
        file = files[number]
        begin = part.first.entry if number == part.first.file else FIRST_ENTRY
        end = part.last.entry if number == part.last.file else file.bounded_count
        if begin >= end:
            continue
        seconds = max(0, file.entry(begin - 1).seconds) if begin > FIRST_ENTRY else 0
        header = file.header()
        following = (
            file.entry(end).seconds
            if end < file.bounded_count
            else (header.end_timestamp - header.begin_timestamp) // 1000
        )
        bounds = (
            part.log_offset,
            part.log_end,
            seconds,
            following if seconds <= following < _MAX_SECONDS else _MAX_SECONDS,
        )
        entries = file.map().address + file.geometry.entries_at
        if settle_entries(entries, begin, end, *bounds, False):
            keep_copy(file.path, file.map())
            settled += settle_entries(entries, begin, end, *bounds, True)
    return settled


def is_linked(files: list[IndexFile], first: int) -> bool:
    """Return whether slots and links follow from the entries, in the files from number `first` on. Nothing
    changes."""
    return all(
        slots_used(file.map().address, file.geometry.slots, file.bounded_count) >= 0 for file in files[first:]
    )


def _link(file: IndexFile, count: int) -> tuple[int, bool]:
    """Link the entries of a file below `count`, if they are not linked right; return (slots used, whether it
    was linked again)."""
    region, slots = file.map(), file.geometry.slots
    used = slots_used(region.address, slots, count)
    if used >= 0:
        return used, False
    _zero(region, HEADER.size, file.geometry.entries_at - HEADER.size)
    return link_slots(region.address, slots, FIRST_ENTRY, count), True


def _zero(region: Region, offset: int, length: int) -> None:
    view = region.view(offset, length)
    for at in range(0, length, 1 << 20):
        view[at : at + (1 << 20)] = bytes(min(1 << 20, length - at))
    view.release()
