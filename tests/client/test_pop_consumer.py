import asyncio
from dataclasses import replace

import pytest

from broker_store.client import Admin, PopConsumer, Producer
from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.errors import FieldError, MisuseError, NameError_
from broker_store.protocol import pop
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from tests.support.memory_store import MemoryStore


@pytest.fixture
async def producer(cluster):
    async with Producer(cluster.nameservers) as producer:
        for number in range(5):
            await producer.send("T", str(number).encode(), tag="AB"[number % 2], queue_id=0)
        yield producer


def bodies(messages) -> list[bytes]:
    return [message.body for message in messages]


def pass_time(cluster, ms: int) -> None:
    for _ in range(20):
        cluster.advance(ms // 20)


async def test_what_is_not_acknowledged_comes_again(cluster, producer):
    async with PopConsumer("g", cluster.nameservers, invisible_s=5) as consumer:
        messages = await consumer.pop("T", max_count=3)
        assert bodies(messages) == [b"0", b"1", b"2"]
        assert {message.attempt for message in messages} == {1}
        assert messages[0].visible_ms == messages[0].receipt.pop_ms + 5_000
        await consumer.acknowledge(messages[0], messages[2])
        assert bodies(await consumer.pop("T")) == [b"3", b"4"]
        assert await consumer.pop("T") == []
        pass_time(cluster, 8_000)
        again = await consumer.pop("T", max_count=1)
        while b"1" not in bodies(again):
            again = await consumer.pop("T", max_count=1)
        assert (again[0].topic, again[0].attempt, again[0].receipt.kind) == ("T", 2, pop.RETRY_V1)
        await consumer.acknowledge(*again)


async def test_a_changed_invisible_time_counts_from_now(cluster, producer):
    async with PopConsumer("g", cluster.nameservers) as consumer:
        (message,) = await consumer.pop("T", max_count=1)
        before = message.receipt
        await consumer.change_invisible(message, 2)
        assert message.receipt != before and message.receipt.invisible_ms == 2_000
        pass_time(cluster, 4_000)
        popped = [one for _ in range(6) for one in await consumer.pop("T", max_count=1)]
        assert bodies(one for one in popped if one.attempt == 2) == [b"0"]


async def test_in_order_a_queue_gives_nothing_before_all_is_acknowledged(cluster, producer):
    async with PopConsumer("g", cluster.nameservers, in_order=True, invisible_s=5) as consumer:
        messages = await consumer.pop("T", max_count=2, attempt_id="one")
        assert bodies(messages) == [b"0", b"1"]
        assert await consumer.pop("T") == []
        assert bodies(await consumer.pop("T", max_count=2, attempt_id="one")) == [b"0", b"1"]
        messages = await consumer.pop("T", max_count=2, attempt_id="one")
        await consumer.acknowledge(messages[0])
        await consumer.change_invisible(messages[1], 1)
        assert await consumer.pop("T") == []
        cluster.advance(1_000)
        again = await consumer.pop("T", max_count=2)
        assert [(message.body, message.attempt) for message in again] == [(b"1", 2), (b"2", 1)]
        await consumer.acknowledge(*again)
        assert bodies(await consumer.pop("T")) == [b"3", b"4"]


async def test_a_message_is_given_up_to_the_dead_letters(cluster, producer):
    async with PopConsumer("g", cluster.nameservers, in_order=True) as consumer:
        (message,) = await consumer.pop("T", max_count=1)
        await consumer.give_up(message)
        assert [stored.body for stored in cluster.store.messages("%DLQ%g", 0)] == [b"0"]
        assert bodies(await consumer.pop("T", max_count=1)) == [b"1"]


async def test_tags_and_sql(cluster, producer):
    async with PopConsumer("g", cluster.nameservers) as consumer:
        assert bodies(await consumer.pop("T", tags="A")) == [b"0", b"2", b"4"]
    async with PopConsumer("g2", cluster.nameservers) as consumer:
        assert bodies(await consumer.pop("T", sql="TAGS = 'B'")) == [b"1", b"3"]


async def test_a_new_group_begins_at_0_while_the_first_message_is_near_the_end_of_the_log(cluster, producer):
    async with PopConsumer("g", cluster.nameservers, consume_from="last") as consumer:
        assert bodies(await consumer.pop("T", max_count=1)) == [b"0"]


async def test_a_pop_that_waits_is_answered_when_a_message_comes(cluster, producer):
    async with PopConsumer("g", cluster.nameservers) as consumer:
        await consumer.acknowledge(*await consumer.pop("T"))
        waiting = asyncio.ensure_future(consumer.pop("T", wait_s=15))
        await producer.send("T", b"new", queue_id=1)
        assert bodies(await waiting) == [b"new"]


async def test_the_brokers_of_a_topic_are_asked_in_turn(cluster, producer):
    settings = cluster.parts.settings
    parts = build_parts(
        replace(settings, broker_name="broker-b"), cluster.parts.store_settings, MemoryStore(cluster.clock),
        cluster.clock, nameserver=cluster.nameserver,
    )  # fmt: skip
    second = Broker(parts)
    second.load()
    await second.start("127.0.0.1", fast_port=False)
    try:
        async with Admin(cluster.nameservers) as admin:
            await admin.create_topic("T", read_queues=4, write_queues=4, broker_name="broker-b")
        async with (
            Producer(cluster.nameservers) as both,
            PopConsumer("g", cluster.nameservers) as consumer,
        ):
            for number in range(5, 8):
                await both.send("T", str(number).encode(), queue_id=0, broker_name="broker-b")
            popped = [await consumer.pop("T", max_count=5) for _ in range(2)]
            assert sorted(map(bodies, popped)) == [[b"0", b"1", b"2", b"3", b"4"], [b"5", b"6", b"7"]]
            assert {message.broker_name for messages in popped for message in messages} == {
                "broker-a", "broker-b",
            }  # fmt: skip
            await consumer.acknowledge(*(message for messages in popped for message in messages))
            waiting = asyncio.ensure_future(consumer.pop("T", wait_s=4))
            await both.send("T", b"new", queue_id=0, broker_name="broker-b")
            assert bodies(await waiting) == [b"new"]
    finally:
        await second.stop()


async def test_what_is_wrong_is_refused(cluster, producer):
    with pytest.raises(MisuseError):
        PopConsumer("g", cluster.nameservers, consume_from="middle")
    async with PopConsumer("g", cluster.nameservers) as consumer:
        with pytest.raises(NoRouteError):
            await consumer.pop("Nope")
        with pytest.raises(NameError_):
            await consumer.pop("../T")
        for count in (0, 33):
            with pytest.raises(MisuseError):
                await consumer.pop("T", max_count=count)
        (message,) = await consumer.pop("T", max_count=1)
        with pytest.raises(MisuseError):
            await consumer.change_invisible(message, -1)
        message.receipt = message.receipt._replace(revive_queue=99)
        with pytest.raises(AnswerError):
            await consumer.acknowledge(message)


@pytest.mark.parametrize("text", ["0 1", "0 1 2 3", "9 1 2", "0 x 2", "0 1 -2", ";"])
def test_a_text_of_offsets_that_is_invalid_is_refused(text):
    with pytest.raises(FieldError):
        pop.read_start_offsets(text)


def test_texts_of_offsets_and_counts_are_read():
    assert pop.read_start_offsets("0 1 5;1 0 7") == {(0, 1): 5, (1, 0): 7}
    assert pop.read_order_counts("0 qo1%5 2;0 1 0") == {(1, 5): 2}
    assert pop.read_start_offsets("") == pop.read_order_counts("") == {}
    for text in ("0 qo1 2", "0 qo1%x 2", "0 qo1%5 y"):
        with pytest.raises(FieldError):
            pop.read_order_counts(text)
