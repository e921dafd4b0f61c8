import asyncio
from datetime import UTC, datetime

import pytest

from broker_store.client import (
    Admin,
    AnswerError,
    GiveUp,
    Producer,
    PushConsumer,
    RetryLater,
    assignment,
    send_back,
)
from broker_store.client import push_consumer as module
from broker_store.errors import MisuseError
from broker_store.messages import PutStatus
from broker_store.protocol import fastjson, offset_bodies
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue
from broker_store.server.parts import BrokerParts
from tests.client.conftest import Inbox
from tests.support.waits import until


@pytest.fixture
async def producer(cluster):
    async with Producer(cluster.nameservers) as producer:
        yield producer


@pytest.fixture
async def consume(cluster):
    """Starts consumers and closes them in the end."""
    started = []

    async def consume(handler, topic="T", tags="*", group="g", sql=None, **options):
        consumer = PushConsumer(group, cluster.nameservers, **options).subscribe(topic, tags, sql=sql)
        started.append(consumer)
        return await consumer.start(handler)

    yield consume
    for consumer in started:
        await consumer.close()


def queue(number, topic="T"):
    return MessageQueue(topic, "broker-a", number)


async def send(producer, count, first=0, **options):
    return [
        await producer.send("T", str(number).encode(), **options) for number in range(first, first + count)
    ]


async def test_every_message_is_handed_out_once(producer, consume):
    await send(producer, 20)
    inbox = Inbox()
    await consume(inbox)
    await send(producer, 20, 20)
    messages = await inbox.next(40)
    assert sorted(int(message.body) for message in messages) == list(range(40))


async def test_only_wanted_tags_are_handed_out(producer, consume):
    await send(producer, 3, tag="AaAa")
    await send(producer, 3, 3, tag="BBBB")
    await send(producer, 3, 6, tag="C")
    inbox = Inbox()
    await consume(inbox, tags="AaAa || C")
    messages = await inbox.next(6)
    assert sorted(int(message.body) for message in messages) == [0, 1, 2, 6, 7, 8]


async def test_only_messages_that_an_expression_passes_are_handed_out(producer, consume):
    inbox = Inbox()
    await send(producer, 1, properties={"a": "9"})
    await consume(inbox, sql="a > 5 AND TAGS IS NULL")
    assert [message.body for message in await inbox.next(1)] == [b"0"]
    for number in range(20):
        await send(producer, 1, number, properties={"a": str(number)})
    assert sorted(int(message.body) for message in await inbox.next(14)) == list(range(6, 20))


async def test_an_expression_that_does_not_compile_stops_the_start(producer, consume):
    await send(producer, 1)
    with pytest.raises(AnswerError, match="Value ''x'' cannot be compared"):
        await consume(Inbox(), sql="a > 'x'")


async def test_a_plain_function_is_called_in_a_thread(producer, consume):
    await send(producer, 1)
    handled, loop, done = [], asyncio.get_running_loop(), asyncio.Event()

    def handle(message):
        handled.append(message.body)
        loop.call_soon_threadsafe(done.set)

    await consume(handle)
    async with asyncio.timeout(20):
        await done.wait()
    assert handled == [b"0"]


async def test_two_members_share_the_queues_and_one_takes_over_when_the_other_leaves(producer, consume):
    await send(producer, 1)
    inboxes = Inbox(), Inbox()
    first = await consume(inboxes[0])
    await until(lambda: {q for q in first.assignment if q.topic == "T"} == set(map(queue, range(4))))
    second = await consume(inboxes[1])

    def shares():
        return [sorted(q for q in consumer.assignment if q.topic == "T") for consumer in (first, second)]

    await until(lambda: sorted(map(len, shares())) == [2, 2])
    assert sorted(shares()[0] + shares()[1]) == list(map(queue, range(4)))
    await second.close()
    await until(lambda: len(shares()[0]) == 4)
    await send(producer, 8, 1)
    # A message may come twice when its queue changes hands.
    await until(lambda: len({message.body for inbox in inboxes for message in inbox.messages}) == 9)


async def test_a_new_member_goes_on_where_the_last_one_committed(cluster, producer, consume):
    await send(producer, 4, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next(4)
    await consumer.close()
    assert cluster.parts.offsets.query("g", "T", 0) == 4
    await send(producer, 2, 4, queue_id=0)
    again = Inbox()
    await consume(again)
    assert [message.body for message in await again.next(2)] == [b"4", b"5"]


async def test_a_message_that_failed_comes_again_by_way_of_the_retry_topic(cluster, producer, consume):
    await send(producer, 1)
    inbox = Inbox(failures=1)
    await consume(inbox)
    (first,) = await inbox.next()
    await until(lambda: cluster.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", 2))
    cluster.advance(10_000)
    (second,) = await inbox.next()
    assert (second.body, second.topic, second.queue.topic) == (first.body, "T", "%RETRY%g")
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.message_id == first.message_id


async def test_after_its_last_retry_a_message_goes_to_the_dead_letters(cluster, producer, consume):
    await send(producer, 1)
    inbox = Inbox(failures=2)
    await consume(inbox, max_retries=1)
    await inbox.next()
    await until(lambda: cluster.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", 2))
    cluster.advance(10_000)
    await inbox.next()
    await until(lambda: cluster.store.reads.max_offset("%DLQ%g", 0))


async def test_without_a_number_of_its_own_the_groups_settings_say_how_often_a_message_comes_again(
    cluster, producer, consume
):
    await send(producer, 1)
    async with Admin(cluster.nameservers) as admin:
        await admin.create_group("g", retryMaxTimes=1)
    inbox = Inbox(failures=2)
    await consume(inbox)
    await inbox.next()
    await until(lambda: cluster.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", 2))
    cluster.advance(10_000)
    await inbox.next()
    await until(lambda: cluster.store.reads.max_offset("%DLQ%g", 0))


async def test_a_handler_says_when_a_message_is_to_come_again_and_when_never(cluster, producer, consume):
    handled = []

    async def handle(message):
        handled.append((message.body, message.attempt))
        if message.body == b"0":
            raise GiveUp("cannot be read")
        if message.attempt == 1:
            raise RetryLater(level=7)

    await send(producer, 2)
    await consume(handle)
    await until(
        lambda: (
            cluster.store.reads.max_offset("%DLQ%g", 0)
            and cluster.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", 6)
        )
    )
    cluster.advance(3 * 60_000)
    await until(lambda: len(handled) == 3)
    assert sorted(handled) == [(b"0", 1), (b"1", 1), (b"1", 2)]


@pytest.fixture
def nobody_takes_back(monkeypatch):
    """Every broker answers a message that is given back as Apache's does when it no longer has it."""

    async def refuse(self, message, level):
        raise AnswerError(RequestCode.CONSUMER_SEND_MSG_BACK, 1, "look message by offset failed", "broker")

    monkeypatch.setattr(send_back.SendBack, "_ask", refuse)


async def test_what_the_broker_does_not_take_back_is_sent_to_the_retry_topic(
    cluster, producer, consume, nobody_takes_back
):
    (sent,) = await send(producer, 1, tag="A", keys=["k"], properties={"colour": "red"})
    inbox = Inbox(failures=2)
    await consume(inbox)
    first, second, third = [
        *await inbox.next(),
        *await _next_after(cluster, inbox, 2, 10_000),
        *await _next_after(cluster, inbox, 3, 30_000),
    ]
    assert (third.body, third.topic, third.tag, third.keys, third.properties["colour"]) == (
        b"0",
        "T",
        "A",
        ("k",),
        "red",
    )
    assert [message.attempt for message in (first, second, third)] == [1, 2, 3]
    assert {message.message_id for message in (first, second, third)} == {sent.message_id}


async def _next_after(cluster, inbox, queue_id, milliseconds):
    await until(lambda: cluster.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", queue_id))
    cluster.advance(milliseconds)
    return await inbox.next()


async def test_what_the_broker_does_not_take_back_goes_to_the_dead_letters_all_the_same(
    cluster, producer, consume, nobody_takes_back
):
    async def handle(message):
        raise GiveUp

    (sent,) = await send(producer, 1)
    await consume(handle)
    await until(lambda: cluster.store.reads.max_offset("%DLQ%g", 0))
    (dead,) = cluster.store.messages("%DLQ%g", 0)
    assert (dead.body, dead.unique_key, dead.properties["RETRY_TOPIC"]) == (b"0", sent.message_id, "T")


async def test_a_message_that_cannot_be_given_back_holds_the_groups_place(
    cluster, producer, consume, monkeypatch
):
    monkeypatch.setattr(module, "FAILURE_PAUSES_S", (0.005,))
    await send(producer, 3, queue_id=0)
    inbox = Inbox(failures=1)
    cluster.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    consumer = await consume(inbox, concurrency=1)
    await inbox.next()
    assert consumer._assignment.queues[queue(0)].place == 0
    cluster.store.refuse = None
    await inbox.next(2)
    await until(lambda: consumer._assignment.queues[queue(0)].place == 3)


async def test_orderly_messages_are_handled_one_by_one_and_a_failed_one_before_the_next(
    producer, consume, monkeypatch
):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 0.005)
    await send(producer, 5, queue_id=1)
    inbox = Inbox(failures=2)
    await consume(inbox, orderly=True)
    messages = await inbox.next(7)
    assert [message.body for message in messages] == [b"0", b"0", b"0", b"1", b"2", b"3", b"4"]
    assert messages[0].attempt == 3  # counted on the same message


async def test_an_orderly_queue_is_read_only_with_its_lock(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(assignment, "REBALANCE_SOON_S", 0.01)
    await send(producer, 1)
    other = {
        "clientId": "somebody else",
        "consumerGroup": "g",
        "mqSet": [queue(number).to_json() for number in range(4)],
    }
    async with Admin(cluster.nameservers) as admin:
        await admin.create_group("g")
        await admin.ask(cluster.address, RequestCode.LOCK_BATCH_MQ, None, fastjson.dumps(other))
        inbox = Inbox()
        consumer = await consume(inbox, orderly=True)
        assert not [q for q in consumer.assignment if q.topic == "T"]
        await admin.ask(cluster.address, RequestCode.UNLOCK_BATCH_MQ, None, fastjson.dumps(other))
        await inbox.next()
        await consumer.close()
        # Its locks were given back, so the next one need not wait for them.
        again = await consume(Inbox(), orderly=True)
        assert queue(0) in again.assignment


async def test_an_orderly_handler_says_how_long_to_pause_and_when_to_give_up(
    cluster, producer, consume, monkeypatch
):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 1_000)
    handled = []

    async def handle(message):
        handled.append((message.body, message.attempt))
        if message.attempt < 3:
            raise RetryLater(after_s=0.001)
        if message.body == b"0":
            raise GiveUp

    await send(producer, 2, queue_id=0)
    await consume(handle, orderly=True)
    await until(lambda: len(handled) == 6)
    assert handled == [(body, attempt) for body in (b"0", b"1") for attempt in (1, 2, 3)]
    assert [message.body for message in cluster.store.messages("%DLQ%g", 0)] == [b"0"]


async def test_an_orderly_queue_whose_lock_is_anothers_is_not_read_on(cluster, producer, consume):
    await send(producer, 1, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox, orderly=True)
    await inbox.next()
    assert cluster.parts.locks.unlock("g", consumer._session.client_id, [("T", 0)]) is None
    assert cluster.parts.locks.lock("g", "somebody else", [("T", 0)], cluster.clock()) == [("T", 0)]
    await consumer._assignment.rebalance()
    assert (
        consumer._assignment.queues[queue(0)].locked_until_s
        == 0
        < consumer._assignment.queues[queue(1)].locked_until_s
    )
    await send(producer, 1, 1, queue_id=0)
    await send(producer, 1, 2, queue_id=1)
    assert [message.body for message in await inbox.next()] == [b"2"]


async def test_an_orderly_message_is_given_up_after_its_retries(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 0.005)
    await send(producer, 2, queue_id=0)
    inbox = Inbox(failures=2)
    await consume(inbox, orderly=True, max_retries=1)
    assert [message.body for message in await inbox.next(3)] == [b"0", b"0", b"1"]
    await until(lambda: cluster.store.reads.max_offset("%DLQ%g", 0) == 1)


class Notebook:
    def __init__(self):
        self.places = {}

    def load(self):
        return self.places

    def save(self, places):
        self.places = places


async def test_broadcasting_gives_everything_to_everybody_and_keeps_places_itself(cluster, producer, consume):
    await send(producer, 4)
    notebook, inboxes = Notebook(), (Inbox(failures=1), Inbox())
    first = await consume(inboxes[0], model="broadcasting", consume_from="first", places=notebook)
    await consume(inboxes[1], model="broadcasting", consume_from="first")
    for inbox in inboxes:
        assert sorted(message.body for message in await inbox.next(4)) == [b"0", b"1", b"2", b"3"]
    await first.close()
    assert sum(notebook.places.values()) == 4
    assert cluster.parts.offsets.query("g", "T", 0) is None
    await send(producer, 1, 4)
    again = Inbox()
    await consume(again, model="broadcasting", consume_from="first", places=notebook)
    assert [message.body for message in await again.next()] == [b"4"]


async def test_a_group_begins_where_it_is_told_to(cluster, producer, consume, monkeypatch):
    # A broker that no longer holds the first message leaves the beginning to the consumer.
    monkeypatch.setattr(BrokerParts, "near_log_end", lambda self, *place: False)
    await send(producer, 3, queue_id=0)
    inboxes = Inbox(), Inbox(), Inbox(), Inbox()
    soon_ms = cluster.clock() + 60_000
    for number, where in enumerate(["last", "first", soon_ms, datetime.fromtimestamp(soon_ms / 1000, UTC)]):
        await consume(inboxes[number], group=f"g{number}", consume_from=where)
    await send(producer, 1, 3, queue_id=0)
    handed_out = [
        [message.body for message in await inbox.next(4 if inbox is inboxes[1] else 1)] for inbox in inboxes
    ]
    assert [len(bodies) for bodies in handed_out] == [1, 4, 1, 1]
    assert handed_out[0] == handed_out[2] == handed_out[3] == [b"3"]


async def test_a_place_set_by_an_administrator_is_gone_on_from(cluster, producer, consume):
    await send(producer, 3, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next(3)
    async with Admin(cluster.nameservers) as admin:
        await admin.reset_offset("g", "T", 0)
        await send(producer, 1, 3, queue_id=0)
        assert sorted(message.body for message in await inbox.next(4)) == [b"0", b"1", b"2", b"3"]
    await until(lambda: consumer._assignment.queues[queue(0)].place == 4)


async def test_a_reset_that_is_sent_to_the_consumer_is_obeyed(cluster, producer, consume):
    await send(producer, 3, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next(3)
    fields = {"group": "g", "topic": "T", "timestamp": "0", "isForce": "true"}
    body = offset_bodies.encode_offset_table({queue(0): 1})
    consumer._session._answer_request(
        Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body, oneway=True), None
    )
    assert [message.body for message in await inbox.next(2)] == [b"1", b"2"]


async def test_an_administrator_can_look_at_a_consumer_and_have_it_handle_a_message(
    cluster, producer, consume
):
    (receipt,) = await send(producer, 1, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next()
    await until(lambda: consumer._assignment.queues[queue(0)].place == 1)
    client = {"consumerGroup": "g", "clientId": consumer._session.client_id}
    async with Admin(cluster.nameservers) as admin:
        info = await admin.ask(cluster.address, RequestCode.GET_CONSUMER_RUNNING_INFO, client)
        table = fastjson.loads(info.body)["mqTable"]
        assert table[queue(0).to_key()]["commitOffset"] == 1
        direct = client | {"msgId": receipt.offset_message_id, "topic": "T"}
        handled = await admin.ask(cluster.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)
        assert fastjson.loads(handled.body)["consumeResult"] == "CR_SUCCESS"
        (again,) = await inbox.next()
        assert again.message_id == receipt.message_id
        places = await admin.ask(
            cluster.address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"}
        )
        assert (
            fastjson.loads(places.body)["consumerTable"][consumer._session.client_id][queue(0).to_key()] == 1
        )


async def test_consuming_goes_on_after_a_lost_connection(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(module, "FAILURE_PAUSES_S", (0.005,))
    await send(producer, 2)
    inbox = Inbox()
    await consume(inbox)
    await inbox.next(2)
    cluster.cut_connections()
    await send(producer, 2, 2)
    assert sorted(message.body for message in await inbox.next(2)) == [b"2", b"3"]


async def test_closing_waits_for_the_handler_that_is_running(cluster, producer, consume):
    await send(producer, 2, queue_id=0)
    begun, go_on = asyncio.Event(), asyncio.Event()
    handled = []

    async def slow(message):
        begun.set()
        await go_on.wait()
        handled.append(message.body)

    consumer = await consume(slow, concurrency=1)
    await begun.wait()
    closing = asyncio.ensure_future(consumer.close())
    await until(lambda: not consumer.assignment)
    assert not closing.done()
    go_on.set()
    await closing
    assert handled == [b"0"]
    assert cluster.parts.offsets.query("g", "T", 0) == 1
    await consumer.close()


class Stuck:
    """A handler that never ends for one body."""

    def __init__(self, body):
        self.body, self.handled, self.go_on = body, [], asyncio.Event()

    async def __call__(self, message):
        if message.body == self.body:
            await self.go_on.wait()
        self.handled.append(message.body)


async def test_closing_does_not_wait_for_ever_and_keeps_what_was_done(cluster, producer, consume):
    await send(producer, 3, queue_id=0)
    stuck = Stuck(b"2")
    consumer = await consume(stuck)
    await until(lambda: len(stuck.handled) == 2)
    await consumer.close(timeout=0.01)
    assert cluster.parts.offsets.query("g", "T", 0) == 2


async def test_a_queue_that_goes_to_another_is_committed_at_once_and_not_set_back_later(
    cluster, producer, consume
):
    await send(producer, 3, queue_id=3)
    stuck = Stuck(b"2")
    consumer = await consume(stuck)
    await until(lambda: len(stuck.handled) == 2)
    consumer._assignment.drop(consumer._assignment.queues[queue(3)])
    # Though it still handles a message, the next reader begins after what it has done, and may be further by
    # the end.
    await until(lambda: cluster.parts.offsets.query("g", "T", 3) == 2)
    cluster.parts.offsets.commit("g", "T", 3, 9)
    stuck.go_on.set()
    await until(lambda: len(stuck.handled) == 3 and not consumer._assignment.releases)
    assert cluster.parts.offsets.query("g", "T", 3) == 9


async def test_a_topic_may_be_subscribed_while_running(producer, consume):
    await send(producer, 1)
    await producer.send("U", b"u")
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next()
    consumer.subscribe("U")
    assert [message.body for message in await inbox.next()] == [b"u"]


async def test_misuse_is_said(cluster, consume):
    for options in (
        {"model": "both"},
        {"concurrency": 0},
        {"consume_from": "middle"},
        {"consume_from": datetime(2030, 1, 1)},
        {"max_retries": -1},
    ):
        with pytest.raises(MisuseError):
            PushConsumer("g", cluster.nameservers, **options)
    with pytest.raises(MisuseError):
        await PushConsumer("g", cluster.nameservers).start(Inbox())
    consumer = await consume(Inbox())
    with pytest.raises(MisuseError):
        await consumer.start(Inbox())
