"""Pulls of a logical queue of a static topic (server/logical_queue.py).

A pull has a logical offset. The item in which it lies says whose physical queue has the message:

    this broker     the pull is served as any other, and its answer is changed: `of_item`
    another broker  it is asked with lo=false, without waiting for a message; the answer is changed likewise

An item that another one follows has an end, since its broker takes no more sends for it. A pull at that end
is answered with the first offset of the next item, and that the client should pull again at once.

Source: Apache's `PullMessageProcessor.rewriteRequestForStaticTopic` and `rewriteResponseForStaticTopic`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker_store.broker.static_topics import item_after, item_at
from broker_store.errors import PeerError
from broker_store.formats.static_topics import MappingItem, TopicMapping
from broker_store.messages import GetResult, GetStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUSPEND,
    PullHeader,
    read_long,
    write_pull,
)
from broker_store.server.logical_queue import LogicalQueue, other_failed, queue_of

_ANSWERED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


# As LogicalQueues.ask_other
AskOther = Callable[[MappingItem, str, int, Mapping[str, str]], Awaitable[Command]]


class PullOffsets(NamedTuple):
    """The offsets of an answer to a pull, named as in `GetResult`, and its code."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int


class LogicalPull(NamedTuple):
    """What is pulled: an item of a logical queue, and the physical offset in it."""

    queue: LogicalQueue
    item: MappingItem
    offset: int

    @property
    def is_own(self) -> bool:
        return self.item.broker == self.queue.mapping.broker

    @property
    def waits(self) -> bool:
        """Whether messages may still come into the item."""
        return self.item.gen == self.queue.leader.gen

    def header(self, header: PullHeader) -> PullHeader:
        """Return the header of the pull for the physical queue. The offset that it commits is of this item,
        or is left to the client's next commit."""
        item, flag, commit = self.item, header.sys_flag, header.commit_offset
        if flag & PULL_COMMIT_OFFSET:
            if item_at(self.queue.row, commit) is item:
                commit = max(0, item.physical(commit))
            else:
                flag &= ~PULL_COMMIT_OFFSET
        if not self.waits:
            flag &= ~PULL_SUSPEND
        most = header.max_msg_nums
        if item.has_end:
            most = max(1, min(most, item.end_offset - self.offset))
        return header._replace(
            queue_id=item.queue_id,
            queue_offset=self.offset,
            max_msg_nums=most,
            sys_flag=flag,
            commit_offset=commit,
        )

    @property
    def delta(self) -> int:
        """What is to be added to the physical offset of each message."""
        return self.item.logic_offset - self.item.start_offset

    def of_result(self, code: int, result: GetResult) -> PullOffsets:
        """Do as `of_item` for a read of this broker."""
        found = PullOffsets(code, result.next_offset, result.min_offset, result.max_offset)
        return self.of_item(found, is_reset=result.status is GetStatus.OFFSET_RESET)

    def of_item(self, found: PullOffsets, *, is_reset: bool = False) -> PullOffsets:
        """Return the code and the logical offsets for those of the physical queue. With `is_reset` the next
        offset is one that an administrator has set."""
        row, item = self.queue.row, self.item
        code, following, low, high = found
        if not is_reset and code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            if self.offset < low:
                # Before the first message of the logical queue, or of an item in its middle
                is_first = item is item_at(row, 0)
                code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
                following = low
            elif not self.waits and self.offset >= high:
                after = item_after(row, item)
                if after is None:  # its first offset is not decided yet
                    code = ResponseCode.PULL_NOT_FOUND
                else:
                    code, item = ResponseCode.PULL_RETRY_IMMEDIATELY, after
                    following = low = high = item.start_offset
        if item.has_end:
            following = min(following, item.end_offset)
        leader = self.queue.leader
        return PullOffsets(
            int(code),
            item.logical(following),
            item.logical(low),
            max(item.logical(high), leader.logic_offset),
        )


def logical_pull(mapping: TopicMapping, command: Command, header: PullHeader) -> LogicalPull | None:
    """Return what a pull of a logical queue reads; None if it names a physical one. Raises Refusal if another
    broker leads the queue, or if no item of it is decided."""
    queue = queue_of(mapping, header.queue_id, command.fields)
    if queue is None:
        return None
    item = queue.item_at(header.queue_offset)
    return LogicalPull(queue, item, item.physical(header.queue_offset))


async def pull_at_other(ask: AskOther, command: Command, header: PullHeader, pull: LogicalPull) -> Command:
    """Return the answer to a pull of an item that another broker has. Raises Refusal if that fails."""
    sent = pull.header(header)
    fields = write_pull(sent._replace(sys_flag=sent.sys_flag & ~PULL_COMMIT_OFFSET))
    topic = pull.queue.mapping.topic
    try:
        answer = await ask(pull.item, topic, RequestCode.PULL_MESSAGE, fields)
    except (OSError, TimeoutError, PeerError) as error:
        raise other_failed(pull.item, str(error) or type(error).__name__) from None
    if answer.code not in _ANSWERED:
        raise other_failed(pull.item, f"it answered {answer.code} {answer.remark or '':.80}")
    found = dict(answer.fields or {})
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    offsets = pull.of_item(PullOffsets(answer.code, *(read_long(name, found.get(name)) for name in names)))
    found |= dict(zip(names, map(str, offsets[1:]), strict=True))
    # The client goes on to pull from the leader
    found |= {"offsetDelta": str(pull.delta), "suggestWhichBrokerId": "0"}
    return command.answer(offsets.code, answer.remark, found, answer.body)
