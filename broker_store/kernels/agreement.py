"""Agreement: does recovery's scan find in queues and index what each record of the log must have there?

The walk is that of dispatch, but nothing is written: a unit and each entry are compared byte for byte with
what dispatch would write. What agrees need not be trusted because a sync is supposed to have written it, and
need not be written again. The first record with something missing or different ends the comparison; from
there on dispatch writes units and entries again.
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.dispatch import delivery_ms, find_properties, find_queue, find_topic
from broker_store.kernels.index import java_hash, key_hash, seconds_since
from broker_store.kernels.memory import (
    find_byte,
    get,
    inlined,
    load_be32,
    load_be64,
    put,
    same_bytes,
)
from broker_store.kernels.offsets import (
    ENTRY_BYTES,
    ENTRY_LOG_OFFSET_AT,
    ENTRY_SECONDS_AT,
    UNIT_BYTES,
    UNIT_SIZE_AT,
    UNIT_TAGS_AT,
)
from broker_store.kernels.record_head import QUEUE_ID_AT, QUEUE_OFFSET_AT, is_indexed, is_queued, parts_of

_BLANK = 32


@inlined
def _unit_agrees(
    agreement,
    topic,
    queue_id,
    record,
    total,
    place,
    tags,
    tags_length,
    properties,
    properties_length,
    store_ms,
):
    queue = find_queue(topic, queue_id)
    if queue == 0:
        return c.DIFFERS
    unit = load_be64(record + QUEUE_OFFSET_AT)
    if unit < 0 or unit >= get(queue, c.Q_DISPATCHED):
        return c.DIFFERS
    if unit < get(queue, c.Q_FILE_FIRST) or unit >= get(queue, c.Q_FILE_END):
        put(agreement, c.A_QUEUE, queue)
        put(agreement, c.A_UNIT, unit)
        return c.QUEUE_FILE_END
    at = (unit - get(queue, c.Q_FILE_FIRST)) * UNIT_BYTES
    found = get(queue, c.Q_FILE_ADDRESS) + at
    if load_be64(found) > place:
        put(agreement, c.A_QUEUE, queue)
        put(agreement, c.A_UNIT, unit)
        return c.LATER_UNIT
    if load_be64(found) != place or load_be32(found + UNIT_SIZE_AT) != total:
        return c.DIFFERS
    expected = java_hash(0, tags, tags_length) if tags != 0 else 0
    if get(topic, c.T_DELAYED) == 1:
        writer = get(agreement, c.A_WRITER)
        due_ms = delivery_ms(writer, properties, properties_length, store_ms)
        if due_ms > 0:
            expected = due_ms
        elif due_ms < 0:
            if get(writer, c.TAGS_CODE_AT) != place:
                return c.DELAYED_RECORD
            expected = get(writer, c.TAGS_CODE)
    if load_be64(found + UNIT_TAGS_AT) != expected:
        return c.DIFFERS
    put(queue, c.Q_AGREED, unit + 1)
    return c.DONE


@inlined
def _entry_agrees(agreement, seen, java, place, store_ms):
    """Compare entry `seen` of the record: DONE, DIFFERS, or INDEX_FULL at the end of the file."""
    if seen < get(agreement, c.A_KEYS_SEEN):
        return c.DONE
    number = get(agreement, c.A_ENTRY_AT)
    if number >= get(agreement, c.A_ENTRY_END):
        return c.INDEX_FULL
    entry = get(agreement, c.A_ENTRIES) + number * ENTRY_BYTES
    if load_be32(entry) != key_hash(java) or load_be64(entry + ENTRY_LOG_OFFSET_AT) != place:
        return c.DIFFERS
    begin_ms = get(agreement, c.A_BEGIN_MS)
    if number == 1:
        # Its seconds count from the end of the file before, or are 0; those of later entries count from the
        # time of this record.
        if begin_ms != store_ms or get(agreement, c.A_BEGIN_OFFSET) != place:
            return c.DIFFERS
        begin_ms = get(agreement, c.A_BEFORE_MS)
    found = load_be32(entry + ENTRY_SECONDS_AT)
    if found != seconds_since(begin_ms, store_ms) and not (number == 1 and found == 0):
        return c.DIFFERS
    put(agreement, c.A_ENTRY_AT, number + 1)
    put(agreement, c.A_KEYS_SEEN, seen + 1)
    put(agreement, c.A_LAST_MS, store_ms)
    put(agreement, c.A_LAST_OFFSET, place)
    return c.DONE


@inlined
def _is_without_tag(agreement, place):
    """True if the index continues with a later record, where it may lack entries of tags."""
    tags, number = get(agreement, c.A_TAGS), get(agreement, c.A_ENTRY_AT)
    if tags == 0:
        return False
    if number >= get(agreement, c.A_ENTRY_END):
        return tags == 2
    return load_be64(get(agreement, c.A_ENTRIES) + number * ENTRY_BYTES + 4) > place


@inlined
def _entries_agree(
    agreement, topic, place, store_ms, keys, keys_length, tags, tags_length, unique, unique_length
):
    """Compare the record's entries in the order of dispatch: unique key, each key, tag."""
    prefix = get(topic, c.T_KEY_HASH)
    seen = 0
    if unique != 0:
        answer = _entry_agrees(agreement, seen, java_hash(prefix, unique, unique_length), place, store_ms)
        if answer != c.DONE:
            return answer
        seen += 1
    at, end = keys, keys + keys_length
    while at < end:
        stop = find_byte(at, end, _BLANK)
        if stop > at:
            answer = _entry_agrees(agreement, seen, java_hash(prefix, at, stop - at), place, store_ms)
            if answer != c.DONE:
                return answer
            seen += 1
        at = stop + 1
    if tags != 0 and not _is_without_tag(agreement, place):
        hashed = ((prefix * 31 + 84) * 31 + 35) & 0xFFFFFFFF  # "T#"
        answer = _entry_agrees(agreement, seen, java_hash(hashed, tags, tags_length), place, store_ms)
        if answer != c.DONE:
            return answer
    put(agreement, c.A_KEYS_SEEN, 0)
    return c.DONE


@inlined
def record_agrees(agreement, topic, record, total, place):
    """Return (DONE, DIFFERS or what Python must provide first; the topic's row) for a record that passed
    `check_record`.

    `topic` is the row of the record before, often the same one, which saves the lookup.
    """
    sys_flag, time_at, _, _, name, name_length, properties, properties_length = parts_of(record)
    if (
        topic == 0
        or get(topic, c.T_LENGTH) != name_length
        or not same_bytes(get(topic, c.T_NAME), name, name_length)
    ):
        topic = find_topic(get(agreement, c.A_WRITER), name, name_length)
        if topic == 0:
            return (c.UNKNOWN_QUEUE if get(agreement, c.A_STOPS_WITHOUT_QUEUE) == 1 else c.DIFFERS), 0
    store_ms = load_be64(time_at)
    keys, keys_length, tags, tags_length, unique, unique_length = find_properties(
        properties, properties_length
    )
    has_unit = is_queued(sys_flag)
    if place >= get(topic, c.T_DELETED_BEFORE):
        queue_id = load_be32(record + QUEUE_ID_AT)
        if has_unit:
            answer = _unit_agrees(
                agreement,
                topic,
                queue_id,
                record,
                total,
                place,
                tags,
                tags_length,
                properties,
                properties_length,
                store_ms,
            )
            if answer != c.DONE:
                return answer, topic
        elif find_queue(topic, queue_id) == 0:
            return c.DIFFERS, topic  # dispatch has to create the queue
    if is_indexed(sys_flag) and place >= get(agreement, c.A_INDEX_FROM):
        return _entries_agree(
            agreement, topic, place, store_ms, keys, keys_length, tags, tags_length, unique, unique_length
        ), topic
    return c.DONE, topic
