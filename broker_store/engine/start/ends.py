"""The record of ends: where each queue and the index ended when they were last synced, in the file `ends` of
the store.

    ends        block | block | ...         one a round of the round flusher, synced before the checkpoint's
                                            stamps move

    block       head: "ENDS", version, flags, bytes of names, rows, rows of the index, log position, log
                minimum, CRC-32 of all of it
                names: (number, length, topic) for each topic that the rows are the first to name
                rows: topic, queue id, first unit of a queue file, number after its last unit, log offset
                      after that unit's record, sum of the units
                rows of the index: name, entries, log offset of the last, sums of header and last entries, of
                      all entries and of the slots, length

Everything below the log position of the last block is in the record. So a queue that is shorter than its rows
state, or whose units have another sum, is damaged; and no queue offset below its recorded end is given again.
What other brokers wrote since lies above that position. A block that a power cut tore ends the record: the
blocks before it are valid. A record that is missing or damaged from its first block on has the position 0.

The log minimum is where the log begins. Retention writes the new one before it removes a log file. The flag
DOUBT means that a file was found that is not as recorded: the next start compares all files with their sums.

A row replaces the previous one of the same queue file. A row with FORGOTTEN as its first unit removes the
queue. A row with BOUND states only the queue's next offset: its files and sums are not known (any more).
"""

from __future__ import annotations

import binascii
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DiskFullError

FILE_NAME = "ends"
BOUND, FORGOTTEN = -1, -2
FIRST_SUM = 0x5DEECE66D  # the sum of no units; not 0, so that units of zeros count
_MAGIC, _VERSION = b"ENDS", 2
_HEAD = struct.Struct("<4sHHIIIqqI")
_NAME = struct.Struct("<IH")
# flags: blocks before this one are void; the store was closed after it; a file is not as recorded
_WHOLE, _FINAL, _DOUBT = 1, 2, 4
_ROW = np.dtype(
    [
        ("topic", "<u4"),
        ("queue_id", "<u4"),
        ("first", "<i8"),
        ("following", "<i8"),
        ("log_end", "<i8"),
        ("sum", "<i8"),
    ]
)
_INDEX_ROW = np.dtype(
    [
        ("name", "<i8"),
        ("count", "<i8"),
        ("end_offset", "<i8"),
        ("sum", "<i8"),
        ("entries", "<i8"),
        ("slots", "<i8"),
        ("file_bytes", "<i8"),
    ]
)
_MAX_BYTES = 1 << 30  # 5,000 topics of 8 queues need 1.8 MB; a larger file is not a record of ends
_MAX_GROWTH = 4 << 20  # bytes beyond twice the least size: then the whole record is written again


class FileEnd(NamedTuple):
    """One queue file: its first unit, the number after its last unit, the log offset where the record of that
    last unit ends, the sum of its units."""

    first: int
    following: int
    log_end: int
    sum: int


class IndexEnd(NamedTuple):
    """One index file. `sum` is of its header and last entries, `entries` of all entries, `slots` of its
    slots, 0 while they change and until the store is closed; `file_bytes` is its length."""

    name: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    end_offset: int
    sum: int
    entries: int
    slots: int
    file_bytes: int


@dataclass(frozen=True)
class QueueChange:
    """Rows to be added for a queue; `forget`: all earlier rows are void."""

    topic: str
    queue_id: int
    ends: tuple[FileEnd, ...] = ()
    forget: bool = False


class EndsFile:
    """The record. While the broker runs, the round flusher calls `write`, retention `raise_minimum`, the
    flusher and the removal of topics `forget`, and any thread `doubt`. All other methods are called by a
    start, before other threads use the store."""

    def __init__(self, disk: Disk, path: Path):
        self._disk, self._path = disk, path
        self._lock = threading.Lock()
        self._clear()
        self.note = ""  # what is wrong with the file, for the report
        self.is_there = False

    def _clear(self) -> None:
        self.position = 0
        self.log_minimum = -1  # not known
        self.in_doubt = False  # a file was found that is not as recorded
        self.found = self.is_final = False
        self.queues: dict[tuple[str, int], dict[int, FileEnd]] = {}
        self.index: tuple[IndexEnd, ...] = ()
        self._numbers: dict[str, int] = {}
        self._bytes = 0
        self._must_replace = True

    @property
    def good_bytes(self) -> int:
        """The length of the whole blocks."""
        return self._bytes

    def messages(self, topic: str, queue_id: int) -> int:
        """Return how many messages the recorded files of a queue had, 0 without a record."""
        rows = [end for end in self.queues.get((topic, queue_id), {}).values() if end.first != BOUND]
        return max(rows).following - min(rows).first if rows else 0

    # Reading --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file, up to the first block that is not whole."""
        self._clear()
        self.note = ""
        raw = self._disk.read_file(self._path, _MAX_BYTES)
        self.is_there = raw is not None
        if raw is None:
            self.note = "there is none"
            return
        names: dict[int, str] = {}
        at = 0
        while (block := _block_at(raw, at)) is not None:
            flags, position, minimum, length, names_at, rows_at, index_at = block
            known = _names(raw, names_at, rows_at)
            table = np.frombuffer(raw, _ROW, (index_at - rows_at) // _ROW.itemsize, rows_at).tolist()
            if flags & _WHOLE:
                self.queues.clear()
                names.clear()
            elif not self.found or any(number not in known and number not in names for number, *_ in table):
                break  # it follows blocks that were lost
            names |= known
            for number, queue_id, *end in table:
                self._apply(names[number], queue_id, FileEnd(*end))
            rows = np.frombuffer(raw, _INDEX_ROW, (at + length - index_at) // _INDEX_ROW.itemsize, index_at)
            self.index = tuple(IndexEnd(*row) for row in rows.tolist())
            self.position, self.log_minimum, self.found = position, minimum, True
            self.is_final, self.in_doubt = bool(flags & _FINAL), bool(flags & _DOUBT)
            at += length
        self._numbers = {topic: number for number, topic in names.items()}
        self._bytes = at
        self._must_replace = at < len(raw) or not self.found
        if at < len(raw):
            self.note = (
                f"what follows byte {at:,} is no whole block, so it ends there"
                if at
                else "it begins with no whole block, so nothing of it is used"
            )
        elif not at:
            self.note = "it is empty"

    def _apply(self, topic: str, queue_id: int, end: FileEnd) -> None:
        if end.first == FORGOTTEN:
            self.queues.pop((topic, queue_id), None)
            return
        rows = self.queues.setdefault((topic, queue_id), {})
        if end.first >= 0 and (bound := rows.get(BOUND)) is not None and end.following >= bound.following:
            del rows[BOUND]
        rows[end.first] = end

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the least offset that the queue's next message may have."""
        rows = self.queues.get((topic, queue_id))
        return max(end.following for end in rows.values()) if rows else 0

    # Writing --------------------------------------------------------------------------------------

    def write(
        self,
        position: int,
        changes: Iterable[QueueChange],
        index: tuple[IndexEnd, ...],
        is_final: bool = False,
    ) -> None:
        """Add a block and sync it. Raises DiskFullError, and then the record is unchanged; SyncError,
        StoreError."""
        with self._lock:
            changes = list(changes)
            if (
                not self._must_replace
                and not changes
                and (position, index) == (self.position, self.index)
                and self.is_final >= is_final
            ):
                return
            self._add(position, changes, index, is_final)

    def forget(self, queues: Iterable[tuple[str, int]]) -> None:
        """Remove queues of deleted topics: they begin at 0 when they are made again. Raises SyncError,
        StoreError."""
        with self._lock:
            known = [QueueChange(*queue, forget=True) for queue in queues if queue in self.queues]
            if known:
                try:
                    self._add(self.position, known, self.index, False)
                except DiskFullError:
                    # The next block that has room is the whole record; until then the tombstone is enough
                    return

    def begin_at(self, log_minimum: int) -> None:
        """Set the begin of the log, whatever was recorded; the next block writes it."""
        self._must_replace |= self.log_minimum != log_minimum
        self.log_minimum = log_minimum

    def raise_minimum(self, log_minimum: int) -> bool:
        """Note where the log begins from now on, and sync that; return False when there is no room. Raises
        SyncError, StoreError."""
        with self._lock:
            before, self.log_minimum = self.log_minimum, max(self.log_minimum, log_minimum)
            if before == self.log_minimum and not self._must_replace:
                return True
            try:
                self._add(self.position, [], self.index, False)
            except DiskFullError:
                self.log_minimum = before
                return False
            return True

    def doubt(self) -> None:
        """Note that a file is not as recorded: the next start compares all files. Any thread; the next block
        writes it."""
        if not self.in_doubt:
            self.in_doubt = self._must_replace = True

    def trust(self) -> None:
        """End the doubt: a start has compared all files, and built again what differed."""
        self._must_replace |= self.in_doubt
        self.in_doubt = False

    def lower(self, position: int, log_minimum: int) -> None:
        """Lower the record to the end of the log at `position`, which was accepted: keep next offsets, and
        index files that end before it."""
        with self._lock:
            bounds = {key: max(end.following for end in rows.values()) for key, rows in self.queues.items()}
            self.queues = {key: {BOUND: FileEnd(BOUND, following, 0, 0)} for key, following in bounds.items()}
            self.index = tuple(end for end in self.index if end.end_offset < position)
            self.position, self.log_minimum, self.is_final = position, log_minimum, False
            self._replace()

    def bound(
        self,
        next_offsets: Mapping[tuple[str, int], int],
        position: int,
        remade: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Note the least next offsets of queues by (topic, queue id), and sync them. Raises DiskFullError,
        SyncError, StoreError.

        `position` is where the log ends without the messages that they count: a queue with records after the
        recorded position and a smaller number was made again by another broker, so the record must reach
        there. `remade` are such queues.
        """
        with self._lock:
            for key in remade:
                self.queues.pop(key, None)
            for key, following in next_offsets.items():
                rows = self.queues.setdefault(key, {})
                if following > max((end.following for end in rows.values()), default=0):
                    rows[BOUND] = FileEnd(BOUND, following, 0, 0)
            self.position = max(self.position, position)
            self.found = True
            self._replace()

    def drop(self, topic: str, queue_id: int) -> None:
        """Drop the rows of a queue, which do not hold any more; the next block writes that."""
        if self.queues.pop((topic, queue_id), None) is not None:
            self._must_replace = True

    def drop_before(self, log_minimum: int) -> None:
        """Drop rows of files that only point below the log's minimum, except each queue's newest row."""
        for rows in self.queues.values():
            newest = max(rows)
            for first in [
                first for first, end in rows.items() if first != newest and end.log_end <= log_minimum
            ]:
                del rows[first]

    def _add(
        self, position: int, changes: list[QueueChange], index: tuple[IndexEnd, ...], is_final: bool
    ) -> None:
        fresh = [change.topic for change in changes if change.topic not in self._numbers]
        rows = []
        for change in changes:
            if change.forget:
                rows.append((change.topic, change.queue_id, FileEnd(FORGOTTEN, 0, 0, 0)))
            rows += [(change.topic, change.queue_id, end) for end in change.ends]
        for topic, queue_id, end in rows:
            self._apply(topic, queue_id, end)
        self.position, self.index, self.is_final, self.found = position, index, is_final, True
        if (
            self._must_replace
            or self._bytes > 2 * self._least_bytes() + _MAX_GROWTH
            or not self._is_as_written()
        ):
            self._replace()
            return
        for topic in dict.fromkeys(fresh):
            self._numbers[topic] = len(self._numbers)
        block = self._block(0, dict.fromkeys(fresh), rows)
        # Set until the block is whole on the disk: a part that a full disk took must not stay before other
        # blocks
        self._must_replace = True
        self._disk.append(self._path, block, sync=True)
        self._bytes += len(block)
        self._must_replace = False

    def _is_as_written(self) -> bool:
        """Return whether the file is there with the length that was written last: a block alone is not
        enough."""
        return self._disk.exists(self._path) and self._disk.size_of(self._path) == self._bytes

    def _least_bytes(self) -> int:
        return _ROW.itemsize * sum(map(len, self.queues.values()))

    def _replace(self) -> None:
        """Write the whole record again. Raises as `write` does."""
        self._numbers = {
            topic: number for number, topic in enumerate(dict.fromkeys(topic for topic, _ in self.queues))
        }
        rows = [(*key, end) for key, ends in self.queues.items() for _, end in sorted(ends.items())]
        block = self._block(_WHOLE, self._numbers, rows)
        self._must_replace = True
        self._disk.replace_file(self._path, block)
        self._bytes, self._must_replace = len(block), False

    def _block(self, flags: int, topics: Iterable[str], rows: list[tuple[str, int, FileEnd]]) -> bytes:
        names = b"".join(
            _NAME.pack(self._numbers[topic], len(encoded)) + encoded
            for topic in topics
            for encoded in (topic.encode(),)
        )
        table = np.array(
            [(self._numbers[topic], queue_id, *end) for topic, queue_id, end in rows], _ROW
        ).tobytes()
        index = np.array([tuple(end) for end in self.index], _INDEX_ROW).tobytes()
        flags |= (_FINAL if self.is_final else 0) | (_DOUBT if self.in_doubt else 0)
        head = (
            _MAGIC,
            _VERSION,
            flags,
            len(names),
            len(rows),
            len(self.index),
            self.position,
            self.log_minimum,
        )
        crc = binascii.crc32(_HEAD.pack(*head, 0) + names + table + index)
        return _HEAD.pack(*head, crc) + names + table + index


def _block_at(raw: bytes, at: int) -> tuple[int, int, int, int, int, int, int] | None:
    """Return (flags, log position and minimum, length, where names, rows and rows of the index begin) of the
    whole block at `at`; None without one."""
    if at + _HEAD.size > len(raw):
        return None
    magic, version, flags, names, rows, index, position, minimum, crc = _HEAD.unpack_from(raw, at)
    rows_at = at + _HEAD.size + names
    index_at = rows_at + rows * _ROW.itemsize
    length = index_at + index * _INDEX_ROW.itemsize - at
    if magic != _MAGIC or version != _VERSION or at + length > len(raw):
        return None
    head = _HEAD.pack(magic, version, flags, names, rows, index, position, minimum, 0)
    if binascii.crc32(raw[at + _HEAD.size : at + length], binascii.crc32(head)) != crc:
        return None
    return flags, position, minimum, length, at + _HEAD.size, rows_at, index_at


def _names(raw: bytes, at: int, end: int) -> dict[int, str]:
    found = {}
    while at < end:
        number, length = _NAME.unpack_from(raw, at)
        at += _NAME.size
        found[number] = raw[at : at + length].decode()
        at += length
    return found
