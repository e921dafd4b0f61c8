"""Step 6: take files and units out of queues. What holds data is moved to `lost+found/`."""

from __future__ import annotations

from broker_store.engine.log.whole_records import data_end_from
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue, queue_name
from broker_store.engine.start.agreement import Agreement
from broker_store.engine.start.log_begin import take_expired
from broker_store.engine.start.proof import Suspect
from broker_store.engine.start.queue_units import QueueEnd
from broker_store.engine.start.report import counted
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.kernels import context as c


def remove_files(parts: RecoveryParts, state: RecoveryState) -> None:
    """Take away the files that earlier steps chose, now that the start goes on."""
    if expired := take_expired(parts.log):
        what = f"{counted(expired, 'file')} below {parts.log.minimum:,} deleted, as retention had begun to do"
        parts.report.finding("info", what, "commitlog")
    for path in state.removed:
        parts.disk.unlink(path)
    for directory in sorted({path.parent for path in state.removed}):
        parts.disk.sync_directory(directory)
    for path in state.away:
        parts.kept.keep_away(path)


def copy_suspects(parts: RecoveryParts, state: RecoveryState, headless: list[ConsumeQueue]) -> None:
    """Copy files of damaged queues to `lost+found/` before anything is written to them or taken out.

    A queue whose first file is missing is rebuilt as a whole: otherwise it would seem to begin with its
    present first file.
    """
    for queue in headless:
        if queue not in state.suspects:
            state.suspects[queue] = Suspect(queue, 0, parts.log.minimum, "its first file is missing")
            parts.report.finding(
                "warning", "its first file is missing; it is made again from the log", queue_name(queue), 0
            )
    for queue, suspect in state.suspects.items():
        lacks_first = _lacks_first(parts, queue, suspect)
        for file in queue.files:
            if lacks_first:
                file.unmap()
                parts.kept.keep_away(file.path)
            elif file.base >= suspect.first * UNIT:
                parts.kept.copy_aside(file.path, file.map())
        if lacks_first:
            queue.files = []
            queue.start_at(0)
            queue.minimum = queue.row[c.Q_LOG_END] = queue.row[c.Q_AGREED] = 0


def is_headless(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, agreement: Agreement
) -> bool:
    """Return whether `copy_suspects` takes all files of a queue away."""
    suspect = state.suspects.get(queue)
    if suspect is None and queue in agreement.headless:
        return queue.files[0].base > 0
    return suspect is not None and _lacks_first(parts, queue, suspect)


def _lacks_first(parts: RecoveryParts, queue: ConsumeQueue, suspect: Suspect) -> bool:
    """Return whether none of the queue's files holds the first suspect unit: they begin after it, or lie
    before it and have units of other numbers."""
    if not queue.files:
        return False
    at = suspect.first * UNIT
    if at < queue.files[0].base:
        return True
    unit = queue.unit_in_files(queue.maximum - 1) if queue.maximum and queue.files[-1].end <= at else None
    stated = (
        parts.records.record_at(unit.log_offset)
        if unit is not None and unit.is_data and not unit.is_pre_blank
        else None
    )
    return stated is not None and not parts.units.states_unit(queue, queue.maximum - 1)


def cut_queue(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, kept: QueueEnd) -> int:
    """Take away units after `kept`, which belong to records at or beyond the log's end; return how many."""
    before, end = queue.maximum, kept.following
    drop_files_after(parts, state, queue, before)
    queue.start_at(before)
    if end < before:
        # Units before its first file were removed by retention: they are not counted
        gone = before - max(end, queue.files[0].base // UNIT)
        parts.report.cut_queue(queue.topic, queue.queue_id, before - gone, gone)
        drop_files_after(parts, state, queue, end)
        queue.start_at(end)
        queue.row[c.Q_LOG_END] = kept.log_end
    return before - end


def drop_files_after(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, end: int) -> None:
    """Take away files that begin after unit `end`, and zero what lies after it in the file that holds it."""
    while queue.files and (queue.files[-1].base > end * UNIT or end == 0):
        file = queue.files.pop()
        file.unmap()
        parts.kept.keep_away(file.path)
        state.queue_files_gone += 1
        queue.row[c.Q_APPEND_LIMIT] = min(queue.row[c.Q_APPEND_LIMIT], file.base // UNIT)
    if queue.files and queue.files[-1].end > end * UNIT:
        at, region = end * UNIT - queue.files[-1].base, queue.files[-1].map()
        if data_end_from(region, at) > at:
            if parts.was_clean:  # after a stop in order there are zeros; after a crash anything
                if end == queue.maximum and queue not in state.too_long and queue not in state.suspects:
                    parts.report.finding(
                        "warning",
                        f"the bytes after its end, unit {end:,}, belong to no message; they are taken out",
                        queue_name(queue),
                        end * UNIT,
                    )
                parts.kept.copy_aside(queue.files[-1].path, region)
            region.punch(at)
            # A unit that reappeared after a later clean stop would be used.
            region.sync(at, region.size - at)


def drop_files_before(parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, unit: int) -> None:
    """Take away the files before the one of `unit`, for a queue that begins with it: their units are not
    valid."""
    contradicted = state.contradicted.get(queue)
    if queue.maximum and (contradicted is None or parts.units.states_unit(queue, contradicted.first - 1)):
        return
    while queue.files and queue.files[0].end <= unit * UNIT:
        file = queue.files.pop(0)
        file.unmap()
        parts.kept.keep_away(file.path)
        state.queue_files_gone += 1
