"""The commit log: every message of every topic, in the order of arrival, in files of equal size.

    minimum              flushed          wrote        populated   allocated      end of file
    |- files ... --------|----------------|------------|-----------|--------------|   [ next, made ahead ]
    | on the disk        | in memory,     | no bytes   | touched   | blocks, no   | no blocks
                           synced next                   ahead       page yet

The loop appends through the kernel; `wrote` is LOG_BASE + LOG_AT of the kernel's context. The preallocator
makes the next file, and gives blocks and touches pages ahead of the writer. When it is late the loop does the
same itself, under the same lock. Nothing is written beyond the blocks: a full disk would end the process
there (`engine/disk/region.py`).

A record never spans files: the last bytes of a file are a blank (docs/spec/store-format.md section 2.5).

With a pool of buffers (`take_pool`) the kernel appends to a buffer in place of the map, and `commit` copies
it to the file. Then `committed` is a position of its own between `flushed` and `wrote`:

    flushed         committed            wrote
    |---------------|--------------------|
    | in the file   | in a buffer: zero  |
    |               | in the file        |

All that reads files, sends them or syncs them goes up to `committed`; without a pool it equals `wrote`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from broker_store.engine.disk.buffer import Buffer
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import MappedFile, is_expired_name, load_up_to_hole
from broker_store.engine.disk.region import Region
from broker_store.engine.log.buffer_pool import BufferPool
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import NoBufferError
from broker_store.formats import record
from broker_store.kernels import context as c
from broker_store.kernels.append import write_blank

STRIDE = 64 << 20  # bytes that get blocks at a time
POPULATE_AHEAD = 32 << 20  # pages touched ahead of the writer; more would only wait in the first sync
POPULATE_STEP = 4 << 20
# With a sync after each group a step must be short: new memory may take 3 ms per MiB, and the flusher waits
# for the CPU.
SYNCED_POPULATE_STEP = 256 << 10
_ROOM_FOR_BLANK = 8


@dataclass(slots=True)
class _Borrowed:
    """A buffer of the pool that a log file has. What lies from `end` of the file on is zero, and not copied:
    the rest of a blank."""

    buffer: Buffer
    end: int


class CommitLog:
    """Files and positions of the log. Loop thread only, except `prepare`, which the preallocator calls,
    `commit` and `sync`.

    `is_sync`: the log is synced after each group of appends (SYNC_FLUSH), so a sync must write little more
    than the group.
    """

    def __init__(
        self, disk: Disk, directory: Path, file_size: int, context: WriterContext, is_sync: bool = False
    ):
        self.disk, self.directory, self.file_size, self._context = disk, directory, file_size, context
        self._is_sync = is_sync
        # Written by the loop; `sync` takes a copy, other threads only search it
        self.files: list[MappedFile] = []
        # Files that retention had begun to remove when the broker ended; found by `load`
        self.expired: list[Path] = []
        # The file that is written, from `start_writing` on. Written by the loop; the preallocator compares it
        # under `_guard`
        self.current: MappedFile
        # The next file. Set by the preallocator and taken by the loop, both under `_guard`
        self.prepared: MappedFile | None = None
        # Guards `prepared` and the blocks of the current file. A writer that comes to the end of its file
        # waits here for the file that the preallocator is making, and makes none of its own.
        self._guard = threading.Lock()
        # Log offset up to which all is on the disk. Written under `_syncing`; a start sets it before there
        # are other threads. Read by any thread without a lock: it only goes up.
        self.flushed = 0
        # One thread syncs at a time. A file that is synced to its end may be unmapped at once, and a second
        # sync of the same range, begun before that, would find no map there.
        self._syncing = threading.Lock()
        # The pool of buffers, None without one; set before there are other threads
        self._pool: BufferPool | None = None
        # By base of the file. Added by the loop, taken out by `commit` when a full file is complete
        self._borrowed: dict[int, _Borrowed] = {}
        # Log offset up to which all is in the files. Written under `_committing`; it only goes up
        self._committed = 0
        self._committing = threading.Lock()
        # By file number, for the kernels that read. Written by the loop
        self._maps, self._residency = Words(16), Words(16)
        context.view[c.LOG_FILE_BYTES] = file_size
        # Maps that are not used any more: added by the loop, closed by the preallocator. A deque needs no
        # lock
        self._unused_maps: deque[Region] = deque()

    # Positions, absolute --------------------------------------------------------------------------

    @property
    def minimum(self) -> int:
        return self.files[0].base if self.files else self.wrote

    @property
    def wrote(self) -> int:
        view = self._context.view
        return view[c.LOG_BASE] + view[c.LOG_AT]

    @property
    def committed(self) -> int:
        """The log offset up to which all is in the files, and may be read, sent and synced. Any thread."""
        return self.wrote if self._pool is None else self._committed

    def appended(self, offset: int, length: int) -> bytes:
        """Return bytes between log offset `offset` and `wrote`, of one file that is mapped, also if they are
        in a buffer. The loop's thread."""
        file = self.file_holding(offset)
        borrowed = self._borrowed.get(file.base)
        memory = file.map() if borrowed is None or offset < self._committed else borrowed.buffer
        return memory.read(offset - file.base, length)

    @property
    def available_buffers(self) -> int | None:
        """How many buffers of the pool are free; None without a pool."""
        return None if self._pool is None else self._pool.available

    def stored_ms(self, offset: int) -> int | None:
        """Return the store time in ms of the first record at or after log offset `offset`, where one or a
        blank begins; None in a file that is not mapped.

        Only for offsets written within about the last half minute: it reads the map, and must not wait for
        the disk.
        """
        file = self.file_at(offset)
        if file is None or file.region is None:
            return None
        at = offset - file.base
        raw = self.appended(offset, min(record.MIN_RECORD, file.size - at))
        if not record.read_head(raw).is_record:
            return self.stored_ms(file.end)  # a blank
        (sys_flag,) = record.SYS_FLAG.unpack(raw, record.SYS_FLAG_AT)
        (stored_ms,) = record.STORE_TIMESTAMP.unpack(
            raw, record.FIXED[(sys_flag >> 4) & 1].offset["store_timestamp"]
        )
        return stored_ms

    # Opening --------------------------------------------------------------------------------------

    def load(self, delete: bool = True, minimum: int = 0) -> None:
        """List the files. Those that end at or below `minimum`, where the log is known to begin, are left out
        if a file begins there.

        Raises DamagedStoreError for a gap, a wrong length or a foreign name.
        """
        names = self.disk.list_names(self.directory)
        self.expired = [self.directory / name for name in names if is_expired_name(name, minimum, names)]
        self.files, hole = load_up_to_hole(
            self.disk, self.directory, self.file_size, "mappedFileSizeCommitLog", delete, self.expired
        )
        if hole is not None:
            raise hole.error

    def file_at(self, offset: int) -> MappedFile | None:
        if not self.files:
            return None
        number = (offset - self.files[0].base) // self.file_size
        return self.files[number] if 0 <= number < len(self.files) else None

    def file_holding(self, offset: int) -> MappedFile:
        """Return the file that holds a log offset which the log has."""
        file = self.file_at(offset)
        assert file is not None
        return file

    def start_writing(self, end: int) -> None:
        """Prepare to append at log offset `end`; later files are gone already. A first file is created
        here."""
        file = self.file_at(end)
        if file is None:
            file = self._create(end // self.file_size * self.file_size)
            self.files.append(file)
        else:
            file.own()
        for older in self.files:
            older.wrote = older.flushed = older.allocated = older.size
        file.wrote = file.flushed = end - file.base
        file.allocated = 0
        file.allocate(min(file.size, file.wrote + self._stride))
        self.flushed = end
        self._fault_singly(file)
        self._enter(file, file.wrote)

    def take_pool(self, pool: BufferPool) -> None:
        """Append to buffers of `pool` from now on. Before there are other threads."""
        self._pool, self._committed = pool, self.wrote
        self._enter(self.current, self._context.view[c.LOG_AT])

    def leave_unsynced(self, offset: int) -> None:
        """Count nothing from log offset `offset` on as flushed, after a crash."""
        self.flushed = offset
        for file in self.files:
            file.flushed = min(file.flushed, max(0, offset - file.base))

    @property
    def _stride(self) -> int:
        return min(STRIDE, self.file_size)

    def _create(self, base: int) -> MappedFile:
        self.disk.make_directory(self.directory)
        file = MappedFile.create(self.disk, self.directory, base, self.file_size)
        try:
            self._fault_singly(file)
            file.allocate(self._stride)
            # Sync its length, then its name, both before the file is used: after a power cut only the last
            # file can then be missing or have length 0. A sync of the directory alone brings the length to
            # the disk on ext4, and not on XFS or btrfs.
            file.map().sync(0, 1)
            self.disk.sync_directory(self.directory)
        except BaseException:
            # Left here, a file without blocks would be found by the next start and the next attempt.
            file.unmap()
            self.disk.unlink(file.path, missing_ok=True)
            raise
        return file

    def _fault_singly(self, file: MappedFile) -> None:
        if self._is_sync:
            file.map().fault_singly()

    def _enter(self, file: MappedFile, at: int) -> None:
        view = self._context.view
        self.current = file
        file.populated = max(file.populated, at)
        buffer = None if self._pool is None else self._pool.borrow()
        if buffer is not None:
            self._borrowed[file.base] = _Borrowed(buffer, file.size)
        view[c.LOG_ADDRESS] = file.address if buffer is None else buffer.address
        view[c.LOG_SIZE] = file.size
        view[c.LOG_ALLOCATED] = file.allocated
        # No call between these two: other threads add them (`wrote`), and the interpreter changes threads
        # only at calls and jumps.
        view[c.LOG_BASE] = file.base
        view[c.LOG_AT] = at
        self._publish_files()

    # Room -----------------------------------------------------------------------------------------

    def give_room(self, needed: int) -> None:
        """Give blocks to `needed` more bytes in the current file. Raises DiskFullError."""
        view = self._context.view
        with self._guard:
            self.current.allocate(
                max(view[c.LOG_AT] + needed + _ROOM_FOR_BLANK, self.current.allocated + self._stride)
            )
            view[c.LOG_ALLOCATED] = self.current.allocated

    def roll(self) -> None:
        """Close the current file with a blank and go on in the next. Raises DiskFullError and NoBufferError
        before any byte is written."""
        pool = self._pool
        if pool is not None and pool.fails_fast and not pool.available:
            raise NoBufferError(
                f"the {pool.count} buffers of the transient store pool (transientStorePoolSize) hold what is "
                f"not in its files yet, so no further log file is begun"
            )
        following = self._take_next()
        view = self._context.view
        at = view[c.LOG_AT]
        write_blank(view[c.LOG_ADDRESS] + at, self.file_size - at)
        borrowed = self._borrowed.get(self.current.base)
        if borrowed is not None:
            borrowed.end = at + record.BLANK_BYTES
        self._go_on_in(following)

    def enter_next(self) -> None:
        """Go on in the next file after one that is full to its last byte (a copied blank closed it). Raises
        DiskFullError."""
        self._go_on_in(self._take_next())

    def begin_at(self, offset: int) -> None:
        """Begin an empty log at log offset `offset`, a multiple of the file size. Raises StoreError."""
        if offset == self.minimum:
            return
        file = self._create(offset)
        with self._guard:
            gone = [*self.files, *filter(None, [self.prepared])]
            self.prepared, self.files[:] = None, [file]
        self.flushed = offset
        self._enter(file, 0)
        for old in gone:
            old.unmap()
            self.disk.unlink(old.path)
        self.disk.sync_directory(self.directory)

    def _take_next(self) -> MappedFile:
        with self._guard:
            following, self.prepared = self.prepared, None
            return self._create(self.current.end) if following is None else following

    def _go_on_in(self, following: MappedFile) -> None:
        self.current.wrote = self.file_size
        self.files.append(following)
        self._enter(following, 0)

    def prepare(self) -> bool:
        """Take one step of the preallocator: blocks and pages ahead of the writer, then the next file. Return
        True when it did something."""
        while self._unused_maps:
            self._unused_maps.popleft().close()
        view = self._context.view
        file = self.current
        at = view[c.LOG_AT] if file.base == view[c.LOG_BASE] else 0
        did = False
        if file.allocated < file.size and file.allocated - at < self._stride // 2:
            with self._guard:
                if file is self.current:
                    file.allocate(file.allocated + self._stride)
                    view[c.LOG_ALLOCATED] = file.allocated
            did = True
        if self._populate_writer(file, at):
            did = True
        if self.prepared is None and at > file.size // 2:
            # Under the guard: a writer that reaches the end meanwhile waits for this file instead of making
            # its own.
            with self._guard:
                if file is self.current and self.prepared is None:
                    self.prepared = self._create(file.end)
            did = True
        if self._pool is not None:
            return did  # the writer touches no page of the next file
        following = self.prepared
        # Pages of the next file are touched now, a step at a time: all at once, after the roll, they would
        # delay the syncs.
        if following is not None and self._populate(
            following, 0, max(at + POPULATE_AHEAD - file.size, POPULATE_STEP)
        ):
            did = True
        return did

    def _populate_writer(self, file: MappedFile, at: int) -> bool:
        """Touch the next step of the pages that the writer comes to: of the file, or of its buffer."""
        borrowed = self._borrowed.get(file.base)
        if borrowed is None:
            return self._populate(file, at, at + POPULATE_AHEAD)
        buffer = borrowed.buffer
        start, end = max(at, buffer.populated), min(at + POPULATE_AHEAD, buffer.size)
        if start >= end or (end - start < POPULATE_STEP and end < buffer.size):
            return False
        buffer.populated = min(end, start + POPULATE_STEP)
        buffer.populate(start, buffer.populated - start)
        return True

    def _populate(self, file: MappedFile, at: int, ahead: int) -> bool:
        """Touch the next step of pages between `at` and `ahead`, as far as there are blocks; return False
        when less than a step is left."""
        step = SYNCED_POPULATE_STEP if self._is_sync else POPULATE_STEP
        start, end = max(at, file.populated), min(ahead, file.allocated)
        if start >= end or (end - start < step and end < file.allocated):
            return False
        file.populated = min(end, start + step)
        file.map().populate(start, file.populated - start)
        return True

    # Committing and syncing ------------------------------------------------------------------------

    def commit(self, to: int) -> None:
        """Copy what is appended below log offset `to` from its buffers to the files, and give back the
        buffers of files that are complete. Any thread: it waits for a commit in another thread."""
        if self._pool is None:
            return
        with self._committing:
            if to <= self._committed:
                return  # another thread committed more since `to` was read
            for file in list(self.files):
                if file.end <= self._committed:
                    continue
                if file.base >= to:
                    break
                borrowed, end = self._borrowed.get(file.base), min(to, file.end)
                if borrowed is not None:
                    begin, stop = self._committed - file.base, min(end - file.base, borrowed.end)
                    if stop > begin:
                        file.map().copy_in(begin, borrowed.buffer.address + begin, stop - begin)
                self._committed = end
                if borrowed is not None and end == file.end:
                    del self._borrowed[file.base]
                    self._pool.give_back(borrowed.buffer)

    def sync(self, to: int) -> None:
        """Commit and sync the log up to log offset `to`, file by file. Any thread: it waits for a sync in
        another thread. Raises SyncError."""
        self.commit(to)
        with self._syncing:
            for file in list(self.files):
                if file.end <= self.flushed:
                    continue
                if file.base >= to:
                    break
                # Before the sync: until it is done retention does not touch the file
                file.map().require_in_place()
                file.sync(min(to, file.end) - file.base)
            self.flushed = max(self.flushed, to)

    # Reading --------------------------------------------------------------------------------------

    def _publish_files(self) -> None:
        """Publish, for the kernels that read, which files there are and where they are mapped."""
        if len(self.files) > len(self._maps.array):
            self._maps, self._residency = Words(2 * len(self.files)), Words(2 * len(self.files))
        self._maps.array[:] = 0
        for number, file in enumerate(self.files):
            if file.region is not None:
                self._maps[number] = file.region.address
                self._residency[number] = file.residency.address
        view = self._context.view
        view[c.LOG_MAPS] = self._maps.address
        view[c.LOG_RESIDENCY] = self._residency.address
        view[c.LOG_FIRST] = self.minimum

    def map_for_reading(self, file: MappedFile) -> None:
        """Map an older file until `unmap_before` drops the map. Raises StoreError."""
        file.map()
        self._publish_files()

    def unmap_before(self, offset: int) -> None:
        """Drop the maps of files that end at or before `offset` and are on the disk. The preallocator closes
        them: to unmap a GiB takes 20 ms."""
        for file in self.files:
            if file.end > offset or file.flushed < file.size or file is self.current:
                break
            if file.region is not None and self._context.view[c.DISPATCH_BASE] > file.base:
                self._unused_maps.append(file.release_map())
        self._publish_files()

    def drop_first(self) -> MappedFile:
        """Remove the first file from the tables (retention) and return it; the caller deletes it."""
        file = self.files.pop(0)
        self._publish_files()
        return file

    def close(self) -> None:
        while self._unused_maps:
            self._unused_maps.popleft().close()
        for file in self.files:
            file.unmap()
        self._publish_files()
        if self.prepared is not None:
            self.prepared.unmap()
        if self._pool is not None:
            self._borrowed.clear()
            self._pool.close()
