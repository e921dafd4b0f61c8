"""Choice of a queue and its broker for each message of a producer.

The queues of a topic are used in turn. Messages of one ordering key use one queue. A topic without a route is
sent to the brokers of TBW102, which create it if they are allowed to.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from typing import NamedTuple

from broker_store.client.errors import ClientError, NoRouteError
from broker_store.client.session import Session
from broker_store.errors import MisuseError
from broker_store.formats.java_hash import java_hash
from broker_store.formats.names import check_topic
from broker_store.formats.topics import AUTO_CREATE_TOPIC, PERM_INHERIT, PERM_WRITE
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.route_bodies import MASTER_ID, TopicRoute

log = logging.getLogger(__name__)

DEFAULT_QUEUE_NUMS = 4


class Place(NamedTuple):
    """Queue or broker of a message; the producer chooses those that are None."""

    queue_id: int | None = None
    broker_name: str | None = None
    ordering_key: str | None = None


ANYWHERE = Place()


class QueueChoice:
    """Chooses the queue and the broker of each message of a producer, and keeps the routes for this."""

    def __init__(self, session: Session):
        self._session = session
        self._turns: dict[str, itertools.count[int]] = {}
        self._queues: dict[str, tuple[TopicRoute, list[MessageQueue], dict[str, str]]] = {}
        self._provisional: dict[str, TopicRoute] = {}

    async def choose(self, topic: str, place: Place, avoid: str | None) -> tuple[MessageQueue, str]:
        """Return the next queue in turn, or the one asked for, and its broker's address.

        Raises NoRouteError.
        """
        queues, addresses = await self.writable(topic)
        queue_id, broker_name, ordering_key = place
        if ordering_key is not None:
            # As in Java: the absolute value of a remainder that has the sign of the hash.
            queue = sorted(queues)[abs(java_hash(ordering_key)) % len(queues)]
            return queue, addresses[queue.broker_name]
        if queue_id is not None or broker_name is not None:
            queues = [
                q for q in queues if queue_id in (None, q.queue_id) and broker_name in (None, q.broker_name)
            ]
            if not queues:
                raise NoRouteError(
                    f"topic {topic} has no writable queue {queue_id} on {broker_name or 'any broker'}"
                )
            if broker_name is None:
                queues = queues[:1]
        elif avoid is not None:
            queues = [queue for queue in queues if queue.broker_name != avoid] or queues
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns[topic] = itertools.count(random.randrange(1 << 16))
        queue = queues[next(turn) % len(queues)]
        return queue, addresses[queue.broker_name]

    async def writable(self, topic: str) -> tuple[list[MessageQueue], dict[str, str]]:
        """Return the queues that messages of a topic can be sent to, and the address of each broker name.

        Raises NoRouteError if there are none.
        """
        route = self._session.routes.get(topic) or self._provisional.get(topic)
        if route is None:
            route = await self._find_route(topic)
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            known = self._queues[topic] = (route, *_writable(topic, route))
        if not known[1]:
            self._session.routes.pop(topic, None)
            raise NoRouteError(f"no broker takes messages for topic {topic}")
        return known[1], known[2]

    async def _find_route(self, topic: str) -> TopicRoute:
        check_topic(topic)
        try:
            return await self._session.fetch_route(topic)
        except NoRouteError:
            return await self._creating_route(topic)

    async def _creating_route(self, topic: str) -> TopicRoute:
        """Return the route of TBW102 without queues that create no topics. It is used until the topic has its
        own."""
        try:
            default = await self._session.route(AUTO_CREATE_TOPIC)
        except NoRouteError:
            raise NoRouteError(f"no name server knows topic {topic}, and no broker creates topics") from None
        queues = tuple(
            queue._replace(write_queue_nums=min(queue.write_queue_nums, DEFAULT_QUEUE_NUMS))
            for queue in default.queues
            if queue.perm & PERM_INHERIT
        )
        route = self._provisional[topic] = TopicRoute(queues, default.brokers)
        self._session.spawn(self._await_own_route(topic))
        return route

    async def _await_own_route(self, topic: str) -> None:
        """Ask for the topic's own route until there is one, for at most a minute."""
        for pause_s in (0.5, 1, 2, 4, 8, 15, 30):
            await asyncio.sleep(pause_s)
            try:
                await self._session.fetch_route(topic)
                break
            except ClientError:
                continue
        self._provisional.pop(topic, None)

    async def refetch(self, topic: str) -> None:
        """Fetch the route of a topic whose broker may be gone. The known route stays if the fetch fails."""
        try:
            await self._session.fetch_route(topic)
        except ClientError as error:
            log.info("no new route: %s", error)


def make_place(queue_id: int | None, broker_name: str | None, ordering_key: str | None) -> Place:
    """Return the place of a send. Raises MisuseError when an ordering key and a queue are given."""
    if ordering_key is not None and not (queue_id is None and broker_name is None):
        raise MisuseError("ordering_key chooses the queue; give it or queue_id and broker_name")
    return Place(queue_id, broker_name, ordering_key)


def _writable(topic: str, route: TopicRoute) -> tuple[list[MessageQueue], dict[str, str]]:
    addresses = {b.broker_name: b.addresses[MASTER_ID] for b in route.brokers if MASTER_ID in b.addresses}
    queues = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queues
        if data.perm & PERM_WRITE and data.broker_name in addresses
        for queue_id in range(min(data.write_queue_nums, 1024))
    ]
    return queues, addresses
