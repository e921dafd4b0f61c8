"""Cold reads: bytes that may not be in memory are read by position, in a small pool of threads.

    loop ──submit──► pool of 4 threads ──► pread units, pread records, compare ──wake──► loop: done(result)
                                           one read for records that lie close

A page fault on the loop would stop every connection for the time of a disk access; here a read stops one
thread. Each group has a bound on requests in flight, so that one replaying group cannot fill the pool's
queue.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.read.judging import steps_of_judging
from broker_store.engine.start.unproved import is_sound as is_file_sound
from broker_store.errors import StoreError
from broker_store.formats import record
from broker_store.formats.queue_unit import QueueUnit
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.kernels import of_unit
from broker_store.kernels.scan import count_sound
from broker_store.messages import GetRequest, GetResult, GetStatus, MessageFilter

T = TypeVar("T")

THREADS = 4
MAX_IN_FLIGHT_PER_GROUP = 16  # requests; each is bounded in bytes by its own limit
_UNIT = struct.Struct(">qiq")
MAX_SPAN_BYTES = 1 << 20  # records that lie closer together are fetched by one read
_MAX_UNITS = 800
_MIN_RECORD = 91
# Records that are read at once to judge them, and bytes of all that one request reads for that.
_MAX_JUDGED = 64
_MAX_JUDGED_BYTES = 4 << 20
# Work of a filter in one read: about 50 ms, for which it keeps other threads waiting.
_MAX_JUDGED_STEPS = 1_500_000
_NOWHERE = -1  # log offset of damage whose place is not known
_Unit = tuple[int, int, int, int]  # log offset, size, number, tags code


class LogReaders:
    """A few open descriptors of log files. Any thread."""

    def __init__(self, disk: Disk, log: CommitLog, keep: int = 16):
        self._disk, self._log, self._keep = disk, log, keep
        # By base of the file, the last used at the end. Written by any thread under `_lock`; reads do not
        # hold it
        self._open: dict[int, Reader] = {}
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the log, fewer when they are not there (any more). Raises StoreError."""
        file = self._log.file_at(offset)
        if file is None or offset < self._log.minimum:
            return b""
        with self._lock:
            reader = self._open.pop(file.base, None)
            if reader is None:
                reader = self._disk.open_reader(file.path)
            self._open[file.base] = reader
            while len(self._open) > self._keep:
                # Not closed: another thread may be reading it; the last reference closes it.
                self._open.pop(next(iter(self._open)))
        return reader.read(offset - file.base, min(size, file.end - offset))

    def held(self) -> frozenset[int]:
        """Return the bases of the files that are open."""
        with self._lock:
            return frozenset(self._open)

    def forget(self, base: int) -> None:
        with self._lock:
            self._open.pop(base, None)

    def close(self) -> None:
        with self._lock:
            self._open.clear()


class ColdReads:
    """The pool. `wake(function)` runs a function on the loop; `on_damage(cause, log offset)` is called
    there."""

    def __init__(
        self,
        readers: LogReaders,
        wake: Callable[[Callable[[], None]], None],
        on_damage: Callable[[str, int], None],
    ):
        self._readers, self._wake, self._on_damage = readers, wake, on_damage
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        # Requests in flight by group; bytes that were read, and the time of the threads for them. All three
        # are written on the loop only, in `submit` and in the `finish` that a thread sends there
        self._in_flight: dict[str, int] = {}
        self.read_bytes = 0
        self.read_ms = 0.0

    def submit(
        self,
        queue: ConsumeQueue,
        request: GetRequest,
        limited: Callable[[ConsumeQueue, GetRequest], GetRequest],
        confirmed: int,
        done: Callable[[GetResult], None],
        suspect: int | None = None,
    ) -> bool:
        """Read `limited(queue, request)`, which the thread computes. Return False when the group has too many
        requests in flight; nothing was started then."""
        busy = self._in_flight.get(request.group, 0)
        if busy >= MAX_IN_FLIGHT_PER_GROUP:
            return False
        self._in_flight[request.group] = busy + 1

        def finish(outcome: GetResult | StoreError, took_ms: float) -> None:
            left = self._in_flight[request.group] - 1
            if left:
                self._in_flight[request.group] = left
            else:
                del self._in_flight[request.group]
            if isinstance(outcome, StoreError):
                # A file that retention or the topic's deletion removed meanwhile is no failure of the disk.
                is_gone = queue.closed or request.offset < queue.minimum
                status = GetStatus.OFFSET_FOUND_NULL if is_gone else GetStatus.READ_FAILED
                if not is_gone:
                    self._on_damage(f"a read failed: {outcome}", _NOWHERE)
                outcome = GetResult(status, request.offset, queue.minimum, queue.maximum)
            if outcome.count:
                self.read_bytes += len(outcome.body)
                self.read_ms += took_ms
            done(outcome)

        def work() -> None:
            began = time.perf_counter()
            outcome: GetResult | StoreError
            try:
                outcome = self.read(queue, limited(queue, request), confirmed, suspect)
            except StoreError as error:
                outcome = error
            took_ms = (time.perf_counter() - began) * 1000
            self._wake(lambda: finish(outcome, took_ms))

        self._pool.submit(work)
        return True

    @property
    def in_flight(self) -> int:
        """Return the number of reads that have begun or wait. Any thread."""
        return sum(list(self._in_flight.values()))

    def run(self, work: Callable[..., T], *arguments) -> Future[T]:
        """Run another function that may wait for the disk, in a thread of the pool."""
        return self._pool.submit(work, *arguments)

    def read(
        self, queue: ConsumeQueue, request: GetRequest, confirmed: int, suspect: int | None = None
    ) -> GetResult:
        """Read in the caller's thread, and return the result. The caller has checked the offset against the
        queue's range.

        Each record must be as it was stored and agree with its unit. Unit `suspect` is read even if the
        filter excludes it.
        """
        if request.message_filter is not None:
            return self._read_judged(queue, request, request.message_filter, confirmed, suspect)
        offset = request.offset
        is_damaged = not is_file_sound(queue, offset)
        if is_damaged:
            # A damaged tags code must not hide a message; the client filters too
            request = replace(request, tag_codes=None)
            log_end = max(queue.damaged.values(), default=_NOWHERE)
            self._wake(
                lambda: self._on_damage(
                    f"a file of {queue.topic}/{queue.queue_id} is not as it was recorded, from unit "
                    f"{offset} on or before",
                    log_end,
                )
            )
        raw = queue.read_units(offset, max(_MAX_UNITS, request.max_count))
        wanted: list[_Unit] = []
        taken = looked = 0
        minimum = self._readers._log.minimum
        gone = bad = False
        for log_offset, size, tags_code in _UNIT.iter_unpack(raw[: len(raw) // UNIT * UNIT]):
            if len(wanted) >= request.max_count or (wanted and taken + size > request.max_bytes):
                break
            if (
                request.tag_codes is not None
                and _signed(tags_code) not in request.tag_codes
                and offset + looked != suspect
            ):
                looked += 1
                continue
            if log_offset < minimum and not (is_damaged and offset + looked >= queue.minimum):
                if wanted:
                    break
                gone = True
                looked += 1
                continue
            if size < _MIN_RECORD or log_offset < minimum or log_offset + size > confirmed:
                bad = True
                break
            wanted.append((log_offset, size, offset + looked, tags_code))
            taken += size
            looked += 1
        following = offset + looked
        if not raw:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, offset, queue.minimum, queue.maximum)
        records = self._fetch(queue, wanted)
        if len(records) < len(wanted):
            # A file was removed between the check and the read, or a record is not sound: the client asks for
            # the rest again.
            lacking, _, following, _ = wanted[len(records)]
            bad = lacking >= self._readers._log.minimum
        if not records and bad:
            what = (
                f"unit {following} of {queue.topic}/{queue.queue_id} leads to no record that is as it "
                f"was stored and agrees with the unit"
            )
            self._report_damage(what, raw, following - offset)
            return GetResult(GetStatus.MESSAGE_DAMAGED, following, queue.minimum, queue.maximum)
        if not records:
            status = GetStatus.MESSAGE_WAS_REMOVING if gone else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, following, queue.minimum, queue.maximum)
        return GetResult(
            GetStatus.FOUND, following, queue.minimum, queue.maximum, b"".join(records), len(records), True
        )

    def _read_judged(
        self,
        queue: ConsumeQueue,
        request: GetRequest,
        message_filter: MessageFilter,
        confirmed: int,
        suspect: int | None,
    ) -> GetResult:
        """Read in pieces without the filter, and return the records that it passes."""
        found: list[bytes] = []
        size = taken = steps = 0
        at, until = request.offset, request.offset + _MAX_UNITS
        while True:
            piece = self.read(
                queue,
                replace(
                    request,
                    offset=at,
                    max_count=min(_MAX_JUDGED, until - at),
                    max_bytes=MAX_SPAN_BYTES,
                    message_filter=None,
                ),
                confirmed,
                suspect,
            )
            if not piece.count:
                if not found:
                    return piece
                break
            # A piece has the records of its last units: only units before them lead to none (any more).
            at = piece.next_offset - piece.count
            is_full, begin = False, 0
            for message in record.decode_all(piece.body, check_crc=False):
                is_full = len(found) >= request.max_count or (
                    bool(found) and size + message.size > request.max_bytes
                )
                if is_full or steps >= _MAX_JUDGED_STEPS:
                    break
                steps += steps_of_judging(message_filter, len(message.raw_properties))
                if message_filter.passes(message.raw_properties):
                    found.append(piece.body[begin : begin + message.size])
                    size += message.size
                begin += message.size
                at += 1
            taken += begin
            is_enough = taken >= _MAX_JUDGED_BYTES or steps >= _MAX_JUDGED_STEPS
            if is_full or is_enough or at >= min(until, queue.maximum):
                break
        if not found:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, at, queue.minimum, queue.maximum)
        return GetResult(GetStatus.FOUND, at, queue.minimum, queue.maximum, b"".join(found), len(found), True)

    def _report_damage(self, what: str, raw: bytes, number: int) -> None:
        log_offset = _UNIT.unpack_from(raw, number * UNIT)[0]
        self._wake(lambda: self._on_damage(f"{what}, at {log_offset} of the log", log_offset))

    def _fetch(self, queue: ConsumeQueue, wanted: list[_Unit]) -> list[bytes]:
        """Return the records, neighbours by one read. The list ends before the first record that is missing,
        not as it was stored, or not what its unit states."""
        records: list[bytes] = []
        at = 0
        while at < len(wanted):
            start = wanted[at][0]
            last = at
            while last + 1 < len(wanted):
                log_offset, size, *_ = wanted[last + 1]
                if log_offset < start or log_offset + size - start > MAX_SPAN_BYTES:
                    break
                if self._readers._log.file_at(log_offset) is not self._readers._log.file_at(start):
                    break
                last += 1
            end = wanted[last][0] + wanted[last][1]
            span = self._readers.read(start, end - start)
            asked = [unit for unit in wanted[at : last + 1] if unit[0] + unit[1] - start <= len(span)]
            sound = _count_agreeing(span, start, asked, queue)
            records += [
                span[log_offset - start : log_offset - start + size] for log_offset, size, *_ in asked[:sound]
            ]
            if sound <= last - at:
                return records
            at = last + 1
        return records

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _count_agreeing(span: bytes, start: int, units: list[_Unit], queue: ConsumeQueue) -> int:
    """Return how many of the first units lead to records that are as they were stored and agree with them;
    `span` is the log from `start` on."""
    if not units:
        return 0
    table, content, topic = (
        np.array(units, dtype=np.int64),
        np.frombuffer(span, dtype=np.uint8),
        np.frombuffer(queue.topic.encode(), dtype=np.uint8),
    )
    words = np.zeros(of_unit.O_WORDS, dtype=np.int64)
    words[[of_unit.O_BYTES, of_unit.O_BASE, of_unit.O_TABLE, of_unit.O_COUNT]] = (
        content.ctypes.data,
        start,
        table.ctypes.data,
        len(units),
    )
    words[[of_unit.O_TOPIC, of_unit.O_TOPIC_LENGTH, of_unit.O_QUEUE_ID]] = (
        topic.ctypes.data,
        len(topic),
        queue.queue_id,
    )
    words[of_unit.O_IS_DELAYED] = queue.topic == SCHEDULE_TOPIC
    return of_unit.count_agreeing(words.ctypes.data)


def _count_sound(span: bytes, start: int, places: list[tuple[int, int]]) -> int:
    """Return how many of the first records at `places` are whole and have the CRC they were stored with;
    `span` is the log from `start` on."""
    if not places:
        return 0
    table, content = np.array(places, dtype=np.int64), np.frombuffer(span, dtype=np.uint8)
    return count_sound(content.ctypes.data, start, table.ctypes.data, len(places))


def is_sound(raw: bytes, log_offset: int) -> bool:
    """Return whether a record that was read from `log_offset` is as it was stored."""
    return _count_sound(raw, log_offset, [(log_offset, len(raw))]) == 1


def agrees(raw: bytes, unit: QueueUnit, number: int, queue: ConsumeQueue) -> bool:
    """True if a record is as it was stored and states what unit `number` of the queue, which leads to it,
    states."""
    return (
        _count_agreeing(raw, unit.log_offset, [(unit.log_offset, unit.size, number, unit.tags_code)], queue)
        == 1
    )


def _signed(tags_code: int) -> int:
    """Return the low 32 bits as a Java int: Apache compares those."""
    low = tags_code & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low
