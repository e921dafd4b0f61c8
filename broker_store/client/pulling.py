"""Requests of pull and push consumers: reads of queues, and commits of a group's offsets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker_store.client.message import ReceivedMessage, decode_messages
from broker_store.client.session import Session
from broker_store.client.subscription import wants
from broker_store.formats.topics import PERM_READ
from broker_store.protocol.client_bodies import Subscription, encode_client_check
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.headers import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    read_long,
    write_header,
    write_pull,
)
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.route_bodies import TopicRoute

# Added to the time for which the broker holds a pull, for the network.
PULL_MARGIN_S = 10.0
# Queues of a topic at one broker, whatever number a route states.
MAX_QUEUES = 1024


class PullStatus(Enum):
    """The result of a pull; the next pull is at `next_offset`."""

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW_MESSAGE = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MESSAGE = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


@dataclass(slots=True, frozen=True)
class PullResult:
    """The messages of a pull, and the bounds of the queue at that time (`max_offset` is that of the last
    message plus one)."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class QueueReader:
    """The requests about queues on behalf of a group."""

    def __init__(self, session: Session, group: str):
        self._session = session
        self._group = group

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read, in order. Raises NoRouteError, ClientError."""
        return readable_queues(topic, await self._session.route(topic))

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, max_count: int, wait_ms: int
    ) -> PullResult:
        """Read from `offset` on; with `wait_ms` the broker holds the request up to that long while there is
        no new message."""
        flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms > 0 else 0)
        expression = subscription.expression, subscription.version, subscription.expression_type
        header = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            offset,
            max_count,
            flags,
            0,
            max(wait_ms, 0),
            *expression,
            None,
        )
        answer = await self._session.ask(
            await self.address(queue),
            RequestCode.PULL_MESSAGE,
            write_pull(header),
            timeout=wait_ms / 1000 + PULL_MARGIN_S,
            accept=_PULL_CODES,
        )
        fields = answer.fields or {}
        numbers = (
            read_long(name, fields.get(name)) for name in ("nextBeginOffset", "minOffset", "maxOffset")
        )
        messages = (
            decode_messages(answer.body, queue.broker_name) if answer.code == ResponseCode.SUCCESS else []
        )
        kept = [message for message in messages if wants(subscription, message.tag)]
        return PullResult(PullStatus(int(answer.code)), kept, *numbers)

    async def check(self, subscription: Subscription, broker_name: str) -> None:
        """Ask a broker whether it can filter by a subscription. Raises ClientError with its reason if not."""
        address = self._session.broker_address(await self._session.route(subscription.topic), broker_name)
        body = encode_client_check(self._session.client_id, self._group, subscription)
        await self._session.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, body)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset at the broker; None when there is none."""
        fields = write_header(
            RequestCode.QUERY_CONSUMER_OFFSET,
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
        )
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        address = await self.address(queue)
        answer = await self._session.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, fields, accept=accept)
        return None if answer.code != ResponseCode.SUCCESS else _offset(answer.fields)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset: that of the next message to read."""
        fields = write_header(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self._session.ask(await self.address(queue), RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._ask_offset(RequestCode.GET_MIN_OFFSET, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the last message plus one."""
        return await self._ask_offset(RequestCode.GET_MAX_OFFSET, queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later."""
        return await self._ask_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=timestamp_ms)

    async def _ask_offset(self, code: int, queue: MessageQueue, **more: int) -> int:
        fields = write_header(code, topic=queue.topic, queue_id=queue.queue_id, **more)
        return _offset((await self._session.ask(await self.address(queue), code, fields)).fields)

    async def address(self, queue: MessageQueue) -> str:
        """Return the address of the broker of a queue. Raises NoRouteError, ClientError."""
        return self._session.broker_address(await self._session.route(queue.topic), queue.broker_name)


_PULL_CODES = tuple(status.value for status in PullStatus)


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queues
        if data.perm & PERM_READ
        for queue_id in range(min(data.read_queue_nums, MAX_QUEUES))
    )


def _offset(fields: dict[str, str] | None) -> int:
    return read_long("offset", (fields or {}).get("offset"))
