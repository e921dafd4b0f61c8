"""A start of the store, from its lock to a readable store whose queues and index agree with its log.

    1  take the store           the lock; the live page; note that a start began
    2  read the last run's end  refuse files of another kind, remove temporary files, read `abort`
    3  recover                  start/recovery.py: the log's end, queues and index
    4  make ready to read       positions, tombstones; the record of ends holds again
    5  placeholders             for offsets that were given and whose messages are lost
    6  times, timer messages    where store times go back; the timer wheel
    7  sync                     `abort` is written, what was repaired goes to the disk

The order matters for a crash in between. `abort` is written before the first change of a file, or a crash of
the recovery would count as a stop in order. `MessageStore.close` removes it after the last sync.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from broker_store.config.replication import SLAVE
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.index.rebuild import FRESH, OLD, remove_directory
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.log_begin import holds_nothing
from broker_store.engine.start.log_cut import carry_out, cut_done, noted_cut
from broker_store.engine.start.recovery import Recovery
from broker_store.engine.start.start_records import LastStart, StartRecords, store_gone
from broker_store.engine.status.file_facts import LOST_AND_FOUND, kept_facts
from broker_store.engine.store_parts import StoreParts
from broker_store.errors import DamagedStoreError, DiskFullError
from broker_store.formats import properties, timer_check, timer_log
from broker_store.kernels import context as c
from broker_store.messages import Message, PutStatus

_PLACEHOLDER = properties.encode({"REPAIRED": "the message that had this offset is lost"})
_MAX_PLACEHOLDERS = 1000  # put at once
_NO_TIMER_CHECK = (
    "is missing or empty, though each stop writes it: how far timer messages were delivered is not "
    "known, so those of the last days come again"
)
_TAKEN_AGAIN = (
    "it ends before the place up to which it was synced: the messages whose units are lost are read from "
    "their queue again, except those whose second was delivered"
)


class Opening:
    """One start of the store that `parts` belong to. One thread runs it, and no other thread uses the store
    then."""

    def __init__(
        self,
        parts: StoreParts,
        records: StartRecords | None,
        *,
        take_lock: Callable[[], StoreLock],
        read_config: Callable[[str], str | None],
    ):
        """`records` are those of earlier starts, None where none are kept."""
        self._parts, self._records = parts, records
        self._take_lock, self._read_config = take_lock, read_config
        self._report = parts.report

    def run(self) -> None:
        """Run the steps above. Raises StoreError: the store is locked, damaged, or the disk is full."""
        parts, report = self._parts, self._report
        with report.step("take the store for this process"):
            lock = self._take_lock()
            report.in_use = parts.settings.inspect and lock.is_held_by_another
            parts.state.enter("recovering")
            parts.live.open()
            log_cut = None if parts.settings.inspect else noted_cut(parts.disk, parts.root)
        if self._records is not None:
            with report.step("note that a start began"):
                self._records.begin(report)
        if log_cut is not None:
            with report.step("cut the log where it left its master's") as step:
                step.bytes = carry_out(parts.disk, parts.root, parts.log.directory, log_cut, report)
        clean, last_start = self._read_last_run()
        if log_cut is not None:
            last_start = LastStart()  # units lead to records that were cut, and prove nothing
        recovery = Recovery(parts, self._read_config, last_start)
        try:
            with report.step("load tombstones and store times"):
                parts.tombstones.load()
                parts.times.load()
                if parts.times.note:
                    report.finding("warning", parts.times.note, f"config/{STORE_TIMES}")
            end = recovery.run(clean)
            parts.config_files.expects_all = recovery.was_closed and last_start.started_ms is not None
        except BaseException:
            if clean and not recovery.has_changed_files:
                parts.disk.unlink(self._abort)
            raise
        with report.step("make ready to read"):
            parts.unproved.begin(recovery.unread_index)
            parts.ends.trust()
            parts.tombstones.lower(end)
            parts.appender.last_ms = recovery.last_store_ms
            parts.log_flusher.messages = 0 if parts.log.flushed == end else None
            parts.reads.begin(end)
            parts.context.view[c.CONFIRMED] = end
        if recovery.missing:
            with report.step("put placeholders for what is lost") as step:
                step.messages = self._put_placeholders(recovery.missing)
                end = parts.log.wrote
        with report.step("note where store times go back") as step:
            parts.times.settle(
                parts.log.minimum, end, is_own=clean and parts.ends.is_final and parts.ends.position == end
            )
            step.detail = parts.times.detail
        if parts.settings.timer_wheel_enable:
            with report.step("put timer messages on the wheel"):
                self._open_timer(end, recovery.was_closed and last_start.started_ms is not None)
        with report.step("sync what was repaired"):
            if not clean:
                self._write_abort()
            parts.round_flusher.round(parts.clock())
            parts.queues.unmap_idle()
            if log_cut is not None:
                cut_done(parts.disk, parts.root)
        with report.step("count what was taken away"):
            report.lost_and_found = kept_facts(parts.disk, parts.root)

    @property
    def _abort(self) -> Path:
        return self._parts.root / "abort"

    def _write_abort(self) -> None:
        parts = self._parts
        parts.disk.write_file(self._abort, str(os.getpid()).encode())
        parts.disk.sync_directory(parts.root)

    def _read_last_run(self) -> tuple[bool, LastStart]:
        """Return whether the last run closed the store in order, and what is known of the last start."""
        report = self._report
        with report.step("read how the last run ended") as step:
            self._require_kinds()
            self._remove_leftovers()
            clean = not self._parts.disk.exists(self._abort)
            if not clean:
                self._parts.disk.size_of(self._abort)  # refused when it is no regular file
            report.abort_found = not clean
            last_start = LastStart() if self._records is None else self._records.last_start(report)
            if not self._require_the_store(last_start.started_ms):
                last_start = last_start._replace(started_ms=None)  # none of its files is expected then
            step.detail = (
                "there is no abort: it was closed in order, or is new"
                if clean
                else "abort is there: the last run did not close the store"
            )
            if clean:
                # Before the first write of a run, so that a crash of the recovery itself never counts as a
                # stop in order.
                self._write_abort()
        return clean, last_start

    def _require_the_store(self, last_start_ms: int | None) -> bool:
        """Return True if something is left of the store that an earlier start opened, or no start is known.
        Raises DamagedStoreError, unless the loss is accepted."""
        parts = self._parts
        if last_start_ms is None or not holds_nothing(parts.disk, parts.root, parts.log.directory):
            return True
        what = store_gone(last_start_ms)
        if parts.settings.accept_damage:
            self._report.finding("error", f"{what}; accepted", "commitlog")
            return False
        raise DamagedStoreError(
            what,
            file=str(parts.root),
            advice="Mount it, or put it back, and start again; nothing was changed. To begin an empty store "
            "in its place: start with --accept-damage.",
        )

    def _require_kinds(self) -> None:
        """Check that each name is a file or a directory, as later steps need it, before `abort` is written.
        Raises DamagedStoreError."""
        parts = self._parts
        if not parts.settings.inspect:
            parts.disk.require_directory(parts.root.parent / LOST_AND_FOUND)
        for name in ("checkpoint", ENDS):
            parts.disk.require_file(parts.root / name)
        if parts.settings.timer_wheel_enable:
            parts.timer_files.require_kinds()

    def _remove_leftovers(self) -> None:
        """Remove unfinished replacements of an earlier run. Raises DamagedStoreError."""
        parts = self._parts
        remove_directory(parts.disk, parts.root / FRESH)
        remove_directory(parts.disk, parts.root / OLD)
        for directory in (parts.root, parts.root / "config"):
            for name in parts.disk.list_names(directory):
                if name.endswith(".tmp"):
                    if parts.disk.is_directory(directory / name):
                        raise DamagedStoreError(
                            "is a directory, where a temporary file is written",
                            file=str(directory / name),
                            advice="Move it out of the store.",
                        )
                    parts.disk.unlink(directory / name)

    def _put_placeholders(self, missing: list[tuple[ConsumeQueue, int]]) -> int:
        """Put messages without a body at offsets that were given and whose messages are lost, so that none is
        given again. Return how many. Raises DiskFullError."""
        parts = self._parts
        count = 0
        parts.appender.refusal = None
        try:
            for queue, following in missing:
                topic = parts.context.topic(queue.topic).row
                took, topic[c.T_TAKES] = topic[c.T_TAKES], 1  # also one whose name a client may not send to
                while (left := following - queue.row[c.Q_NEXT]) > 0:
                    group = [
                        Message(queue.topic, queue.queue_id, b"", _PLACEHOLDER)
                        for _ in range(min(left, _MAX_PLACEHOLDERS))
                    ]
                    results = parts.appender.put_many(group)
                    if not all(result.ok for result in results):
                        raise DiskFullError(
                            f"{parts.root}: no room for placeholders of "
                            f"{queue.topic}/{queue.queue_id}: {results[-1].status.name}"
                        )
                    count += len(results)
                    parts.log.sync(parts.log.wrote)
                    parts.confirmation.flushed(parts.log.flushed)
                topic[c.T_TAKES] = took
        finally:
            parts.appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        return count

    def _open_timer(self, end: int, expects_check: bool) -> None:
        parts = self._parts
        parts.timer_files.open(
            end, parts.reads.records.record_at, parts.reads.min_offset(timer_log.TIMER_TOPIC, 0)
        )
        if parts.timer_files.lacks_check and expects_check:
            self._report.finding("warning", _NO_TIMER_CHECK, timer_check.PATH)
        if parts.timer_files.taken_again_before and parts.settings.broker_role != SLAVE:
            self._report.finding("warning", _TAKEN_AGAIN, timer_log.PATH)
