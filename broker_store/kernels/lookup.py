"""Key lookup: walk the index for a topic's key and copy the records that its entries name.

Hash collisions stay in: who asks compares the keys.
"""

from __future__ import annotations

from broker_store.kernels import context as c
from broker_store.kernels.index import walk_files
from broker_store.kernels.memory import copy_memory, get, inlined, load64, load_be32, load_be64, put, store64
from broker_store.kernels.objects import (
    answer,
    argument,
    bytes_data,
    door,
    has_failed,
    int_argument,
    let_go,
    new_bytes,
    new_int,
    new_list,
    new_named,
    put_into_list,
    put_into_tuple,
    text_argument,
    wrong_call,
)
from broker_store.kernels.read import LEAST_RECORD, ask
from broker_store.kernels.residency import is_in_memory, is_sound

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477


@inlined
def _sort(offsets, count):
    """Ascending, in place: turned round, since entries come newest first, and then each put where it belongs."""
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
def _plan(context, lookup, found):
    """Keep in K_FOUND the offsets at which a sound record begins, and put those records into R_RUNS: (LOOKUP_DONE, how many).
    Or say what has to be done first, when a record is not known to be in memory."""
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
        if place + LEAST_RECORD > file_size:
            continue
        address = get(get(writer, c.LOG_MAPS), number)
        if address == 0:
            ask(context, number, place, LEAST_RECORD)
            return c.LOOKUP_UNMAPPED, 0
        is_hot = log_offset >= get(context, c.R_HOT_FROM)
        known = get(get(writer, c.LOG_RESIDENCY), number)
        round_number = get(context, c.R_ROUND)
        if not is_hot and not is_in_memory(known, place, LEAST_RECORD, round_number):
            ask(context, number, place, LEAST_RECORD)
            return c.LOOKUP_ASK, 0
        record = address + place
        size = load_be32(record)
        magic = load_be32(record + 4)
        if (magic != _MAGIC_V1 and magic != _MAGIC_V2) or size < LEAST_RECORD or size > max_record or place + size > file_size:
            continue
        if log_offset + size > confirmed or load_be64(record + 28) != log_offset:
            continue
        if not is_hot and not is_in_memory(known, place, size, round_number):
            ask(context, number, place, size)
            return c.LOOKUP_ASK, 0
        if not is_hot and not is_sound(known, file_size, place, record, size, log_offset):
            return c.LOOKUP_DAMAGED, 0
        put(offsets, sound, log_offset)
        store64(runs + 16 * sound, record)
        store64(runs + 16 * sound + 8, size)
        sound += 1
    return c.LOOKUP_DONE, sound


@inlined
def _as_list(lookup, found):
    """The first `found` of K_FOUND."""
    offsets = new_list(found)
    if offsets != 0:
        for number in range(found):
            put_into_list(offsets, number, new_int(get(get(lookup, c.K_FOUND), number)))
    return offsets


@inlined
def _records(context, count):
    """A list of the first `count` of R_RUNS, each as bytes."""
    records = new_list(count)
    if records == 0:
        return 0
    for number in range(count):
        run = get(context, c.R_RUNS) + 16 * number
        size = load64(run + 8)
        record = new_bytes(0, size)
        if record == 0:
            let_go(records)
            return 0
        copy_memory(bytes_data(record), load64(run), size)
        put_into_list(records, number, record)
    return records


@door
def find_offsets(self, arguments, count):
    """(lookup, topic, key, most, begin ms, end ms) -> log offsets, newest first; LOOKUP_UNENTERED."""
    if count != 6:
        return wrong_call()
    lookup = int_argument(arguments, 0)
    if has_failed():
        return 0
    topic = text_argument(arguments, 1, lookup + 8 * c.K_TOPIC_LENGTH)
    key = text_argument(arguments, 2, lookup + 8 * c.K_KEY_LENGTH)
    most, begin_ms, end_ms = int_argument(arguments, 3), int_argument(arguments, 4), int_argument(arguments, 5)
    if has_failed():
        return 0
    if get(lookup, c.K_FILE_COUNT) < 0:
        return new_int(c.LOOKUP_UNENTERED)
    return answer(_as_list(lookup, walk_files(lookup, topic, key, most, begin_ms, end_ms)))


@door
def find_records(self, arguments, count):
    """(KeyQueryResult, read context, topic, key, most, begin ms, end ms) -> the result, in the order of the log; or LOOKUP_*"""
    if count != 7:
        return wrong_call()
    kind = argument(arguments, 0)
    context = int_argument(arguments, 1)
    if has_failed():
        return 0
    lookup = get(context, c.R_LOOKUP)
    topic = text_argument(arguments, 2, lookup + 8 * c.K_TOPIC_LENGTH)
    key = text_argument(arguments, 3, lookup + 8 * c.K_KEY_LENGTH)
    most, begin_ms, end_ms = int_argument(arguments, 4), int_argument(arguments, 5), int_argument(arguments, 6)
    if has_failed():
        return 0
    if get(lookup, c.K_FILE_COUNT) < 0:
        return new_int(c.LOOKUP_UNENTERED)
    found = walk_files(lookup, topic, key, most, begin_ms, end_ms)
    sound, end_ms, end_offset = 0, 0, 0
    if found > 0:
        _sort(get(lookup, c.K_FOUND), found)
        stopped, sound = _plan(context, lookup, found)
        if stopped != c.LOOKUP_DONE:
            return new_int(stopped)
        newest = get(get(lookup, c.K_FILES), 0)
        end_ms, end_offset = load_be64(newest + 8), load_be64(newest + 24)
    made = new_named(kind, 4)
    if made == 0:
        return 0
    put_into_tuple(made, 0, _as_list(lookup, sound))
    put_into_tuple(made, 1, _records(context, sound))
    put_into_tuple(made, 2, new_int(end_ms))
    put_into_tuple(made, 3, new_int(end_offset))
    return answer(made)
