import asyncio

import pytest

from broker_store.client import Producer, PullConsumer, PullStatus
from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.errors import MisuseError, NameError_


@pytest.fixture
async def consumer(cluster):
    async with Producer(cluster.nameservers) as producer, PullConsumer("g", cluster.nameservers) as consumer:
        for number in range(5):
            await producer.send("T", str(number).encode(), tag="A" if number % 2 else "B", queue_id=0)
        yield consumer


async def test_queues_are_listed_in_order(consumer):
    assert [queue.queue_id for queue in await consumer.queues("T")] == [0, 1, 2, 3]
    with pytest.raises(NoRouteError):
        await consumer.queues("Nope")
    with pytest.raises(NameError_):
        await consumer.queues("../T")


async def test_messages_are_read_from_an_offset(consumer):
    queue = (await consumer.queues("T"))[0]
    result = await consumer.pull(queue, 1, max_count=2)
    assert result.status is PullStatus.FOUND
    assert [message.body for message in result.messages] == [b"1", b"2"]
    assert (result.next_offset, result.min_offset, result.max_offset) == (3, 0, 5)


async def test_only_wanted_tags_are_read(consumer):
    queue = (await consumer.queues("T"))[0]
    result = await consumer.pull(queue, 0, tags="A")
    assert [message.body for message in result.messages] == [b"1", b"3"]
    assert result.next_offset == 5
    assert (await consumer.pull(queue, 0, tags="C")).status is PullStatus.NO_MATCHED_MESSAGE
    with pytest.raises(MisuseError):
        await consumer.pull(queue, 0, tags="||")


async def test_nothing_new_and_an_offset_beyond_the_end_are_told_apart(consumer):
    queue = (await consumer.queues("T"))[0]
    assert (await consumer.pull(queue, 5)).status is PullStatus.NO_NEW_MESSAGE
    moved = await consumer.pull(queue, 99)
    assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_MOVED, 5)


async def test_a_pull_that_waits_is_answered_when_a_message_comes(cluster, consumer):
    queue = (await consumer.queues("T"))[0]
    waiting = asyncio.ensure_future(consumer.pull(queue, 5, wait_ms=15_000))
    async with Producer(cluster.nameservers) as producer:
        await producer.send("T", b"new", queue_id=0)
    assert [message.body for message in (await waiting).messages] == [b"new"]


async def test_the_groups_place_is_kept_at_the_broker(cluster, consumer):
    queue = (await consumer.queues("T"))[0]
    assert await consumer.committed(queue) in (0, None)
    await consumer.pull(queue, 0)
    await consumer.commit(queue, 3)
    assert await consumer.committed(queue) == 3
    async with PullConsumer("g", cluster.nameservers) as other:
        assert await other.committed(queue) == 3


async def test_the_bounds_of_a_queue_and_its_offset_at_a_time(consumer):
    queue = (await consumer.queues("T"))[0]
    assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 5)
    (message,) = (await consumer.pull(queue, 4)).messages
    assert await consumer.offset_by_time(queue, message.store_timestamp + 60_000) == 5
    assert await consumer.offset_by_time(queue, 0) == 0


async def test_only_messages_that_an_expression_passes_are_read(cluster, consumer):
    queue = (await consumer.queues("T"))[0]
    result = await consumer.pull(queue, 0, sql="TAGS = 'A'")
    assert [message.body for message in result.messages] == [b"1", b"3"]
    assert (await consumer.pull(queue, 0, sql="a > 5")).status is PullStatus.NO_MATCHED_MESSAGE
    with pytest.raises(AnswerError, match="parse the consumer's subscription failed"):
        await consumer.pull(queue, 0, sql="a > 'x'")
    for wrong in ({"sql": " "}, {"sql": "a = 1", "tags": "A"}):
        with pytest.raises(MisuseError):
            await consumer.pull(queue, 0, **wrong)
