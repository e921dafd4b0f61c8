"""The begin of the log: the record of ends (`engine/start/ends.py`) is compared with the first file.

Retention writes the new begin before it removes a file. So a log whose first file begins above the recorded
begin has lost files. If a file begins below it, retention was interrupted: that file is removed.

A broker that keeps no record removes files too. After a stop in order the record ends where the log ends,
unless such a broker wrote since; then missing files count as removed by its retention. A damaged record ends
earlier too, which proves no other broker: missing files count as lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import file_name
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.rows import Words
from broker_store.engine.start.ends import BOUND, EndsFile
from broker_store.engine.start.ends import FILE_NAME as ENDS
from broker_store.engine.start.report import time_text
from broker_store.kernels.scan import find_unit_break

MAX_NAMED_QUEUES = 200  # queues whose lost messages are named one by one; the others are counted


@dataclass(frozen=True)
class MissingBegin:
    """[start, end) of the log should exist and does not. `by_other_broker`: another broker wrote the store
    since the record."""

    start: int
    end: int
    file_size: int
    by_other_broker: bool
    note: str = ""  # what is wrong with the record itself

    def __str__(self) -> str:
        files = (self.end - self.start) // self.file_size
        names = file_name(self.start) + (f" to {file_name(self.end - self.file_size)}" if files > 1 else "")
        what = f"the log begins at {self.end:,}, and by the record of ends it began at {self.start:,}: "
        if self.by_other_broker:
            return (
                f"{what}another broker wrote this store since, so it is taken that its retention deleted "
                f"{names}"
            )
        doubt = (
            f" (or retention removed them, and the record does not show it: {self.note})" if self.note else ""
        )
        return f"{what}{files:,} log {'file is' if files == 1 else 'files are'} missing, {names}{doubt}"


def holds_nothing(disk: Disk, store: Path, log_directory: Path) -> bool:
    """Return whether no file with messages of a store exists. Where a queue has units, a start reports
    instead how many messages are missing."""
    return not any(disk.exists(store / name) for name in ("checkpoint", ENDS)) and not any(
        map(disk.list_names, (log_directory, store / "consumequeue"))
    )


def missing_log(position: int, stamp_ms: int, messages: int, is_indexed: bool) -> str | None:
    """Return a sentence for what is missing of a store without a log file; None when it never had one.

    `position` is the log offset up to which its record of ends knows the log, `stamp_ms` the checkpoint's
    time of the log (0: unknown), `messages` how many the queues had, `is_indexed` whether the index has
    entries.
    """
    if not position and stamp_ms <= 0 and not messages and not is_indexed:
        return None
    known = (
        f" up to {position:,}"
        if position
        else f" of store times up to {time_text(stamp_ms)}"
        if stamp_ms > 0
        else ""
    )
    if not known and not messages:
        known = ", whose messages are in the index"
    return not_there(
        f"there is no log file, but the store had a log{known}: it is missing, or its disk is not there",
        messages,
    )


def not_there(what: str, messages: int) -> str:
    """Return the sentence `what`, with the number of messages in the queues that are lost with it."""
    return f"{what}; by the queues {messages:,} message{' is' if messages == 1 else 's are'} not there"


def missing_begin(
    ends: EndsFile, start: int, file_size: int, was_clean: bool, is_exact: bool
) -> MissingBegin | None:
    """Return what a log that begins at `start` lacks, None when nothing is known to be missing. `is_exact`:
    the log ends where the record says, and the store was closed."""
    if not ends.found or not 0 <= ends.log_minimum < start:
        return None
    return MissingBegin(
        ends.log_minimum,
        start,
        file_size,
        by_other_broker=was_clean and not is_exact and not ends.note,
        note=ends.note,
    )


def lost_with(missing: MissingBegin, queues: Iterable[ConsumeQueue]) -> list[tuple[ConsumeQueue, int, int]]:
    """Return (queue, first number, number after the last) of the messages whose units point into the missing
    part."""
    lost = []
    for queue in queues:
        if not queue.is_made_from_log:
            continue
        first, end = (_first_at(queue, offset) for offset in (missing.start, missing.end))
        if first < end:
            lost.append((queue, max(first, queue.files[0].base // UNIT), end))
    return lost


class LostBegin:
    """The messages that were lost with the first files of a log. Made before a start changes anything;
    `found` is called when the start has rebuilt the queues."""

    def __init__(self, missing: MissingBegin, ends: EndsFile, queues: Iterable[ConsumeQueue]):
        self._queues = queues
        self.by_units = lost_with(missing, queues)
        self._first = {queue: first for queue, first, _ in self.by_units}
        self._end = {queue: _first_at(queue, missing.end) for queue in queues}
        recorded = {
            name: min((first for first in rows if first != BOUND), default=0)
            for name, rows in ends.queues.items()
        }
        for queue in queues:
            here = queue.files[0].base // UNIT if queue.files else 0
            first = recorded.get((queue.topic, queue.queue_id), here if missing.start else 0)
            if first < here:
                self._first[queue] = first  # its first file is missing
        self._recorded = recorded

    def found(self) -> list[tuple[ConsumeQueue, int, int]]:
        """Return what `lost_with` does, by where each queue begins now: damaged or missing units may have
        hidden it before.

        For such a queue the first number is that of its first recorded file, 0 without a record.
        """
        lost = []
        for queue in self._queues:
            if not queue.is_made_from_log:
                continue
            first = self._first.get(queue, queue.minimum)
            if self._end.get(queue) != queue.minimum:
                first = min(first, self._recorded.get((queue.topic, queue.queue_id), 0))
            if first < queue.minimum:
                lost.append((queue, first, queue.minimum))
        return lost


def _first_at(queue: ConsumeQueue, log_offset: int) -> int:
    """Return the number of the first unit whose record does not end at or below `log_offset`, the start of a
    log file; the end of the files without one."""
    least, end = Words(1), 0
    for file in queue.files:
        good = find_unit_break(file.address, queue.units_per_file, log_offset, least[0], least.address)
        end = file.base // UNIT + good
        if good < queue.units_per_file:
            break
    return end


def take_expired(log: CommitLog) -> int:
    """Remove what retention had begun to remove when the broker ended; return how many files."""
    for path in log.expired:
        log.disk.unlink(path)
    if log.expired:
        log.disk.sync_directory(log.directory)
    return len(log.expired)
