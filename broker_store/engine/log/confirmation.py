"""From wrote to confirmed: what is acknowledged and shown to consumers (docs/durability.md section 2).

    ASYNC_FLUSH   put ──► appended ─────────────────────► dispatched = confirmed ──► answers, arrivals
    SYNC_FLUSH    put ──► appended ──► flusher ──► synced ──► dispatched = confirmed ──► answers, arrivals
    SYNC_MASTER   put ──► appended ──► slaves ───► reported ─► dispatched = confirmed ──► answers, arrivals
    a pool        put ──► appended ──► answers
                              └──────► committer ► committed ► dispatched = confirmed ──► arrivals

With SYNC_FLUSH records are dispatched when they are on the disk, with SYNC_MASTER when enough slaves have
them, with both when both hold. So no consumer is given a message that a power cut, or a master that is lost,
can take back.

With a pool of buffers (transientStorePoolEnable) an append is in memory that a kill takes. A send is answered
then, as with Apache's pool, and shown when it is in its file. With SYNC_MASTER the answer waits for slaves,
which get only what is in the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.log.record_ends import RecordEnds
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import WriterContext
from broker_store.engine.store_state import StoreState
from broker_store.errors import StoreError
from broker_store.kernels import context as c
from broker_store.messages import PutStatus


class Confirmation:
    """Loop's thread, except `log_flushed` and `log_committed`."""

    def __init__(
        self,
        context: WriterContext,
        queues: ConsumeQueues,
        dispatcher: Dispatcher[ConsumeQueue],
        write_path: WritePath,
        state: StoreState,
        record_ends: RecordEnds,
        *,
        is_sync: bool,
        timeout_ms: int,
        clock: Callable[[], int],
        wake: Callable[[Callable[[], None]], None],
    ):
        """`timeout_ms` is how long a put waits for its sync before it is answered FLUSH_DISK_TIMEOUT."""
        self._context, self._queues, self._dispatcher = context, queues, dispatcher
        self._view = context.view
        self._write_path, self._state = write_path, state
        self._is_sync, self._timeout_ms, self._clock, self._wake = is_sync, timeout_ms, clock, wake
        self._sync_timeout_ms = timeout_ms
        self._needs_slaves, self._record_ends = False, record_ends
        self._needs_commit = False
        # Log offsets: on the disk; at enough slaves; in the files
        self._synced_to = self._copied_to = self._committed_to = 0
        # (log end, when it is late in ms, callback), in the order of the log
        self._waiting: deque[tuple[int, int, Callable[[PutStatus], None]]] = deque()
        # Called when more of the log may be sent to slaves; any thread
        self.wake_feeder: Callable[[], None] = lambda: None
        # Called after a sync of the log; the loop's thread
        self.flush_listener: Callable[[], None] = lambda: None
        # Called with (topic, queue id) of each watched queue that got messages.
        self.arrival_listener: Callable[[list[tuple[str, int]]], None] | None = None

    @property
    def confirmed(self) -> int:
        """The log offset below which records may be shown and acknowledged."""
        return self._view[c.CONFIRMED]

    @property
    def answers_early(self) -> bool:
        """True if a send is answered before it is in a file: there is a pool of buffers, and no slave must
        have the message."""
        return self._needs_commit and not self._needs_slaves

    @property
    def answerable(self) -> int:
        """The log offset below which a send may be answered: what is confirmed; where sends are answered
        early what is appended."""
        if self._needs_commit and not self._needs_slaves:
            return self._view[c.LOG_BASE] + self._view[c.LOG_AT]
        return self._view[c.CONFIRMED]

    def when_confirmed(self, log_end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call `callback` when `log_end` is confirmed (PUT_OK), when it is late (FLUSH_DISK_TIMEOUT,
        FLUSH_SLAVE_TIMEOUT), or when it can no longer be confirmed (SERVICE_NOT_AVAILABLE)."""
        if self.confirmed >= log_end:
            callback(PutStatus.PUT_OK)
        elif self._state.is_set("sync_failed"):
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._waiting.append((log_end, self._clock() + self._timeout_ms, callback))

    def log_flushed(self, position: int) -> None:
        """Report that the log is on the disk up to `position`. Flusher's thread."""
        self.wake_feeder()
        self._wake(lambda: self.flushed(position))

    def flushed(self, position: int) -> None:
        """Take note that the log is on the disk up to `position`: with SYNC_FLUSH that confirms it."""
        self._synced_to = position
        if self._is_sync:
            self._confirm_safe()
        elif self._needs_commit:
            self.committed(position)
        self.flush_listener()

    def log_committed(self, position: int) -> None:
        """Report that the log is in its files up to `position`. The committer's thread."""
        self.wake_feeder()
        self._wake(lambda: self.committed(position))

    def need_commit(self) -> None:
        """Confirm from now on only what `committed` reports."""
        self._needs_commit = True
        self._committed_to = self.confirmed

    def committed(self, position: int) -> None:
        """Take note that the log is in its files up to `position`."""
        self._committed_to = max(self._committed_to, position)
        self._confirm_safe()

    def need_slaves(self, timeout_ms: int) -> None:
        """Confirm from now on only what `copied` reports too; a put waits for it at least `timeout_ms`."""
        self._needs_slaves = True
        self._timeout_ms = max(self._timeout_ms, timeout_ms) if self._is_sync else timeout_ms
        self._synced_to = self._copied_to = self.confirmed

    def need_no_slaves(self, written: int) -> None:
        """Confirm from now on what this broker alone has, and at once what is written up to `written`."""
        self._needs_slaves, self._timeout_ms = False, self._sync_timeout_ms
        if self._is_sync:
            self._confirm_safe()
        else:
            self._confirm_to(written)

    @property
    def needs_slaves(self) -> bool:
        """True while `copied` says what is confirmed."""
        return self._needs_slaves

    def copied(self, position: int) -> None:
        """Take note that enough slaves have the log up to `position`, which may lie inside of a record."""
        if self._needs_slaves and position > self._copied_to:
            self._copied_to = self._record_ends.last(self._copied_to, position)
            self._confirm_safe()

    def finish(self, position: int) -> None:
        """Confirm up to `position`, which is on the disk, whatever slaves have: the store closes. Puts that
        wait for slaves are answered FLUSH_SLAVE_TIMEOUT; their messages are stored."""
        self.flushed(position)
        if self._needs_slaves and position > self.confirmed:
            self._needs_slaves = False
            self._dispatch_to(position)
            while self._waiting:
                self._waiting.popleft()[2](PutStatus.FLUSH_SLAVE_TIMEOUT)

    def _confirm_safe(self) -> None:
        """Confirm what is as safe as the settings require."""
        position = self._committed_to if self._needs_commit else self._synced_to
        if self._needs_slaves:  # they get only what is committed
            position = self._copied_to
        if self._needs_slaves and self._is_sync:
            position = min(position, self._synced_to)
        self._confirm_to(position)

    def _confirm_to(self, position: int) -> None:
        """Dispatch up to `position`, and answer the puts that wait for it."""
        if position > self.confirmed:
            began_s = self._write_path.seconds()
            self._dispatch_to(position)
            self._write_path.dispatch_s = self._write_path.seconds() - began_s
            waiting = self._waiting
            while waiting and waiting[0][0] <= position:
                waiting.popleft()[2](PutStatus.PUT_OK)
            self.announce()

    def confirm(self, position: int) -> None:
        """Dispatch what was appended below `position`, and announce arrivals."""
        self._dispatch_to(position)
        self.announce()

    def _dispatch_to(self, position: int) -> None:
        try:
            self._dispatcher.confirm(position)
        except StoreError as error:
            self._state.set_flag("dispatch_failed", str(error))

    def stop_writing(self, cause: str) -> None:
        """Answer the puts that wait, and take no more: a sync failed, which is final."""
        self._state.set_flag("sync_failed", cause)
        self.fail_waiting()

    def fail_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft()[2](PutStatus.SERVICE_NOT_AVAILABLE)

    def expire(self, now_ms: int) -> None:
        """Answer the puts whose sync or slaves are late; they are stored, and may be confirmed later."""
        while self._waiting and self._waiting[0][1] <= now_ms:
            log_end, _, answer = self._waiting.popleft()
            is_safe_here = (not self._is_sync or self._synced_to >= log_end) and (
                not self._needs_commit or self._committed_to >= log_end
            )
            answer(PutStatus.FLUSH_SLAVE_TIMEOUT if is_safe_here else PutStatus.FLUSH_DISK_TIMEOUT)

    # Arrivals

    def watch(self, topic: str, queue_id: int) -> None:
        """Call `arrival_listener` when the queue gets a message, until each call of this is taken back by one
        of `unwatch`: several parts of the broker may watch a queue. Loop's thread."""
        self._queues.watchers[topic, queue_id] += 1
        self._queues.open(topic, queue_id).row[c.Q_WATCHED] = 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Take back one call of `watch`."""
        watchers = self._queues.watchers
        watchers[topic, queue_id] -= 1
        if watchers[topic, queue_id] > 0:
            return
        del watchers[topic, queue_id]
        queue = self._queues.find(topic, queue_id)
        if queue is not None:
            queue.row[c.Q_WATCHED] = 0

    def announce(self) -> None:
        """Call `arrival_listener` for the watched queues that the dispatch kernel noted."""
        if not self._view[c.ARRIVAL_COUNT]:
            return
        arrived = []
        for address in self._context.take_arrivals():
            queue = self._queues.find_row(address)
            if queue is not None:
                queue.row[c.Q_ARRIVED] = 0
                arrived.append((queue.topic, queue.queue_id))
        if arrived and self.arrival_listener is not None:
            self.arrival_listener(arrived)
