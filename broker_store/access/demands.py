"""What each request of the broker port demands, by its code (docs/spec/access.md has the table).

Names are read from the fields and members that the handler of the code reads, so that what is checked is what
is done. A code that Apache lets every known user send demands here what a code of the same kind demands; a
code that is not in these tables demands the right to change the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from broker_store.access.denied import NO_DEMANDS, Denied
from broker_store.access.resources import (
    Action,
    Demand,
    on_cluster,
    on_group,
    on_topic,
    on_topic_itself,
)
from broker_store.errors import PeerError
from broker_store.formats.names import RETRY_PREFIX
from broker_store.formats.topics import HALF_TOPIC
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.members import read_list, read_objects, read_text

PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
# Of a list in a header field; more topics or groups than a request may have are refused.
MAX_NAMES = 1_000


class Asked(NamedTuple):
    """A request, as far as demands depend on it."""

    fields: Mapping[str, str]
    body: bytes
    cluster: str  # of the broker


_Build = Callable[[Asked], Iterator[Demand]]


def demands_of(code: int, asked: Asked) -> list[Demand]:
    """Return all that a request demands. Raises Denied if that cannot be read from it."""
    build = _BUILDS.get(code)
    try:
        if build is not None:
            return list(build(asked))
        in_header = _IN_HEADER.get(code)
        if in_header is not None:
            return list(_of_header(in_header, asked.fields))
    except PeerError:
        raise Denied(NO_DEMANDS) from None
    cluster = asked.fields.get(_CLUSTER_FIELDS.get(code, ""), asked.cluster)
    return [on_cluster(cluster, GET if code in _READS_CLUSTER else UPDATE)]


# Demands on the names in a header


class _InHeader(NamedTuple):
    """Fields with topics and with groups. `required` is the one without which the handler does nothing."""

    action: Action
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    required: str = ""


def _of_header(known: _InHeader, fields: Mapping[str, str]) -> Iterator[Demand]:
    for name in known.groups:
        for group in _names(fields.get(name), name == "filterGroups", ","):
            yield on_group(group, known.action)
    for name in known.topics:
        for topic in _names(fields.get(name), name == "topicList", ";"):
            yield on_topic(topic, known.action)
    if known.required and known.required not in fields:
        yield (on_topic if known.required in known.topics else on_group)(None, known.action)


def _names(value: str | None, is_list: bool, separator: str) -> list[str]:
    if value is None:
        return []
    if not is_list:
        return [value]
    names = [name for name in value.split(separator, MAX_NAMES) if name]
    if len(names) > MAX_NAMES:
        raise Denied(NO_DEMANDS)
    return names


def _topic(action: Action) -> _InHeader:
    return _InHeader(action, topics=("topic",), required="topic")


def _group(field: str, action: Action, *topics: str) -> _InHeader:
    return _InHeader(action, topics, (field,), field)


_IN_HEADER: dict[int, _InHeader] = {
    R.SEARCH_OFFSET_BY_TIMESTAMP: _topic(GET),
    R.GET_MAX_OFFSET: _topic(GET),
    R.GET_MIN_OFFSET: _topic(GET),
    R.GET_EARLIEST_MSG_STORETIME: _topic(GET),
    R.GET_TOPIC_STATS_INFO: _topic(GET),
    R.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    R.GET_TOPIC_CONFIG: _topic(GET),
    R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _topic(GET),
    R.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
    R.QUERY_CONSUME_QUEUE: _InHeader(GET, ("topic",), ("consumerGroup",), "topic"),
    R.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup", GET),
    R.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup", GET),
    R.QUERY_TOPICS_BY_CONSUMER: _group("group", GET),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", GET),
    R.DELETE_SUBSCRIPTIONGROUP: _group("groupName", DELETE),
    R.GET_CONSUME_STATS: _group("consumerGroup", GET, "topic", "topicList"),
    R.QUERY_CONSUME_TIME_SPAN: _group("group", GET, "topic"),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: _group("group", GET, "topic"),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group("group", GET, "topic"),
    R.POLLING_INFO: _group("consumerGroup", GET, "topic"),
    R.QUERY_CORRECTION_OFFSET: _InHeader(GET, ("topic",), ("filterGroups", "compareGroup"), "compareGroup"),
    R.INVOKE_BROKER_TO_RESET_OFFSET: _group("group", UPDATE, "topic"),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: _group("group", UPDATE, "topic"),
    R.CLONE_GROUP_OFFSET: _group("destGroup", UPDATE, "topic"),
    R.PUSH_REPLY_MESSAGE_TO_CLIENT: _group("producerGroup", SUB, "topic"),
    R.POP_MESSAGE: _group("consumerGroup", SUB, "topic"),
    R.ACK_MESSAGE: _group("consumerGroup", SUB, "topic"),
    R.PEEK_MESSAGE: _group("consumerGroup", SUB, "topic"),
    R.CHANGE_MESSAGE_INVISIBLETIME: _group("consumerGroup", SUB, "topic"),
    R.NOTIFICATION: _group("consumerGroup", SUB, "topic"),
    R.CONSUME_MESSAGE_DIRECTLY: _group("consumerGroup", SUB, "topic"),
    R.POP_ROLLBACK: _group("consumerGroup", SUB, "topic"),
}

# Demands on the cluster

_READS_CLUSTER = frozenset(
    map(
        int,
        (
            R.GET_PRODUCER_CONNECTION_LIST, R.VIEW_BROKER_STATS_DATA, R.GET_BROKER_CONSUME_STATS,
            R.QUERY_DATA_VERSION, R.GET_ALL_PRODUCER_INFO, R.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            R.GET_BROKER_MEMBER_GROUP, R.CONTROLLER_GET_REPLICA_INFO, R.CONTROLLER_GET_NEXT_BROKER_ID,
            R.GET_KV_CONFIG, R.GET_KVLIST_BY_NAMESPACE, R.AUTH_GET_USER, R.AUTH_LIST_USER, R.AUTH_GET_ACL,
            R.AUTH_LIST_ACL,
            # Apache lets each known user send these.
            R.GET_ALL_TOPIC_CONFIG, R.GET_BROKER_CONFIG, R.GET_BROKER_RUNTIME_INFO, R.GET_ALL_CONSUMER_OFFSET,
            R.GET_ALL_DELAY_OFFSET, R.GET_TIMER_CHECK_POINT, R.GET_TIMER_METRICS, R.GET_BROKER_CLUSTER_INFO,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            R.GET_ALL_MESSAGE_REQUEST_MODE, R.GET_BROKER_HA_STATUS, R.GET_COLD_DATA_FLOW_CTR_INFO,
        ),
    )
)  # fmt: skip
_CLUSTER_FIELDS: dict[int, str] = {R.REMOVE_BROKER: "brokerClusterName"}
_CLUSTER_FIELDS |= dict.fromkeys(
    (
        R.REGISTER_BROKER, R.UNREGISTER_BROKER, R.DELETE_TOPIC_IN_NAMESRV, R.QUERY_DATA_VERSION,
        R.GET_BROKER_MEMBER_GROUP, R.BROKER_HEARTBEAT, R.CONTROLLER_ELECT_MASTER,
        R.CONTROLLER_REGISTER_BROKER, R.CLEAN_BROKER_DATA, R.CONTROLLER_GET_NEXT_BROKER_ID,
        R.CONTROLLER_APPLY_BROKER_ID,
    ),
    "clusterName",
)  # fmt: skip

# Demands of single codes


# The field with the topic of each send. Its demand depends on nothing else.
TOPIC_OF_SEND: dict[int, str] = {
    R.SEND_MESSAGE: "topic",
    R.SEND_MESSAGE_V2: "b",
    R.SEND_BATCH_MESSAGE: "b",
    R.SEND_REPLY_MESSAGE: "topic",
    R.SEND_REPLY_MESSAGE_V2: "b",
}


def _send(code: int) -> _Build:
    field = TOPIC_OF_SEND[code]

    def build(asked: Asked) -> Iterator[Demand]:
        topic = asked.fields.get(field)
        yield on_topic(topic, SUB if topic is not None and topic.startswith(RETRY_PREFIX) else PUB)

    return build


def _pull(asked: Asked) -> Iterator[Demand]:
    yield from _group_and_topic(asked.fields, SUB)
    # A retry topic is read by its own group; Apache checks the group of the request alone.
    group, topic = asked.fields.get("consumerGroup"), asked.fields.get("topic")
    if topic is not None and topic.startswith(RETRY_PREFIX) and topic.removeprefix(RETRY_PREFIX) != group:
        yield on_group(topic, SUB)


def _offset(*actions: Action) -> _Build:
    return lambda asked: _group_and_topic(asked.fields, *actions)


def _group_and_topic(fields: Mapping[str, str], *actions: Action) -> Iterator[Demand]:
    topic = fields.get("topic")
    if topic is None or not topic.startswith(RETRY_PREFIX):
        yield on_topic_itself(topic, *actions)
    yield on_group(fields.get("consumerGroup"), *actions)


def _group_if_named(*actions: Action) -> _Build:
    def build(asked: Asked) -> Iterator[Demand]:
        group = asked.fields.get("consumerGroup")
        if group is not None:
            yield on_group(group, *actions)

    return build


def _query_keys(asked: Asked) -> Iterator[Demand]:
    yield on_topic_itself(asked.fields.get("topic"), SUB, GET)


def _recall(asked: Asked) -> Iterator[Demand]:
    yield on_topic_itself(asked.fields.get("topic"), PUB)


def _view_message(asked: Asked) -> Iterator[Demand]:
    """The topic of the message that is found is checked too, by the handler."""
    topic = asked.fields.get("topic")
    yield on_cluster(asked.cluster, GET) if topic is None else on_topic(topic, GET)


def _resume_check(asked: Asked) -> Iterator[Demand]:
    topic = asked.fields.get("topic")
    yield on_cluster(asked.cluster, UPDATE) if topic is None else on_topic(topic, UPDATE)


def _end_transaction(asked: Asked) -> Iterator[Demand]:
    """A producer that answers a check names the topic of half messages. The handler checks the topic of the
    message, whatever a producer names."""
    topic = asked.fields.get("topic")
    if topic is not None and topic != HALF_TOPIC:
        yield on_topic_itself(topic, PUB)


def _send_back(asked: Asked) -> Iterator[Demand]:
    yield on_group(asked.fields.get("group"), SUB)


def _route(asked: Asked) -> Iterator[Demand]:
    topic = asked.fields.get("topic")
    is_retry = topic is not None and topic.startswith(RETRY_PREFIX)
    yield on_topic(topic, *((SUB, GET) if is_retry else (PUB, SUB, GET)))


def _create_topic(asked: Asked) -> Iterator[Demand]:
    if asked.fields.get("topicFilterType") not in FILTER_TYPES:
        raise Denied(NO_DEMANDS)
    yield on_topic(asked.fields.get("topic"), CREATE)


# Demands on the names in a body


def _members(asked: Asked) -> dict[str, object]:
    value = fastjson.loads(asked.body)
    if not isinstance(value, dict):
        raise Denied(NO_DEMANDS)
    return value


def _heartbeat(asked: Asked) -> Iterator[Demand]:
    for consumer in read_objects(_members(asked), "consumerDataSet"):
        yield on_group(read_text(consumer, "groupName"), SUB)
        for subscription in read_objects(consumer, "subscriptionDataSet"):
            yield from _unless_retry(read_text(subscription, "topic"), SUB)


def _unless_retry(topic: str, *actions: Action) -> Iterator[Demand]:
    if not topic.startswith(RETRY_PREFIX):
        yield on_topic_itself(topic, *actions)


def _lock(asked: Asked) -> Iterator[Demand]:
    members = _members(asked)
    yield on_group(read_text(members, "consumerGroup"), SUB)
    for queue in read_objects(members, "mqSet"):
        yield from _unless_retry(read_text(queue, "topic"), SUB)


def _check_client(asked: Asked) -> Iterator[Demand]:
    if not asked.body:
        return
    members = _members(asked)
    yield on_group(read_text(members, "group", ""), SUB)
    subscription = members.get("subscriptionData")
    if isinstance(subscription, dict):
        yield from _unless_retry(read_text(subscription, "topic"), SUB)


def _group_and_topic_in_body(action: Action) -> _Build:
    def build(asked: Asked) -> Iterator[Demand]:
        members = _members(asked)
        yield on_group(read_text(members, "consumerGroup"), action)
        yield on_topic(read_text(members, "topic"), action)

    return build


def _topics_in_body(asked: Asked) -> Iterator[Demand]:
    for item in read_objects(_members(asked), "topicConfigList"):
        yield on_topic(read_text(item, "topicName"), CREATE)


def _group_in_body(asked: Asked) -> Iterator[Demand]:
    yield on_group(read_text(_members(asked), "groupName"), CREATE)


def _groups_in_body(asked: Asked) -> Iterator[Demand]:
    for item in read_objects(_members(asked), "groupConfigList"):
        yield on_group(read_text(item, "groupName"), CREATE)


def _batch_ack(asked: Asked) -> Iterator[Demand]:
    members = _members(asked)
    yield on_group(read_text(members, "consumerGroup", ""), SUB)
    seen: dict[tuple[str, str], None] = {}
    for item in read_list(members, "acks"):
        if not isinstance(item, dict):
            raise Denied(NO_DEMANDS)
        seen[read_text(item, "c"), read_text(item, "t")] = None
    for group, topic in seen:
        yield on_group(group, SUB)
        yield on_topic(topic, SUB)


_BUILDS: dict[int, _Build] = {
    **{code: _send(code) for code in TOPIC_OF_SEND},
    R.PULL_MESSAGE: _pull,
    R.LITE_PULL_MESSAGE: _pull,
    R.QUERY_MESSAGE: _query_keys,
    R.VIEW_MESSAGE_BY_ID: _view_message,
    R.QUERY_CONSUMER_OFFSET: _offset(SUB, GET),
    R.UPDATE_CONSUMER_OFFSET: _offset(SUB, UPDATE),
    R.UPDATE_AND_CREATE_TOPIC: _create_topic,
    R.UPDATE_AND_CREATE_STATIC_TOPIC: _create_topic,
    R.UPDATE_AND_CREATE_TOPIC_LIST: _topics_in_body,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_in_body,
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups_in_body,
    R.HEART_BEAT: _heartbeat,
    R.UNREGISTER_CLIENT: _group_if_named(SUB),
    R.GET_CONSUMER_LIST_BY_GROUP: _group_if_named(SUB, GET),
    R.CONSUMER_SEND_MSG_BACK: _send_back,
    R.END_TRANSACTION: _end_transaction,
    R.RESUME_CHECK_HALF_MESSAGE: _resume_check,
    R.LOCK_BATCH_MQ: _lock,
    R.UNLOCK_BATCH_MQ: _lock,
    R.CHECK_CLIENT_CONFIG: _check_client,
    R.GET_ROUTEINFO_BY_TOPIC: _route,
    R.RECALL_MESSAGE: _recall,
    R.QUERY_ASSIGNMENT: _group_and_topic_in_body(SUB),
    R.SET_MESSAGE_REQUEST_MODE: _group_and_topic_in_body(UPDATE),
    R.BATCH_ACK_MESSAGE: _batch_ack,
}
