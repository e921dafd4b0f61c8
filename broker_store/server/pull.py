"""A pull that passed its checks."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.broker.filters import Subscription
from broker_store.messages import MessageFilter
from broker_store.protocol.command import Command
from broker_store.protocol.headers import PullHeader
from broker_store.server.channel import Channel
from broker_store.server.logical_pulls import LogicalPull


class Pull(NamedTuple):
    """A request, and what its answer says of its topic and group.

    `tag_codes` are the hash codes of the tags that it wants, None for all messages. A `message_filter` judges
    messages by their properties. `subscription` is that of the group, from which both were made; None if the
    request has its own. `came_s` is when it came, in seconds of `time.monotonic`.
    """

    command: Command
    header: PullHeader
    channel: Channel
    tag_codes: frozenset[int] | None
    topic_sys_flag: int
    group_sys_flag: int
    message_filter: MessageFilter | None
    subscription: Subscription | None
    came_s: float
    has_waited: bool = False  # for a message
    logical: LogicalPull | None = None  # the header is that of its physical queue then
