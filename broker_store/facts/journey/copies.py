"""Other records of the same message: its waiting form, retries, dead letters, and what was made of it."""

from __future__ import annotations

from broker_store.facts import references
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey.search import MAX_COPIES, of_id
from broker_store.facts.journey.stop import State, Stop, StopKind, stop
from broker_store.facts.journey.waiting import FORMS, title_of, topic_in, words_of
from broker_store.facts.pointers import to_log
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import properties, traces
from broker_store.formats.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    dead_letter_topic,
    is_stored_topic,
    pop_retry_splits,
    pop_retry_topic,
    popping_group,
    retry_topic,
)
from broker_store.formats.record import StoredMessage
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC

MAX_GROUPS = 32  # whose retries and dead letters are searched
_OWN_TOPICS = frozenset({CHECK_MAX_TOPIC, *FORMS})


def copies(
    directory: StoreDirectory, facts: StoreFacts, message: StoredMessage
) -> tuple[list[StoredMessage], bool]:
    """Return other records of the same message, in the order of the log, and whether these are all."""
    found: list[StoredMessage] = []
    complete = True
    if message.unique_key:
        topics, few = _topics(directory, facts, [message])
        found, complete = of_id(directory, sorted(topics), message.unique_key)
        # What was found may name topics that the message itself does not.
        more, still_few = _topics(directory, facts, found)
        if more - topics:
            others, all_of_them = of_id(directory, sorted(more - topics), message.unique_key)
            found, complete = found + others, complete and all_of_them
        complete = complete and few and still_few
    half = message.prepared_transaction_offset
    if half > 0 and all(copy.log_offset != half for copy in found):
        prepared = references.message_at(directory, half)
        found += [prepared] if prepared is not None and prepared.topic == HALF_TOPIC else []
    found = sorted(
        (copy for copy in found if copy.log_offset != message.log_offset), key=lambda copy: copy.log_offset
    )
    return found[:MAX_COPIES], complete and len(found) <= MAX_COPIES


def _topics(
    directory: StoreDirectory, facts: StoreFacts, messages: list[StoredMessage]
) -> tuple[set[str], bool]:
    """Return the topics that may hold copies of messages, and whether none was left out."""
    named = (properties.REAL_TOPIC, properties.RETRY_TOPIC, properties.DLQ_ORIGIN_TOPIC)
    topics = {one.topic for one in messages} | {
        topic for one in messages for name in named if (topic := topic_in(one, name))
    }
    splits = [
        split
        for one in messages
        if properties.FIRST_POP_TIME in one.properties
        for split in pop_retry_splits(one.topic)
        if is_stored_topic(split[1]) and directory.queue_files(split[1], 0)
    ]
    topics |= {topic for _, topic in splits}
    groups = {group for group, _ in splits}
    groups |= {
        topic.removeprefix(prefix)
        for topic in topics
        for prefix in (RETRY_PREFIX, DLQ_PREFIX)
        if topic.startswith(prefix)
    }
    for topic in topics - _OWN_TOPICS:
        groups.update(facts.group_names(topic))
    of_groups = {
        of_group(group)
        for group in sorted(groups)[:MAX_GROUPS]
        for of_group in (retry_topic, dead_letter_topic)
    }
    of_groups |= {
        pop_retry_topic(topic, group, version=version)
        for group in sorted(groups)[:MAX_GROUPS]
        for topic in topics - _OWN_TOPICS
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        for version in (1, 2)
    }
    return topics | _OWN_TOPICS | of_groups, len(groups) <= MAX_GROUPS


def copy_stop(copy: StoredMessage, others: list[StoredMessage], facts: StoreFacts) -> Stop:
    """Return another record of the message as a stop; `others` are all its records."""
    return stop(
        *_words(copy, others, facts),
        at_ms=copy.store_timestamp,
        offset=copy.log_offset,
        pointer=to_log(copy.log_offset),
        log_offset=copy.log_offset,
    )


def _words(
    copy: StoredMessage, others: list[StoredMessage], facts: StoreFacts
) -> tuple[StopKind, str, State, str]:
    """Return (kind, title, state, sentence)."""
    form = FORMS.get(copy.topic)
    if form is not None:
        return form, title_of(form, copy), *words_of(form, copy, facts, others)
    if copy.topic == CHECK_MAX_TOPIC:
        sentence = "Its producer was asked too often what became of it, and did not say."
        return "unsettled", "Given up", "done", sentence
    if copy.topic.startswith(RETRY_PREFIX):
        popped_by = _popped_by(copy, others)
        title = "Sent back" if popped_by is None else "Came again"
        return "retry", title, *_retry_words(copy, popped_by, facts)
    if copy.topic.startswith(DLQ_PREFIX):
        group = copy.topic.removeprefix(DLQ_PREFIX)
        return "dead", "Given up", "done", f"{_given_up(group, copy.reconsume_times)} {_where(copy)}"
    sentence = f"Queue {copy.queue_id} of {copy.topic}, offset {copy.queue_offset:,}."
    return "real", "At its place", "done", sentence


def _where(copy: StoredMessage) -> str:
    return f"Offset {copy.queue_offset:,} of queue {copy.queue_id} of {copy.topic}."


def _popped_by(copy: StoredMessage, others: list[StoredMessage]) -> str | None:
    """Return the group to which a record of a pop retry topic comes again; None for another retry topic."""
    if properties.FIRST_POP_TIME not in copy.properties:
        return None
    groups = (popping_group(copy.topic, other.topic) for other in others if other.topic != copy.topic)
    return next(filter(None, groups), None)


def _retry_words(copy: StoredMessage, popped_by: str | None, facts: StoreFacts) -> tuple[State, str]:
    fate = facts.fate(copy)
    is_waiting = None if fate is None else fate.waits
    if is_waiting is None:
        taken = "Whether it was taken again is not known."
    else:
        taken = "It was not taken again yet." if is_waiting else "It was taken again since."
    if popped_by is None:
        sent_back = _sent_back(copy.topic.removeprefix(RETRY_PREFIX), copy.reconsume_times)
    else:
        sent_back = (
            f"To {popped_by}, for the {traces.ordinal(copy.reconsume_times)} time: it was not acknowledged "
            f"in time."
        )
    return "waiting" if is_waiting else "done", f"{sent_back} {_where(copy)} {taken}"


def _given_up(group: str, tries: int) -> str:
    if tries < 1:
        return f"{group} gave it up. How many tries it had is not stated."
    return f"{group} gave it up after {tries:,} {'try' if tries == 1 else 'tries'}."


def _sent_back(group: str, tries: int) -> str:
    """A program puts a record without a failed try into a group's retry topic when it sends a dead letter
    again."""
    if tries > 0:
        return f"By {group}, for the {traces.ordinal(tries)} time."
    return (
        f"To {group} alone, by its retry topic; no failed try is counted, as when a dead letter is "
        f"sent again."
    )
