"""The log must begin and end where it did. Missing parts are found by other files that state its extent.

            begin                                        end
    log       |------------- records -------------------->|
              |                                           |
              | the record of ends: `log_minimum`         | the record of ends: `position`
              |                                           | the checkpoint: its stamps of log and queues
              |                                           | units of queues, which are written after records

A log that lacks a part is refused, unless damage is accepted. No file is changed before that.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from broker_store.engine.queue.consume_queue import UNIT, queue_name
from broker_store.engine.start.log_begin import (
    MAX_NAMED_QUEUES,
    LostBegin,
    MissingBegin,
    lost_with,
    missing_begin,
    missing_log,
    not_there,
)
from broker_store.engine.start.report import counted, time_text
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.errors import DamagedStoreError
from broker_store.formats import queue_unit, record
from broker_store.formats.index_file import FIRST_ENTRY
from broker_store.kernels import context as c

_MAX_UNITS_BEYOND = 64  # units of a queue that are read to prove that the log went on


def require_log(parts: RecoveryParts) -> None:
    """Raise DamagedStoreError for a store that had messages and has no log file, unless that is accepted. No
    file has been changed."""
    if parts.log.files:
        return
    units = sum(parts.units.units_in(queue) for queue in parts.queues)
    units += sum(parts.ends.messages(*key) for key in parts.ends.queues if parts.queues.find(*key) is None)
    is_indexed = any(file.bounded_count > FIRST_ENTRY for file in parts.index.files)
    what = missing_log(parts.ends.position, parts.checkpoint.stamps.physic_msg_timestamp, units, is_indexed)
    if what is not None:
        _refuse(parts, what, parts.log.directory, None)


def require_begin(parts: RecoveryParts, state: RecoveryState, is_exact: bool) -> None:
    """Check that the log begins where the record says, unless another broker's retention may have removed the
    files. Raises DamagedStoreError, unless that is accepted."""
    state.has_first_record = parts.ends.found and parts.ends.log_minimum == 0 == parts.log.minimum
    missing = missing_begin(parts.ends, parts.log.minimum, parts.log.file_size, parts.was_clean, is_exact)
    if missing is None and parts.ends.log_minimum < 0:
        _report_unknown_begin(parts)
    elif missing is not None and missing.by_other_broker:
        parts.report.finding("warning", str(missing), "commitlog")
    elif missing is not None:
        state.lost_begin = LostBegin(missing, parts.ends, parts.queues)
        units = sum(end - first for _, first, end in state.lost_begin.by_units)
        _refuse(parts, not_there(str(missing), units), parts.log.directory, None)
    parts.ends.begin_at(parts.log.minimum)


def require_newest(parts: RecoveryParts, state: RecoveryState) -> None:
    """Check that the last log file is there, for a store without a record of ends.

    After a stop in order, units that point into the file after the last one show that it is missing. Raises
    DamagedStoreError, unless that is accepted.
    """
    last = parts.log.files[-1]
    if parts.ends.found or not parts.was_clean:
        return
    beyond = [
        queue for queue in parts.queues if last.end < parts.units.end_beyond(queue) <= last.end + last.size
    ]
    if beyond:
        units = sum(parts.units.units_beyond(queue, last.end) for queue in beyond)
        _refuse(
            parts,
            not_there(f"the log file after {last.path.name} is missing: queues point into it", units),
            parts.log.directory,
            None,
        )
        state.is_end_lost = True


def require_end(parts: RecoveryParts, state: RecoveryState, end: int) -> None:
    """Check that the log reaches to where it did: by the record of ends, by the checkpoint, or by units,
    which are written after their records. Raises DamagedStoreError, unless that is accepted."""
    what = _missing_at_end(parts, state, end)
    if what is None:
        return
    units = sum(parts.units.units_beyond(queue, end) for queue in parts.queues)
    file = parts.log.file_at(end) or parts.log.files[-1]
    _refuse(parts, not_there(what, units), file.path, end - file.base)
    state.recorded_to = {
        queue: max(row.log_end for row in rows.values()) for queue, rows in parts.ends.queues.items()
    }
    parts.ends.lower(end, parts.log.minimum)
    for queue in parts.queues:
        queue.row[c.Q_RECORDED] = 0  # its files and sums left the record: the next round records them
    state.is_end_lost = True


def _missing_at_end(parts: RecoveryParts, state: RecoveryState, end: int) -> str | None:
    """Return a sentence for what a log that ends at `end` lacks; None where nothing is known to be
    missing."""
    last = parts.log.files[-1]
    is_closed = last.base <= end <= last.end - record.BLANK_BYTES and parts.records.is_blank(
        last, end - last.base
    )
    reached = last.end if is_closed else end
    stamps = parts.checkpoint.stamps
    if parts.ends.position > reached:
        return (
            f"the log ends at {end:,}, but it was on the disk up to {parts.ends.position:,}: what "
            f"lay between is missing"
        )
    if is_closed and not parts.ends.found and state.last_store_ms < stamps.physic_msg_timestamp:
        return _ends_before(parts, state, end, stamps.physic_msg_timestamp)
    # The times of a sound log may go back, and one stamp or unit may be damaged: the stamp of the queues
    # counts where their units agree with it.
    is_stamp_ahead = (
        parts.was_clean and not parts.ends.found and state.last_store_ms < stamps.logics_msg_timestamp
    )
    if is_stamp_ahead and any(parts.units.units_beyond(queue, end) for queue in parts.queues):
        return _ends_before(parts, state, end, stamps.logics_msg_timestamp)
    if (
        parts.was_clean
        and not state.proof.is_exact
        and parts.records.is_end(end)
        and any(parts.units.has_unit_of(queue, end) for queue in parts.queues)
    ):
        return (
            f"the log ends at {end:,}, where by the queues a record began when the store was closed: "
            f"nothing lies there"
        )
    if parts.units_prove_records and (proved := _proved_beyond(parts, reached)) is not None:
        gone = (
            f"the log file after {last.path.name} is missing"
            if is_closed
            else f"no whole record begins at {end:,}"
        )
        why = "with SYNC_FLUSH a record is synced before its unit is written"
        if parts.was_clean or parts.keeps_what_was_written:
            why = (
                "the store was closed in order"
                if parts.was_clean
                else "this machine was not restarted since it was written"
            )
        return f"the log ends at {end:,}, but by the queues a record began at {proved:,}, and {why}: {gone}"
    return None


def _ends_before(parts: RecoveryParts, state: RecoveryState, end: int, stamp_ms: int) -> str:
    """Return the sentence for a log whose last record is older than a stamp of the checkpoint."""
    what = (
        f"the log ends at {end:,} with a record of {time_text(state.last_store_ms)}, but the "
        f"checkpoint states that it held records up to {time_text(stamp_ms)}"
    )
    return what + ": a file is missing, or records of a file"


def _proved_beyond(parts: RecoveryParts, log_end: int) -> int | None:
    """Return the log offset of a record at or beyond `log_end` that existed, proved by more than one possibly
    damaged unit; None without one.

    The proof is a unit that leads to a record which begins at `log_end`, or to a good record that states the
    same place; or two units that lead to two records. After a kill few units lead beyond the log's end, so
    the search goes from a queue's last unit back to that end, and reads at most _MAX_UNITS_BEYOND units from
    there on.
    """
    trusted_to = log_end + 2 * parts.log.file_size
    beyond: list[queue_unit.QueueUnit] = []
    for queue in parts.queues:
        if not queue.files:
            continue
        first = max(parts.units.end_within(queue, log_end).following, queue.files[0].base // UNIT)
        if parts.units.leads_exactly_to(log_end, queue, first):
            return log_end
        for number in range(first, first + _MAX_UNITS_BEYOND):
            unit = queue.unit_in_files(number)
            if unit is None or not unit.is_data:
                break
            if unit.is_pre_blank or not log_end <= unit.log_offset <= trusted_to - unit.size:
                continue
            if parts.units.states_unit(queue, number) and parts.records.begins_record(unit.log_offset):
                return unit.log_offset
            beyond.append(unit)
    beyond.sort()
    return next(
        (
            first.log_offset
            for first, second in pairwise(beyond)
            if first.log_offset + first.size <= second.log_offset
        ),
        None,
    )


def _report_unknown_begin(parts: RecoveryParts) -> None:
    """Report the messages before the log's begin: without a record it is unknown whether retention
    removed them."""
    minimum = parts.log.minimum
    before = lost_with(MissingBegin(0, minimum, parts.log.file_size, by_other_broker=False), parts.queues)
    if before:
        units = sum(end - first for _, first, end in before)
        why = f" ({parts.ends.note})" if parts.ends.note else ""
        what = (
            f"the log begins at {minimum:,}, and the record of ends does not state where it began{why}:"
            f" {counted(units, 'message')} before it, by the queues, "
            f"{'was' if units == 1 else 'were'} removed by retention or {'is' if units == 1 else 'are'} lost"
        )
        parts.report.finding(
            "warning" if parts.ends.is_there or parts.is_record_gone else "info", what, "commitlog"
        )


def report_lost_begin(parts: RecoveryParts, state: RecoveryState) -> None:
    """Report the messages that were lost with the log's first files, after queues with damaged units were
    rebuilt."""
    named = state.lost_begin.found() if state.lost_begin is not None else []
    for queue, first, end in named[:MAX_NAMED_QUEUES]:
        parts.report.finding(
            "error",
            f"messages {first:,} to {end - 1:,} are lost with the log files that are missing",
            queue_name(queue),
        )
    if len(named) > MAX_NAMED_QUEUES:
        parts.report.finding(
            "error",
            f"{len(named) - MAX_NAMED_QUEUES:,} more queues lost messages with those files",
            "consumequeue",
        )


def _refuse(parts: RecoveryParts, what: str, path: Path, at: int | None) -> None:
    """Report what is missing, and raise DamagedStoreError unless damage is accepted. Nothing has been
    changed."""
    name = f"commitlog/{path.name}" if path != parts.log.directory else "commitlog"
    if parts.settings.accept_damage:
        parts.report.finding("error", what + "; accepted", name, at)
        return
    parts.report.finding("error", what, name, at)
    raise DamagedStoreError(
        what,
        file=str(path),
        offset=at,
        advice="Put back what is missing, or mount it, and start again; nothing was changed. To see all "
        "of it:"
        f" `manage.py check_store {parts.root}`. To go on without it, with new offsets after "
        f"the old ones: start again with --accept-damage.",
    )
