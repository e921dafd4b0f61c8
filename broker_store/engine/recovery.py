"""Recovery: from whatever a crash left to a store whose log, queues and index agree.

The log alone decides what exists. In order:

1. load every file; a wrong length, a gap in the log or a foreign name stops the start;
2. close the holes of queues, and find the end of each (a zero unit, a step back);
3. choose the file to scan from: abnormally by the checkpoint's stamps, normally by what the queues know
   (spec/store-behaviour.md 4.2, 4.3);
4. scan from there, record by record, to the first that is not good: the log's end. On the way each record is compared
   with its unit and its index entries, up to the first of which anything is missing (`engine/agreement.py`);
5. decide what that end is. Above the checkpoint's log stamp it is the ordinary end of a crash. Below, bytes that were
   on disk have changed: damage, and the start stops, unless told to accept it (DESIGN section 5);
6. cut the log there, keep copies of what goes, zero the tail; cut the queues there, and the index where it stopped to agree;
7. dispatch again from where queues or index stopped to agree: mostly there is nothing left to do. A queue that turns out
   to have a hole makes the walk start over further back.

What a killed process left is in the system's memory and need not be on the disk. Nothing counts as flushed because it
was found: `flushed` begins at the file of step 3, and the flushers bring it to the disk from there, and then move the
stamps, as they do with what is written new. Only three things cannot wait. The zeros behind the log's end are synced before
anything is written there: a record that came back behind new ones would be believed. With SYNC_FLUSH the whole log is,
because what is shown must not be lost. And names of log files are, since no flusher looks after them.

Where this differs from Apache's and why stands in RELIABILITY.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from broker_store.config import StoreSettings
from broker_store.engine.agreement import Agreement
from broker_store.engine.commit_log import CommitLog
from broker_store.engine.consume_queue import UNIT, ConsumeQueue, ConsumeQueues
from broker_store.engine.disk import Disk, Region
from broker_store.engine.dispatcher import Dispatcher
from broker_store.engine.file_facts import kept_directory
from broker_store.engine.flusher import CheckpointFile
from broker_store.engine.hash_index import HashIndex, IndexPlace
from broker_store.engine.mapped_file import MappedFile
from broker_store.engine.report import SCAN, RecoveryReport
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import DamagedStoreError
from broker_store.formats import queue_unit
from broker_store.formats.checkpoint import Checkpoint
from broker_store.formats.index_file import FIRST_ENTRY
from broker_store.formats.record import FIXED, FIXED_IPV4, MAX_BEYOND_BODY, MIN_RECORD, STORE_TIMESTAMP, SYS_FLAG, SYS_FLAG_AT
from broker_store.kernels import context as c
from broker_store.kernels.scan import data_end, find_unit_break, scan

_SLICE = 64 << 20
_NEVER = 1 << 62
_QUEUE_FILES_LOOKED_AT = 3
_REASONS = {
    c.REASON_NOT_A_RECORD: "no record begins here",
    c.REASON_LENGTH: "a length in the record is out of bounds",
    c.REASON_PLACE: "the record names another place than its own",
    c.REASON_BODY_CRC: "the body's CRC is wrong",
    c.REASON_SYNTAX: "its topic or properties are malformed",
    c.REASON_RECORD_CRC: "the CRC of the whole record is wrong",
}


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
        report: RecoveryReport,
        root: Path,
    ):
        self._disk, self._settings, self._context = disk, settings, context
        self._log, self._queues, self._index, self._dispatcher = log, queues, index, dispatcher
        self._checkpoint, self._report, self._root = checkpoint_file, report, root
        self._kept_in: Path | None = None
        self._max_record = settings.max_message_size + MAX_BEYOND_BODY
        self.last_store_ms = 0
        self._was_clean = False
        self._queue_files_gone = 0
        self._shortened: list[ConsumeQueue] = []  # files of theirs were missing: dispatch goes back to where they end now
        self.has_changed_files = False

    def run(self, clean: bool) -> int:
        """Bring everything to agreement; returns the log's end. Raises DamagedStoreError, StoreError."""
        report = self._report
        self._was_clean = clean
        self._load()
        if not self._log.files:
            report.kind = "first start" if clean and not len(self._queues) else "normal" if clean else "abnormal"
            with report.step("begin an empty log"):
                self._empty_log()
            report.log_end = 0
            return 0
        report.kind = "normal" if clean else "abnormal"
        with report.step("find the end of each queue") as step:
            for queue in self._queues:
                self._drop_if_deleted(queue)
                self._close_holes(queue)
                self._find_queue_end(queue, clean)
            step.detail = _counted(len(self._queues), "queue")
        start = self._choose_start(clean)
        with report.step("find how far the index is sure"):
            place = self._index_place(start, clean)
            agreement = Agreement(self._context, self._queues, self._index, self._dispatcher, place)
        compared_from = self._compare_before(start, place, agreement)
        end = self._scan(start, agreement)
        self.has_changed_files = True
        self._cut_log(end)
        with report.step("lower the checkpoint's stamps") as step:
            step.detail = "they claimed more than there is" if self._lower_stamps() else "they claim no more than there is"
        with report.step("cut queues at the log's end") as step:
            cut = sum(self._cut_queue(queue, end) for queue in self._queues)
            report.cut["consumequeue"]["files"] = self._queue_files_gone
            step.detail = f"{cut:,} units pointed at or beyond {end:,}" if cut else "nothing beyond the log's end"
        agreed = end if agreement.end is None else agreement.end
        dispatch_from = self._mend_index(start.base, agreement.index_place(agreed), end, place)
        for queue in self._shortened:
            dispatch_from = min(dispatch_from, max(self._log.minimum, queue.row[c.Q_LOG_END]))
        self._dispatch_again(dispatch_from, end, [] if agreed == end else self._go_back(compared_from))
        with report.step("correct the minimum offsets"):
            for queue in self._queues:
                queue.row[c.Q_NEXT] = queue.maximum
                if queue.files:
                    queue.minimum = max(queue.minimum, queue.files[0].base // UNIT)
                queue.correct_minimum(self._log.minimum)
        self._context.view[c.QUEUED_KEYS] = 0
        with report.step("make the log ready to write") as step:
            step.file = self._log.files[-1].path.name
            self._log.start_writing(end)
        if not clean:
            self._take_over_unsynced(start, end)
        self._dispatcher.start_at(end)
        report.log_end = end
        return end

    # 1 --------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        report = self._report
        with report.step("load the commit log") as step:
            self._log.load()
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
                f"log {_time(stamps.physic_msg_timestamp)}, queues {_time(stamps.logics_msg_timestamp)}, index {_time(stamps.index_msg_timestamp)}"
                if self._checkpoint.found
                else "there is none: its stamps count as 0"
            )
        with report.step("load the index") as step:
            self._index.load()
            step.detail = _counted(len(self._index.files), "file")

    def _empty_log(self) -> None:
        """No log file at all: what queues and index point to does not exist (spec/store-behaviour.md 4.3)."""
        for queue in self._queues:
            for file in queue.files:
                self._keep_away(file.path)
            queue.files = []
            queue.start_at(0)
        for file in self._index.files:
            self._keep_away(file.path)
        self._index.files = []
        self._index.start_writing()
        self._log.start_writing(0)
        self._dispatcher.start_at(0)

    # 2 --------------------------------------------------------------------------------------------------------------

    def _find_queue_end(self, queue: ConsumeQueue, clean: bool) -> None:
        """Its next unit: behind the last good one. After a clean stop only the last three files are looked at."""
        files = queue.files[-_QUEUE_FILES_LOOKED_AT:] if clean else queue.files
        end, log_end = self._units_below(queue, files, self._log.files[-1].end)
        if files and end == queue.files[0].base // UNIT and log_end == 0:
            end = 0  # not one unit: numbering starts again, as in Apache (4.4)
        queue.start_at(end)
        queue.row[c.Q_LOG_END] = log_end

    def _units_below(self, queue: ConsumeQueue, files: list[MappedFile], log_offset: int) -> tuple[int, int]:
        """(number behind the last good unit of a record that ends at or below `log_offset`, where that record ends, 0 for none)."""
        least = Words(1)
        end = files[0].base // UNIT if files else 0
        for file in files:
            good = find_unit_break(file.address, queue.units_a_file, log_offset, least[0], least.address)
            end = file.base // UNIT + good
            if good < queue.units_a_file:
                break
        return end, least[0]

    def _go_back(self, compared_from: int) -> list[ConsumeQueue]:
        """Let dispatch write units once more from where queues stopped to be compared, over those that are there; which queues have such."""
        gone_back = []
        for queue in self._queues:
            if queue.topic.startswith(queue_unit.LIGHT_QUEUE) or queue.row[c.Q_LOG_END] <= compared_from:
                continue
            unit = queue.row[c.Q_AGREED] or self._units_below(queue, queue.files, compared_from)[0]
            if unit >= queue.maximum:
                continue
            queue.start_at(unit)
            before = queue.unit(unit - 1) if unit else None
            queue.row[c.Q_LOG_END] = before.log_offset + before.size if before is not None and before.is_data else 0
            for file in queue.files:
                if file.base >= unit * UNIT:
                    file.wrote = file.flushed = file.allocated = 0  # a crash may have left it without blocks
            gone_back.append(queue)
        return gone_back

    def _drop_if_deleted(self, queue: ConsumeQueue) -> None:
        """A queue of a deleted topic whose files a crash left, or brought back, holds nothing that may be served."""
        before = self._context.topic(queue.topic).row[c.T_DELETED_BEFORE]
        if not queue.files or not before:
            return
        units = queue_unit.decode_all(queue.files[0].map().read(0, queue.file_size))
        first = next((unit for unit in units if not unit.is_pre_blank), None)
        if first is not None and first.is_data and first.log_offset < before:
            for file in queue.files:
                file.unmap()
                self._disk.unlink(file.path)
            queue.files = []
            self._disk.sync_directory(queue.directory)

    def _close_holes(self, queue: ConsumeQueue) -> None:
        """Of a queue of which a file is missing keep what can be kept; the rest is made again from the log.

        A power cut may keep the name or the length of one new file and lose that of the one before it; and of the files that
        retention removed it may bring back any.
        """
        removed: set[Path] = set()
        while queue.hole is not None:
            following = next(path for path in queue.hole.files if self._disk.size_of(path))
            first = self._first_unit(following)
            if first.is_data and not first.is_pre_blank and first.log_offset < self._log.minimum:
                before = [file.path for file in queue.files] + queue.hole.files[: queue.hole.files.index(following)]
                for path in before:
                    self._disk.unlink(path)  # retention had removed it: it only points below the log
                self._disk.sync_directory(queue.directory)
                removed.update(before)  # a disk that changes nothing still has them
                queue.load(leave_out=removed)
            else:
                self._make_again(queue, queue.hole.files, "a file is missing or empty")
        if self._begins_too_late(queue):
            what = "its first file is missing, and the log holds the records of its units"
            self._make_again(queue, [file.path for file in queue.files], what)

    def _make_again(self, queue: ConsumeQueue, gone: list[Path], what: str) -> None:
        """Take the files `gone` of a queue away; dispatch goes back to where it then ends."""
        for file in queue.files:
            if file.path in gone:
                file.unmap()
        queue.files = [file for file in queue.files if file.path not in gone]
        queue.hole = None
        name = f"consumequeue/{queue.topic}/{queue.queue_id}"
        self._report.finding("warning", f"{what}: its units from {gone[0].name} on are made again from the log", name)
        for path in reversed(gone):
            self._keep_away(path)
        self._queue_files_gone += len(gone)
        self._shortened.append(queue)

    def _first_unit(self, path: Path) -> queue_unit.QueueUnit:
        with self._disk.open_reader(path) as reader:
            return queue_unit.decode(reader.read(0, UNIT))

    def _begins_too_late(self, queue: ConsumeQueue) -> bool:
        """Whether the units before its first file are of records that the log still holds, or that is not known.

        Retention leaves a first file that begins with a unit below the log's minimum (`ConsumeQueue.files_before`), and a
        queue that was begun behind lost records begins with blank units.
        """
        if not queue.files or queue.files[0].base == 0 or not queue.is_made_from_log:
            return False
        first = self._first_unit(queue.files[0].path)
        return not first.is_data or (not first.is_pre_blank and first.log_offset > self._log.minimum)

    def _drop_queue_files(self, queue: ConsumeQueue, end: int) -> None:
        """Files that begin behind the end go away; zero is left behind it in the file that holds it."""
        while queue.files and (queue.files[-1].base > end * UNIT or end == 0):
            file = queue.files.pop()
            file.unmap()
            self._keep_away(file.path)
            self._queue_files_gone += 1
        if queue.files and queue.files[-1].end > end * UNIT:
            at, region = end * UNIT - queue.files[-1].base, queue.files[-1].map()
            if _data_end(region, at) > at:
                region.punch(at)
                # A unit that came back after a later clean stop would be believed.
                region.sync(at, region.size - at)

    # 3 --------------------------------------------------------------------------------------------------------------

    def _choose_start(self, clean: bool) -> MappedFile:
        """The newest file that begins with what is known to be safe; the first when none does."""
        report = self._report
        with report.step("choose the file to scan from") as step:
            if clean:
                known = max((queue.row[c.Q_LOG_END] for queue in self._queues), default=0)
                why = f"the queues know the log up to {known:,}"
                chosen = self._first_safe(lambda file, _: file.base <= known, f"begins behind {known:,}, which is how far the queues know the log")
            else:
                limit = self._checkpoint.stamps.min_timestamp
                why = f"its first record must not be younger than {_time(limit)} (the checkpoint less 3 s)" if limit > 0 else "the checkpoint lacks a time, so all are scanned"
                late = f"its first record is younger than {_time(limit)}" if limit > 0 else "the checkpoint lacks a time"
                chosen = self._first_safe(lambda _, first_ms: first_ms is not None and 0 < first_ms <= limit, late)
            step.detail, step.file = why, chosen.path.name
            report.start = {"file": chosen.path.name, "base": chosen.base, "why": why if report.tried[-1]["taken"] else f"none is safe, so it is the first; {why}"}
            report.total_bytes = self._end_of_data() - chosen.base
        return chosen

    def _first_safe(self, is_safe: Callable[[MappedFile, int | None], bool], otherwise: str) -> MappedFile:
        """From the newest file backwards to the first that is safe to begin with; each is told."""
        for file in reversed(self._log.files):
            first_ms = self._first_store_ms(file)
            taken = is_safe(file, first_ms)
            why = "taken" if taken else otherwise if first_ms is not None else f"no good record begins it; {otherwise}" if self._was_clean else "no good record begins it"
            self._report.try_file(file.path.name, file.base, first_ms, taken, why)
            if taken:
                return file
        return self._log.files[0]

    def _end_of_data(self) -> int:
        """Behind the last byte of the log that may hold data: a file that was made ahead is not read through."""
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

    # 4 --------------------------------------------------------------------------------------------------------------

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

    def _index_place(self, start: MappedFile, clean: bool) -> IndexPlace | None:
        """From where on index entries are compared: those before are on the disk since the stamps that chose `start` were set."""
        if not self._settings.message_index_enable:
            return None
        return self._index.place_at_end() if clean else self._index.place_of(start.base)

    def _compare_before(self, start: MappedFile, place: IndexPlace | None, agreement: Agreement) -> int:
        """After a crash the last entry may be of a record before `start`: those between the two may lack their entries.

        Returns from where on the log is compared.
        """
        if place is None or (self._was_clean and self._index.files):
            return start.base
        begin = max(self._log.minimum, place.log_offset)
        if begin >= start.base:
            return start.base
        with self._report.step("compare the index with the log before that file") as step:
            files = self._log.files
            for file in files[files.index(self._log.file_at(begin)) : files.index(start)]:
                words = self._scan_words(file)
                words[c.S_CHECK_CRC] = 0
                words[c.S_STRICT_ABOVE_MS] = _NEVER
                words[c.S_AT] = max(0, begin - file.base)
                if self._walk(words, file, agreement) == c.BAD_RECORD and agreement.end is None:
                    agreement.stop(file.base + words[c.S_AT])
                step.messages += words[c.S_COUNT]
                if agreement.end is not None:
                    break
            step.detail = f"from {begin:,} on"
        return begin

    def _scan(self, start: MappedFile, agreement: Agreement) -> int:
        """Log offset behind the last good record from `start` on. Raises DamagedStoreError when synced bytes are bad."""
        report, files = self._report, self._log.files
        number = files.index(start)
        end = start.base
        last_ms, any_good = 0, False
        while True:
            file = files[number]
            is_last = number == len(files) - 1
            words = self._scan_words(file)
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

    # 5 --------------------------------------------------------------------------------------------------------------

    def _note_end(self, file: MappedFile, words: Words, stopped: int) -> None:
        """Where the scan stopped, and why, as facts."""
        at, is_bad = words[c.S_AT], stopped == c.BAD_RECORD
        crc_failed = is_bad and words[c.S_REASON] == c.REASON_BODY_CRC
        self._report.crc_failures += crc_failed
        self._report.stopped = {
            "file": file.path.name,
            "at": at,
            "log_offset": file.base + at,
            "reason": _REASONS[words[c.S_REASON]] if is_bad else "a blank closes the last file" if stopped == c.LOG_FILE_END else "the file ends",
            "crc_failed": crc_failed,
            "data_follows": self._is_data(file, at),
            "verdict": "end of the log",
        }

    def _judge_end(self, file: MappedFile, words: Words, last_ms: int | None) -> str:
        """The ordinary end of a crash, or damage? What the log stamp covers was on disk and cannot be missing.

        Returns the verdict in words. Raises DamagedStoreError.
        """
        stamp = self._checkpoint.stamps.physic_msg_timestamp
        at = words[c.S_AT]
        reason = _REASONS.get(words[c.S_REASON], "the file ends without a blank")
        # The record's own time, if it still knows its place and the time is not torn: times never step back along the log.
        # At the stamp's very ms only a clean stop synced all records.
        stated_ms = self._stated_ms(file, at)
        was_synced = stated_ms is not None and (last_ms or 1) <= stated_ms < stamp + self._was_clean
        if (last_ms or 0) >= stamp and not was_synced:
            if not self._is_data(file, at) or self._came_meanwhile(file, at):
                return "nothing follows: the ordinary end"
            self._report.stopped["verdict"] = "cut: not acknowledged as synced"
            self._report.finding("warning", f"{reason}; what follows was not acknowledged as synced and is cut", file.path.name, at)
            return "what follows was not acknowledged as synced"
        last = self._log.files[-1]
        lost = max(last.base + last.map().data_end() - file.base - at, 0)
        what = (
            f"{reason}, but the checkpoint says that records up to store time {_time(stamp)} were on disk"
            f" (the last good one is of {_time(last_ms or 0)}); cutting here would lose what follows, up to {lost:,} bytes"
        )
        if self._settings.accept_damage:
            self._report.stopped["verdict"] = "damage, accepted"
            self._report.finding("error", what + "; accepted", file.path.name, at)
            return "damage, accepted"
        self._report.stopped["verdict"] = "damage: the start stops"
        self._report.finding("error", what, file.path.name, at)
        raise DamagedStoreError(
            what,
            file=str(file.path),
            offset=at,
            advice=f"To see all of it: `manage.py check_store {self._root}`. To cut here, as Apache does, with a copy kept in"
            " lost+found: start again with --accept-damage.",
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
        """After damage was accepted the stamps claim more than there is; left so, they would stop every later start."""
        stamps, newest = self._checkpoint.stamps, self.last_store_ms
        if max(stamps.physic_msg_timestamp, stamps.logics_msg_timestamp, stamps.index_msg_timestamp) <= newest:
            return False
        lowered = (min(stamp, newest) for stamp in stamps[:3])
        self._checkpoint.write(Checkpoint(*lowered, stamps.master_flushed_offset, stamps.confirm_phy_offset))
        return True

    def _is_data(self, file: MappedFile, at: int) -> bool:
        return at + 8 <= file.size and any(file.map().read(at, 8))

    # 6 --------------------------------------------------------------------------------------------------------------

    def _keep_away(self, path: Path) -> None:
        """Take a file out of the store: into lost+found when it holds anything, removed when it is all zero."""
        if self._holds_nothing(path):
            self._disk.unlink(path)
        else:
            name = str(path.relative_to(self._root)) if path.is_relative_to(self._root) else f"commitlog/{path.name}"
            target = self._lost_and_found() / name.replace("/", ".")
            self._disk.move(path, target)
            self._report.finding("info", f"moved to {target.relative_to(self._root.parent)}", name)
        # A file that came back after a later clean stop would be believed.
        self._disk.sync_directory(path.parent)

    def _holds_nothing(self, path: Path) -> bool:
        if self._disk.size_of(path) == 0:
            return True  # nothing that could be mapped
        region = self._disk.open_region(path, writable=False)
        try:
            return _data_end(region, 0) == 0
        finally:
            region.close()

    def _lost_and_found(self) -> Path:
        if self._kept_in is None:
            self._kept_in = kept_directory(self._disk, self._root, self._report.started_ms)
        return self._kept_in

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
                last = _data_end(region, at)
                if self._came_meanwhile(file, at):
                    self._report.came_meanwhile = last - at
                    region.punch(at)
                elif last > at:
                    kept = self._lost_and_found() / f"commitlog.{file.path.name}.from-{at}"
                    self._disk.copy_range(region, at, last - at, kept)
                    self._report.cut_bytes += last - at
                    self._report.cut["commitlog"] |= {"bytes": last - at}
                    self._report.finding("info", f"{last - at:,} bytes copied to {kept.relative_to(self._root.parent)}", file.path.name, at)
                    region.punch(at)
                region.sync(at, region.size - at)
                step.file = file.path.name
            step.detail = f"the log ends at {end:,}" + (f", {removed:,} later files away" if removed else "")

    def _came_meanwhile(self, file: MappedFile, at: int) -> bool:
        """Of a store that another process writes: whether a good record begins at byte `at` now. Where the scan stopped none did."""
        if not self._report.in_use:
            return False
        words = self._scan_words(file)
        words[c.S_AT], words[c.S_SLICE_END] = at, at + 1
        scan(words.address)
        return words[c.S_COUNT] == 1

    def _cut_queue(self, queue: ConsumeQueue, log_end: int) -> int:
        """Take away units of records at or beyond the log's end; returns how many."""
        before = end = queue.maximum
        self._drop_queue_files(queue, end)
        queue.start_at(end)
        while end > 0 and queue.files:
            file = queue.file_of(end - 1)
            if file is None:
                break
            unit = queue_unit.decode(file.map().read((end - 1) * UNIT - file.base, UNIT))
            if unit.size == queue_unit.PRE_BLANK_SIZE or unit.log_offset + unit.size <= log_end:
                break
            end -= 1
        if end < before:
            self._report.cut_queue(queue.topic, queue.queue_id, end, before - end)
            if queue.files and end <= queue.files[0].base // UNIT:
                end = 0
            self._drop_queue_files(queue, end)
            queue.start_at(end)
            file = queue.file_of(end - 1) if end else None
            if file is not None:
                unit = queue_unit.decode(file.map().read((end - 1) * UNIT - file.base, UNIT))
                queue.row[c.Q_LOG_END] = unit.log_offset + unit.size
            else:
                queue.row[c.Q_LOG_END] = 0
        return before - end

    def _mend_index(self, start: int, agreed: IndexPlace, end: int, place: IndexPlace | None) -> int:
        """Cut the index behind what agreed; returns from where the log must be dispatched again."""
        index = self._index
        if place is None:
            return agreed.log_offset
        with self._report.step("mend the index") as step:
            index.drop_unused()
            newest = index.newest()
            is_beyond = False
            if newest is not None and self._was_clean:
                is_beyond = newest.end_offset >= end
                if not is_beyond:
                    index.start_writing()
                    # The record at which the file ends is in it whole: do not add it again.
                    self._context.view[c.INDEX_END_OFFSET] = newest.end_offset + 1
                    step.detail = "it was closed in order"
                    return agreed.log_offset
                agreed = IndexPlace(len(index.files) - 1, newest.count, min(agreed.log_offset, start))
            cut, gone, linked = index.cut(agreed, place.file, self._keep_away, self._stored_ms)
            self._report.cut["index"] = {"entries": cut, "files": gone, "linked": linked}
            index.start_writing()
            reached = index.newest()
            behind = reached.end_offset if reached is not None and reached.count > FIRST_ENTRY else None
            if behind is not None:
                self._context.view[c.INDEX_END_OFFSET] = behind + 1
            dispatch_from = agreed.log_offset
            if is_beyond:  # it was not compared: its entries may end anywhere
                dispatch_from = min(dispatch_from, self._log.minimum if behind is None else max(self._log.minimum, behind))
            step.detail = f"{cut:,} entries and {gone:,} files taken out, {linked:,} files linked anew; goes on from {dispatch_from:,}"
            return dispatch_from

    def _stored_ms(self, log_offset: int) -> int | None:
        """Store time of the record that begins at `log_offset`, None when it is not in the log."""
        file = self._log.file_at(log_offset)
        return None if file is None else self._stated_ms(file, log_offset - file.base)

    # 7 --------------------------------------------------------------------------------------------------------------

    def _dispatch_again(self, start: int, end: int, gone_back: list[ConsumeQueue]) -> None:
        """Queues and index from the log, [start, end). A hole sends the walk back to where that queue is complete.

        In queues of `gone_back` units are written over; what then lies behind their end is taken away.
        """
        view = self._context.view
        walked_from = start
        before = sum(queue.maximum for queue in self._queues)

        def on_hole(queue: ConsumeQueue, unit: int) -> None:
            nonlocal walked_from
            back = max(self._log.minimum, queue.row[c.Q_LOG_END])
            if back < walked_from:
                # The first hole: back to where this queue is complete. Another: once over the whole log.
                walked_from = back if walked_from == start else self._log.minimum
                self._dispatcher.start_at(walked_from)
                self._report.finding(
                    "warning", f"units {queue.maximum:,} to {unit - 1:,} are missing and are made again from the log",
                    f"consumequeue/{queue.topic}/{queue.queue_id}",
                )
                return
            if queue.maximum == 0 or self._settings.accept_damage:
                # The log does not hold the records before: they were deleted by age, or are lost.
                queue.begin_behind(unit)
                return
            raise DamagedStoreError(
                f"units {queue.maximum:,} to {unit - 1:,} are missing and the log does not hold their records either",
                file=str(queue.directory),
                advice=f"See `manage.py check_store {self._root}`; start with --accept-damage to go on without them.",
            )

        with self._report.step("dispatch again") as step:
            if not self._index.files:
                self._index.start_writing()
            self._dispatcher.start_at(start)
            view[c.CONFIRMED] = end

            def on_progress(dispatched: int) -> None:
                step.bytes = max(step.bytes, dispatched - start)
                self._report.redispatched = sum(queue.maximum for queue in self._queues) - before
                self._report.changed()

            step.of_bytes = end - start
            self._dispatcher.catch_up(on_hole, on_progress)
            for queue in gone_back:
                self._drop_queue_files(queue, queue.maximum)
            step.messages = self._report.redispatched
            self._report.dispatched = {"from": walked_from, "to": end, "units": self._report.redispatched}
            step.detail = f"from {start:,} to {end:,}, {self._report.redispatched:,} units were written"

    # After the crash ------------------------------------------------------------------------------------------------

    def _take_over_unsynced(self, start: MappedFile, end: int) -> None:
        """Nothing that the run before left in memory counts as flushed (see the module's first page)."""
        with self._report.step("sync what cannot wait for the flushers"):
            self._log.leave_unsynced(start.base)
            if self._settings.flush_disk_type == "SYNC_FLUSH":
                self._log.sync(end)
            for queue in self._queues:
                if queue.files:
                    queue.leave_unsynced(self._first_unsynced(queue, start.base))
            self._index.leave_unsynced()
            for directory in (self._log.directory, self._queues.directory, self._root / "config"):
                if self._disk.is_directory(directory):
                    self._disk.sync_directory(directory)

    def _first_unsynced(self, queue: ConsumeQueue, log_offset: int) -> int:
        """First unit of the newest file that begins with a record below `log_offset`: what lies before that file was synced."""
        for file in reversed(queue.files):
            first = queue_unit.decode(file.map().read(0, UNIT))
            if not first.is_pre_blank and first.log_offset < log_offset:
                return file.base // UNIT
        return queue.files[0].base // UNIT


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _time(ms: int) -> str:
    """A time of a record or of the checkpoint for a sentence; one that no calendar has (the bytes may be damaged) as its number."""
    if not 0 < ms < 253_402_300_800_000:
        return f"{ms:,} ms" if ms else "none"
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC"


def _data_end(region: Region, at: int) -> int:
    """Offset behind the last byte from `at` on that is not zero, `at` when there is none."""
    return data_end(region.address, at, max(at, region.data_end()))
