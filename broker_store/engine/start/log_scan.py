"""Steps 3 and 4: choose the log file to scan from, and scan to the end of the log.

    log files   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]
                          |         |       ^ end: the first byte that begins no good record
                          |         ^ start: the newest file that begins with what is known to be safe
                          ^ begin of what is compared and not scanned: bad bytes there are damage of the
                            middle, and the walk goes on after them

The scan kernel also compares each record with its unit and its index entries, for `Agreement`. It stops when
it needs something (a queue file, an index file, an answer about a topic), gets it and goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.places import IndexPlace
from broker_store.engine.log.record_faults import REASONS
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.rows import Words
from broker_store.engine.start.agreement import Agreement
from broker_store.engine.start.bridge import Bridge
from broker_store.engine.start.log_end import judge_end, note_end
from broker_store.engine.start.queue_units import NEVER
from broker_store.engine.start.report import SCAN, time_text
from broker_store.engine.start.state import RecoveryParts, RecoveryState, Unverified
from broker_store.kernels import context as c
from broker_store.kernels.scan import scan

_SLICE = 64 << 20  # bytes of the log that the kernel scans before progress is reported


def choose_start(parts: RecoveryParts, state: RecoveryState) -> MappedFile:
    """Return the newest file that begins with what is known to be safe; the first when none does.

    After a stop in order that is a file that begins at or below the end of the log that the queues state.
    After a crash it is one whose first record is not younger than the checkpoint's stamps: all before it was
    synced when these were written.
    """
    report = parts.report
    with report.step("choose the file to scan from") as step:
        if parts.was_clean:
            known = (
                parts.ends.position
                if state.proof.is_exact
                else max((queue.row[c.Q_LOG_END] for queue in parts.queues), default=0)
            )
            why = (
                f"the {'record of ends covers' if state.proof.is_exact else 'queues cover'} the log up "
                f"to {known:,}"
            )
            chosen = _first_safe(
                parts,
                lambda file, first_ms: file.base <= known and first_ms is not None,
                f"begins after {known:,}, up to which the queues cover the log",
            )
        else:
            limit = parts.checkpoint.stamps.min_timestamp
            why = (
                f"its first record must not be younger than {time_text(limit)} (the checkpoint less 3 s)"
                if limit > 0
                else "the checkpoint lacks a time, so all are scanned"
            )
            late = (
                f"its first record is younger than {time_text(limit)}"
                if limit > 0
                else "the checkpoint lacks a time"
            )
            chosen = _first_safe(
                parts, lambda _, first_ms: first_ms is not None and 0 < first_ms <= limit, late
            )
        step.detail, step.file = why, chosen.path.name
        report.start = {
            "file": chosen.path.name,
            "base": chosen.base,
            "why": why if report.tried[-1]["taken"] else f"none is safe, so it is the first; {why}",
        }
        report.total_bytes = parts.records.end_of_data() - chosen.base
    return chosen


def _first_safe(
    parts: RecoveryParts, is_safe: Callable[[MappedFile, int | None], bool], otherwise: str
) -> MappedFile:
    """Return the newest file that is safe to begin with, else the first. Each file that was tried is
    reported."""
    for file in reversed(parts.log.files):
        first_ms = parts.records.first_store_ms(file)
        taken = is_safe(file, first_ms)
        why = (
            "taken"
            if taken
            else otherwise
            if first_ms is not None
            else f"no good record begins it; {otherwise}"
            if parts.was_clean
            else "no good record begins it"
        )
        parts.report.try_file(file.path.name, file.base, first_ms, taken, why)
        if taken:
            return file
    return parts.log.files[0]


def compare_before(
    parts: RecoveryParts,
    state: RecoveryState,
    start: MappedFile,
    place: IndexPlace | None,
    agreement: Agreement,
) -> int:
    """Compare what lies before `start` and is not proved: damaged queues, an index that ends further back,
    and without a record of ends the whole log. Return the log offset from which on the log is compared.

    After a crash the last index entry may be of a record before `start`: the records between the two may lack
    their entries.
    """
    begin = start.base
    # An index that was not closed in order may lack entries of all records after its place.
    if place is not None and not (state.trusts_index and parts.index.files):
        begin = min(begin, max(parts.log.minimum, place.log_offset))
    # A damaged queue is read again from where its sound files end.
    for suspect in state.suspects.values():
        begin = min(begin, suspect.log_offset)
    # The store was written since the record of ends, or has none: what that does not cover is compared.
    if not state.proof.is_exact:
        begin = min(begin, max(parts.log.minimum, parts.ends.position))
    if begin >= start.base:
        return start.base
    # A place where no record begins comes from a damaged unit or entry, so it is ignored.
    if begin > parts.log.minimum and not parts.records.begins_record(begin):
        begin = parts.log.minimum
    with parts.report.step("compare queues and index with the log before that file") as step:
        files = parts.log.files
        step.of_bytes = start.base - begin
        for file in files[files.index(parts.log.file_holding(begin)) : files.index(start)]:
            words = parts.records.scan_words(file)
            # This part was synced: neither the CRC nor zeros in the properties are checked here. A read
            # checks them.
            words[c.S_CHECK_CRC] = 0
            words[c.S_STRICT_ABOVE_MS] = NEVER
            words[c.S_AT] = max(0, begin - file.base)
            words[c.S_TIMES] = parts.times.read_from(file.base + words[c.S_AT], parts.ends.position)
            step.file = file.path.name
            while True:
                before = words[c.S_AT]
                words[c.S_SLICE_END] = min(before + _SLICE, file.size)
                stopped = _walk(parts, words, file, agreement)
                step.bytes += words[c.S_AT] - before
                parts.report.changed()
                if stopped == c.BAD_RECORD and agreement.end is None:
                    parts.times.read_to(file.base + words[c.S_AT])
                    following = _pass_damage(parts, state, file, words, agreement)
                    words[c.S_AT], words[c.S_TIMES] = (
                        following - file.base,
                        parts.times.read_from(following, parts.ends.position),
                    )
                elif stopped != c.EXHAUSTED or agreement.end is not None:
                    break
                if words[c.S_AT] >= file.size:
                    break
            parts.times.read_to(file.end if stopped == c.LOG_FILE_END else file.base + words[c.S_AT])
            step.messages += words[c.S_COUNT]
            if agreement.end is not None:
                break  # from there on all is dispatched again, so the rest need not be compared
        step.detail = f"from {begin:,} on, {step.messages:,} messages"
    return begin


def scan_log(parts: RecoveryParts, state: RecoveryState, start: MappedFile, agreement: Agreement) -> int:
    """Return the log offset after the last good record from `start` on. Raises DamagedStoreError when synced
    bytes are bad."""
    report, files = parts.report, parts.log.files
    number = files.index(start)
    end = start.base
    last_ms, any_good = 0, False
    while True:
        file = files[number]
        is_last = number == len(files) - 1
        words = parts.records.scan_words(file)
        words[c.S_TIMES] = parts.times.read_from(file.base, parts.ends.position)
        with report.step(SCAN, file.path.name) as step:
            while True:
                words[c.S_SLICE_END] = min(words[c.S_AT] + _SLICE, file.size)
                before = words[c.S_AT]
                stopped = _walk(parts, words, file, agreement)
                report.scanned_bytes += words[c.S_AT] - before
                step.bytes, step.messages = words[c.S_AT], words[c.S_COUNT]
                report.changed()
                if stopped != c.EXHAUSTED or words[c.S_AT] >= file.size:
                    break
            report.messages += words[c.S_COUNT]
            if words[c.S_COUNT]:
                last_ms, any_good = words[c.S_LAST_MS], True
            end = file.base + words[c.S_AT]
            parts.times.read_to(file.end if stopped == c.LOG_FILE_END else end)
            if stopped == c.LOG_FILE_END:
                step.detail = f"a blank closes the file at {words[c.S_AT]:,}"
            elif stopped == c.BAD_RECORD:
                step.detail = f"{REASONS[words[c.S_REASON]]}, at {words[c.S_AT]:,}"
        # A blank closes each file but the last. One that ends without it lost its end.
        if stopped == c.LOG_FILE_END and not is_last:
            number += 1
            end = files[number].base
            continue
        note_end(parts, file, words, stopped)
        if stopped == c.BAD_RECORD or (stopped == c.EXHAUSTED and not is_last):
            with report.step("judge the end of the log", file.path.name) as step:
                step.detail = judge_end(parts, state, file, words, last_ms if any_good else None)
        # Store times go on from here: the next append takes no earlier one, and the next round may stamp it.
        state.last_store_ms = last_ms
        parts.context.view[c.LAST_DISPATCHED_MS] = last_ms
        return end


def _walk(parts: RecoveryParts, words: Words, file: MappedFile, agreement: Agreement) -> int:
    """Scan one slice, and supply what the comparison asks for; return the stop code of the scan itself."""
    while True:
        # After the first difference the scan only searches for the log's end.
        words[c.S_AGREEMENT] = agreement.address if agreement.end is None else 0
        stopped = scan(words.address)
        if stopped in (c.EXHAUSTED, c.LOG_FILE_END, c.BAD_RECORD):
            return stopped
        at = file.base + words[c.S_AT]
        if not agreement.provide(stopped, file, at):
            agreement.stop(at)


def _pass_damage(
    parts: RecoveryParts, state: RecoveryState, file: MappedFile, words: Words, agreement: Agreement
) -> int:
    """Report a bad record in the middle of the log; return the log offset after the damage, where the
    comparison goes on.

    Units and entries of the bad bytes cannot be compared, so they are kept as they are.
    """
    state.has_bad_part = True
    bad, reason = file.base + words[c.S_AT], REASONS[words[c.S_REASON]]
    following = Bridge(parts.log, parts.records.begins_record).following(bad) or file.end
    what = (
        f"{reason}; the log goes on at {following:,}, and units and entries of what lies between are kept "
        "as they are"
    )
    parts.report.finding(
        "error", f"{what}. See `manage.py check_store {parts.root}`", file.path.name, words[c.S_AT]
    )
    # A blank states no place: it may be that of another file whose content lies here.
    compared_from = (
        file.end
        if following < file.end and parts.records.is_blank(file, following - file.base)
        else following
    )
    agreement.pass_entries(bad, compared_from)
    for queue in parts.queues:
        _keep_unverified(parts, state, queue, bad, compared_from)
    return following


def _keep_unverified(
    parts: RecoveryParts, state: RecoveryState, queue: ConsumeQueue, bad: int, following: int
) -> None:
    """Keep the units that lead to the bad part [bad, following) of the log, after those of the records before
    it, without a comparison."""
    first = queue.row[c.Q_AGREED] or parts.units.units_below(queue, queue.files, bad)[0]
    after, _ = parts.units.units_below(
        queue, [file for file in queue.files if file.end > first * UNIT], following
    )
    unit = queue.unit(first) if first < after <= queue.maximum else None
    if unit is not None and unit.log_offset >= bad:
        before = state.unverified.get(queue)
        state.unverified[queue] = Unverified(
            before.first if before is not None and before.after == first else first, after, following
        )
        queue.row[c.Q_AGREED] = after
