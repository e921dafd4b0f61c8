"""The walk over the log: each file in slices, each slice compared with units and index, and the judgement of
what is no good record."""

from __future__ import annotations

import numpy as np

from broker_store.check import rules
from broker_store.check.files import StoreFile
from broker_store.check.index import IndexCheck
from broker_store.check.log import Log, Stretch
from broker_store.check.queues import UnitsCheck
from broker_store.check.records import REASONS
from broker_store.check.report import ERROR, NOTE, WARNING
from broker_store.check.slices import MAX_SLICES, SliceMemory, Slices
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.file_access import Reader
from broker_store.formats import record
from broker_store.kernels import columns as k
from broker_store.kernels import context as c


class LogWalk:
    """Walks the log once and notes in `log` where it ends and what is damaged."""

    def __init__(
        self,
        store: CheckedStore,
        log: Log,
        units: UnitsCheck,
        index: IndexCheck,
        referenced_to: int,
        is_start_known: bool,
    ):
        """`referenced_to` is the log offset up to which anything else in the store refers to records;
        `is_start_known` whether a start of this broker on the store is known."""
        self._store, self._report, self._log = store, store.report, log
        self._units, self._index = units, index
        self._referenced_to, self._is_start_known = referenced_to, is_start_known
        self._broken_at: int | None = None  # log offset of the first damage

    def run(self) -> None:
        """Walk all files, up to the limit of a store in use."""
        log, limit, disk = self._log, self._store.limit, self._store.disk
        rooms = [SliceMemory() for _ in range(MAX_SLICES)]
        for number, file in enumerate(log.files):
            if limit is not None and file.base >= limit:
                break
            expected = log.files[number - 1].base + log.file_size if number else file.base
            if file.base > expected:
                log.lose(expected, file.base, closes_file=True)
            log.end = file.base
            if limit is not None and not disk.exists(file.path):
                # The broker has deleted it since: what points into it cannot be judged.
                log.damaged.append((file.base, file.end))
                continue
            with disk.open_reader(file.path) as reader, Slices(file, reader, limit, rooms) as slices:
                ended = self._check_file(file, reader, slices, is_last=number == len(log.files) - 1)
            self._report.count("log_bytes", file.size)
            if ended:
                break
        self._report.log_end = log.end if self._broken_at is None else self._broken_at

    def _check_file(self, file: StoreFile, reader: Reader, slices: Slices, is_last: bool) -> bool:
        """Walk one file; True when the log ends in it."""
        log, at = self._log, 0
        while True:
            self._store.progress.step("log", file.base - log.start + at)
            stopped, at, reason = self._check_slice(file, slices, at)
            log.end = file.base + at
            if self._store.limit is not None and log.end >= self._store.limit:
                return True
            if stopped == c.LOG_FILE_END:
                self._report.count("blanks")
                if is_last:
                    log.ends_with_blank = True
                    self._check_rest(file, reader, at + min(record.BLANK_BYTES, reader.size - at))
                    return True
                log.end = file.end
                return False
            if stopped == c.BAD_RECORD:
                following = self._after_bad_record(file, reader, at, reason, is_last)
                if following is None:
                    return not log.has_later_records(file)
                at = following

    def _check_slice(self, file: StoreFile, slices: Slices, at: int) -> tuple[int, int, int]:
        """Check one slice of good records; return (why it ended, position in the file, reason)."""
        log, limit = self._log, self._store.limit
        found = slices.take(at)
        stopped, reason, room = found.stopped, found.room.reason, found.room
        rows = room.rows
        if len(rows):
            self._report.count("records", len(rows))
            self._check_times(rows, file)
            log.newest_ms, log.last_ms = max(log.newest_ms, room.newest_ms), int(rows[-1, k.ROW_STORE_MS])
            self._units.check_rows(rows, found.data, room.base, file)
            self._index.check_rows(rows, room.keys)
        elif stopped == c.EXHAUSTED:
            # A record longer than the limit or than what was read
            stopped, reason = c.BAD_RECORD, c.REASON_LENGTH
            if limit is not None and file.base + at + len(found.data) >= limit:
                return c.EXHAUSTED, limit - file.base, 0
        return stopped, at + room.at, reason

    def _check_times(self, rows: np.ndarray, file: StoreFile) -> None:
        """Report store times that go back along the log: clocks that were set back (not with this broker), or
        changed bytes."""
        times = rows[:, k.ROW_STORE_MS]
        before = np.concatenate(([self._log.last_ms], times[:-1]))
        for place in np.flatnonzero(times < before):
            at = int(rows[place, k.ROW_LOG_OFFSET]) - file.base
            what = rules.time_goes_back(int(before[place] - times[place]))
            self._report.add(NOTE, rules.STORE_TIME, str(file.path), at, what)

    def _after_bad_record(
        self, file: StoreFile, reader: Reader, at: int, reason: int, is_last: bool
    ) -> int | None:
        """Report a bad record as the ordinary end, a torn tail or damage. Return the position at which good
        records go on, None where they do not in this file."""
        log, store, offset = self._log, self._store, file.base + at
        files_end = file.base + log.file_size
        if log.is_zero(file, reader, at):
            if log.has_later_records(file):
                what = "the file is zero from here on, but the log goes on in the next file"
                self._break(ERROR, file, at, what)
                log.lose(offset, files_end, closes_file=True)
            return None
        following = log.next_record(file, reader, at)
        is_unknown = (
            following is not None
            and is_last
            and self._referenced_to <= file.base + following
            and self._broken_at is None
        )
        if is_unknown and not self._is_start_known:
            # No file refers to what follows: old bytes after an end that was cut. This broker leaves zeros
            # there.
            what = f"old records lie {rules.AFTER_THE_LOG}"
            self._report.add(WARNING, rules.STALE_TAIL, str(file.path), at, what)
            log.stretches.append(Stretch(offset, file.end, is_tail=True))
            return None
        if following is None and not log.has_later_records(file):
            severity = store.beyond if self._referenced_to > offset else WARNING
            what = f"{REASONS[reason]}; nothing good follows, the log ends here"
            self._break(severity, file, at, what, rules.TORN_TAIL)
            log.lose(offset, file.end, is_tail=True)
            return None
        goes_on = (
            f"good records go on at {following}"
            if following is not None
            else "the log goes on in the next file"
        )
        self._break(store.beyond if is_unknown else ERROR, file, at, f"{REASONS[reason]}; {goes_on}")
        if following is None:
            log.lose(offset, files_end, closes_file=True)
        else:
            log.lose(offset, file.base + following)
        return following

    def _break(
        self, severity: str, file: StoreFile, at: int, what: str, kind: str = rules.BAD_RECORD
    ) -> None:
        if self._broken_at is None:
            self._broken_at = file.base + at
        self._report.add(severity, kind, str(file.path), at, what)

    def _check_rest(self, file: StoreFile, reader: Reader, at: int) -> None:
        """Report what follows the blank of the last file."""
        if not self._log.is_zero(file, reader, at):
            what = "old bytes lie after the last blank"
            self._report.add(NOTE, rules.STALE_TAIL, str(file.path), at, what)
