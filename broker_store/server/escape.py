"""The escape bridge: an acting slave sends what is due to another master of its cluster.

A slave appends nothing to its log but its master's bytes. So a message that its master would store in a
further place (a delayed message that is due, the half of a transaction) is sent, as by a client, to a master
of another name that has the topic.

Source: Apache's `EscapeBridge`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from broker_store.errors import BrokerStoreError, PeerError
from broker_store.formats import properties
from broker_store.formats.topics import PERM_WRITE
from broker_store.messages import Message
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.headers import SendHeader, write_send
from broker_store.protocol.route_bodies import MASTER_ID, TopicRoute
from broker_store.server.other_brokers import OtherBrokers

log = logging.getLogger(__name__)

ROUTE_KEPT_S = 5.0
# Without a master. So many pops and acknowledgements are not as many requests for routes.
NO_ROUTE_KEPT_S = 0.5
# The message is stored
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A queue of another master."""

    broker: str
    address: str
    queues: int


class EscapeBridge:
    """Loop's thread."""

    def __init__(self, own_name: str, brokers: OtherBrokers):
        self._own_name, self._brokers = own_name, brokers
        self._places: dict[str, tuple[float, list[_Place]]] = {}  # topic: until when on the loop's clock
        self._turn = 0
        self.sent = self.failed = 0
        self._said: dict[str, str] = {}  # why sends of a topic fail, as it was logged last
        self._asking = asyncio.Lock()

    async def send(
        self, message: Message, group: str, popped: str | None = None, at: str | None = None
    ) -> str | None:
        """Send a message to a queue of its topic at another master; return the name of that broker, None if
        none has stored it.

        For a record of the revive log, `popped` is the topic of which it says something. That master has it,
        and the records of one pop go to one queue: with `at` to one of the broker of that name, which has
        stored the pop checkpoint.
        """
        topic = popped or message.topic
        try:
            broker = await self._send(message, group, popped, at)
        except (OSError, TimeoutError, BrokerStoreError) as error:
            self.failed += 1
            why = str(error) or type(error).__name__
            if why != self._said.get(topic):
                log.warning("a message of %s is not sent to another master: %s", message.topic, why)
                if len(self._said) > 1_000:
                    self._said.clear()
                self._said[topic] = why
            return None
        self.sent += 1
        self._said.pop(topic, None)
        return broker

    async def _send(self, message: Message, group: str, popped: str | None, at: str | None) -> str:
        places = await self._find(message.topic)
        if popped is not None:
            having = {place.broker for place in await self._find(popped)}
            places = sorted((place for place in places if place.broker in having), key=lambda one: one.broker)
        if at is not None:
            places = [place for place in places if place.broker == at]
        if not places:
            who = "no other master of the cluster" if at is None else f"no master {at}"
            raise PeerError(f"{who} takes messages of {popped or message.topic}")
        self._turn += 1
        number = self._turn if popped is None else message.queue_id
        place = places[number % len(places)]
        header = SendHeader(
            group, message.topic, "TBW102", 4, number % place.queues, message.sys_flag,
            message.born_timestamp, message.flag, message.properties.decode(), message.reconsume_times,
            False, None, False,
        )  # fmt: skip
        fields = write_send(header, broker_name=place.broker)
        answer = await self._brokers.request(place.address, RequestCode.SEND_MESSAGE_V2, fields, message.body)
        if answer.code not in _STORED:
            raise PeerError(f"{place.broker} answered {answer.code} {answer.remark or '':.120}")
        return place.broker

    async def _find(self, topic: str) -> list[_Place]:
        """Return the masters of other names that take messages of a topic."""
        places = self._known(topic)
        if places is not None:
            return places
        async with self._asking:
            places = self._known(topic)  # another send may have asked meanwhile
            if places is None:
                found = [_places(route, self._own_name) for route in await self._brokers.routes(topic)]
                places = list(dict.fromkeys(place for some in found for place in some))
                if len(self._places) > 10_000:
                    self._places.clear()
                kept_s = ROUTE_KEPT_S if places else NO_ROUTE_KEPT_S
                self._places[topic] = (asyncio.get_running_loop().time() + kept_s, places)
        return places

    def _known(self, topic: str) -> list[_Place] | None:
        """Return what was found last, None if that is too old."""
        until_s, places = self._places.get(topic, (0.0, []))
        return places if asyncio.get_running_loop().time() < until_s else None


def _places(route: TopicRoute, own_name: str) -> list[_Place]:
    masters = {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in route.brokers
        if MASTER_ID in broker.addresses and broker.broker_name != own_name
    }
    return [
        _Place(queue.broker_name, masters[queue.broker_name], queue.write_queue_nums)
        for queue in route.queues
        if queue.broker_name in masters and queue.perm & PERM_WRITE and queue.write_queue_nums > 0
    ]


def group_of(message: Message, own_name: str) -> str:
    """Return the producer group with which a message is sent: its own, else one of this broker."""
    return properties.get(message.properties, properties.PRODUCER_GROUP) or f"InnerProducerGroup_{own_name}"
