"""Reads queues at offsets that the caller chooses.

    async with PullConsumer("my-group", "127.0.0.1:9876") as consumer:
        for queue in await consumer.queues("Orders"):
            result = await consumer.pull(queue, await consumer.committed(queue) or 0)
            ...
            await consumer.commit(queue, result.next_offset)

It is no member of its group: no queues are assigned to it, and it sends no heartbeat. The broker still keeps
the offsets of the group.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Self

from broker_store.access.signatures import Credentials
from broker_store.client.pulling import PullResult, QueueReader
from broker_store.client.session import REQUEST_TIMEOUT_S, Session
from broker_store.client.subscription import ALL, make_subscription
from broker_store.formats.names import check_group, check_topic
from broker_store.protocol.message_queue import MessageQueue

MAX_COUNT = 32


class PullConsumer:
    """Reads for a consumer group. `timeout` (seconds) bounds each request; for a pull with `wait_ms` the wait
    is added. With `credentials` each request is signed; with `tls` (`tls_context`) each connection has
    TLS."""

    def __init__(
        self,
        group: str,
        nameservers: str | Iterable[str],
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        client_id: str | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self.group = check_group(group)
        self._session = Session(
            nameservers, client_id=client_id, timeout=timeout, credentials=credentials, tls=tls
        )
        self._reader = QueueReader(self._session, group)

    async def __aenter__(self) -> Self:
        self._session.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections. Idempotent."""
        await self._session.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read, in order. Raises NoRouteError, ClientError."""
        return await self._reader.queues(check_topic(topic))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = MAX_COUNT,
        tags: str = ALL,
        sql: str | None = None,
        wait_ms: int = 0,
    ) -> PullResult:
        """Read from `offset` on. With `wait_ms` the broker waits up to that long for a new message before it
        answers.

        It gives messages with one of the tags, or those that the SQL92 expression `sql` passes. Raises
        ClientError; FieldError and FormatError for an invalid answer; MisuseError.
        """
        # With version 0 the broker uses the expression of this request.
        return await self._reader.pull(
            queue, offset, make_subscription(queue.topic, tags, 0, sql=sql), max_count, wait_ms
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group, None when it has none for this queue."""
        return await self._reader.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset: that of the next message to read."""
        await self._reader.commit(queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still there."""
        return await self._reader.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the last message plus one."""
        return await self._reader.max_offset(queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later."""
        return await self._reader.offset_by_time(queue, timestamp_ms)
