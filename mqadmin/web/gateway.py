"""The cluster as the hot routes need it: its answers as values for orjson and as JSON in pieces.

`ClusterGateway(cluster)` is a broker_store.rest.http.Gateway. Django's versions of the two routes use it too,
so both answer the same. A large request is served in pieces with a turn of the loop between, since all
clients of the broker share that loop.
"""

from __future__ import annotations

import asyncio

from broker_store.errors import NotFoundError
from broker_store.formats.names import check_topic
from broker_store.rest.answers import Receipt
from broker_store.rest.documents import messages_json
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from broker_store.rest.repeats import Repeats
from mqadmin.cluster.protocol import Cluster

MESSAGES_PER_PIECE = 64  # messages: about a millisecond
REPEATS = Repeats()  # shared by both routes of a send


class ClusterGateway:
    """Sends and pulls of one cluster; made for each request, without state."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[Receipt | Problem]:
        receipts: list[Receipt | Problem] = []
        try:
            for at in range(0, len(messages), MESSAGES_PER_PIECE):
                receipts += await self._cluster.sends.send_batch(
                    check_topic(topic), messages[at : at + MESSAGES_PER_PIECE]
                )
                await asyncio.sleep(0)
            return receipts
        except NotFoundError as error:
            raise Problem("topic_not_found", str(error)) from None

    async def pull(
        self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int
    ) -> list[bytes]:
        try:
            found = await self._cluster.pulls.pull(check_topic(topic), queue_id, offset, limit, wait_ms)
        except NotFoundError as error:
            raise Problem("queue_not_found", str(error)) from None
        facts = {
            "topic": topic,
            "queue_id": queue_id,
            "min_offset": _text(found.min_offset),
            "max_offset": _text(found.max_offset),
            "next_offset": _text(found.next_offset),
        }
        return await messages_json(facts, found.messages)

    def refuse(self, cause: str, **case) -> None:
        self._cluster.refuse(cause, **case)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
