"""Step 2: the files of each queue, and where its good units end.

files      [ 0 ][ 1 ]      [ 3 ]        file 2 is missing: 3 goes, and its units are built again
units      u u u u u u 0 0 0            the end is the first zero unit, or a step back
                      ^ end
recorded   [ ------ ]                   units up to here must have the sum that the record of ends has
"""

from __future__ import annotations

from pathlib import Path

from broker_store.engine.queue.consume_queue import NO_FILES, UNIT, ConsumeQueue, queue_name
from broker_store.engine.start.deleted_topics import note_deleted_topic
from broker_store.engine.start.ends import BOUND
from broker_store.engine.start.proof import Suspect
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.kernels import context as c

_QUEUE_FILES_READ = 3


def close_holes(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue) -> None:
    """Keep the usable files of a queue of which a file is missing; the rest is rebuilt from the log.

    A power cut may keep the name or the length of one new file and lose that of the previous one; and files
    that retention removed may reappear.
    """
    while queue.hole is not None:
        following = next(path for path in queue.hole.files if parts.disk.size_of(path))
        first = parts.units.first_unit(following)
        has_place = int(following.name) % queue.file_size == 0
        if has_place and first.is_data and not first.is_pre_blank and first.log_offset < parts.log.minimum:
            before = [file.path for file in queue.files] + queue.hole.files[
                : queue.hole.files.index(following)
            ]
            state.removed += before  # retention had removed them: they only point below the log
            queue.load(leave_out=state.removed)
        else:
            _rebuild(parts, state, queue, queue.hole.files, "a file is missing or empty")
    if _begins_too_late(parts, state, queue):
        what = "its first file is missing, and the log holds the records of its units"
        _rebuild(parts, state, queue, [file.path for file in queue.files], what)


def _rebuild(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, gone: list[Path], what: str
) -> None:
    """Take the files `gone` of a queue away, so that they are rebuilt: dispatch goes back to where the queue
    then ends."""
    parts.report.finding(
        "warning", f"{what}: its units from {gone[0].name} on are made again from the log", queue_name(queue)
    )
    take_away(parts, state, queue, gone)


def take_away(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, gone: list[Path]) -> None:
    """End a queue before the files `gone`; they leave the store once the start is sure to go on."""
    for file in queue.files:
        if file.path in gone:
            file.unmap()
    queue.files = [file for file in queue.files if file.path not in gone]
    queue.hole = None
    state.away += reversed(gone)
    state.queue_files_gone += len(gone)
    state.shortened.setdefault(queue, []).extend(gone)


def _begins_too_late(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue) -> bool:
    """Return whether the units before its first file belong to records that the log still holds, or may hold.

    Retention leaves a first file that begins with a unit below the log's minimum
    (`ConsumeQueue.files_before`), or with that of the log's first record. A queue that was begun after lost
    records begins with blank units.
    """
    if not queue.files or queue.files[0].base == 0 or not queue.is_made_from_log:
        return False
    if queue.files[0].base // UNIT in state.proof.rows(queue):
        return False  # recorded as its first file, or the record has those before it
    first = parts.units.first_unit(queue.files[0].path)
    if not first.is_data or first.is_pre_blank:
        return not first.is_data
    is_first_record = first.log_offset == parts.log.minimum
    return first.log_offset > parts.log.minimum or (
        is_first_record and not parts.units.states_unit(queue, queue.files[0].base // UNIT)
    )


def find_queue_end(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, clean: bool, log_end: int | None = None
) -> None:
    """Set the queue's next unit to the one after its last good one, and compare it with the record of ends.

    After a clean stop only the last three files are read. With `log_end`, good units are those of records
    below it, and nothing is compared.
    """
    files = queue.files[-_QUEUE_FILES_READ:] if clean and not parts.compares_all else queue.files
    end, reached = parts.units.units_below(
        queue, files, parts.log.files[-1].end if log_end is None else log_end
    )
    read_from, good_end = files[0].base // UNIT if files else 0, end
    if files and end == files[0].base // UNIT and reached == 0:
        end = 0  # not one unit: numbering starts again, as in Apache (4.4)
    queue.start_at(end)
    queue.row[c.Q_LOG_END] = reached
    if log_end is not None:
        return
    if not state.proof.rows(queue):
        _judge_unrecorded(parts, state, queue)
        return
    following = parts.ends.next_offset(queue.topic, queue.queue_id)
    if 0 < end < following and reached > parts.ends.position and parts.units.states_unit(queue, end - 1):
        # Since the record was written, another broker deleted the topic and created it again, with numbers
        # from 0 on.
        parts.ends.drop(queue.topic, queue.queue_id)
        note_deleted_topic(parts, queue.topic, parts.ends.position)
        return
    suspect = state.proof.judge(queue, read_from, good_end)
    queue.unproved = (
        state.proof.unread(queue, read_from if suspect is None else min(read_from, suspect.first)) or NO_FILES
    )
    if suspect is not None:
        state.suspects[queue] = suspect
        parts.report.finding(
            "warning",
            f"{suspect.why}; it is made again from the log, from {suspect.log_offset:,} on",
            queue_name(queue),
            suspect.first * UNIT,
        )
    if state.proof.is_too_long(queue):
        state.too_long.add(queue)
        if suspect is None:
            parts.report.finding(
                "warning",
                f"the units after its end, unit {following:,}, belong to no message; they are taken out",
                queue_name(queue),
                following * UNIT,
            )
        queue.start_at(following)
        queue.row[c.Q_LOG_END] = state.proof.log_end_of(queue)
    if suspect is None and end >= following and BOUND not in state.proof.rows(queue):
        queue.row[c.Q_RECORDED] = following  # otherwise the next round records its files and their sums


def _judge_unrecorded(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue) -> None:
    """Suspect a queue that a damaged record of ends does not have, if the queue has units of records below
    the log position of the record of ends.

    Its file may be another queue's: units before that place are not compared, and would determine the queue's
    next number. A record that is whole may lack a queue that this broker rebuilt; such a queue is not
    suspected.
    """
    if not (parts.ends.found and parts.ends.note and queue.is_made_from_log and queue.files):
        return
    unit = parts.units.first_unit(queue.files[0].path)
    if (
        unit.is_data
        and not unit.is_pre_blank
        and parts.log.minimum <= unit.log_offset
        and unit.log_offset + unit.size <= parts.ends.position
    ):
        first = queue.files[0].base // UNIT
        state.suspects[queue] = Suspect(
            queue, first, parts.log.minimum, "its units are not in the record of ends"
        )
        what = f"the record of ends lacks the queue, though it covers the log beyond unit {first:,}"
        parts.report.finding(
            "warning",
            f"{what}; it is made again from the log, from {parts.log.minimum:,} on",
            queue_name(queue),
            first * UNIT,
        )
