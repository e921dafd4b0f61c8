"""Queue offsets that were given to messages and that no record of the log has any more.

An offset that was given is not given again: to a consumer that has read the message with that offset the new
message would be lost. So a start that loses records keeps the numbers that units have, also those of units
after a damaged one.
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.start.queue_units import NEVER
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.formats import queue_unit
from broker_store.formats.record import MIN_RECORD


def record_next_offsets(parts: RecoveryParts, state: RecoveryState, end: int) -> None:
    """Record the numbers of units beyond the log's end before they are cut: without a record of ends no other
    file has them."""
    made = [queue for queue in parts.queues if queue.is_made_from_log]
    reached = max(
        (parts.units.units_below(queue, [file], NEVER)[1] for queue in made for file in queue.files),
        default=0,
    )
    # Damaged units that point further are ignored
    trusted_to = max(end, reached) + 2 * parts.log.file_size
    following = {}
    for queue in made:
        number = number_after_gone(
            parts, state, queue, parts.units.number_after_units(queue, trusted_to), end, trusted_to
        )
        if number:
            following[queue.topic, queue.queue_id] = number
    parts.ends.bound(following, end)


def record_numbers_below(parts: RecoveryParts, log_minimum: int) -> None:
    """Record the numbers of units after a damaged one whose records lay below the log's begin: no other file
    has them."""
    after = {
        queue: parts.units.number_after_units(queue, log_minimum)
        for queue in parts.queues
        if queue.is_made_from_log
    }
    following = {
        (queue.topic, queue.queue_id): number for queue, number in after.items() if number > queue.maximum
    }
    if following:
        parts.ends.bound(following, parts.ends.position)


def find_given(parts: RecoveryParts, state: RecoveryState, end: int) -> dict[ConsumeQueue, int]:
    """Return the numbers after the last units that lead to bad bytes of the log below `end`, by queue whose
    end was found before these units.

    No record of the log has these numbers, so a start that goes on after the bad bytes takes them from here.
    """
    given = {}
    for queue in parts.queues:
        if not queue.is_made_from_log:
            continue
        number = parts.units.number_after_units(queue, end)
        while number > queue.maximum and not _leads_to_bad(parts, queue.unit_in_files(number - 1), end):
            number -= 1
        for path in state.shortened.get(queue, ()):
            if int(path.name) % queue.file_size == 0:
                number = max(number, _number_after_bad(parts, queue, path, end))
        if number > queue.maximum:
            given[queue] = number
    return given


def number_after_gone(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, number: int, end: int, trusted_to: int
) -> int:
    """Return `number`, or a higher one: the number after the last unit, in the queue's files after a missing
    one, of a record from `end` to `trusted_to` of the log.

    Where a file's name is not that of its first unit, each of these units adds one.
    """
    for path in state.shortened.get(queue, ()):
        with parts.disk.open_reader(path) as reader:
            units = list(queue_unit.decode_all(reader.read(0, queue.file_size)))
        counted = [
            place + 1
            for place, unit in enumerate(units)
            if unit.size >= MIN_RECORD and end <= unit.log_offset <= trusted_to - unit.size
        ]
        if counted:
            number = (
                max(number, int(path.name) // UNIT + counted[-1])
                if int(path.name) % queue.file_size == 0
                else number + len(counted)
            )
    return number


def _number_after_bad(parts: RecoveryParts, queue: ConsumeQueue, path: Path, end: int) -> int:
    """Return what `find_given` does, for one file that was taken away; 0 without such a unit."""
    with parts.disk.open_reader(path) as reader:
        units = list(queue_unit.decode_all(reader.read(0, queue.file_size)))
    place = next(
        (place for place in reversed(range(len(units))) if _leads_to_bad(parts, units[place], end)), None
    )
    return 0 if place is None else int(path.name) // UNIT + place + 1


def _leads_to_bad(parts: RecoveryParts, unit: queue_unit.QueueUnit | None, end: int) -> bool:
    """Return whether a unit leads to bytes of the log below `end` that are no good record."""
    if unit is None or not unit.is_data or unit.is_pre_blank or unit.size < MIN_RECORD:
        return False
    is_within = parts.log.minimum <= unit.log_offset and unit.log_offset + unit.size <= end
    return is_within and not parts.records.begins_record(unit.log_offset)
