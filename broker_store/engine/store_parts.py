"""The parts of a store, made once and in the order in which they need each other.

    disk, context ──► log, queues, index ──► dispatcher ──► state, confirmation ──► appender
                                         ──► flushers, reads, rebuilding, live page

A start, the workers, cleaning and status work on all parts: they get this object, and the store makes them.

A comment says which thread changes a part; without a comment it is the loop's. The words of `context` are
shared with the kernels, which run in the thread of their caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.config_files import ConfigFiles
from broker_store.engine.damage import FoundDamage
from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.disk.lock import StoreLock
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.flusher import CheckpointFile, LogFlusher, RoundFlusher
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.rebuilding import IndexRebuilding
from broker_store.engine.log.appender import Appender
from broker_store.engine.log.appender_host import AppenderHost
from broker_store.engine.log.buffer_pool import BufferPool
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.committer import LogCommitter
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.log.record_ends import RecordEnds
from broker_store.engine.log.store_times import FILE_NAME as STORE_TIMES
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.queue.queue_maps import default_limit
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.read.reads import Reads
from broker_store.engine.retention.retention import Retention
from broker_store.engine.rows import WriterContext
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.unproved import Unproved
from broker_store.engine.status.live_publisher import LivePublisher
from broker_store.engine.store_state import StoreState
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.errors import ConfigError
from broker_store.formats.index_file import IndexGeometry
from broker_store.kernels import context as c
from broker_store.memory_limit import memory_limit
from broker_store.messages import PutStatus


class StoreParts:
    """The parts. `refuse` is StoreState's. `lock()` returns the lock that the process holds, None without it.
    `load_config` and `write_config` are the store's."""

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: Callable[[], int],
        wake: Callable[[Callable[[], None]], None],
        live_page_path: Path | None,
        store_host: tuple[bytes, int],
        purpose: str,
        *,
        refuse: Callable[[PutStatus | None, str | None], None],
        lock: Callable[[], StoreLock | None],
        load_config: Callable[..., str | None],
        write_config: Callable[[str, bytes], None],
    ):
        # Fixed from here on; any thread.
        self.settings = settings
        self.root = root = Path(settings.store_path_root_dir)
        self.disk = disk
        self.clock = clock
        self.lock = lock
        is_sync = settings.flush_disk_type == "SYNC_FLUSH"
        log_path = Path(settings.store_path_commit_log or root / "commitlog")
        geometry = IndexGeometry(settings.max_hash_slot_num, settings.max_index_num)
        self.wake = wake

        # The loop's thread. Kernels read and write `context`; it is the one place of positions and rows.
        self.context = context = WriterContext()
        self.log = CommitLog(disk, log_path, settings.mapped_file_size_commit_log, context, is_sync)
        self.queues = ConsumeQueues(
            disk,
            root / "consumequeue",
            settings.mapped_file_size_consume_queue,
            context,
            settings.max_mapped_files or default_limit(memory_limit().bytes),
        )
        disk.kept_maps = self.queues.maps.limit // 2
        self.index = HashIndex(disk, root / "index", geometry, context, clock)
        self.dispatcher = Dispatcher(context, self.log, self.queues, self.index, settings.delay_levels_ms)
        self.write_path = WritePath(clock)
        self.state = StoreState(clock, refuse)
        self.confirmation = Confirmation(
            context,
            self.queues,
            self.dispatcher,
            self.write_path,
            self.state,
            RecordEnds(self.log, settings.max_message_size),
            is_sync=is_sync,
            timeout_ms=settings.sync_flush_timeout,
            clock=clock,
            wake=wake,
        )
        self.retention = Retention(disk, settings, root, log_path)  # `decide`: the retention worker, too
        self.host = AppenderHost(
            str(root),
            self.log,
            self.queues,
            self.dispatcher,
            self.retention,
            self.state,
            self.confirmation,
            is_sync=is_sync,
            clock=clock,
        )
        self.appender = Appender(
            settings, context, self.log, self.queues, self.index, clock, self.host, self.write_path
        )
        self.appender.store_host = store_host

        # Files beside the log. Each has a lock of its own where the flusher writes it.
        self.checkpoint = checkpoint = CheckpointFile(disk, root / "checkpoint")
        self.ends = EndsFile(disk, root / ENDS)
        self.times = StoreTimes(disk, root / "config" / STORE_TIMES)
        self.timer_files = TimerFiles(
            disk, root, settings.mapped_file_size_timer_log, lambda: self.log.flushed
        )
        self.committer: LogCommitter | None = None  # the committer's thread
        if settings.transient_store_pool_enable:
            self.committer = LogCommitter(
                self.log,
                lambda: context.view[c.STORED_COUNT],
                self.confirmation.log_committed,
                least_pages=settings.commit_commit_log_least_pages,
                thorough_ms=settings.commit_commit_log_thorough_interval,
            )
        self.log_flusher = LogFlusher(  # the flusher's thread
            self.log,
            self._committed_messages,
            self.confirmation.log_flushed,
            self.write_path,
        )
        self.round_flusher = RoundFlusher(  # the round flusher's thread
            context,
            self.log,
            self.queues,
            self.index,
            checkpoint,
            self.ends,
            settings.flush_consume_queue_thorough_interval,
        )
        self.report = RecoveryReport(  # any thread reads it
            clock(),
            purpose="inspect" if settings.inspect and purpose == "start" else purpose,
            sizes={field.name: getattr(settings, field.name) for field in fields(FileSizes)},
            delay_levels=settings.message_delay_level,
            flush_disk_type=settings.flush_disk_type,
        )
        self.config_files = ConfigFiles(disk, root, self.report)  # any thread, by a lock of its own
        self.tombstones = Tombstones(load_config, write_config, context)

        # What is found while the store runs, and what follows.
        self.damage = damage = FoundDamage(self.ends, self.queues, self.state, wake)
        self.reads = Reads(  # the loop, and threads for cold reads
            settings, disk, context, self.log, self.queues, self.index, self.times, wake, damage.found
        )
        self.rebuilding = IndexRebuilding(
            disk,
            root,
            self.log,
            self.index,
            self.dispatcher,
            context,
            self.ends,
            self.state,
            self.confirmation,
            is_enabled=settings.message_index_enable,
            clock=clock,
            wake=wake,
        )
        self.unproved = Unproved(  # the prover's thread
            self.queues, self.index, damage.queue_file_differs, self.rebuilding.file_differs
        )
        self.live = LivePublisher(
            Disk() if settings.inspect else disk,
            live_page_path,
            self.log,
            self.dispatcher,
            self.round_flusher,
            self.state,
            self.confirmation,
        )

    def _committed_messages(self) -> int:
        """Return how many messages of this run are in the files of the log at least. Any thread."""
        return self.context.view[c.STORED_COUNT] if self.committer is None else self.committer.messages

    def append_to_buffers(self) -> None:
        """Append from now on to buffers of a pool, where the settings have one. Before there are other
        threads. Raises ConfigError when this process may not use so much memory."""
        settings, committer, limit = self.settings, self.committer, memory_limit()
        if committer is None:
            return
        size, count = settings.mapped_file_size_commit_log, settings.transient_store_pool_size
        if size * count > limit.bytes:
            raise ConfigError(
                "transientStorePoolSize",
                count,
                f"{count} buffers of {size:,} bytes (mappedFileSizeCommitLog) are more than the "
                f"{limit.bytes:,} bytes that this process may use ({limit.source}); make one of the two "
                f"smaller",
            )
        fails_fast = settings.fast_fail_if_no_buffer_in_store_pool
        self.log.take_pool(BufferPool(size, count, fails_fast=fails_fast))
        committer.messages = self.context.view[c.STORED_COUNT]
        self.confirmation.need_commit()
        self.appender.confirm_later()
