"""Where the escape bridge sends messages: routes that it asks for, and keeps for a time."""

import asyncio

import pytest

from broker_store.formats.topics import PERM_WRITE
from broker_store.messages import Message
from broker_store.protocol.command import Command
from broker_store.protocol.route_bodies import BrokerData, QueueData, TopicRoute
from broker_store.server import escape
from broker_store.server.escape import EscapeBridge


class Brokers:
    """Other brokers: `masters` have each topic; `asked` counts requests for routes."""

    def __init__(self):
        self.masters, self.asked, self.sent = ["b", "c"], 0, []

    async def routes(self, topic):
        self.asked += 1
        await asyncio.sleep(0)
        return [
            TopicRoute(
                tuple(QueueData(name, 4, 4, PERM_WRITE) for name in self.masters),
                tuple(BrokerData("C", name, {0: f"{name}:1"}) for name in self.masters),
            )
        ]

    async def request(self, address, code, fields, body):
        self.sent.append((address, fields))
        return Command.request(code, {}).answer()


@pytest.fixture
async def brokers():
    return Brokers()


def message(queue_id=0, topic="T"):
    return Message(topic, queue_id, b"x", b"K\x01v\x02")


async def test_sends_at_once_ask_for_a_route_once(brokers):
    bridge = EscapeBridge("a", brokers)
    await asyncio.gather(*(bridge.send(message(), "PG") for _ in range(20)))
    assert brokers.asked == 1 and len(brokers.sent) == 20
    assert {address for address, _ in brokers.sent} == {"b:1", "c:1"}


async def test_without_a_master_routes_are_asked_for_again_soon_and_not_by_each_send(
    brokers, monkeypatch, caplog
):
    brokers.masters = []
    bridge = EscapeBridge("a", brokers)
    assert await asyncio.gather(*(bridge.send(message(), "PG") for _ in range(20))) == [None] * 20
    assert brokers.asked == 1 and bridge.failed == 20
    monkeypatch.setattr(escape, "NO_ROUTE_KEPT_S", 0.0)
    bridge._places.clear()
    assert await bridge.send(message(), "PG") is None
    brokers.masters = ["b"]
    assert await bridge.send(message(), "PG") == "b"
    assert len(caplog.records) == 1


async def test_a_topic_that_fails_is_logged_once_while_others_are_sent(brokers, caplog):
    bridge = EscapeBridge("a", brokers)
    for _ in range(3):
        assert await bridge.send(message(), "PG", None, "gone") is None
        assert await bridge.send(message(topic="U"), "PG") in ("b", "c")
    assert len(caplog.records) == 1


async def test_records_of_one_pop_go_to_one_queue_and_to_the_broker_that_is_asked_for(brokers):
    bridge = EscapeBridge("a", brokers)
    for queue_id in (5, 5, 6):
        await bridge.send(message(queue_id), "PG", "Popped")
    places = [(address, fields["e"]) for address, fields in brokers.sent]
    assert places == [("c:1", "1"), ("c:1", "1"), ("b:1", "2")]
    assert await bridge.send(message(5), "PG", "Popped", "b") == "b"
    assert brokers.sent[-1][0] == "b:1"
