"""One queue that a push consumer reads, and which of its messages are not finished.

The group's place is the lowest message that is not finished: what is behind it may be done already and comes again
after a crash, nothing is ever skipped. No I/O, no clock.
"""

from __future__ import annotations

import asyncio

from broker_store.client.message import ReceivedMessage
from broker_store.protocol.bodies import MessageQueue

# Of one queue, taken from the broker and not finished.
MAX_UNFINISHED_MESSAGES = 1_000
MAX_UNFINISHED_BYTES = 64 << 20


class AssignedQueue:
    """`next_offset` is where to read on. `dropped` once the queue is another consumer's."""

    def __init__(self, queue: MessageQueue, next_offset: int):
        self.queue = queue
        self.next_offset = next_offset
        self.committed: int | None = None
        self.dropped = False
        # Grows when the place was set from outside: what was read before does not count any more.
        self.generation = 0
        self.locked_until_s = 0.0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.task: asyncio.Task | None = None
        self.room = asyncio.Event()
        self.room.set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._handling = 0
        self.unfinished_bytes = 0
        # In order of offset, because they are added so.
        self._unfinished: dict[int, ReceivedMessage] = {}

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    @property
    def unfinished_range(self) -> tuple[int, int]:
        """The lowest and highest unfinished offset, (0, 0) for none."""
        if not self._unfinished:
            return 0, 0
        return next(iter(self._unfinished)), next(reversed(self._unfinished))

    @property
    def place(self) -> int:
        """The offset to commit."""
        return next(iter(self._unfinished), self.next_offset)

    def add(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Messages were read; the next read begins at `next_offset`."""
        for message in messages:
            self._unfinished[message.queue_offset] = message
            self.unfinished_bytes += message.record.size
        self.next_offset = next_offset
        self._see_room()

    def finish(self, message: ReceivedMessage) -> None:
        """A message is done with: consumed, or given back."""
        if self._unfinished.pop(message.queue_offset, None) is not None:
            self.unfinished_bytes -= message.record.size
            self._see_room()

    def begin_handling(self) -> None:
        self._handling += 1
        self.idle.clear()

    def end_handling(self) -> None:
        self._handling -= 1
        if not self._handling:
            self.idle.set()

    def move(self, offset: int) -> None:
        """The group's place was set: read on there, and forget what was read before."""
        self.generation += 1
        self._unfinished.clear()
        self.unfinished_bytes = 0
        self.next_offset = offset
        self.room.set()

    def _see_room(self) -> None:
        if len(self._unfinished) < MAX_UNFINISHED_MESSAGES and self.unfinished_bytes < MAX_UNFINISHED_BYTES:
            self.room.set()
        else:
            self.room.clear()

    def drop(self) -> None:
        """Nothing of it is handed out any more."""
        self.dropped = True
        self.room.set()
