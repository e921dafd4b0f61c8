"""Assignment of the queues of topics to one consumer, by the members of its group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from broker_store.client.allocation import allocate
from broker_store.client.assigned_queue import AssignedQueue, ReadAhead
from broker_store.client.consumer_places import ConsumerPlaces
from broker_store.client.errors import ClientError, NoRouteError
from broker_store.client.pulling import QueueReader, readable_queues
from broker_store.client.queue_locks import LOCK_LIFE_S, QueueLocks
from broker_store.client.session import Session, lowest_address
from broker_store.errors import BrokerStoreError
from broker_store.protocol import client_bodies, route_bodies
from broker_store.protocol.client_bodies import Subscription
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.headers import write_header
from broker_store.protocol.message_queue import MessageQueue

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
# While a topic has no route yet, or a queue could not be taken.
REBALANCE_SOON_S = 1.0


class Assignment:
    """The queues that one consumer reads.

    `queues` are read now. `releases` are the tasks that end the reading of others. Setting `wanted` divides
    the queues again. `read` reads a queue until it is dropped.
    """

    def __init__(
        self,
        session: Session,
        reader: QueueReader,
        group: str,
        subscriptions: Mapping[str, Subscription],
        places: ConsumerPlaces,
        read_ahead: ReadAhead,
        read: Callable[[AssignedQueue], Coroutine[Any, Any, None]],
        *,
        orderly: bool,
        broadcasting: bool,
    ):
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.releases: dict[MessageQueue, asyncio.Task[None]] = {}
        self.wanted = asyncio.Event()
        self.closed = False
        self._session, self._reader, self._group = session, reader, group
        self._subscriptions = subscriptions
        self._places = places
        self._read_ahead = read_ahead
        self._read = read
        self._orderly, self._broadcasting = orderly, broadcasting
        self._locks = QueueLocks(session, reader, group)
        self._rebalancing = asyncio.Lock()
        self._settled = False

    async def keep_balanced(self) -> None:
        """Divide the queues every REBALANCE_INTERVAL_S, and when `wanted` is set."""
        while True:
            wait_s = REBALANCE_INTERVAL_S if self._settled else REBALANCE_SOON_S
            try:
                async with asyncio.timeout(wait_s):
                    await self.wanted.wait()
            except TimeoutError:
                pass
            self.wanted.clear()
            await self.rebalance()

    async def rebalance(self) -> None:
        """Take the queues that are assigned to this client, and drop the others. A topic keeps its queues
        when its members or its route are not known."""
        async with self._rebalancing:
            self._settled = True
            for topic in list(self._subscriptions):
                try:
                    await self._rebalance_topic(topic)
                except BrokerStoreError as error:
                    self._settled = False
                    log.info("%s cannot share out %s: %s", self._group, topic, error)

    async def _rebalance_topic(self, topic: str) -> None:
        route = self._session.routes.get(topic) or await self._session.fetch_route(topic)
        queues = readable_queues(topic, route)
        if self._broadcasting:
            mine = queues
        else:
            members = await self._members(topic, route)
            if self._session.client_id not in members:
                await self._session.beat()
                self._settled = False
                return
            mine = allocate(queues, members, self._session.client_id)
        for queue, assigned in list(self.queues.items()):
            if queue.topic == topic and queue not in mine:
                self.drop(assigned)
        wanted = [queue for queue in mine if queue not in self.queues]
        if self._orderly and not self._broadcasting:
            locked = await self._locks.lock(topic, route, mine, self.queues)
            if not locked.issuperset(wanted):
                self._settled = False
            wanted = [queue for queue in wanted if queue in locked]
        for queue in wanted:
            await self._take(queue)

    async def _members(self, topic: str, route: route_bodies.TopicRoute) -> list[str]:
        """Return the client ids of the group, from the first of the topic's brokers that answers."""
        fields = write_header(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumer_group=self._group)
        failure: ClientError = NoRouteError(f"topic {topic} has no broker")
        for broker in route.brokers:
            try:
                accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
                code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
                answer = await self._session.ask(lowest_address(broker), code, fields, accept=accept)
                # An error means that the broker has no member of the group yet.
                return (
                    client_bodies.decode_consumer_list(answer.body)
                    if answer.code == ResponseCode.SUCCESS
                    else []
                )
            except ClientError as error:
                failure = error
        raise failure

    async def _take(self, queue: MessageQueue) -> None:
        """Start reading a queue at the group's place."""
        if queue in self.releases:
            self._settled = False  # its last reader has not ended
            return
        assigned = AssignedQueue(queue, await self._places.first_offset(queue), self._read_ahead)
        if self.closed:
            return
        assigned.locked_until_s = time.monotonic() + LOCK_LIFE_S
        self.queues[queue] = assigned
        assigned.task = self._session.spawn(self._read(assigned))
        log.info("%s reads %s from %d", self._group, queue, assigned.next_offset)

    def drop(self, assigned: AssignedQueue) -> None:
        """Stop reading a queue; commit and unlock it after its running handlers have ended."""
        self.queues.pop(assigned.queue, None)
        assigned.drop()
        release = self.releases[assigned.queue] = self._session.spawn(self._release(assigned))
        release.add_done_callback(lambda _: self.releases.pop(assigned.queue))

    async def _release(self, assigned: AssignedQueue) -> None:
        # No other consumer reads the queue while we hold its lock or are in the group. Otherwise the next
        # reader starts now at the committed offset, and a later commit from here must not move it back.
        ours = self.closed or (self._orderly and not self._broadcasting)
        if not ours:
            await self._places.commit(assigned)
        await assigned.idle.wait()
        if assigned.task is not None:
            assigned.task.cancel()
            await asyncio.gather(assigned.task, return_exceptions=True)
        if ours:
            await self._places.commit(assigned)
        if self._orderly and not self._broadcasting:
            await self._locks.unlock(assigned.queue)
