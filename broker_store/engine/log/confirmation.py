"""From wrote to confirmed: what is acknowledged and shown to consumers (docs/durability.md section 2).

    ASYNC_FLUSH   put ──► appended ─────────────────────► dispatched = confirmed ──► answers, arrivals
    SYNC_FLUSH    put ──► appended ──► flusher ──► synced ──► dispatched = confirmed ──► answers, arrivals

With SYNC_FLUSH records are dispatched when they are on the disk. So no consumer is given a message that a
power cut can take back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.queue.consume_queue import ConsumeQueue, ConsumeQueues
from broker_store.engine.rows import WriterContext
from broker_store.engine.store_state import StoreState
from broker_store.errors import StoreError
from broker_store.kernels import context as c
from broker_store.messages import PutStatus


class Confirmation:
    """Loop's thread, except `log_flushed`."""

    def __init__(
        self,
        context: WriterContext,
        queues: ConsumeQueues,
        dispatcher: Dispatcher[ConsumeQueue],
        write_path: WritePath,
        state: StoreState,
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
        # (log end, when it is late in ms, callback), in the order of the log
        self._waiting: deque[tuple[int, int, Callable[[PutStatus], None]]] = deque()
        # Called with (topic, queue id) of each watched queue that got messages.
        self.arrival_listener: Callable[[list[tuple[str, int]]], None] | None = None

    @property
    def confirmed(self) -> int:
        """The log offset below which records may be shown and acknowledged."""
        return self._view[c.CONFIRMED]

    def when_confirmed(self, log_end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call `callback` when `log_end` is confirmed (PUT_OK), when it is late (FLUSH_DISK_TIMEOUT), or when
        it can no longer be confirmed (SERVICE_NOT_AVAILABLE)."""
        if self.confirmed >= log_end:
            callback(PutStatus.PUT_OK)
        elif self._state.is_set("sync_failed"):
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self._waiting.append((log_end, self._clock() + self._timeout_ms, callback))

    def log_flushed(self, position: int) -> None:
        """Report that the log is on the disk up to `position`. Flusher's thread."""
        self._wake(lambda: self.flushed(position))

    def flushed(self, position: int) -> None:
        """Take note that the log is on the disk up to `position`: with SYNC_FLUSH that confirms it."""
        if self._is_sync and position > self.confirmed:
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
        """Answer the puts whose sync is late; they are stored, and may be confirmed later."""
        while self._waiting and self._waiting[0][1] <= now_ms:
            self._waiting.popleft()[2](PutStatus.FLUSH_DISK_TIMEOUT)

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
