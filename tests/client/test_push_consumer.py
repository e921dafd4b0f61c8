import asyncio

import pytest

from broker_store.client import Admin, Producer, PushConsumer
from broker_store.client import push_consumer as module
from broker_store.errors import MisuseError
from broker_store.messages import PutStatus
from broker_store.protocol import bodies, fastjson
from broker_store.protocol.bodies import MessageQueue
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from tests.client.conftest import Inbox, until


@pytest.fixture
async def producer(cluster):
    async with Producer(cluster.nameservers) as producer:
        yield producer


@pytest.fixture
async def consume(cluster):
    """Starts consumers and closes them in the end."""
    started = []

    async def consume(handler, topic="T", tags="*", group="g", **options):
        consumer = PushConsumer(group, cluster.nameservers, **options).subscribe(topic, tags)
        started.append(consumer)
        return await consumer.start(handler)

    yield consume
    for consumer in started:
        await consumer.close()


def queue(number, topic="T"):
    return MessageQueue(topic, "broker-a", number)


async def send(producer, count, first=0, **options):
    return [await producer.send("T", str(number).encode(), **options) for number in range(first, first + count)]


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
    await until(lambda: cluster.store.max_offset("SCHEDULE_TOPIC_XXXX", 2))
    cluster.advance(10_000)
    (second,) = await inbox.next()
    assert (second.body, second.topic, second.queue.topic) == (first.body, "T", "%RETRY%g")
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.message_id == first.message_id


async def test_after_its_last_attempt_a_message_goes_to_the_dead_letters(cluster, producer, consume):
    await send(producer, 1)
    inbox = Inbox(failures=2)
    await consume(inbox, max_attempts=1)
    await inbox.next()
    await until(lambda: cluster.store.max_offset("SCHEDULE_TOPIC_XXXX", 2))
    cluster.advance(10_000)
    await inbox.next()
    await until(lambda: cluster.store.max_offset("%DLQ%g", 0))


async def test_a_message_that_cannot_be_given_back_holds_the_groups_place(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(module, "FAILURE_PAUSES_S", (0.005,))
    await send(producer, 3, queue_id=0)
    inbox = Inbox(failures=1)
    cluster.store.refuse = PutStatus.SERVICE_NOT_AVAILABLE
    consumer = await consume(inbox, concurrency=1)
    await inbox.next()
    assert consumer._assigned[queue(0)].place == 0
    cluster.store.refuse = None
    await inbox.next(2)
    await until(lambda: consumer._assigned[queue(0)].place == 3)


async def test_orderly_messages_are_handled_one_by_one_and_a_failed_one_before_the_next(producer, consume, monkeypatch):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 0.005)
    await send(producer, 5, queue_id=1)
    inbox = Inbox(failures=2)
    await consume(inbox, orderly=True)
    messages = await inbox.next(7)
    assert [message.body for message in messages] == [b"0", b"0", b"0", b"1", b"2", b"3", b"4"]
    assert messages[0].attempt == 3  # counted on the same message


async def test_an_orderly_queue_is_read_only_with_its_lock(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(module, "REBALANCE_SOON_S", 0.01)
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


async def test_an_orderly_message_is_given_up_after_its_attempts(cluster, producer, consume, monkeypatch):
    monkeypatch.setattr(module, "ORDERLY_PAUSE_S", 0.005)
    await send(producer, 2, queue_id=0)
    inbox = Inbox(failures=2)
    await consume(inbox, orderly=True, max_attempts=2)
    assert [message.body for message in await inbox.next(3)] == [b"0", b"0", b"1"]
    await until(lambda: cluster.store.max_offset("%DLQ%g", 0) == 1)


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
    monkeypatch.setattr(cluster.parts, "near_log_end", lambda *place: False)
    await send(producer, 3, queue_id=0)
    inboxes = Inbox(), Inbox(), Inbox()
    for inbox, where in zip(inboxes, ["last", "first", cluster.clock() + 60_000], strict=True):
        await consume(inbox, group=f"g{where}", consume_from=where)
    await send(producer, 1, 3, queue_id=0)
    handed_out = [[message.body for message in await inbox.next(4 if inbox is inboxes[1] else 1)] for inbox in inboxes]
    assert [len(bodies) for bodies in handed_out] == [1, 4, 1]
    assert handed_out[0] == handed_out[2] == [b"3"]


async def test_a_place_set_by_an_administrator_is_gone_on_from(cluster, producer, consume):
    await send(producer, 3, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next(3)
    async with Admin(cluster.nameservers) as admin:
        await admin.reset_offset("g", "T", 0)
        await send(producer, 1, 3, queue_id=0)
        assert sorted(message.body for message in await inbox.next(4)) == [b"0", b"1", b"2", b"3"]
    await until(lambda: consumer._assigned[queue(0)].place == 4)


async def test_a_reset_that_is_sent_to_the_consumer_is_obeyed(cluster, producer, consume):
    await send(producer, 3, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next(3)
    fields = {"group": "g", "topic": "T", "timestamp": "0", "isForce": "true"}
    body = bodies.encode_offset_table({queue(0): 1})
    consumer._session._answer_request(
        Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body, oneway=True), None
    )
    assert [message.body for message in await inbox.next(2)] == [b"1", b"2"]


async def test_an_administrator_can_look_at_a_consumer_and_have_it_handle_a_message(cluster, producer, consume):
    (receipt,) = await send(producer, 1, queue_id=0)
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next()
    await until(lambda: consumer._assigned[queue(0)].place == 1)
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
        assert fastjson.loads(places.body)["consumerTable"][consumer._session.client_id][queue(0).to_key()] == 1


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


async def test_a_topic_may_be_subscribed_while_running(producer, consume):
    await send(producer, 1)
    await producer.send("U", b"u")
    inbox = Inbox()
    consumer = await consume(inbox)
    await inbox.next()
    consumer.subscribe("U")
    assert [message.body for message in await inbox.next()] == [b"u"]


async def test_misuse_is_said(cluster, consume):
    for options in ({"model": "both"}, {"concurrency": 0}, {"consume_from": "middle"}):
        with pytest.raises(MisuseError):
            PushConsumer("g", cluster.nameservers, **options)
    with pytest.raises(MisuseError):
        await PushConsumer("g", cluster.nameservers).start(Inbox())
    consumer = await consume(Inbox())
    with pytest.raises(MisuseError):
        await consumer.start(Inbox())
