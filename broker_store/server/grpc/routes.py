"""QueryRoute: the queues of a topic, and which messages it takes (docs/spec/grpc.md section 3).
QueryAssignment: those that a consumer receives from (docs/spec/grpc.md section 6)."""

from __future__ import annotations

from broker_store.broker.topics import TopicConfig
from broker_store.formats.topics import MESSAGE_TYPE, PERM_READ, PERM_WRITE
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    Resource,
)
from broker_store.protocol.grpc.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from broker_store.server.grpc.names import check_group_name, check_user_topic
from broker_store.server.grpc.statuses import OK, Refused
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES

# By the attribute of a topic. A topic without it takes normal messages, as in Apache's proxy.
_TYPES: dict[str, tuple[MessageType, ...]] = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "LITE": (MessageType.LITE,),
    "MIXED": (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}

# Of what each queue of an answer has from its request. Clients send one address, or those of several proxies.
MAX_ADDRESSES = 16
MAX_ENDPOINTS_BYTES = 4 << 10
MAX_TOPIC_BYTES = 1 << 10


class Routes:
    """Answers queries of routes and assignments, and finds topics by their names in calls."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def query(self, request: QueryRouteRequest) -> QueryRouteResponse:
        if not request.endpoints.addresses:
            raise Refused(Code.ILLEGAL_ACCESS_POINT, "endpoints of a route need an address", "access point")
        config = self.topic(request.topic)
        _check_size(request)
        read, write = self._counts(config)
        return QueryRouteResponse(
            status=OK,
            message_queues=self._queues(config, request, range(max(read, write)), accepted_types(config)),
        )

    def assign(self, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        """Return which queues a client of a group receives from: all of this broker as one, whose id is -1,
        or each of them for a group that consumes in order. Raises Refused."""
        group = request.group.name
        config = self.topic_for(request.topic, group)
        _check_size(request)
        if not config.perm & self._parts.settings.broker_permission & PERM_READ or not config.read_queues:
            raise Refused(Code.FORBIDDEN, "no readable queue", "permission")
        found = self._parts.groups.get(group)
        in_order = found is not None and found.consume_message_orderly
        numbers = range(self._counts(config)[0] if in_order else 1)
        queues = self._queues(config, request, numbers, ())  # types are for producers
        if not in_order:
            queues[0].id = ALL_QUEUES
        return QueryAssignmentResponse(
            status=OK, assignments=[Assignment(message_queue=queue) for queue in queues]
        )

    def topic(self, resource: Resource) -> TopicConfig:
        """Return the topic that a call names. Raises Refused if there is none."""
        return self.topic_of(resource.name)

    def topic_for(self, resource: Resource, group: str) -> TopicConfig:
        """Return the topic that the call of a consumer names. Raises Refused: both names are checked before
        the topic is looked up."""
        check_user_topic(self._parts.topics, resource.name)
        check_group_name(group)
        return self.topic(resource)

    def topic_of(self, name: str) -> TopicConfig:
        """Return the topic of a name in a call. Raises Refused if there is none."""
        topics = self._parts.topics
        config = topics.get(name)
        if config is None or topics.is_system(name):
            check_user_topic(topics, name)
        if config is None:
            raise Refused(
                Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}", "no topic"
            )
        return config

    def _counts(self, config: TopicConfig) -> tuple[int, int]:
        """Return how many queues of a topic can be read, and how many written."""
        perm = config.perm & self._parts.settings.broker_permission
        return (
            config.read_queues if perm & PERM_READ else 0,
            config.write_queues if perm & PERM_WRITE else 0,
        )

    def _queues(
        self,
        config: TopicConfig,
        request: QueryRouteRequest | QueryAssignmentRequest,
        numbers: range,
        types: tuple[MessageType, ...],
    ) -> list[MessageQueue]:
        """Return queues of a topic by their numbers, each with the endpoints of the request."""
        read, write = self._counts(config)
        # The client reaches the broker by these, whatever its own address is.
        endpoints = Endpoints(scheme=request.endpoints.scheme, addresses=request.endpoints.addresses)
        broker = Broker(name=self._parts.broker_name, id=0, endpoints=endpoints)
        rest = Permission.READ if read > write else Permission.WRITE
        return [
            MessageQueue(
                topic=request.topic,
                id=number,
                permission=Permission.READ_WRITE if number < min(read, write) else rest,
                broker=broker,
                accept_message_types=types,
            )
            for number in numbers
        ]


def _check_size(request: QueryRouteRequest | QueryAssignmentRequest) -> None:
    """Raise Refused for a request that would make its answer large: each queue has a copy of its endpoints
    and of its topic."""
    endpoints, topic = request.endpoints, request.topic
    for what, value, limit in (
        ("addresses in the endpoints", len(endpoints.addresses), MAX_ADDRESSES),
        ("bytes of endpoints", endpoints.ByteSize(), MAX_ENDPOINTS_BYTES),
    ):
        if value > limit:
            text = f"a route is asked for with {value} {what}, most is {limit}"
            raise Refused(Code.ILLEGAL_ACCESS_POINT, text, "access point", value=value, limit=limit)
    check_topic_size(topic)


def check_topic_size(topic: Resource) -> None:
    """Raise Refused for a topic of a request that is large: each queue or message of the answer has a copy of
    it."""
    if (size := topic.ByteSize()) > MAX_TOPIC_BYTES:
        text = f"a topic and its namespace have {size} bytes, most is {MAX_TOPIC_BYTES}"
        raise Refused(Code.ILLEGAL_TOPIC, text, "topic name", value=size, limit=MAX_TOPIC_BYTES)


def check_type(config: TopicConfig, kind: str) -> None:
    """Raise Refused if a topic does not take messages of a type. Light topics are not supported."""
    expected = config.attributes.get(MESSAGE_TYPE, "NORMAL")
    if kind == expected != "LITE" or (expected == "MIXED" and kind != "LITE"):
        return
    raise Refused(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {kind}",
        "message type",
    )


def accepted_types(config: TopicConfig) -> tuple[MessageType, ...]:
    """Return the types of messages that a topic takes."""
    kind = config.attributes.get(MESSAGE_TYPE, "NORMAL")
    return _TYPES.get(kind, (MessageType.MESSAGE_TYPE_UNSPECIFIED,))
