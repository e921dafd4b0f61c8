"""From which unit on dispatch writes the units of a queue again.

    log        |--- before the scan ---|--- compared -------------------------->| end
    units      | kept: synced          | agreed with the log  | differ, or lack |
                                                              ^ `end_to_redo`

Units that agree stay as they are. Below `compared_from` a unit is kept, unless it is disproved: the next
record of its queue states a lower number, or the record of ends has another sum.
"""

from __future__ import annotations

from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.start.queue_units import QueueEnd
from broker_store.engine.start.state import Contradicted, RecoveryParts, RecoveryState, Unverified
from broker_store.formats import queue_unit
from broker_store.kernels import context as c


def find_contradicted(
    parts: RecoveryParts, state: RecoveryState, kept: dict[ConsumeQueue, QueueEnd], compared_from: int
) -> dict[ConsumeQueue, Contradicted]:
    """Return the queues whose last units lead to good records that state another place: dispatch would give
    their numbers again.

    Outside the CRC of its body a record's queue, number, topic and flags may be damaged and still be possible
    values.
    """
    found = {}
    for queue, end in kept.items():
        if (
            queue.topic.startswith(queue_unit.LIGHT_QUEUE)
            or queue.row[c.Q_AGREED] == end.following
            or end.log_end <= compared_from
        ):
            continue
        if queue in state.suspects:
            # Its units differ from the recorded ones; `compare_next_offsets` reports those that are missing
            continue
        # Where one is wrong, those below `compared_from` may be
        first, low = end.following, parts.context.topic(queue.topic).row[c.T_DELETED_BEFORE]
        while (
            (unit := queue.unit_in_files(first - 1) if first else None) is not None
            and unit.is_data
            and unit.log_offset >= low
        ):
            stated = parts.records.record_at(unit.log_offset)
            if stated is None or stated.size != unit.size:
                break
            if stated.is_queued and (stated.topic, stated.queue_id, stated.queue_offset) == (
                queue.topic,
                queue.queue_id,
                first - 1,
            ):
                break
            first -= 1
            found[queue] = Contradicted(first, end.following, unit.log_offset, stated)
    return found


def go_back(parts: RecoveryParts, state: RecoveryState, compared_from: int) -> dict[ConsumeQueue, int]:
    """Let dispatch overwrite units from where the comparison of a queue ended; return, by such a queue, its
    next number before that."""
    gone_back = {}
    for queue in parts.queues:
        going_back = end_to_redo(
            parts, state, queue, QueueEnd(queue.maximum, queue.row[c.Q_LOG_END]), compared_from
        )
        if going_back is None:
            continue
        unit = going_back.following
        gone_back[queue] = queue.maximum
        queue.start_at(unit)
        queue.keep_unproved(unit)
        queue.row[c.Q_LOG_END] = going_back.log_end
        for file in queue.files:
            if file.base >= unit * UNIT:
                file.wrote = file.flushed = file.allocated = 0  # a crash may have left it without blocks
    return gone_back


def end_to_redo(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, end: QueueEnd, compared_from: int
) -> QueueEnd | None:
    """Return where the compared units end of a queue that ends at `end`; None when no unit is to be written
    again."""
    suspect, agreed = state.suspects.get(queue), queue.row[c.Q_AGREED]
    is_quiet = end.log_end <= compared_from and suspect is None
    # Sums of the record of ends show whose units they are: a queue without a record in the compared part is
    # not read.
    if queue.topic.startswith(queue_unit.LIGHT_QUEUE) or (is_quiet and (agreed or state.was_recorded)):
        return None
    unit = agreed or parts.units.units_below(queue, queue.files, compared_from)[0]
    stated = (
        None if agreed or state.was_recorded else _number_before(parts, state, queue, unit, compared_from)
    )
    if stated is None and is_quiet:
        return None
    unverified = state.unverified.get(queue)
    if (
        unverified is not None
        and unverified.after == unit
        and (
            parts.settings.accept_damage
            or suspect is not None
            or _is_disproved(parts, state, queue, unverified)
        )
    ):
        # No record after the bad part has shown that they are right: `Bridge.fill` builds them again, or
        # the start is refused
        unit = unverified.first
    if suspect is not None and not agreed:
        # It may hold another queue's units, and those of records below the log show no number
        unit = suspect.first
    if stated is not None:
        unit = min(unit, stated)
    if (contradicted := state.contradicted.get(queue)) is not None:
        unit = min(unit, contradicted.first)
    if unit >= end.following:
        return None
    before = queue.unit(unit - 1) if unit else None
    return QueueEnd(
        unit,
        before.log_offset + before.size
        if before is not None and before.is_data and not before.is_pre_blank
        else 0,
    )


def _number_before(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, unit: int, compared_from: int
) -> int | None:
    """Return the number that the queue's first record from `compared_from` on states, if it is below `unit`:
    the units before `unit` belong to another queue then.

    None where unit `unit` - 1 leads to a record that states it, or no such record follows within the bytes
    that `records_from` reads.
    """
    if not unit or parts.units.states_unit(queue, unit - 1):
        return None
    stated = _first_stated(parts, state, queue, compared_from)
    return stated if stated is not None and stated < unit else None


def _is_disproved(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, unverified: Unverified
) -> bool:
    """Return whether the queue's next record after the bad part states the number of one of the unverified
    units: they belong to another queue then."""
    stated = _first_stated(parts, state, queue, unverified.log_offset)
    return stated is not None and stated < unverified.after


def _first_stated(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, begin: int) -> int | None:
    """Return the number that the queue's first record from `begin` on states, None without one
    (`LogRecords.next_stated`).

    One walk over the log answers for all queues with the same `begin`.
    """
    if begin not in state.stated_from:
        first = state.stated_from[begin] = {}
        with parts.report.step("read the numbers that records after a bad part state") as step:
            step.detail = f"from {begin:,} on"
            for found in parts.records.records_from(begin):
                topic = parts.context.topics.get(found.topic)
                if topic is None or found.log_offset >= topic.row[c.T_DELETED_BEFORE]:
                    first.setdefault((found.topic, found.queue_id), found.queue_offset)
                step.bytes, step.messages = found.log_offset + found.size - begin, step.messages + 1
    return state.stated_from[begin].get((queue.topic, queue.queue_id))
