import asyncio

import pytest

from broker_store.client import (
    GiveUp,
    Outgoing,
    Producer,
    PushConsumer,
    RequestTimeout,
    TransactionProducer,
    tracing,
)
from broker_store.client.delivery import Delivery
from broker_store.client.tracing import Tracer
from broker_store.formats import recall_handle, traces
from broker_store.formats.recall_handle import RecallHandle
from broker_store.formats.topics import TRACE_TOPIC
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from tests.client.conftest import Inbox
from tests.support.waits import until


def records(cluster):
    """The fields of all trace records that are stored, and the keys of their messages."""
    messages = [
        message
        for queue_id in cluster.store.queue_ids(TRACE_TOPIC)
        for message in cluster.store.messages(TRACE_TOPIC, queue_id)
    ]
    texts = [text for message in messages for text in message.body.decode().split("\x02")[:-1]]
    return [text.split("\x01") for text in texts], {key for message in messages for key in message.keys}


async def test_what_a_producer_sent_is_traced(cluster):
    async with Producer(cluster.nameservers, "pg", trace=True) as producer:
        sent = await producer.send("T", b"hello", tag="A", keys=iter(["k1", "k2"]))
        batch = await producer.send_batch("T", [Outgoing(b"x", keys="k3"), b"yy"])
        later = await producer.send("T", b"later", delay_level=1)
    found, keys = records(cluster)
    pub, *others = found
    assert pub[0] == "Pub" and pub[2:10] == [
        "DefaultRegion",
        "pg",
        "T",
        sent.message_id,
        "A",
        "k1 k2",
        cluster.address,
        "5",
    ]
    assert abs(int(pub[1]) - cluster.clock()) < 60_000 and 0 <= int(pub[10]) < 60_000
    assert pub[11:] == ["0", sent.offset_message_id, "true"]
    assert [line[5:8] + [line[9], line[11]] for line in others] == [
        [batch[0].message_id, "null", "k3", "1", "0"], [batch[1].message_id, "null", "null", "2", "0"], [later.message_id, "null", "null", "5", "3"]
    ]  # fmt: skip
    assert keys == {
        "k1",
        "k2",
        "k3",
        sent.message_id,
        later.message_id,
        *(receipt.message_id for receipt in batch),
    }


async def test_the_word_for_a_transaction_is_traced(cluster):
    async with TransactionProducer(cluster.nameservers, "pg", lambda message: None, trace=True) as producer:
        async with producer.transaction("T", b"paid", tag="A", keys=["k"]) as half:
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction("T", b"x"):
                1 / 0  # noqa: B018
    found, _ = records(cluster)
    assert [line[0] for line in found] == ["Pub", "EndTransaction", "Pub", "EndTransaction"]
    assert found[0][11] == "1"
    assert found[1][2:] == [
        "DefaultRegion",
        "pg",
        "T",
        half.message_id,
        "A",
        "k",
        cluster.address,
        "2",
        half.message_id,
        "COMMIT_MESSAGE",
        "false",
    ]
    assert found[3][11] == "ROLLBACK_MESSAGE"


async def test_what_was_recalled_is_traced(cluster, monkeypatch):
    async with Producer(cluster.nameservers, "pg", trace=True) as producer:
        sent = await producer.send("T", b"x")
        ask = producer._session.ask

        async def answer_recalls(address, code, *more, **options):
            return (
                Command(0, fields={"msgId": sent.message_id})
                if code == RequestCode.RECALL_MESSAGE
                else await ask(address, code, *more, **options)
            )

        monkeypatch.setattr(producer._session, "ask", answer_recalls)
        await producer.recall(
            "T", recall_handle.encode(RecallHandle("T", "broker-a", "1900000000001", sent.message_id))
        )
    found, _ = records(cluster)
    assert found[1][0] == "Recall" and found[1][2:] == ["DefaultRegion", "pg", "T", sent.message_id, "true"]


async def test_what_a_handler_did_is_traced(cluster):
    async def handle(message):
        await inbox(message)
        if message.body == b"1":
            raise GiveUp

    inbox = Inbox(failures=1)
    async with Producer(cluster.nameservers) as producer:
        receipts = [await producer.send("T", body, keys=["k"], queue_id=0) for body in (b"0", b"1", b"2")]
    async with PushConsumer("g", cluster.nameservers, concurrency=1, trace=True).subscribe("T") as consumer:
        await consumer.start(handle)
        await inbox.next(3)
    found, _ = records(cluster)
    before = {line[5]: line for line in found if line[0] == "SubBefore"}
    after = {line[2]: line for line in found if line[0] == "SubAfter"}
    for receipt, success, code in zip(receipts, ("false", "false", "true"), ("2", "4", "0"), strict=True):
        first, second = before[receipt.message_id], after[receipt.message_id]
        assert first[2:4] == ["DefaultRegion", "g"] and first[6:] == ["0", "k"]
        assert second[1] == first[4] and second[4:7] == [success, "k", code] and second[8] == "g"
    assert len({line[4] for line in before.values()}) == 3


async def test_what_a_loop_did_is_traced(cluster):
    async with Producer(cluster.nameservers) as producer:
        receipts = [await producer.send("T", body, queue_id=0) for body in (b"0", b"1", b"2")]
    async with PushConsumer("g", cluster.nameservers, trace=True).subscribe("T") as consumer:
        async for message in consumer:
            if message.body == b"1":
                await consumer.retry(message)
            elif message.body == b"2":
                break
    found, _ = records(cluster)
    assert [line[5] for line in found if line[0] == "SubBefore"] == [
        receipt.message_id for receipt in receipts
    ]
    assert [(line[2], line[4]) for line in found if line[0] == "SubAfter"] == [
        (receipts[0].message_id, "true"),
        (receipts[1].message_id, "false"),
    ]


async def test_the_dashboard_reads_what_was_traced(cluster):
    async with TransactionProducer(cluster.nameservers, "pg", lambda message: None, trace=True) as producer:
        async with producer.transaction("T", b"x") as half:
            pass
    async with PushConsumer("g", cluster.nameservers, trace=True).subscribe("T") as consumer:
        async for message in consumer:
            await consumer.ack(message)
            break
    messages = [
        message
        for queue_id in cluster.store.queue_ids(TRACE_TOPIC)
        for message in cluster.store.messages(TRACE_TOPIC, queue_id)
    ]
    events = traces.in_order(event for message in messages for event in traces.decode(message.body))
    assert [(event.kind, event.message_id, event.group) for event in events] == [
        ("sent", half.message_id, "pg"), ("ended", half.message_id, "pg"), ("handed", half.message_id, "g"), ("consumed", half.message_id, "g")
    ]  # fmt: skip


async def test_nothing_is_traced_unless_it_is_asked_for(cluster):
    async with (
        Producer(cluster.nameservers) as producer,
        PushConsumer("g", cluster.nameservers).subscribe("T") as consumer,
    ):
        await producer.send("T", b"x")
        inbox = Inbox()
        await consumer.start(inbox)
        await inbox.next()
    assert records(cluster) == ([], set())


async def test_nothing_is_traced_that_the_broker_does_not_want_traced(cluster, monkeypatch):
    deliver = Delivery.deliver

    async def untraced(self, *arguments):
        answer, queue = await deliver(self, *arguments)
        answer.fields["TRACE_ON"] = "false"
        return answer, queue

    monkeypatch.setattr(Delivery, "deliver", untraced)
    async with Producer(cluster.nameservers, trace=True) as producer:
        await producer.send("T", b"x")
    assert records(cluster) == ([], set())


class Sink:
    """A producer that keeps what it is given, or cannot send."""

    def __init__(self, failure=None):
        self.failure, self.sent, self.closed = failure, [], False

    async def start(self):
        pass

    async def send(self, topic, body, *, keys):
        if self.failure:
            raise self.failure
        self.sent.append((body.count(b"\x02"), keys))

    async def close(self):
        self.closed = True


def ended(tracer, topic, key):
    tracer.ended(topic, key, Outgoing(b"", keys=["k" * 5_000]), "host", True, False)


async def test_records_of_a_topic_go_together_and_not_too_many(monkeypatch):
    monkeypatch.setattr(tracing, "PAUSE_S", 0.001)
    sink = Sink()
    tracer = Tracer(lambda: sink, lambda: "id", "g")
    for number in range(101):
        ended(tracer, "T", f"a{number}")
        ended(tracer, "U", "b")
    await until(lambda: len(sink.sent) == 4)
    assert [count for count, _ in sink.sent] == [100, 1, 100, 1]
    assert sink.sent[3][1] == ["b", "k" * 5_000]
    await tracer.close()
    assert sink.closed


async def test_keys_that_do_not_fit_are_left_out():
    sink = Sink()
    tracer = Tracer(lambda: sink, lambda: "id", "g")
    for letter in "abcdef":
        tracer.ended("T", letter, Outgoing(b"", keys=[letter * 5_000]), "host", True, False)
    await tracer.close()
    ((count, keys),) = sink.sent
    assert count == 6 and [key[0] for key in keys] == ["a", "a", "b", "b", "c", "c", "d"]


async def test_a_trace_that_cannot_be_sent_holds_up_nothing(caplog):
    tracer = Tracer(lambda: Sink(RequestTimeout("told to fail")), lambda: "id", "g")
    for _ in range(tracing.MAX_WAITING + 7):
        ended(tracer, "T", "a")
    await asyncio.wait_for(tracer.close(), 5)
    assert (
        "7 trace records of g found no room" in caplog.text
        and "100 trace records of g are lost: told to fail" in caplog.text
    )
    await tracer.close()
