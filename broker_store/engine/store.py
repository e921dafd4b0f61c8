"""The message store: one directory, one writer, put together from the parts of this package.

    put ──► append kernel ──► log ──(confirmed)──► dispatch kernel ──► queues, index ──► answers, arrivals
                                └── flusher ──► disk ──► checkpoint

`MessageStore` opens and closes the parts in order, and runs their workers. Each part has a module:

    appender, reads    write and read                    confirmation   what is acknowledged, and when
    cleaning           removes old files                 rebuilding     the index is built again
    status             positions, flags, files           StoreState     states and flags
    start/opening.py   a start, with its recovery        store_parts    how the parts are made

Everything here is for the loop's thread, unless a docstring says otherwise. `open` and `close` may run in
another thread as long as nothing else is called meanwhile. A put may be answered when `confirmed` has reached
its `log_end` (docs/durability.md section 2).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.config_files import DIRECTORY, Take, read_sound
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.inspect_disk import InspectDisk
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.log.log_copy import LogCopy, take_role
from broker_store.engine.queue.topic_removal import remove_topic
from broker_store.engine.retention.cleaning import Cleaning
from broker_store.engine.start.opening import Opening
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.status.status import StoreStatus
from broker_store.engine.store_parts import StoreParts
from broker_store.engine.workers import StoreWorkers
from broker_store.errors import MisuseError, StoreClosedError, StoreError
from broker_store.kernels import context as c
from broker_store.messages import PutStatus


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageStore:
    """A store over `settings.store_path_root_dir`.

    `clock` gives milliseconds since 1970. `wake(function)` runs a function on the loop's thread, by default
    in the next `tick` (tests, tools). What the broker needs of it is `engine.store_protocol.Store`.
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
        self._woken: deque[Callable[[], None]] = deque()  # any thread appends, `tick` takes
        self._parts = parts = StoreParts(
            settings,
            disk or (InspectDisk() if settings.inspect else Disk()),
            clock,
            wake or self._woken.append,
            live_page_path,
            store_host,
            purpose,
            refuse=self._refuse,
            lock=lambda: self._lock,
            load_config=self.load_config,
            write_config=self.write_config,
        )
        # Any thread.
        self.settings, self.root, self.disk, self.report = settings, parts.root, parts.disk, parts.report
        self._clock = clock
        # The loop's thread; the threads of the other parts stand in store_parts.py.
        self.log, self.queue_table, self.index = parts.log, parts.queues, parts.index
        self.dispatcher, self.appender, self.reads = parts.dispatcher, parts.appender, parts.reads
        self.confirmation, self.write_path, self.times = parts.confirmation, parts.write_path, parts.times
        self.rebuilding, self.timer_files = parts.rebuilding, parts.timer_files
        self.cleaning, self.tombstones = Cleaning(parts), parts.tombstones
        self.status = StoreStatus(parts, self.cleaning)
        self.copy: LogCopy | None = None  # of a slave, from `start` on
        self.rejects_sends: str | None = None  # the flag for which sends are refused before they are put
        # The thread that opens and closes.
        self._records = records  # of starts, None where none are kept
        self._lock = lock
        self._workers = StoreWorkers(parts, self.cleaning)

    # Start and stop

    def lock(self) -> StoreLock:
        """Take the store for this process, at once and before all else. Raises StoreLockedError."""
        if self._lock is None:
            self.disk.make_directory(self.root)
            self._lock = self.disk.lock(self.root / "lock")
        return self._lock

    def open(self, on_step: Callable[[RecoveryReport], None] | None = None) -> RecoveryReport:
        """Load and recover; blocking, in any one thread. Raises StoreError (locked, damaged, disk full)."""
        parts, report = self._parts, self.report

        def changed(report: RecoveryReport) -> None:
            parts.live.publish(report.scanned_bytes, report.total_bytes)
            if self._records is not None:
                self._records.write(report)
            if on_step is not None:
                on_step(report)

        report.on_change = changed
        report.begin(self._clock())
        opening = Opening(parts, self._records, take_lock=self.lock, read_config=self.read_config)
        try:
            opening.run()
            report.finish("done")
            self._write_start_record()
        except BaseException as error:
            parts.state.enter("failed")
            report.finish("failed", str(error))
            self._write_start_record()
            self._release()
            raise
        return report

    def start(self) -> None:
        """Begin to take messages and run the workers. Loop's thread."""
        parts, settings = self._parts, self.settings
        if self.state != "recovering" or self.report.state != "done":
            raise MisuseError("start() comes after open()")
        if settings.inspect:
            # No worker is needed: no message is taken.
            parts.state.enter("running")
            parts.state.set_flag("inspect", "the store was opened for inspection")
            return
        parts.append_to_buffers()
        self._workers.start()
        self.copy = take_role(settings, parts)
        parts.state.enter("running")

    def close(self) -> None:
        """Stop in order: refuse puts, end workers, sync, write the checkpoint, remove `abort`. Idempotent."""
        parts, state = self._parts, self._parts.state
        if state.value in ("closed", "failed"):
            return self._release()
        # A store that was opened and never started counts as running: what recovery repaired is complete.
        was_running = state.is_open or (self.state == "recovering" and self.report.state == "done")
        state.set_flag("closed", "the store is shut down")
        parts.rebuilding.stop()
        self._workers.stop()
        if was_running and not state.has_failed:
            try:
                self.log.sync(self.log.wrote)
                parts.confirmation.finish(self.log.flushed)
                is_recorded = parts.round_flusher.finish(self._clock())
                parts.timer_files.step(self._clock())
                # Without room for the record of ends `abort` stays, and the next start scans everything.
                if is_recorded and self.dispatcher.dispatched == self.log.wrote:
                    self.disk.unlink(self.root / "abort", missing_ok=True)
                    self.disk.sync_directory(self.root)
            except StoreError as error:
                # `abort` stays: the next start scans everything again.
                state.set_flag("sync_failed", str(error))
        parts.confirmation.fail_waiting()
        state.enter("closed")
        self._release()

    def _release(self) -> None:
        parts = self._parts
        parts.reads.close()
        parts.checkpoint.close()
        parts.timer_files.close()
        if self._lock is not None:
            parts.index.close()
            parts.queues.close()
            parts.log.close()
            parts.live.close()
            self._lock.release()
            self._lock = None

    def __enter__(self) -> MessageStore:
        self.open()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tick(self) -> None:
        """Do the small work that is due. Called about ten times a second."""
        while self._woken:
            self._woken.popleft()()
        parts, now_ms = self._parts, self._clock()
        parts.confirmation.expire(now_ms)
        parts.reads.tick(now_ms)
        parts.write_path.tick(now_ms)
        parts.host.clear_flags(now_ms >= parts.appender.busy_until_ms)
        parts.index.adopt_prepared()
        parts.live.publish()

    # State and flags
    def _refuse(self, refusal: PutStatus | None, rejects_sends: str | None) -> None:
        self._parts.appender.refusal, self.rejects_sends = refusal, rejects_sends

    @property
    def state(self) -> str:
        """One of `live_page.STATES`."""
        return self._parts.state.value

    @property
    def flags(self) -> dict[str, str]:
        """The cause of each flag that is set."""
        return self._parts.state.causes()

    @property
    def is_writable(self) -> bool:
        return self._parts.state.is_writable

    def set_flag(self, flag: str, cause: str) -> None:
        """Set a flag of the broker around the store."""
        self._parts.state.set_flag(flag, cause)

    def clear_flag(self, flag: str) -> None:
        """Clear a flag that `set_flag` set."""
        self._parts.state.clear_flag(flag)

    @property
    def confirmed(self) -> int:
        """The log offset below which records may be shown and acknowledged."""
        return self._parts.context.view[c.CONFIRMED]

    @property
    def flushed(self) -> int:
        """The log offset up to which this process has nothing left to sync."""
        return self.log.flushed

    @property
    def index_doubt(self) -> str | None:
        """A sentence why a lookup by key may miss a message now; None when the index is known to be whole."""
        unproved = self._parts.unproved.index_files
        return self.rebuilding.doubt or (
            f"{unproved:,} index files are not compared with their sums yet" if unproved else None
        )

    # Topics

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every queue, sorted."""
        return self.queue_table.in_order()

    def queue_ids(self, topic: str) -> list[int]:
        return self.queue_table.ids_of(topic)

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues. Raises StoreError."""
        remove_topic(self._parts, topic)

    # Config files

    def load_config(
        self, name: str, take: Take, *, is_needed: bool = True, when_gone: str = "", takes_backup: bool = True
    ) -> str | None:
        """Load config/<name> as `ConfigFiles.load`. Return what was wrong with it, None if nothing was."""
        load = self._parts.config_files.load
        found = load(name, take, is_needed=is_needed, when_gone=when_gone, takes_backup=takes_backup)
        if found is not None:
            self._write_start_record()
        return found

    def note_of_config(self, name: str, what: str) -> None:
        """Add a warning about config/<name> to the report of the start."""
        self.report.finding("warning", what, f"{DIRECTORY}/{name}")
        self._write_start_record()

    def _write_start_record(self) -> None:
        if self._records is not None and self.report.state != "running":
            self._records.write(self.report, at_once=True)

    def has_config(self, name: str) -> bool:
        """Return True if config/<name> or its .bak is there. Any thread."""
        return self._parts.config_files.is_there(name)

    def read_config(self, name: str) -> str | None:
        """Return the text of config/<name>, else of its .bak; None when neither is there."""
        return read_sound(self.disk, self.root, name)

    def write_config(self, name: str, data: bytes) -> None:
        """Replace config/<name> atomically and keep the old one as .bak. Any thread. Raises StoreError."""
        if self._lock is None:
            raise StoreClosedError("config files are written by the process that holds the store")
        self._parts.config_files.write(name, data)
