"""Timed: what the messages of the timer topic state about their time, read from their records in one call.

    records, back to back ──► a row for each: wanted delivery time, assigned second, real topic, whether it
                              deletes another message

The results equal those of Python's reader of one message (`properties.decode`, numbers as Java's
Long.parseLong takes them). Texts are not copied: a row has their places. Lengths are verified; from a record
whose lengths do not add up on, rows are not sound.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.index import java_hash
from broker_store.kernels.memory import (
    find_byte,
    inlined,
    load64,
    load_be32,
    load_be64,
    load_few,
    load_u8,
    same_bytes,
    store64,
)
from broker_store.kernels.record_head import (
    LOG_OFFSET_AT,
    MAGIC_AT,
    MIN_RECORD,
    NAME_END,
    PROPERTY_END,
    QUEUE_OFFSET_AT,
    bounded_parts,
    is_record_magic,
)

T_SOUND = 0  # 1: a whole record of the wanted topic; other rows have no other value
T_QUEUE_OFFSET = 1
T_LOG_OFFSET = 2
T_SIZE = 3
T_STORED_MS = 4
T_ASKED_MS = 5  # wanted delivery time, NO_NUMBER when there is none or no valid number
T_OUT_MS = 6  # the second that was assigned to it, NO_NUMBER without one
T_TOPIC_AT = 7  # place and length of its real topic, 0 without one
T_TOPIC_LENGTH = 8
T_TOPIC_HASH = 9
T_DELETES = 10  # 1: it names another message that is to be deleted
T_RECORD_AT = 11
T_WORDS = 12

NO_NUMBER = -(1 << 63)
_FAR = 1 << 62
_MAX_SECONDS = 1 << 50


def _word(text: str) -> int:
    """Return up to eight letters as they lie in memory, as a signed word."""
    return int.from_bytes(text.encode().ljust(8, b"\0"), "little")


_TIMER_DE, _TIMER_OU, _REAL_TOP = _word("TIMER_DE"), _word("TIMER_OU"), _word("REAL_TOP")
_LAY_SEC, _LAY_MS, _LIVER_MS, _L_UNIQKE, _T_MS, _IC = (
    _word("LAY_SEC"),
    _word("LAY_MS"),
    _word("LIVER_MS"),
    _word("L_UNIQKE"),
    _word("T_MS"),
    _word("IC"),
)
_Y = ord("Y")


@inlined
def _number(at, length):
    """Parse as Long.parseLong, between -2**62 and 2**62; NO_NUMBER for invalid text."""
    place, negative = 0, False
    if length > 0 and (load_u8(at) == 43 or load_u8(at) == 45):
        negative = load_u8(at) == 45
        place = 1
    if length == place or length - place > 19:
        return NO_NUMBER
    value = 0
    while place < length:
        digit = load_u8(at + place) - 48
        if digit < 0 or digit > 9:
            return NO_NUMBER
        if value > 922337203685477580 or (value == 922337203685477580 and digit > (8 if negative else 7)):
            return NO_NUMBER
        # One more digit may not fit 64 bits. The value stays at _FAR, which is beyond every time that is
        # allowed.
        value = min(10 * value + digit, _FAR) if value < 922337203685477580 else _FAR
        place += 1
    return -value if negative else value


@inlined
def _read_properties(row, properties, length, stored_ms):
    """Write to the row what the properties state."""
    seconds_at, seconds_length, delay_at, delay_length, deliver_at, deliver_length, out_at, out_length = (
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    topic, topic_length, deletes = 0, 0, 0
    at, end = properties, properties + length
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        mark = find_byte(at, stop, NAME_END)
        size = mark - at
        value, value_length = mark + 1, stop - mark - 1
        if 9 < size < 18 and value_length > 0:
            first = load64(at)
            second = load64(at + 8) if size >= 16 else load_few(at + 8, size - 8)
            if first == _TIMER_DE:
                if size == 15 and second == _LAY_SEC:
                    seconds_at, seconds_length = value, value_length
                elif size == 14 and second == _LAY_MS:
                    delay_at, delay_length = value, value_length
                elif size == 16 and second == _LIVER_MS:
                    deliver_at, deliver_length = value, value_length
                elif size == 17 and second == _L_UNIQKE and load_u8(at + 16) == _Y:
                    deletes = 1
            elif first == _TIMER_OU and size == 12 and second == _T_MS:
                out_at, out_length = value, value_length
            elif first == _REAL_TOP and size == 10 and second == _IC:
                topic, topic_length = value, value_length
        at = stop + 1
    asked_ms = NO_NUMBER
    if seconds_length > 0:
        seconds = _number(seconds_at, seconds_length)
        if seconds != NO_NUMBER:
            asked_ms = stored_ms + 1000 * min(max(seconds, -_MAX_SECONDS), _MAX_SECONDS)
    elif delay_length > 0:
        delay_ms = _number(delay_at, delay_length)
        if delay_ms != NO_NUMBER:
            asked_ms = stored_ms + delay_ms
    elif deliver_length > 0:
        asked_ms = _number(deliver_at, deliver_length)
    store64(row + 8 * T_ASKED_MS, asked_ms)
    store64(row + 8 * T_OUT_MS, _number(out_at, out_length))
    store64(row + 8 * T_TOPIC_AT, topic)
    store64(row + 8 * T_TOPIC_LENGTH, topic_length)
    store64(row + 8 * T_TOPIC_HASH, java_hash(0, topic, topic_length) if topic_length > 0 else 0)
    store64(row + 8 * T_DELETES, deletes)


@njit(types.void(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64), cache=True)
def read_timed(records, length, rows, count, topic, topic_length):
    """Write a row for each of `count` records; those of another topic are not sound. Places count from
    `records`."""
    at, end = records, records + length
    for number in range(count):
        row = rows + 8 * T_WORDS * number
        store64(row + 8 * T_SOUND, 0)
        record = at
        if end - record < MIN_RECORD:
            continue
        total = load_be32(record)
        if not is_record_magic(load_be32(record + MAGIC_AT)) or total < MIN_RECORD or total > end - record:
            at = end
            continue
        at = stop = record + total
        _, stored_at, tries, _, name, name_length, properties, _ = bounded_parts(record, total)
        if tries == 0 or name_length != topic_length or not same_bytes(name, topic, topic_length):
            continue
        store64(row + 8 * T_SOUND, 1)
        store64(row + 8 * T_QUEUE_OFFSET, load_be64(record + QUEUE_OFFSET_AT))
        store64(row + 8 * T_LOG_OFFSET, load_be64(record + LOG_OFFSET_AT))
        store64(row + 8 * T_SIZE, total)
        store64(row + 8 * T_STORED_MS, load_be64(stored_at))
        _read_properties(row, properties, stop - properties, load_be64(stored_at))
        store64(row + 8 * T_TOPIC_AT, load64(row + 8 * T_TOPIC_AT) - records)
        store64(row + 8 * T_RECORD_AT, record - records)
