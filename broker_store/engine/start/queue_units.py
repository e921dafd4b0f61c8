"""Units of queues, as a start reads them before anything is verified.

A unit is good when its record ends at or below a given log offset and does not begin before the end of the
record of the unit before it. A queue ends before the first unit that is not good, as a zero unit is
(`kernels/scan.py`, `find_unit_break`). Blank units at the begin of a file are passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.rows import Words
from broker_store.engine.start.ends import EndsFile
from broker_store.engine.start.log_records import LogRecords
from broker_store.formats import queue_unit
from broker_store.formats.record import MIN_RECORD
from broker_store.kernels import context as c
from broker_store.kernels.scan import after_last_unit, find_unit_break

NEVER = 1 << 62  # a log offset above all others


class QueueEnd(NamedTuple):
    """The number after a queue's last unit, and the log offset where the record of that unit ends, 0 for
    none."""

    following: int
    log_end: int


class QueueUnits:
    """Queries about the units of any queue. Nothing is changed."""

    def __init__(self, disk: Disk, log: CommitLog, ends: EndsFile, records: LogRecords):
        self._disk, self._log, self._ends, self._records = disk, log, ends, records

    def first_unit(self, path: Path) -> queue_unit.QueueUnit:
        """Return the first unit of a queue file, which is not mapped for it."""
        with self._disk.open_reader(path) as reader:
            return queue_unit.decode(reader.read(0, UNIT))

    def log_offset_of_first(self, queue: ConsumeQueue) -> int:
        """Return the log offset to which unit 0 points, -1 without such a unit."""
        if not queue.files or queue.files[0].base:
            return -1
        with queue.files[0].mapped() as region:
            unit = queue_unit.decode(region.read(0, UNIT))
        return unit.log_offset if unit.is_data and not unit.is_pre_blank else -1

    # Ends of queues -------------------------------------------------------------------------------

    def units_below(self, queue: ConsumeQueue, files: list[MappedFile], log_offset: int) -> tuple[int, int]:
        """Return (number after the last good unit of a record that ends at or below `log_offset`; the log
        offset where that record ends, 0 for none)."""
        least = Words(1)
        end = files[0].base // UNIT if files else 0
        for file in files:
            with file.mapped() as region:
                good = find_unit_break(
                    region.address, queue.units_per_file, log_offset, least[0], least.address
                )
            end = file.base // UNIT + good
            if good < queue.units_per_file:
                break
        return end, least[0]

    def number_after_units(self, queue: ConsumeQueue, log_end: int) -> int:
        """Return the number after the last unit of a record that ends at or below `log_end`, also where units
        before it are damaged; 0 without one."""
        for file in reversed(queue.files):
            with file.mapped() as region:
                after = after_last_unit(region.address, queue.units_per_file, log_end, MIN_RECORD, MAX_RECORD)
            if after:
                return file.base // UNIT + after
        return 0

    def end_within(self, queue: ConsumeQueue, log_end: int) -> QueueEnd:
        """Return where the queue ends without units of records at or beyond the log's end."""
        end = queue.maximum
        while end > 0 and (file := queue.file_of(end - 1)) is not None:
            with file.mapped() as region:
                unit = queue_unit.decode(region.read((end - 1) * UNIT - file.base, UNIT))
            if unit.size == queue_unit.PRE_BLANK_SIZE or unit.log_offset + unit.size <= log_end:
                break
            end -= 1
        if end == queue.maximum:
            return QueueEnd(end, queue.row[c.Q_LOG_END])
        if end <= queue.files[0].base // UNIT:
            return QueueEnd(0, 0)
        return QueueEnd(end, 0 if unit.is_pre_blank else unit.log_offset + unit.size)

    def end_beyond(self, queue: ConsumeQueue) -> int:
        """Return the log offset where the record of the unit at the queue's end in its file ends: that unit
        points beyond the log. 0 without such a unit."""
        unit = queue.unit_in_files(queue.maximum)
        return (
            unit.log_offset + unit.size if unit is not None and unit.is_data and not unit.is_pre_blank else 0
        )

    def reaches_log(self, queue: ConsumeQueue) -> bool:
        """Return whether the queue's last unit points into the log."""
        return bool(queue.files) and queue.row[c.Q_LOG_END] > self._log.minimum

    def ends_below_log(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether unit `number` belongs to a record that retention removed; then the earlier units do
        too."""
        unit = queue.unit_in_files(number)
        return (
            unit is not None
            and unit.is_data
            and not unit.is_pre_blank
            and unit.log_offset + unit.size <= self._log.minimum
        )

    # Numbers of units -----------------------------------------------------------------------------

    def units_in(self, queue: ConsumeQueue) -> int:
        """Return how many units of messages the queue's files hold, or how many were recorded if that is
        more."""
        end = self.units_below(queue, queue.files, NEVER)[0]
        return max(end, self._ends.next_offset(queue.topic, queue.queue_id)) - (
            queue.files[0].base // UNIT if queue.files else 0
        )

    def units_beyond(self, queue: ConsumeQueue, log_end: int) -> int:
        """Return how many units of records beyond `log_end` the queue's files hold, or how many were recorded
        if that is more."""
        here = self.units_below(queue, queue.files, log_end)[0]
        all_units = self.units_below(queue, queue.files, NEVER)[0]
        return max(0, all_units - here, self._ends.next_offset(queue.topic, queue.queue_id) - here)

    # Units and their records ----------------------------------------------------------------------

    def has_unit_of(self, queue: ConsumeQueue, log_end: int) -> bool:
        """Return whether the queue's first unit of a record at or beyond `log_end` points exactly there,
        which no damage of a unit causes by chance."""
        return self.leads_exactly_to(log_end, queue, self.units_below(queue, queue.files, log_end)[0])

    def leads_exactly_to(self, log_offset: int, queue: ConsumeQueue, number: int) -> bool:
        """Return whether unit `number` is that of the record at `log_offset`."""
        unit = queue.unit_in_files(number)
        return unit is not None and unit.is_data and not unit.is_pre_blank and unit.log_offset == log_offset

    def leads_to(self, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether a unit of the queue points to the record at `offset`."""
        return self.number_by_units(queue, offset) is not None

    def number_by_units(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the number of the queue's unit that leads to the record at `offset`, None without one."""
        number, _ = self.units_below(queue, queue.files, offset)
        unit = queue.unit_in_files(number)
        return number if unit is not None and unit.is_data and unit.log_offset == offset else None

    def states_unit(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether the record that unit `number` points to states the unit's queue, number and size."""
        unit = queue.unit_in_files(number)
        if unit is None:
            return False
        found = self._records.record_at(unit.log_offset)
        return found is not None and (found.topic, found.queue_id, found.queue_offset, found.size) == (
            queue.topic,
            queue.queue_id,
            number,
            unit.size,
        )
