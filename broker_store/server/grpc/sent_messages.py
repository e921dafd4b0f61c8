"""The checks of a message that a producer sends, in the order and with the texts of Apache's proxy 5.5, and
its properties in the store (docs/spec/grpc.md section 4)."""

from __future__ import annotations

import re
import unicodedata

from broker_store.formats import properties
from broker_store.formats.topics import PRIORITY
from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2.definition_pb2 import Code, MessageType
from broker_store.server.grpc.property_names import REFUSED
from broker_store.server.grpc.statuses import Refused

# Limits of Apache's proxy.
MAX_USER_PROPERTIES = 128
MAX_USER_PROPERTIES_BYTES = 16 << 10  # with tag and keys
MAX_GROUP_BYTES = 64  # that of a message group is shorter
MAX_LITE_TOPIC_BYTES = 64
MAX_DELAY_MS = 86_400_000
MAX_RECOVERY_SECONDS = 3_600
NORMAL, TRANSACTION = "NORMAL", "TRANSACTION"
# Values of protobuf's enumerations are looked up by name at each access.
_TRANSACTION = MessageType.TRANSACTION
_ILLEGAL_TAG, _ILLEGAL_KEY = Code.ILLEGAL_MESSAGE_TAG, Code.ILLEGAL_MESSAGE_KEY
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]*")
# Blank for Python, not for Java.
_NO_BLANKS = frozenset("\u00a0\u2007\u202f\x85")
_MAX_SECONDS = 1 << 40  # of a time in a message: milliseconds fit into 64 bits


def check_body(body: bytes, most: int) -> None:
    """Raise Refused for a body that is empty or too large."""
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty", "empty body")
    if len(body) > most:
        raise body_too_large(len(body), most)


def body_too_large(size: int, most: int) -> Refused:
    """Return the refusal of a body of `size` bytes."""
    return Refused(
        Code.MESSAGE_BODY_TOO_LARGE,
        f"message body cannot exceed the max {most}",
        "body",
        value=size,
        limit=most,
    )


def properties_too_large(size: int) -> Refused:
    """Return the refusal of a message whose user properties, tag and keys take `size` bytes."""
    return Refused(
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        f"the total size of user property is too large, max is {MAX_USER_PROPERTIES_BYTES}",
        "properties",
        value=size,
        limit=MAX_USER_PROPERTIES_BYTES,
    )


def too_many_properties(count: int) -> Refused:
    """Return the refusal of a message with `count` user properties."""
    return Refused(
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        f"too many user properties, max is {MAX_USER_PROPERTIES}",
        "properties",
        value=count,
        limit=MAX_USER_PROPERTIES,
    )


def type_of(system: v2.SystemProperties) -> str:
    """Return the type of a message, which its properties decide: a message with a group is one in order,
    whatever type it states."""
    if system.message_type == _TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return "DELAY"
    if system.message_group:
        return "FIFO"
    if system.HasField("priority"):
        return PRIORITY
    return "LITE" if system.lite_topic else NORMAL


def properties_of(given: v2.Message, kind: str, topic: str, now_ms: int) -> dict[str, str]:
    """Return the properties of a message of a type for the store. Raises Refused."""
    # Each access to a field of a message makes a new object, so each is read once.
    system = given.system_properties
    tag, message_id, born, born_host = (
        system.tag,
        system.message_id,
        system.born_timestamp,
        system.born_host,
    )
    pairs, size = _user_properties(given)
    if tag:
        _check_text("tag", tag, _ILLEGAL_TAG)
        if "|" in tag:
            raise Refused(_ILLEGAL_TAG, "tag cannot contain '|'", "tag")
        pairs[properties.TAGS] = tag
        size += len(tag.encode())
    if keys := list(filter(None, system.keys)):
        joined = properties.KEY_SEPARATOR.join(keys)
        # They are checked together, and one by one if one is wrong: there may be 16,000 of one letter.
        if any(map(str.isspace, keys)) or _has_control(joined):
            for key in keys:
                _check_text("key", key, _ILLEGAL_KEY)
        size += len(joined.encode()) - (len(keys) - 1) * len(properties.KEY_SEPARATOR)
        pairs[properties.KEYS] = joined
    if size > MAX_USER_PROPERTIES_BYTES:
        raise properties_too_large(size)
    if _is_blank(message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty", "message id")
    if _has_control(message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot contain control character", "message id")
    pairs[properties.UNIQUE_KEY] = message_id
    if kind != NORMAL:
        _add_special(pairs, system, topic, now_ms)
    if (trace := system.trace_context) and not _has_control(trace):
        pairs[properties.TRACE_CONTEXT] = trace
    if born_host and not _has_control(born_host):
        pairs[properties.BORN_HOST] = born_host
    if 0 < (seconds := born.seconds) < _MAX_SECONDS:
        pairs[properties.BORN_TIMESTAMP] = str(seconds * 1_000 + born.nanos // 1_000_000)
    return pairs


def _add_special(pairs: dict[str, str], system: v2.SystemProperties, topic: str, now_ms: int) -> None:
    """Add what makes a message wait, or gives it an order."""
    if system.message_type == MessageType.TRANSACTION:
        pairs[properties.TRANSACTION_PREPARED] = "true"
        # The producers of a topic are the group that is asked.
        pairs[properties.PRODUCER_GROUP] = topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if seconds > MAX_RECOVERY_SECONDS:
                raise Refused(
                    Code.BAD_REQUEST,
                    f"the max transaction recovery time of message is too large, max is "
                    f"{MAX_RECOVERY_SECONDS}",
                    "recovery time",
                    value=seconds,
                    limit=MAX_RECOVERY_SECONDS,
                )
            pairs[IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        pairs[properties.TIMER_DELIVER_MS] = str(_delivery_ms(system, now_ms))
    if system.HasField("priority"):
        if system.priority < 0:
            raise Refused(Code.BAD_REQUEST, "The priority must be greater than or equal to 0", "priority")
        pairs[properties.PRIORITY] = str(system.priority)
    if system.message_group:
        _check_group(system.message_group)
        pairs[properties.SHARDING_KEY] = system.message_group
    if system.lite_topic:
        check_lite_topic(system.lite_topic)


def _delivery_ms(system: v2.SystemProperties, now_ms: int) -> int:
    given = system.delivery_timestamp
    wanted_ms = given.seconds * 1_000 + given.nanos // 1_000_000
    if wanted_ms - now_ms > MAX_DELAY_MS:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {MAX_DELAY_MS}",
            "delivery time",
            value=wanted_ms - now_ms,
            limit=MAX_DELAY_MS,
        )
    return max(0, wanted_ms)


def _check_group(group: str) -> None:
    if _is_blank(group):
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            "message group cannot be the char sequence of whitespace",
            "message group",
        )
    size = len(group.encode())
    if size >= MAX_GROUP_BYTES:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceed the max size {MAX_GROUP_BYTES}",
            "message group",
            value=size,
            limit=MAX_GROUP_BYTES,
        )
    if _has_control(group):
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character", "message group"
        )


def check_lite_topic(name: str) -> None:
    """Raise Refused for a name that no light topic may have."""
    cause = "lite topic"
    if _is_blank(name):
        raise Refused(Code.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace", cause)
    if len(name.encode()) > MAX_LITE_TOPIC_BYTES:
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC, f"lite topic exceed the max size {MAX_LITE_TOPIC_BYTES}", cause
        )
    if not _LITE_TOPIC.fullmatch(name):
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC,
            "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)",
            cause,
        )


def _user_properties(given: v2.Message) -> tuple[dict[str, str], int]:
    """Return the user's properties, and their size in bytes. Raises Refused for names that the broker sets,
    and for what the store cannot keep."""
    user = given.user_properties
    if len(user) > MAX_USER_PROPERTIES:
        raise too_many_properties(len(user))
    pairs: dict[str, str] = {}
    size = 0
    for name, value in user.items():
        if name in REFUSED:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}", "property"
            )
        if not name or _has_control(name):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the key of property cannot contain control character",
                "property",
            )
        if _has_control(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the value of property cannot contain control character",
                "property",
            )
        size += len(name.encode()) + len(value.encode())
        if value:  # Apache's store keeps no empty value
            pairs[name] = value
    return pairs, size


def _check_text(what: str, text: str, code: Code) -> None:
    if _is_blank(text):
        raise Refused(code, f"{what} cannot be the char sequence of whitespace", what)
    if _has_control(text):
        raise Refused(code, f"{what} cannot contain control character", what)


def _is_blank(text: str) -> bool:
    """Return whether a text is empty or whitespace for Java."""
    return not text or (text.isspace() and _NO_BLANKS.isdisjoint(text))


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in text)
