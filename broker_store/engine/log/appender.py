"""The appender: messages into the log, a group by one kernel call, and what the kernel stops for.

    put, put_many, put_batch, put_waited ──► append kernel ──► log (──► queues, index with ASYNC_FLUSH)
                                                └── stops ──► room in the log, a queue, the index; a queue to
                                                              open; a message to make plain

A group that is being appended, one row for each message:

    rows        0 ......... DESCRIPTOR_DONE ......... DESCRIBED ......... DESCRIPTOR_COUNT
                | in the log | fields are read,       | messages that      |
                | or refused | not appended yet       | were not read yet  |

The kernel stops at a row that lacks something, before a byte of it is written. Python supplies what is
missing, or refuses the row, and calls the kernel again, which goes on with that row. So a row is in the log
as a whole or not at all, and a refused one does not delay the rest.

What happens to a record, and which thread does it:

    SYNC_FLUSH    put ──► wrote ─────► flushed ────────► confirmed ──► dispatched ──► answered
                  loop: one call       log flusher       loop, in a later turn

    ASYNC_FLUSH   put ──► wrote = confirmed = dispatched ──► answered ──► flushed
                  loop: one call                                          log flusher, within 1 s

    wrote         LOG_BASE + LOG_AT: the record is in the map, its length was written last
    flushed       `CommitLog.flushed`: its bytes are on the disk
    confirmed     CONFIRMED: readers may see it. A kill of the process loses nothing that was written, a power
                  cut nothing that was flushed (docs/durability.md section 2). With a pool of buffers a kill
                  loses what is not committed, and that is not confirmed (log/committer.py)
    dispatched    its unit and its index entries are written

Loop thread. The kernel leaves the result of each message in its row.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from broker_store.config.store import StoreSettings
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.appender_host import AppenderHost
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.object_layout import message_layout
from broker_store.engine.log.plain_message import make_plain
from broker_store.engine.log.put_results import (
    OK,
    PUT_OFF_ROW,
    REFUSED,
    RESULT,
    RESULT_AT,
    ROW_BYTES,
    STATUS,
    PutResults,
)
from broker_store.engine.log.waited_records import WaitedRecords
from broker_store.engine.log.write_path import (
    INDEX_ROOM,
    LOG_ROLL,
    LOG_ROOM,
    QUEUE_ROOM,
    MeasuredGroup,
    WritePath,
)
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import (
    DiskFullError,
    MapLimitError,
    NameError_,
    NoBufferError,
    StoreError,
    SyncError,
)
from broker_store.formats import names, record
from broker_store.kernels import context as c
from broker_store.kernels.append import append_group, append_on, record_offsets
from broker_store.kernels.waited import MAX_ADDED_BYTES
from broker_store.messages import Message, MovedOn, PutResult, PutStatus

NUDGE_BYTES = 2 << 20  # appended between two calls of the preallocator
MAX_BUSY_MS = 10_000_000  # no append takes longer than this: the clock was set
_MAX_ROWS = 1024  # of a kernel call; larger groups are appended by several calls
_MAX_OFFSETS = 4096
_WAITS = {
    c.LOG_FILE_FULL: LOG_ROLL,
    c.LOG_NOT_ALLOCATED: LOG_ROOM,
    c.QUEUE_NOT_ALLOCATED: QUEUE_ROOM,
    c.KEYS_NOT_ALLOCATED: INDEX_ROOM,
}
T = TypeVar("T")


@dataclass(slots=True)
class NewFiles:
    """Until when puts may create the files of queues that have none: each takes up to a millisecond of the
    caller's thread.

    From `until_s` on (`WritePath.seconds`) messages of such queues are PUT_OFF. So are those of queues that
    are not mapped, while as many files are mapped as may be (`engine/queue/queue_maps.py`). `put_off` counts
    them since the start.
    """

    until_s: float = math.inf
    put_off: int = 0
    waits_for_sync: bool = False  # true for a group of which messages were put off until others are synced


class Appender:
    """`refusal` is why puts are refused now, None while they are taken; the store sets it."""

    def __init__(
        self,
        settings: StoreSettings,
        context: WriterContext,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        clock: Callable[[], int],
        host: AppenderHost,
        write_path: WritePath,
    ):
        self._settings, self._context, self._log, self._queues, self._index = (
            settings,
            context,
            log,
            queues,
            index,
        )
        self._clock, self._host, self._write_path = clock, host, write_path
        # All fields belong to the loop thread, so none has a lock.
        self.refusal: PutStatus | None = PutStatus.SERVICE_NOT_AVAILABLE
        self.refused: dict[str, int] = {}  # by name of the status, how many messages since the start
        self.last_ms = 0  # store time of the last group; recovery sets it to that of the log's last record
        self.new_files = NewFiles()
        # After a slow append: until when puts are refused, and how long it took
        self.busy_until_ms = 0
        self.busy_took_ms = 0
        self._busy_after_ms = settings.os_page_cache_busy_time_out_mills
        self._nudge_at = 0  # the preallocator is woken when LOG_AT reaches it
        self._syncs_first = settings.flush_disk_type == "SYNC_FLUSH"
        # What a group needs, made once. Kernels keep addresses of these arrays, so they are never replaced,
        # but for `_offsets` and `_room`, whose addresses go along with each call.
        self._view, self._address = context.view, context.address
        self._rows = np.zeros((_MAX_ROWS, c.D_WORDS), dtype=np.int64)
        self._row_bytes = memoryview(self._rows).cast("B")
        self._row_hosts = np.zeros(_MAX_ROWS * c.HOST_ROOM, dtype=np.uint8)
        self._layout = message_layout()
        self._offsets = Words(_MAX_OFFSETS)
        self._room = np.empty(0, dtype=np.uint8)
        self._view[c.DESCRIPTORS] = self._rows.ctypes.data
        self._view[c.ROW_HOSTS] = self._row_hosts.ctypes.data
        self._view[c.LAYOUT] = self._layout.address
        self._view[c.SYNC_FIRST] = int(self._syncs_first)
        self._view[c.MAX_BODY] = settings.max_message_size
        self._view[c.MAX_RECORD] = settings.max_message_size + record.MAX_BEYOND_BODY
        self._view[c.INDEX_ENABLED] = int(settings.message_index_enable)
        self._view[c.RECORD_CRC] = int(settings.enabled_append_prop_crc)

    @property
    def store_host(self) -> tuple[bytes, int]:
        """The (address, port) that messages without one get."""
        return self._store_host

    @store_host.setter
    def store_host(self, host: tuple[bytes, int]) -> None:
        self._store_host = (bytes(host[0]), int(host[1]))
        self._view[c.STORE_HOST] = id(self._store_host)

    def confirm_later(self) -> None:
        """Leave it to `Confirmation` to confirm and dispatch what is appended from now on."""
        self._syncs_first = True
        self._view[c.SYNC_FIRST] = 1

    def confirm_at_once(self) -> None:
        """Take back `confirm_later`: what is appended is confirmed in the same turn, with SYNC_FLUSH after
        its sync."""
        self._syncs_first = self._settings.flush_disk_type == "SYNC_FLUSH"
        self._view[c.SYNC_FIRST] = int(self._syncs_first)

    # Putting --------------------------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        """Append one message. With ASYNC_FLUSH it is dispatched when this returns."""
        if self.refusal is not None:
            return PutResult(self._count_refusal(self.refusal))
        now_ms = self._append_group((message,))
        log_offset, queue_offset, size, _, status = RESULT(self._row_bytes, RESULT_AT)
        if status:
            return PutResult(STATUS[status])
        return PutResult(OK, log_offset, queue_offset, now_ms, log_offset + size)

    def put_many(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Append messages in order, each on its own: a refused message does not affect the rest."""
        if self.refusal is not None:
            return [PutResult(self._count_refusal(self.refusal)) for _ in messages]
        if len(messages) <= _MAX_ROWS:
            now_ms = self._append_group(tuple(messages))
            return PutResults(bytes(self._row_bytes[: len(messages) * ROW_BYTES]), now_ms)
        results: list[PutResult] = []
        for start in range(0, len(messages), _MAX_ROWS):
            results += self.put_many(messages[start : start + _MAX_ROWS])
        return results

    def put_batch(self, message: Message) -> PutResult:
        """Append an encoded batch (docs/spec/store-format.md section 2.6): all of its messages with
        consecutive queue offsets, or none.

        The properties of `message` are written after each inner message's own.
        """
        if self.refusal is not None:
            return PutResult(self._count_refusal(self.refusal))
        if message.sys_flag & record.SYS_TRANSACTION_MASK:
            return PutResult(self._count_refusal(PutStatus.MESSAGE_ILLEGAL))
        now_ms = self._append_group((message,), is_batch=1)
        log_offset, queue_offset, size, records, status = RESULT(self._row_bytes, RESULT_AT)
        if status:
            return PutResult(STATUS[status])
        if records > len(self._offsets.array):
            self._offsets = Words(records)
        # Where the kernel appended it: in the map, or in a buffer of the pool
        address = self._view[c.LOG_ADDRESS] + log_offset - self._view[c.LOG_BASE]
        record_offsets(address, size, log_offset, self._offsets.address)
        log_offsets = tuple(self._offsets.array[:records].tolist())
        return PutResult(OK, log_offset, queue_offset, now_ms, log_offset + size, records, log_offsets)

    def put_waited(
        self,
        records: bytes,
        count: int,
        topic: str,
        forbidden: Collection[str],
        written_ms: Sequence[int] | None = None,
    ) -> MovedOn:
        """Append records that waited in `topic` to the topic and queue that their REAL_TOPIC and REAL_QID
        name. `records` are back to back, at most 1,024.

        A record without these properties, or with a forbidden topic, is MESSAGE_ILLEGAL. With `written_ms`,
        one time for each record, properties are added: when it was put on the timer wheel and when taken off.
        """
        if self.refusal is not None:
            return MovedOn([self._count_refusal(self.refusal) for _ in range(count)])
        times = None if written_ms is None else np.array(written_ms, dtype=np.int64)
        if times is not None and len(self._room) < len(records) + count * MAX_ADDED_BYTES:
            self._room = np.empty(len(records) + count * MAX_ADDED_BYTES, dtype=np.uint8)
        waited = WaitedRecords(
            records, count, self._context.topics[topic].row.address, times, self._room, forbidden
        )
        self._append_group((), waited=waited)
        rows = self._rows[:count]
        if not self._view[c.REFUSED_ROWS]:
            statuses = [OK] * count
        else:
            statuses = [STATUS[status] if status else OK for status in rows[:, c.D_STATUS].tolist()]
        totals: dict[int, list[int]] = {}
        log_end = 0
        for status, (queue, _, length), (log_offset, _, size) in zip(
            statuses,
            rows[:, c.D_QUEUE : c.D_BODY_LENGTH + 1].tolist(),
            rows[:, c.D_LOG_OFFSET : c.D_SIZE + 1].tolist(),
            strict=True,
        ):
            if status is OK:
                total = totals.setdefault(queue, [0, 0])
                total[0] += 1
                total[1] += length
                log_end = log_offset + size
        return MovedOn(
            statuses,
            log_end,
            [
                (self._queues.by_row(queue).topic, messages, size)
                for queue, (messages, size) in totals.items()
            ],
        )

    def put_measured(self, put: Callable[[], T], measured: MeasuredGroup) -> T:
        """Return the result of `put`, which calls one of the methods above; store in `measured` how long
        append and dispatch took.

        SYNC_FIRST makes the append kernel leave the dispatch to a second call, as for a sync. So the two are
        timed apart.
        """
        view, seconds = self._view, self._write_path.seconds
        stored_bytes = view[c.STORED_BYTES]
        view[c.SYNC_FIRST] = 1
        try:
            given = put()
        finally:
            view[c.SYNC_FIRST] = int(self._syncs_first)
            measured.appended_s = seconds()
            measured.size = view[c.STORED_BYTES] - stored_bytes
            if measured.size and not self._syncs_first:
                self._host.confirm(self._log.wrote)
                measured.dispatch_s = seconds() - measured.appended_s
        return given

    def _append_group(
        self, messages: tuple[Message, ...], is_batch: int = 0, waited: WaitedRecords | None = None
    ) -> int:
        """Run the kernel until all of `messages`, or of `waited`, are in or refused; return their store time
        in ms."""
        view = self._view
        now_ms = self._clock()
        if now_ms < self.last_ms:
            # The clock was set back. Store times never decrease along the log, or recovery would start too
            # late.
            now_ms = self.last_ms
        stopped = (
            append_group(self._address, messages, now_ms, is_batch)
            if waited is None
            else waited.append(self._address, now_ms)
        )
        while stopped:
            if stopped >= c.LOG_FILE_END:
                self._host.settle(stopped)
                break
            if stopped >= c.QUEUE_NOT_OPEN:
                self._help_describe(stopped, messages, waited)
            else:
                self._make_room(stopped, messages)
            stopped = append_on(self._address)
        self.last_ms = now_ms
        took_ms = self._clock() - now_ms
        if self._busy_after_ms < took_ms < MAX_BUSY_MS:
            # The disk cannot keep up: refuse puts for as long as this append took.
            self.busy_until_ms, self.busy_took_ms = now_ms + 2 * took_ms, took_ms
            self._host.set_flag("page_cache_busy", f"an append took {took_ms} ms")
        if view[c.REFUSED_ROWS]:
            count = len(messages) if waited is None else len(waited)
            for status in self._rows[:count, c.D_STATUS].tolist():
                if status and status != PUT_OFF_ROW:
                    self._count_refusal(STATUS[status])
        at = view[c.LOG_AT]
        needs_blocks = at >= self._nudge_at
        if needs_blocks:
            self._nudge_at = at + NUDGE_BYTES
        if needs_blocks or self._syncs_first or view[c.ARRIVAL_COUNT]:
            self._host.appended(needs_blocks)
        return now_ms

    def _count_refusal(self, status: PutStatus) -> PutStatus:
        self.refused[status.name] = self.refused.get(status.name, 0) + 1
        return status

    # What the kernel stops for --------------------------------------------------------------------

    def _help_describe(
        self, stopped: int, messages: tuple[Message, ...], waited: WaitedRecords | None
    ) -> None:
        """Open the queue of the message at which the kernel stopped, or convert its fields; or refuse the
        message."""
        number = self._view[c.DESCRIBED]
        try:
            if waited is not None:
                fits = self._open_real_queue(self._rows[number], waited.forbidden)
            elif stopped == c.QUEUE_NOT_OPEN:
                fits = self._open_queue(messages[number].topic, messages[number].queue_id)
            else:
                fits = make_plain(messages[number])
        except (NameError_, ValueError):
            fits = False
        if not fits:
            self._rows[number, c.D_STATUS] = REFUSED + PutStatus.MESSAGE_ILLEGAL
            self._view[c.DESCRIBED] = number + 1
            if waited is not None:
                self._view[c.WAITED_AT] += int(self._rows[number, c.D_SIZE])

    def _open_real_queue(self, row: np.ndarray, forbidden: Collection[str]) -> bool:
        """Open the queue that a waited record names; return as `_open_queue`."""
        topic = ctypes.string_at(int(row[c.D_PROPERTIES]), int(row[c.D_PROPERTIES_LENGTH])).decode()
        if topic in forbidden or not self._open_queue(topic, int(row[c.D_QUEUE_OFFSET])):
            return False
        self._context.topics[topic].row[c.T_IS_REAL] = 1
        return True

    def _open_queue(self, topic: str, queue_id: int) -> bool:
        """Open a queue; return False for a name that no message may have. Raises NameError_ and
        ValueError."""
        length = len(topic.encode())
        if (
            length > names.MAX_TOPIC
            and not topic.startswith(names.RETRY_PREFIX)
            or length > names.MAX_RETRY_TOPIC
        ):
            return False
        self._queues.open(topic, queue_id)
        self._context.topics[topic].row[c.T_TAKES] = 1
        return True

    def _may_map(self) -> bool:
        """Return whether a queue's file may be mapped now; False for a group that can wait until other queues
        are on the disk, and then are unmapped for it."""
        files, maps = self.new_files, self._queues.maps
        if maps.make_room():
            return True
        if files.until_s == math.inf:
            return True
        if not files.waits_for_sync and maps.waits_for_sync:
            files.waits_for_sync = True
            self._host.sync_queues()
        return not files.waits_for_sync

    def _make_room(self, stopped: int, messages: tuple[Message, ...]) -> None:
        """Supply what the row that stopped the kernel lacks, or refuse the row."""
        view = self._view
        number = view[c.DESCRIPTOR_DONE]
        row = self._rows[number]
        status = PutStatus.SERVICE_NOT_AVAILABLE
        began_s = self._write_path.seconds()
        try:
            if stopped == c.LOG_FILE_FULL:
                self._host.check_disk()
                self._log.roll()
                self._nudge_at = 0
                self._host.log_rolled()
            elif stopped == c.LOG_NOT_ALLOCATED:
                self._log.give_room(0)
            elif stopped == c.QUEUE_NOT_ALLOCATED:
                queue = self._queues.by_row(int(row[c.D_QUEUE]))
                if not queue.files and began_s > self.new_files.until_s:
                    self.new_files.put_off += 1
                    self._refuse(row, number, PutStatus.PUT_OFF)
                    return
                if not queue.is_mapped and not self._may_map():
                    self.new_files.put_off += 1
                    self._refuse(row, number, PutStatus.PUT_OFF)
                    return
                if not queue.files and queue.disk.spare_maps() <= 0:
                    raise MapLimitError(
                        "so many files are mapped that a queue without one gets no message; delete "
                        "topics, or raise vm.max_map_count and start again"
                    )
                queue.give_room(int(row[c.D_COUNT]))
            else:
                self._index.adopt_prepared()
                self._index.give_room(view[c.QUEUED_KEYS] + self._exact_keys(row, messages))
                view[c.KEY_ROOM_GRANTED] = number
            self._write_path.waited(_WAITS[stopped], self._write_path.seconds() - began_s)
            return
        except DiskFullError as error:
            self._host.set_flag("no_room", str(error))
        except MapLimitError as error:
            self._host.set_flag("map_limit", str(error))
            status = PutStatus.CREATE_MAPPED_FILE_FAILED
        except NoBufferError as error:
            self._host.set_flag("no_buffer", str(error))
            status = PutStatus.CREATE_MAPPED_FILE_FAILED
        except SyncError as error:
            self._host.sync_failed(str(error))
        except StoreError as error:
            self._host.set_flag("no_room", str(error))
            status = PutStatus.CREATE_MAPPED_FILE_FAILED
        self._refuse(row, number, status)

    def _refuse(self, row: np.ndarray, number: int, status: PutStatus) -> None:
        row[c.D_STATUS] = REFUSED + status
        self._view[c.REFUSED_ROWS] += 1
        self._view[c.DESCRIPTOR_DONE] = number + 1

    def _exact_keys(self, row: np.ndarray, messages: tuple[Message, ...]) -> int:
        """Return how many index entries the row's records will get, by the count that dispatch makes."""
        if not row[c.D_BATCH]:
            return HashIndex.keys_of(
                ctypes.string_at(int(row[c.D_PROPERTIES]), int(row[c.D_PROPERTIES_LENGTH]))
            )
        message = messages[0]
        keys = at = 0
        while at < len(message.body):
            (size,) = struct.unpack_from(">i", message.body, at)
            (body_length,) = struct.unpack_from(">i", message.body, at + 16)
            own = message.body[at + 22 + body_length : at + size]
            joint = b"\x02" if own and not own.endswith(b"\x02") else b""
            keys += HashIndex.keys_of(own + joint + message.properties)
            at += size
        return keys
