"""A pop that passed its checks."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.messages import MessageFilter
from broker_store.protocol.command import Command
from broker_store.server.channel import Channel

ALL_QUEUES = -1


class Pop(NamedTuple):
    """A pop, a peek, or a question whether there is a message. Those two have no `invisible_ms`.

    `queue_id` may be ALL_QUEUES. `deadline_ms` is until when it may wait; `is_late` if that is over so long
    that the client does not wait any more.
    """

    command: Command
    channel: Channel
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

    @property
    def line(self) -> tuple[str, str, int]:
        """Return with which other pops it waits."""
        return self.topic, self.group, self.queue_id
