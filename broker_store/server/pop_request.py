"""A pop that passed its checks, and how it ends. Handlers of both ports make and answer them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker_store.messages import MessageFilter, PutStatus
from broker_store.protocol.pop import QueueOffsets

ALL_QUEUES = -1


class PopReader(Protocol):
    """What asked for a pop: a connection, or a call of one. It is hashed by its identity."""

    remote: str  # ip:port

    @property
    def closed(self) -> bool:
        """Return True if the client has gone."""

    @property
    def paused(self) -> bool:
        """Return True if the client does not read what it was sent."""

    def when_resumed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client reads again; never if it ends before."""

    def hold(self) -> None:
        """Count an answer that is read from disk."""

    def release(self) -> None: ...


class PopEnd(enum.Enum):
    """How a pop ended."""

    FOUND = 0
    NOTHING = 1  # and its time is over
    FULL = 2  # nothing, and there is no room to wait
    NOT_STORED = 3  # its pop checkpoint is not stored, or not known to be synced
    NO_ROOM = 4  # in a table of the broker


class PopResult(NamedTuple):
    """What a pop found. `bodies` are the records of `found`, one piece for each of them.

    `rest` is how many messages are left in its queues. `put` is the status of a record that was not stored,
    `text` says in which table there is no room. `counts` are for a pop in order: for each of `found`, how
    often messages were given before, absent for 0.
    """

    end: PopEnd
    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    rest: int = 0
    found: Sequence[QueueOffsets] = ()
    bodies: Sequence[bytes] = ()
    put: PutStatus = PutStatus.PUT_OK
    text: str = ""
    counts: Sequence[Mapping[int, int]] | None = None


class Pop(NamedTuple):
    """A pop, a peek, or a question whether there is a message. The last two have no `invisible_ms`.

    `answer` is called once with the result, also if the client has gone: its messages are invisible
    then. A request that waits and whose `channel` ends is forgotten without an answer. `queue_id` may be
    ALL_QUEUES. `deadline_ms` is until when it may wait; `is_late` if that is over so long that the client
    does not wait any more.
    """

    answer: Callable[[PopResult], None]
    is_question: bool
    channel: PopReader
    group: str
    topic: str
    queue_id: int
    read_queues: int
    max_messages: int
    invisible_ms: int
    init_mode: int
    deadline_ms: int
    is_late: bool
    tag_codes: frozenset[int] | None
    message_filter: MessageFilter | None
    client: str | None = None  # its id or its address, for pages
    is_order: bool = False
    attempt_id: str | None = None  # a pop in order that repeats it gets the same messages
    # Called with the bytes of the messages that were found, before they are confirmed
    on_found: Callable[[int], None] | None = None
    on_parked: Callable[[], None] | None = None  # called when it begins to wait for a message

    @property
    def line(self) -> tuple[str, str, int]:
        """Return with which other pops it waits."""
        return self.topic, self.group, self.queue_id
