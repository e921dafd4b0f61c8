"""JSON bodies of clients and groups: heartbeats (34), members (38), locks (41, 42) and checks of a
subscription (46) (docs/spec/remoting.md sections 3 to 5).

Decoding raises FieldError with the member's name. Missing optional members have Java's defaults.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

from broker_store.errors import FieldError
from broker_store.protocol import fastjson
from broker_store.protocol.members import (
    Members,
    loads_object,
    read_bool,
    read_int,
    read_list,
    read_object,
    read_objects,
    read_text,
    read_texts,
)
from broker_store.protocol.message_queue import MessageQueue


@dataclass(slots=True, frozen=True)
class Subscription:
    """The subscription of a consumer group to a topic. `version` grows with each change; `codes` are the Java
    hashes of tags."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    class_filter_mode: bool = False

    def to_json(self) -> dict[str, object]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, members: Members) -> Subscription:
        codes = read_list(members, "codeSet")
        try:  # the Go client writes the numbers as texts, which fastjson reads as numbers
            codes = [
                int(code) if isinstance(code, str) and len(code) <= 11 else operator.index(code)
                for code in codes
            ]
        except (TypeError, ValueError):
            raise FieldError("codeSet", codes, "integers") from None
        return cls(
            read_text(members, "topic"),
            read_text(members, "subString", "*"),
            read_text(members, "expressionType", "TAG"),
            read_int(members, "subVersion", 0),
            frozenset(read_texts(members, "tagsSet")),
            frozenset(codes),
            read_bool(members, "classFilterMode"),
        )


CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")


@dataclass(slots=True, frozen=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> dict[str, object]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription.to_json() for subscription in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_json(cls, members: Members) -> ConsumerData:
        consume_type = read_text(members, "consumeType", "CONSUME_PASSIVELY")
        message_model = read_text(members, "messageModel", "CLUSTERING")
        if consume_type not in CONSUME_TYPES:
            raise FieldError("consumeType", consume_type, " or ".join(CONSUME_TYPES))
        if message_model not in MESSAGE_MODELS:
            raise FieldError("messageModel", message_model, " or ".join(MESSAGE_MODELS))
        return cls(
            read_text(members, "groupName"),
            consume_type,
            message_model,
            read_text(members, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
            tuple(Subscription.from_json(item) for item in read_objects(members, "subscriptionDataSet")),
            read_bool(members, "unitMode"),
        )


@dataclass(slots=True, frozen=True)
class Heartbeat:
    """The groups of a client, sent every 30 seconds.

    `fingerprint` is 0 for version 1 of the heartbeat; with `without_sub` the subscriptions were left out on
    purpose.
    """

    client_id: str
    producers: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return fastjson.dumps(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [consumer.to_json() for consumer in heartbeat.consumers],
            "heartbeatFingerprint": heartbeat.fingerprint,
            "producerDataSet": [{"groupName": group} for group in heartbeat.producers],
            "withoutSub": heartbeat.without_sub,
        }
    )


# Of one heartbeat. No known client is in more groups; each may make a group and its retry topic. The tags of
# an expression are bounded where it is read.
MAX_GROUPS = 200
MAX_SUBSCRIPTIONS = 1_000
MAX_TAGS_AND_CODES = 20_000


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Return the heartbeat in a body. Its groups, subscriptions and tags are counted before objects are
    created."""
    members = loads_object(body)
    producers, consumers = read_objects(members, "producerDataSet"), read_objects(members, "consumerDataSet")
    if len(producers) + len(consumers) > MAX_GROUPS:
        raise FieldError("consumerDataSet", len(producers) + len(consumers), f"at most {MAX_GROUPS} groups")
    count = sum(len(read_list(consumer, "subscriptionDataSet")) for consumer in consumers)
    if count > MAX_SUBSCRIPTIONS:
        raise FieldError("subscriptionDataSet", count, f"at most {MAX_SUBSCRIPTIONS} of all groups")
    subscriptions = [item for consumer in consumers for item in read_objects(consumer, "subscriptionDataSet")]
    count = sum(len(read_list(item, "tagsSet")) + len(read_list(item, "codeSet")) for item in subscriptions)
    if count > MAX_TAGS_AND_CODES:
        raise FieldError(
            "tagsSet", count, f"at most {MAX_TAGS_AND_CODES} tags and codes of all subscriptions"
        )
    return Heartbeat(
        read_text(members, "clientID"),
        tuple(read_text(item, "groupName") for item in producers),
        tuple(ConsumerData.from_json(item) for item in consumers),
        read_int(members, "heartbeatFingerprint", 0),
        read_bool(members, "withoutSub"),
    )


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return fastjson.dumps({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> list[str]:
    return read_texts(loads_object(body), "consumerIdList")


@dataclass(slots=True, frozen=True)
class LockRequest:
    """A request of a client to lock or unlock queues for its group."""

    client_id: str
    consumer_group: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False


def encode_lock_request(request: LockRequest) -> bytes:
    return fastjson.dumps(
        {
            "clientId": request.client_id,
            "consumerGroup": request.consumer_group,
            "mqSet": [queue.to_json() for queue in request.queues],
            "onlyThisBroker": request.only_this_broker,
        }
    )


def decode_lock_request(body: bytes) -> LockRequest:
    members = loads_object(body)
    return LockRequest(
        read_text(members, "clientId"),
        read_text(members, "consumerGroup"),
        tuple(MessageQueue.from_json(item) for item in read_objects(members, "mqSet")),
        read_bool(members, "onlyThisBroker"),
    )


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    return fastjson.dumps({"lockOKMQSet": [queue.to_json() for queue in queues]})


def decode_locked(body: bytes) -> set[MessageQueue]:
    return {MessageQueue.from_json(item) for item in read_objects(loads_object(body), "lockOKMQSet")}


@dataclass(slots=True, frozen=True)
class ClientCheck:
    """CHECK_CLIENT_CONFIG: asks if the broker supports this subscription."""

    client_id: str
    group: str
    namespace: str
    subscription: Subscription


def encode_client_check(client_id: str, group: str, subscription: Subscription) -> bytes:
    value = {"clientId": client_id, "group": group, "subscriptionData": subscription.to_json()}
    return fastjson.dumps(value)


def decode_client_check(body: bytes) -> ClientCheck:
    members = loads_object(body)
    subscription = Subscription.from_json(read_object(members, "subscriptionData"))
    client_id, group, namespace = (
        read_text(members, name, "") for name in ("clientId", "group", "namespace")
    )
    return ClientCheck(client_id, group, namespace, subscription)
