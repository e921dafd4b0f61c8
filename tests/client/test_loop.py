"""`async for message in consumer`."""

import asyncio

import pytest

from broker_store.client import Producer, PushConsumer
from broker_store.client import push_consumer as module
from broker_store.errors import MisuseError
from tests.client.conftest import Inbox
from tests.support.waits import until


@pytest.fixture
async def producer(cluster):
    async with Producer(cluster.nameservers) as producer:
        yield producer


@pytest.fixture
async def consumer_of(cluster):
    """Makes consumers of the topic T and closes them in the end."""
    made = []

    def consumer_of(group="g", **options):
        made.append(PushConsumer(group, cluster.nameservers, **options).subscribe("T"))
        return made[-1]

    async with asyncio.timeout(30):
        yield consumer_of
        for consumer in made:
            await consumer.close(timeout=0.1)


async def send(producer, count, **options):
    return [await producer.send("T", str(number).encode(), **options) for number in range(count)]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_loop_gets_every_message_and_consumes_it_by_asking_for_the_next(
    cluster, producer, consumer_of, orderly
):
    await send(producer, 10, queue_id=1)
    bodies = []
    async with consumer_of(orderly=orderly) as consumer:
        async for message in consumer:
            bodies.append(int(message.body))
            if len(bodies) == 10:
                break
    assert bodies == list(range(10))
    # The loop was not done with the last one.
    assert cluster.parts.offsets.query("g", "T", 1) == 9


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_a_loop_was_working_on_when_it_raised_is_handed_out_again(producer, consumer_of, orderly):
    await send(producer, 2, queue_id=0)
    with pytest.raises(ZeroDivisionError):
        async with consumer_of(orderly=orderly) as consumer:
            async for message in consumer:
                if message.body == b"1":
                    1 / 0  # noqa: B018
    async for message in consumer_of(orderly=orderly):
        assert (message.body, message.attempt) == (b"1", 1)
        break


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_loop_can_say_that_it_is_done_before_it_ends(cluster, producer, consumer_of, orderly):
    await send(producer, 1, queue_id=0)
    async with consumer_of(orderly=orderly) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            break
        for again in (consumer.ack, consumer.retry, consumer.give_up):
            with pytest.raises(MisuseError, match="no loop's hands"):
                await again(message)
    assert cluster.parts.offsets.query("g", "T", 0) == 1


async def test_a_loop_can_have_a_message_come_again_or_go_to_the_dead_letters(cluster, producer, consumer_of):
    await send(producer, 3, queue_id=0)
    seen = []
    async with consumer_of() as consumer:
        async for message in consumer:
            seen.append((message.body, message.attempt))
            if message.body == b"0":
                await consumer.give_up(message)
            elif message.attempt == 1:
                await consumer.retry(message, level=1)
            if len(seen) == 3:
                cluster.advance(1_000)
            elif len(seen) == 5:
                break
    assert seen[:3] == [(b"0", 1), (b"1", 1), (b"2", 1)] and sorted(seen[3:]) == [(b"1", 2), (b"2", 2)]
    assert [message.body for message in cluster.store.messages("%DLQ%g", 0)] == [b"0"]
    assert cluster.parts.offsets.query("g", "T", 0) == 3


async def test_an_orderly_loop_gets_a_message_again_before_the_next_one(
    cluster, producer, consumer_of, monkeypatch
):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 1_000)
    await send(producer, 3, queue_id=0)
    seen = []
    async with consumer_of(orderly=True) as consumer:
        async for message in consumer:
            seen.append((message.body, message.attempt))
            if message.attempt == 1 and message.body == b"1":
                await consumer.retry(message, after_s=0)
            elif message.body == b"1":
                await consumer.give_up(message)
            elif message.body == b"2":
                break
    assert seen == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]
    assert [message.body for message in cluster.store.messages("%DLQ%g", 0)] == [b"1"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_several_loops_share_the_messages_and_end_when_the_consumer_closes(
    producer, consumer_of, orderly
):
    await send(producer, 12)
    consumer = await consumer_of(orderly=orderly).start()
    seen = [[], [], []]

    async def loop(mine):
        async for message in consumer:
            mine.append(message.body)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(loop(mine)) for mine in seen]
    await until(lambda: sum(map(len, seen)) == 12)
    await consumer.close()
    await asyncio.gather(*tasks)
    assert sorted(int(body) for mine in seen for body in mine) == list(range(12))
    assert all(seen)
    async for _ in consumer:
        raise AssertionError("a closed consumer has no messages")


async def test_a_loop_that_waits_may_be_given_up_and_taken_up_again(producer, consumer_of):
    async with consumer_of(consume_from="first") as consumer:
        messages = aiter(consumer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.05)
        await send(producer, 1)
        consumer._assignment.wanted.set()
        assert (await anext(messages)).body == b"0"


async def test_a_queue_that_goes_to_another_member_is_not_handed_to_the_loop(producer, consumer_of):
    await send(producer, 8, queue_id=0)
    async with consumer_of(concurrency=2) as consumer:
        messages = aiter(consumer)
        assert (await anext(messages)).body == b"0"
        (assigned,) = [
            assigned
            for queue, assigned in consumer._assignment.queues.items()
            if (queue.topic, queue.queue_id) == ("T", 0)
        ]
        await until(consumer._work.full)
        consumer._assignment.drop(assigned)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.05)


async def test_a_consumer_is_a_loop_or_has_a_handler(cluster, producer, consumer_of):
    await send(producer, 1)
    consumer = consumer_of()
    await consumer.start(Inbox())
    with pytest.raises(MisuseError, match="started with a handler"):
        await anext(aiter(consumer))
    loop = await consumer_of("h").start()
    with pytest.raises(MisuseError, match="started once"):
        await loop.start(Inbox())
    assert (await anext(aiter(loop))).body == b"0"
