import asyncio
import dataclasses

import pytest

from broker_store.client import Outgoing, Producer, PushConsumer, delivery
from broker_store.client.errors import AnswerError, ConnectionLost, NoRouteError, PartlySent, RequestTimeout
from broker_store.client.message import decode_messages
from broker_store.errors import MisuseError, NameError_
from broker_store.formats import recall_handle
from broker_store.formats.recall_handle import RecallHandle
from broker_store.messages import PutStatus
from broker_store.nameserver.routes import finish
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.route_bodies import BrokerData, QueueData, TopicRoute
from tests.client.conftest import Cluster
from tests.support.waits import until


@pytest.fixture
async def producer(cluster):
    async with Producer(cluster.nameservers, "pg") as producer:
        yield producer


def stored(cluster, receipt):
    (log_offset, _, _), *_ = cluster.store.reads.read_units(
        receipt.topic, receipt.queue_id, receipt.queue_offset, 1
    )
    return decode_messages(cluster.store.reads.records.record_at(log_offset), receipt.broker_name)[0]


async def test_a_message_is_stored_as_it_was_given(cluster, producer):
    receipt = await producer.send("T", b"hello", tag="A", keys=["k1", "k2"], properties={"colour": "red"})
    assert (receipt.status, receipt.topic, receipt.broker_name, receipt.queue_offset) == (
        "SEND_OK",
        "T",
        "broker-a",
        0,
    )
    message = stored(cluster, receipt)
    assert (message.body, message.tag, message.keys, message.properties["colour"]) == (
        b"hello",
        "A",
        ("k1", "k2"),
        "red",
    )
    assert (message.message_id, message.offset_message_id) == (receipt.message_id, receipt.offset_message_id)
    assert message.queue == receipt.queue


async def test_messages_go_round_the_queues(producer):
    receipts = [await producer.send("T", b"x") for _ in range(8)]
    assert sorted(receipt.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(await producer.queues("T")) == 4


async def test_a_queue_can_be_chosen(producer):
    receipts = [await producer.send("T", b"x", queue_id=2) for _ in range(3)]
    assert [(receipt.queue_id, receipt.queue_offset) for receipt in receipts] == [(2, 0), (2, 1), (2, 2)]
    assert (await producer.send("T", b"x", queue_id=1, broker_name="broker-a")).queue_id == 1
    with pytest.raises(NoRouteError):
        await producer.send("T", b"x", queue_id=99)
    with pytest.raises(NoRouteError):
        await producer.send("T", b"x", broker_name="broker-z")


async def test_a_batch_stands_together_in_one_queue(cluster, producer):
    receipts = await producer.send_batch("T", [b"a", Outgoing(b"b", "B", ["k"])])
    assert [receipt.queue_offset for receipt in receipts] == [0, 1]
    assert len({receipt.queue_id for receipt in receipts}) == 1
    messages = [stored(cluster, receipt) for receipt in receipts]
    assert [message.body for message in messages] == [b"a", b"b"]
    assert [message.message_id for message in messages] == [receipt.message_id for receipt in receipts]
    assert [message.offset_message_id for message in messages] == [
        receipt.offset_message_id for receipt in receipts
    ]
    with pytest.raises(MisuseError):
        await producer.send_batch("T", [])
    with pytest.raises(MisuseError):
        await producer.send_batch("T", [bytes(3 << 20)] * 2)


@pytest.fixture
def batches(cluster, monkeypatch):
    """The body sizes of the batches that the store was given."""
    sizes = []

    def put_batch(message):
        sizes.append(len(message.body))
        return given(message)

    given = cluster.store.appender.put_batch
    monkeypatch.setattr(cluster.store, "put_batch", put_batch)
    return sizes


async def test_many_messages_go_in_as_many_batches_as_they_need(cluster, producer, batches):
    bodies = [bytes([number]) * 30_000 for number in range(10)]
    receipts = await producer.send_many("T", iter(bodies), queue_id=1, batch_bytes=100_000)
    assert [receipt.queue_offset for receipt in receipts] == list(range(10))
    assert [stored(cluster, receipt).body for receipt in receipts] == bodies
    assert [size // 30_000 for size in batches] == [3, 3, 3, 1] and max(batches) <= 100_000
    assert await producer.send_many("T", []) == []
    with pytest.raises(MisuseError, match="does not fit"):
        await producer.send_many("T", [bytes(4 << 20)])


async def test_of_many_messages_the_receipts_of_those_that_were_sent_are_not_lost(cluster, producer):
    def bodies():
        yield b"a"
        yield b"b"
        yield b"c"
        # Each is a batch of its own, which is sent when the next is here: the first two are.
        cluster.store.refuse = PutStatus.MESSAGE_ILLEGAL
        yield b"d"

    with pytest.raises(PartlySent, match="2 messages were sent to topic T") as caught:
        await producer.send_many("T", bodies(), batch_bytes=1)
    assert [stored(cluster, receipt).body for receipt in caught.value.receipts] == [b"a", b"b"]
    assert caught.value.__cause__.code == 13
    with pytest.raises(AnswerError):
        await producer.send_many("T", [b"e"])


async def test_messages_of_one_key_go_to_one_queue_the_same_as_javas(cluster, producer):
    for _ in range(3):
        # "customer-2".hashCode() is -1581185533, whose remainder is -1 in Java; its selector takes the
        # absolute value.
        assert (await producer.send("T", b"x", ordering_key="customer-2")).queue_id == 1
        assert (await producer.send("T", b"x", ordering_key="")).queue_id == 0
    assert {
        receipt.queue_id
        for receipt in await producer.send_many("T", [b"x"] * 5, ordering_key="customer-2", batch_bytes=1)
    } == {1}
    with pytest.raises(MisuseError):
        await producer.send("T", b"x", ordering_key="customer-2", queue_id=1)


async def test_a_delayed_message_appears_after_its_time(cluster, producer):
    receipt = await producer.send("T", b"later", delay_level=2, queue_id=3)
    assert cluster.store.reads.max_offset("T", 3) == 0
    cluster.advance(4_000)
    assert cluster.store.reads.max_offset("T", 3) == 0
    cluster.advance(1_000)
    (message,) = cluster.store.messages("T", 3)
    assert (message.body, message.unique_key) == (b"later", receipt.message_id)


async def test_a_message_with_a_time_of_its_own_appears_then_and_a_recalled_one_never():
    cluster = Cluster(recall_message_enable=True)
    await cluster.start()
    try:
        async with Producer(cluster.nameservers) as producer:
            await producer.send("T", b"from now", delay_s=60, queue_id=0)
            recalled = await producer.send("T", b"recalled", delay_s=60, queue_id=0)
            await producer.send("T", b"at", deliver_at=cluster.clock() + 120_000, queue_id=0)
            assert await producer.recall("T", recalled.recall_handle) == recalled.message_id
            cluster.advance(57_000)
            assert cluster.store.messages("T", 0) == []
            cluster.advance(4_000)
            await until(lambda: len(cluster.store.messages("T", 0)) == 1)
            cluster.advance(60_000)
            await until(lambda: len(cluster.store.messages("T", 0)) == 2)
            assert [message.body for message in cluster.store.messages("T", 0)] == [b"from now", b"at"]
    finally:
        await cluster.stop()


async def test_what_waits_cannot_be_part_of_a_batch_nor_be_told_twice(producer):
    for send in (producer.send_batch, producer.send_many):
        with pytest.raises(MisuseError, match="cannot wait"):
            await send("T", [Outgoing(b"x", delay_level=1)])
    with pytest.raises(MisuseError, match="holds tag"):
        await producer.send("T", Outgoing(b"x"), tag="A")
    assert (await producer.send("T", Outgoing(b"x", "A"))).status == "SEND_OK"


def handle_of(broker_name):
    return recall_handle.encode(RecallHandle("T", broker_name, "1900000000001", "UK"))


async def test_a_message_is_recalled_at_the_broker_that_its_handle_names(producer, monkeypatch):
    asked = []

    async def ask(address, code, fields=None, body=b"", **more):
        asked.append((address, code, fields))
        return Command(0, fields={"msgId": "UK"})

    await producer.queues("T")
    address = producer._session.masters()[0]
    monkeypatch.setattr(producer._session, "ask", ask)
    assert await producer.recall("T", handle_of("broker-a")) == "UK"
    assert asked == [
        (
            address,
            RequestCode.RECALL_MESSAGE,
            {"producerGroup": "pg", "topic": "T", "recallHandle": handle_of("broker-a")},
        )
    ]
    with pytest.raises(NoRouteError, match="broker-z"):
        await producer.recall("T", handle_of("broker-z"))
    with pytest.raises(MisuseError, match="a handle stands in the receipt"):
        await producer.recall("T", "djI=")


@pytest.mark.parametrize(
    ("code", "goes_on"),
    [(code, True) for code in (1, 2, 14, 16, 17, 204, 205, 1500)] + [(13, False), (29, False)],
)
async def test_another_broker_is_asked_when_one_answers_with_a_code_of_javas_list(
    producer, monkeypatch, code, goes_on
):
    queues = tuple(QueueData(name, 1, 1, 6) for name in ("a", "b"))
    producer._session.routes["T"] = TopicRoute(
        queues, tuple(BrokerData("C", name, {0: f"127.0.0.1:{port}"}) for name, port in (("a", 1), ("b", 2)))
    )
    producer._choice._turns["T"] = iter([0, 0])

    async def ask(address, request, fields=None, body=b"", **more):
        if address.endswith(":1"):
            raise AnswerError(request, code, "told to refuse", address)
        return Command(0, fields={"queueId": "0", "queueOffset": "7", "msgId": "X"})

    monkeypatch.setattr(producer._session, "ask", ask)
    if goes_on:
        assert (await producer.send("T", b"x")).queue == MessageQueue("T", "b", 0)
    else:
        with pytest.raises(AnswerError):
            await producer.send("T", b"x")


async def test_a_batch_may_be_of_very_many_messages(cluster, producer):
    """The answer's header, with an id for each, is much longer than that of any request may be."""
    receipts = await producer.send_batch("T", [b"%d" % number for number in range(10_000)], queue_id=0)
    assert len({receipt.offset_message_id for receipt in receipts}) == 10_000
    assert cluster.store.reads.max_offset("T", 0) == 10_000
    assert stored(cluster, receipts[9_999]).body == b"9999"


async def test_a_oneway_message_arrives_without_an_answer(cluster, producer):
    message_id = await producer.send_oneway("T", b"x", queue_id=1)
    await until(lambda: cluster.store.reads.max_offset("T", 1) == 1)
    (log_offset, _, _), *_ = cluster.store.reads.read_units("T", 1, 0, 1)
    assert decode_messages(cluster.store.reads.records.record_at(log_offset), "")[0].message_id == message_id


async def test_many_sends_at_once_are_all_stored(producer):
    receipts = await asyncio.gather(*(producer.send("T", str(number).encode()) for number in range(200)))
    assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == 200


async def test_a_name_that_is_a_path_is_refused_before_anything_is_sent(producer):
    for name in ("../x", "a/b", "", "a b"):
        with pytest.raises(NameError_):
            await producer.send(name, b"x")
    with pytest.raises(NameError_):
        Producer("127.0.0.1:1", "a/b")


async def test_without_auto_creation_an_unknown_topic_has_no_route(cluster, producer):
    cluster.nameserver.routes.delete_topic("TBW102")
    with pytest.raises(NoRouteError):
        await producer.send("New", b"x")


async def test_a_topic_that_cannot_be_written_has_no_route(cluster, producer):
    await producer.send("T", b"x")
    finish(cluster.nameserver.routes.wipe_write_perm("broker-a"))
    await producer._session.fetch_route("T")
    with pytest.raises(NoRouteError):
        await producer.send("T", b"x")


async def test_a_busy_broker_is_asked_again(cluster, producer, monkeypatch):
    monkeypatch.setattr(delivery, "RETRY_PAUSE_S", 0)
    cluster.store.refuse = PutStatus.OS_PAGE_CACHE_BUSY
    asyncio.get_running_loop().call_later(0.005, setattr, cluster.store, "refuse", None)
    monkeypatch.setattr(delivery, "MAX_ATTEMPTS", 1000)
    assert (await producer.send("T", b"x")).status == "SEND_OK"


async def test_a_broker_that_stays_busy_is_given_up(cluster, producer, monkeypatch):
    monkeypatch.setattr(delivery, "RETRY_PAUSE_S", 0)
    cluster.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(AnswerError) as caught:
        await producer.send("T", b"x")
    assert caught.value.code == 14
    assert cluster.store.reads.max_offset("T", 0) == 0


async def test_what_cannot_get_better_is_not_tried_again(cluster, producer):
    cluster.store.refuse = PutStatus.MESSAGE_ILLEGAL
    with pytest.raises(AnswerError) as caught:
        await producer.send("T", b"x")
    assert caught.value.code == 13
    assert cluster.store.put_calls.count(1) == 1


async def test_sending_goes_on_after_a_lost_connection(cluster, producer):
    await producer.send("T", b"x")
    cluster.cut_connections()
    assert (await producer.send("T", b"y")).status == "SEND_OK"


async def test_a_broker_that_is_gone_ends_the_send_in_time(cluster, producer, monkeypatch):
    monkeypatch.setattr(delivery, "RETRY_PAUSE_S", 0)
    await producer.send("T", b"x")
    await cluster.broker.stop()
    with pytest.raises((ConnectionLost, NoRouteError)):
        await producer.send("T", b"y", timeout=1)


async def test_a_broker_that_does_not_answer_ends_the_send_in_time(cluster, producer):
    await producer.send("T", b"x")
    cluster.store.sync_flush = True
    with pytest.raises(RequestTimeout):
        await producer.send("T", b"y", timeout=0.02)
    cluster.store.sync()


async def test_a_topic_that_was_just_created_gets_its_own_route(cluster, producer):
    await producer.send("T", b"x")
    assert "T" in producer._choice._provisional
    await producer._session.fetch_route("T")
    cluster.parts.topics.put(_wider(cluster))
    await producer._session.fetch_route("T")
    assert len(await producer.queues("T")) == 6


def _wider(cluster):
    return dataclasses.replace(cluster.parts.topics.get("T"), read_queues=6, write_queues=6)


async def test_the_broker_knows_its_producers(cluster):
    async with Producer(cluster.nameservers, "pg") as producer:
        await producer.send("T", b"x")
        await until(lambda: cluster.parts.clients.producers("pg"))
    assert not cluster.parts.clients.producers("pg")
    await producer.close()


async def test_a_request_gets_the_reply_of_who_consumes_it(cluster, producer):
    async def answer(message):
        await producer.reply(message, b"171.3 for " + message.body)

    await producer.send("Prices", b"first")
    async with PushConsumer("quotes", cluster.nameservers, consume_from="first").subscribe(
        "Prices", "ask"
    ) as consumer:
        await consumer.start(answer)
        reply = await producer.request("Prices", b"AAPL", tag="ask", timeout=10)
    assert reply.body == b"171.3 for AAPL" and reply.properties["MSG_TYPE"] == "reply"


async def test_a_request_that_nobody_answers_ends_in_time(producer):
    with pytest.raises(RequestTimeout, match="no reply came"):
        await producer.request("Prices", b"AAPL", timeout=0.2)
    assert producer._replies._requests == {}


async def test_only_a_request_can_be_replied_to(cluster, producer):
    receipt = await producer.send("T", b"hello")
    with pytest.raises(MisuseError, match="asks for no reply"):
        await producer.reply(stored(cluster, receipt), b"x")
