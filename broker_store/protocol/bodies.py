"""The JSON bodies that clients, brokers and name servers exchange (docs/spec/remoting.md sections 3 to 5,
docs/spec/namesrv.md sections 2 to 5).

Each body is a value with an `encode_` and a `decode_`, or a pair of functions where a plain dict or list says
it all. Decoding raises FieldError with the member's name; members that are not known are ignored, optional
ones have Java's defaults. Nothing here judges whether a topic or group name is allowed: that is for who acts
on it.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_store.errors import FieldError
from broker_store.formats.config_json import DataVersion
from broker_store.protocol import fastjson
from broker_store.protocol.fastjson import ObjectKey
from broker_store.protocol.steps import finish

_Kind = TypeVar("_Kind")

# Members of JSON that is trusted no more than a header.


class Members(Protocol):
    """An object of a body, or one that stands as a key (ObjectKey): its members by name, None for a missing
    one."""

    def get(self, name: str, /) -> object: ...


def _loads_object(data: bytes) -> dict[Any, Any]:
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise FieldError("body", bytes(data[:50]), "an object")
    return value


def _text(members: Members, name: str, default: str | None = None) -> str:
    return _typed(members, name, str, "text", default)


def _int(members: Members, name: str, default: int | None = None) -> int:
    value = _typed(members, name, int, "an integer", default)
    if isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise FieldError(name, value, "a 64-bit integer")
    return value


def _bool(members: Members, name: str, default: bool = False) -> bool:
    return _typed(members, name, bool, "true or false", default)


def _list(members: Members, name: str) -> list[Any]:
    return _typed(members, name, list, "an array", [])


def _object(members: Members, name: str) -> dict[Any, Any]:
    return _typed(members, name, dict, "an object", {})


def _objects(members: Members, name: str) -> list[dict[Any, Any]]:
    values = _list(members, name)
    for value in values:
        if not isinstance(value, dict):
            raise FieldError(name, values, "an array of objects")
    return values


def _texts(members: Members, name: str) -> list[str]:
    values = _list(members, name)
    for value in values:
        if not isinstance(value, str):
            raise FieldError(name, values, "an array of texts")
    return values


def _typed(members: Members, name: str, kind: type[_Kind], want: str, default: _Kind | None) -> _Kind:
    value = members.get(name)
    if value is None:
        value = default
    if not isinstance(value, kind):
        raise FieldError(name, value, want)
    return value


# Queues


class MessageQueue(NamedTuple):
    """One queue of a topic on a broker. Its order is the one by which Java's clients share queues out."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, object]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    def to_key(self) -> ObjectKey:
        return ObjectKey(self.to_json())

    @classmethod
    def from_json(cls, members: Members) -> MessageQueue:
        if not isinstance(members, (dict, ObjectKey)):
            raise FieldError("messageQueue", members, "an object")
        return cls(_text(members, "topic"), _text(members, "brokerName"), _int(members, "queueId"))


# Heartbeats (34)


@dataclass(slots=True, frozen=True)
class Subscription:
    """What a consumer group wants of a topic. `version` grows with each change; `codes` are the Java hashes
    of tags."""

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
        codes = _list(members, "codeSet")
        try:  # the Go client writes the numbers as texts, which fastjson reads as numbers
            codes = [
                int(code) if isinstance(code, str) and len(code) <= 11 else operator.index(code)
                for code in codes
            ]
        except (TypeError, ValueError):
            raise FieldError("codeSet", codes, "integers") from None
        return cls(
            _text(members, "topic"),
            _text(members, "subString", "*"),
            _text(members, "expressionType", "TAG"),
            _int(members, "subVersion", 0),
            frozenset(_texts(members, "tagsSet")),
            frozenset(codes),
            _bool(members, "classFilterMode"),
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
        consume_type = _text(members, "consumeType", "CONSUME_PASSIVELY")
        message_model = _text(members, "messageModel", "CLUSTERING")
        if consume_type not in CONSUME_TYPES:
            raise FieldError("consumeType", consume_type, " or ".join(CONSUME_TYPES))
        if message_model not in MESSAGE_MODELS:
            raise FieldError("messageModel", message_model, " or ".join(MESSAGE_MODELS))
        return cls(
            _text(members, "groupName"),
            consume_type,
            message_model,
            _text(members, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
            tuple(Subscription.from_json(item) for item in _objects(members, "subscriptionDataSet")),
            _bool(members, "unitMode"),
        )


@dataclass(slots=True, frozen=True)
class Heartbeat:
    """Everything a client says about itself every 30 seconds.

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
    """The heartbeat in a body. What it has of groups, subscriptions and tags is counted before any of them is
    made."""
    members = _loads_object(body)
    producers, consumers = _objects(members, "producerDataSet"), _objects(members, "consumerDataSet")
    if len(producers) + len(consumers) > MAX_GROUPS:
        raise FieldError("consumerDataSet", len(producers) + len(consumers), f"at most {MAX_GROUPS} groups")
    count = sum(len(_list(consumer, "subscriptionDataSet")) for consumer in consumers)
    if count > MAX_SUBSCRIPTIONS:
        raise FieldError("subscriptionDataSet", count, f"at most {MAX_SUBSCRIPTIONS} of all groups")
    subscriptions = [item for consumer in consumers for item in _objects(consumer, "subscriptionDataSet")]
    count = sum(len(_list(item, "tagsSet")) + len(_list(item, "codeSet")) for item in subscriptions)
    if count > MAX_TAGS_AND_CODES:
        raise FieldError(
            "tagsSet", count, f"at most {MAX_TAGS_AND_CODES} tags and codes of all subscriptions"
        )
    return Heartbeat(
        _text(members, "clientID"),
        tuple(_text(item, "groupName") for item in producers),
        tuple(ConsumerData.from_json(item) for item in consumers),
        _int(members, "heartbeatFingerprint", 0),
        _bool(members, "withoutSub"),
    )


# Membership (38), locks (41, 42), checks (46)


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return fastjson.dumps({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> list[str]:
    return _texts(_loads_object(body), "consumerIdList")


@dataclass(slots=True, frozen=True)
class LockRequest:
    """A client asks for queues of its group for itself, or gives them back."""

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
    members = _loads_object(body)
    return LockRequest(
        _text(members, "clientId"),
        _text(members, "consumerGroup"),
        tuple(MessageQueue.from_json(item) for item in _objects(members, "mqSet")),
        _bool(members, "onlyThisBroker"),
    )


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    return fastjson.dumps({"lockOKMQSet": [queue.to_json() for queue in queues]})


def decode_locked(body: bytes) -> set[MessageQueue]:
    return {MessageQueue.from_json(item) for item in _objects(_loads_object(body), "lockOKMQSet")}


@dataclass(slots=True, frozen=True)
class ClientCheck:
    """CHECK_CLIENT_CONFIG: can the broker serve this subscription?"""

    client_id: str
    group: str
    namespace: str
    subscription: Subscription


def decode_client_check(body: bytes) -> ClientCheck:
    members = _loads_object(body)
    subscription = Subscription.from_json(_object(members, "subscriptionData"))
    client_id, group, namespace = (_text(members, name, "") for name in ("clientId", "group", "namespace"))
    return ClientCheck(client_id, group, namespace, subscription)


# Topics


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """A topic as a broker holds it. `perm`: 4 read, 2 write, 1 inherit."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, members: Members) -> TopicConfig:
        return cls(
            _text(members, "topicName"),
            _int(members, "readQueueNums", 16),
            _int(members, "writeQueueNums", 16),
            _int(members, "perm", 6),
            _text(members, "topicFilterType", "SINGLE_TAG"),
            _int(members, "topicSysFlag", 0),
            _bool(members, "order"),
            _object(members, "attributes"),
        )


def decode_topic_table(body: bytes) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """The answer to GET_ALL_TOPIC_CONFIG."""
    return finish(_topic_wrapper_in_steps(_loads_object(body)))


def encode_topic_table(version: DataVersion, topics: Iterable[TopicConfig]) -> bytes:
    return fastjson.dumps(_topic_wrapper_json(version, topics) | {"topicQueueMappingDetailMap": {}})


def _data_version(members: Members) -> DataVersion:
    return DataVersion(*(_int(members, name, 0) for name in ("stateVersion", "counter", "timestamp")))


def decode_data_version(body: bytes) -> DataVersion:
    """The body of QUERY_DATA_VERSION, asked and answered."""
    return _data_version(_loads_object(body))


def encode_data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(version.to_json())


def _topic_wrapper_in_steps(
    members: Members,
) -> Generator[None, None, tuple[DataVersion, dict[str, TopicConfig]]]:
    """Return the data version and the topics by name, with a step after each TOPICS_AT_ONCE of them."""
    table = _object(members, "topicConfigTable")
    topics = {}
    for number, name in enumerate(list(table), 1):
        item = table.pop(name)  # so that each is freed here: all at once would keep other threads waiting
        if not isinstance(item, dict) or not isinstance(name, str):
            raise FieldError("topicConfigTable", name, "topics by name")
        topics[name] = TopicConfig.from_json({"topicName": name} | item)
        if number % TOPICS_AT_ONCE == 0:
            yield
    return _data_version(_object(members, "dataVersion")), topics


def _topic_wrapper_json(version: DataVersion, topics: Iterable[TopicConfig]) -> dict[str, object]:
    return {
        "dataVersion": version.to_json(),
        "mappingDataVersion": DataVersion().to_json(),
        "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
    }


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    members: dict[str, object] = {"topicList": list(topics)}
    return fastjson.dumps(members if broker_address is None else members | {"brokerAddr": broker_address})


NAMES_AT_ONCE = 1_024


def topic_list_in_steps(topics: Iterable[str]) -> Generator[None, None, bytes]:
    """Return what `encode_topic_list` returns, NAMES_AT_ONCE names in each step."""
    names, pieces = list(topics), []
    for begin in range(0, len(names), NAMES_AT_ONCE):
        pieces.append(fastjson.dumps(names[begin : begin + NAMES_AT_ONCE])[1:-1])
        yield
    return b'{"topicList":[' + b",".join(pieces) + b"]}"


def decode_topic_list(body: bytes) -> list[str]:
    return _texts(_loads_object(body), "topicList")


# Registration of a broker (103)

# A broker with 5,000 topics registers with half a megabyte. What is larger than this is read in pieces, in a
# thread.
MAX_BODY_AT_ONCE = 64 << 10
TOPICS_AT_ONCE = 128
_TABLES = frozenset({"topicConfigSerializeWrapper", "topicConfigTable"})
MAX_INFLATED_BYTES = 32 << 20
_COMPRESSED_WITH_MAPPING_VERSION = 413
_WRAPPER_ALONE_VERSION = 37


@dataclass(slots=True, frozen=True)
class Registration:
    """What a broker serves."""

    data_version: DataVersion
    topics: dict[str, TopicConfig]
    filter_servers: tuple[str, ...] = ()


def encode_registration(registration: Registration, compressed: bool = False) -> bytes:
    if compressed:
        return zlib.compress(_registration_stream(registration))
    wrapper = _topic_wrapper_json(registration.data_version, registration.topics.values())
    wrapper |= {"topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {}}
    servers = list(registration.filter_servers)
    return fastjson.dumps({"filterServerList": servers, "topicConfigSerializeWrapper": wrapper})


def decode_registration(body: bytes, compressed: bool = False, version: int = 479) -> Registration:
    """`version` is the ordinal of the command: before 37 the body is the topic table alone. An empty body has
    none."""
    return finish(registration_in_steps(body, compressed, version))


def registration_in_steps(
    body: bytes, compressed: bool = False, version: int = 479
) -> Generator[Callable[[], object] | None, Any, Registration]:
    """Return what `decode_registration` returns, with a step after each TOPICS_AT_ONCE topics.

    A step that yields a function asks for what this returns: it is compiled code that takes long, for a
    thread. The topics themselves are made in the steps. A thread that makes them takes the interpreter's
    lock from the loop at each of the loop's calls to the system.
    """
    if compressed:
        return (yield from _registration_stream_in_steps((yield lambda: _inflate(body)), version))
    if not body:
        return Registration(DataVersion(), {})
    if len(body) <= MAX_BODY_AT_ONCE:
        members = _loads_object(body)
    else:
        members = yield lambda: _loads_tables(body)
    if version < _WRAPPER_ALONE_VERSION:
        return Registration(*(yield from _topic_wrapper_in_steps(members)))
    wrapper = _object(members, "topicConfigSerializeWrapper")
    data_version, topics = yield from _topic_wrapper_in_steps(wrapper)
    return Registration(data_version, topics, tuple(_texts(members, "filterServerList")))


def _loads_tables(body: bytes) -> dict[Any, Any]:
    members = fastjson.loads_in_pieces(body, _TABLES)
    if not isinstance(members, dict):
        raise FieldError("body", bytes(body[:50]), "an object")
    return members


def body_crc(body: bytes) -> int:
    """The `bodyCrc32` of a registration; 0 there means that it was not computed."""
    return zlib.crc32(body) & 0x7FFFFFFF


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise FieldError("body", bytes(body[:20]), f"a zlib stream ({error})") from None
    if not inflater.eof:
        raise FieldError("body", len(data), f"a whole zlib stream of at most {MAX_INFLATED_BYTES} bytes")
    return data


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _registration_stream(registration: Registration) -> bytes:
    """int length + DataVersion; int count, each int length + topic text; int length + servers; int mapping
    count."""
    topics = registration.topics.values()
    parts = [_sized(fastjson.dumps(registration.data_version.to_json())), struct.pack(">i", len(topics))]
    for topic in topics:
        words = (
            topic.name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
            topic.topic_filter_type,
        )
        text = " ".join(map(str, words)) + " "
        parts.append(_sized(text.encode() + fastjson.dumps(dict(topic.attributes))))
    parts.append(_sized(fastjson.dumps(list(registration.filter_servers))))
    parts.append(struct.pack(">i", 0))
    return b"".join(parts)


def _registration_stream_in_steps(data: bytes, version: int) -> Generator[None, None, Registration]:
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise FieldError("body", at, "four more bytes of a compressed registration")
        at += 4
        return int.from_bytes(data[at - 4 : at], "big", signed=True)

    def piece(most: int = MAX_BODY_AT_ONCE) -> bytes:
        """Return the next piece, of a length that one call reads in a short time."""
        nonlocal at
        length = number()
        if not 0 <= length <= min(len(data) - at, most):
            raise FieldError("body", length, f"a length up to {min(len(data) - at, most)}")
        at += length
        return data[at - length : at]

    data_version = _data_version(_loads_object(piece()))
    topics = {}
    # Each topic takes at least its own length, so the count is bounded by what is there.
    for count in range(1, number() + 1):
        topic = _topic_from_text(piece())
        topics[topic.name] = topic
        if count % TOPICS_AT_ONCE == 0:
            yield
    servers = fastjson.loads(piece())
    servers = (
        tuple(servers) if isinstance(servers, list) and all(isinstance(item, str) for item in servers) else ()
    )
    if version >= _COMPRESSED_WITH_MAPPING_VERSION and at < len(data):
        for _ in range(number()):
            piece(MAX_INFLATED_BYTES)  # static topics have no place here
    return Registration(data_version, topics, servers)


def _topic_from_text(text: bytes) -> TopicConfig:
    words = text.decode("utf-8", "replace").split(" ", 5)
    try:
        name, read, write, perm, filter_type = words[:5]
        numbers = int(read[:11]), int(write[:11]), int(perm[:11])
    except ValueError:
        raise FieldError("topicConfig", text, "`name read write perm type attributes`") from None
    attributes = _loads_object(words[5].encode()) if len(words) > 5 and words[5] else {}
    return TopicConfig(name, *numbers, filter_type, attributes=attributes)


# Routes (105) and the cluster (106, 901)


class QueueData(NamedTuple):
    """How many queues of a topic a broker has, and what they may be used for."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, members: Members) -> QueueData:
        return cls(
            _text(members, "brokerName"),
            _int(members, "readQueueNums"),
            _int(members, "writeQueueNums"),
            _int(members, "perm"),
            _int(members, "topicSysFlag", 0),
        )


@dataclass(slots=True, frozen=True)
class BrokerData:
    """Where the brokers of one name are: id (0 is the master) to `host:port`."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "brokerAddrs": dict(sorted(self.addresses.items())),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone_name,
        }

    @classmethod
    def from_json(cls, members: Members) -> BrokerData:
        return cls(
            _text(members, "cluster", ""),
            _text(members, "brokerName"),
            _addresses(_object(members, "brokerAddrs")),
            _bool(members, "enableActingMaster"),
            _text(members, "zoneName", "") or None,
        )


def _addresses(members: Mapping[Any, Any]) -> dict[int, str]:
    addresses = {}
    for broker_id, address in members.items():
        try:
            addresses[int(broker_id)] = address
        except (TypeError, ValueError):
            raise FieldError("brokerAddrs", broker_id, "a broker id") from None
        if not isinstance(address, str):
            raise FieldError("brokerAddrs", address, "host:port")
    return addresses


@dataclass(slots=True, frozen=True)
class TopicRoute:
    """Where a topic lives. `order_conf` is `broker:queues;...` for an ordered topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_conf: str | None = None


def encode_route(route: TopicRoute, strict: bool = True) -> bytes:
    """Strict JSON, which all clients take, or fastjson's form, which old ones ask for."""
    members: dict[str, object] = {
        "brokerDatas": [_without_none(broker.to_json()) for broker in route.brokers],
        "filterServerTable": {},
        "queueDatas": [queue.to_json() for queue in route.queues],
    }
    if route.order_conf is not None:
        members["orderTopicConf"] = route.order_conf
    return fastjson.dumps_strict(members) if strict else fastjson.dumps(members)


def decode_route(body: bytes) -> TopicRoute:
    members = _loads_object(body)
    return TopicRoute(
        tuple(QueueData.from_json(item) for item in _objects(members, "queueDatas")),
        tuple(BrokerData.from_json(item) for item in _objects(members, "brokerDatas")),
        _text(members, "orderTopicConf", "") or None,
    )


def _without_none(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


@dataclass(slots=True, frozen=True)
class ClusterInfo:
    """All brokers by name, and the broker names of each cluster."""

    brokers: dict[str, BrokerData]
    clusters: dict[str, list[str]]


def encode_cluster_info(info: ClusterInfo) -> bytes:
    brokers = {name: broker.to_json() for name, broker in info.brokers.items()}
    clusters = {name: list(brokers) for name, brokers in info.clusters.items()}
    return fastjson.dumps({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def decode_cluster_info(body: bytes) -> ClusterInfo:
    members = _loads_object(body)
    table = _object(members, "brokerAddrTable")
    clusters = _object(members, "clusterAddrTable")
    return ClusterInfo(
        {name: BrokerData.from_json({"brokerName": name} | _object(table, name)) for name in table},
        {name: _texts(clusters, name) for name in clusters},
    )


def encode_member_group(broker: BrokerData) -> bytes:
    members = broker.to_json()
    kept = {name: members[name] for name in ("brokerAddrs", "brokerName", "cluster")}
    return fastjson.dumps({"brokerMemberGroup": kept})


def encode_properties(values: Mapping[str, object]) -> bytes:
    """Settings in Java's properties format, one a line and sorted by key."""
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }
    return "".join(f"{key}={text}\n" for key, text in sorted(texts.items())).encode()


def encode_table(table: Mapping[str, str]) -> bytes:
    """Java's KVTable."""
    return fastjson.dumps({"table": dict(table)})


def decode_table(body: bytes) -> dict[str, str]:
    table = _object(_loads_object(body), "table")
    return {name: _text(table, name) for name in table}


# Offsets and statistics


class QueueOffsets(NamedTuple):
    """A queue's range and the store time of its last message (0 for none)."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class ConsumeOffsets(NamedTuple):
    """How far a group is in a queue. `last_timestamp` is the store time of the last consumed message."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0


def encode_topic_stats(offsets: Mapping[MessageQueue, QueueOffsets], put_tps: float = 0.0) -> bytes:
    table = {
        queue.to_key(): {"lastUpdateTimestamp": item[2], "maxOffset": item[1], "minOffset": item[0]}
        for queue, item in offsets.items()
    }
    return fastjson.dumps({"offsetTable": table, "topicPutTps": float(put_tps)})


def decode_topic_stats(body: bytes) -> dict[MessageQueue, QueueOffsets]:
    return {
        queue: QueueOffsets(
            _int(item, "minOffset"), _int(item, "maxOffset"), _int(item, "lastUpdateTimestamp", 0)
        )
        for queue, item in _queue_rows(body)
    }


def consume_stats_json(
    offsets: Mapping[MessageQueue, ConsumeOffsets], consume_tps: float = 0.0
) -> dict[str, object]:
    """As a value, because GET_BROKER_CONSUME_STATS holds many."""
    table = {
        queue.to_key(): {
            "brokerOffset": item[0],
            "consumerOffset": item[1],
            "lastTimestamp": item[2],
            "pullOffset": item[3],
        }
        for queue, item in offsets.items()
    }
    return {"consumeTps": float(consume_tps), "offsetTable": table}


def encode_consume_stats(offsets: Mapping[MessageQueue, ConsumeOffsets], consume_tps: float = 0.0) -> bytes:
    return fastjson.dumps(consume_stats_json(offsets, consume_tps))


def decode_consume_stats(body: bytes) -> dict[MessageQueue, ConsumeOffsets]:
    return {
        queue: ConsumeOffsets(
            _int(item, "brokerOffset"),
            _int(item, "consumerOffset"),
            _int(item, "lastTimestamp", 0),
            _int(item, "pullOffset", 0),
        )
        for queue, item in _queue_rows(body)
    }


def encode_offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    """ResetOffsetBody (220, 222)."""
    return fastjson.dumps({"offsetTable": {queue.to_key(): offset for queue, offset in offsets.items()}})


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    table = _object(_loads_object(body), "offsetTable")
    return {
        MessageQueue.from_json(_queue_key(key)): _int({"offset": value}, "offset")
        for key, value in table.items()
    }


def _queue_rows(body: bytes) -> Iterator[tuple[MessageQueue, dict[Any, Any]]]:
    """The rows of an `offsetTable` whose keys are queues."""
    table = _object(_loads_object(body), "offsetTable")
    for key in table:
        yield MessageQueue.from_json(_queue_key(key)), _object(table, key)


def _queue_key(key: Any) -> Any:
    """A key that is a queue; some writers put the object's JSON into a string."""
    if isinstance(key, str) and key.startswith("{"):
        return _loads_object(key.encode())
    return key
