"""server.reads_at_others: what another broker popped is read there by a pull."""

import asyncio

import pytest

from broker_store.broker.pop.others import Fetched
from broker_store.formats import record
from broker_store.formats.pop_records import PopKey
from broker_store.messages import Message
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.route_bodies import BrokerData, TopicRoute
from broker_store.server import reads_at_others
from broker_store.server.other_brokers import OtherBrokers
from broker_store.server.reads_at_others import ReadsAtOthers

KEY = PopKey("TopicX", "CG", 2, 7, 1_000, "broker-b")


def raw(offset, *, topic="TopicX", queue_id=2):
    return record.encode(Message(topic, queue_id, b"m%d" % offset), offset, 5_000_000, 1_000)


class Brokers(OtherBrokers):
    """The other broker answers with `code`, `fields` and `body`."""

    def __init__(self, code=0, body=b"", addresses=None, **fields):
        self._addresses = {}
        self.code, self.body, self.fields, self.asked = code, body, fields, []
        self.addresses = {0: "10.0.0.1:1", 1: "10.0.0.2:1"} if addresses is None else addresses

    async def routes(self, topic):
        assert topic == "TopicX"
        others = BrokerData("DefaultCluster", "broker-c", {0: "10.0.0.3:1"})
        return [TopicRoute([], [others, BrokerData("DefaultCluster", "broker-b", self.addresses)])]

    async def request(self, address, code, fields, body=b""):
        assert code is RequestCode.PULL_MESSAGE
        self.asked.append((address, fields["consumerGroup"], fields["queueId"], fields["queueOffset"]))
        if self.code is OSError:
            raise OSError("connection refused")
        return Command.request(int(code)).answer(self.code, "why", self.fields, self.body)


async def read(brokers, run=(7, 8), key=KEY):
    came = asyncio.get_running_loop().create_future()
    ReadsAtOthers(brokers).fetch(key, list(run), came.set_result)
    return await came


async def test_messages_are_pulled_at_the_master():
    brokers = Brokers(body=raw(7) + raw(8) + raw(9))
    fetched = await read(brokers)
    assert [each.body for each in fetched.found] == [b"m7", b"m8"] and fetched.gone == []
    assert brokers.asked == [("10.0.0.1:1", "CG", "2", "7")]


async def test_without_a_master_its_slave_is_asked():
    brokers = Brokers(body=raw(7), addresses={3: "10.0.0.4:1", 2: "10.0.0.2:1"})
    assert len((await read(brokers)).found) == 1 and brokers.asked[0][0] == "10.0.0.2:1"


async def test_what_was_deleted_there_is_gone():
    moved = int(ResponseCode.PULL_OFFSET_MOVED)
    assert await read(Brokers(moved, nextBeginOffset="8")) == Fetched([], [7])
    assert await read(Brokers(moved, nextBeginOffset="3")) is None


@pytest.mark.parametrize(
    "brokers",
    [
        Brokers(OSError),
        Brokers(int(ResponseCode.PULL_NOT_FOUND)),
        Brokers(int(ResponseCode.SYSTEM_ERROR)),
        Brokers(int(ResponseCode.PULL_OFFSET_MOVED)),
        Brokers(body=raw(7)[:-1]),
        Brokers(body=b""),
        Brokers(body=raw(7, topic="Others") + raw(8, queue_id=1) + raw(9)),
        Brokers(addresses={}),
    ],
    ids=["refused", "not there yet", "error", "no offset", "cut", "empty", "other messages", "no address"],
)
async def test_anything_else_is_read_again_later(brokers, caplog):
    assert await read(brokers) is None
    assert "what group CG popped of TopicX at broker broker-b is read again later: " in caplog.text


async def test_reads_at_the_same_time_are_bounded(monkeypatch):
    monkeypatch.setattr(reads_at_others, "MAX_READS", 2)
    brokers, results = Brokers(body=raw(7)), []
    reads = ReadsAtOthers(brokers)
    for _ in range(3):
        reads.fetch(KEY, [7], results.append)
    assert results == [None] and brokers.asked == []
    reads.stop()
    await asyncio.sleep(0)
    assert results == [None]
