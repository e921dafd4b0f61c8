"""Our name server and our Python client beside Apache's broker, and our broker beside Apache's name
server."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from broker_store.client import (
    Admin,
    NoRouteError,
    PopConsumer,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    TransactionProducer,
)
from broker_store.nameserver.handlers import NameServer
from broker_store.server.nameserver_port import NameServerPort
from tests.client import test_python_page
from tests.client.conftest import Cluster, Inbox
from tests.client.test_admin import a_retry_policy_is_told_and_does_not_act
from tests.interop import clients
from tests.interop.brokers import ApacheBroker
from tests.support.waits import until

pytestmark = pytest.mark.client


def clock():
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def apache(tmp_path_factory):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    broker = ApacheBroker(tmp_path_factory.mktemp("apache"), {"recallMessageEnable": "true"})
    try:
        yield broker.start()
    finally:
        broker.end()


async def test_the_python_client_sends_to_apaches_broker_and_consumes_from_it(apache):
    inbox = Inbox(failures=1)
    async with Producer(apache.nameserver) as producer:
        receipts = [
            await producer.send("PyT", str(number).encode(), tag="A", keys=[f"k{number}"])
            for number in range(20)
        ]
        receipts += await producer.send_batch("PyT", [b"20", b"21"])
        async with PushConsumer("pyg", apache.nameserver) as consumer:
            await consumer.subscribe("PyT").start(inbox)
            bodies = {message.body for message in await inbox.next(22)}
            assert bodies == {str(number).encode() for number in range(22)}
            (again,) = await inbox.next()
            assert (again.attempt, again.topic, again.queue.topic) == (2, "PyT", "%RETRY%pyg")
    async with Admin(apache.nameserver) as admin:
        (found,) = await admin.query_messages("PyT", "k7")
        assert (found.body, found.message_id) == (b"7", receipts[7].message_id)
        assert (await admin.view_message(receipts[7].offset_message_id)).message_id == receipts[7].message_id
        stats = await admin.consume_stats("pyg", "PyT")
        assert sum(item.consumer_offset for item in stats.values()) == 22
        assert sum(item.max_offset for item in (await admin.topic_stats("PyT")).values()) == 22


async def test_the_python_client_pops_from_apaches_broker(apache):
    async with (
        Producer(apache.nameserver) as producer,
        PopConsumer("pop", apache.nameserver) as consumer,
        PopConsumer("pop-in-order", apache.nameserver, in_order=True, invisible_s=5) as in_order,
    ):
        for number in range(6):
            await producer.send("PyPop", str(number).encode(), queue_id=1)
        messages = await consumer.pop("PyPop", max_count=4, wait_s=30)
        assert [message.body for message in messages] == [b"0", b"1", b"2", b"3"]
        await consumer.acknowledge(*messages[1:])
        await consumer.change_invisible(messages[0], 1)
        assert [message.body for message in await consumer.pop("PyPop")] == [b"4", b"5"]
        again = await consumer.pop("PyPop", wait_s=30)
        assert [(message.body, message.topic, message.attempt) for message in again] == [(b"0", "PyPop", 2)]
        await consumer.acknowledge(*again)

        first = await in_order.pop("PyPop", max_count=2)
        assert [message.body for message in first] == [b"0", b"1"]
        assert await in_order.pop("PyPop") == []
        await in_order.acknowledge(first[0])
        await in_order.give_up(first[1])
        second = await in_order.pop("PyPop", max_count=2, wait_s=30)
        assert [message.body for message in second] == [b"2", b"3"]
        for message in second:
            await in_order.change_invisible(message, 1)
        began = time.monotonic()
        third: list = []
        while not third and time.monotonic() < began + 20:
            third = await in_order.pop("PyPop", max_count=2, wait_s=1)
        assert [(message.body, message.attempt) for message in third] == [(b"2", 2), (b"3", 2)]


async def test_the_python_client_pulls_and_keeps_order_at_apaches_broker(apache):
    inbox = Inbox()
    async with Producer(apache.nameserver) as producer, PullConsumer("pull", apache.nameserver) as puller:
        for number in range(10):
            await producer.send("PyO", str(number).encode(), queue_id=1)
        queue = (await puller.queues("PyO"))[1]
        result = await puller.pull(queue, 0)
        assert (result.status, len(result.messages), result.next_offset) == (PullStatus.FOUND, 10, 10)
        assert (await puller.pull(queue, 10)).status is PullStatus.NO_NEW_MESSAGE
        async with PushConsumer("order", apache.nameserver, orderly=True) as consumer:
            await consumer.subscribe("PyO").start(inbox)
            assert [int(message.body) for message in await inbox.next(10)] == list(range(10))


async def test_what_waits_appears_at_its_time_and_what_is_recalled_never(apache):
    await what_waits_appears_at_its_time(apache.nameserver)


async def what_waits_appears_at_its_time(nameserver):
    """By delay level, by a time from now and at a moment; none early, and the last shows that the recalled
    one's time is over."""
    inbox = Inbox()
    async with (
        Producer(nameserver) as producer,
        PushConsumer("late", nameserver, consume_from="first") as consumer,
    ):
        await producer.send("PyLate", b"now")
        await consumer.subscribe("PyLate").start(inbox)
        due = {b"now": 0}
        for body, delay, delay_ms in (
            (b"level", {"delay_level": 1}, 1_000),
            (b"from now", {"delay_s": 2.5}, 2_000),
            (b"at", {"deliver_at": clock() + 3_000}, 2_000),
        ):
            due[body] = clock() + delay_ms  # a timer is cut to whole seconds
            await producer.send("PyLate", body, **delay)
        recalled = await producer.send(
            "PyLate", b"recalled", deliver_at=datetime.now(UTC) + timedelta(seconds=4)
        )
        await producer.send("PyLate", b"last", deliver_at=clock() + 6_000)
        due[b"last"] = clock() + 5_000
        assert await producer.recall("PyLate", recalled.recall_handle) == recalled.message_id
        messages = await inbox.next(5)
    assert {message.body for message in messages} == set(due)
    assert [message.body for message in messages if message.store_timestamp < due[message.body]] == []
    assert messages[-1].body == b"last" and len(inbox.messages) == 5


async def test_the_guides_program_with_timers_prints_what_it_says(apache):
    (program,) = test_python_page.NEEDS_TIMERS
    assert await test_python_page.run(program, apache.nameserver) == test_python_page.said(program)


async def test_the_python_client_ends_transactions_and_replies_at_apaches_broker(apache):
    async with (
        TransactionProducer(apache.nameserver, "pytx", lambda message: None) as producer,
        PushConsumer("pytxg", apache.nameserver, consume_from="first") as consumer,
    ):
        await producer.send("PyTx", b"first")
        async with producer.transaction("PyTx", b"shown"):
            pass
        half = await producer.begin("PyTx", b"forgotten")
        assert await half.rollback()
        answers = Inbox()

        async def answer(message):
            await answers(message)
            if message.tag == "ask":
                await producer.reply(message, b"re: " + message.body)

        await consumer.subscribe("PyTx").start(answer)
        assert (await producer.request("PyTx", b"well?", tag="ask", timeout=20)).body == b"re: well?"
        assert {message.body for message in await answers.next(3)} == {b"first", b"shown", b"well?"}


async def test_many_at_once_and_by_key_at_apaches_broker(apache):
    async with Producer(apache.nameserver) as producer, Admin(apache.nameserver) as admin:
        await admin.create_topic("PyMany", read_queues=4, write_queues=4)
        receipts = await producer.send_many(
            "PyMany", [b"%d" % number for number in range(5_000)], ordering_key="customer-2"
        )
        assert {receipt.queue_id for receipt in receipts} == {1} and len(
            {receipt.offset_message_id for receipt in receipts}
        ) == 5_000
        assert (await admin.view_message(receipts[-1].offset_message_id)).body == b"4999"


async def test_a_loop_gives_back_and_gives_up_at_apaches_broker(apache):
    async with (
        Producer(apache.nameserver) as producer,
        PushConsumer("pyloop", apache.nameserver, consume_from="first") as consumer,
    ):
        await producer.send_batch("PyLoop", [b"0", b"1", b"2"], queue_id=0)
        seen = []
        async for message in consumer.subscribe("PyLoop"):
            seen.append((message.body, message.attempt))
            if message.body == b"0":
                await consumer.give_up(message)
            elif message.attempt == 1:
                await consumer.retry(message, level=1)
            if len(seen) == 5:
                await consumer.ack(message)
                break
    assert sorted(seen) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1), (b"2", 2)]
    async with Admin(apache.nameserver) as admin:
        (dead,) = (await admin.topic_stats("%DLQ%pyloop")).values()
        assert dead.max_offset == 1
        assert (
            sum(item.consumer_offset for item in (await admin.consume_stats("pyloop", "PyLoop")).values())
            == 3
        )


async def test_each_who_broadcasts_gets_everything_of_apaches_broker(apache):
    inboxes = Inbox(), Inbox()
    async with Producer(apache.nameserver) as producer, AsyncExitStack() as stack:
        await producer.send_batch("PyB", [b"0", b"1"])
        for inbox in inboxes:
            consumer = PushConsumer(
                "pyb", apache.nameserver, model="broadcasting", consume_from="first"
            ).subscribe("PyB")
            await stack.enter_async_context(consumer)
            await consumer.start(inbox)
        await producer.send_batch("PyB", [b"2", b"3"])
        for inbox in inboxes:
            assert sorted(message.body for message in await inbox.next(4)) == [b"0", b"1", b"2", b"3"]


async def test_a_retry_policy_is_told_and_does_not_act_at_apaches_broker(apache):
    await a_retry_policy_is_told_and_does_not_act(apache.nameserver)


async def test_an_administrator_manages_apaches_broker(apache):
    async with Admin(apache.nameserver) as admin:
        await admin.create_topic("PyA", read_queues=3, write_queues=3)
        await admin.create_group("pya", retryMaxTimes=2)
        (address,) = (await admin.cluster_info()).brokers["broker-a"].addresses.values()
        assert (await admin.topic_configs(address))["PyA"].read_queue_nums == 3
        assert (await admin.group_configs(address))["pya"]["retryMaxTimes"] == 2
        assert "brokerActive" in await admin.broker_runtime_info(address)
        await admin.delete_group("pya")
        await admin.delete_topic("PyA")
        assert "PyA" not in await admin.topic_configs(address)


async def test_apaches_broker_registers_with_our_name_server_and_leaves_it(tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    nameserver = NameServer(clock)
    port = NameServerPort(nameserver, clock)
    await port.start("127.0.0.1", 0)
    ours = f"127.0.0.1:{port.listener.port}"
    broker = ApacheBroker(tmp_path)
    broker.settings["namesrvAddr"] = f"127.0.0.1:{broker.nameserver_port};{ours}"
    try:
        await asyncio.to_thread(broker.start)
        await until(lambda: nameserver.routes.route("TBW102") is not None)
        async with Producer(ours) as producer:
            receipt = await producer.send("ByOurs", b"hello")
        assert receipt.broker_name == "broker-a"
        await until(lambda: nameserver.routes.route("ByOurs") is not None)
        await asyncio.to_thread(broker.kill9)
        await until(lambda: nameserver.routes.route("ByOurs") is None)
    finally:
        await asyncio.to_thread(broker.end)
        await port.stop()


async def _is_routed(admin: Admin, topic: str) -> bool:
    try:
        return bool((await admin.route(topic)).brokers)
    except NoRouteError:
        return False


async def test_our_broker_registers_with_apaches_name_server_and_leaves_it(apache):
    cluster = Cluster(namesrv_addr=apache.nameserver, broker_name="ours")
    await cluster.start()
    try:
        async with Admin(apache.nameserver) as admin:
            async with asyncio.timeout(20):
                while "ours" not in (await admin.cluster_info()).brokers:
                    await asyncio.sleep(0.05)
            await admin.create_topic("OnOurs", broker_name="ours")
            # A broker reports to the name server after it has answered. A send that comes before makes the topic
            # on Apache's broker.
            async with asyncio.timeout(20):
                while not await _is_routed(admin, "OnOurs"):
                    await asyncio.sleep(0.05)
            async with Producer(apache.nameserver) as producer:
                assert (await producer.send("OnOurs", b"hello")).broker_name == "ours"
    finally:
        await cluster.stop()
    async with Admin(apache.nameserver) as admin:
        assert "ours" not in (await admin.cluster_info()).brokers
