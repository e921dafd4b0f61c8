"""Light topics: no group is bound to one here, so their consumers are refused as by Apache's proxy
([decision 84](../../../docs/decisions/0084-light-topics-are-refused-as-for-a-regular-group.md))."""

from __future__ import annotations

from typing import NoReturn

from broker_store.broker.groups import LITE_BIND_TOPIC, Groups
from broker_store.protocol.grpc.v2.definition_pb2 import Code, LiteSubscriptionAction
from broker_store.protocol.grpc.v2.service_pb2 import SyncLiteSubscriptionRequest
from broker_store.server.attributes import NO_LIGHT_TOPICS
from broker_store.server.grpc.names import check_group_name, check_user_topic
from broker_store.server.grpc.sent_messages import check_lite_topic
from broker_store.server.grpc.statuses import Refused
from broker_store.server.parts import BrokerParts

_CAUSE = "light topic"
_ACTIONS = frozenset(LiteSubscriptionAction.values())


class LiteSubscriptions:
    """Answers subscriptions to light topics."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def sync(self, request: SyncLiteSubscriptionRequest) -> NoReturn:
        """Raise Refused, with the checks of Apache's proxy in its order."""
        topic, group = request.topic.name, request.group.name
        check_user_topic(self._parts.topics, topic)
        check_group_name(group)
        if request.action not in _ACTIONS:
            raise Refused(Code.BAD_REQUEST, f"unknown LiteSubscriptionAction: {request.action}", _CAUSE)
        if request.action == LiteSubscriptionAction.PARTIAL_ADD:
            for name in request.lite_topic_set:
                check_lite_topic(name)
        bound = _bound_topic(self._parts.groups, group)
        if bound != topic:
            text = f"lite group {group} is expected to bind topic {bound or 'null'}, but actual is {topic}"
            raise Refused(Code.ILLEGAL_TOPIC, text, _CAUSE)
        raise Refused(Code.NOT_IMPLEMENTED, NO_LIGHT_TOPICS, _CAUSE)


def refuse_lite_consumer(groups: Groups, group: str) -> NoReturn:
    """Raise Refused for the settings of a consumer of light topics."""
    if not _bound_topic(groups, group):
        text = f"regular group cannot use LITE mode: {group}"
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, text, _CAUSE)
    raise Refused(Code.NOT_IMPLEMENTED, NO_LIGHT_TOPICS, _CAUSE)


def _bound_topic(groups: Groups, name: str) -> str | None:
    """Return the topic whose light topics a group consumes. Raises Refused without the group. A group has
    such a topic only in a store that comes from Apache's broker."""
    group = groups.get(name)
    if group is None:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}", "no group")
    return group.attributes.get(LITE_BIND_TOPIC)
