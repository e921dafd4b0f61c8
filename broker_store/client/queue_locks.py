"""Locks of orderly consumers on queues, which brokers hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from broker_store.client.assigned_queue import AssignedQueue
from broker_store.client.errors import ClientError
from broker_store.client.pulling import QueueReader
from broker_store.client.session import Session, lowest_address
from broker_store.protocol import client_bodies, route_bodies
from broker_store.protocol.client_bodies import LockRequest
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.message_queue import MessageQueue

log = logging.getLogger(__name__)

# A broker drops a lock after 60 s. Each rebalance renews it.
LOCK_LIFE_S = 30.0


class QueueLocks:
    """Requests for locks of one consumer."""

    def __init__(self, session: Session, reader: QueueReader, group: str):
        self._session, self._reader, self._group = session, reader, group

    async def lock(
        self,
        topic: str,
        route: route_bodies.TopicRoute,
        mine: list[MessageQueue],
        assigned: Mapping[MessageQueue, AssignedQueue],
    ) -> set[MessageQueue]:
        """Lock the queues `mine`, or renew their locks; return those that are locked for this client.

        The locks of assigned queues end LOCK_LIFE_S after the request, or now if the broker refuses them.
        """
        locked: set[MessageQueue] = set()
        for broker in route.brokers:
            queues = tuple(queue for queue in mine if queue.broker_name == broker.broker_name)
            if queues:
                body = client_bodies.encode_lock_request(
                    LockRequest(self._session.client_id, self._group, queues)
                )
                asked_s = time.monotonic()
                try:
                    answer = await self._session.ask(
                        lowest_address(broker), RequestCode.LOCK_BATCH_MQ, None, body
                    )
                except ClientError as error:
                    log.info("%s cannot lock queues of %s: %s", self._group, topic, error)
                    continue
                granted = client_bodies.decode_locked(answer.body)
                locked |= granted
                for queue in queues:
                    if queue in assigned:
                        # A lock that the broker refused has ended. A lock whose broker did not answer keeps
                        # its end.
                        assigned[queue].locked_until_s = asked_s + LOCK_LIFE_S if queue in granted else 0.0
        return locked

    async def unlock(self, queue: MessageQueue) -> None:
        """Unlock a queue at its broker. A failure is only logged: the lock ends by itself."""
        body = client_bodies.encode_lock_request(LockRequest(self._session.client_id, self._group, (queue,)))
        try:
            await self._session.send_oneway(
                await self._reader.address(queue), RequestCode.UNLOCK_BATCH_MQ, None, body
            )
        except ClientError as error:
            log.info("%s could not unlock %s: %s", self._group, queue, error)
