"""Step 5, judge the end of the log, and step 6, cut the log there.

log         good good good | bad ......... [good good] ... 0 0 0
                           ^ end           ^ a good record after the end

the ordinary end     the last record was torn by a crash, and nothing of it is known to have been on the
                     disk: it is cut, and a copy is kept
damage               the checkpoint's stamp is younger than the last good record: it was on the disk;
                     or a good record follows, and no power cut can have damaged what lies before it
"""

from __future__ import annotations

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.log.record_faults import REASONS
from broker_store.engine.log.whole_records import data_end_from, find_record, whole_records
from broker_store.engine.rows import Words
from broker_store.engine.start.report import MAX_RECORDS_NAMED, CutMessages, time_text
from broker_store.engine.start.state import RecoveryParts, RecoveryState
from broker_store.errors import DamagedStoreError
from broker_store.formats.checkpoint import Checkpoint
from broker_store.kernels import context as c

_DAY_MS = 24 * 3600 * 1000
_MOVE_CHECKPOINT = (
    " If the log is complete, move `checkpoint` out of the store instead: without it no record counts as "
    "missing by its time."
)


def note_end(parts: RecoveryParts, file: MappedFile, words: Words, stopped: int) -> None:
    """Report where the scan stopped, and why, as facts."""
    at, is_bad = words[c.S_AT], stopped == c.BAD_RECORD
    crc_failed = is_bad and words[c.S_REASON] == c.REASON_BODY_CRC
    parts.report.crc_failures += crc_failed
    parts.report.stopped = {
        "file": file.path.name,
        "at": at,
        "log_offset": file.base + at,
        "reason": REASONS[words[c.S_REASON]]
        if is_bad
        else "a blank closes the last file"
        if stopped == c.LOG_FILE_END
        else "the file ends",
        "crc_failed": crc_failed,
        "data_follows": parts.records.is_data(file, at),
        "verdict": "end of the log",
    }


def judge_end(
    parts: RecoveryParts, state: RecoveryState, file: MappedFile, words: Words, last_ms: int | None
) -> str:
    """Decide between the ordinary end of a crash and damage; return the verdict as a sentence.

    What the log stamp covers was on disk and cannot be missing. Raises DamagedStoreError.
    """
    stamp = parts.checkpoint.stamps.physic_msg_timestamp
    at = words[c.S_AT]
    reason = REASONS.get(words[c.S_REASON], "the file ends without a blank")
    # The time that the record states, if it states its own place and the time is not torn: times never step
    # back along the log. Of records of the stamp's very ms all are synced only after a clean stop.
    stated_ms = parts.records.stated_ms(file, at)
    was_synced = stated_ms is not None and (last_ms or 1) <= stated_ms < stamp + parts.was_clean
    may_end_here = (last_ms or 0) >= stamp and not was_synced
    later = _cannot_be_lost(parts, file, at) if may_end_here else None
    if may_end_here and later is None:
        if not parts.records.is_data(file, at) or parts.records.came_meanwhile(file, at):
            return "nothing follows: the ordinary end"
        parts.report.judge_stop("cut: not known to be on the disk")
        parts.report.finding(
            "warning",
            f"{reason}; what follows is not known to have been on the disk, and is cut",
            file.path.name,
            at,
        )
        return "what follows is not known to have been on the disk"
    last = parts.log.files[-1]
    lost = max(last.base + last.map().data_end() - file.base - at, 0)
    if later is not None:
        since = (
            "the store was closed in order"
            if parts.was_clean
            else "this machine was not restarted since they were written"
        )
        why = f"a good record follows at {later:,}, and {since}: no crash leaves that, so it is damage"
    else:
        why = (
            f"by the checkpoint, records up to store time {time_text(stamp)} were on disk"
            f" (the last good one is of {time_text(last_ms or 0)}){_stamp_doubt(parts)}"
        )
    what = f"{reason}, but {why}; cutting here would lose what follows, up to {lost:,} bytes"
    if parts.settings.accept_damage:
        parts.report.judge_stop("damage, accepted")
        parts.report.finding("error", what + "; accepted", file.path.name, at)
        # What this broker closed or recorded was dispatched, so numbers beyond the end were given. A crashed
        # store of Apache's broker ends here, as it does with Apache's broker.
        state.is_end_lost = parts.was_clean or parts.ends.is_there
        return "damage, accepted"
    parts.report.judge_stop("damage: the start stops")
    parts.report.finding("error", what, file.path.name, at)
    raise DamagedStoreError(
        what,
        file=str(file.path),
        offset=at,
        advice=f"To see all of it: `manage.py check_store {parts.root}`. To cut here, as Apache does, "
        f"with a copy kept in"
        f" lost+found: start again with "
        f"--accept-damage.{_MOVE_CHECKPOINT if _stamp_doubt(parts) else ''}",
    )


def _cannot_be_lost(parts: RecoveryParts, file: MappedFile, at: int) -> int | None:
    """Return the log offset of a good record after byte `at`, if no power cut can have caused that; else
    None.

    Records are written one after the other. A killed process leaves the last record incomplete and all
    earlier ones whole. A broker of ours that closes a store syncs all of it, and leaves no good record after
    the end.
    """
    if not (parts.keeps_what_was_written or parts.was_closed_here):
        return None
    files = parts.log.files
    for later in files[files.index(file) :]:
        found = find_record(later, parts.records.scan_words(later), at + 1 if later is file else 0)
        if found is not None:
            return later.base + found
    return None


def _stamp_doubt(parts: RecoveryParts) -> str:
    """Return a text about a log stamp that lies more than a day in the future, empty for any other."""
    is_future = parts.checkpoint.stamps.physic_msg_timestamp > parts.report.started_ms + _DAY_MS
    return (
        ", a time in the future: the checkpoint is damaged, or this machine's clock is slow"
        if is_future
        else ""
    )


def lower_stamps(parts: RecoveryParts, state: RecoveryState) -> bool:
    """Lower the checkpoint's stamps to the last record; return True if they were above it.

    After damage was accepted the stamps cover records that do not exist any more. If they stayed, they would
    stop every later start.
    """
    stamps, newest = parts.checkpoint.stamps, state.last_store_ms
    if max(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp, stamps.index_msg_timestamp) <= newest:
        return False
    lowered = Checkpoint(
        min(stamps.physic_msg_timestamp, newest),
        min(stamps.logics_msg_timestamp, newest),
        min(stamps.index_msg_timestamp, newest),
        stamps.master_flushed_offset,
        stamps.confirm_phy_offset,
    )
    parts.checkpoint.write(lowered)
    return True


def cut_log(parts: RecoveryParts, end: int) -> None:
    """Cut the log at `end`: later files are removed, and the rest of its file is zeroed.

    What holds data is kept in `lost+found/`, and the whole messages in it are reported.
    """
    report = parts.report
    named = _find_cut_messages(parts, end)
    file = parts.log.file_at(end)
    _cut_log(parts, end)
    if file is not None and (named.whole or named.searched_to is not None) and not report.came_meanwhile:
        report.cut["messages"] = named.as_dict()
        is_done = not parts.disk.is_inspecting
        then = "kept in lost+found" if is_done else "a start cuts them, and keeps them in lost+found"
        report.finding("warning", f"{named.words(are_cut=is_done)}; {then}", file.path.name, end - file.base)


def _find_cut_messages(parts: RecoveryParts, end: int) -> CutMessages:
    """Return the whole messages after the log's end, which the cut removes; at most MAX_RECORDS_NAMED records
    are read, and if there are more, the offset of the next one is returned too.

    Messages of deleted topics are not lost by it, and are left out.
    """
    file, found = parts.log.file_at(end), CutMessages()
    if (
        file is None
        or parts.records.came_meanwhile(file, end - file.base)
        or not (
            parts.log.files[-1].base > end or data_end_from(file.map(), end - file.base) > end - file.base
        )
    ):
        return found
    with parts.report.step("name the whole messages after the log's end") as step:
        for number, one in enumerate(whole_records(parts.log.files, parts.records.scan_words, end)):
            if number == MAX_RECORDS_NAMED:
                found.searched_to = one.log_offset
                break
            if one.is_queued and one.log_offset >= parts.tombstones.before(one.topic):
                found.add(one.topic, one.queue_id, one.queue_offset)
        step.detail = found.words(are_cut=False)
    return found


def _cut_log(parts: RecoveryParts, end: int) -> None:
    with parts.report.step("cut the log at its end") as step:
        files = parts.log.files
        removed = 0
        while files and files[-1].base > end:
            later = files.pop()
            later.unmap()
            parts.kept.keep_away(later.path)
            removed += 1
        parts.report.cut["commitlog"] |= {"files": removed, "from": end}
        file = parts.log.file_at(end)
        if file is not None:
            at = end - file.base
            region = file.map()
            last = data_end_from(region, at)
            if parts.records.came_meanwhile(file, at):
                parts.report.came_meanwhile = last - at
                region.punch(at)
            elif last > at:
                kept = parts.kept.copy_range(region, at, last - at, f"commitlog.{file.path.name}.from-{at}")
                parts.report.cut_bytes += last - at
                parts.report.cut["commitlog"] |= {"bytes": last - at}
                parts.report.finding(
                    "info",
                    f"{last - at:,} bytes copied to {kept}",
                    file.path.name,
                    at,
                )
                file.own()
                region = file.map()
                region.punch(at)
            region.sync(at, region.size - at)
            step.file = file.path.name
        step.detail = f"the log ends at {end:,}" + (f", {removed:,} later files away" if removed else "")
