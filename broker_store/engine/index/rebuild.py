"""Rebuild of the index from the log while the store runs.

    log ──(own maps, own context)──► index.rebuilding/ ──sync──► index ► index.old, index.rebuilding ► index

A worker reads the log from its first byte with the dispatch kernel, in a context of its own in which every
topic counts as deleted, so that no queue is changed. When little is left, the loop does the rest in one turn
and exchanges the two directories. After a crash before the exchange the old index is there. After a crash
between the two renames there is none, and the next start builds it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.disk.region import Region
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.rows import WriterContext
from broker_store.engine.status.store_state import RebuildProgress
from broker_store.errors import DamagedStoreError, FormatError, StoreError
from broker_store.formats import record
from broker_store.formats.index_file import IndexGeometry
from broker_store.kernels import context as c
from broker_store.kernels.dispatch import catch_up

FRESH, OLD = "index.rebuilding", "index.old"
_MAX_LEFT_BYTES = 1 << 20  # of the log that the loop may index in one turn
_RECORDS_PER_CALL = 16384
_EVERYTHING = 1 << 62


class IndexRebuild:
    """One run. A worker calls `step`, the loop `finish`; `state` is running, done, failed or cancelled."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        geometry: IndexGeometry,
        log: CommitLog,
        dispatched: Callable[[], int],
        max_record: int,
        clock: Callable[[], int],
    ):
        self._disk, self._root, self._log, self._dispatched = disk, root, log, dispatched
        self._context = WriterContext()
        view = self._context.view
        view[c.MAX_RECORD] = max_record
        view[c.INDEX_ENABLED] = 1
        self.index = HashIndex(disk, root / FRESH, geometry, self._context, clock)
        self.state = "running"
        self.error: str | None = None
        self._start = log.minimum
        self.position = self._start
        self._cancelled = False
        # The file of `position`, and our map of it
        self._file: MappedFile | None = None
        self._region: Region | None = None

    @property
    def is_ready(self) -> bool:
        """True if so little is left that the loop may finish."""
        return self.state == "running" and self._dispatched() - self.position <= _MAX_LEFT_BYTES

    def progress(self) -> RebuildProgress:
        return RebuildProgress(
            state=self.state,
            done_bytes=self.position - self._start,
            total_bytes=self._dispatched() - self._start,
            error=self.error,
        )

    def cancel(self) -> None:
        self._cancelled = True

    def step(self) -> bool:
        """Index one chunk; return False when the loop may finish or the run has ended. Raises StoreError."""
        if self._cancelled:
            self.end("cancelled")
        if self.state != "running":
            return False
        if self.is_ready:
            self.index.sync()
            return False
        self._advance(self._dispatched())
        return True

    def _advance(self, to: int) -> None:
        view = self._context.view
        file, region = self._enter()
        view[c.CONFIRMED] = to
        stopped = catch_up(self._context.address, _RECORDS_PER_CALL)
        self.position = view[c.DISPATCH_BASE] + view[c.DISPATCH_AT]
        if stopped == c.LOG_FILE_END:
            self.position = file.end
        elif stopped == c.INDEX_FULL:
            self.index.next_file()
        elif stopped == c.UNKNOWN_QUEUE:
            topic = self._topic_at(file, region, view[c.STOPPED_AT] - file.base)
            self._context.topic(topic).row[c.T_DELETED_BEFORE] = _EVERYTHING
        elif stopped not in (c.DONE, c.EXHAUSTED):
            raise self._bad_record(file, view[c.STOPPED_AT] - file.base)

    def _topic_at(self, file: MappedFile, region: Region, at: int) -> str:
        """Return the topic of the record at byte `at` of a file. Raises DamagedStoreError."""
        size = record.read_head(region.read(at, record.BLANK_BYTES)).total_size
        try:
            return record.decode(region.read(at, size), check_crc=False).topic
        except FormatError as error:
            raise self._bad_record(file, at) from error

    def _bad_record(self, file: MappedFile, at: int) -> DamagedStoreError:
        return DamagedStoreError(
            "no good record begins here, so the index cannot be made from the log",
            file=str(file.path),
            offset=at,
            advice=f"`manage.py check_store {self._root}` shows all of it, and with --apply bridges it.",
        )

    def _enter(self) -> tuple[MappedFile, Region]:
        """Return the file of `position`, and a map of it of our own: the engine's map of it may go at any
        time."""
        if (
            self._file is not None
            and self._region is not None
            and self._file.base <= self.position < self._file.end
        ):
            return self._file, self._region
        file = self._log.file_at(self.position)
        if file is None:
            raise StoreError(
                f"the log file of position {self.position} is gone: it became too old while it was read"
            )
        self._close_region()
        region = self._disk.open_region(file.path, writable=False).at_least(file.size)
        self._file, self._region = file, region
        view = self._context.view
        view[c.DISPATCH_ADDRESS] = region.address
        view[c.DISPATCH_BASE] = file.base
        view[c.DISPATCH_SIZE] = file.size
        view[c.DISPATCH_AT] = self.position - file.base
        return file, region

    def finish(self, old: HashIndex) -> None:
        """Index what is left, and put the new files in the place of `old`'s. Loop's thread. Raises
        StoreError."""
        while self.position < self._dispatched():
            self._advance(self._dispatched())
        self.index.sync()
        self._close_region()
        directory, away = old.directory, self._root / OLD
        remove_directory(self._disk, away)
        if self._disk.exists(directory):
            self._disk.rename(directory, away)
        try:
            self._disk.make_directory(self._root / FRESH)
            self._disk.rename(self._root / FRESH, directory)
        except StoreError:
            # The next start would remove the old index as a leftover if it kept this name.
            self._disk.rename(away, directory)
            raise
        self._disk.sync_directory(self._root)
        old.take_over(self.index)
        remove_directory(self._disk, away)
        self.state = "done"

    def end(self, state: str, error: str | None = None) -> None:
        """End without a result: the index stays as it was."""
        self._close_region()
        self.index.close()
        remove_directory(self._disk, self._root / FRESH)
        self.state, self.error = state, error

    def _close_region(self) -> None:
        if self._region is not None:
            self._region.close()
            self._file = self._region = None


def remove_directory(disk: Disk, path: Path) -> None:
    """Remove a directory of files with its content; nothing happens when it is absent."""
    if disk.is_directory(path):
        for name in disk.list_names(path):
            disk.unlink(path / name)
        disk.remove_directory(path)
