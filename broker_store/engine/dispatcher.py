"""Dispatch: runs the kernel and does what it stops for. Called inline after an append, and by recovery in
chunks.

    log        | dispatched         | confirmed        wrote
    -----------|--------------------|----------------|------
               ^ DISPATCH_AT        ^ CONFIRMED
               | this record next   | not beyond

    one record ──► a unit of 20 bytes in its queue:  log offset | size | tags code
                   Q_DISPATCHED moves past it: readers see the unit
               ──► index entries: its unique key, each key, its tag
               ──► DISPATCH_AT moves past the record

After a stop in the middle of a record the kernel goes on with the same record. Its unit exists already and is
skipped, and INDEX_KEYS_DONE counts the entries that it has in the previous index file. So nothing is written
twice.

    stop                what is done                                             then
    LOG_FILE_END        enter the next log file                                  the kernel goes on
    QUEUE_FILE_END      enter the next file of the queue, or make it             the kernel goes on
    INDEX_FULL          enter the next index file, or give blocks                the kernel goes on
    UNKNOWN_QUEUE       open the queue that the record names                     the kernel goes on
    DELAYED_RECORD      compute its delivery time, which is its tags code        the kernel goes on
    QUEUE_HOLE          the record is not the next of its queue                  recovery decides (`on_hole`)
    OTHER_UNIT          the queue has another unit at that number                recovery decides (`on_other`)
    QUEUE_AGAIN         a copied log begins the queue again                      StoreError: the copy ends
    BAD_RECORD          no good record begins here                               recovery decides (`on_bad`),
                                                                                 else DamagedStoreError
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import MAX_QUEUE_ID
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import DamagedStoreError, FormatError, NameError_, StoreError
from broker_store.formats import names, queue_unit, record
from broker_store.kernels import context as c
from broker_store.kernels.dispatch import catch_up, dispatch

_RECORDS_PER_CALL = 65536  # of the catch-up kernel
# Stops for which the record is decoded
_DECODED = (c.UNKNOWN_QUEUE, c.QUEUE_HOLE, c.DELAYED_RECORD, c.OTHER_UNIT)


class DispatchedQueue(Protocol):
    """What dispatch asks of a queue."""

    def advance(self) -> None: ...


Q = TypeVar("Q", bound=DispatchedQueue)
Q_co = TypeVar("Q_co", bound=DispatchedQueue, covariant=True)


class QueueTable(Protocol[Q_co]):
    """What dispatch asks of the table of queues. A rehearsal has a table of its own (start/rehearsal.py)."""

    def by_row(self, address: int) -> Q_co: ...

    def open(self, topic: str, queue_id: int) -> object: ...


class Dispatcher(Generic[Q]):
    """Moves `dispatched` towards `confirmed`.

    Loop thread only, or the thread of a start, before the loop uses the store. So no field has a lock. The
    round flusher reads DISPATCH_BASE, DISPATCH_AT and LAST_DISPATCHED_MS: one kernel call, which holds the
    interpreter lock, writes all of them.
    """

    def __init__(
        self,
        context: WriterContext,
        log: CommitLog,
        queues: QueueTable[Q],
        index: HashIndex,
        delay_levels_ms: tuple[int, ...],
    ):
        self._context, self._log, self._queues, self._index = context, log, queues, index
        self._delay_levels_ms = delay_levels_ms
        self._delays = Words(max(1, len(delay_levels_ms)))
        self._delays.array[: len(delay_levels_ms)] = delay_levels_ms
        context.view[c.DELAYS], context.view[c.DELAY_COUNT] = self._delays.address, len(delay_levels_ms)
        self._file: MappedFile  # that DISPATCH_* describe, from `start_at` on
        # What a running store does at a hole; None: it ends with an error. A copied log begins in the middle
        # of its queues.
        self.on_hole: Callable[[Q, int], None] | None = None

    @property
    def dispatched(self) -> int:
        view = self._context.view
        return view[c.DISPATCH_BASE] + view[c.DISPATCH_AT]

    def start_at(self, offset: int) -> None:
        """Continue dispatch at log offset `offset`, where a record begins."""
        file = self._log.file_at(offset)
        if file is None:  # exactly after the last file: a blank closed it and the next is not made yet
            file, at = self._log.files[-1], self._log.file_size
        else:
            at = offset - file.base
        self._enter(file, at)

    def _enter(self, file: MappedFile, at: int) -> None:
        view = self._context.view
        self._file = file
        view[c.DISPATCH_ADDRESS] = file.address
        view[c.DISPATCH_BASE] = file.base
        view[c.DISPATCH_SIZE] = file.size
        view[c.DISPATCH_AT] = at

    def confirm(self, to: int) -> None:
        """Set CONFIRMED to log offset `to`, and dispatch the records below it."""
        self._context.view[c.CONFIRMED] = to
        self.settle(dispatch(self._context.address))

    def settle(self, stopped: int) -> None:
        """Handle what a dispatch stopped for, and call it again until it is done."""
        while stopped != c.DONE:
            self._go_on(stopped, self.on_hole)
            stopped = dispatch(self._context.address)

    def catch_up(
        self,
        on_hole: Callable[[Q, int], None],
        on_progress: Callable[[int], None],
        on_bad: Callable[[int], int | None],
        on_other: Callable[[Q, int], None] | None = None,
    ) -> None:
        """Dispatch up to `confirmed` in chunks, with the interpreter lock released. `on_hole(queue, unit)`
        handles a hole in a queue.

        `on_bad(log offset)` returns where to go on after a bad record; None raises DamagedStoreError. With
        `on_other(queue, unit)` a unit that leads to another record is not overwritten: `on_other` is called
        instead.
        """
        view = self._context.view
        view[c.KEEPS_UNITS] = int(on_other is not None)
        while True:
            stopped = catch_up(self._context.address, _RECORDS_PER_CALL)
            on_progress(self.dispatched)
            if stopped == c.DONE:
                view[c.KEEPS_UNITS] = 0
                return
            if stopped in _DECODED and not self._is_record(view[c.STOPPED_AT]):
                stopped = c.BAD_RECORD  # the kernel does not check all of a record's syntax
            if stopped == c.BAD_RECORD and (following := on_bad(view[c.STOPPED_AT])) is not None:
                self.start_at(following)
            elif stopped == c.OTHER_UNIT and on_other is not None:
                on_other(
                    self._queues.by_row(view[c.STOPPED_QUEUE]),
                    record_in(self._file, view[c.STOPPED_AT]).queue_offset,
                )
            elif stopped != c.EXHAUSTED:
                self._go_on(stopped, on_hole)

    def _is_record(self, offset: int) -> bool:
        """Return whether the record at a log offset can be decoded, and names a valid queue."""
        try:
            found = record_in(self._file, offset)
            names.check_stored_topic(found.topic)
        except (FormatError, NameError_):
            return False
        return 0 <= found.queue_id <= MAX_QUEUE_ID

    def _go_on(self, stopped: int, on_hole: Callable[[Q, int], None] | None) -> None:
        view = self._context.view
        at = view[c.STOPPED_AT]
        if stopped == c.LOG_FILE_END:
            self._enter(self._log.file_holding(self._file.end), 0)
        elif stopped == c.QUEUE_FILE_END:
            self._queues.by_row(view[c.STOPPED_QUEUE]).advance()
        elif stopped == c.INDEX_FULL:
            self._index.next_file()
        elif stopped == c.UNKNOWN_QUEUE:
            found = record_in(self._file, at)
            self._queues.open(found.topic, found.queue_id)
        elif stopped == c.DELAYED_RECORD:
            self.compute_tags_code(self._file, at)
        elif stopped == c.QUEUE_HOLE and on_hole is not None:
            on_hole(self._queues.by_row(view[c.STOPPED_QUEUE]), record_in(self._file, at).queue_offset)
        elif stopped == c.QUEUE_AGAIN:
            found = record_in(self._file, at)
            raise StoreError(
                f"topic {found.topic} was deleted at the master and made again before this slave deleted it: "
                f"its queue {found.queue_id} begins again at {at:,} of the log. Start the slave with an "
                f"empty store"
            )
        elif stopped == c.BAD_RECORD:
            raise DamagedStoreError(
                "no good record begins here, though the log goes on after it: queues and index "
                "cannot be made from it",
                file=str(self._file.path),
                offset=at - self._file.base,
                advice="`manage.py check_store DIR` shows all of it, and with --apply bridges it; DIR is "
                "the store's directory.",
            )
        else:
            raise DamagedStoreError(
                f"dispatch cannot go on (stop code {stopped})",
                file=str(self._file.path),
                offset=at - self._file.base,
            )

    def compute_tags_code(self, file: MappedFile, offset: int) -> None:
        """Set the tags code of the delayed record at log offset `offset`, which is its delivery time: kernels
        do not compute it."""
        found = record_in(file, offset)
        delay = found.properties.get("DELAY")
        view = self._context.view
        view[c.TAGS_CODE] = queue_unit.tags_code(
            found.topic, found.tags, delay, found.store_timestamp, self._delay_levels_ms
        )
        view[c.TAGS_CODE_AT] = offset


def record_in(file: MappedFile, offset: int) -> record.StoredMessage:
    """Return the record at log offset `offset`, which lies in `file` and was found to be one."""
    at = offset - file.base
    region = file.map()
    size = record.read_head(region.read(at, record.BLANK_BYTES)).total_size
    return record.decode(region.read(at, size), log_offset=offset, check_crc=False)
