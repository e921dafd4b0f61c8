"""After a crash, what the previous run left in memory does not count as flushed."""

from __future__ import annotations

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.start.start_records import SYNC_FLUSH
from broker_store.engine.start.state import RecoveryParts
from broker_store.formats import queue_unit


def sync_before_units(parts: RecoveryParts, start: MappedFile, end: int) -> None:
    """Sync the scanned part of the log with SYNC_FLUSH, where a unit proves that its record was synced."""
    if parts.settings.flush_disk_type != SYNC_FLUSH:
        return
    with parts.report.step("sync the log before units are written"):
        for file in parts.log.files[parts.log.files.index(start) :]:
            if file.base < end:
                file.map().sync(0, min(file.size, end - file.base))


def take_over_unsynced(parts: RecoveryParts, start: MappedFile, end: int) -> None:
    """Count nothing that the previous run left in memory as flushed, and sync what cannot wait (see
    `recovery.py`)."""
    with parts.report.step("sync what cannot wait for the flushers"):
        parts.log.leave_unsynced(start.base)
        if parts.settings.flush_disk_type == SYNC_FLUSH:
            parts.log.sync(end)
        for queue in parts.queues:
            if queue.files:
                queue.leave_unsynced(_first_unsynced(parts, queue, start.base))
        parts.index.leave_unsynced()
        for directory in (parts.log.directory, parts.queues.directory, parts.root / "config"):
            if parts.disk.is_directory(directory):
                parts.disk.sync_directory(directory)


def _first_unsynced(parts: RecoveryParts, queue: ConsumeQueue, log_offset: int) -> int:
    """Return the first unit of the newest file that begins with a record below `log_offset`: what lies before
    that file was synced."""
    for file in reversed(queue.files):
        first = queue_unit.decode(file.map().read(0, UNIT))
        if not first.is_pre_blank and first.log_offset < log_offset:
            return file.base // UNIT
    return queue.files[0].base // UNIT
