"""server.client_handlers: heartbeats, membership, locks."""

import json

import pytest

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.protocol import client_bodies
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, LockRequest, Subscription
from broker_store.protocol.message_queue import MessageQueue
from tests.support.broker_harness import FakeChannel, Harness
from tests.support.wire_samples import sample


def heartbeat(
    client="c1", group="CG", topics=("TopicX",), producers=("PG",), expression="*", **options
) -> bytes:
    data = ConsumerData(
        group, subscriptions=tuple(Subscription(topic, expression, version=1) for topic in topics)
    )
    return client_bodies.encode_heartbeat(Heartbeat(client, producers, (data,), **options))


async def test_a_heartbeat_is_answered_as_apaches_broker_does_and_tells_the_group():
    harness = Harness()
    answer = await harness.ask(34, heartbeat())
    assert (answer.code, answer.fields) == (0, sample("hb").values["extFields"])
    (notice,) = harness.channel.answers
    assert (notice.code, notice.fields, notice.is_oneway, notice.is_response) == (
        40,
        {"consumerGroup": "CG"},
        True,
        False,
    )
    assert harness.parts.topics.get("%RETRY%CG").queues == 1 and harness.parts.groups.get("CG") is not None


async def test_everyone_of_a_group_hears_who_comes_and_goes():
    harness, other = Harness(), FakeChannel(50_001)
    await harness.ask(34, heartbeat())
    await harness.ask(34, heartbeat("c2"), channel=other)
    assert [command.code for command in harness.channel.answers] == [40, 40]
    assert client_bodies.decode_consumer_list((await harness.ask(38, consumerGroup="CG")).body) == [
        "c1",
        "c2",
    ]
    assert (
        await harness.ask(35, channel=other, clientID="c2", producerGroup="PG", consumerGroup="CG")
    ).code == 0
    assert [command.code for command in harness.channel.answers] == [40, 40, 40]
    nobody = await harness.ask(38, consumerGroup="NOPE")
    assert (nobody.code, nobody.remark) == (1, sample("consumers for unknown").values["remark"])


async def test_groups_and_settings_may_keep_notices_back():
    harness = Harness()
    harness.parts.groups.put(SubscriptionGroup("CG", notify_consumer_ids_changed_enable=False))
    await harness.ask(34, heartbeat())
    assert harness.channel.answers == []
    quiet = Harness(notify_consumer_ids_changed_enable=False)
    await quiet.ask(34, heartbeat())
    assert quiet.channel.answers == []


@pytest.mark.parametrize(
    ("body", "code"),
    [(heartbeat(group="../g"), 29), (heartbeat(topics=("a/b",)), 29), (heartbeat(producers=("",)), 29), (heartbeat(client=""), 29),
     (heartbeat(client="x" * 256), 29), (heartbeat(expression=" || "), 23), (b"{", 29), (b"", 29), (b"[]", 29), (b'{"clientID":5}', 29),
     (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"?"}]}', 29)],
)  # fmt: skip
async def test_heartbeats_that_are_wrong_change_nothing(body, code):
    harness = Harness()
    assert (await harness.ask(34, body)).code == code
    assert harness.parts.clients.all() == [] and harness.parts.groups.get("../g") is None


async def test_without_auto_create_a_group_must_be_there():
    harness = Harness(auto_create_subscription_group=False)
    assert (await harness.ask(34, heartbeat())).code == 26
    harness.parts.groups.put(SubscriptionGroup("CG"))
    assert (await harness.ask(34, heartbeat())).code == 0


async def test_the_caps_on_groups_hold_on_the_wire():
    harness = Harness(max_auto_created_groups=8)
    answer = await harness.ask(34, heartbeat())
    assert answer.code == 29 and "no room" in answer.remark


async def test_queues_are_locked_for_one_client():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.groups.find_or_create("CG")
    queue = MessageQueue("TopicX", "broker-a", 1)
    mine, others = (
        client_bodies.encode_lock_request(LockRequest(client, "CG", (queue,))) for client in ("c1", "c2")
    )
    assert (await harness.ask(41, mine)).body == sample("lock").body
    assert client_bodies.decode_locked((await harness.ask(41, others)).body) == set()
    assert (await harness.ask(42, mine)).code == 0
    assert client_bodies.decode_locked((await harness.ask(41, others)).body) == {queue}
    unknown = client_bodies.encode_lock_request(LockRequest("c1", "NOPE", (queue,)))
    assert (await harness.ask(41, unknown)).code == 26


async def test_a_queue_that_is_not_there_costs_a_client_no_lock_on_the_others():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.groups.find_or_create("CG")
    queue = MessageQueue("TopicX", "broker-a", 1)
    absent = (
        MessageQueue("TopicX", "broker-a", 9),
        MessageQueue("TopicX", "broker-a", -1),
        MessageQueue("Gone", "broker-a", 0),
    )
    many = client_bodies.encode_lock_request(LockRequest("c1", "CG", (*absent, queue)))
    assert client_bodies.decode_locked((await harness.ask(41, many)).body) == {queue}
    assert (await harness.ask(42, many)).code == 0 and harness.parts.locks.owner(
        "CG", ("TopicX", 1), harness.now_ms
    ) is None
    assert (
        await harness.ask(41, client_bodies.encode_lock_request(LockRequest("", "CG", (queue,))))
    ).code == 29


async def test_a_lock_that_its_client_does_not_renew_goes_to_who_asks_next():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    harness.parts.groups.find_or_create("CG")
    queue = MessageQueue("TopicX", "broker-a", 1)
    mine, others = (
        client_bodies.encode_lock_request(LockRequest(client, "CG", (queue,))) for client in ("c1", "c2")
    )
    for later_ms, asks, gets in (
        (0, mine, {queue}),
        (40_000, mine, {queue}),
        (60_000, others, set()),
        (1, others, {queue}),
        (0, mine, set()),
    ):
        harness.now_ms += later_ms
        assert client_bodies.decode_locked((await harness.ask(41, asks)).body) == gets


async def test_a_client_asks_whether_its_subscription_can_be_served():
    harness = Harness()

    def check(expression, kind):
        return json.dumps(
            {
                "clientId": "c",
                "group": "g",
                "subscriptionData": {"topic": "t", "subString": expression, "expressionType": kind},
            }
        ).encode()

    assert (await harness.ask(46, check("TagA", "TAG"))).code == 0
    assert (await harness.ask(46, check("||", "TAG"))).code == 23
    assert (await harness.ask(46, check("a > 5", "SQL92"))).code == 0
    assert (await harness.ask(46, check("a > ", "SQL92"))).code == 23


async def test_the_broker_shares_queues_out_as_java_clients_do():
    harness = Harness()
    harness.parts.topics.put(TopicConfig("TopicX", 5, 5))
    for number in range(3):
        await harness.ask(34, heartbeat(f"c{number}"), channel=FakeChannel(50_000 + number))

    async def assigned(client, strategy="AVG", group="CG", **more):
        body = json.dumps(
            {"topic": "TopicX", "consumerGroup": group, "clientId": client, "strategyName": strategy, **more}
        ).encode()
        answer = json.loads((await harness.ask(400, body)).body)
        return [item["messageQueue"]["queueId"] for item in answer.get("messageQueueAssignments", [])]

    assert [await assigned(f"c{number}") for number in range(3)] == [[0, 1], [2, 3], [4]]
    assert [await assigned(f"c{number}", "AVG_BY_CIRCLE") for number in range(3)] == [[0, 3], [1, 4], [2]]
    assert await assigned("c9") == [] and await assigned("c0", group="NOPE") == []
    assert await assigned("c9", messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
