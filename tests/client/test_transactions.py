import asyncio
import threading

import pytest

from broker_store.client import ClientError, TransactionProducer
from broker_store.errors import MisuseError
from broker_store.formats.topics import HALF_TOPIC
from broker_store.messages import PutStatus
from tests.support.waits import until

INTERVAL_MS = 30_000


class Ledger:
    """What a program remembers of its transactions, by key; `asked` are the messages it was asked about."""

    def __init__(self):
        self.paid: dict[str, bool | None] = {}
        self.asked = []

    def check(self, message):
        self.asked.append(message)
        return self.paid[message.keys[0]]


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
async def producer(cluster, ledger):
    async with TransactionProducer(cluster.nameservers, "payments", ledger.check) as producer:
        yield producer


def shown(cluster, topic="T"):
    return [
        message.body
        for queue_id in cluster.store.queue_ids(topic)
        for message in cluster.store.messages(topic, queue_id)
    ]


async def known(cluster):
    """The broker knows the producer of the group, which says who it is when it learns of a broker."""
    await until(lambda: cluster.parts.clients.producers("payments"))


async def test_a_message_is_shown_when_its_block_ends(cluster, producer):
    async with producer.transaction("T", b"paid", tag="A", keys=["order-1"]) as half:
        assert shown(cluster) == []
    assert shown(cluster) == [b"paid"]
    (message,) = [
        message
        for queue_id in cluster.store.queue_ids("T")
        for message in cluster.store.messages("T", queue_id)
    ]
    assert (message.tags, message.keys, message.unique_key) == ("A", ("order-1",), half.message_id)


async def test_a_block_that_raises_takes_its_message_back(cluster, producer):
    with pytest.raises(ZeroDivisionError):
        async with producer.transaction("T", b"paid", keys=["order-1"]):
            1 / 0  # noqa: B018
    assert shown(cluster) == []
    cluster.advance(INTERVAL_MS)
    assert cluster.parts.transactions.facts()["waiting"] == 0


@pytest.mark.parametrize(("verdict", "bodies"), [(True, [b"paid"]), (False, [])])
async def test_a_half_without_a_word_is_asked_about(cluster, producer, ledger, verdict, bodies):
    await producer.begin("T", b"paid", keys=["order-1"])
    await known(cluster)
    ledger.paid["order-1"] = verdict
    cluster.advance(INTERVAL_MS)
    await until(lambda: cluster.parts.transactions.counts["committed" if verdict else "rolled_back"] == 1)
    assert shown(cluster) == bodies
    (asked,) = ledger.asked
    assert (asked.body, asked.topic, asked.keys) == (b"paid", "T", ("order-1",))


async def test_who_does_not_know_yet_is_asked_again(cluster, producer, ledger, caplog):
    await producer.begin("T", b"paid", keys=["order-1"])
    await known(cluster)
    ledger.paid["order-1"] = None
    cluster.advance(INTERVAL_MS)
    await until(lambda: len(ledger.asked) == 1)
    del ledger.paid["order-1"]  # check raises now, which is as good as not knowing
    cluster.advance(INTERVAL_MS)
    await until(lambda: len(ledger.asked) == 2)
    ledger.paid["order-1"] = True
    cluster.advance(INTERVAL_MS)
    await until(lambda: shown(cluster) == [b"paid"])
    assert "check failed" in caplog.text


async def test_check_may_be_a_coroutine(cluster):
    async def check(message):
        await asyncio.sleep(0)
        return True

    async with TransactionProducer(cluster.nameservers, "payments", check) as producer:
        await producer.begin("T", b"paid")
        await known(cluster)
        cluster.advance(INTERVAL_MS)
        await until(lambda: shown(cluster) == [b"paid"])


async def test_a_plain_check_holds_up_nobody(cluster):
    threads = []

    def check(message):
        threads.append(threading.current_thread())
        return True

    async with TransactionProducer(cluster.nameservers, "payments", check) as producer:
        await producer.begin("T", b"paid")
        await known(cluster)
        cluster.advance(INTERVAL_MS)
        await until(lambda: shown(cluster) == [b"paid"])
    assert threads and threading.current_thread() not in threads


async def test_questions_beyond_what_a_slow_check_can_take_are_passed_over_and_asked_again(
    cluster, monkeypatch, caplog
):
    monkeypatch.setattr("broker_store.client.transactions.MAX_HELD", 3)
    asked, ready = [], asyncio.Event()

    async def check(message):
        asked.append(message.body)
        await ready.wait()
        return True

    async with TransactionProducer(cluster.nameservers, "payments", check) as producer:
        for number in range(5):
            await producer.begin("T", b"%d" % number)
        await known(cluster)
        cluster.advance(INTERVAL_MS)
        await until(lambda: len(asked) == 3)
        await producer.begin("T", b"5")  # its answer comes after the questions
        assert asked == [b"0", b"1", b"2"] and len(caplog.records) == 1
        ready.set()
        await until(lambda: len(shown(cluster)) == 3)
        cluster.advance(INTERVAL_MS)
        await until(lambda: len(shown(cluster)) == 6)
    assert sorted(shown(cluster)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_another_process_of_the_group_may_answer(cluster, ledger):
    async with TransactionProducer(cluster.nameservers, "payments", lambda message: None) as first:
        await first.begin("T", b"paid", keys=["order-1"])
    ledger.paid["order-1"] = True
    async with TransactionProducer(cluster.nameservers, "payments", ledger.check) as second:
        await second.queues("T")
        await known(cluster)
        cluster.advance(INTERVAL_MS)
        await until(lambda: shown(cluster) == [b"paid"])


async def test_a_word_that_gets_lost_is_no_error(cluster, producer, ledger):
    half = await producer.begin("T", b"paid", keys=["order-1"])
    cluster.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    assert await half.commit() is False
    cluster.store.refuse = None
    assert await half.commit() is True and await half.commit() is True
    assert shown(cluster) == [b"paid"]


async def test_a_half_that_is_not_safe_is_taken_back_and_the_block_does_not_run(
    cluster, producer, monkeypatch
):
    await producer.queues("T")
    put_many = cluster.store.appender.put_many

    def half_safe(messages):
        results = put_many(messages)
        if messages[0].topic == HALF_TOPIC:
            results[0].status = PutStatus.FLUSH_DISK_TIMEOUT
        return results

    monkeypatch.setattr(cluster.store, "put_many", half_safe)
    with pytest.raises(ClientError, match="FLUSH_DISK_TIMEOUT"):
        async with producer.transaction("T", b"paid"):
            raise AssertionError("the block must not run")
    assert cluster.parts.transactions.counts["rolled_back"] == 1


def test_without_check_there_is_no_producer():
    with pytest.raises(MisuseError, match="check"):
        TransactionProducer("127.0.0.1:9876", "payments", None)
