"""The message store: one directory, one writer, put together from the parts of this package.

    put ──► append kernel ──► log ──(confirmed)──► dispatch kernel ──► queues, index ──► answers, arrivals
                                └── flusher ──► disk ──► checkpoint

Everything here runs on the loop's thread, unless a docstring says otherwise; `open` and `close` may run in
another as long as nothing else is called meanwhile. What is acknowledged when stands in docs/durability.md
section 2: a put result with ASYNC_FLUSH may be answered at once, with SYNC_FLUSH when `confirmed` has reached
its `log_end`.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.config_files import DIRECTORY as CONFIG
from broker_store.engine.config_files import ConfigFiles, read_sound
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.inspect_disk import InspectDisk
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.file_facts import (
    LOST_AND_FOUND,
    hung_facts,
    index_file_facts,
    kept_facts,
    log_file_facts,
    queue_file_facts,
)
from broker_store.engine.file_sizes import FileSizes
from broker_store.engine.flusher import CheckpointFile, LogFlusher, RoundFlusher
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.rebuild import FRESH, OLD, IndexRebuild, remove_directory
from broker_store.engine.live_page import LivePage
from broker_store.engine.log.appender import Appender
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.mapped_file import MappedFile
from broker_store.engine.queue.consume_queue import ConsumeQueue, ConsumeQueues
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.read.reads import Reads
from broker_store.engine.retention import Retention
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.start.log_begin import holds_nothing
from broker_store.engine.start.recovery import Recovery
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import LastStart, StartRecords, store_gone
from broker_store.engine.start.unproved import Unproved
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.engine.worker import Worker
from broker_store.errors import (
    DamagedStoreError,
    DiskFullError,
    MisuseError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    SyncError,
)
from broker_store.formats import properties, timer_check, timer_log
from broker_store.formats.index_file import IndexGeometry
from broker_store.kernels import context as c
from broker_store.messages import Message, PutStatus

# A broker refuses sends while one of these stands, before they come here.
_REJECTING_FLAGS = ("slave", "page_cache_busy")
_PLACEHOLDER = properties.encode({"REPAIRED": "the message that had this offset is lost"})
_NO_TIMER_CHECK = (
    "is missing or empty, though each stop writes it: how far timer messages were delivered is not "
    "known, so those of the last days come again"
)
_TAKEN_AGAIN = (
    "it is not as it was surely written: messages whose units are lost are taken from their queue again, "
    "without those whose second was delivered"
)
_MOST_PLACEHOLDERS = 1000  # put at once
_BLOCKING_FLAGS = ("closed", "slave", "sync_failed", "disk_full", "no_room", "dispatch_failed", "inspect")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageStore:
    """A store over `settings.store_path_root_dir`.

    `clock` gives milliseconds since 1970. `wake(function)` runs a function on the loop's thread, from any
    other; by default it waits there for the next `tick` (tests, tools).
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        disk: Disk | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        wake: Callable[[Callable[[], None]], None] | None = None,
        live_page_path: Path | None = None,
        store_host: tuple[bytes, int] = (b"\x7f\x00\x00\x01", 10911),
        lock: StoreLock | None = None,
        records: StartRecords | None = None,
        purpose: str = "start",
    ):
        self.settings = settings
        self.root = Path(settings.store_path_root_dir)
        self.arrival_listener: Callable[[list[tuple[str, int]]], None] | None = None
        self._disk = disk or (InspectDisk() if settings.inspect else Disk())
        self._clock = clock
        self._woken: deque[Callable[[], None]] = deque()
        self._wake = wake or self._woken.append
        self._live_page_path = live_page_path
        self._live_page: LivePage | None = None
        self._context = WriterContext()
        self._view = self._context.view
        log_path = Path(settings.store_path_commit_log or self.root / "commitlog")
        self._is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        self.log = CommitLog(
            self._disk, log_path, settings.mapped_file_size_commit_log, self._context, self._is_sync
        )
        self.queue_table = ConsumeQueues(
            self._disk, self.root / "consumequeue", settings.mapped_file_size_consume_queue, self._context
        )
        geometry = IndexGeometry(settings.max_hash_slot_num, settings.max_index_num)
        self.index = HashIndex(self._disk, self.root / "index", geometry, self._context, clock)
        self.dispatcher = Dispatcher(
            self._context, self.log, self.queue_table, self.index, settings.delay_levels_ms
        )
        self.write_path = WritePath(clock)
        self.appender = Appender(
            settings, self._context, self.log, self.queue_table, self.index, clock, self, self.write_path
        )
        self.appender.store_host = store_host
        self._checkpoint = CheckpointFile(self._disk, self.root / "checkpoint")
        self._ends = EndsFile(self._disk, self.root / ENDS)
        self._retention = Retention(self._disk, settings, self.root, log_path)
        self.times = StoreTimes(self._disk, self.root / "config" / STORE_TIMES)
        self.reads = Reads(
            settings,
            self._disk,
            self._context,
            self.log,
            self.queue_table,
            self.index,
            self.times,
            self._wake,
            self._found_damage,
        )
        self.timer_files = TimerFiles(
            self._disk, self.root, settings.mapped_file_size_timer_log, lambda: self.log.flushed
        )
        self._unproved = Unproved(
            self.queue_table, self.index, self._queue_file_differs, self._index_file_differs
        )
        # The first index file that is not as recorded, until the index is rebuilt
        self._damaged_index: str | None = None
        self._log_flusher = LogFlusher(
            self.log, lambda: self._view[c.STORED_COUNT], self._flushed, self.write_path
        )
        self._round_flusher = RoundFlusher(
            self._context,
            self.log,
            self.queue_table,
            self.index,
            self._checkpoint,
            self._ends,
            settings.flush_consume_queue_thorough_interval,
        )
        self.report = RecoveryReport(
            clock(),
            purpose="inspect" if settings.inspect and purpose == "start" else purpose,
            sizes={field.name: getattr(settings, field.name) for field in fields(FileSizes)},
            delay_levels=settings.message_delay_level,
            flush_disk_type=settings.flush_disk_type,
        )
        self._records = records
        self.state = "opening"
        self._lock = lock
        self._workers: list[Worker] = []
        self._flags: dict[str, tuple[str, int]] = {}
        self.rejects_sends: str | None = None  # the flag for which a broker need not hand in sends at all
        self._damage_at = -1
        self._expired: frozenset[int] = frozenset()
        self._waiting: deque[tuple[int, int, Callable[[PutStatus], None]]] = deque()
        self._config_files = ConfigFiles(self._disk, self.root, self.report)
        self._tombstones = Tombstones(self.load_config, self.write_config, self._context)
        self._rebuild: IndexRebuild | None = None
        self._rebuild_worker: Worker | None = None
        # The doors of writing and reading, bound here: a frame that only passes on would take as long as a
        # short read.
        self.put, self.put_many, self.put_batch = (
            self.appender.put,
            self.appender.put_many,
            self.appender.put_batch,
        )
        self.put_waited = self.appender.put_waited
        self.put_apart, self.new_files = self.appender.put_apart, self.appender.new_files
        self.get, self.get_blocking, self.query_keys = (
            self.reads.get,
            self.reads.get_blocking,
            self.reads.query_keys,
        )
        self.record_now, self.record_at = self.reads.record_now, self.reads.record_at
        self.record_by_id, self.damage_at = self.reads.record_by_id, self.reads.damage_at
        self.query_compared, self.record_of_entry = self.reads.query_compared, self.reads.record_of_entry
        self.get_records = self.reads.get_records
        self.log_bytes, self.read_units = self.reads.log_bytes, self.reads.read_units
        self.min_offset, self.max_offset = self.reads.min_offset, self.reads.max_offset
        self.offset_by_time, self.store_time_at = self.reads.offset_by_time, self.reads.store_time_at
        self.time_order = self.reads.time_order
        self.offset_ranges, self.key_times_doubt = self.reads.offset_ranges, self.reads.key_times_doubt
        self.earliest_store_time, self.last_store_time = (
            self.reads.earliest_store_time,
            self.reads.last_store_time,
        )

    # Start and stop -------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the store for this process. Raises StoreLockedError within moments, before anything else is
        done."""
        if self._lock is None:
            self._disk.make_directory(self.root)
            self._lock = self._disk.lock(self.root / "lock")

    def open(self, on_step: Callable[[RecoveryReport], None] | None = None) -> RecoveryReport:
        """Load and recover; blocking, in any one thread. Raises StoreError (locked, damaged, disk full)."""
        report = self.report
        report.on_change = self._on_recovery_step(on_step)
        report.begin(self._clock())
        try:
            with report.step("take the store for this process"):
                self.lock()
                report.in_use = self.settings.inspect and self._lock.is_held_by_another
                self.state = "recovering"
                if self._live_page_path is not None:
                    self._live_page = LivePage(
                        Disk() if self.settings.inspect else self._disk, self._live_page_path
                    )
            if self._records is not None:
                with report.step("note that a start began"):
                    self._records.begin(report)
            abort = self.root / "abort"
            with report.step("look how the store was left") as step:
                self._demand_kinds()
                self._remove_leftovers()
                clean = not self._disk.exists(abort)
                if not clean:
                    self._disk.size_of(abort)  # refused when it is no regular file
                report.abort_found = not clean
                last_start = LastStart() if self._records is None else self._records.last_start(report)
                if not self._demand_the_store(last_start.started_ms):
                    last_start = last_start._replace(started_ms=None)  # nothing of what it left is expected
                step.detail = (
                    "there is no abort: it was closed in order, or is new"
                    if clean
                    else "abort is there: whoever wrote last did not close it"
                )
                if clean:
                    # Before the first write of a run, so that no crash of recovery itself can pass for a
                    # clean stop.
                    self._disk.write_file(abort, str(os.getpid()).encode())
                    self._disk.sync_directory(self.root)
            recovery = Recovery(
                self._disk,
                self.settings,
                self._context,
                self.log,
                self.queue_table,
                self.index,
                self.dispatcher,
                self._checkpoint,
                self._ends,
                self._tombstones,
                self.times,
                self.read_config,
                report,
                self.root,
                last_start,
            )
            try:
                with report.step("load what this broker notes beside the log"):
                    self._tombstones.load()
                    self.times.load()
                    if self.times.note:
                        report.finding("warning", self.times.note, f"config/{STORE_TIMES}")
                end = recovery.run(clean)
                self._config_files.expects_all = recovery.was_closed and last_start.started_ms is not None
            except BaseException:
                if clean and not recovery.has_changed_files:
                    self._disk.unlink(abort)
                raise
            with report.step("make ready to read"):
                self._unproved.begin(recovery.unread_index)
                self._ends.trust()
                self._tombstones.lower(end)
                self.appender.last_ms = recovery.last_store_ms
                self._log_flusher.messages = 0 if self.log.flushed == end else None
                self.reads.begin(end)
                self._view[c.CONFIRMED] = end
            if recovery.missing:
                with report.step("put placeholders for what is lost") as step:
                    step.messages = self._put_placeholders(recovery.missing)
                    end = self.log.wrote
            with report.step("note where store times go back") as step:
                self.times.settle(
                    self.log.minimum, end, is_own=clean and self._ends.is_final and self._ends.position == end
                )
                step.detail = self.times.detail
            if self.settings.timer_wheel_enable:
                with report.step("put timer messages on the wheel"):
                    self.timer_files.open(end, self.record_at, self.min_offset(timer_log.TIMER_TOPIC, 0))
                    if (
                        self.timer_files.lacks_check
                        and recovery.was_closed
                        and last_start.started_ms is not None
                    ):
                        report.finding("warning", _NO_TIMER_CHECK, timer_check.PATH)
                    if self.timer_files.taken_again_before:
                        report.finding("warning", _TAKEN_AGAIN, timer_log.PATH)
            with report.step("sync what was repaired"):
                if not clean:
                    self._disk.write_file(abort, str(os.getpid()).encode())
                    self._disk.sync_directory(self.root)
                self._round_flusher.round(self._clock())
            with report.step("count what was taken away"):
                report.lost_and_found = kept_facts(self._disk, self.root)
            self._end_report("done")
        except BaseException as error:
            self.state = "failed"
            self._end_report("failed", str(error))
            self._release()
            raise
        return report

    def _put_placeholders(self, missing: list[tuple[ConsumeQueue, int]]) -> int:
        """Messages without a body for offsets that were given and whose messages are lost: each is given
        once; how many."""
        count = 0
        self.appender.refusal = None
        try:
            for queue, following in missing:
                topic = self._context.topic(queue.topic).row
                took, topic[c.T_TAKES] = topic[c.T_TAKES], 1  # also one whose name a client may not send to
                while (left := following - queue.row[c.Q_NEXT]) > 0:
                    group = [
                        Message(queue.topic, queue.queue_id, b"", _PLACEHOLDER)
                        for _ in range(min(left, _MOST_PLACEHOLDERS))
                    ]
                    results = self.appender.put_many(group)
                    if not all(result.ok for result in results):
                        raise DiskFullError(
                            f"{self.root}: no room for placeholders of "
                            f"{queue.topic}/{queue.queue_id}: {results[-1].status.name}"
                        )
                    count += len(results)
                    self.log.sync(self.log.wrote)
                    self._flushed_on_loop(self.log.flushed)
                topic[c.T_TAKES] = took
        finally:
            self.appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        return count

    def _end_report(self, state: str, error: str | None = None) -> None:
        self.report.finish(state, error)
        if self._records is not None:
            self._records.write(self.report, at_once=True)

    def _on_recovery_step(self, on_step):
        def changed(report: RecoveryReport) -> None:
            if self._live_page is not None:
                self._publish(report.scanned_bytes, report.total_bytes)
            if self._records is not None:
                self._records.write(report)
            if on_step is not None:
                on_step(report)

        return changed

    def _demand_the_store(self, last_start_ms: int | None) -> bool:
        """Whether something of the store is here that an earlier start opened, or there was none. Raises
        DamagedStoreError, unless that is accepted."""
        if last_start_ms is None or not holds_nothing(self._disk, self.root, self.log.directory):
            return True
        what = store_gone(last_start_ms)
        if self.settings.accept_damage:
            self.report.finding("error", f"{what}; accepted", "commitlog")
            return False
        raise DamagedStoreError(
            what,
            file=str(self.root),
            advice="Mount it, or put it back, and start again; nothing was changed. To begin an empty store "
            "in its place: start with --accept-damage.",
        )

    def _demand_kinds(self) -> None:
        """Refuse a name that is of another kind than a later step needs, while there is no `abort` yet.
        Raises DamagedStoreError."""
        if not self.settings.inspect:
            self._disk.demand_directory(self.root.parent / LOST_AND_FOUND)
        for name in ("checkpoint", ENDS):
            self._disk.demand_file(self.root / name)
        if self.settings.timer_wheel_enable:
            self.timer_files.demand_kinds()

    def _remove_leftovers(self) -> None:
        """Half-written replacements of an earlier run."""
        remove_directory(self._disk, self.root / FRESH)
        remove_directory(self._disk, self.root / OLD)
        for directory in (self.root, self.root / "config"):
            for name in self._disk.list_names(directory):
                if name.endswith(".tmp"):
                    if self._disk.is_directory(directory / name):
                        raise DamagedStoreError(
                            "is a directory, where a temporary file is written",
                            file=str(directory / name),
                            advice="Move it out of the store.",
                        )
                    self._disk.unlink(directory / name)

    def start(self) -> None:
        """Begin to take messages: workers run from here on. Loop thread."""
        if self.state != "recovering" or self.report.state != "done":
            raise MisuseError("start() comes after open()")
        if self.settings.inspect:
            # Nothing is taken and nothing deleted, so there is nothing for workers to do.
            self.state = "running"
            self._set_flag("inspect", "the store was opened to be looked at")
            return
        flush_s = self.settings.flush_interval_commit_log / 1000
        self._workers = [
            Worker("log-flusher", self._log_flusher.step, min(flush_s, 0.5), self._worker_failed),
            Worker(
                "round-flusher",
                self._round_flusher.step,
                self.settings.flush_interval_consume_queue / 1000,
                self._worker_failed,
            ),
            Worker("preallocator", self._prepare, 1.0, self._worker_failed, niceness=5),
            Worker(
                "retention",
                self._look_at_disk,
                self.settings.clean_resource_interval / 1000,
                self._worker_failed,
            ),
            Worker("prover", self._unproved.step, 3600.0, self._worker_failed, niceness=5),
            Worker(
                "timer-flusher",
                self.timer_files.step,
                self.settings.timer_flush_interval_ms / 1000,
                self._worker_failed,
            ),
        ]
        for worker in self._workers:
            worker.start()
        self._flusher_worker, _, self._preallocator_worker, *_ = self._workers
        if self.settings.broker_role == "SLAVE":
            self._set_flag("slave", "the broker's role is SLAVE")
        self.state = "running"
        self._update_refusal()

    def close(self) -> None:
        """Stop in order: no more puts, workers out, last sync, checkpoint, `abort` away. Idempotent."""
        if self.state in ("closed", "failed"):
            self._release()
            return
        # Opened and never started is running for that: what recovery mended is complete.
        was_running = self.state in ("running", "read_only") or (
            self.state == "recovering" and self.report.state == "done"
        )
        self._set_flag("closed", "the store is shut down")
        self._stop_rebuild()
        for worker in self._workers:
            worker.stop()
            if worker.last_error is not None and "sync_failed" not in self._flags:
                # Its word may still be on the way to the loop, and the system tells of a failed sync only
                # once.
                self._set_flag("sync_failed", f"{worker.name}: {worker.last_error}")
        if was_running and "sync_failed" not in self._flags and "dispatch_failed" not in self._flags:
            try:
                self.log.sync(self.log.wrote)
                self._flushed_on_loop(self.log.flushed)
                is_recorded = self._round_flusher.finish(self._clock())
                self.timer_files.step(self._clock())
                # A store that was closed in order has a record that ends where it ends; without room for it
                # the next start looks at all.
                if is_recorded and self.dispatcher.dispatched == self.log.wrote:
                    self._disk.unlink(self.root / "abort", missing_ok=True)
                    self._disk.sync_directory(self.root)
            except StoreError as error:
                # `abort` stays: the next start looks at everything again.
                self._set_flag("sync_failed", str(error))
        self._fail_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        self.state = "closed"
        self._release()

    def _release(self) -> None:
        self.reads.close()
        self._checkpoint.close()
        self.timer_files.close()
        if self._lock is not None:
            self.index.close()
            self.queue_table.close()
            self.log.close()
            if self._live_page is not None:
                try:
                    self._live_page.close()
                except StoreError:
                    pass  # what is left of it names a process that is no more, and so says nothing
                self._live_page = None
            self._lock.release()
            self._lock = None

    def __enter__(self) -> MessageStore:
        self.open()
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # Flags ----------------------------------------------------------------------------------------

    def _set_flag(self, name: str, cause: str) -> None:
        if name not in self._flags:
            self._flags[name] = (cause, self._clock())
        self._update_refusal()

    def _clear_flag(self, name: str) -> None:
        if self._flags.pop(name, None) is not None:
            self._update_refusal()

    def _update_refusal(self) -> None:
        blocked = self.state not in ("running", "read_only") or any(
            flag in self._flags for flag in _BLOCKING_FLAGS
        )
        busy = PutStatus.OS_PAGE_CACHE_BUSY if "page_cache_busy" in self._flags else None
        self.appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE if blocked else busy
        self.rejects_sends = next((flag for flag in _REJECTING_FLAGS if flag in self._flags), None)
        if self.state in ("running", "read_only"):
            self.state = "read_only" if blocked else "running"

    @property
    def busy_took_ms(self) -> int:
        """How long the append took for which the page cache was called busy, the last time."""
        return self.appender.busy_took_ms

    @property
    def flags(self) -> dict[str, str]:
        """What is not as it should be: the cause of each flag that is set. Loop thread."""
        return {name: cause for name, (cause, _) in self._flags.items()}

    @property
    def is_writable(self) -> bool:
        return self.appender.refusal is None

    @property
    def blocked_by(self) -> tuple[str, int | None, int | None] | None:
        """The flag for which puts are SERVICE_NOT_AVAILABLE, what was found and what may be where a number
        decides; None without one."""
        flag = next((flag for flag in _BLOCKING_FLAGS if flag in self._flags), None)
        look = self._retention.last
        if flag in ("disk_full", "no_room") and look is not None and look.disk_full:
            return flag, math.ceil(look.usage.used_ratio * 100), self.settings.disk_space_warning_level_ratio
        return None if flag is None else (flag, None, None)

    def _worker_failed(self, name: str, error: BaseException) -> None:
        """In the worker's thread: a failed sync is final, and so is anything that was not foreseen."""
        self._wake(lambda: self._stop_writing(f"{name}: {error}"))

    def _stop_writing(self, cause: str) -> None:
        self._set_flag("sync_failed", cause)
        self._fail_waiting(PutStatus.SERVICE_NOT_AVAILABLE)

    def _found_damage(self, cause: str, log_offset: int) -> None:
        """A read came to bytes that are not as they were stored. Writing goes on; the flag stays until the
        place is cleaned away."""
        if not self._ends.in_doubt and any(queue.damaged for queue in self.queue_table):
            self._ends.doubt()
        self._damage_at = max(self._damage_at, log_offset)
        self._set_flag("damage_found", f"{cause}; `manage.py check_store DIR` reports all damage")

    def _queue_file_differs(self, queue: ConsumeQueue, name: str, log_offset: int) -> None:
        """Worker's thread."""
        cause = (
            f"consumequeue/{queue.topic}/{queue.queue_id}/{name} is not as it was recorded; the next "
            f"start makes it again from the log"
        )
        self._ends.doubt()
        self._wake(lambda: self._found_damage(cause, log_offset))

    def _index_file_differs(self, name: str) -> None:
        """Worker's thread."""
        self._ends.doubt()
        self._wake(lambda: self._mend_index(name))

    def _mend_index(self, name: str) -> None:
        """Build the index again, once for all its files."""
        if self._damaged_index is None and self.state in ("running", "read_only"):
            self._damaged_index = name
            self._set_flag(
                "index_damaged",
                f"index/{name} is not as it was recorded: the index is built again from the log, and "
                f"lookups by key may miss messages until then",
            )
            if self.is_writable:
                self.rebuild_index()

    @property
    def index_doubt(self) -> str | None:
        """Why a lookup by key may miss a message now, None when the index is known to be whole."""
        if self._damaged_index is not None:
            state, what = self.rebuild_state(), f"the index is damaged (index/{self._damaged_index})"
            if state["state"] == "running":
                return (
                    f"{what} and is being built again: {state['done_bytes']:,} of "
                    f"{state['total_bytes']:,} bytes are done"
                )
            was_cancelled = state["state"] == "cancelled"
            why = state["error"] or ("that was cancelled" if was_cancelled else "the store takes no writes")
            return f"{what} and was not built again: {why}"
        if self._unproved.index_files:
            return f"{self._unproved.index_files:,} index files are not compared with their sums yet"
        return None

    # What the appender asks for (AppenderHost) ----------------------------------------------------

    def trouble(self, flag: str, cause: str) -> None:
        self._set_flag(flag, cause)

    def trouble_over(self, flag: str) -> None:
        self._clear_flag(flag)

    def sync_failed(self, cause: str) -> None:
        self._stop_writing(cause)

    def settle(self, stopped: int) -> None:
        try:
            self.dispatcher.settle(stopped)
        except StoreError as error:
            # What was appended stays in the log, and the next start dispatches it; until then nothing more is
            # taken.
            self._set_flag("dispatch_failed", str(error))

    def check_disk(self) -> None:
        """The disk thresholds count before each new file too (docs/durability.md R13)."""
        decision = self._retention.look(self._clock())
        if decision.disk_full:
            raise DiskFullError(f"{self.root}: {decision.why}, no new file is made")

    def log_rolled(self) -> None:
        """Files that are full, on disk and dispatched need no map any more."""
        self.log.unmap_before(self.log.wrote - self.log.file_size)
        for queue in self.queue_table:
            queue.unmap_full()

    def appended(self, needs_blocks: bool) -> None:
        if not self._workers:
            return  # a start puts placeholders, and syncs them itself
        if needs_blocks:
            self._preallocator_worker.nudge()
        if self._is_sync:
            self._flusher_worker.hand_over()
        elif self._view[c.ARRIVAL_COUNT]:
            self._announce()

    def confirm(self, position: int) -> None:
        self._dispatch_to(position)
        if self._view[c.ARRIVAL_COUNT]:
            self._announce()

    # Confirming -----------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Log offset below which records may be shown and acknowledged."""
        return self._view[c.CONFIRMED]

    def when_confirmed(self, log_end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back on the loop when `log_end` is confirmed (PUT_OK), late (FLUSH_DISK_TIMEOUT), or will
        never be."""
        if self.confirmed >= log_end:
            callback(PutStatus.PUT_OK)
        elif "sync_failed" in self._flags:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._waiting.append((log_end, self._clock() + self.settings.sync_flush_timeout, callback))

    def _flushed(self, position: int) -> None:
        """Flusher's thread: the log is on disk up to `position`."""
        self._wake(lambda: self._flushed_on_loop(position))

    def _flushed_on_loop(self, position: int) -> None:
        if self._is_sync and position > self.confirmed:
            began_s = self.write_path.seconds()
            self._dispatch_to(position)
            self.write_path.dispatch_s = self.write_path.seconds() - began_s
            waiting = self._waiting
            while waiting and waiting[0][0] <= position:
                waiting.popleft()[2](PutStatus.PUT_OK)
            if self._view[c.ARRIVAL_COUNT]:
                self._announce()

    def _dispatch_to(self, position: int) -> None:
        try:
            self.dispatcher.confirm(position)
        except StoreError as error:
            self._set_flag("dispatch_failed", str(error))

    def _fail_waiting(self, status: PutStatus) -> None:
        while self._waiting:
            self._waiting.popleft()[2](status)

    def tick(self) -> None:
        """Small things that are due; call it about ten times a second on the loop."""
        while self._woken:
            self._woken.popleft()()
        now_ms = self._clock()
        while self._waiting and self._waiting[0][1] <= now_ms:
            self._waiting.popleft()[2](PutStatus.FLUSH_DISK_TIMEOUT)
        self.reads.tick(now_ms)
        self.write_path.tick(now_ms)
        if now_ms >= self.appender.busy_until_ms:
            self._clear_flag("page_cache_busy")
        self.index.adopt_prepared()
        if self._live_page is not None:
            self._publish()

    def _publish(self, step_done: int = 0, step_of: int = 0) -> None:
        """No message depends on the page: a failure is a flag, which the next success clears."""
        try:
            self._live_page.publish(
                self.log.minimum,
                self.log.wrote,
                self.confirmed,
                self.dispatcher.dispatched,
                self.log.flushed,
                self._round_flusher.position or 0,
                self.state,
                step_done,
                step_of,
            )
        except StoreError as error:
            self._set_flag("live_page_failed", f"jobs and commands cannot see where the store is: {error}")
        else:
            self._clear_flag("live_page_failed")

    def _announce(self) -> None:
        arrived = []
        for address in self._context.take_arrivals():
            queue = self.queue_table.find_row(address)
            if queue is not None:
                queue.row[c.Q_ARRIVED] = 0
                arrived.append((queue.topic, queue.queue_id))
        if arrived and self.arrival_listener is not None:
            self.arrival_listener(arrived)

    def watch(self, topic: str, queue_id: int) -> None:
        """Tell `arrival_listener` when the queue gets a message."""
        queue = self.queue_table.open(topic, queue_id)
        queue.row[c.Q_WATCHED] = 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        queue = self.queue_table.find(topic, queue_id)
        if queue is not None:
            queue.row[c.Q_WATCHED] = 0

    # Workers' steps -------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> bool:
        """Preallocator: room ahead of the writer. What the disk refuses here the writer will find out."""
        try:
            did = self.log.prepare()
            return self.index.prepare() or did
        except SyncError:
            raise
        except StoreError:
            return False

    def _look_at_disk(self, now_ms: int) -> bool:
        self._look_at_lock()
        # Each sync of the log looks too, but without messages there is none
        self.log.current.map().demand_in_place()
        try:
            older, names = (
                [file.path.name for file in self.log.files[:-1]],
                set(self._disk.list_names(self.log.directory)),
            )
            self._wake(lambda: self._name_removed([name for name in older if name not in names]))
            decision = self._retention.look(now_ms)
            self._expired = self._expired_now(now_ms)
        except StoreError:
            return False  # nothing is known now, and the next look is near
        self._wake(lambda: self._clean(decision))
        return False

    def _look_at_lock(self) -> None:
        """Raises StoreLockedError. Another failure, as of a disk that is full, may pass: the flag says it
        until then."""
        try:
            self._lock.demand_in_place()
        except StoreLockedError:
            raise
        except StoreError as error:
            cause = (
                f"the lock was removed and cannot be made again, so another process could open the "
                f"store: {error}"
            )
            self._wake(lambda: self._set_flag("lock_gone", cause))
        else:
            self._wake(lambda: self._clear_flag("lock_gone"))

    def _name_removed(self, names: list[str]) -> None:
        """Set the flag of removed log files, on the loop. `names` were missing from the directory; files that
        retention removed are no longer in `log.files`."""
        here = {file.path.name for file in self.log.files}
        gone = [name for name in names if name in here]
        if not gone:
            self._clear_flag("log_file_gone")
            return
        what = (
            f"commitlog/{gone[0]} is"
            if len(gone) == 1
            else f"commitlog/{gone[0]} and {len(gone) - 1:,} more log files are"
        )
        self._set_flag(
            "log_file_gone",
            f"{what} not there: what is mapped can be read until the broker stops, and then it is "
            f"lost; put the file back, or copy its messages now",
        )

    def _expired_now(self, now_ms: int) -> frozenset[int]:
        """Bases of the log files that are old enough to go when cleaning comes: from the oldest on, as they
        are deleted."""
        expired = itertools.takewhile(
            lambda file: self._retention.is_expired(self._disk.modified_ms(file.path), now_ms),
            self.log.files[:-1],
        )
        return frozenset(file.base for file in expired)

    def _clean(self, decision) -> None:
        """Loop: obey the look at the disk. Flags clear themselves when their cause is gone."""
        if decision.disk_full:
            self._set_flag("disk_full", decision.why)
        else:
            self._clear_flag("disk_full")
            self._clear_flag("no_room")
        if self._disk.spare_maps() > 0:
            self._clear_flag("map_limit")
        if not decision.delete_any:
            self._clear_flag("deleted_early")
        if decision.delete_expired or decision.delete_any:
            self._delete_files(decision.delete_any, decision.why)

    def clean_expired(self) -> None:
        """Loop: delete the log files that are older than fileReservedTime now, at whatever hour, as an
        administrator asks for.

        None goes before its time by this, however full the disk is; what fails becomes a flag.
        """
        self._delete_files(any_age=False, why="an administrator asked for it")

    def _delete_files(self, any_age: bool, why: str) -> None:
        if self.state not in ("running", "read_only"):
            return
        try:
            self.delete_expired(any_age=any_age, why=why)
            self._clear_flag("cleaning_failed")
        except SyncError as error:
            self._stop_writing(str(error))
        except StoreError as error:
            self._set_flag("cleaning_failed", str(error))

    def delete_expired(
        self, any_age: bool = False, most: int | None = None, why: str = "it was asked for"
    ) -> int:
        """Remove log files that are too old (or the oldest of any age), then what only pointed to them; how
        many.

        When one goes before its time a flag says so, and `why`: its messages may be unread
        (docs/durability.md R13).
        """
        removed = 0
        now_ms = self._clock()
        most = self.settings.delete_file_batch_max if most is None else most
        # Units and entries of what goes must be on the disk: a power cut could not have them made again. And
        # a record that stays must be there: by its time the next start sees that nothing which the stamps
        # cover is missing.
        safe_to = self._round_flusher.position or 0
        going: list[MappedFile] = []
        for file in self.log.files[: min(most, len(self.log.files) - 1)]:
            if file.end >= safe_to or file.flushed < file.size:
                break
            if not any_age and not self._retention.is_expired(self._disk.modified_ms(file.path), now_ms):
                break
            going.append(file)
        # The record first: a later start takes a log that begins behind the recorded begin for damaged. On a
        # disk without any room the first file makes room for the record.
        if going and not self._ends.raise_minimum(going[-1].end):
            going = going[:1]
        try:
            for file in going:
                is_expired = self._retention.is_expired(self._disk.modified_ms(file.path), now_ms)
                # The name first: a file that cannot be removed stays in the tables too, or a later start
                # would find a gap.
                self._disk.unlink(file.path)
                self.log.drop_first()
                self.reads.forget(file.base)
                file.unmap()
                removed += 1
                if not is_expired:
                    self._set_flag(
                        "deleted_early",
                        f"{why}: the oldest log files are deleted before their time, read or not",
                    )
        finally:
            if removed:
                self._disk.sync_directory(self.log.directory)
                self._ends.raise_minimum(self.log.minimum)
                self._correct_after_cleaning()
        return removed

    def _correct_after_cleaning(self) -> None:
        minimum = self.log.minimum
        if self._damage_at < minimum:
            self._clear_flag("damage_found")
        for queue in self.queue_table:
            for file in queue.files_before(minimum):
                self._disk.unlink(file.path)
                queue.drop(file)
            queue.correct_minimum(minimum)
        for file in self.index.files_before(minimum):
            self._disk.unlink(file.path)
            self.index.drop_first()
            file.unmap()
        self._tombstones.drop_below(minimum)

    # Rebuilding the index -------------------------------------------------------------------------

    def rebuild_index(self) -> dict:
        """Begin to build the index anew from the log, beside the old one; the state as `rebuild_state` tells
        it."""
        if not self.settings.message_index_enable:
            raise MisuseError("messageIndexEnable is off: there is no index to rebuild")
        if not self.is_writable:
            raise StoreClosedError("the store takes no writes now, so its index is not rebuilt")
        if self._rebuild is None or self._rebuild.state != "running":
            self._rebuild = IndexRebuild(
                self._disk,
                self.root,
                self.index.geometry,
                self.log,
                lambda: self.dispatcher.dispatched,
                self._view[c.MAX_RECORD],
                self._clock,
            )
            self._rebuild_worker = Worker("index-rebuild", self._rebuild_step, 0.2, self._worker_failed)
            self._rebuild_worker.start()
        return self._rebuild.as_dict()

    def rebuild_state(self) -> dict:
        """{"state": idle | running | done | failed | cancelled, "done_bytes", "total_bytes", "error"}"""
        if self._rebuild is None:
            return {"state": "idle", "done_bytes": 0, "total_bytes": 0, "error": None}
        return self._rebuild.as_dict()

    def cancel_rebuild(self) -> dict:
        if self._rebuild is not None:
            self._rebuild.cancel()
        return self.rebuild_state()

    def _rebuild_step(self, now_ms: int) -> bool:
        """The rebuild's worker. What fails there fails the rebuild, not the store."""
        rebuild = self._rebuild
        try:
            if rebuild.step():
                return True
        except SyncError:
            rebuild.end("failed", "a sync failed")
            raise
        except StoreError as error:
            rebuild.end("failed", str(error))
        if rebuild.is_ready:
            self._wake(self._finish_rebuild)
        return False

    def _finish_rebuild(self) -> None:
        rebuild = self._rebuild
        if rebuild is None or not rebuild.is_ready or self.state not in ("running", "read_only"):
            return
        try:
            rebuild.finish(self.index)
            self._damaged_index = None
            self._clear_flag("index_damaged")
        except SyncError as error:
            rebuild.end("failed", str(error))
            self._stop_writing(str(error))
        except StoreError as error:
            rebuild.end("failed", str(error))
        self._retire_rebuild_worker()

    def _retire_rebuild_worker(self) -> None:
        if self._rebuild_worker is not None:
            worker, self._rebuild_worker = self._rebuild_worker, None
            worker.stop()

    def _stop_rebuild(self) -> None:
        if self._rebuild is not None:
            self._rebuild.cancel()
        self._retire_rebuild_worker()
        if self._rebuild is not None and self._rebuild.state == "running":
            self._rebuild.end("cancelled")

    # Topics ---------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every queue, sorted."""
        return self.queue_table.in_order()

    def queue_ids(self, topic: str) -> list[int]:
        return self.queue_table.ids_of(topic)

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; its records stay in the log until they are too old.

        Where they end is kept in config/deletedTopics.json: a topic of that name made later must not get them
        back when a start dispatches the log again.
        """
        if self.dispatcher.dispatched < self.log.wrote:
            try:
                self.log.sync(self.log.wrote)
            except SyncError as error:
                self._stop_writing(str(error))
                raise
            self._flushed_on_loop(self.log.flushed)
        if not self.queue_table.ids_of(topic):
            return
        # On disk first: from then on the queues' files are rubbish, which a start clears away should we not
        # come to it.
        self._tombstones.add(topic, self.log.wrote)
        gone = self.queue_table.forget_topic(topic)
        for queue in gone:
            queue.close()
            for file in queue.files:
                self._disk.unlink(file.path, missing_ok=True)
            if self._disk.is_directory(queue.directory):
                self._disk.remove_directory(queue.directory)
        if self._disk.is_directory(self.queue_table.directory / topic):
            self._disk.remove_directory(self.queue_table.directory / topic)
        self._disk.sync_directory(self.queue_table.directory)
        self._ends.forget([(topic, queue.queue_id) for queue in gone])

    # Config files ---------------------------------------------------------------------------------

    def load_config(
        self, name: str, take: Callable[[str], None], *, is_needed: bool = True, when_gone: str = ""
    ) -> str | None:
        """Give the text of config/<name> to `take`, as `ConfigFiles.load`; what was wrong with the file, if
        anything was."""
        found = self._config_files.load(name, take, is_needed=is_needed, when_gone=when_gone)
        if found is not None:
            self._write_start_record()
        return found

    def note_of_config(self, name: str, what: str) -> None:
        """Add a warning about config/<name> to the report of the start: what was wrong, and what was set
        instead."""
        self.report.finding("warning", what, f"{CONFIG}/{name}")
        self._write_start_record()

    def _write_start_record(self) -> None:
        """Write what the start found since its record was written."""
        if self._records is not None and self.report.state != "running":
            self._records.write(self.report, at_once=True)

    def has_config(self, name: str) -> bool:
        """Whether config/<name> or its .bak is there. Any thread."""
        return self._config_files.is_there(name)

    def read_config(self, name: str) -> str | None:
        """The text of config/<name>, of its .bak when the file is missing, empty or torn, None when neither
        is there."""
        return read_sound(self._disk, self.root, name)

    def write_config(self, name: str, data: bytes) -> None:
        """Replace config/<name> atomically and keep the old one as .bak. Any thread. Raises StoreError."""
        if self._lock is None:
            raise StoreClosedError("config files are written by the process that holds the store")
        self._config_files.write(name, data)

    @property
    def disk(self) -> Disk:
        """For who looks at the store's files."""
        return self._disk

    # Facts ----------------------------------------------------------------------------------------

    @property
    def flushed(self) -> int:
        """Log offset up to which nothing is left for this process to sync; what a start found, or found no
        reason to doubt, lies before it."""
        return self.log.flushed

    def positions(self) -> dict:
        """Log offsets of now; cheap. None for what a store that is only looked at cannot know: how much of it
        is on the disk."""
        stamps = self._checkpoint.stamps
        is_known = not self.settings.inspect
        return {
            "min": self.log.minimum,
            "wrote": self.log.wrote,
            "confirmed": self.confirmed,
            "flushed": self.log.flushed if is_known else None,
            "dispatched": self.dispatcher.dispatched,
            "checkpoint_position": self._round_flusher.position if is_known else None,
            "checkpoint": {
                "physic_ms": stamps.physic_msg_timestamp,
                "logics_ms": stamps.logics_msg_timestamp,
                "index_ms": stamps.index_msg_timestamp,
            },
        }

    def behind_ms(self, position: int) -> int | None:
        """How long ago the first record at or behind a log offset was stored, 0 when there is none yet; None
        when that is not known."""
        if self.state not in ("running", "read_only"):
            return None
        if position >= self.log.wrote:
            return 0
        stored_ms = self.log.stored_ms(position)
        return None if stored_ms is None else max(0, self._clock() - stored_ms)

    def _unflushed_messages(self, unflushed_bytes: int) -> int | None:
        """At most so many messages of this run are not on the disk."""
        if not unflushed_bytes:
            return 0
        messages = self._log_flusher.messages
        return None if messages is None else self._view[c.STORED_COUNT] - messages

    def snapshot(self) -> dict:
        """One picture of everything that is cheap to know."""
        now_ms = self._clock()
        positions = self.positions()
        flushed = positions["flushed"]
        unflushed = None if flushed is None else positions["wrote"] - flushed
        decision = self._retention.last
        flusher = self._log_flusher
        settings = self.settings
        return {
            "at_ms": now_ms,
            "state": self.state,
            "positions": positions,
            "behind": {
                "dispatch_bytes": positions["wrote"] - positions["dispatched"],
                "unflushed_bytes": unflushed,
                "oldest_unflushed_ms": None if flushed is None else self.behind_ms(flushed),
                "unflushed_messages": None if unflushed is None else self._unflushed_messages(unflushed),
            },
            "flags": [
                {"name": name, "cause": cause, "since_ms": since}
                for name, (cause, since) in self._flags.items()
            ],
            "flush": {
                "type": settings.flush_disk_type,
                "count": flusher.count,
                "last_duration_ms": flusher.last_duration_ms if flusher.count else None,
                "max_duration_ms": flusher.max_duration_ms if flusher.count else None,
                "errors": int("sync_failed" in self._flags),
            },
            "totals": {
                "puts": self._view[c.STORED_COUNT],
                "put_bytes": self._view[c.STORED_BYTES],
                **self.reads.totals(),
                "refused": dict(self.appender.refused),
            },
            "disk": (
                {
                    "total_bytes": decision.usage.total,
                    "free_bytes": decision.usage.free,
                    "used_ratio": decision.usage.used_ratio,
                }
                if decision is not None
                else None
            ),
            "lost_and_found": self.report.lost_and_found,
            "queues": len(self.queue_table),
            "commit_log_files": len(self.log.files),
            "index": self.index.newest_facts(),
            "sizes": {
                "commit_log_file": settings.mapped_file_size_commit_log,
                "queue_file": settings.mapped_file_size_consume_queue,
                "index_slots": settings.max_hash_slot_num,
                "index_entries": settings.max_index_num,
            },
        }

    def files(self, *kinds: str) -> list[dict]:
        """A dict a file, with the keys of `engine/file_facts.py`.

        Of the kinds asked for (commitlog, consumequeue, index), of all when none is: those of the queues may
        be thousands.
        """
        facts = []
        if not kinds or "commitlog" in kinds:
            facts += log_file_facts(self.log, self.confirmed, self.reads.files_held())
            facts = [
                fact | {"last_ms": self.appender.last_ms or None} if fact["state"] == "writing" else fact
                for fact in facts
            ]
            facts = [
                fact | {"state": "expired"}
                if fact["state"] == "full" and fact["base"] in self._expired
                else fact
                for fact in facts
            ]
        if not kinds or "consumequeue" in kinds:
            for queue in self.queue_table:
                facts += queue_file_facts(queue)
        if not kinds or "index" in kinds:
            facts += index_file_facts(self.index)
        return self._as_known(facts)

    def _as_known(self, facts: list[dict]) -> list[dict]:
        """Of files that are only looked at nobody knows what is on the disk."""
        return [fact | {"flushed": None} for fact in facts] if self.settings.inspect else facts

    def hung_files(self) -> list[dict]:
        """Files that were deleted while something here still holds them, as in `files`. Asks the system: for
        a thread."""
        return hung_facts(self._disk, self.root, self.log.directory)

    def queue_files(self, topic: str, queue_id: int) -> list[dict]:
        """The files of one queue, as in `files`; none for a queue that is not there."""
        queue = self.queue_table.find(topic, queue_id)
        return [] if queue is None else self._as_known(queue_file_facts(queue))

    def index_files(self) -> list[dict]:
        """A dict an index file, oldest first: name, slots, slots_used, entries, max_entries, times, offsets,
        state."""
        return self.index.facts()

    @property
    def last_round_duration_ms(self) -> float | None:
        """How long it took to bring queues and index to the disk the last time."""
        return self._round_flusher.last_duration_ms

    def recovery_report(self) -> dict:
        """What this start found and did; live while it runs. Any thread."""
        return self.report.as_dict()
