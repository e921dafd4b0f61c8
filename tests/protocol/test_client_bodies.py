"""Bodies of clients: heartbeats, members and locks."""

import json

import pytest

from broker_store.errors import FieldError
from broker_store.protocol import (
    client_bodies,
)
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, LockRequest, Subscription
from broker_store.protocol.message_queue import MessageQueue
from tests.support.wire_samples import sample

QUEUE_0, QUEUE_1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_heartbeat_survives():
    subscription = Subscription("t", "TagA", version=5, tags=frozenset(["TagA"]), codes=frozenset([2598919]))
    heartbeat = Heartbeat("c@1", ("pg",), (ConsumerData("g", subscriptions=(subscription,)),), 77, True)
    assert client_bodies.decode_heartbeat(client_bodies.encode_heartbeat(heartbeat)) == heartbeat


def test_tag_codes_may_be_texts_as_the_go_client_writes_them():
    members = {"topic": "t", "subString": "TagB || TagD", "codeSet": ["2598920", "-2598922"]}
    assert Subscription.from_json(members).codes == {2598920, -2598922}


@pytest.mark.parametrize("groups, subscriptions, tags, want", [
    (201, 0, 0, "at most 200 groups"), (200, 6, 0, "at most 1000 of all groups"), (100, 10, 21, "at most 20000 tags and codes"),
])  # fmt: skip
def test_a_heartbeat_above_its_bounds_is_refused_before_any_of_it_is_made(
    monkeypatch, groups, subscriptions, tags, want
):
    made = []
    monkeypatch.setattr(Subscription, "from_json", classmethod(lambda cls, members: made.append(members)))
    subscription = {"topic": "T", "tagsSet": ["t"] * tags}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription] * subscriptions}
    with pytest.raises(FieldError, match=want):
        client_bodies.decode_heartbeat(
            json.dumps({"clientID": "c", "consumerDataSet": [consumer] * groups}).encode()
        )
    assert made == []


def test_a_heartbeat_needs_little():
    heartbeat = client_bodies.decode_heartbeat(b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}')
    assert heartbeat == Heartbeat("c", (), (ConsumerData("g"),))


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"clientID":7}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"OTHER"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","codeSet":["x"]}]}]}',
        b'{"clientID":"c","heartbeatFingerprint":true}',
    ],
)
def test_a_wrong_heartbeat_is_refused(body):
    with pytest.raises(FieldError):
        client_bodies.decode_heartbeat(body)


def test_membership_and_locks_are_those_of_the_real_broker():
    assert client_bodies.decode_consumer_list(sample("cidlist").body) == ["127.0.0.1@1"]
    assert client_bodies.encode_consumer_list(["127.0.0.1@1"]) == sample("cidlist").body
    assert client_bodies.decode_locked(sample("lock").body) == {MessageQueue("TopicX", "broker-a", 1)}
    assert client_bodies.encode_locked([MessageQueue("TopicX", "broker-a", 1)]) == sample("lock").body
    request = LockRequest("c", "g", (QUEUE_0, QUEUE_1), True)
    assert client_bodies.decode_lock_request(client_bodies.encode_lock_request(request)) == request
