"""Read: follow the units of a queue and copy the records that they name, back to back, as a pull's answer has
them.

First the plan: which records, within which limits. It makes sure that reading them does not wait for the
disk, and that records of an earlier run are as they were stored. Then one bytes object is made for all of
them and each is copied once; neighbours in the log are copied together.

    queue file   ... │ unit │ unit │ unit │ unit │ ...           unit: log offset, size, tags code
                        │      │      │      └───────────────────────┐
                        │      │      └ its tag is not wanted: passed │
    log          ...  │ record record │   other queues' records   │ record │ ...
                      └───────┬───────┘                           └───┬────┘
    R_RUNS             run 1: address, bytes                        run 2          the plan
                              └───────────────────┬───────────────────┘
    answer                             record record record                        one copy each

A read may judge each record by its properties (R_JUDGE, judge.py). What only Python can judge stops the plan
with READ_JUDGE; Python calls again with its verdict, and the plan goes on with what it has.

The loop runs this kernel, so it touches no page that may be on the disk only. What this run wrote is in
memory: log offsets from R_HOT_FROM on, units from Q_HOT on. For other pages the residency bytes say whether
they were in memory in this round (kernels/residency.py). A page that is not known to be stops the plan with
READ_ASK. Python asks the system and calls again, or has a thread read by position (engine/read/cold.py).
"""

from __future__ import annotations

from numba import njit, types

from broker_store.formats.filter_program import HEAD_STEPS
from broker_store.kernels import context as c
from broker_store.kernels.judge import judge
from broker_store.kernels.memory import copy_memory, get, inlined, load64, load_be32, load_be64, put, store64
from broker_store.kernels.objects import (
    answer,
    bytes_data,
    decref,
    entry_point,
    has_failed,
    int_argument,
    new_bytes,
    new_int,
    new_tuple,
    put_into_tuple,
    wrong_call,
)
from broker_store.kernels.of_unit import is_light, states_place, states_topic_and_tag
from broker_store.kernels.offsets import UNIT_BYTES, UNIT_SIZE_AT, UNIT_TAGS_AT
from broker_store.kernels.record_head import MIN_RECORD, parts_of
from broker_store.kernels.residency import is_checked, is_in_memory, mark_checked
from broker_store.kernels.scan import is_as_stored


@inlined
def _wanted(tags_code, tags, tag_count):
    """True if the low 32 bits equal those of a wanted tag, which is how Apache compares."""
    low = tags_code & 0xFFFFFFFF
    for number in range(tag_count):
        if get(tags, number) & 0xFFFFFFFF == low:
            return True
    return False


@inlined
def ask(context, file_number, place, size):
    """Note what Python has to ask about before the read can continue."""
    put(context, c.R_ASK_FILE, file_number)
    put(context, c.R_ASK_PLACE, place)
    put(context, c.R_ASK_BYTES, size)


@njit(types.UniTuple(types.int64, 2)(types.int64, types.int64), cache=True)
def limits(context, log_offset):
    """Return (records, bytes) that an answer starting with the record at `log_offset` may have.

    The limits are lower where Apache would read from the disk, which it derives from the distance to the
    log's end.
    """
    writer, distant = get(context, c.R_WRITER), get(context, c.R_DISTANT)
    wrote = get(writer, c.LOG_BASE) + get(writer, c.LOG_AT)
    # While the log is shorter than that distance all of it may be in memory.
    if wrote - get(writer, c.LOG_FIRST) > distant and wrote - log_offset > distant:
        return get(context, c.R_DISTANT_COUNT), get(context, c.R_DISTANT_BYTES)
    return get(context, c.R_NEAR_COUNT), get(context, c.R_NEAR_BYTES)


@inlined
def _agrees(known, file_size, place, address, size, log_offset, queue, number, tags_code):
    """True if a record of an earlier run, all of it in memory, is as it was stored and agrees with its unit.

    Topic and tag are compared when it is first read, queue and number each time, which takes two words of its
    head.
    """
    topic = get(queue, c.Q_TOPIC)
    name, length = get(topic, c.T_NAME), get(topic, c.T_LENGTH)
    # Queues whose units name records of another topic cannot be compared by topic and place (is_light).
    is_own = not is_light(name, length)
    if is_checked(known, file_size, place):
        return not is_own or states_place(address, get(queue, c.Q_ID), number)
    if not is_as_stored(address, size, log_offset):
        return False
    if is_own:
        if not states_place(address, get(queue, c.Q_ID), number):
            return False
        if not states_topic_and_tag(address, name, length, get(topic, c.T_DELAYED) == 1, tags_code):
            return False
    mark_checked(known, file_size, place)
    return True


@inlined
def _hides_damage(context, queue, number, log_offset, size, tags_code):
    """True if a unit that the tag filter skips contradicts its record, of an earlier run.

    Each record is checked once, and only where it is known to be in memory: the pages of skipped records are
    not asked about.
    """
    # A changed tags code would hide a message from its consumer without a trace; this is where it is found.
    writer = get(context, c.R_WRITER)
    log_first, file_size = get(writer, c.LOG_FIRST), get(writer, c.LOG_FILE_BYTES)
    if log_offset >= get(context, c.R_HOT_FROM) or log_offset < log_first or size < MIN_RECORD:
        return False
    file = (log_offset - log_first) // file_size
    place = (log_offset - log_first) - file * file_size
    address = get(get(writer, c.LOG_MAPS), file)
    if address == 0 or place + size > file_size or log_offset + size > get(writer, c.CONFIRMED):
        return False
    known = get(get(writer, c.LOG_RESIDENCY), file)
    if is_checked(known, file_size, place) or not is_in_memory(known, place, size, get(context, c.R_ROUND)):
        return False
    return not _agrees(known, file_size, place, address + place, size, log_offset, queue, number, tags_code)


@inlined
def units_holding(queue, number):
    """Return (address, number of the first unit, number after the last, residency bytes) of the mapped file
    that holds unit `number`.

    Address 0: the file must be entered for reading. Residency 0: the units were written in this run, and
    their pages need not be asked about.
    """
    units, first, end = get(queue, c.Q_FILE_ADDRESS), get(queue, c.Q_FILE_FIRST), get(queue, c.Q_DISPATCHED)
    if units != 0 and number >= first and number >= get(queue, c.Q_HOT):
        return units, first, end, 0
    # The unit is in another file, or was written in an earlier run, and its page may be on the disk only.
    units, first, end = (
        get(queue, c.Q_READ_ADDRESS),
        get(queue, c.Q_READ_FIRST),
        min(end, get(queue, c.Q_READ_END)),
    )
    if units == 0 or number < first or number >= end:
        return 0, 0, 0, 0
    return units, first, end, get(queue, c.Q_READ_RESIDENCY)


@inlined
def _verdict(context, address):
    """Return the verdict on the record at `address`, VERDICT_NONE if Python has to judge it. Its properties
    are then in R_PROPERTIES."""
    verdict = get(context, c.R_VERDICT)
    if verdict != c.VERDICT_NONE:
        put(context, c.R_VERDICT, c.VERDICT_NONE)
        return verdict
    _, _, _, _, _, _, properties, length = parts_of(address)
    steps = c.STEPS_PER_UNIT + (length >> 3)
    program = get(context, c.R_PROGRAM)
    if program != 0:
        steps += get(program, HEAD_STEPS) * (1 + (length >> c.LONG_PROPERTIES_SHIFT))
        verdict = judge(program, properties, length)
    put(context, c.R_BUDGET, get(context, c.R_BUDGET) - steps)
    if verdict != c.VERDICT_NONE:
        return verdict
    put(context, c.R_PROPERTIES, properties)
    put(context, c.R_PROPERTIES_BYTES, length)
    return c.VERDICT_NONE


@inlined
def _plan(context, queue, offset, max_count, max_bytes, tags, tag_count):
    """Fill R_RUNS with records that are in memory; return READ_*, why it stopped. R_OFFSET is then the next
    unit to read."""
    writer = get(context, c.R_WRITER)
    judging = get(context, c.R_JUDGE)
    put(context, c.R_OFFSET, offset)
    if judging != c.JUDGE_CONTINUED:
        put(context, c.R_COUNT, 0)
        put(context, c.R_BYTES, 0)
        put(context, c.R_RUN_COUNT, 0)
    # Python decides what a reader outside of the queue is answered: this is not an error for it.
    if offset < get(queue, c.Q_MINIMUM) or offset >= get(queue, c.Q_DISPATCHED):
        return c.READ_OUTSIDE
    units, first, end, units_known = units_holding(queue, offset)
    if units == 0:
        return c.READ_UNENTERED
    # A filter that passes nearly nothing must not scan a whole queue in one turn of the loop. The caller goes
    # on from R_OFFSET in a later read.
    scan_end = min(end, offset + max(max_count, get(context, c.R_MAX_UNITS)))
    log_first = get(writer, c.LOG_FIRST)
    confirmed = get(writer, c.CONFIRMED)
    maps = get(writer, c.LOG_MAPS)
    file_size = get(writer, c.LOG_FILE_BYTES)
    hot_from = get(context, c.R_HOT_FROM)
    round_number = get(context, c.R_ROUND)
    max_record = get(context, c.R_MAX_RECORD)
    runs = get(context, c.R_RUNS)
    count, used, run_count, run_end = 0, 0, 0, 0
    limited = False
    if judging == c.JUDGE_CONTINUED:
        count, used, run_count = get(context, c.R_COUNT), get(context, c.R_BYTES), get(context, c.R_RUN_COUNT)
        if run_count > 0:
            last = runs + 16 * run_count - 16
            run_end = load64(last) + load64(last + 8)
        if get(context, c.R_MOST) > 0:
            limited = True
            max_count, max_bytes = get(context, c.R_MOST), get(context, c.R_MOST_BYTES)
    stopped = c.READ_DONE
    while offset < scan_end:
        if count >= max_count:
            stopped = c.READ_FULL
            break
        # The unit's own page comes first: nothing of it is read before.
        at = (offset - first) * UNIT_BYTES
        if units_known != 0 and not is_in_memory(units_known, at, UNIT_BYTES, round_number):
            ask(context, c.ASK_UNITS, at, UNIT_BYTES)
            stopped = c.READ_ASK
            break
        unit = units + at
        log_offset = load_be64(unit)
        size = load_be32(unit + UNIT_SIZE_AT)
        if not limited:
            # The limits depend on the first unit, whether its tag is wanted or not.
            limited = True
            most, most_bytes = limits(context, log_offset)
            max_count, max_bytes = (
                min(max_count, most, get(context, c.R_MAX_COUNT)),
                min(max_bytes, most_bytes),
            )
            put(context, c.R_MOST, max_count)
            put(context, c.R_MOST_BYTES, max_bytes)
        # The first record is given however large it is: else a reader would never come past it.
        if count > 0 and used + size > max_bytes:
            stopped = c.READ_FULL
            break
        if tag_count > 0 and not _wanted(load_be64(unit + UNIT_TAGS_AT), tags, tag_count):
            if log_offset < hot_from and _hides_damage(
                context, queue, offset, log_offset, size, load_be64(unit + UNIT_TAGS_AT)
            ):
                stopped = c.READ_DAMAGED
                break
            offset += 1
            continue
        # Below the log's first byte: retention took the file after the unit was written.
        if log_offset < log_first:
            stopped = c.READ_GONE
            break
        # From here the unit's numbers become an address, so they are bounded by the log and by its file.
        if size < MIN_RECORD or log_offset + size > confirmed or size > max_record:
            stopped = c.READ_BAD_UNIT
            break
        number = (log_offset - log_first) // file_size
        place = (log_offset - log_first) - number * file_size
        if place + size > file_size:
            stopped = c.READ_COLD
            break
        address = get(maps, number)
        if address == 0:
            ask(context, number, place, size)
            stopped = c.READ_UNMAPPED
            break
        address += place
        if log_offset < hot_from:
            known = get(get(writer, c.LOG_RESIDENCY), number)
            if not is_in_memory(known, place, size, round_number):
                ask(context, number, place, size)
                stopped = c.READ_ASK
                break
            if not _agrees(
                known,
                file_size,
                place,
                address,
                size,
                log_offset,
                queue,
                offset,
                load_be64(unit + UNIT_TAGS_AT),
            ):
                stopped = c.READ_DAMAGED
                break
        if judging != 0:
            verdict = _verdict(context, address)
            if verdict == c.VERDICT_NONE:
                stopped = c.READ_JUDGE
                break
            if verdict == 0:
                offset += 1
                if get(context, c.R_BUDGET) <= 0:
                    break
                continue
        # Records of one queue often follow each other, as when one producer sends a batch: one run, one copy.
        if address == run_end:
            length_at = runs + 16 * run_count - 8
            store64(length_at, load64(length_at) + size)
        else:
            store64(runs + 16 * run_count, address)
            store64(runs + 16 * run_count + 8, size)
            run_count += 1
        run_end = address + size
        used += size
        count += 1
        offset += 1
        if judging != 0 and get(context, c.R_BUDGET) <= 0:
            break
    put(context, c.R_OFFSET, offset)
    put(context, c.R_COUNT, count)
    put(context, c.R_BYTES, used)
    put(context, c.R_RUN_COUNT, run_count)
    return stopped


@inlined
def _copy_runs(context, target):
    """Copy what R_RUNS names to `target`, which has room for R_BYTES."""
    runs = get(context, c.R_RUNS)
    for number in range(get(context, c.R_RUN_COUNT)):
        length = load64(runs + 16 * number + 8)
        copy_memory(target, load64(runs + 16 * number), length)
        target += length


@entry_point
def read_queue(self, arguments, count):
    """(context, queue row, offset, max count, max bytes, tags, tag count) -> (READ_*, next offset, minimum,
    maximum, records, count of them)"""
    if count != 7:
        return wrong_call()
    context = int_argument(arguments, 0)
    queue = int_argument(arguments, 1)
    offset = int_argument(arguments, 2)
    max_count = int_argument(arguments, 3)
    max_bytes = int_argument(arguments, 4)
    tags = int_argument(arguments, 5)
    tag_count = int_argument(arguments, 6)
    if has_failed():
        return 0
    stopped = _plan(context, queue, offset, max_count, max_bytes, tags, tag_count)
    # With these the call is repeated after Python has helped: nothing is copied yet.
    is_answer = stopped != c.READ_ASK and stopped != c.READ_UNMAPPED and stopped != c.READ_JUDGE
    body = new_bytes(0, get(context, c.R_BYTES) if is_answer else 0)
    if body != 0 and is_answer:
        _copy_runs(context, bytes_data(body))
    made = new_tuple(6)
    if made == 0:
        decref(body)
        return 0
    put_into_tuple(made, 0, new_int(stopped))
    put_into_tuple(made, 1, new_int(get(context, c.R_OFFSET)))
    put_into_tuple(made, 2, new_int(get(queue, c.Q_MINIMUM)))
    put_into_tuple(made, 3, new_int(get(queue, c.Q_DISPATCHED)))
    put_into_tuple(made, 4, body)
    put_into_tuple(made, 5, new_int(get(context, c.R_COUNT)))
    return answer(made)
