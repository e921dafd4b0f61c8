"""The index: from a topic's key to log offsets, in files of slots and entries that fill up one after another.

A file is named by the time of its making. The dispatch kernel fills the last one; queries walk all, newest
first (docs/spec/store-format.md section 5): through the maps on the loop (kernels/lookup.py) while each page
touched is known to be in memory, else as a whole by position in another thread (`IndexWalk`). Why a page at a
time: of a file of 420 MB some pages are always missing, those not written yet among them, and to ask about
all of them takes 5.6 ms; a block of 64 takes 6 µs. Room for the keys of a message is reserved before the
message is appended: KEY_ROOM counts entries with blocks in the file being filled and in the spares behind it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk import Disk, Reader, Region
from broker_store.engine.residency import Residency
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import index_file, properties
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, SLOT, IndexGeometry, IndexHeader
from broker_store.kernels import context as c
from broker_store.kernels.index import entries_below, link_slots, settle_entries, slots_used
from broker_store.kernels.scan import data_end

ENTRY_STRIDE = 16 << 20
_MOST_FOUND = 4096
_MOST_SECONDS = 2**31 - 1  # that an entry can state
_WORTH_A_SPARE = 100_000  # entries; a smaller file is made in the turn that needs it


def local_time_name(now_ms: int) -> str:
    """yyyyMMddHHmmssSSS in the host's zone, as Apache names index files."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"


class IndexFile:
    """One file. Each kernel call that adds entries ends by writing the header, so the map always has the
    present one."""

    def __init__(self, disk: Disk, path: Path, geometry: IndexGeometry, region: Region | None):
        self.disk, self.path, self.geometry, self.region = disk, path, geometry, region
        self.allocated_entries = geometry.entries
        self.synced = False
        self.entered_in: Words | None = None  # the words of a lookup that know where it is mapped
        self._residency: Residency | None = None
        self._reader: Reader | None = None

    @property
    def name(self) -> str:
        return self.path.name

    def map(self) -> Region:
        if self.region is None:
            self.region = self.disk.open_region(self.path).at_least(self.geometry.file_bytes)
        return self.region

    def unmap(self) -> None:
        if self.entered_in is not None:
            self.entered_in[c.K_FILE_COUNT] = -1
            self.entered_in = None
        if self.region is not None:
            self.region.close()
            self.region = self._residency = None
        self._reader = None

    @property
    def residency(self) -> Residency:
        """What is known about the map's pages; it goes with the map."""
        if self._residency is None:
            self._residency = Residency(self.map())
        return self._residency

    @property
    def reader(self) -> Reader:
        """For another thread, in which the file may be gone before it is read: the last that holds the reader
        closes it. Nothing waits here, since a mapped file's name is in memory."""
        if self._reader is None:
            self.map()
            self._reader = self.disk.open_reader(self.path)
        return self._reader

    def header(self) -> IndexHeader:
        return index_file.decode_header(self.map().read(0, HEADER.size))

    @property
    def bounded_count(self) -> int:
        """The header's count, which after a crash may be any number, kept within the file."""
        return min(max(self.header().count, FIRST_ENTRY), self.geometry.entries)

    def give_entries(self, to: int) -> None:
        """Blocks for entry numbers below `to`. Raises DiskFullError."""
        to = min(to, self.geometry.entries)
        if to > self.allocated_entries:
            start = self.geometry.entry_at(self.allocated_entries)
            self.map().allocate(start, self.geometry.entry_at(to) - start)
            self.allocated_entries = to

    def entry(self, number: int) -> index_file.IndexEntry:
        return index_file.decode_entry(self.map().read(self.geometry.entry_at(number), ENTRY.size))


class IndexPlace(NamedTuple):
    """Where entries go on: the number of the file in `HashIndex.files`, that of its next entry, and the last
    one's log offset (-1: none)."""

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


class HashIndex:
    """All index files. Loop thread only, but for `prepare` (preallocator) and `sync` (flusher)."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        geometry: IndexGeometry,
        context: WriterContext,
        clock: Callable[[], int],
    ):
        self.disk, self.directory, self.geometry, self._context, self._clock = (
            disk,
            directory,
            geometry,
            context,
            clock,
        )
        self.files: list[IndexFile] = []
        self.spares: list[IndexFile] = []
        # Guards the making of files and the giving of blocks: the preallocator does both ahead of the loop.
        self._guard = threading.Lock()
        self.current: IndexFile | None = None
        self._found, self._maps, self._known, self._lookup = (
            Words(_MOST_FOUND),
            Words(16),
            Words(16),
            Words(c.K_WORDS),
        )
        self._lookup[c.K_FILE_COUNT] = -1
        self._lookup[c.K_SLOTS], self._lookup[c.K_ENTRIES] = geometry.slots, geometry.entries
        self._lookup[c.K_FOUND], self._lookup[c.K_FOUND_ROOM] = self._found.address, _MOST_FOUND
        self._new_names = False

    # Opening --------------------------------------------------------------------------------------

    def load(self, take_away: Callable[[Path, int], bool] = lambda path, length: False) -> None:
        """Find the files. Another name or length is refused: DamagedStoreError; one of length 0 was made and
        never used.

        Directories are passed over, but for one in the place of a file: a file of that name could not be
        made. `take_away(path, length)` may take a file of another length out of the directory; it says
        whether it did.
        """
        self.files = []
        self._lookup[c.K_FILE_COUNT] = -1
        for name in self.disk.list_names(self.directory):
            path = self.directory / name
            if not index_file.is_name(name):
                if self.disk.is_directory(path):
                    continue
                raise DamagedStoreError(
                    "is no index file (its name must be a time of 17 digits)",
                    file=str(path),
                    advice="Move it out of this directory.",
                )
            length = self.disk.size_of(path)
            if length == 0:
                self.disk.unlink(path)
                continue
            if length != self.geometry.file_bytes and take_away(path, length):
                continue
            if length != self.geometry.file_bytes:
                raise DamagedStoreError(
                    f"has {length} bytes, expected {self.geometry.file_bytes}"
                    f" (maxHashSlotNum={self.geometry.slots}, maxIndexNum={self.geometry.entries})",
                    file=str(path),
                    advice="Set both as the store was written with, or move the file away: it is built "
                    "again from the log"
                    " for what the log still holds.",
                )
            self.files.append(IndexFile(self.disk, path, self.geometry, None))

    def start_writing(self) -> None:
        """Fill the last file, if there is one; the first dispatch makes one otherwise."""
        if self.files:
            self._enter(self.files[-1], self.files[-1].header())
        self.refresh_room()

    def _enter(self, file: IndexFile, header: IndexHeader) -> None:
        view = self._context.view
        self.current = file
        view[c.INDEX_ADDRESS] = file.map().address
        view[c.INDEX_SLOTS] = file.geometry.slots
        view[c.INDEX_LIMIT] = file.geometry.entries
        view[c.INDEX_COUNT] = header.count
        view[c.INDEX_ALLOCATED] = file.allocated_entries
        view[c.INDEX_BEGIN_MS] = header.begin_timestamp
        view[c.INDEX_END_MS] = header.end_timestamp
        view[c.INDEX_BEGIN_OFFSET] = header.begin_offset
        view[c.INDEX_END_OFFSET] = header.end_offset
        view[c.INDEX_SLOTS_USED] = header.slots_used

    def _create(self, stamp: IndexHeader) -> IndexFile:
        self.disk.make_directory(self.directory)
        # Names must ascend, though two files of a millisecond, a clock put back and the end of summer time
        # say otherwise.
        newest = max((int(file.name) for file in (*self.files, *self.spares)), default=0)
        path = (
            self.directory
            / f"{max(int(local_time_name(self._clock())), newest + 1):0{index_file.NAME_DIGITS}d}"
        )
        file = IndexFile(
            self.disk, path, self.geometry, self.disk.create_region(path, self.geometry.file_bytes)
        )
        file.allocated_entries = 0
        try:
            file.map().allocate(0, self.geometry.entry_at(0))
            file.give_entries(ENTRY_STRIDE // ENTRY.size)
        except BaseException:
            file.unmap()
            self.disk.unlink(path, missing_ok=True)
            raise
        file.map().write(0, index_file.encode_header(stamp))
        return file

    # Filling --------------------------------------------------------------------------------------

    def refresh_room(self) -> None:
        view = self._context.view
        room = view[c.INDEX_ALLOCATED] - view[c.INDEX_COUNT] if self.current is not None else 0
        room += sum(spare.allocated_entries - FIRST_ENTRY for spare in self.spares)
        view[c.KEY_ROOM] = room

    def give_room(self, keys: int) -> None:
        """Entries with blocks for `keys` more keys, those queued included. Raises DiskFullError."""
        with self._guard:
            self._give_room(keys)

    def _give_room(self, keys: int) -> None:
        view = self._context.view
        if self.current is None:
            self._next_file()
        while True:
            self.refresh_room()
            missing = keys - view[c.KEY_ROOM]
            if missing <= 0:
                return
            stride = max(missing, ENTRY_STRIDE // ENTRY.size)
            if self.current.allocated_entries < self.geometry.entries:
                self.current.give_entries(self.current.allocated_entries + stride)
                view[c.INDEX_ALLOCATED] = self.current.allocated_entries
            elif self.spares and self.spares[-1].allocated_entries < self.geometry.entries:
                self.spares[-1].give_entries(self.spares[-1].allocated_entries + stride)
            else:
                self._add_spare()

    def _add_spare(self) -> None:
        self.spares.append(self._create(IndexHeader(0, 0, 0, 0, 0, FIRST_ENTRY)))

    def next_file(self) -> None:
        """The dispatch kernel found no file, or the current one full, or without blocks: mend that."""
        with self._guard:
            self._next_file()

    def _next_file(self) -> None:
        view = self._context.view
        if self.current is not None and view[c.INDEX_COUNT] < view[c.INDEX_LIMIT]:
            self.current.give_entries(view[c.INDEX_COUNT] + ENTRY_STRIDE // ENTRY.size)
            view[c.INDEX_ALLOCATED] = self.current.allocated_entries
            self.refresh_room()
            return
        stamp = IndexHeader(0, 0, 0, 0, 0, FIRST_ENTRY)
        if self.current is not None:
            # From the file: the context's end offset says only where dispatch goes on after a start.
            full = self.current.header()
            stamp = IndexHeader(
                full.end_timestamp, full.end_timestamp, full.end_offset, full.end_offset, 0, FIRST_ENTRY
            )
        following = self.spares.pop(0) if self.spares else self._create(stamp)
        following.map().write(0, index_file.encode_header(stamp))
        self.files.append(following)
        self._lookup[c.K_FILE_COUNT] = -1
        self._new_names = True
        self._enter(following, stamp)
        self.refresh_room()

    def prepare(self) -> bool:
        """The preallocator's step: blocks ahead, and a spare file when the current one is nine tenths
        full."""
        with self._guard:
            current = self.current
            if current is None:
                return False
            ahead = ENTRY_STRIDE // ENTRY.size // 2
            count = self._context.view[c.INDEX_COUNT]
            if (
                current.allocated_entries < self.geometry.entries
                and current.allocated_entries - count < ahead
            ):
                current.give_entries(current.allocated_entries + 2 * ahead)
                return True
            if (
                not self.spares
                and count > self.geometry.entries * 9 // 10
                and self.geometry.entries > _WORTH_A_SPARE
            ):
                self._add_spare()
                return True
            return False

    def adopt_prepared(self) -> None:
        """Loop: let the kernel use the blocks that the preallocator gave."""
        if (
            self.current is not None
            and self._context.view[c.INDEX_ALLOCATED] != self.current.allocated_entries
        ):
            self._context.view[c.INDEX_ALLOCATED] = self.current.allocated_entries
            self.refresh_room()

    @staticmethod
    def keys_of(encoded: bytes) -> int:
        """How many entries a record with these properties gets."""
        own = properties.decode(encoded)
        keys = sum(1 for key in own.get("KEYS", "").split(" ") if key)
        return keys + ("UNIQ_KEY" in own) + ("TAGS" in own)

    # Asking ---------------------------------------------------------------------------------------

    @property
    def lookup_address(self) -> int:
        """Address of the K_* words; `enter_files` brings them up to date when a lookup says so."""
        return self._lookup.address

    def enter_files(self) -> None:
        """Map all files and tell the kernels that look keys up where they are. Raises StoreError."""
        if len(self.files) > len(self._maps.array):
            self._maps, self._known = Words(2 * len(self.files)), Words(2 * len(self.files))
        for number, file in enumerate(reversed(self.files)):
            self._maps[number] = file.map().address
            self._known[number] = file.residency.address
            file.entered_in = self._lookup
        self._lookup[c.K_FILES], self._lookup[c.K_RESIDENCY] = self._maps.address, self._known.address
        self._lookup[c.K_FILE_COUNT] = len(self.files)

    def ask_pages(self, entered: int, place: int, size: int, round_number: int) -> bool:
        """Ask about pages of the file that is number `entered` in K_FILES; whether they are in memory."""
        return self.files[-1 - entered].residency.ask(place, size, round_number)

    def walk(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> IndexWalk:
        """A lookup by position, to be run in any thread: at most `most` entries. Raises StoreError."""
        return IndexWalk(
            [(file, file.reader) for file in reversed(self.files)], topic, key, most, begin_ms, end_ms
        )

    def newest(self) -> IndexHeader | None:
        return self.files[-1].header() if self.files else None

    def newest_used(self) -> IndexHeader | None:
        """As `newest` after `drop_unused`."""
        headers = [file.header() for file in self.files]
        return next(
            (header for header in reversed(headers) if header.count > FIRST_ENTRY),
            headers[0] if headers else None,
        )

    def facts(self) -> list[dict]:
        """A dict a file, oldest first (see MessageStore.index_files)."""
        return [self._facts_of(file) for file in self.files]

    def newest_facts(self) -> dict | None:
        """Of the newest file alone, however many there are; None without any."""
        return self._facts_of(self.files[-1]) if self.files else None

    def _facts_of(self, file: IndexFile) -> dict:
        header = file.header()
        full = header.count >= file.geometry.entries
        return {
            "name": file.name,
            "slots": file.geometry.slots,
            "slots_used": header.slots_used,
            "entries": header.count - FIRST_ENTRY,
            "max_entries": file.geometry.entries - FIRST_ENTRY,
            "begin_ms": header.begin_timestamp,
            "end_ms": header.end_timestamp,
            "begin_offset": header.begin_offset,
            "end_offset": header.end_offset,
            "state": "full" if full else "writing" if file is self.current else "read",
        }

    # After a crash --------------------------------------------------------------------------------

    def drop_unused(self) -> int:
        """Remove last files that never held an entry (a spare that a crash left), but not the only one; how
        many."""
        dropped = 0
        while len(self.files) > 1 and self.files[-1].header().count <= FIRST_ENTRY:
            file = self.files.pop()
            file.unmap()
            self.disk.unlink(file.path)
            dropped += 1
        if dropped:
            self.disk.sync_directory(self.directory)
        return dropped

    def place_of(self, log_offset: int) -> IndexPlace:
        """Behind the entries of records below `log_offset`: what is in order up to the first that steps back.
        Nothing changes."""
        for number in reversed(range(len(self.files))):
            entry, last = self._entries_below(self.files[number], log_offset)
            if entry > FIRST_ENTRY or number == 0:
                return IndexPlace(number, entry, last)
        return IndexPlace(0, FIRST_ENTRY, -1)

    def whole_place_of(
        self, log_offset: int, log_minimum: int, begins_record: Callable[[int], bool]
    ) -> IndexPlace:
        """As `place_of`, but before the entries of the last record there that begin whole, if the log has it:
        damage may have taken some.

        `begins_record` says whether a good record begins at an offset of the log: an entry whose record does
        not is damaged itself. Where an entry behind the place steps back, those before it may be of other
        records than they say: then it is before that file. At a file's end it is a record further back:
        whether the next file is the one that was there, or lacks entries of that record, is not known.
        """
        place = self.place_of(log_offset)
        while place.log_offset >= log_minimum and not self._steps_back_at(place):
            before = self.place_of(place.log_offset)
            if self._goes_on_with(before, place.log_offset) and begins_record(place.log_offset):
                return self._within_file(before)
            place = before  # it stopped at damage: entries of its last record may lie there too
        return self.place_before(place.file) if self._steps_back_at(place) else place

    def _within_file(self, place: IndexPlace) -> IndexPlace:
        """`place`, or at a file's end the one before the entries of its last record."""
        file = self.files[place.file]
        if FIRST_ENTRY < file.bounded_count <= place.entry:
            return IndexPlace(place.file, *self._entries_below(file, place.log_offset))
        return place

    def _steps_back_at(self, place: IndexPlace) -> bool:
        """Whether the entry at `place` is of a record before that of the one before it; zeros are of none,
        and are what a crash leaves."""
        if not self.files:
            return False
        file = self.files[place.file]
        return (
            FIRST_ENTRY < place.entry < file.bounded_count
            and 0 < file.entry(place.entry).log_offset < place.log_offset
        )

    def _goes_on_with(self, place: IndexPlace, log_offset: int) -> bool:
        """Whether the entry at `place`, or the first of the next file, is of the record at `log_offset`."""
        file, entry = self.files[place.file], place.entry
        if entry >= file.bounded_count and place.file + 1 < len(self.files):
            file, entry = self.files[place.file + 1], FIRST_ENTRY
        return entry < file.bounded_count and file.entry(entry).log_offset == log_offset

    def place_before(self, number: int) -> IndexPlace:
        """Behind the entries that are whole in the files before number `number`: of its last record some may
        lie in the next file."""
        for before in reversed(range(number)):
            file = self.files[before]
            end_offset = file.header().end_offset
            place = IndexPlace(before, *self._entries_below(file, end_offset))
            while place.entry > FIRST_ENTRY:
                if self._goes_on_with(place, end_offset):
                    return place
                end_offset = place.log_offset
                place = IndexPlace(before, *self._entries_below(file, end_offset))
        return IndexPlace(0, FIRST_ENTRY, -1)

    def place_at_end(self) -> IndexPlace:
        """Behind the last entry, whose record is in the index whole: after a clean stop."""
        number = next(
            (
                number
                for number in reversed(range(len(self.files)))
                if self.files[number].header().count > FIRST_ENTRY
            ),
            None,
        )
        if number is None:
            return IndexPlace(0, FIRST_ENTRY, -1)
        header = self.files[number].header()
        return IndexPlace(number, header.count, header.end_offset)

    def _entries_below(self, file: IndexFile, log_offset: int, most: int | None = None) -> tuple[int, int]:
        """(next entry number, last log offset) of the leading entries that do not step back and lie below
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

    def cut(
        self,
        behind: IndexPlace,
        first_unsure: int,
        keep_away: Callable[[Path], None],
        stored_ms: Callable[[int], int | None],
    ) -> tuple[int, int, int]:
        """Keep only entries before `behind` of records below its log offset, in order; link anew what is not
        linked right.

        Files without any such entry go away through `keep_away`. Returns (entries cut, files gone, files
        linked anew). Slots and header are not append-only, so after an unclean stop they are believed only
        where they follow from the entries (docs/durability.md section 5): in the last file, and in those from
        number `first_unsure` on, of which not all was synced. `stored_ms` gives the store time of the record
        at a log offset, None when the log does not hold it any more.
        """
        entries_cut = gone = 0
        while self.files:
            file = self.files[-1]
            count = file.bounded_count
            most = (
                behind.entry
                if len(self.files) - 1 == behind.file
                else None
                if len(self.files) <= behind.file
                else FIRST_ENTRY
            )
            good, last = self._entries_below(file, behind.log_offset, most)
            if good > FIRST_ENTRY or len(self.files) == 1:
                entries_cut += count - good
                break
            entries_cut += count - FIRST_ENTRY
            file.unmap()
            self.files.pop()
            keep_away(file.path)
            gone += 1
        linked = 0
        for file in self.files[first_unsure:-1]:
            used, is_new = self._link(file, file.bounded_count)
            stamp = file.header()._replace(slots_used=used, count=file.bounded_count)
            if stamp != file.header():
                file.map().write(0, index_file.encode_header(stamp))
            linked += is_new
        if self.files:
            linked += self._cut_file(self.files[-1], good, last, stored_ms(last))
        return entries_cut, gone, linked

    def _cut_file(self, file: IndexFile, good: int, last: int, end_ms: int | None) -> bool:
        """Leave entries below number `good`, the last of a record at `last` stored at `end_ms`; True when it
        was linked anew."""
        region, header = file.map(), file.header()
        stamp = IndexHeader(0, 0, 0, 0, 0, FIRST_ENTRY)
        if good > FIRST_ENTRY:
            if end_ms is None:
                end_ms = header.begin_timestamp + file.entry(good - 1).seconds * 1000
            stamp = IndexHeader(header.begin_timestamp, end_ms, header.begin_offset, last, 0, good)
        end = file.geometry.entry_at(good)
        if data_end(region.address, end, max(end, region.data_end())) > end:
            region.punch(end)
        used, is_new = self._link(file, good)
        stamp = stamp._replace(slots_used=used)
        if stamp != header:
            region.write(0, index_file.encode_header(stamp))
        file.allocated_entries = good
        return is_new

    def settle(self, part: PassedEntries, keep_copy: Callable[[Path, Region], None]) -> int:
        """Give entries of `part` that cannot be of its records the place and time of the one before each; how
        many there were.

        `keep_copy` is called with a file before it is changed. Without this a lookup would end at such an
        entry, and find no key of the entries that lie before it in its chain. Slots and links are to be made
        anew afterwards (`cut`).
        """
        settled = 0
        for number in range(part.first.file, part.last.file + 1):
            file = self.files[number]
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
                following if seconds <= following < _MOST_SECONDS else _MOST_SECONDS,
            )
            entries = file.map().address + file.geometry.entries_at
            if settle_entries(entries, begin, end, *bounds, False):
                keep_copy(file.path, file.map())
                settled += settle_entries(entries, begin, end, *bounds, True)
        return settled

    def is_linked(self, first: int) -> bool:
        """Whether slots and links follow from the entries, in the files from number `first` on. Nothing
        changes."""
        return all(
            slots_used(file.map().address, file.geometry.slots, file.bounded_count) >= 0
            for file in self.files[first:]
        )

    def _link(self, file: IndexFile, count: int) -> tuple[int, bool]:
        """(slots used, whether it had to be linked anew) of the file with entries below `count`."""
        region, slots = file.map(), file.geometry.slots
        used = slots_used(region.address, slots, count)
        if used >= 0:
            return used, False
        _zero(region, HEADER.size, file.geometry.entries_at - HEADER.size)
        return link_slots(region.address, slots, FIRST_ENTRY, count), True

    def leave_unsynced(self) -> None:
        """After a crash: no name of a file is known to be on the disk, as none of the files is."""
        self._new_names = bool(self.files)

    # Syncing and cleaning -------------------------------------------------------------------------

    def sync(self, only_full: bool = False) -> None:
        """Bring every file that is not known to be synced to the disk, or those that are full. Raises
        SyncError."""
        for file in list(self.files):
            is_full = file is not self.current
            if not file.synced and (is_full or not only_full):
                try:
                    file.map().sync(0, file.geometry.file_bytes)
                except StoreError:
                    if file in self.files:
                        raise
                    continue  # the loop took it away meanwhile
                file.synced = is_full
        if self._new_names:
            self._new_names = False
            self.disk.sync_directory(self.directory)

    def files_before(self, log_minimum: int) -> list[IndexFile]:
        """Leading files that only point below the log's minimum, never the last one."""
        expired = []
        for file in self.files[:-1]:
            if file.header().end_offset >= log_minimum:
                break
            expired.append(file)
        return expired

    def drop_first(self) -> IndexFile:
        return self.files.pop(0)

    def take_over(self, fresh: HashIndex) -> None:
        """Go on with the files of `fresh`, which now lie in our directory. Loop thread."""
        # Ours are in another directory now, spares too: by their paths a file of `fresh` of the same name
        # would be found.
        for file in (*self.files, *self.spares):
            file.unmap()
        self.files, self.current, self.spares = fresh.files, fresh.current, []
        self._lookup[c.K_FILE_COUNT] = -1
        for spare in fresh.spares:
            spare.unmap()
            self.disk.unlink(self.directory / spare.name, missing_ok=True)
        for file in self.files:
            file.path = self.directory / file.name
        if self.current is not None:
            self._enter(self.current, self.current.header())
        else:
            self._context.view[c.INDEX_ADDRESS] = 0
        self.refresh_room()

    def close(self) -> None:
        """Unmap; a spare that never held an entry goes away."""
        for spare in self.spares:
            spare.unmap()
            with contextlib.suppress(StoreError):  # left behind it is an empty index file, which does no harm
                self.disk.unlink(spare.path, missing_ok=True)
        self.spares = []
        for file in self.files:
            file.unmap()


class IndexWalk:
    """A lookup by position in files that were there when it was made. It may wait for the disk.
    facts/explain.py tells each step."""

    def __init__(
        self,
        files: list[tuple[IndexFile, Reader]],
        topic: str,
        key: str,
        most: int,
        begin_ms: int,
        end_ms: int,
    ):
        self._files, self._most, self._begin_ms, self._end_ms = files, most, begin_ms, end_ms
        self.hashed = index_file.key_hash(index_file.key_text(topic, key))
        self._found: list[int] = []

    def find(self) -> tuple[list[int], int, int]:
        """(log offsets, newest file first and newest entry first; store time and log offset of the last entry
        of all): zeros when none was found."""
        newest = self._all()
        return (self._found, newest.end_timestamp, newest.end_offset) if self._found else ([], 0, 0)

    def _all(self) -> IndexHeader | None:
        """The newest file's header."""
        newest = None
        for file, reader in self._files:
            header = index_file.decode_header(reader.read(0, HEADER.size))
            newest = newest or header
            if (
                header.count > FIRST_ENTRY
                and header.begin_timestamp <= self._end_ms
                and header.end_timestamp >= self._begin_ms
            ):
                self._chain(file, reader, header.begin_timestamp)
            if len(self._found) >= self._most or (
                header.count > FIRST_ENTRY and header.begin_timestamp < self._begin_ms
            ):
                break  # enough, or older files end before the time asked for
        return newest

    def _chain(self, file: IndexFile, reader: Reader, file_begin_ms: int) -> None:
        geometry = file.geometry
        number = index_file.decode_slot(
            reader.read(geometry.slot_at(self.hashed % geometry.slots), SLOT.size)
        )
        # Bounded by the file, not by the header's count: that was read before, and the loop may have linked
        # entries since.
        while 0 < number < geometry.entries and len(self._found) < self._most:
            entry = index_file.decode_entry(reader.read(geometry.entry_at(number), ENTRY.size))
            at_ms = file_begin_ms + entry.seconds * 1000
            if (
                entry.key_hash == self.hashed
                and entry.seconds >= 0
                and self._begin_ms <= at_ms <= self._end_ms
            ):
                self._found.append(entry.log_offset)
            if entry.seconds < 0 or at_ms < self._begin_ms or entry.previous >= number:
                break
            number = entry.previous


def _zero(region: Region, offset: int, length: int) -> None:
    view = region.view(offset, length)
    for at in range(0, length, 1 << 20):
        view[at : at + (1 << 20)] = bytes(min(1 << 20, length - at))
    view.release()
