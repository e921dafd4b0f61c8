"""What the appender asks of the store around it. Loop's thread."""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.confirmation import Confirmation
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.retention.retention import Retention
from broker_store.engine.store_state import StoreState
from broker_store.engine.worker import Worker
from broker_store.errors import DiskFullError, StoreError


class AppenderHost:
    """`store` is the store's path, for errors."""

    def __init__(
        self,
        store: str,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher[ConsumeQueue],
        retention: Retention,
        state: StoreState,
        confirmation: Confirmation,
        *,
        is_sync: bool,
        clock: Callable[[], int],
    ):
        self._store, self._log, self._queues, self._dispatcher = store, log, queues, dispatcher
        self._retention, self._state, self._confirmation = retention, state, confirmation
        self._is_sync, self._clock = is_sync, clock
        # From the start of the workers on. Before it a start puts placeholders, and syncs them itself.
        self._flusher: Worker | None = None
        self._preallocator: Worker | None = None
        self._committer: Worker | None = None
        self._sync_queues: Callable[[], None] | None = None

    def hand_work_to(
        self,
        flusher: Worker,
        preallocator: Worker,
        sync_queues: Callable[[], None],
        committer: Worker | None = None,
    ) -> None:
        """Wake these workers from now on. Before it a start appends placeholders and syncs them itself.
        `committer` is None where no append wakes one."""
        self._flusher, self._preallocator, self._sync_queues = flusher, preallocator, sync_queues
        self._committer = committer

    def sync_queues(self) -> None:
        """Have the round flusher sync all queues now."""
        if self._sync_queues is not None:
            self._sync_queues()

    def set_flag(self, flag: str, cause: str) -> None:
        self._state.set_flag(flag, cause)

    def clear_flags(self, is_fast_again: bool) -> None:
        """Clear the flags of the append whose cause is gone."""
        if is_fast_again:
            self._state.clear_flag("page_cache_busy")
        if self._log.available_buffers:
            self._state.clear_flag("no_buffer")

    def check_disk(self) -> None:
        """Check the disk thresholds before a new log file is made (docs/durability.md R13). Raises
        DiskFullError."""
        decision = self._retention.decide(self._clock())
        if decision.disk_full:
            raise DiskFullError(f"{self._store}: {decision.why}, no new file is made")

    def log_rolled(self) -> None:
        """Unmap the log files that are full, on the disk and dispatched: the log goes on in a new file."""
        self._log.unmap_before(self._log.wrote - self._log.file_size)
        if self._log.available_buffers == 0:
            self._state.set_flag("no_buffer", "each buffer of the transient store pool is in use")
        for queue in self._queues:
            queue.unmap_full()

    def settle(self, stopped: int) -> None:
        """Handle what the dispatch kernel stopped for, and call it again."""
        try:
            self._dispatcher.settle(stopped)
        except StoreError as error:
            # What was appended stays in the log, and the next start dispatches it. Until then no message is
            # taken.
            self._state.set_flag("dispatch_failed", str(error))

    def sync_failed(self, cause: str) -> None:
        """End all writing: a failed sync is final."""
        self._confirmation.stop_writing(cause)

    def confirm(self, position: int) -> None:
        """Dispatch what was appended below `position`, and answer those that wait for it."""
        self._confirmation.confirm(position)

    def appended(self, needs_blocks: bool) -> None:
        """Wake the preallocator if `needs_blocks`, and the committer; with SYNC_FLUSH hand over to the log
        flusher, else wake the feeder and announce arrivals. Called when a group is in the log."""
        if self._flusher is None or self._preallocator is None:
            return
        if needs_blocks:
            self._preallocator.nudge()
        if self._committer is not None:
            self._committer.nudge()
        if self._is_sync:
            self._flusher.hand_over()
        else:
            self._confirmation.wake_feeder()
            self._confirmation.announce()
