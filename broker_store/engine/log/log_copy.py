"""The log of a slave: bytes of the master's log, put in the same place, and checked before they are shown.

    log      | wrote = whole records      received        allocated
    ---------|----------------------------|---------------|-------------
             | dispatched, or waiting for | room for the  |
             | their sync                 | next bytes    |

A frame of the master may end anywhere. What follows the last whole record stays after `wrote`: no reader, no
sync and no start counts it. The socket writes into the map itself, so no record is copied in Python. The scan
kernel checks every record as a start does: length, place, syntax and CRC. A record that fails ends the copy,
and nothing after it is shown.

Loop's thread.
"""

from __future__ import annotations

from typing import Protocol

from broker_store.config.replication import SLAVE, SYNC_MASTER
from broker_store.config.store import StoreSettings
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.log.appender import NUDGE_BYTES, Appender
from broker_store.engine.log.appender_host import AppenderHost
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.log.record_ends import RecordWalk
from broker_store.engine.log.record_faults import REASONS
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.store_state import StoreState
from broker_store.errors import DamagedStoreError, StoreError
from broker_store.formats import record
from broker_store.kernels import context as c

MAX_PIECE = 1 << 20  # bytes of one turn of the loop


class CopiedParts(Protocol):
    """What replication changes of a store."""

    context: WriterContext
    log: CommitLog
    queues: ConsumeQueues
    dispatcher: Dispatcher[ConsumeQueue]
    appender: Appender
    host: AppenderHost
    ends: EndsFile
    state: StoreState
    confirmation: Confirmation


def take_role(settings: StoreSettings, parts: CopiedParts) -> LogCopy | None:
    """Let a store that starts act by its role in replication; return the copy of a slave."""
    if settings.broker_role == SLAVE:
        parts.state.set_flag("slave", "the broker's role is SLAVE")
        if settings.enable_controller_mode:  # its master says what is confirmed
            parts.confirmation.need_slaves(settings.slave_timeout)
        return LogCopy(settings, parts)
    # In controller mode the sync state set decides (replication/sync_state_set.py).
    fixed = settings.broker_role == SYNC_MASTER and not settings.enable_controller_mode
    if fixed and settings.in_sync_replicas > 1:
        parts.confirmation.need_slaves(settings.slave_timeout)
        parts.appender.confirm_later()
    return None


class LogCopy:
    """The end of a log that is copied. `received` is the log offset after the last byte."""

    def __init__(self, settings: StoreSettings, parts: CopiedParts):
        self._context, self._log, self._queues, self._dispatcher = (
            parts.context,
            parts.log,
            parts.queues,
            parts.dispatcher,
        )
        self._appender, self._host, self._ends = parts.appender, parts.host, parts.ends
        self._state = parts.state
        self._confirms_later = settings.flush_disk_type == "SYNC_FLUSH" or settings.enable_controller_mode
        self._nudge_at = 0
        self.received = 0
        self._walk = RecordWalk(settings.max_message_size, checks=True)

    def begin(self) -> int:
        """Begin to receive at the end of the log, whatever a connection before left after it; return that log
        offset."""
        self._dispatcher.on_hole = self._begin_queue
        self._context.view[c.COPIES_LOG] = 1
        self._clear_rest()
        self.received = self._log.wrote
        return self.received

    def begin_at(self, offset: int) -> None:
        """Begin an empty log at `offset`, where a file of the master begins. Raises StoreError."""
        if self._log.wrote or offset % self._log.file_size:
            why = (
                f"this log ends at {self._log.wrote:,}"
                if self._log.wrote
                else f"its files are not of {self._log.file_size:,} bytes; set mappedFileSizeCommitLog"
            )
            raise DamagedStoreError(
                f"a copy cannot begin at {offset:,} of the master's log: {why}", file=str(self._log.directory)
            )
        self._log.begin_at(offset)
        self._dispatcher.start_at(offset)
        self._ends.begin_at(offset)
        self._context.view[c.CONFIRMED] = offset
        self.received = offset

    def pass_first_byte(self) -> None:
        """Count the first byte of an empty log as received. It is 0: a record is shorter than 16 MiB, and its
        length comes first."""
        self.received = 1

    def room(self) -> memoryview:
        """Return where the next bytes belong, at least one; the caller drops the view before it calls
        anything else here. Raises DiskFullError."""
        file, at = self._log.current, self.received - self._log.current.base
        if file.allocated <= at:
            self._log.give_room(at - self._context.view[c.LOG_AT] + MAX_PIECE)
        return file.map().view(at, min(file.allocated, file.size, at + MAX_PIECE) - at)

    def took(self, count: int) -> None:
        """Count `count` bytes that were written to `room`, and show the records that are whole now. Raises
        StoreError if the copy cannot go on."""
        self.received += count
        view, walk, log = self._context.view, self._walk, self._log
        file = log.current
        stopped = walk.run(file, view[c.LOG_AT], self.received - file.base)
        at = walk.at
        if stopped == c.BAD_RECORD and not self._is_unfinished(at):
            raise DamagedStoreError(
                f"what the master sent for {file.base + at:,} of the log is no sound record "
                f"({REASONS[walk.reason]}), or the settings mappedFileSizeCommitLog and maxMessageSize are "
                f"not those of the master",
                file=str(file.path),
                offset=at,
            )
        view[c.LOG_AT] = at
        if walk.count:
            view[c.STORED_COUNT] += walk.count
            self._appender.last_ms = max(self._appender.last_ms, walk.last_ms)
        if stopped == c.LOG_FILE_END and self.received == file.end:
            self._host.check_disk()
            log.enter_next()
            self._nudge_at = 0
            self._host.log_rolled()
        needs_blocks = view[c.LOG_AT] >= self._nudge_at
        if needs_blocks:
            self._nudge_at = view[c.LOG_AT] + NUDGE_BYTES
        if not self._confirms_later:
            self._host.confirm(log.wrote)
        self._host.appended(needs_blocks)
        if self._state.is_set("dispatch_failed"):
            raise StoreError(self._state.causes()["dispatch_failed"])

    def end(self) -> None:
        """Take away what was received after the last whole record."""
        self._clear_rest()
        self.received = self._log.wrote

    def _is_unfinished(self, at: int) -> bool:
        """Return whether the bytes from `at` of the file on may be the begin of a record, the rest of which
        has not come."""
        file = self._log.current
        there = self.received - file.base - at
        if there < record.BLANK_BYTES:
            return True
        head = record.read_head(file.map().read(at, record.BLANK_BYTES))
        most = min(self._walk.max_record, file.size - at)
        return head.is_record and there < head.total_size and record.MIN_RECORD <= head.total_size <= most

    def _clear_rest(self) -> None:
        left = self.received - self._log.wrote
        if left > 0:
            file = self._log.current
            file.map().write(self._log.wrote - file.base, bytes(left))

    def _begin_queue(self, queue: ConsumeQueue, unit: int) -> None:
        """Begin a queue whose first messages are not in the copied part of the log."""
        if queue.maximum or queue.files:
            raise StoreError(
                f"the copied log goes on with message {unit:,} of {queue.topic}/{queue.queue_id}, which ends "
                f"before {queue.maximum:,} here"
            )
        queue.begin_at_unit(unit)
