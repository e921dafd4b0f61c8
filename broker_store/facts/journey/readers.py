"""The groups that read a message's queue."""

from __future__ import annotations

from collections.abc import Container

from broker_store.facts.journey.stop import State, Stop, stop
from broker_store.facts.store_facts import GroupInQueue, StoreFacts
from broker_store.formats.names import retry_topic
from broker_store.formats.record import StoredMessage


def readers(
    facts: StoreFacts,
    message: StoredMessage,
    later: list[StoredMessage],
    popped_by: Container[str] = (),
    doubt: str = "",
) -> list[Stop]:
    """Return what each group that reads the topic did with the message; `later` are its later copies.
    `popped_by` are the groups that popped it, `doubt` says why there may be more."""
    if not message.is_queued:
        return []
    stops = [
        _popping_reader(group) if group.group in popped_by else _reader(group, message, later, doubt)
        for group in facts.groups(message.topic, message.queue_id)
    ]
    if stops:
        return stops
    if facts.has_group_offsets:
        sentence = (
            "No group reads this topic: none has a position in it, and none that is connected asks for it."
        )
        return [stop("group", "Read", "absent", sentence)]
    sentence = "Where groups stand is not known: this store has no readable config/consumerOffset.json."
    return [stop("group", "Read", "unknown", sentence)]


def _reader(group: GroupInQueue, message: StoredMessage, later: list[StoredMessage], doubt: str) -> Stop:
    state, sentence = _reader_words(group, message, later, doubt)
    return stop("group", f"Read by {group.group}", state, sentence, offset=group.offset)


def _popping_reader(group: GroupInQueue) -> Stop:
    """Return the stop of a group that popped the message. Its position does not show whether the message was
    acknowledged: it is after messages that are invisible, or, of pops in order, before them."""
    position = "" if group.offset is None else f" Its position is {group.offset:,}."
    sentence = f"It popped the message, as shown below.{position}"
    return stop("group", f"Read by {group.group}", "done", sentence, offset=group.offset)


def _reader_words(
    group: GroupInQueue, message: StoredMessage, later: list[StoredMessage], doubt: str
) -> tuple[State, str]:
    if group.tags is not None and message.tags not in group.tags:
        return (
            "absent",
            f"Passed over: it wants {group.expression}, and the message's tag is {message.tags or 'none'}.",
        )
    if group.offset is None:
        words = _connected(group.clients) if group.clients else ""
        return "unknown", f"It has no position in this queue yet.{words}"
    if group.offset <= message.queue_offset:
        words = "" if group.clients is None else _connected(group.clients)
        return "waiting", _ahead(message.queue_offset - group.offset) + words
    if doubt and group.pops is not False:
        # The position of a group that pops is after messages that are invisible to it
        return (
            "unknown",
            f"Its position is {group.offset:,}. Whether it popped the message, and acknowledged it, is not "
            f"known: {doubt}.",
        )
    # Tags are compared here; other expressions need the properties and the broker's filters
    is_filtered = group.expression not in (None, "*", "") and group.tags is None
    filtered = (
        " By an expression the broker cannot judge here, so it may have been passed over."
        if is_filtered
        else ""
    )
    return "done", f"Done with: its position is {group.offset:,}.{filtered}{_returned(group.group, later)}"


def _ahead(messages: int) -> str:
    if not messages:
        return "It is the next of the queue."
    if messages == 1:
        return "1 message of the queue comes before it."
    return f"{messages:,} messages of the queue come before it."


def _returned(group: str, later: list[StoredMessage]) -> str:
    """Return the sentence for how often a group has sent the message back; "" for never."""
    times = sum(copy.topic == retry_topic(group) and copy.reconsume_times > 0 for copy in later)
    if times > 1:
        return f" It was sent back {times:,} times since, as shown below."
    return " It was sent back since, as shown below." if times else ""


def _connected(clients: int) -> str:
    if not clients:
        return " None of its clients is connected."
    return f" {clients:,} of its clients {'is' if clients == 1 else 'are'} connected."
