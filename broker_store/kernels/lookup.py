"""Key lookup: walk the index for a topic's key and copy the records that its entries name.

Header, slot, entries and records may lie in any page of files that together are larger than memory, so a page
is touched only when it is known to be in memory (engine/disk/residency.py). At the first other page the
lookup stops; Python asks about the page, and the lookup starts again. Hash collisions stay in the result: the
caller compares the keys.

A record of an earlier run is compared with its queue's unit when it is first read, as a read of its queue
does (kernels/read.py). An entry that leads to no sound record stops the lookup: a thread then finds out what
is damaged (engine/read/reads.py).
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.dispatch import find_queue, find_topic
from broker_store.kernels.index import java_hash, key_hash
from broker_store.kernels.memory import copy_memory, get, inlined, load64, load_be32, load_be64, put, store64
from broker_store.kernels.objects import (
    answer,
    argument,
    bytes_data,
    decref,
    entry_point,
    has_failed,
    int_argument,
    new_bytes,
    new_int,
    new_list,
    new_named,
    new_tuple,
    put_into_list,
    put_into_tuple,
    text_argument,
    wrong_call,
)
from broker_store.kernels.of_unit import states_topic_and_tag
from broker_store.kernels.offsets import (
    ENTRY_BYTES,
    ENTRY_LOG_OFFSET_AT,
    ENTRY_PREVIOUS_AT,
    ENTRY_SECONDS_AT,
    HEADER_BYTES,
    HEADER_COUNT_AT,
    HEADER_END_TIME_AT,
    SLOT_BYTES,
    UNIT_BYTES,
    UNIT_SIZE_AT,
    UNIT_TAGS_AT,
)
from broker_store.kernels.read import ask, units_holding
from broker_store.kernels.record_head import (
    LOG_OFFSET_AT,
    MAGIC_AT,
    MIN_RECORD,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    is_queued,
    is_record_magic,
    parts_of,
)
from broker_store.kernels.residency import is_checked, is_in_memory, is_sound, mark_checked
from broker_store.kernels.scan import is_as_stored

_NUMBER_SIGN = 35  # between topic and key


@inlined
def _may_touch(context, known, file_number, place, size):
    """True if the bytes of the index file are in memory; if not, note them to be asked about."""
    if is_in_memory(known, place, size, get(context, c.R_ROUND)):
        return True
    ask(context, file_number, place, size)
    return False


@inlined
def _walk_chain(context, file_number, hashed, begin_ms, end_ms, found, most):
    """Append log offsets of matching entries, newest first, after the `found` in K_FOUND, to at most `most`;
    return their number, -1 when pages must be asked about.

    The walk ends where Apache's ends, and also where an entry number does not decrease: a chain of a damaged
    file may loop (docs/spec/store-format.md section 5, Query).
    """
    lookup = get(context, c.R_LOOKUP)
    target = get(lookup, c.K_FOUND)
    slots = get(lookup, c.K_SLOTS)
    address = get(get(lookup, c.K_FILES), file_number)
    known = get(get(lookup, c.K_RESIDENCY), file_number)
    begin = load_be64(address)
    count = min(load_be32(address + HEADER_COUNT_AT), get(lookup, c.K_ENTRIES))
    slot_at = HEADER_BYTES + (hashed % slots) * SLOT_BYTES
    if not _may_touch(context, known, file_number, slot_at, 4):
        return -1
    number = load_be32(address + slot_at)
    while 0 < number < count and found < most:
        entry_at = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
        if not _may_touch(context, known, file_number, entry_at, ENTRY_BYTES):
            return -1
        entry = address + entry_at
        seconds = load_be32(entry + ENTRY_SECONDS_AT)
        if seconds < 0:
            break
        at_ms = begin + seconds * 1000
        if load_be32(entry) == hashed and begin_ms <= at_ms <= end_ms:
            put(target, found, load_be64(entry + ENTRY_LOG_OFFSET_AT))
            found += 1
        previous = load_be32(entry + ENTRY_PREVIOUS_AT)
        if previous <= 0 or previous >= number or at_ms < begin_ms:
            break
        number = previous
    return found


@inlined
def walk_files(context, topic, key, most, begin_ms, end_ms):
    """Write the log offsets of the key's entries to K_FOUND, newest file first, newest entry first; return
    their number, -1 when pages must be asked about."""
    lookup = get(context, c.R_LOOKUP)
    hashed = (java_hash(0, topic, get(lookup, c.K_TOPIC_LENGTH)) * 31 + _NUMBER_SIGN) & 0xFFFFFFFF
    hashed = key_hash(java_hash(hashed, key, get(lookup, c.K_KEY_LENGTH)))
    most = min(most, get(lookup, c.K_FOUND_ROOM))
    found = 0
    for number in range(get(lookup, c.K_FILE_COUNT)):
        if found >= most:
            break
        if not _may_touch(context, get(get(lookup, c.K_RESIDENCY), number), number, 0, HEADER_BYTES):
            return -1
        address = get(get(lookup, c.K_FILES), number)
        if load_be32(address + HEADER_COUNT_AT) <= 1:
            continue
        begin = load_be64(address)
        if begin <= end_ms and load_be64(address + HEADER_END_TIME_AT) >= begin_ms:
            found = _walk_chain(context, number, hashed, begin_ms, end_ms, found, most)
            if found < 0:
                return -1
        if begin < begin_ms:
            break  # older files end before the requested time
    return found


@inlined
def _sort(offsets, count):
    """Sort `count` offsets in place, ascending: reverse them, since entries come newest first, then insertion
    sort."""
    for number in range(count // 2):
        offset = get(offsets, number)
        put(offsets, number, get(offsets, count - 1 - number))
        put(offsets, count - 1 - number, offset)
    for number in range(1, count):
        offset = get(offsets, number)
        at = number
        while at > 0 and get(offsets, at - 1) > offset:
            put(offsets, at, get(offsets, at - 1))
            at -= 1
        put(offsets, at, offset)


@inlined
def _compare(context, known, file_size, place, record, size, log_offset):
    """Compare a record of an earlier run, all of it in memory, with what was stored and with its unit, once.

    LOOKUP_DONE when they agree, LOOKUP_DOUBTFUL when not, else what has to be done first.
    """
    if is_checked(known, file_size, place):
        return c.LOOKUP_DONE
    if not is_as_stored(record, size, log_offset):
        return c.LOOKUP_DOUBTFUL
    sys_flag, _, _, _, name, name_length, _, _ = parts_of(record)
    topic = find_topic(get(context, c.R_WRITER), name, name_length)
    if topic == 0:
        return c.LOOKUP_DOUBTFUL
    if is_queued(sys_flag) and log_offset >= get(topic, c.T_DELETED_BEFORE):
        queue = find_queue(topic, load_be32(record + QUEUE_ID_AT))
        number = load_be64(record + QUEUE_OFFSET_AT)
        if queue == 0 or number < get(queue, c.Q_MINIMUM) or number >= get(queue, c.Q_DISPATCHED):
            return c.LOOKUP_DOUBTFUL
        units, first, _, units_known = units_holding(queue, number)
        if units == 0:
            ask(context, queue, number, 0)
            return c.LOOKUP_UNENTERED_UNITS
        at = (number - first) * UNIT_BYTES
        if units_known != 0 and not is_in_memory(units_known, at, UNIT_BYTES, get(context, c.R_ROUND)):
            ask(context, queue, at, UNIT_BYTES)
            return c.LOOKUP_ASK_UNITS
        unit = units + at
        if load_be64(unit) != log_offset or load_be32(unit + UNIT_SIZE_AT) != size:
            return c.LOOKUP_DOUBTFUL
        if not states_topic_and_tag(
            record, name, name_length, get(topic, c.T_DELAYED) == 1, load_be64(unit + UNIT_TAGS_AT)
        ):
            return c.LOOKUP_DOUBTFUL
    mark_checked(known, file_size, place)
    return c.LOOKUP_DONE


@inlined
def _plan(context, lookup, found, is_by_key):
    """Keep in K_FOUND the offsets at which a sound record begins, and put those records into R_RUNS.

    Returns (LOOKUP_DONE, their number), or what has to be done first when a record is not known to be in
    memory. By key, returns LOOKUP_DOUBTFUL for an offset without a record: an entry of the index leads to it.
    """
    writer = get(context, c.R_WRITER)
    offsets = get(lookup, c.K_FOUND)
    runs = get(context, c.R_RUNS)
    log_first = get(writer, c.LOG_FIRST)
    confirmed = get(writer, c.CONFIRMED)
    max_record = get(writer, c.MAX_RECORD)
    file_size = get(writer, c.LOG_FILE_BYTES)
    sound = 0
    for entry in range(found):
        log_offset = get(offsets, entry)
        if log_offset < log_first or log_offset >= confirmed:
            continue
        number = (log_offset - log_first) // file_size
        place = (log_offset - log_first) - number * file_size
        if place + MIN_RECORD > file_size:
            if is_by_key:
                return c.LOOKUP_DOUBTFUL, 0
            continue
        address = get(get(writer, c.LOG_MAPS), number)
        if address == 0:
            ask(context, number, place, MIN_RECORD)
            return c.LOOKUP_UNMAPPED, 0
        is_hot = log_offset >= get(context, c.R_HOT_FROM)
        known = get(get(writer, c.LOG_RESIDENCY), number)
        round_number = get(context, c.R_ROUND)
        if not is_hot and not is_in_memory(known, place, MIN_RECORD, round_number):
            ask(context, number, place, MIN_RECORD)
            return c.LOOKUP_ASK, 0
        record = address + place
        size = load_be32(record)
        magic = load_be32(record + MAGIC_AT)
        is_whole = is_record_magic(magic) and MIN_RECORD <= size <= min(
            max_record, file_size - place, confirmed - log_offset
        )
        if not is_whole or load_be64(record + LOG_OFFSET_AT) != log_offset:
            if is_by_key:
                return c.LOOKUP_DOUBTFUL, 0
            continue
        if not is_hot and not is_in_memory(known, place, size, round_number):
            ask(context, number, place, size)
            return c.LOOKUP_ASK, 0
        if not is_hot and is_by_key:
            stopped = _compare(context, known, file_size, place, record, size, log_offset)
            if stopped != c.LOOKUP_DONE:
                return stopped, 0
        elif not is_hot and not is_sound(known, file_size, place, record, size, log_offset):
            return c.LOOKUP_DOUBTFUL, 0
        put(offsets, sound, log_offset)
        store64(runs + 16 * sound, record)
        store64(runs + 16 * sound + 8, size)
        sound += 1
    return c.LOOKUP_DONE, sound


@inlined
def _as_list(lookup, found):
    """Return a list of the first `found` offsets of K_FOUND."""
    offsets = new_list(found)
    if offsets != 0:
        for number in range(found):
            put_into_list(offsets, number, new_int(get(get(lookup, c.K_FOUND), number)))
    return offsets


@inlined
def _as_bytes(context, number):
    """Return the bytes of run `number` of R_RUNS."""
    run = get(context, c.R_RUNS) + 16 * number
    size = load64(run + 8)
    record = new_bytes(0, size)
    if record != 0:
        copy_memory(bytes_data(record), load64(run), size)
    return record


@inlined
def _records(context, count):
    """Return a list of the first `count` runs of R_RUNS, each as bytes."""
    records = new_list(count)
    if records == 0:
        return 0
    for number in range(count):
        record = _as_bytes(context, number)
        if record == 0:
            decref(records)
            return 0
        put_into_list(records, number, record)
    return records


@entry_point
def find_records(self, arguments, count):
    """(KeyQueryResult, read context, topic, key, most, begin ms, end ms) -> the result, in the order of the
    log; or LOOKUP_*"""
    if count != 7:
        return wrong_call()
    kind = argument(arguments, 0)
    context = int_argument(arguments, 1)
    if has_failed():
        return 0
    lookup = get(context, c.R_LOOKUP)
    topic = text_argument(arguments, 2, lookup + 8 * c.K_TOPIC_LENGTH)
    key = text_argument(arguments, 3, lookup + 8 * c.K_KEY_LENGTH)
    most, begin_ms, end_ms = (
        int_argument(arguments, 4),
        int_argument(arguments, 5),
        int_argument(arguments, 6),
    )
    if has_failed():
        return 0
    if get(lookup, c.K_FILE_COUNT) < 0:
        return new_int(c.LOOKUP_UNENTERED)
    found = walk_files(context, topic, key, most, begin_ms, end_ms)
    if found < 0:
        return new_int(c.LOOKUP_ASK_INDEX)
    sound, end_ms, end_offset = 0, 0, 0
    if found > 0:
        _sort(get(lookup, c.K_FOUND), found)
        stopped, sound = _plan(context, lookup, found, True)
        if stopped != c.LOOKUP_DONE:
            return new_int(stopped)
        newest = get(get(lookup, c.K_FILES), 0)  # its header was read above
        end_ms, end_offset = load_be64(newest + 8), load_be64(newest + 24)
    made = new_named(kind, 5)
    if made == 0:
        return 0
    put_into_tuple(made, 0, _as_list(lookup, sound))
    put_into_tuple(made, 1, _records(context, sound))
    put_into_tuple(made, 2, new_int(end_ms))
    put_into_tuple(made, 3, new_int(end_offset))
    put_into_tuple(made, 4, new_tuple(0))
    return answer(made)


@entry_point
def read_record(self, arguments, count):
    """(read context, log offset) -> the record, no bytes when no sound one begins there; or LOOKUP_*"""
    if count != 2:
        return wrong_call()
    context, log_offset = int_argument(arguments, 0), int_argument(arguments, 1)
    if has_failed():
        return 0
    put(get(get(context, c.R_LOOKUP), c.K_FOUND), 0, log_offset)
    stopped, sound = _plan(context, get(context, c.R_LOOKUP), 1, False)
    if stopped != c.LOOKUP_DONE:
        return new_int(stopped)
    return _as_bytes(context, 0) if sound else new_bytes(0, 0)
