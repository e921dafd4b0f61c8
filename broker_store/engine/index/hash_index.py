"""The index: from a topic's key to log offsets, in files of slots and entries that are filled in turn.

    bytes of a file    0         40            40 + 4 * slots                       the end
                       | header  | slots       | entry 0 | 1 | 2 | ... count ...... entries |
                         times,    number of     never     written by   blocks      no blocks
                         offsets,  the newest    written   dispatch     ahead       yet
                         count     entry

    files              [ full ][ full ][ current: the kernel fills it ][ spare ]
                                                 |<------- KEY_ROOM: entries with blocks ------>|

A file is named by its creation time. Queries walk all files, newest first (docs/spec/store-format.md section
5). They read through the maps on the loop (`kernels/lookup.py`) while each page that is touched is known to
be in memory, else as a whole by position in another thread (`walk.py`). Residency is asked in blocks of 64
pages, which takes 6 µs: for all pages of a file of 420 MB it takes 5.6 ms, and some of them are always
missing, such as those not written yet.

Room for the keys of a message is reserved before the message is appended: KEY_ROOM counts entries with blocks
in the file being filled and in the spares after it. So dispatch of what is in the log never lacks room.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.index.files import IndexFile, local_time_name
from broker_store.engine.index.walk import IndexWalk
from broker_store.engine.rows import Words, WriterContext
from broker_store.engine.status.store_state import IndexFileFacts
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import index_file, properties
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, IndexGeometry, IndexHeader
from broker_store.kernels import context as c

ENTRY_STRIDE = 16 << 20  # bytes of entries that get blocks at a time
_MAX_FOUND = 4096  # log offsets of one lookup
_MIN_ENTRIES_FOR_SPARE = 100_000  # a smaller file is made when it is needed


class HashIndex:
    """All index files. Loop thread only, except `prepare` (preallocator) and `sync` (flusher)."""

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
        # Written by the loop; the flusher takes a copy
        self.files: list[IndexFile] = []
        # Files made ahead. Added and taken under `_guard`, by the preallocator and the loop
        self.spares: list[IndexFile] = []
        # Guards the creation of files and the allocation of blocks: the preallocator does both ahead of the
        # loop.
        self._guard = threading.Lock()
        # The file that the kernel fills. Written by the loop under `_guard`; the preallocator reads it there
        self.current: IndexFile | None = None
        # Words for the kernels of a lookup: memory for offsets, and by file the addresses of its map and of
        # its residency bytes. Loop thread only
        self._found, self._maps, self._known, self._lookup = (
            Words(_MAX_FOUND),
            Words(16),
            Words(16),
            Words(c.K_WORDS),
        )
        self._lookup[c.K_FILE_COUNT] = -1
        self._lookup[c.K_SLOTS], self._lookup[c.K_ENTRIES] = geometry.slots, geometry.entries
        self._lookup[c.K_FOUND], self._lookup[c.K_FOUND_ROOM] = self._found.address, _MAX_FOUND
        # True if a file's name may not be on the disk. The loop sets it when a file comes into use; the
        # flusher clears it before it syncs the directory, so that a later file sets it again. No lock
        self._new_names = False

    # Opening --------------------------------------------------------------------------------------

    def load(self, take_away: Callable[[Path, int], bool] = lambda path, length: False) -> None:
        """List the files. Raises DamagedStoreError for a wrong name or length; a file of length 0 was made
        and never used, and is removed.

        Directories are skipped, except one in the place of a file: a file of that name could not be made.
        `take_away(path, length)` may take a file of another length out of the directory; it returns whether
        it did.
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
        """Continue in the last file, if there is one; the first dispatch makes one otherwise."""
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
        # Names must ascend, also for two files of one millisecond, a clock that was set back and the end of
        # summer time.
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
        """Allocate entries for `keys` more keys, including those queued. Raises DiskFullError."""
        with self._guard:
            self._give_room(keys)

    def _give_room(self, keys: int) -> None:
        view = self._context.view
        if self.current is None:
            self._next_file()
        current = self.current
        assert current is not None  # as `_next_file` made it
        while True:
            self.refresh_room()
            missing = keys - view[c.KEY_ROOM]
            if missing <= 0:
                return
            stride = max(missing, ENTRY_STRIDE // ENTRY.size)
            if current.allocated_entries < self.geometry.entries:
                current.give_entries(current.allocated_entries + stride)
                view[c.INDEX_ALLOCATED] = current.allocated_entries
            elif self.spares and self.spares[-1].allocated_entries < self.geometry.entries:
                self.spares[-1].give_entries(self.spares[-1].allocated_entries + stride)
            else:
                self._add_spare()

    def _add_spare(self) -> None:
        self.spares.append(self._create(IndexHeader(0, 0, 0, 0, 0, FIRST_ENTRY)))

    def next_file(self) -> None:
        """Handle a stop of the dispatch kernel: no file, or the current one is full or lacks blocks."""
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
            # Read from the file: after a start the context's end offset is only where dispatch goes on.
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
        """Take one step of the preallocator: blocks ahead, and a spare file when the current one is nine
        tenths full. Return whether there was something to do."""
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
                and self.geometry.entries > _MIN_ENTRIES_FOR_SPARE
            ):
                self._add_spare()
                return True
            return False

    def adopt_prepared(self) -> None:
        """Let the kernel use the blocks that the preallocator allocated. Loop thread."""
        if (
            self.current is not None
            and self._context.view[c.INDEX_ALLOCATED] != self.current.allocated_entries
        ):
            self._context.view[c.INDEX_ALLOCATED] = self.current.allocated_entries
            self.refresh_room()

    @staticmethod
    def keys_of(encoded: bytes) -> int:
        """Return how many entries a record with these properties gets."""
        own = properties.decode(encoded)
        keys = sum(1 for key in own.get("KEYS", "").split(" ") if key)
        return keys + ("UNIQ_KEY" in own) + ("TAGS" in own)

    # Asking ---------------------------------------------------------------------------------------

    @property
    def lookup_address(self) -> int:
        """The address of the K_* words; `enter_files` updates them when a lookup stops for it."""
        return self._lookup.address

    def enter_files(self) -> None:
        """Map all files and publish their addresses for the lookup kernels. Raises StoreError."""
        if len(self.files) > len(self._maps.array):
            self._maps, self._known = Words(2 * len(self.files)), Words(2 * len(self.files))
        for number, file in enumerate(reversed(self.files)):
            self._maps[number] = file.map().address
            self._known[number] = file.residency.address
            file.entered_in = self._lookup
        self._lookup[c.K_FILES], self._lookup[c.K_RESIDENCY] = self._maps.address, self._known.address
        self._lookup[c.K_FILE_COUNT] = len(self.files)

    def ask_pages(self, entered: int, place: int, size: int, round_number: int) -> bool:
        """Ask about pages of the file with number `entered` in K_FILES; return whether they are in memory."""
        return self.files[-1 - entered].residency.ask(place, size, round_number)

    def walk(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> IndexWalk:
        """Return a lookup by position of at most `most` entries, which any thread may run. Raises
        StoreError."""
        return IndexWalk(
            [(file, file.reader) for file in reversed(self.files)], topic, key, most, begin_ms, end_ms
        )

    def newest(self) -> IndexHeader | None:
        return self.files[-1].header() if self.files else None

    def newest_used(self) -> IndexHeader | None:
        """Return what `newest` will return after `drop_unused`."""
        headers = [file.header() for file in self.files]
        return next(
            (header for header in reversed(headers) if header.count > FIRST_ENTRY),
            headers[0] if headers else None,
        )

    def facts(self) -> list[IndexFileFacts]:
        """Return the facts of all files, oldest first."""
        return [self._facts_of(file) for file in self.files]

    def newest_facts(self) -> IndexFileFacts | None:
        """Return the facts of the newest file only, which costs the same for any number of files; None
        without a file."""
        return self._facts_of(self.files[-1]) if self.files else None

    def _facts_of(self, file: IndexFile) -> IndexFileFacts:
        header = file.header()
        full = header.count >= file.geometry.entries
        return IndexFileFacts(
            name=file.name,
            slots=file.geometry.slots,
            slots_used=header.slots_used,
            entries=header.count - FIRST_ENTRY,
            max_entries=file.geometry.entries - FIRST_ENTRY,
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
            begin_offset=header.begin_offset,
            end_offset=header.end_offset,
            state="full" if full else "writing" if file is self.current else "read",
        )

    # After a crash --------------------------------------------------------------------------------

    def drop_unused(self) -> int:
        """Remove last files that never held an entry (spares that a crash left), but never the only file;
        return how many."""
        dropped = 0
        while len(self.files) > 1 and self.files[-1].header().count <= FIRST_ENTRY:
            file = self.files.pop()
            file.unmap()
            self.disk.unlink(file.path)
            dropped += 1
        if dropped:
            self.disk.sync_directory(self.directory)
        return dropped

    def leave_unsynced(self) -> None:
        """After a crash, count no name of a file as synced."""
        self._new_names = bool(self.files)

    # Syncing and cleaning -------------------------------------------------------------------------

    def sync(self, only_full: bool = False) -> None:
        """Sync every file that is not known to be synced, or only full ones. Raises SyncError."""
        for file in list(self.files):
            is_full = file is not self.current
            if not file.synced and (is_full or not only_full):
                try:
                    file.map().sync(0, file.geometry.file_bytes)
                except StoreError:
                    if file in self.files:
                        raise
                    continue  # the loop has removed it meanwhile
                file.synced = is_full
        if self._new_names:
            self._new_names = False
            self.disk.sync_directory(self.directory)

    def files_before(self, log_minimum: int) -> list[IndexFile]:
        """Return the leading files that only point below the log's minimum, never the last one."""
        expired = []
        for file in self.files[:-1]:
            if file.header().end_offset >= log_minimum:
                break
            expired.append(file)
        return expired

    def drop_first(self) -> IndexFile:
        return self.files.pop(0)

    def take_over(self, fresh: HashIndex) -> None:
        """Replace the files with those of `fresh`, which now lie in this directory. Loop thread."""
        # The old files, spares too, lie in another directory now: their paths would lead to files of `fresh`.
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
        """Unmap all files, and delete a spare that never held an entry."""
        for spare in self.spares:
            spare.unmap()
            with contextlib.suppress(StoreError):  # an empty index file is left then, which does no harm
                self.disk.unlink(spare.path, missing_ok=True)
        self.spares = []
        for file in self.files:
            file.unmap()
