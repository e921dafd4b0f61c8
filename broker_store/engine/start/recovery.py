"""Recovery: from whatever a crash left to a store whose log, queues and index agree.

The log alone decides what exists. In order:

1. load every file; a wrong length, a gap in the log or a foreign name stops the start, and so does a log that
   is not there;
2. close the holes of queues, find the end of each (a zero unit, a step back), and compare it with the record
   of ends: a queue that is not as recorded is damaged, is copied to lost+found and made again from where it
   is sure (`engine/start/proof.py`);
3. choose the file to scan from: abnormally by the checkpoint's stamps, normally by what the queues know
   (docs/spec/store-behaviour.md sections 4.2 and 4.3);
4. scan from there, record by record, to the first that is not good: the log's end. On the way each record is
   compared with its unit and its index entries, up to the first of which anything is missing
   (`engine/start/agreement.py`);
5. decide what that end is. Above the checkpoint's log stamp it is the ordinary end of a crash, unless the
   process was killed since the machine was started, and good records or units of them follow. Below, bytes
   that were on disk have changed: damage, and the start stops, or goes on with `accept_damage`
   (docs/durability.md section 5); Then rehearse step 7 without a change (`engine/start/rehearsal.py`): a
   start that is refused has changed no file;
6. cut the log there, keep copies of what goes, zero the tail; cut the queues there, and the index where it
   stopped to agree;
7. dispatch again from where queues or index stopped to agree: mostly there is nothing left to do. A queue
   that turns out to have a hole makes the walk start over further back;
8. see that no queue is shorter than the record says: an offset that was given is not given again.

What a killed process left is in the system's memory and need not be on the disk. Nothing counts as flushed
because it was found: `flushed` begins at the file of step 3, and the flushers bring it to the disk from
there, and then move the stamps, as they do with what is written new. Only three things cannot wait. The zeros
behind the log's end are synced before anything is written there: a record that came back behind new ones
would be believed. With SYNC_FLUSH the whole log is, because what is shown must not be lost. And names of log
files are, since no flusher looks after them.

Where this differs from Apache's and why stands in docs/durability.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker_store.config import StoreSettings
from broker_store.engine.disk import Disk, Region
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.file_facts import kept_directory
from broker_store.engine.flusher import CheckpointFile
from broker_store.engine.index.hash_index import HashIndex, IndexPlace
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.record_room import MAX_RECORD
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.log.whole_records import data_end_from, find_record, is_whole, whole_records
from broker_store.engine.mapped_file import MappedFile
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue, ConsumeQueues
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.engine.queue.tombstones import Tombstones
from broker_store.engine.rows import Words, WriterContext
from broker_store.engine.start.agreement import Agreement
from broker_store.engine.start.bridge import Bridge, are_lost
from broker_store.engine.start.ends import BOUND, FILE_NAME, EndsFile, IndexEnd
from broker_store.engine.start.log_begin import (
    MAX_NAMED_QUEUES,
    LostBegin,
    MissingBegin,
    lost_with,
    missing_begin,
    missing_log,
    not_there,
    take_expired,
)
from broker_store.engine.start.proof import KnownTopics, Proof, Suspect
from broker_store.engine.start.rehearsal import Disowned, QueueEnd, Rehearsal, WayBack, missing_units
from broker_store.engine.start.report import MAX_RECORDS_NAMED, SCAN, CutMessages, RecoveryReport, time_text
from broker_store.engine.start.start_records import SYNC_FLUSH, LastStart, ends_gone
from broker_store.errors import DamagedStoreError, FormatError
from broker_store.formats import queue_unit, record
from broker_store.formats.checkpoint import Checkpoint
from broker_store.formats.index_file import FIRST_ENTRY, IndexHeader
from broker_store.formats.record import (
    FIXED,
    FIXED_IPV4,
    MAX_BEYOND_BODY,
    MIN_RECORD,
    STORE_TIMESTAMP,
    SYS_FLAG,
    SYS_FLAG_AT,
)
from broker_store.kernels import context as c
from broker_store.kernels.scan import after_last_unit, find_unit_break, scan

_SLICE = 64 << 20
_NEVER = 1 << 62
_DAY_MS = 24 * 3600 * 1000
_MOVE_CHECKPOINT = (
    " If the log is complete, move `checkpoint` out of the store instead: without it no record counts as "
    "missing by its time."
)
_LOOK_AHEAD = 64 << 20  # bytes of the log in which the next record of a queue is looked for
_QUEUE_FILES_LOOKED_AT = 3
_MOST_BEYOND = 64  # units of a queue that are asked whether they prove that the log went on
_REASONS = {
    c.REASON_NOT_A_RECORD: "no record begins here",
    c.REASON_LENGTH: "a length in the record is out of bounds",
    c.REASON_PLACE: "the record names another place than its own",
    c.REASON_BODY_CRC: "the body's CRC is wrong",
    c.REASON_SYNTAX: "its topic or properties are malformed",
    c.REASON_RECORD_CRC: "the CRC of the whole record is wrong",
}


class Believed(NamedTuple):
    """Units [first, behind) of a queue that lead to bad parts of the log, the last of which ends at
    `log_offset`: no record shows whether they are right."""

    first: int
    behind: int
    log_offset: int


class Recovery:
    """One run. All parts are loaded by it; afterwards `log_end` and the queues' next offsets stand."""

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        context: WriterContext,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        dispatcher: Dispatcher,
        checkpoint_file: CheckpointFile,
        ends: EndsFile,
        tombstones: Tombstones,
        times: StoreTimes,
        read_config: Callable[[str], str | None],
        report: RecoveryReport,
        root: Path,
        last_start: LastStart,
    ):
        """`last_start` is the newest start before this one of a broker that opened the store."""
        self._disk, self._settings, self._context = disk, settings, context
        self._log, self._queues, self._index, self._dispatcher = log, queues, index, dispatcher
        self._checkpoint, self._report, self._root = checkpoint_file, report, root
        self._last_start = last_start
        self._ends, self._tombstones, self._times, self._read_config = ends, tombstones, times, read_config
        self._proof = Proof(ends, 0, False, False)
        self._suspects: dict[ConsumeQueue, Suspect] = {}
        self._too_long: set[ConsumeQueue] = set()  # with units behind the recorded end, which are reported
        self._trusts_index = False
        self._copied: set[Path] = set()
        self._disowned: dict[ConsumeQueue, Disowned] = {}
        self._lost_begin: LostBegin | None = None  # where that is accepted
        # Whether the log begins at 0 and, by the record of ends, lost nothing before
        self._has_first_record = False
        self._bridged: set[ConsumeQueue] = set()  # queues in which this start wrote units for lost messages
        self._believed: dict[ConsumeQueue, Believed] = {}
        # By log offset: the number of each queue's first record from there on
        self._stated_from: dict[int, dict[tuple[str, int], int]] = {}
        # Queues that are shorter than the record says, and its next offset
        self.missing: list[tuple[ConsumeQueue, int]] = []
        self.unread_index: tuple[IndexEnd, ...] = ()  # rows of index files that were not read as a whole
        # They go when it is sure that the start goes on: files to be kept, among them index files of a wrong
        # length, and others.
        self._away: list[Path] = []
        self._removed: list[Path] = []
        self._kept_in: Path | None = None
        self._max_record = settings.max_message_size + MAX_BEYOND_BODY
        self.last_store_ms = 0
        self._was_clean = False
        self._was_recorded = False  # whether the record of ends was there before this start wrote in it
        self.was_closed = False  # by this engine, by the last block of the record of ends
        self._queue_files_gone = 0
        self._is_end_lost = False  # of the log, which was accepted
        self._has_bad_part = False  # whether the log goes on behind bytes that are no good record
        # Queue and unit before which retention removed all records
        self._may_begin_at: set[tuple[ConsumeQueue, int]] = set()
        # By queue where its recorded units end in the log, of a record that was lowered
        self._recorded_to: dict[tuple[str, int], int] = {}
        # By queue of which a file was missing: the files behind it, which are taken away. Dispatch goes back
        # to where the queue ends now.
        self._shortened: dict[ConsumeQueue, list[Path]] = {}
        self.has_changed_files = False

    def run(self, clean: bool) -> int:
        """Bring everything to agreement; returns the log's end. Raises DamagedStoreError, StoreError."""
        report = self._report
        self._was_clean = self._trusts_index = clean
        self._load()
        self._demand_the_log()
        if not self._log.files:
            report.kind = (
                "first start" if clean and not len(self._queues) else "normal" if clean else "abnormal"
            )
            with report.step("begin an empty log"):
                end = self._empty_log()
            report.log_end = end
            return end
        report.kind = "normal" if clean else "abnormal"
        is_exact = clean and self._ends.found and self._is_end(self._ends.position)
        self._proof = Proof(self._ends, self._log.minimum, is_exact, self._compares_all)
        if clean:
            for doubt in self._tombstones.doubts(
                self._ends.position if is_exact else self._log.files[-1].end
            ):
                report.finding("warning", doubt, f"config/{TOMBSTONES}")
        with report.step("see that the log begins where it did"):
            self._demand_the_begin(is_exact)
        with report.step("find the end of each queue") as step:
            self._open_recorded(KnownTopics(self._read_config, clean))
            for queue in self._queues:
                self._drop_if_deleted(queue)
                self._close_holes(queue)
                # Another file may be the first now, where a torn one did not say it
                self._drop_if_deleted(queue)
                self._find_queue_end(queue, clean)
            if self._lost_begin is not None and not is_exact:
                self._keep_numbers_below(self._log.minimum)
            step.detail = _counted(len(self._queues), "queue")
        self._demand_the_newest()
        start = self._choose_start(clean)
        with report.step("find how far the index is sure"):
            place = self._index_place(start)
            topics = KnownTopics(self._read_config, clean and not self._proof.is_exact)
            agreement = Agreement(
                self._context, self._queues, self._index, self._dispatcher, place, self._judge_record(topics)
            )
            agreement.asks_topics = topics.is_known
            if not self._proof.is_exact and (clean or not self._ends.found):
                agreement.allow_no_tags()
        compared_from = self._compare_before(start, place, agreement)
        end = self._scan(start, agreement)
        with report.step("see that the log reaches as far as it did"):
            self._demand_all(end)
            if self._is_end_lost:
                self._keep_next_offsets(end)
        agreed = end if agreement.end is None else agreement.end
        headless = {queue for queue in self._queues if self._is_headless(queue, agreement)}
        kept = {
            queue: QueueEnd(0, 0) if queue in headless else self._end_within(queue, end)
            for queue in self._queues
        }
        self._disowned = self._find_disowned(kept, compared_from)
        if not self._settings.accept_damage:
            with report.step("see that the start can be finished") as step:
                step.detail = self._rehearse(start.base, agreed, end, place, compared_from, kept, headless)
        given = self._find_given(end) if self._settings.accept_damage else {}
        self.has_changed_files = True
        self._tombstones.write_noted()
        if expired := take_expired(self._log):
            what = (
                f"{_counted(expired, 'file')} below {self._log.minimum:,}, which retention had begun to "
                f"delete, went"
            )
            report.finding("info", what, "commitlog")
        for path in self._removed:
            self._disk.unlink(path)
        for directory in sorted({path.parent for path in self._removed}):
            self._disk.sync_directory(directory)
        for path in self._away:
            self._keep_away(path)
        self._copy_suspects(agreement.headless)
        named = self._find_what_is_cut(end)
        file = self._log.file_at(end)
        self._cut_log(end)
        if (named.whole or named.looked_to is not None) and not report.came_meanwhile:
            report.cut["messages"] = named.as_dict()
            is_done = not self._disk.is_inspecting
            then = "kept in lost+found" if is_done else "a start cuts them, and keeps them in lost+found"
            report.finding(
                "warning", f"{named.words(are_cut=is_done)}; {then}", file.path.name, end - file.base
            )
        with report.step("lower the checkpoint's stamps") as step:
            step.detail = (
                "they claimed more than there is"
                if self._lower_stamps()
                else "they claim no more than there is"
            )
        with report.step("cut queues at the log's end") as step:
            cut = sum(self._cut_queue(queue, kept[queue]) for queue in self._queues if queue in kept)
            report.cut["consumequeue"]["files"] = self._queue_files_gone
            step.detail = (
                f"{cut:,} units pointed at or beyond {end:,}" if cut else "nothing beyond the log's end"
            )
        if not clean and self._settings.flush_disk_type == SYNC_FLUSH:
            with report.step("sync the log before units are written"):
                for file in self._log.files[self._log.files.index(start) :]:
                    if file.base < end:
                        file.map().sync(0, min(file.size, end - file.base))
        dispatch_from = self._mend_index(start.base, agreement.index_place(agreed), end, place, agreement)
        for queue in self._shortened.keys() | headless:  # units that agreed are among those that went
            dispatch_from = min(dispatch_from, max(self._log.minimum, queue.row[c.Q_LOG_END]))
        left_out = None if agreed == end else self._record_to_leave_out(agreed)
        gone_back = {} if agreed == end else self._go_back(compared_from)
        for queue, number in given.items():
            gone_back[queue] = max(number, gone_back.get(queue, 0))
        self._dispatch_again(dispatch_from, end, gone_back, left_out)
        with report.step("compare next offsets with the record of ends") as step:
            step.detail = self._compare_next_offsets()
        with report.step("correct the minimum offsets"):
            for queue in self._queues:
                queue.row[c.Q_NEXT] = queue.maximum
                queue.unproved = {
                    base: end for base, end in queue.unproved.items() if end.following <= queue.maximum
                }
                if queue.files:
                    queue.minimum = max(queue.minimum, queue.files[0].base // UNIT)
                queue.correct_minimum(self._log.minimum)
            self._name_lost_begin()
        self._context.view[c.QUEUED_KEYS] = 0
        with report.step("make the log ready to write") as step:
            step.file = self._log.files[-1].path.name
            self._log.start_writing(end)
        if not clean:
            self._take_over_unsynced(start, end)
        self._dispatcher.start_at(end)
        report.log_end = end
        return end

    @property
    def _compares_all(self) -> bool:
        """Whether all queue and index files are compared with the record of ends.

        A start that accepts damage does so too: the next plain start could not make them again from a damaged
        log.
        """
        return self._ends.in_doubt or self._settings.accept_damage

    @property
    def _keeps_what_was_written(self) -> bool:
        """Whether the last run was killed and the machine was not restarted since: then all that was written
        is there."""
        return self._last_start.is_same_boot and not self._was_clean and not self._report.in_use

    @property
    def _units_prove_records(self) -> bool:
        """Whether a unit that the last run wrote says that its record was there."""
        if self._was_clean:
            return self._was_closed_here
        return self._last_start.units_prove_records and not self._report.in_use

    @property
    def _was_closed_here(self) -> bool:
        """Whether a broker of ours opened the store before this start, and it was closed in order."""
        return self._was_clean and self._last_start.started_ms is not None

    # 1 --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        report = self._report
        self._load_record()
        with report.step("load the commit log") as step:
            self._log.load(minimum=self._ends.log_minimum)
            step.detail = f"{_counted(len(self._log.files), 'file')} of {self._log.file_size:,} bytes"
        with report.step("load the queues") as step:
            self._queues.load()
            step.detail = _counted(len(self._queues), "queue")
        with report.step("load the checkpoint") as step:
            self._checkpoint.load()
            stamps = self._checkpoint.stamps
            report.checkpoint = {
                "found": self._checkpoint.found,
                "physic_ms": stamps.physic_msg_timestamp,
                "logics_ms": stamps.logics_msg_timestamp,
                "index_ms": stamps.index_msg_timestamp,
                "limit_ms": max(0, stamps.min_timestamp),
            }
            step.detail = (
                f"log {time_text(stamps.physic_msg_timestamp)}, queues "
                f"{time_text(stamps.logics_msg_timestamp)}, index "
                f"{time_text(stamps.index_msg_timestamp)}"
                if self._checkpoint.found
                else "there is none: its stamps count as 0"
            )
        with report.step("load the index") as step:
            self._index.load(self._keep_if_recorded)
            step.detail = _counted(len(self._index.files), "file")

    def _load_record(self) -> None:
        report = self._report
        with report.step("load the record of ends") as step:
            self._ends.load()
            self._was_recorded = self._ends.found
            self.was_closed = self._was_clean and self._ends.is_final
            queues, noun = len(self._ends.queues), self._ends.note
            step.detail = (
                f"{_counted(queues, 'queue')}, the log up to {self._ends.position:,}"
                + (f"; {noun}" if noun else "")
                if self._ends.found
                else f"{noun or 'it holds no whole block'}, so how far queues and index reach is read "
                f"from their files"
            )
            if self._is_record_gone:
                report.finding("warning", ends_gone(self._last_start.started_ms), FILE_NAME)
            if self._ends.is_there and noun:
                report.finding("warning", noun, FILE_NAME, self._ends.good_bytes)

    @property
    def _is_record_gone(self) -> bool:
        """Whether the record of ends was taken away since the last stop, which wrote one."""
        return self._was_closed_here and not self._ends.is_there

    def _empty_log(self) -> int:
        """No log file at all: the log begins, in a store that had one behind where that ended. Queues and
        index stay as they are.

        Their records are gone as if they had become too old (docs/spec/store-behaviour.md section 4.5), so no
        offset is given again.
        """
        given = {}
        for queue in self._queues:
            if queue.hole is not None:
                self._report.finding(
                    "warning",
                    f"a file is missing or empty: those from {queue.hole.files[0].name} on are taken away",
                    _name(queue),
                )
                self._take_away(queue, queue.hole.files)
            given[queue] = self._number_behind_gone(
                queue, self._number_behind_units(queue, _NEVER), 0, _NEVER
            )
            self._find_queue_end(queue, clean=False, log_end=_NEVER)
        known = max(
            [self._ends.position, self._indexed_to(), *(queue.row[c.Q_LOG_END] for queue in self._queues)]
        )
        self._open_recorded(KnownTopics(self._read_config, was_clean=False))
        following = {
            queue: max(
                queue.maximum, given.get(queue, 0), self._ends.next_offset(queue.topic, queue.queue_id)
            )
            for queue in self._queues
        }
        # A record whose number is larger than the count of records that have room before it is damaged
        # (`_is_misnumbered`).
        known = max(known, MIN_RECORD * max(following.values(), default=0))
        end = -(-known // self._log.file_size) * self._log.file_size
        self.has_changed_files = True
        for path in self._away:
            self._keep_away(path)
        self._lower_stamps()
        self._log.start_writing(end)
        self._dispatcher.start_at(end)
        if known:
            self._ends.lower(end, end)
        self._ends.begin_at(end)
        for queue in self._queues:
            if following[queue] > queue.maximum:
                self._begin_at(queue, following[queue])
            queue.row[c.Q_NEXT] = queue.minimum = following[queue]
            queue.row[c.Q_LOG_END] = 0
        self._index.drop_unused()
        self._index.start_writing()
        return end

    def _indexed_to(self) -> int:
        """Log offset behind the begin of the last record in the index, 0 without one, and where the newest
        file's header and last entry differ."""
        newest = next(
            (file for file in reversed(self._index.files) if file.bounded_count > FIRST_ENTRY), None
        )
        if newest is None or newest.entry(newest.bounded_count - 1).log_offset != newest.header().end_offset:
            return 0
        return newest.header().end_offset + 1

    # The log is there -----------------------------------------------------------------------------

    def _demand_the_log(self) -> None:
        """Raises DamagedStoreError for a store that had messages and has no log file, unless that is
        accepted. Nothing is changed before."""
        if self._log.files:
            return
        units = sum(self._units_in(queue) for queue in self._queues)
        units += sum(
            self._ends.messages(*key) for key in self._ends.queues if self._queues.find(*key) is None
        )
        is_indexed = any(file.bounded_count > FIRST_ENTRY for file in self._index.files)
        what = missing_log(
            self._ends.position, self._checkpoint.stamps.physic_msg_timestamp, units, is_indexed
        )
        if what is not None:
            self._refuse(what, self._log.directory, None)

    def _demand_the_begin(self, is_exact: bool) -> None:
        """The log must begin where the record says, unless another broker's retention may have removed the
        files."""
        self._has_first_record = self._ends.found and self._ends.log_minimum == 0 == self._log.minimum
        missing = missing_begin(self._ends, self._log.minimum, self._log.file_size, self._was_clean, is_exact)
        if missing is None and self._ends.log_minimum < 0:
            self._name_unknown_begin()
        elif missing is not None and missing.by_other_broker:
            self._report.finding("warning", str(missing), "commitlog")
        elif missing is not None:
            self._lost_begin = LostBegin(missing, self._ends, self._queues)
            units = sum(end - first for _, first, end in self._lost_begin.by_units)
            self._refuse(not_there(str(missing), units), self._log.directory, None)
        self._ends.begin_at(self._log.minimum)

    def _name_lost_begin(self) -> None:
        """Report the messages that went with the log's first files, when queues whose units were damaged have
        been made again."""
        named = self._lost_begin.found() if self._lost_begin is not None else []
        for queue, first, end in named[:MAX_NAMED_QUEUES]:
            self._report.finding(
                "error",
                f"messages {first:,} to {end - 1:,} are lost with the log files that are missing",
                _name(queue),
            )
        if len(named) > MAX_NAMED_QUEUES:
            self._report.finding(
                "error",
                f"{len(named) - MAX_NAMED_QUEUES:,} more queues lost messages with those files",
                "consumequeue",
            )

    def _name_unknown_begin(self) -> None:
        """Report the messages before the log's begin: without a record it is unknown whether retention
        removed them."""
        minimum = self._log.minimum
        before = lost_with(MissingBegin(0, minimum, self._log.file_size, by_other_broker=False), self._queues)
        if before:
            units = sum(end - first for _, first, end in before)
            why = f" ({self._ends.note})" if self._ends.note else ""
            what = (
                f"the log begins at {minimum:,}, and the record of ends does not say where it began{why}:"
                f" {_counted(units, 'message')} before it, by the queues, went by retention or "
                f"{'is' if units == 1 else 'are'} lost"
            )
            self._report.finding(
                "warning" if self._ends.is_there or self._is_record_gone else "info", what, "commitlog"
            )

    def _demand_the_newest(self) -> None:
        """Without a record: units that point into the file behind the last one say that it is missing, after
        a stop in order."""
        last = self._log.files[-1]
        if self._ends.found or not self._was_clean:
            return
        beyond = [
            queue for queue in self._queues if last.end < self._end_beyond(queue) <= last.end + last.size
        ]
        if beyond:
            units = sum(self._units_beyond(queue, last.end) for queue in beyond)
            self._refuse(
                not_there(f"the log file behind {last.path.name} is missing: queues point into it", units),
                self._log.directory,
                None,
            )
            self._is_end_lost = True

    def _demand_all(self, end: int) -> None:
        """The log must reach to where it was: by the record of ends, by the checkpoint, or by units, which
        are written after their records."""
        what = self._missing_at_end(end)
        if what is None:
            return
        units = sum(self._units_beyond(queue, end) for queue in self._queues)
        file = self._log.file_at(end) or self._log.files[-1]
        self._refuse(not_there(what, units), file.path, end - file.base)
        self._recorded_to = {
            queue: max(row.log_end for row in rows.values()) for queue, rows in self._ends.queues.items()
        }
        self._ends.lower(end, self._log.minimum)
        for queue in self._queues:
            queue.row[c.Q_RECORDED] = 0  # its files and sums left the record: the next round records them
        self._is_end_lost = True

    def _missing_at_end(self, end: int) -> str | None:
        """Say what the log lacks that ends at `end`; None where nothing is known to be missing."""
        last = self._log.files[-1]
        is_closed = last.base <= end <= last.end - record.BLANK_BYTES and self._is_blank(
            last, end - last.base
        )
        reached = last.end if is_closed else end
        stamps = self._checkpoint.stamps
        if self._ends.position > reached:
            return (
                f"the log ends at {end:,}, but it was on the disk up to {self._ends.position:,}: what "
                f"lay between is missing"
            )
        if is_closed and not self._ends.found and self.last_store_ms < stamps.physic_msg_timestamp:
            return self._ends_before(end, stamps.physic_msg_timestamp)
        # The times of a sound log may go back, and one stamp or unit may be damaged: the stamp of the queues
        # counts where their units say the same.
        is_stamp_ahead = (
            self._was_clean and not self._ends.found and self.last_store_ms < stamps.logics_msg_timestamp
        )
        if is_stamp_ahead and any(self._units_beyond(queue, end) for queue in self._queues):
            return self._ends_before(end, stamps.logics_msg_timestamp)
        if (
            self._was_clean
            and not self._proof.is_exact
            and self._is_end(end)
            and any(self._has_unit_of(queue, end) for queue in self._queues)
        ):
            return (
                f"the log ends at {end:,}, where by the queues a record began when the store was closed: "
                f"nothing lies there"
            )
        if self._units_prove_records and (proved := self._proved_beyond(reached)) is not None:
            gone = (
                f"the log file behind {last.path.name} is missing"
                if is_closed
                else f"nothing whole lies at {end:,}"
            )
            why = "with SYNC_FLUSH a record is synced before its unit is written"
            if self._was_clean or self._keeps_what_was_written:
                why = (
                    "the store was closed in order"
                    if self._was_clean
                    else "this machine was not restarted since it was written"
                )
            return (
                f"the log ends at {end:,}, but by the queues a record began at {proved:,}, and {why}: {gone}"
            )
        return None

    def _ends_before(self, end: int, stamp_ms: int) -> str:
        what = (
            f"the log ends at {end:,} with a record of {time_text(self.last_store_ms)}, but the "
            f"checkpoint says that it held records up to {time_text(stamp_ms)}"
        )
        return what + ": a file is missing, or what it held"

    def _keep_next_offsets(self, end: int) -> None:
        """Record the numbers of units beyond the log's end before they are cut: without a record of ends
        nothing else has them."""
        made = [queue for queue in self._queues if queue.is_made_from_log]
        reached = max(
            (self._units_below(queue, [file], _NEVER)[1] for queue in made for file in queue.files), default=0
        )
        # Of damaged units that point further nothing is believed
        believed_to = max(end, reached) + 2 * self._log.file_size
        following = {}
        for queue in made:
            number = self._number_behind_gone(
                queue, self._number_behind_units(queue, believed_to), end, believed_to
            )
            if number:
                following[queue.topic, queue.queue_id] = number
        self._ends.bound(following, end)

    def _keep_numbers_below(self, log_minimum: int) -> None:
        """Record the numbers of units behind a damaged one whose records lay below the log's begin: nothing
        else has them."""
        behind = {
            queue: self._number_behind_units(queue, log_minimum)
            for queue in self._queues
            if queue.is_made_from_log
        }
        following = {
            (queue.topic, queue.queue_id): number
            for queue, number in behind.items()
            if number > queue.maximum
        }
        if following:
            self._ends.bound(following, self._ends.position)

    def _number_behind_gone(self, queue: ConsumeQueue, number: int, end: int, believed_to: int) -> int:
        """`number`, or the number after the last unit in the queue's files behind a missing one, of a record
        from `end` to `believed_to` of the log.

        Where a file's name is not that of its first unit each of these units counts one.
        """
        for path in self._shortened.get(queue, ()):
            with self._disk.open_reader(path) as reader:
                units = list(queue_unit.decode_all(reader.read(0, queue.file_size)))
            behind = [
                place + 1
                for place, unit in enumerate(units)
                if unit.size >= MIN_RECORD and end <= unit.log_offset <= believed_to - unit.size
            ]
            if behind:
                number = (
                    max(number, int(path.name) // UNIT + behind[-1])
                    if int(path.name) % queue.file_size == 0
                    else number + len(behind)
                )
        return number

    def _refuse(self, what: str, path: Path, at: int | None) -> None:
        """Stop the start, unless damage is accepted; nothing has been changed."""
        name = f"commitlog/{path.name}" if path != self._log.directory else "commitlog"
        if self._settings.accept_damage:
            self._report.finding("error", what + "; accepted", name, at)
            return
        self._report.finding("error", what, name, at)
        raise DamagedStoreError(
            what,
            file=str(path),
            offset=at,
            advice="Put back what is missing, or mount it, and start again; nothing was changed. To see all "
            "of it:"
            f" `manage.py check_store {self._root}`. To go on without it, with new offsets behind "
            f"the old ones: start again with --accept-damage.",
        )

    def _units_in(self, queue: ConsumeQueue) -> int:
        """How many units of messages its files hold, or were recorded."""
        end = self._units_below(queue, queue.files, _NEVER)[0]
        return max(end, self._ends.next_offset(queue.topic, queue.queue_id)) - (
            queue.files[0].base // UNIT if queue.files else 0
        )

    def _units_beyond(self, queue: ConsumeQueue, log_end: int) -> int:
        here = self._units_below(queue, queue.files, log_end)[0]
        all_units = self._units_below(queue, queue.files, _NEVER)[0]
        return max(0, all_units - here, self._ends.next_offset(queue.topic, queue.queue_id) - here)

    def _has_unit_of(self, queue: ConsumeQueue, log_end: int) -> bool:
        """Whether the first unit of a record at or beyond `log_end` is of one that begins there: no damage of
        a unit says that."""
        return self._leads_exactly_to(log_end, queue, self._units_below(queue, queue.files, log_end)[0])

    def _proved_beyond(self, log_end: int) -> int | None:
        """The log offset of a record at or beyond `log_end` that was there, as no one damaged unit says: None
        without one.

        A unit leads to a record that begins at `log_end`, or to a good one that states the same place; or two
        units lead to two records. After a kill few units lead beyond the log's end, so these are looked for
        from a queue's last unit back.
        """
        believed_to = log_end + 2 * self._log.file_size
        beyond: list[queue_unit.QueueUnit] = []
        for queue in self._queues:
            if not queue.files:
                continue
            first = max(self._end_within(queue, log_end).following, queue.files[0].base // UNIT)
            if self._leads_exactly_to(log_end, queue, first):
                return log_end
            for number in range(first, first + _MOST_BEYOND):
                unit = queue.unit_in_files(number)
                if unit is None or not unit.is_data:
                    break
                if unit.is_pre_blank or not log_end <= unit.log_offset <= believed_to - unit.size:
                    continue
                if self._states_unit(queue, number) and self._begins_record(unit.log_offset):
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

    def _leads_exactly_to(self, log_offset: int, queue: ConsumeQueue, number: int) -> bool:
        unit = queue.unit_in_files(number)
        return unit is not None and unit.is_data and not unit.is_pre_blank and unit.log_offset == log_offset

    def _end_beyond(self, queue: ConsumeQueue) -> int:
        """Where the record of the first unit ends that points beyond the log, 0 without one."""
        unit = queue.unit_in_files(queue.maximum)
        return (
            unit.log_offset + unit.size if unit is not None and unit.is_data and not unit.is_pre_blank else 0
        )

    def _is_end(self, offset: int) -> bool:
        """Whether nothing lies at `offset` of the log, where the record says that it ended."""
        file = self._log.file_at(offset)
        return (
            file is not None and not any(file.map().read(offset - file.base, min(8, file.end - offset)))
        ) or (file is None and offset == self._log.files[-1].end)

    def _is_blank(self, file: MappedFile, at: int) -> bool:
        return record.read_head(file.map().read(at, record.BLANK_BYTES)).is_blank

    def _begins_record(self, offset: int) -> bool:
        """Whether a good record, or the blank that closes a file, begins at a log offset."""
        file = self._log.file_at(offset)
        if file is None:
            return False
        words = self._scan_words(file)
        words[c.S_AT], words[c.S_SLICE_END] = offset - file.base, offset - file.base + 1
        return scan(words.address) == c.LOG_FILE_END or words[c.S_COUNT] == 1

    def _record_at(self, offset: int) -> record.StoredMessage | None:
        file = self._log.file_at(offset)
        if file is None or file.end - offset < MIN_RECORD:
            return None
        try:
            size = record.read_head(file.map().read(offset - file.base, record.BLANK_BYTES)).total_size
            return record.decode(
                file.map().read(offset - file.base, min(max(size, 0), file.end - offset)),
                log_offset=offset,
                check_crc=False,
            )
        except FormatError:
            return None

    def _whole_record_at(self, offset: int) -> record.StoredMessage | None:
        """The record at a log offset if the CRC of its body is right."""
        found = self._record_at(offset)
        return found if found is not None and self._begins_record(offset) else None

    def _states_unit(self, queue: ConsumeQueue, number: int) -> bool:
        """Whether the record that unit `number` points to says the same of itself: its queue, its number and
        its size."""
        unit = queue.unit_in_files(number)
        found = None if unit is None else self._record_at(unit.log_offset)
        return found is not None and (found.topic, found.queue_id, found.queue_offset, found.size) == (
            queue.topic,
            queue.queue_id,
            number,
            unit.size,
        )

    def _find_disowned(
        self, kept: dict[ConsumeQueue, QueueEnd], compared_from: int
    ) -> dict[ConsumeQueue, Disowned]:
        """Queues whose last units lead to good records that state another place: dispatch would give their
        numbers once more.

        Outside the CRC of its body a record's queue, number, topic and flags may be damaged and still be
        possible ones.
        """
        found = {}
        for queue, end in kept.items():
            if (
                queue.topic.startswith(queue_unit.LIGHT_QUEUE)
                or queue.row[c.Q_AGREED] == end.following
                or end.log_end <= compared_from
            ):
                continue
            if queue in self._suspects:
                # Its units differ from the recorded ones; `_compare_next_offsets` reports those that are
                # missing
                continue
            # Where one is wrong, those below `compared_from` may be
            first, low = end.following, self._context.topic(queue.topic).row[c.T_DELETED_BEFORE]
            while (
                (unit := queue.unit_in_files(first - 1) if first else None) is not None
                and unit.is_data
                and unit.log_offset >= low
            ):
                stated = self._record_at(unit.log_offset)
                if stated is None or stated.size != unit.size:
                    break
                if stated.is_queued and (stated.topic, stated.queue_id, stated.queue_offset) == (
                    queue.topic,
                    queue.queue_id,
                    first - 1,
                ):
                    break
                first -= 1
                found[queue] = Disowned(first, end.following, unit.log_offset, stated)
        return found

    # Whether the start can be finished ------------------------------------------------------------

    def _rehearse(
        self,
        start: int,
        agreed: int,
        end: int,
        place: IndexPlace | None,
        compared_from: int,
        kept: dict[ConsumeQueue, QueueEnd],
        headless: set[ConsumeQueue],
    ) -> str:
        """See that all steps that change files come to their end, as `kept` leaves the queues. Raises
        DamagedStoreError."""
        for queue, disowned in self._disowned.items():
            raise disowned.error(queue, self._log, self._root)
        dispatch_from = min(
            [
                agreed,
                self._index_redo(start, agreed, end, place),
                *(max(self._log.minimum, kept[queue].log_end) for queue in self._shortened.keys() | headless),
            ]
        )
        ends = dict(kept)
        if agreed != end:
            ends |= {
                queue: redo
                for queue in kept
                if (redo := self._end_to_redo(queue, kept[queue], compared_from)) is not None
            }
        if dispatch_from < end:
            rehearsal = Rehearsal(self._log, self._queues, self._index, self._context, ends)
            way_back = WayBack(dispatch_from, self._log.minimum, self._begins_record)
            ends |= rehearsal.run(
                dispatch_from,
                end,
                way_back,
                self._may_begin,
                self._behind_misnumbered,
                self._behind_lost,
                self._root,
            )
        for (topic, queue_id), rows in self._ends.queues.items():
            queue, following = self._queues.find(topic, queue_id), self._ends.next_offset(topic, queue_id)
            if (
                queue is None
                or queue not in ends
                or BOUND in rows
                or ends[queue].following >= following
                or are_lost(queue, ends[queue].following, following)
            ):
                continue
            if (
                max(row.log_end for row in rows.values()) > self._log.minimum
                or ends[queue].log_end > self._log.minimum
            ):
                raise missing_units(
                    queue,
                    ends[queue].following,
                    following,
                    self._root,
                    "put placeholders there, which say so to who reads them",
                )
        if self._has_bad_part and not self._proof.is_exact:
            for queue, following in self._find_given(end).items():
                if queue in ends and ends[queue].following < following:
                    raise missing_units(
                        queue,
                        ends[queue].following,
                        following,
                        self._root,
                        "put placeholders there, which say so to who reads them",
                    )
        return (
            f"the log from {dispatch_from:,} on can be dispatched"
            if dispatch_from < end
            else "queues and index hold all of the log"
        )

    def _index_redo(self, start: int, agreed: int, end: int, place: IndexPlace | None) -> int:
        """From where the log is dispatched again for the index."""
        newest = self._index.newest_used()
        if place is None or not self._trusts_index or newest is None or newest.end_offset < end:
            return agreed
        return max(self._log.minimum, self._index.place_of(min(agreed, start)).log_offset)

    # Topics that are gone -------------------------------------------------------------------------

    def _open_recorded(self, topics: KnownTopics) -> None:
        """Queues that are in the record and not in the directory, but for those of deleted topics, which
        leave the record.

        One that was begun behind lost messages has 0 for where its record ends. The tombstone may be of a
        life before that one, so the queue stays: at worst a topic that is made again goes on with the numbers
        of the one that was deleted.
        """
        deleted = set()
        for topic, queue_id in list(self._ends.queues):
            log_end = max(end.log_end for end in self._ends.queues[topic, queue_id].values())
            before = (
                self._context.topics[topic].row[c.T_DELETED_BEFORE] if topic in self._context.topics else 0
            )
            if 0 < log_end <= before:
                self._ends.drop(topic, queue_id)
            elif topics.is_deleted(topic) and not any(
                self._queues.find(topic, number).files for number in self._queues.ids_of(topic)
            ):
                self._ends.drop(topic, queue_id)
                deleted.add(topic)
            elif self._queues.find(topic, queue_id) is None:
                self._queues.open(topic, queue_id).start_at(0)
        for topic in sorted(deleted):
            self._bury(topic, self._ends.position)

    def _bury(self, topic: str, before: int) -> None:
        """Take records of `topic` below `before` for those of a deleted topic; the file of tombstones follows
        when it is sure that the start goes on."""
        self._tombstones.note(topic, before)
        self._report.finding(
            "info",
            f"topic {topic} was deleted by another broker: nothing of it below {before:,} of the log "
            f"comes back",
        )

    def _judge_record(self, topics: KnownTopics) -> Callable[[int, str, ConsumeQueue | None, int], bool]:
        """What the comparison asks when a record has no unit: whether it is of a topic that was deleted, and
        maybe made again, since."""

        def is_buried(offset: int, topic: str, queue: ConsumeQueue | None, unit: int) -> bool:
            if queue is None:
                if topics.is_deleted(topic):
                    self._bury(topic, _NEVER)
                    return True
                return False
            if not self._states_unit(queue, unit):
                return False
            if any(
                self._leads_to(self._queues.find(topic, number), offset)
                for number in self._queues.ids_of(topic)
            ):
                return False  # the topic's own unit leads to it: what it states of its number is damaged
            begins = [
                self._first_of_life(self._queues.find(topic, number)) for number in self._queues.ids_of(topic)
            ]
            if any(0 <= begin <= offset for begin in begins):
                # A topic is deleted with all its queues, and this one was there before and after
                return False
            before = min([begin for begin in begins if begin > offset], default=offset + 1)
            self._bury(topic, before)
            return True

        return is_buried

    def _leads_to(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether a unit of the queue points to the record at `offset`."""
        return self._number_by_units(queue, offset) is not None

    def _number_by_units(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Number of the queue's unit that leads to the record at `offset`, None without one."""
        number, _ = self._units_below(queue, queue.files, offset)
        unit = queue.unit_in_files(number)
        return number if unit is not None and unit.is_data and unit.log_offset == offset else None

    def _first_of_life(self, queue: ConsumeQueue) -> int:
        """Log offset of unit 0, -1 without one."""
        if not queue.files or queue.files[0].base:
            return -1
        unit = queue_unit.decode(queue.files[0].map().read(0, UNIT))
        return unit.log_offset if unit.is_data and not unit.is_pre_blank else -1

    # 2 --------------------------------------------------------------------------------------------

    def _find_queue_end(self, queue: ConsumeQueue, clean: bool, log_end: int | None = None) -> None:
        """Its next unit: behind the last good one. After a clean stop only the last three files are looked
        at."""
        files = queue.files[-_QUEUE_FILES_LOOKED_AT:] if clean and not self._compares_all else queue.files
        end, reached = self._units_below(
            queue, files, self._log.files[-1].end if log_end is None else log_end
        )
        looked_from, good_end = files[0].base // UNIT if files else 0, end
        if files and end == files[0].base // UNIT and reached == 0:
            end = 0  # not one unit: numbering starts again, as in Apache (4.4)
        queue.start_at(end)
        queue.row[c.Q_LOG_END] = reached
        if log_end is not None:
            return
        if not self._proof.rows(queue):
            self._judge_unrecorded(queue)
            return
        following = self._ends.next_offset(queue.topic, queue.queue_id)
        if 0 < end < following and reached > self._ends.position and self._states_unit(queue, end - 1):
            # Another broker deleted the topic since the record was written, made it again, and numbers from 0
            # on.
            self._ends.drop(queue.topic, queue.queue_id)
            self._bury(queue.topic, self._ends.position)
            return
        suspect = self._proof.judge(queue, looked_from, good_end)
        queue.unproved = self._proof.unread(
            queue, looked_from if suspect is None else min(looked_from, suspect.first)
        )
        if suspect is not None:
            self._suspects[queue] = suspect
            self._report.finding(
                "warning",
                f"{suspect.why}; it is made again from the log, from {suspect.log_offset:,} on",
                _name(queue),
                suspect.first * UNIT,
            )
        if self._proof.is_too_long(queue):
            self._too_long.add(queue)
            if suspect is None:
                self._report.finding(
                    "warning",
                    f"behind its end, unit {following:,}, lie units of no message; they are taken out",
                    _name(queue),
                    following * UNIT,
                )
            queue.start_at(following)
            queue.row[c.Q_LOG_END] = self._proof.log_end_of(queue)
        if suspect is None and end >= following and BOUND not in self._proof.rows(queue):
            queue.row[c.Q_RECORDED] = following  # else the next round records its files and their sums

    def _judge_unrecorded(self, queue: ConsumeQueue) -> None:
        """Where the record of ends is damaged: a queue that it does not know has no units of records before
        the place up to which it knows the log.

        Its file may be another queue's: units before that place are not compared, and would give the queue
        its next number. A record that is whole may lack a queue that this broker made again, which is
        believed.
        """
        if not (self._ends.found and self._ends.note and queue.is_made_from_log and queue.files):
            return
        unit = self._first_unit(queue.files[0].path)
        if (
            unit.is_data
            and not unit.is_pre_blank
            and self._log.minimum <= unit.log_offset
            and unit.log_offset + unit.size <= self._ends.position
        ):
            first = queue.files[0].base // UNIT
            self._suspects[queue] = Suspect(
                queue, first, self._log.minimum, "the record of ends does not know its units"
            )
            what = (
                f"the record of ends does not know the queue, though it knows the log beyond unit {first:,}"
            )
            self._report.finding(
                "warning",
                f"{what}; it is made again from the log, from {self._log.minimum:,} on",
                _name(queue),
                first * UNIT,
            )

    def _copy_suspects(self, headless: list[ConsumeQueue]) -> None:
        """Keep files of damaged queues as they are before anything is written into them or taken out.

        A queue whose first file is missing is made again whole, since it would seem to begin with the file
        that is there.
        """
        for queue in headless:
            if queue not in self._suspects:
                self._suspects[queue] = Suspect(queue, 0, self._log.minimum, "its first file is missing")
                self._report.finding(
                    "warning", "its first file is missing; it is made again from the log", _name(queue), 0
                )
        for queue, suspect in self._suspects.items():
            is_headless = self._lacks_first(queue, suspect)
            for file in queue.files:
                if is_headless:
                    file.unmap()
                    self._keep_away(file.path)
                elif file.base >= suspect.first * UNIT:
                    self._copy_aside(file.path, file.map())
            if is_headless:
                queue.files = []
                queue.start_at(0)
                queue.minimum = queue.row[c.Q_LOG_END] = queue.row[c.Q_AGREED] = 0

    def _is_headless(self, queue: ConsumeQueue, agreement: Agreement) -> bool:
        """Whether `_copy_suspects` takes all its files away."""
        suspect = self._suspects.get(queue)
        if suspect is None and queue in agreement.headless:
            return queue.files[0].base > 0
        return suspect is not None and self._lacks_first(queue, suspect)

    def _lacks_first(self, queue: ConsumeQueue, suspect: Suspect) -> bool:
        """Whether none of its files is that of the first unit that is not sure: they begin behind it, or lie
        before it and have units of other numbers."""
        if not queue.files:
            return False
        at = suspect.first * UNIT
        if at < queue.files[0].base:
            return True
        unit = queue.unit_in_files(queue.maximum - 1) if queue.maximum and queue.files[-1].end <= at else None
        stated = (
            self._record_at(unit.log_offset)
            if unit is not None and unit.is_data and not unit.is_pre_blank
            else None
        )
        return stated is not None and not self._states_unit(queue, queue.maximum - 1)

    def _units_below(self, queue: ConsumeQueue, files: list[MappedFile], log_offset: int) -> tuple[int, int]:
        """(number behind the last good unit of a record that ends at or below `log_offset`, where that record
        ends, 0 for none)."""
        least = Words(1)
        end = files[0].base // UNIT if files else 0
        for file in files:
            good = find_unit_break(file.address, queue.units_a_file, log_offset, least[0], least.address)
            end = file.base // UNIT + good
            if good < queue.units_a_file:
                break
        return end, least[0]

    def _number_behind_units(self, queue: ConsumeQueue, log_end: int) -> int:
        """Number behind the last unit of a record that ends at or below `log_end`, also where units before it
        are damaged; 0 without one."""
        for file in reversed(queue.files):
            if behind := after_last_unit(file.address, queue.units_a_file, log_end, MIN_RECORD, MAX_RECORD):
                return file.base // UNIT + behind
        return 0

    def _go_back(self, compared_from: int) -> dict[ConsumeQueue, int]:
        """Let dispatch write units once more from where queues stopped to be compared, over those that are
        there; by such a queue its next number before."""
        gone_back = {}
        for queue in self._queues:
            going_back = self._end_to_redo(
                queue, QueueEnd(queue.maximum, queue.row[c.Q_LOG_END]), compared_from
            )
            if going_back is None:
                continue
            unit = going_back.following
            gone_back[queue] = queue.maximum
            queue.start_at(unit)
            queue.unproved = {base: end for base, end in queue.unproved.items() if end.following <= unit}
            queue.row[c.Q_LOG_END] = going_back.log_end
            for file in queue.files:
                if file.base >= unit * UNIT:
                    file.wrote = file.flushed = file.allocated = 0  # a crash may have left it without blocks
        return gone_back

    def _end_to_redo(self, queue: ConsumeQueue, end: QueueEnd, compared_from: int) -> QueueEnd | None:
        """Where the compared units end of a queue that ends at `end`; None when no unit is to be written once
        more."""
        suspect, agreed = self._suspects.get(queue), queue.row[c.Q_AGREED]
        is_quiet = end.log_end <= compared_from and suspect is None
        # Sums of the record of ends tell whose units they are: a queue without a record in the part that was
        # compared is not read.
        if queue.topic.startswith(queue_unit.LIGHT_QUEUE) or (is_quiet and (agreed or self._was_recorded)):
            return None
        unit = agreed or self._units_below(queue, queue.files, compared_from)[0]
        stated = None if agreed or self._was_recorded else self._number_before(queue, unit, compared_from)
        if stated is None and is_quiet:
            return None
        believed = self._believed.get(queue)
        if (
            believed is not None
            and believed.behind == unit
            and (self._settings.accept_damage or suspect is not None or self._is_disproved(queue, believed))
        ):
            # No record behind the bad part has shown that they are right: `Bridge.fill` makes them again, or
            # the start is refused
            unit = believed.first
        if suspect is not None and not agreed:
            # It may hold another queue's units, and those of records below the log show no number
            unit = suspect.first
        if stated is not None:
            unit = min(unit, stated)
        if (disowned := self._disowned.get(queue)) is not None:
            unit = min(unit, disowned.first)
        if unit >= end.following:
            return None
        before = queue.unit(unit - 1) if unit else None
        return QueueEnd(
            unit,
            before.log_offset + before.size
            if before is not None and before.is_data and not before.is_pre_blank
            else 0,
        )

    def _number_before(self, queue: ConsumeQueue, unit: int, compared_from: int) -> int | None:
        """Number that the queue's first record from `compared_from` on states, where it is below `unit`: the
        units before that one are another queue's.

        None where unit `unit` - 1 leads to a record that states it, or no such record follows within
        _LOOK_AHEAD bytes.
        """
        if not unit or self._states_unit(queue, unit - 1):
            return None
        stated = self._first_stated(queue, compared_from)
        return stated if stated is not None and stated < unit else None

    def _is_disproved(self, queue: ConsumeQueue, believed: Believed) -> bool:
        """Whether the queue's next record behind the bad part states the number of one of the believed units:
        they are not this queue's."""
        stated = self._first_stated(queue, believed.log_offset)
        return stated is not None and stated < believed.behind

    def _first_stated(self, queue: ConsumeQueue, begin: int) -> int | None:
        """As `_next_stated`, with one walk over the log for all queues that are asked about from the same log
        offset on."""
        if begin not in self._stated_from:
            first = self._stated_from[begin] = {}
            with self._report.step("read the numbers that records behind a bad part state") as step:
                step.detail = f"from {begin:,} on"
                for found in self._records_from(begin):
                    topic = self._context.topics.get(found.topic)
                    if topic is None or found.log_offset >= topic.row[c.T_DELETED_BEFORE]:
                        first.setdefault((found.topic, found.queue_id), found.queue_offset)
                    step.bytes, step.messages = found.log_offset + found.size - begin, step.messages + 1
        return self._stated_from[begin].get((queue.topic, queue.queue_id))

    def _drop_if_deleted(self, queue: ConsumeQueue) -> None:
        """A queue of a deleted topic whose files a crash left, or brought back, holds nothing that may be
        served."""
        before = self._context.topic(queue.topic).row[c.T_DELETED_BEFORE]
        if not queue.files or not before:
            return
        units = queue_unit.decode_all(queue.files[0].map().read(0, queue.file_size))
        first = next((unit for unit in units if not unit.is_pre_blank), None)
        if first is not None and first.is_data and first.log_offset < before:
            for file in queue.files:
                file.unmap()
            self._removed += [file.path for file in queue.files]
            queue.files = []

    def _close_holes(self, queue: ConsumeQueue) -> None:
        """Of a queue of which a file is missing keep what can be kept; the rest is made again from the log.

        A power cut may keep the name or the length of one new file and lose that of the one before it; and of
        the files that retention removed it may bring back any.
        """
        while queue.hole is not None:
            following = next(path for path in queue.hole.files if self._disk.size_of(path))
            first = self._first_unit(following)
            has_place = int(following.name) % queue.file_size == 0
            if (
                has_place
                and first.is_data
                and not first.is_pre_blank
                and first.log_offset < self._log.minimum
            ):
                before = [file.path for file in queue.files] + queue.hole.files[
                    : queue.hole.files.index(following)
                ]
                self._removed += before  # retention had removed them: they only point below the log
                queue.load(leave_out=self._removed)
            else:
                self._make_again(queue, queue.hole.files, "a file is missing or empty")
        if self._begins_too_late(queue):
            what = "its first file is missing, and the log holds the records of its units"
            self._make_again(queue, [file.path for file in queue.files], what)

    def _make_again(self, queue: ConsumeQueue, gone: list[Path], what: str) -> None:
        """Take the files `gone` of a queue away; dispatch goes back to where it then ends."""
        self._report.finding(
            "warning", f"{what}: its units from {gone[0].name} on are made again from the log", _name(queue)
        )
        self._take_away(queue, gone)

    def _take_away(self, queue: ConsumeQueue, gone: list[Path]) -> None:
        for file in queue.files:
            if file.path in gone:
                file.unmap()
        queue.files = [file for file in queue.files if file.path not in gone]
        queue.hole = None
        self._away += reversed(gone)
        self._queue_files_gone += len(gone)
        self._shortened.setdefault(queue, []).extend(gone)

    def _first_unit(self, path: Path) -> queue_unit.QueueUnit:
        with self._disk.open_reader(path) as reader:
            return queue_unit.decode(reader.read(0, UNIT))

    def _begins_too_late(self, queue: ConsumeQueue) -> bool:
        """Whether the units before its first file are of records that the log still holds, or that is not
        known.

        Retention leaves a first file that begins with a unit below the log's minimum
        (`ConsumeQueue.files_before`), or with that of the log's first record, and a queue that was begun
        behind lost records begins with blank units.
        """
        if not queue.files or queue.files[0].base == 0 or not queue.is_made_from_log:
            return False
        if queue.files[0].base // UNIT in self._proof.rows(queue):
            return False  # recorded as its first file, or the record has those before it
        first = self._first_unit(queue.files[0].path)
        if not first.is_data or first.is_pre_blank:
            return not first.is_data
        is_first_record = first.log_offset == self._log.minimum
        return first.log_offset > self._log.minimum or (
            is_first_record and not self._states_unit(queue, queue.files[0].base // UNIT)
        )

    def _drop_queue_files(self, queue: ConsumeQueue, end: int) -> None:
        """Files that begin behind the end go away; zero is left behind it in the file that holds it."""
        while queue.files and (queue.files[-1].base > end * UNIT or end == 0):
            file = queue.files.pop()
            file.unmap()
            self._keep_away(file.path)
            self._queue_files_gone += 1
            queue.row[c.Q_APPEND_LIMIT] = min(queue.row[c.Q_APPEND_LIMIT], file.base // UNIT)
        if queue.files and queue.files[-1].end > end * UNIT:
            at, region = end * UNIT - queue.files[-1].base, queue.files[-1].map()
            if data_end_from(region, at) > at:
                if self._was_clean:  # after a stop in order zero lies there; after a crash whatever it tore
                    if end == queue.maximum and queue not in self._too_long and queue not in self._suspects:
                        self._report.finding(
                            "warning",
                            f"behind its end, unit {end:,}, lie bytes of no message; they are taken out",
                            _name(queue),
                            end * UNIT,
                        )
                    self._copy_aside(queue.files[-1].path, region)
                region.punch(at)
                # A unit that came back after a later clean stop would be believed.
                region.sync(at, region.size - at)

    def _drop_files_before(self, queue: ConsumeQueue, unit: int) -> None:
        """Take away the files before the one of `unit` of a queue that begins with it: they hold units that
        were not believed."""
        disowned = self._disowned.get(queue)
        if queue.maximum and (disowned is None or self._states_unit(queue, disowned.first - 1)):
            return
        while queue.files and queue.files[0].end <= unit * UNIT:
            file = queue.files.pop(0)
            file.unmap()
            self._keep_away(file.path)
            self._queue_files_gone += 1

    # 3 --------------------------------------------------------------------------------------------

    def _choose_start(self, clean: bool) -> MappedFile:
        """The newest file that begins with what is known to be safe; the first when none does."""
        report = self._report
        with report.step("choose the file to scan from") as step:
            if clean:
                known = (
                    self._ends.position
                    if self._proof.is_exact
                    else max((queue.row[c.Q_LOG_END] for queue in self._queues), default=0)
                )
                why = (
                    f"the {'record of ends knows' if self._proof.is_exact else 'queues know'} the log up "
                    f"to {known:,}"
                )
                chosen = self._first_safe(
                    lambda file, first_ms: file.base <= known and first_ms is not None,
                    f"begins behind {known:,}, which is how far the queues know the log",
                )
            else:
                limit = self._checkpoint.stamps.min_timestamp
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
                chosen = self._first_safe(
                    lambda _, first_ms: first_ms is not None and 0 < first_ms <= limit, late
                )
            step.detail, step.file = why, chosen.path.name
            report.start = {
                "file": chosen.path.name,
                "base": chosen.base,
                "why": why if report.tried[-1]["taken"] else f"none is safe, so it is the first; {why}",
            }
            report.total_bytes = self._end_of_data() - chosen.base
        return chosen

    def _first_safe(self, is_safe: Callable[[MappedFile, int | None], bool], otherwise: str) -> MappedFile:
        """From the newest file backwards to the first that is safe to begin with; each is told."""
        for file in reversed(self._log.files):
            first_ms = self._first_store_ms(file)
            taken = is_safe(file, first_ms)
            why = (
                "taken"
                if taken
                else otherwise
                if first_ms is not None
                else f"no good record begins it; {otherwise}"
                if self._was_clean
                else "no good record begins it"
            )
            self._report.try_file(file.path.name, file.base, first_ms, taken, why)
            if taken:
                return file
        return self._log.files[0]

    def _end_of_data(self) -> int:
        """Behind the last byte of the log that may hold data: a file that was made ahead is not read
        through."""
        for file in reversed(self._log.files):
            end = file.map().data_end()
            if end or file is self._log.files[0]:
                return file.base + end
        return 0

    def _first_store_ms(self, file: MappedFile) -> int | None:
        """Store time of the file's first record, None when that is not good."""
        words = self._scan_words(file)
        words[c.S_SLICE_END] = 1
        scan(words.address)
        return words[c.S_LAST_MS] if words[c.S_COUNT] == 1 else None

    # 4 --------------------------------------------------------------------------------------------

    def _scan_words(self, file: MappedFile) -> Words:
        words = Words(c.S_WORDS)
        words[c.S_ADDRESS] = file.address
        words[c.S_BASE] = file.base
        words[c.S_SIZE] = file.size
        words[c.S_SLICE_END] = file.size
        words[c.S_CHECK_CRC] = int(self._settings.check_crc_on_recover)
        words[c.S_MAX_RECORD] = self._max_record
        # A torn write may leave zeros in the properties, which no CRC covers; what was synced is not torn.
        # Of records of the stamp's very ms that is certain only after a clean stop.
        words[c.S_STRICT_ABOVE_MS] = self._checkpoint.stamps.physic_msg_timestamp - (not self._was_clean)
        return words

    def _walk(self, words: Words, file: MappedFile, agreement: Agreement) -> int:
        """Scan one slice, and give the comparison what it asks for; the stop code of the scan itself."""
        while True:
            words[c.S_AGREEMENT] = agreement.address if agreement.end is None else 0
            stopped = scan(words.address)
            if stopped in (c.EXHAUSTED, c.LOG_FILE_END, c.BAD_RECORD):
                return stopped
            at = file.base + words[c.S_AT]
            if not agreement.provide(stopped, file, at):
                agreement.stop(at)

    def _index_place(self, start: MappedFile) -> IndexPlace | None:
        """From where on index entries are compared: those before are on the disk since the stamps that chose
        `start` were set."""
        if not self._settings.message_index_enable:
            return None
        if not self._was_clean or not self._proof.is_exact or self._ends.note:
            return self._place_after_record(start)
        unsound = self._proof.first_unsound(self._index, self._log.minimum)
        if unsound is None:
            return self._index.place_at_end()
        number, why = unsound
        self._trusts_index = False
        place = self._index.place_before(number)
        self._report.finding(
            "warning",
            f"{why}; the index is made again from {max(place.log_offset, self._log.minimum):,} of the log on",
            "index",
        )
        return place

    def _place_after_record(self, start: MappedFile) -> IndexPlace:
        """From where on index entries are compared of a store that was written on since the record, or has
        none."""
        self._trusts_index = False
        known = max(self._log.minimum, self._ends.position)
        if not self._was_clean:
            known = min(start.base, known)  # a block is on the disk before the stamps that chose `start` move
        elif self._ends.note:
            known = self._log.minimum  # the record is damaged: the whole index is compared with the log
        place = self._index.whole_place_of(known, self._log.minimum, self._begins_record)
        missing = self._proof.first_missing(self._index, self._log.minimum)
        if missing is None and not self._compares_all:
            return place
        # Beside a missing file others may be damaged, and by their entries it is found from where on the log
        # is compared.
        found = [one for one in (missing, self._proof.first_changed(self._index)) if one is not None]
        if not found:
            return place
        number, why = min(found)
        # Never beyond `known`, in whatever file that lies: entries there may be of records that a power cut
        # took.
        place = min(place, self._index.place_before(number))
        self._report.finding(
            "warning",
            f"{why}; the index is compared with the log from {max(place.log_offset, self._log.minimum):,} on",
            "index",
        )
        return place

    def _compare_before(self, start: MappedFile, place: IndexPlace | None, agreement: Agreement) -> int:
        """What lies before `start` and is not proved: damaged queues, an index that ends further back, and
        without a record the whole log.

        After a crash the last entry may be of a record before `start`: those between the two may lack their
        entries. Returns from where on the log is compared.
        """
        begin = start.base
        if place is not None and not (self._trusts_index and self._index.files):
            begin = min(begin, max(self._log.minimum, place.log_offset))
        for suspect in self._suspects.values():
            begin = min(begin, suspect.log_offset)
        if not self._proof.is_exact:
            begin = min(begin, max(self._log.minimum, self._ends.position))
        if begin >= start.base:
            return start.base
        if begin > self._log.minimum and not self._begins_record(begin):
            begin = self._log.minimum
        with self._report.step("compare queues and index with the log before that file") as step:
            files = self._log.files
            step.of_bytes = start.base - begin
            for file in files[files.index(self._log.file_at(begin)) : files.index(start)]:
                words = self._scan_words(file)
                words[c.S_CHECK_CRC] = 0
                words[c.S_STRICT_ABOVE_MS] = _NEVER
                words[c.S_AT] = max(0, begin - file.base)
                words[c.S_TIMES] = self._times.read_from(file.base + words[c.S_AT], self._ends.position)
                step.file = file.path.name
                while True:
                    before = words[c.S_AT]
                    words[c.S_SLICE_END] = min(before + _SLICE, file.size)
                    stopped = self._walk(words, file, agreement)
                    step.bytes += words[c.S_AT] - before
                    self._report.changed()
                    if stopped == c.BAD_RECORD and agreement.end is None:
                        self._times.read_to(file.base + words[c.S_AT])
                        following = self._pass_damage(file, words, agreement)
                        words[c.S_AT], words[c.S_TIMES] = (
                            following - file.base,
                            self._times.read_from(following, self._ends.position),
                        )
                    elif stopped != c.EXHAUSTED or agreement.end is not None:
                        break
                    if words[c.S_AT] >= file.size:
                        break
                self._times.read_to(file.end if stopped == c.LOG_FILE_END else file.base + words[c.S_AT])
                step.messages += words[c.S_COUNT]
                if agreement.end is not None:
                    break
            step.detail = f"from {begin:,} on, {step.messages:,} messages"
        return begin

    def _pass_damage(self, file: MappedFile, words: Words, agreement: Agreement) -> int:
        """A record in the middle of the log is bad: reads say so. Returns the log offset behind the damage,
        where the comparison goes on.

        Units and entries of the bad bytes cannot be compared, so those that are there are kept.
        """
        self._has_bad_part = True
        bad, reason = file.base + words[c.S_AT], _REASONS[words[c.S_REASON]]
        following = Bridge(self._log, self._begins_record).following(bad) or file.end
        what = (
            f"{reason}; the log goes on at {following:,}, and units and entries of what lies between are "
            f"believed"
        )
        self._report.finding(
            "error", f"{what}. See `manage.py check_store {self._root}`", file.path.name, words[c.S_AT]
        )
        # A blank states no place: it may be that of another file whose content lies here.
        behind = (
            file.end if following < file.end and self._is_blank(file, following - file.base) else following
        )
        agreement.pass_entries(bad, behind)
        for queue in self._queues:
            self._believe_units(queue, bad, behind)
        return following

    def _believe_units(self, queue: ConsumeQueue, bad: int, following: int) -> None:
        """Believe the units that lead to the bad part [bad, following) of the log, behind those of the
        records before it."""
        first = queue.row[c.Q_AGREED] or self._units_below(queue, queue.files, bad)[0]
        behind, _ = self._units_below(
            queue, [file for file in queue.files if file.end > first * UNIT], following
        )
        if first < behind <= queue.maximum and queue.unit(first).log_offset >= bad:
            before = self._believed.get(queue)
            self._believed[queue] = Believed(
                before.first if before is not None and before.behind == first else first, behind, following
            )
            queue.row[c.Q_AGREED] = behind

    def _scan(self, start: MappedFile, agreement: Agreement) -> int:
        """Log offset behind the last good record from `start` on. Raises DamagedStoreError when synced bytes
        are bad."""
        report, files = self._report, self._log.files
        number = files.index(start)
        end = start.base
        last_ms, any_good = 0, False
        while True:
            file = files[number]
            is_last = number == len(files) - 1
            words = self._scan_words(file)
            words[c.S_TIMES] = self._times.read_from(file.base, self._ends.position)
            with report.step(SCAN, file.path.name) as step:
                while True:
                    words[c.S_SLICE_END] = min(words[c.S_AT] + _SLICE, file.size)
                    before = words[c.S_AT]
                    stopped = self._walk(words, file, agreement)
                    report.scanned_bytes += words[c.S_AT] - before
                    step.bytes, step.messages = words[c.S_AT], words[c.S_COUNT]
                    report.changed()
                    if stopped != c.EXHAUSTED or words[c.S_AT] >= file.size:
                        break
                report.messages += words[c.S_COUNT]
                if words[c.S_COUNT]:
                    last_ms, any_good = words[c.S_LAST_MS], True
                end = file.base + words[c.S_AT]
                self._times.read_to(file.end if stopped == c.LOG_FILE_END else end)
                if stopped == c.LOG_FILE_END:
                    step.detail = f"a blank closes the file at {words[c.S_AT]:,}"
                elif stopped == c.BAD_RECORD:
                    step.detail = f"{_REASONS[words[c.S_REASON]]}, at {words[c.S_AT]:,}"
            if stopped == c.LOG_FILE_END and not is_last:
                number += 1
                end = files[number].base
                continue
            self._note_end(file, words, stopped)
            if stopped == c.BAD_RECORD or (stopped == c.EXHAUSTED and not is_last):
                with report.step("judge the end of the log", file.path.name) as step:
                    step.detail = self._judge_end(file, words, last_ms if any_good else None)
            self.last_store_ms = last_ms
            self._context.view[c.LAST_DISPATCHED_MS] = last_ms
            return end

    # 5 --------------------------------------------------------------------------------------------

    def _note_end(self, file: MappedFile, words: Words, stopped: int) -> None:
        """Where the scan stopped, and why, as facts."""
        at, is_bad = words[c.S_AT], stopped == c.BAD_RECORD
        crc_failed = is_bad and words[c.S_REASON] == c.REASON_BODY_CRC
        self._report.crc_failures += crc_failed
        self._report.stopped = {
            "file": file.path.name,
            "at": at,
            "log_offset": file.base + at,
            "reason": _REASONS[words[c.S_REASON]]
            if is_bad
            else "a blank closes the last file"
            if stopped == c.LOG_FILE_END
            else "the file ends",
            "crc_failed": crc_failed,
            "data_follows": self._is_data(file, at),
            "verdict": "end of the log",
        }

    def _judge_end(self, file: MappedFile, words: Words, last_ms: int | None) -> str:
        """The ordinary end of a crash, or damage? What the log stamp covers was on disk and cannot be
        missing.

        Returns the verdict in words. Raises DamagedStoreError.
        """
        stamp = self._checkpoint.stamps.physic_msg_timestamp
        at = words[c.S_AT]
        reason = _REASONS.get(words[c.S_REASON], "the file ends without a blank")
        # The record's own time, if it still knows its place and the time is not torn: times never step back
        # along the log. At the stamp's very ms only a clean stop synced all records.
        stated_ms = self._stated_ms(file, at)
        was_synced = stated_ms is not None and (last_ms or 1) <= stated_ms < stamp + self._was_clean
        may_end_here = (last_ms or 0) >= stamp and not was_synced
        behind = self._cannot_be_lost(file, at) if may_end_here else None
        if may_end_here and behind is None:
            if not self._is_data(file, at) or self._came_meanwhile(file, at):
                return "nothing follows: the ordinary end"
            self._report.stopped["verdict"] = "cut: not known to be on the disk"
            self._report.finding(
                "warning",
                f"{reason}; what follows is not known to have been on the disk, and is cut",
                file.path.name,
                at,
            )
            return "what follows is not known to have been on the disk"
        last = self._log.files[-1]
        lost = max(last.base + last.map().data_end() - file.base - at, 0)
        if behind is not None:
            since = (
                "the store was closed in order"
                if self._was_clean
                else "this machine was not restarted since they were written"
            )
            why = f"a good record follows at {behind:,}, and {since}: no crash leaves that, so it is damage"
        else:
            why = (
                f"the checkpoint says that records up to store time {time_text(stamp)} were on disk"
                f" (the last good one is of {time_text(last_ms or 0)}){self._stamp_doubt()}"
            )
        what = f"{reason}, but {why}; cutting here would lose what follows, up to {lost:,} bytes"
        if self._settings.accept_damage:
            self._report.stopped["verdict"] = "damage, accepted"
            self._report.finding("error", what + "; accepted", file.path.name, at)
            # What a broker of ours closed or recorded was dispatched, so numbers beyond were given. A crashed
            # store of Apache's ends here, as there.
            self._is_end_lost = self._was_clean or self._ends.is_there
            return "damage, accepted"
        self._report.stopped["verdict"] = "damage: the start stops"
        self._report.finding("error", what, file.path.name, at)
        raise DamagedStoreError(
            what,
            file=str(file.path),
            offset=at,
            advice=f"To see all of it: `manage.py check_store {self._root}`. To cut here, as Apache does, "
            f"with a copy kept in"
            f" lost+found: start again with "
            f"--accept-damage.{_MOVE_CHECKPOINT if self._stamp_doubt() else ''}",
        )

    def _cannot_be_lost(self, file: MappedFile, at: int) -> int | None:
        """The log offset of a good record behind byte `at` where only a power cut could have spared it and
        not what lies before; else None.

        Records are written one behind the other. A process that is killed leaves the last one in part, and
        all before it whole; a broker of ours that closes a store syncs all of it, and leaves no good record
        behind the end.
        """
        if not (self._keeps_what_was_written or self._was_closed_here):
            return None
        files = self._log.files
        for later in files[files.index(file) :]:
            found = find_record(later, self._scan_words(later), at + 1 if later is file else 0)
            if found is not None:
                return later.base + found
        return None

    def _stamp_doubt(self) -> str:
        """Words for a log stamp that no record can have yet, empty for any other."""
        is_future = self._checkpoint.stamps.physic_msg_timestamp > self._report.started_ms + _DAY_MS
        return (
            ", a time that is still to come: the checkpoint is damaged, or this machine's clock is behind"
            if is_future
            else ""
        )

    def _stated_ms(self, file: MappedFile, at: int) -> int | None:
        """Store time that the bad record at `at` states, None when it does not state its own place."""
        if at + MIN_RECORD > file.size:
            return None
        place_at = FIXED_IPV4.offset["log_offset"]
        raw = file.map().read(at, MIN_RECORD)
        if raw[place_at : place_at + 8] != (file.base + at).to_bytes(8, "big"):
            return None
        (sys_flag,) = SYS_FLAG.unpack(raw, SYS_FLAG_AT)
        (stated_ms,) = STORE_TIMESTAMP.unpack(raw, FIXED[(sys_flag >> 4) & 1].offset["store_timestamp"])
        return stated_ms

    def _lower_stamps(self) -> bool:
        """After damage was accepted the stamps claim more than there is; left so, they would stop every later
        start."""
        stamps, newest = self._checkpoint.stamps, self.last_store_ms
        if (
            max(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp, stamps.index_msg_timestamp)
            <= newest
        ):
            return False
        lowered = (min(stamp, newest) for stamp in stamps[:3])
        self._checkpoint.write(Checkpoint(*lowered, stamps.master_flushed_offset, stamps.confirm_phy_offset))
        return True

    def _is_data(self, file: MappedFile, at: int) -> bool:
        return at + 8 <= file.size and any(file.map().read(at, 8))

    # 6 --------------------------------------------------------------------------------------------

    def _keep_away(self, path: Path) -> None:
        """Take a file out of the store: into lost+found when it holds anything, removed when it is all
        zero."""
        if self._holds_nothing(path):
            self._disk.unlink(path)
        else:
            name = (
                str(path.relative_to(self._root))
                if path.is_relative_to(self._root)
                else f"commitlog/{path.name}"
            )
            target = self._lost_and_found() / name.replace("/", ".")
            self._disk.move(path, target)
            self._report.finding("info", f"moved to {target.relative_to(self._root.parent)}", name)
        # A file that came back after a later clean stop would be believed.
        self._disk.sync_directory(path.parent)

    def _copy_aside(self, path: Path, region: Region) -> None:
        """Keep a copy of a file in lost+found before it is changed; once a start."""
        if path in self._copied or not (length := data_end_from(region, 0)):
            return
        self._copied.add(path)
        name = str(path.relative_to(self._root))
        kept = self._lost_and_found() / name.replace("/", ".")
        self._disk.copy_range(region, 0, length, kept)
        self._report.finding("info", f"copied to {kept.relative_to(self._root.parent)} as it was", name)

    def _keep_if_recorded(self, path: Path, length: int) -> bool:
        """Leave out an index file that was closed with the right length and has another: its entries are made
        again. Whether it is."""
        wanted = (int(path.name), self._index.geometry.file_bytes)
        if not self._was_clean or wanted not in [(end.name, end.file_bytes) for end in self._ends.index]:
            return False
        self._report.finding(
            "warning",
            f"has {length:,} bytes, not those it was closed with; it is made again",
            f"index/{path.name}",
        )
        self._away.append(path)
        return True

    def _holds_nothing(self, path: Path) -> bool:
        if self._disk.size_of(path) == 0:
            return True  # nothing that could be mapped
        region = self._disk.open_region(path, writable=False)
        try:
            return data_end_from(region, 0) == 0
        finally:
            region.close()

    def _lost_and_found(self) -> Path:
        if self._kept_in is None:
            self._kept_in = kept_directory(self._disk, self._root, self._report.started_ms)
        return self._kept_in

    def _find_what_is_cut(self, end: int) -> CutMessages:
        """Return which whole messages lie behind the log's end and go with it, of MAX_RECORDS_NAMED records
        at most, and where there are more, from where on.

        Those of deleted topics are not lost by it.
        """
        file, found = self._log.file_at(end), CutMessages()
        if (
            file is None
            or self._came_meanwhile(file, end - file.base)
            or not (
                self._log.files[-1].base > end or data_end_from(file.map(), end - file.base) > end - file.base
            )
        ):
            return found
        with self._report.step("name the whole messages behind the log's end") as step:
            for number, one in enumerate(whole_records(self._log.files, self._scan_words, end)):
                if number == MAX_RECORDS_NAMED:
                    found.looked_to = one.log_offset
                    break
                if one.is_queued and one.log_offset >= self._tombstones.before(one.topic):
                    found.add(one.topic, one.queue_id, one.queue_offset)
            step.detail = found.words(are_cut=False)
        return found

    def _cut_log(self, end: int) -> None:
        with self._report.step("cut the log at its end") as step:
            files = self._log.files
            removed = 0
            while files and files[-1].base > end:
                file = files.pop()
                file.unmap()
                self._keep_away(file.path)
                removed += 1
            self._report.cut["commitlog"] |= {"files": removed, "from": end}
            file = self._log.file_at(end)
            if file is not None:
                at = end - file.base
                region = file.map()
                last = data_end_from(region, at)
                if self._came_meanwhile(file, at):
                    self._report.came_meanwhile = last - at
                    region.punch(at)
                elif last > at:
                    kept = self._lost_and_found() / f"commitlog.{file.path.name}.from-{at}"
                    self._disk.copy_range(region, at, last - at, kept)
                    self._report.cut_bytes += last - at
                    self._report.cut["commitlog"] |= {"bytes": last - at}
                    self._report.finding(
                        "info",
                        f"{last - at:,} bytes copied to {kept.relative_to(self._root.parent)}",
                        file.path.name,
                        at,
                    )
                    region.punch(at)
                region.sync(at, region.size - at)
                step.file = file.path.name
            step.detail = f"the log ends at {end:,}" + (f", {removed:,} later files away" if removed else "")

    def _came_meanwhile(self, file: MappedFile, at: int) -> bool:
        """Of a store that another process writes: whether a good record begins at byte `at` now. Where the
        scan stopped none did."""
        if not self._report.in_use:
            return False
        return is_whole(self._scan_words(file), at)

    def _end_within(self, queue: ConsumeQueue, log_end: int) -> QueueEnd:
        """Where the queue ends without units of records at or beyond the log's end. Nothing is changed."""
        end = queue.maximum
        while end > 0 and (file := queue.file_of(end - 1)) is not None:
            unit = queue_unit.decode(file.map().read((end - 1) * UNIT - file.base, UNIT))
            if unit.size == queue_unit.PRE_BLANK_SIZE or unit.log_offset + unit.size <= log_end:
                break
            end -= 1
        if end == queue.maximum:
            return QueueEnd(end, queue.row[c.Q_LOG_END])
        if end <= queue.files[0].base // UNIT:
            return QueueEnd(0, 0)
        return QueueEnd(end, 0 if unit.is_pre_blank else unit.log_offset + unit.size)

    def _cut_queue(self, queue: ConsumeQueue, kept: QueueEnd) -> int:
        """Take away units behind `kept`, which are of records at or beyond the log's end; returns how
        many."""
        before, end = queue.maximum, kept.following
        self._drop_queue_files(queue, before)
        queue.start_at(before)
        if end < before:
            gone = before - max(end, queue.files[0].base // UNIT)
            self._report.cut_queue(queue.topic, queue.queue_id, before - gone, gone)
            self._drop_queue_files(queue, end)
            queue.start_at(end)
            queue.row[c.Q_LOG_END] = kept.log_end
        return before - end

    def _mend_index(
        self, start: int, agreed: IndexPlace, end: int, place: IndexPlace | None, agreement: Agreement
    ) -> int:
        """Cut the index behind what agreed; returns from where the log must be dispatched again."""
        index = self._index
        if place is None:
            return agreed.log_offset
        with self._report.step("mend the index") as step:
            index.drop_unused()
            newest = index.newest()
            is_beyond = False
            if newest is not None and self._trusts_index:
                is_beyond = newest.end_offset >= end
                if not is_beyond:
                    self.unread_index = () if self._compares_all else self._ends.index
                    index.start_writing()
                    self._index_from(newest)
                    step.detail = "it was closed in order"
                    return agreed.log_offset
                agreed = IndexPlace(len(index.files) - 1, newest.count, min(agreed.log_offset, start))
            is_whole = newest is not None and (agreed.file, agreed.entry) == (
                len(index.files) - 1,
                newest.count,
            )
            settled = sum(index.settle(part, self._copy_aside) for part in agreement.passed)
            names = [int(file.name) for file in index.files]
            compared = names[place.file] if names else 0
            if (
                self._was_clean
                and is_whole
                and not settled
                and agreed.log_offset == end
                and agreement.ends_with(newest)
                and index.is_linked(place.file)
            ):
                self.unread_index = tuple(end for end in self._ends.index if end.name < compared)
                self._ends.index = self.unread_index
                index.start_writing()
                self._index_from(newest)
                step.detail = "its entries are those of the log"
                return end
            if self._was_clean and not is_whole:
                for file in index.files[place.file :]:
                    self._copy_aside(file.path, file.map())
            agreed_to = agreed.entry if agreed.file == place.file else index.geometry.entries
            self.unread_index = tuple(
                end
                for end in self._ends.index
                if end.name < compared or (end.name == compared and end.count <= agreed_to)
            )
            # Later ones may be filled again under their names.
            self._ends.index = tuple(end for end in self._ends.index if end.name in names[: place.file])
            cut, gone, linked = index.cut(agreed, place.file, self._keep_away, self._stored_ms)
            self._report.cut["index"] = {"entries": cut, "files": gone, "linked": linked}
            index.start_writing()
            behind = self._index_from(index.newest())
            dispatch_from = agreed.log_offset
            if is_beyond:  # it was not compared: its entries may end anywhere
                dispatch_from = min(
                    dispatch_from, self._log.minimum if behind is None else max(self._log.minimum, behind)
                )
            step.detail = (
                f"{cut:,} entries and {gone:,} files taken out, {linked:,} files linked again; goes on "
                f"from {dispatch_from:,}"
            )
            if settled:
                step.detail += (
                    f"; of the entries that cannot be compared, {settled:,} were out of order and are "
                    f"put in order"
                )
            return dispatch_from

    def _index_from(self, newest: IndexHeader | None) -> int | None:
        """Let dispatch add no entry of the record at which the index ends, which has all of its entries; its
        log offset, None without one."""
        if newest is None or newest.count <= FIRST_ENTRY:
            return None
        self._context.view[c.INDEX_END_OFFSET] = newest.end_offset + 1
        return newest.end_offset

    def _stored_ms(self, log_offset: int) -> int | None:
        """Store time of the record that begins at `log_offset`, None when it is not in the log."""
        file = self._log.file_at(log_offset)
        return None if file is None else self._stated_ms(file, log_offset - file.base)

    # 7 --------------------------------------------------------------------------------------------

    def _dispatch_again(
        self, start: int, end: int, gone_back: dict[ConsumeQueue, int], left_out: int | None
    ) -> None:
        """Queues and index from the log, [start, end), but for the record at `left_out`. A hole sends the
        walk back to where that queue is complete.

        In queues of `gone_back`, with the least number that must follow in them, units are written over; what
        then lies behind their end is taken away.
        """
        view = self._context.view
        way_back = WayBack(start, self._log.minimum, self._begins_record)
        before = sum(queue.maximum for queue in self._queues)
        bridge = Bridge(self._log, self._begins_record)
        # Topic and number that each states, and where it ends
        left_out_records: list[tuple[str, int, int]] = []

        def on_hole(queue: ConsumeQueue, unit: int) -> None:
            if self._behind_misnumbered(queue, unit, view[c.STOPPED_AT]) is not None:
                pass_record(queue, unit, view[c.STOPPED_AT])
                return
            if are_lost(queue, queue.maximum, unit):
                bridge.keep(queue, unit)
                return
            if way_back.goes_back(queue.row[c.Q_LOG_END]):
                self._dispatcher.start_at(way_back.walked_from)
                if left_out is not None and way_back.walked_from <= left_out:
                    view[c.CONFIRMED] = left_out
                self._report.finding(
                    "warning",
                    f"units {queue.maximum:,} to {unit - 1:,} are missing and are made again from the log",
                    _name(queue),
                )
                return
            first, at = queue.maximum, view[c.STOPPED_AT]
            if self._settings.accept_damage and self._is_contradicted(
                queue, first, unit, at, bool(bridge.passed)
            ):
                pass_record(queue, unit, at)
                return
            if self._settings.accept_damage and fill(queue, unit, at):
                return
            if self._may_begin(queue, first, unit, at) or (
                self._settings.accept_damage and (first == 0 or not self._reaches_log(queue))
            ):
                # The log does not hold the records before: they were deleted by age, or are lost.
                self._drop_files_before(queue, unit)
                queue.begin_behind(unit)
                return
            if self._settings.accept_damage:
                pass_record(queue, unit, at)
                return
            raise missing_units(queue, queue.maximum, unit, self._root, "go on without them")

        def fill(queue: ConsumeQueue, unit: int, at: int) -> bool:
            first = queue.maximum
            if not bridge.fill(
                queue,
                unit,
                at,
                is_begin_lost=not first
                and (not self._log.minimum or not self._may_begin(queue, first, unit, at)),
            ):
                return False
            self._bridged.add(queue)
            what = (
                f"messages {first:,} to {unit - 1:,} lay in damaged bytes of the log and are lost; reads "
                f"of them say so"
            )
            self._report.finding("error", what, _name(queue), first * UNIT)
            return True

        def on_other(queue: ConsumeQueue, unit: int) -> None:
            if self._is_elsewhere(queue, unit, view[c.STOPPED_AT]):
                pass_record(queue, unit, view[c.STOPPED_AT])
            else:  # the unit is damaged: cleared, it is written when dispatch goes on with this record
                file = queue.file_of(unit)
                file.map().write(unit * UNIT - file.base, bytes(UNIT))

        def pass_record(queue: ConsumeQueue, unit: int, at: int) -> None:
            """Leave out a record that states a place in its queue which cannot be right."""
            why = (
                f"where {queue.maximum:,} follows"
                if unit != queue.maximum
                else "as the record does that the queue's unit leads to"
            )
            self._dispatcher.start_at(leave_out(self._record_at(at), at, why))

        def leave_out(found: record.StoredMessage, at: int, why: str) -> int:
            """Report a record that is not dispatched, though it is whole; where it ends."""
            behind = at + found.size
            if not self._settings.accept_damage or (at, behind) in bridge.passed:
                return behind  # it was accepted by an earlier start, or is reported
            file = self._log.file_at(at)
            bridge.passed.append((at, behind))
            left_out_records.append((found.topic, found.queue_offset, behind))
            what = (
                f"the record states {found.topic}/{found.queue_id} {found.queue_offset:,}, {why}: its "
                f"place in the queue is damaged; accepted: it is left out"
            )
            self._report.finding("error", what, f"commitlog/{file.path.name}", at - file.base)
            return behind

        def on_bad(offset: int) -> int | None:
            if not self._settings.accept_damage:
                return self._behind_lost(offset)
            if (found := self._whole_record_at(offset)) is not None:
                return leave_out(found, offset, "a queue that cannot be")
            known = len(bridge.passed)
            following = bridge.following(offset)
            if len(bridge.passed) > known:
                file = self._log.file_at(offset)
                what = (
                    f"no good record begins here; accepted: queues and index go on with the record at "
                    f"{following:,} of the log"
                )
                self._report.finding("error", what, f"commitlog/{file.path.name}", offset - file.base)
            return following

        with self._report.step("dispatch again") as step:
            if not self._index.files:
                self._index.start_writing()
            self._dispatcher.start_at(start)

            def on_progress(dispatched: int) -> None:
                step.bytes = max(step.bytes, dispatched - start)
                self._report.redispatched = sum(queue.maximum for queue in self._queues) - before
                self._report.changed()

            step.of_bytes = end - start
            view[c.CONFIRMED] = end if left_out is None else left_out
            on_units = on_other if self._settings.accept_damage else None
            self._dispatcher.catch_up(on_hole, on_progress, on_bad, on_units)
            while view[c.CONFIRMED] < end:
                found = self._record_at(left_out)
                pass_record(self._queues.find(found.topic, found.queue_id), found.queue_offset, left_out)
                view[c.CONFIRMED] = end
                self._dispatcher.catch_up(on_hole, on_progress, on_bad, on_units)
            for topic, number, behind in left_out_records:
                if (ending := self._queue_that_ends_with(topic, number, behind)) is not None:
                    # It was the last of this queue: its number was given
                    fill(ending, ending.maximum + 1, behind)
            for queue, following in gone_back.items():
                if are_lost(queue, queue.maximum, following):
                    bridge.keep(queue, following)
                if self._settings.accept_damage and queue.maximum < following:
                    fill(queue, following, end)  # its last records: no other follows that would find the hole
                self._drop_queue_files(queue, queue.maximum)
            step.messages = self._report.redispatched
            self._report.dispatched = {
                "from": way_back.walked_from,
                "to": end,
                "units": self._report.redispatched,
            }
            step.detail = f"from {start:,} to {end:,}, {self._report.redispatched:,} units were written"

    def _queue_that_ends_with(self, topic: str, number: int, behind: int) -> ConsumeQueue | None:
        """The queue whose last message is the left-out record that states `topic` and `number` and ends at
        `behind`, None where that is not known.

        One that the record of ends counts longer than it is now; without such a one the only queue of that
        topic that ends before that number.
        """
        # Of units without a record it ends at 0
        before = [queue for queue in self._queues if queue.maximum and queue.row[c.Q_LOG_END] < behind]
        recorded = [
            queue for queue in before if queue.maximum < self._ends.next_offset(queue.topic, queue.queue_id)
        ]
        if recorded:
            return min(recorded, key=lambda queue: queue.topic != topic)
        stated = [queue for queue in before if (queue.topic, queue.maximum) == (topic, number)]
        return stated[0] if len(stated) == 1 else None

    def _find_given(self, end: int) -> dict[ConsumeQueue, int]:
        """Numbers behind the last units that lead to bad bytes of the log below `end`, of queues whose end
        was found before these units.

        No record of the log has these numbers, so a start that goes on behind the bad bytes must have them
        from here.
        """
        given = {}
        for queue in self._queues:
            if not queue.is_made_from_log:
                continue
            number = self._number_behind_units(queue, end)
            while number > queue.maximum and not self._leads_to_bad(queue.unit_in_files(number - 1), end):
                number -= 1
            for path in self._shortened.get(queue, ()):
                if int(path.name) % queue.file_size == 0:
                    number = max(number, self._number_behind_bad(queue, path, end))
            if number > queue.maximum:
                given[queue] = number
        return given

    def _number_behind_bad(self, queue: ConsumeQueue, path: Path, end: int) -> int:
        """As `_find_given`, of one file that was taken away; 0 without such a unit."""
        with self._disk.open_reader(path) as reader:
            units = list(queue_unit.decode_all(reader.read(0, queue.file_size)))
        place = next(
            (place for place in reversed(range(len(units))) if self._leads_to_bad(units[place], end)), None
        )
        return 0 if place is None else int(path.name) // UNIT + place + 1

    def _leads_to_bad(self, unit: queue_unit.QueueUnit | None, end: int) -> bool:
        """Whether a unit leads to bytes of the log below `end` that are no good record."""
        if unit is None or not unit.is_data or unit.is_pre_blank or unit.size < MIN_RECORD:
            return False
        is_within = self._log.minimum <= unit.log_offset and unit.log_offset + unit.size <= end
        return is_within and not self._begins_record(unit.log_offset)

    # 8 --------------------------------------------------------------------------------------------

    def _compare_next_offsets(self) -> str:
        """See that each queue is as long as the record says. One of which the log holds no record begins at
        its recorded end."""
        begun, numbered = 0, {}
        for topic, queue_id in list(self._ends.queues):
            queue, following = self._queues.find(topic, queue_id), self._ends.next_offset(topic, queue_id)
            if queue is None or queue.maximum >= following:
                continue
            log_end = max(end.log_end for end in self._ends.queues[topic, queue_id].values())
            log_end = max(log_end, self._recorded_to.get((topic, queue_id), 0))
            if log_end <= self._log.minimum and not self._reaches_log(queue):
                self._begin_at(queue, following)
                begun += 1
                if self._ends.queues[topic, queue_id].keys() != {BOUND}:
                    numbered[topic, queue_id] = following
                continue
            what = (
                f"units {queue.maximum:,} to {following - 1:,} are missing and the log does not hold "
                f"their records"
            )
            self._report.finding(
                "error", f"{what}; placeholders are put there", _name(queue), queue.maximum * UNIT
            )
            self.missing.append((queue, following))
        short = dict(self.missing)
        for queue, disowned in self._disowned.items():
            is_short = queue.maximum < disowned.following
            done = "placeholders are put there" if is_short else "accepted"
            self._report.finding(
                "error", f"{disowned.what(queue)}; {done}", _name(queue), disowned.first * UNIT
            )
            if is_short:
                short[queue] = max(disowned.following, short.get(queue, 0))
        self.missing = list(short.items())
        for queue in self._suspects.keys() | self._bridged:
            if queue not in short:
                self._ends.drop(queue.topic, queue.queue_id)
        self._ends.drop_before(self._log.minimum)
        if numbered:  # the file of its next message begins with blank units, and would not be as recorded
            self._ends.bound(numbered, self._ends.position, remade=numbered)
        return (
            f"{_counted(begun, 'queue')} without a message in the log begin where they ended, "
            f"{_counted(len(self.missing), 'queue')} lack messages"
        )

    def _ends_below_log(self, queue: ConsumeQueue, number: int) -> bool:
        """Whether unit `number` is of a record that retention removed, as those before it are then."""
        unit = queue.unit_in_files(number)
        return (
            unit is not None
            and unit.is_data
            and not unit.is_pre_blank
            and unit.log_offset + unit.size <= self._log.minimum
        )

    def _behind_lost(self, offset: int) -> int | None:
        """Where the log goes on behind bad bytes at `offset` that an earlier start accepted as lost; None
        where no unit says so."""
        for queue in self._queues:
            number = self._number_by_units(queue, offset)
            if number is not None and are_lost(queue, number, number + 1):
                found = self._whole_record_at(offset)
                return (
                    offset + found.size
                    if found is not None
                    else Bridge(self._log, self._begins_record).following(offset)
                )
        return None

    def _may_begin(self, queue: ConsumeQueue, following: int, unit: int, at: int) -> bool:
        """Whether a queue that ends at `following` may go on with `unit`, whose record begins at `at`:
        retention removed those before, or nothing is known of them.

        Dispatch asks once more when its files are cut behind their last good unit, and gets the answer that
        the rehearsal got.
        """
        if (queue, unit) not in self._may_begin_at and (
            self._ends_below_log(queue, unit - 1) if following else self._is_begin(queue, unit, at)
        ):
            self._may_begin_at.add((queue, unit))
        return (queue, unit) in self._may_begin_at

    def _is_begin(self, queue: ConsumeQueue, unit: int, at: int) -> bool:
        """Whether a queue of which no unit before `unit` is known may begin with it."""
        before, own = queue.unit_in_files(unit - 1), queue.unit_in_files(unit)
        leads_here = own is not None and own.log_offset == at
        begins_here = leads_here and before is not None and before.is_pre_blank
        if self._has_first_record and not begins_here and not self._lacks_begin(queue):
            # Nothing was ever removed from this log, so what lies before the record must be there
            return False
        if (
            not leads_here
            or before is None
            or not before.is_data
            or before.is_pre_blank
            or before.log_offset < self._log.minimum
        ):
            return True
        stated = self._record_at(before.log_offset)
        return stated is None or stated.size != before.size

    def _lacks_begin(self, queue: ConsumeQueue) -> bool:
        """Whether the log may lack the queue's first records though it has all of its own: they were lost
        (`_begin_at`), or of a deleted topic."""
        rows = self._ends.queues.get((queue.topic, queue.queue_id), {})
        return (
            any(row.log_end == 0 for row in rows.values())
            or self._context.topic(queue.topic).row[c.T_DELETED_BEFORE] > 0
        )

    def _has_room(self, queue: ConsumeQueue, unit: int, at: int) -> bool:
        """Whether as many records as `unit` says may lie before `at`, or were there, by the record of ends,
        and are lost."""
        return (unit - self._ends.next_offset(queue.topic, queue.queue_id)) * MIN_RECORD <= at

    def _is_misnumbered(self, queue: ConsumeQueue, unit: int, at: int) -> bool:
        """Whether the record at `at` states a number for which there is no room before it, or which
        contradicts its queue's units."""
        if not self._has_room(queue, unit, at):
            return True
        own, _ = self._units_below(queue, queue.files, at)
        here = queue.unit_in_files(own)
        if own == unit or here is None or not here.is_data or here.log_offset < at:
            return False
        if here.log_offset > at:  # by its units the queue goes on behind this record
            return own < unit and self._states_unit(queue, own)
        # In a file under another name all units have other numbers than their records
        for number in (own + 1, own - 1):
            near = queue.unit_in_files(number)
            stated = None if near is None or near.size < MIN_RECORD else self._record_at(near.log_offset)
            if stated is not None and (stated.topic, stated.queue_id) == (queue.topic, queue.queue_id):
                return stated.queue_offset == number
        return self._next_stated(queue, at + self._record_at(at).size) != unit + 1  # neither unit says it

    def _is_contradicted(
        self, queue: ConsumeQueue, following: int, unit: int, at: int, is_log_damaged: bool
    ) -> bool:
        """Whether the record at `at` states `unit`, where `following` follows, and cannot be right.

        So it is where a later record of the queue has a number of the hole, and where it is the only one of a
        queue that nothing else knows, in a log that has lost nothing. _LOOK_AHEAD bytes are looked at for
        later ones.
        """
        number = self._next_stated(queue, at + self._record_at(at).size)
        if number is not None:
            return following <= number <= unit
        is_known = following or queue.files or (queue.topic, queue.queue_id) in self._ends.queues
        return self._has_first_record and not is_log_damaged and not is_known

    def _next_stated(self, queue: ConsumeQueue, begin: int) -> int | None:
        """Number that the queue's first record from log offset `begin` on states; None where none of it
        follows within _LOOK_AHEAD bytes."""
        name = queue.topic, queue.queue_id
        return next(
            (
                found.queue_offset
                for found in self._records_from(begin)
                if (found.topic, found.queue_id) == name
            ),
            None,
        )

    def _records_from(self, begin: int) -> Iterator[record.StoredMessage]:
        """The records of queues in _LOOK_AHEAD bytes of the log from `begin` on; bad bytes between are
        passed."""
        offset = begin
        while offset < begin + _LOOK_AHEAD and (file := self._log.file_at(offset)) is not None:
            found = self._record_at(offset)
            if found is None:
                # A blank, since no record could be read
                is_end = file.end - offset < MIN_RECORD or self._begins_record(offset)
                following = file.end if is_end else Bridge(self._log, self._begins_record).following(offset)
                if following is None:
                    return
                offset = following
                continue
            if found.is_queued:
                yield found
            offset += found.size

    def _is_elsewhere(self, queue: ConsumeQueue, unit: int, at: int) -> bool:
        """Whether the queue's unit of that number leads to another record than the one at `at`, and that one
        states the number too."""
        here = queue.unit_in_files(unit)
        return (
            here is not None
            and here.size >= MIN_RECORD
            and here.log_offset != at
            and self._states_unit(queue, unit)
        )

    def _record_to_leave_out(self, agreed: int) -> int | None:
        """`agreed` if the record there states the place of another one, and that is accepted, or was."""
        found = self._record_at(agreed)
        queue = (
            self._queues.find(found.topic, found.queue_id) if found is not None and found.is_queued else None
        )
        if queue is None or not self._is_elsewhere(queue, found.queue_offset, agreed):
            return None
        return agreed if self._settings.accept_damage or self._behind_lost(agreed) is not None else None

    def _behind_misnumbered(self, queue: ConsumeQueue, unit: int, at: int) -> int | None:
        """Where the record at `at` ends, whose place is damaged; None when it is believed. Raises
        DamagedStoreError unless that is accepted, or was."""
        behind = at + self._record_at(at).size
        if self._behind_lost(at) is not None:
            return behind
        if not self._is_misnumbered(queue, unit, at):
            return None
        if self._settings.accept_damage:
            return behind
        own, file = self._number_by_units(queue, at), self._log.file_at(at)
        why = "so many records have no room before it"
        if self._has_room(queue, unit, at):
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
            advice=f"Nothing was changed. `manage.py check_store {self._root} --plan` shows what a repair "
            f"would do; or start with --accept-damage to leave the record out.",
        )

    def _reaches_log(self, queue: ConsumeQueue) -> bool:
        """Whether its last unit points into the log."""
        return bool(queue.files) and queue.row[c.Q_LOG_END] > self._log.minimum

    def _begin_at(self, queue: ConsumeQueue, following: int) -> None:
        """Let the next message of a queue without any get the offset `following`."""
        for file in queue.files:
            file.unmap()
            self._keep_away(file.path)
        queue.files = []
        queue.start_at(0)
        queue.begin_behind(following)
        queue.row[c.Q_LOG_END] = 0

    # After the crash ------------------------------------------------------------------------------

    def _take_over_unsynced(self, start: MappedFile, end: int) -> None:
        """Nothing that the run before left in memory counts as flushed (see the module's first page)."""
        with self._report.step("sync what cannot wait for the flushers"):
            self._log.leave_unsynced(start.base)
            if self._settings.flush_disk_type == SYNC_FLUSH:
                self._log.sync(end)
            for queue in self._queues:
                if queue.files:
                    queue.leave_unsynced(self._first_unsynced(queue, start.base))
            self._index.leave_unsynced()
            for directory in (self._log.directory, self._queues.directory, self._root / "config"):
                if self._disk.is_directory(directory):
                    self._disk.sync_directory(directory)

    def _first_unsynced(self, queue: ConsumeQueue, log_offset: int) -> int:
        """First unit of the newest file that begins with a record below `log_offset`: what lies before that
        file was synced."""
        for file in reversed(queue.files):
            first = queue_unit.decode(file.map().read(0, UNIT))
            if not first.is_pre_blank and first.log_offset < log_offset:
                return file.base // UNIT
        return queue.files[0].base // UNIT


def _name(queue: ConsumeQueue) -> str:
    return f"consumequeue/{queue.topic}/{queue.queue_id}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
