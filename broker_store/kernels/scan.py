"""Scan: is a part of a log file a chain of valid records, and where does the chain end?

Recovery calls it in slices with the interpreter lock released; reads call `is_as_stored` for what an earlier
run wrote. A record is valid only if its length (91 to S_MAX_RECORD), magic, own log offset, body CRC, topic
and property syntax hold, and the CRC of the whole record where it has one (docs/durability.md R5, R6, G5). No
length from the file is used before it is bounded by the file's end.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.agreement import record_agrees
from broker_store.kernels.crc import crc32
from broker_store.kernels.memory import (
    get,
    has_zero_byte,
    inlined,
    load64,
    load_be32,
    load_be64,
    load_u8,
    put,
    store64,
)
from broker_store.kernels.offsets import PRE_BLANK_SIZE, UNIT_BYTES, UNIT_SIZE_AT, UNIT_TAGS_AT
from broker_store.kernels.record_crc import has_record_crc, is_record_crc_right
from broker_store.kernels.record_head import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_AFTER_TRIES,
    BODY_CRC_AT,
    CRC_MASK,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MIN_RECORD,
    SYS_FLAG_AT,
    bounded_parts,
    is_record_magic,
    store_time_at,
)

_NEVER = 1 << 62
_SUM_PRIME = 1099511628211


@inlined
def _is_topic(address, length):
    """True if the bytes match ^[%|a-zA-Z0-9_-]+$, the syntax of a topic name."""
    if length <= 0:
        return False
    for at in range(length):
        byte = load_u8(address + at)
        letter = (97 <= byte <= 122) or (65 <= byte <= 90) or (48 <= byte <= 57)
        if not (letter or byte == 37 or byte == 124 or byte == 95 or byte == 45):
            return False
    return True


@inlined
def check_record(record, left, place, max_record, check_crc, strict_above):
    """Return (size, 0) of the valid record at address `record`, or (0, REASON_*)."""
    if left < BLANK_BYTES:
        return 0, c.REASON_NOT_A_RECORD
    total = load_be32(record)
    if not is_record_magic(load_be32(record + MAGIC_AT)):
        return 0, c.REASON_NOT_A_RECORD
    if total < MIN_RECORD or total > max_record or total > left:
        return 0, c.REASON_LENGTH
    if load_be64(record + LOG_OFFSET_AT) != place:
        return 0, c.REASON_PLACE
    sys_flag, store_at, tries, body_length, name, name_length, properties, properties_length = bounded_parts(
        record, total
    )
    if tries == 0:
        return 0, c.REASON_LENGTH
    if not _is_topic(name, name_length):
        return 0, c.REASON_SYNTAX
    if load_be64(store_at) > strict_above and has_zero_byte(properties, properties_length):
        return 0, c.REASON_SYNTAX
    body = tries + BODY_AFTER_TRIES
    if (
        check_crc
        and body_length > 0
        and (crc32(body, body_length) & CRC_MASK) != load_be32(record + BODY_CRC_AT)
    ):
        return 0, c.REASON_BODY_CRC
    if (
        check_crc
        and has_record_crc(record + total, properties_length)
        and not is_record_crc_right(record, total)
    ):
        return 0, c.REASON_RECORD_CRC
    return total, 0


@inlined
def _note_time(times, place, store_ms):
    """Note a record whose store time is below that of the record before it."""
    before_ms = get(times, c.T_STEP_LAST_MS)
    if before_ms != 0 and store_ms < before_ms:
        count = get(times, c.T_STEP_COUNT)
        step = get(times, c.T_STEPS) + 24 * (count % get(times, c.T_STEP_ROOM))
        store64(step, place)
        store64(step + 8, before_ms)
        store64(step + 16, store_ms)
        put(times, c.T_STEP_COUNT, count + 1)
    put(times, c.T_STEP_LAST_MS, store_ms)


@inlined
def is_as_stored(record, size, place):
    """True if the record of `size` bytes at address `record`, all of it in memory, is what was written at
    `place`."""
    found, _ = check_record(record, size, place, size, True, _NEVER)
    return found == size


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def count_sound(address, base, table, count):
    """Return how many of the first of `count` records are as they were stored.

    `table` has a pair (log offset, size) for each; `address` has the bytes of the log from offset `base`.
    """
    for number in range(count):
        place, size = load64(table + 16 * number), load64(table + 16 * number + 8)
        if not is_as_stored(address + place - base, size, place):
            return number
    return count


@njit(types.int64(types.int64), cache=True, nogil=True)
def scan(context):
    """Walk valid records from S_AT; return EXHAUSTED (slice done), LOG_FILE_END (a blank) or BAD_RECORD (see
    S_REASON).

    With an agreement each record is also compared with queues and index, while it is in the processor's
    cache. A stop code of the comparison asks Python for a file or a delivery time; the record at S_AT is then
    read again.
    """
    address = get(context, c.S_ADDRESS)
    base = get(context, c.S_BASE)
    size = get(context, c.S_SIZE)
    slice_end = get(context, c.S_SLICE_END)
    max_record = get(context, c.S_MAX_RECORD)
    check_crc = get(context, c.S_CHECK_CRC) == 1
    strict_above = get(context, c.S_STRICT_ABOVE_MS)
    at = get(context, c.S_AT)
    count = get(context, c.S_COUNT)
    agreement = get(context, c.S_AGREEMENT)
    times = get(context, c.S_TIMES)
    topic = 0
    stopped = c.EXHAUSTED
    while at < slice_end:
        record = address + at
        if size - at >= BLANK_BYTES and load_be32(record + MAGIC_AT) == BLANK_MAGIC:
            stopped = c.LOG_FILE_END
            break
        total, reason = check_record(record, size - at, base + at, max_record, check_crc, strict_above)
        if reason != 0:
            put(context, c.S_REASON, reason)
            stopped = c.BAD_RECORD
            break
        if agreement != 0:
            answer, topic = record_agrees(agreement, topic, record, total, base + at)
            if answer == c.DIFFERS:
                put(agreement, c.A_END, base + at)
                put(context, c.S_AGREEMENT, 0)
                agreement = 0
            elif answer != c.DONE:
                stopped = answer
                break
        store_ms = load_be64(store_time_at(record, load_be32(record + SYS_FLAG_AT)))
        if times != 0:
            _note_time(times, base + at, store_ms)
        put(context, c.S_LAST_OFFSET, base + at)
        put(context, c.S_LAST_MS, store_ms)
        at += total
        count += 1
    put(context, c.S_AT, at)
    put(context, c.S_COUNT, count)
    return stopped


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def find_unit_break(address, count, log_end, expected_from, room):
    """Return the first of `count` units at `address` that names no place below `log_end`, or steps back;
    `count` when all are valid.

    The first unit must have a log offset of `expected_from` or more. Pre-blank units (0, 0x7FFFFFFF, 0) are
    valid (docs/spec/store-format.md section 4). The log offset after the last valid unit is written to
    `room`.
    """
    least = expected_from
    for number in range(count):
        unit = address + number * UNIT_BYTES
        offset = load_be64(unit)
        size = load_be32(unit + UNIT_SIZE_AT)
        if offset == 0 and size == PRE_BLANK_SIZE:
            continue
        if offset < least or size <= 0 or offset + size > log_end:
            return number
        least = offset + size
        store64(room, least)
    return count


@njit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def after_last_unit(address, count, log_end, least, most):
    """Return the number after the last of `count` units at `address` that may be valid, whatever lies before
    it; 0 without one.

    Its record has `least` to `most` bytes and ends at or below `log_end`.
    """
    for number in range(count, 0, -1):
        unit = address + (number - 1) * UNIT_BYTES
        offset = load_be64(unit)
        size = load_be32(unit + UNIT_SIZE_AT)
        if offset >= 0 and least <= size <= most and offset <= log_end - size:
            return number
    return 0


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, nogil=True)
def sum_units(address, count, before):
    """Return the sum of `count` units (or index entries) of 20 bytes at `address`, continued from the sum
    `before`.

    Each step is a bijection both of the sum before and of the word, so a change of one word always changes
    the sum.
    """
    total = before
    for number in range(count):
        unit = address + number * UNIT_BYTES
        total = total * _SUM_PRIME + load_be64(unit)
        total = total * _SUM_PRIME + load_be32(unit + UNIT_SIZE_AT)
        total = total * _SUM_PRIME + load_be64(unit + UNIT_TAGS_AT)
    return total


@njit(types.int64(types.int64, types.int64, types.int64), cache=True, nogil=True)
def data_end(address, start, end):
    """Return the offset after the last byte of [start, end) at `address` that is not zero, `start` when all
    are zero."""
    at = end
    while at - 8 >= start and load64(address + at - 8) == 0:
        at -= 8
    while at > start and load_u8(address + at - 1) == 0:
        at -= 1
    return at
