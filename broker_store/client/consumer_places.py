"""Offsets of a consumer in its queues: where reading begins, and how far its group has consumed."""

from __future__ import annotations

import logging

from broker_store.client.assigned_queue import AssignedQueue
from broker_store.client.places import Places
from broker_store.client.pulling import QueueReader
from broker_store.errors import BrokerStoreError
from broker_store.formats.names import RETRY_PREFIX
from broker_store.protocol.message_queue import MessageQueue

log = logging.getLogger(__name__)


class ConsumerPlaces:
    """Places of one consumer. The broker keeps those of a group; a broadcasting consumer keeps its own in
    `store`.

    `consume_from` is "last", "first" or a time in milliseconds since 1970.
    """

    def __init__(
        self,
        reader: QueueReader,
        group: str,
        store: Places | None,
        consume_from: str | int,
        *,
        broadcasting: bool,
    ):
        self._reader, self._group, self._store = reader, group, store
        self._consume_from = consume_from
        self._broadcasting = broadcasting
        self._place_of: dict[str, int] = {}

    def load(self) -> None:
        """Read the places of a broadcasting consumer from its store."""
        if self._broadcasting and self._store is not None:
            self._place_of = dict(self._store.load())

    async def first_offset(self, queue: MessageQueue) -> int:
        """Return the offset at which reading of a queue begins."""
        if self._broadcasting:
            place = self._place_of.get(_place_name(queue))
        else:
            place = await self._reader.committed(queue)
        if place is not None and place >= 0:
            return place
        if queue.topic.startswith(RETRY_PREFIX):
            return 0
        if self._consume_from == "last":
            return await self._reader.max_offset(queue)
        if isinstance(self._consume_from, int):
            return await self._reader.offset_by_time(queue, self._consume_from)
        return await self._reader.min_offset(queue)

    async def commit(self, assigned: AssignedQueue) -> None:
        """Commit the place of a queue. After a failure the next commit includes it."""
        place = assigned.place
        if place == assigned.committed:
            return
        if self._broadcasting:
            self._place_of[_place_name(assigned.queue)] = place
            assigned.committed = place
            return
        try:
            await self._reader.commit(assigned.queue, place)
            assigned.committed = place
        except BrokerStoreError as error:
            log.info("%s cannot commit %s: %s", self._group, assigned.queue, error)

    def save(self) -> None:
        """Write the places of a broadcasting consumer to its store."""
        if self._broadcasting and self._store is not None:
            self._store.save(dict(self._place_of))


def _place_name(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
