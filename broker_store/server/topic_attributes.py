"""The attributes of a topic as administrators change them: `+name=value` sets one, `-name` takes it away.

`message.type` says what a topic's messages are for; clients of the remoting protocol send whatever they like,
a proxy of Apache's obeys it. Its values are Apache's, in Apache's letters. MIXED needs the setting
enableMixedMessageType. Two of them are refused: Apache's broker gives a priority to messages only where they
are popped, and keeps the messages of a light topic in light queues.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_store.errors import FieldError
from broker_store.protocol.codes import ResponseCode
from broker_store.server.handler import Refusal

MESSAGE_TYPE = "message.type"
MIXED = "MIXED"
# A topic that another broker made with one of these can be changed once its type is taken away.
NOT_SERVED = {
    "PRIORITY": "consumers that pull get messages in the order of each queue, and pop is not there",
    "LITE": "there are no light topics",
}
# In the order of Apache's answer.
MESSAGE_TYPES = ("UNSPECIFIED", MIXED, "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL")


def changes_of(text: str | None) -> dict[str, str]:
    """The changes of a header, joined by commas: `+name` or `-name` with its value. Raises FieldError."""
    changes: dict[str, str] = {}
    for change in (text or "").split(","):
        change = change.strip()
        if not change:
            continue
        name, separator, value = change.partition("=")
        if not (change[0] == "+" and separator or change[0] == "-" and not separator) or len(name) < 2:
            raise FieldError("attributes", change, "+name=value or -name")
        changes[name] = value
    return changes


def altered(known: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes after the changes."""
    attributes = dict(known)
    for change, value in changes.items():
        if change[0] == "+":
            attributes[change[1:]] = value
        else:
            attributes.pop(change[1:], None)
    return attributes


def check_message_type(attributes: Mapping[str, str], mixed_enabled: bool) -> None:
    """Refuse a message type that Apache's broker refuses, with its code and words, and one that this broker
    does not serve."""
    kind = attributes.get(MESSAGE_TYPE)
    if kind is None:
        return
    if kind not in MESSAGE_TYPES:
        taken = [name for name in MESSAGE_TYPES if mixed_enabled or name != MIXED]
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"value is not in set: [{', '.join(taken)}]", "message type")
    if kind in NOT_SERVED:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"{kind} message type is not supported: {NOT_SERVED[kind]}.",
            "message type",
        )
    if kind == MIXED and not mixed_enabled:
        raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.", "message type")
