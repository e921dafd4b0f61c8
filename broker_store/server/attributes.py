"""Attributes of a topic or a group, as administrators change them: `+name=value` sets one, `-name` deletes
it.

`message.type` is the kind of messages of a topic. Clients of the remoting protocol may send any kind;
Apache's proxy enforces it. The values are those of Apache's. MIXED needs the setting enableMixedMessageType.
LITE is refused, because the messages of a light topic are kept in light queues. So `lite.bind.topic` of a
group is refused too.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_store.broker.groups import LITE_BIND_TOPIC, PRIORITY_FACTOR
from broker_store.broker.priorities import MAX_FACTOR, is_factor
from broker_store.errors import FieldError
from broker_store.formats.topics import MESSAGE_TYPE, MESSAGE_TYPES, MIXED
from broker_store.protocol.codes import ResponseCode
from broker_store.server.handler import Refusal

NO_LIGHT_TOPICS = "light topics are not supported"
# A topic of this type, which another broker created, can be changed after its type is deleted.
NOT_SERVED = {"LITE": NO_LIGHT_TOPICS}


def changes_of(text: str | None) -> dict[str, str]:
    """Return the changes of a header, which are separated by commas. Raises FieldError."""
    changes: dict[str, str] = {}
    for change in (text or "").split(","):
        change = change.strip()
        if not change:
            continue
        name, separator, value = change.partition("=")
        signed = change[0] == "+" and separator or change[0] == "-" and not separator
        if not signed or len(name) < 2 or "+" in name[1:] or "-" in name[1:]:
            raise FieldError("attributes", change, "+name=value or -name, without a further + or - in a name")
        changes[name] = value
    return changes


def altered(known: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes after the changes."""
    attributes = dict(known)
    for change, value in changes.items():
        if change[0] == "+":
            attributes[change[1:]] = value
        else:
            attributes.pop(change[1:], None)
    return attributes


def altered_by_item(known: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the attributes after those of an item in JSON. Names that begin with + or - are changes, as
    Apache's tools write them; without any the item has all attributes."""
    changes = {name: value for name, value in given.items() if name[:1] in ("+", "-")}
    return altered(known, changes) if changes else given


def check_group_attributes(known: Mapping[str, str], attributes: Mapping[str, str]) -> None:
    """Raise Refusal for attributes that bind a group to a light topic or have no valid priority factor,
    unless those known did before: of a group that another broker created."""
    if (topic := attributes.get(LITE_BIND_TOPIC)) and topic != known.get(LITE_BIND_TOPIC):
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"{LITE_BIND_TOPIC}: {NO_LIGHT_TOPICS}.", "light topic")
    factor = attributes.get(PRIORITY_FACTOR)
    if factor is not None and factor != known.get(PRIORITY_FACTOR) and not is_factor(factor):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{PRIORITY_FACTOR}: value is not in range(0, {MAX_FACTOR})",
            "priority factor",
        )


def check_message_type(attributes: Mapping[str, str], mixed_enabled: bool) -> None:
    """Raise Refusal for a message type that Apache's broker refuses, with its code and text, or that is not
    supported here."""
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
