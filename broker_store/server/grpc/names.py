"""Names of topics and groups in calls, refused with the sentences of Apache's proxy. The namespace of a
resource is not used, as in that proxy."""

from __future__ import annotations

from broker_store.broker.groups import Groups
from broker_store.broker.topics import Topics
from broker_store.errors import NameError_
from broker_store.formats.names import MAX_GROUP, MAX_TOPIC, check_group, check_topic
from broker_store.protocol.grpc.v2.definition_pb2 import Code
from broker_store.server.grpc.statuses import Refused

_ALLOWED = "^[%|a-zA-Z0-9_-]+$"


def check_user_topic(topics: Topics, name: str) -> None:
    """Raise Refused for a name that no topic may have, and for topics of the broker."""
    if topics.get(name) is None:
        check_topic_name(name)
    if topics.is_system(name):
        raise Refused(Code.ILLEGAL_TOPIC, "cannot access system topic", "forbidden topic")


def check_topic_name(name: str) -> None:
    """Raise Refused for a name that no topic may have."""
    try:
        check_topic(name)
    except NameError_:
        text = f"The specified topic[{name:.255}] contains illegal characters, allowing only {_ALLOWED}"
        if not name.strip():
            text = "The specified topic is blank"
        elif len(name) > MAX_TOPIC:
            text = f"The specified topic is longer than topic max length {MAX_TOPIC}."
        raise Refused(Code.ILLEGAL_TOPIC, text, "topic name") from None


def check_group_name(name: str) -> None:
    """Raise Refused for a name that no consumer group may have, and for groups of the broker."""
    try:
        check_group(name)
    except NameError_ as error:
        text = f"the specified group[{name:.255}] contains illegal characters, allowing only {_ALLOWED}"
        if not name.strip():
            text = "the specified group is blank"
        elif len(name) > MAX_GROUP:
            text = f"the specified group[{name:.255}] is longer than group max length: {MAX_GROUP}."
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, text, error.cause) from None
    if Groups.is_system(name):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group", "system group")
