"""Checks of the queue place that a record states: whether it can be right.

Only the body of a record has a CRC in every store. Its queue, number, topic and flags may be damaged and
still be possible values. So the place is compared with the queue's unit, the records after it, the record of
ends, and the room that earlier records need.
"""

from __future__ import annotations

from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.start.bridge import Bridge, are_lost
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.errors import DamagedStoreError
from broker_store.formats.record import MIN_RECORD
from broker_store.kernels import context as c


def may_begin(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, following: int, unit: int, at: int
) -> bool:
    """Return whether a queue that ends at `following` may go on with `unit`, whose record begins at `at`:
    retention removed the records before, or nothing is known of them.

    Dispatch calls this again after the queue's files were cut, and must get the answer that the rehearsal
    got.
    """
    if (queue, unit) not in state.may_begin_at and (
        parts.units.ends_below_log(queue, unit - 1) if following else _is_begin(parts, state, queue, unit, at)
    ):
        state.may_begin_at.add((queue, unit))
    return (queue, unit) in state.may_begin_at


def _is_begin(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, unit: int, at: int) -> bool:
    """Return whether a queue of which no unit before `unit` is known may begin with it."""
    before, own = queue.unit_in_files(unit - 1), queue.unit_in_files(unit)
    leads_here = own is not None and own.log_offset == at
    begins_here = leads_here and before is not None and before.is_pre_blank
    if state.has_first_record and not begins_here and not _lacks_begin(parts, queue):
        # Nothing was ever removed from this log, so the earlier records must be there
        return False
    if (
        not leads_here
        or before is None
        or not before.is_data
        or before.is_pre_blank
        or before.log_offset < parts.log.minimum
    ):
        return True
    stated = parts.records.record_at(before.log_offset)
    return stated is None or stated.size != before.size


def _lacks_begin(parts: RecoveryParts, queue: ConsumeQueue) -> bool:
    """Return whether the log may lack the queue's first records though it lacks nothing itself: they were
    lost (`begin_queue_at`), or are of a deleted topic."""
    rows = parts.ends.queues.get((queue.topic, queue.queue_id), {})
    return (
        any(row.log_end == 0 for row in rows.values())
        or parts.context.topic(queue.topic).row[c.T_DELETED_BEFORE] > 0
    )


def after_lost(parts: RecoveryParts, offset: int) -> int | None:
    """Return where the log goes on after bad bytes at `offset` that an earlier start accepted as lost; None
    where no unit shows that."""
    for queue in parts.queues:
        number = parts.units.number_by_units(queue, offset)
        if number is not None and are_lost(queue, number, number + 1):
            found = parts.records.whole_record_at(offset)
            return (
                offset + found.size
                if found is not None
                else Bridge(parts.log, parts.records.begins_record).following(offset)
            )
    return None


def after_misnumbered(parts: RecoveryParts, queue: ConsumeQueue, unit: int, at: int) -> int | None:
    """Return where the record at `at` ends if its place is damaged; None when its place holds. Raises
    DamagedStoreError unless the damage is accepted, or was."""
    record_end = at + parts.records.known_record_at(at).size
    if after_lost(parts, at) is not None:
        return record_end
    if not _is_misnumbered(parts, queue, unit, at):
        return None
    if parts.settings.accept_damage:
        return record_end
    own, file = parts.units.number_by_units(queue, at), parts.log.file_holding(at)
    why = "so many records have no room before it"
    if _has_room(parts, queue, unit, at):
        why = (
            f"the queue's unit {own:,} leads to it"
            if own is not None
            else "the queue's unit of that number, or of a lower one, leads to a later record"
        )
    raise DamagedStoreError(
        f"the record states {queue.topic}/{queue.queue_id} {unit:,}, and {why}: its place in the "
        f"queue is damaged",
        file=str(file.path),
        offset=at - file.base,
        advice=f"Nothing was changed. `manage.py check_store {parts.root} --plan` shows what a repair "
        f"would do; or start with --accept-damage to leave the record out.",
    )


def _is_misnumbered(parts: RecoveryParts, queue: ConsumeQueue, unit: int, at: int) -> bool:
    """Return whether the record at `at` states a number for which there is no room before it, or which
    contradicts its queue's units."""
    if not _has_room(parts, queue, unit, at):
        return True
    own, _ = parts.units.units_below(queue, queue.files, at)
    here = queue.unit_in_files(own)
    if own == unit or here is None or not here.is_data or here.log_offset < at:
        return False
    if here.log_offset > at:  # by its units the queue goes on after this record
        return own < unit and parts.units.states_unit(queue, own)
    # In a file under another name all units have other numbers than their records
    for number in (own + 1, own - 1):
        near = queue.unit_in_files(number)
        stated = None if near is None or near.size < MIN_RECORD else parts.records.record_at(near.log_offset)
        if stated is not None and (stated.topic, stated.queue_id) == (queue.topic, queue.queue_id):
            return stated.queue_offset == number
    # Neither of the two units shows it
    return parts.records.next_stated(queue, at + parts.records.known_record_at(at).size) != unit + 1


def _has_room(parts: RecoveryParts, queue: ConsumeQueue, unit: int, at: int) -> bool:
    """Return whether `unit` records have room before log offset `at`. Those that the record of ends counts
    need none there, since they may be lost."""
    return (unit - parts.ends.next_offset(queue.topic, queue.queue_id)) * MIN_RECORD <= at


def is_contradicted(
    parts: RecoveryParts,
    state: RecoveryState,
    queue: ConsumeQueue,
    following: int,
    unit: int,
    at: int,
    is_log_damaged: bool,
) -> bool:
    """Return whether the number `unit` that the record at `at` states cannot be right; `following` is the
    queue's next number.

    That is so if a later record of the queue has a number of the hole, or if it is the only record of a queue
    that no other file has, in a log that has lost nothing. Later records are read as far as `records_from`
    reads.
    """
    number = parts.records.next_stated(queue, at + parts.records.known_record_at(at).size)
    if number is not None:
        return following <= number <= unit
    is_known = following or queue.files or (queue.topic, queue.queue_id) in parts.ends.queues
    return state.has_first_record and not is_log_damaged and not is_known


def is_elsewhere(parts: RecoveryParts, queue: ConsumeQueue, unit: int, at: int) -> bool:
    """Return whether the queue's unit of that number leads to another record than the one at `at`, and that
    other record states the number too."""
    here = queue.unit_in_files(unit)
    return (
        here is not None
        and here.size >= MIN_RECORD
        and here.log_offset != at
        and parts.units.states_unit(queue, unit)
    )


def record_to_leave_out(parts: RecoveryParts, agreed: int) -> int | None:
    """Return `agreed` if the record there states the place of another record, and that is accepted, or was;
    else None."""
    found = parts.records.record_at(agreed)
    if found is None or not found.is_queued:
        return None
    queue = parts.queues.find(found.topic, found.queue_id)
    if queue is None or not is_elsewhere(parts, queue, found.queue_offset, agreed):
        return None
    return agreed if parts.settings.accept_damage or after_lost(parts, agreed) is not None else None
