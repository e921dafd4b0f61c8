"""One queue that a push consumer reads, and which of its messages are not finished.

The group's place is the lowest message that is not finished. Later messages may be finished already; they are
delivered again after a crash. No message is skipped. No I/O, no clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker_store.client.message import ReceivedMessage
from broker_store.errors import MisuseError
from broker_store.protocol.message_queue import MessageQueue


@dataclass(slots=True, frozen=True)
class ReadAhead:
    """How many unfinished messages of one queue a consumer may have; above that it stops reading the queue.

    `span` is the distance in offsets from the lowest unfinished message to the place it reads at. If one
    message is never finished and the process is killed, at most so many are delivered again. `count` is how
    many messages one pull requests.
    """

    messages: int = 1_000
    bytes: int = 64 << 20
    span: int = 2_000
    count: int = 32

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise MisuseError(f"ReadAhead {name}={getattr(self, name)} must be at least 1")


class AssignedQueue:
    """`next_offset` is the offset of the next read. `dropped` is True when the queue belongs to another
    consumer."""

    def __init__(self, queue: MessageQueue, next_offset: int, limits: ReadAhead):
        self.queue = queue
        self._limits = limits
        self.next_offset = next_offset
        self.committed: int | None = None
        self.dropped = False
        # Counts how often the place was set from outside: messages that were read before that are ignored.
        self.generation = 0
        self.locked_until_s = 0.0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.room.set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._handling = 0
        self.unfinished_bytes = 0
        # In order of offset: messages are added in that order.
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
        """Add messages that were read; the next read begins at `next_offset`."""
        for message in messages:
            self._unfinished[message.queue_offset] = message
            self.unfinished_bytes += message.record.size
        self.next_offset = next_offset
        self._see_room()

    def finish(self, message: ReceivedMessage) -> None:
        """Remove a message that was consumed or sent back."""
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
        """Continue reading at an offset that was set; drop the messages read before."""
        self.generation += 1
        self._unfinished.clear()
        self.unfinished_bytes = 0
        self.next_offset = offset
        self.room.set()

    def _see_room(self) -> None:
        limits = self._limits
        if (
            len(self._unfinished) < limits.messages
            and self.unfinished_bytes < limits.bytes
            and self.next_offset - self.place < limits.span
        ):
            self.room.set()
        else:
            self.room.clear()

    def drop(self) -> None:
        """Deliver no further message of the queue."""
        self.dropped = True
        self.room.set()
