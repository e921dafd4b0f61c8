"""timerlog/: the units of all timer messages in the order of their queue, in files of one length
(formats/timer_log.py).

    0 .......... flushed .......... wrote .......... (zero)
    | on the disk | in memory        | next unit

Appended on the loop; synced in a worker. `cut` makes everything after a position zero, so that what a crash
left there is never taken for units.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.mapped_file import MappedFile, load_sequence
from broker_store.errors import DiskFullError
from broker_store.formats import timer_log
from broker_store.formats.timer_log import TimerUnit

# Bytes that get blocks at a time: about 20,000 units.
_STRIDE = 1 << 20

UNIT = np.dtype(
    [
        (name, ">i8" if letter == "q" else ">i4")
        for name, letter in zip(timer_log.LAYOUT.names, "iqiqiqiiq", strict=True)
    ]
)

_SETTING = "mappedFileSizeTimerLog"


class TimerLog:
    """Positions are counted over all files."""

    def __init__(self, disk: Disk, directory: Path, file_size: int):
        self._disk, self._directory, self._file_size = disk, directory, file_size
        self.files: list[MappedFile] = []  # written by the loop; the worker takes a copy
        self.wrote = 0  # position after the last unit; written by the loop

    def require_files(self) -> None:
        """Check that the files fit each other and the setting. Raises DamagedStoreError, and changes
        nothing."""
        load_sequence(self._disk, self._directory, self._file_size, _SETTING, delete=False)

    def load(self) -> None:
        """List the files. Raises DamagedStoreError when they do not fit each other or the setting."""
        self.files = load_sequence(self._disk, self._directory, self._file_size, _SETTING)
        for file in self.files:
            # Nothing is known to be on the disk, nor to have blocks after the used part.
            file.flushed = file.allocated = 0
        self.wrote = self.files[0].base if self.files else 0

    def units(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (position of the first, units) of each file, as far as they can be units. Not while units are
        appended."""
        for file in self.files:
            region = file.map()
            used = region.data_end() // timer_log.SIZE + 1
            room = min(used, (self._file_size - timer_log.BLANK.size) // timer_log.SIZE)
            units = np.frombuffer(region.read(0, room * timer_log.SIZE), dtype=UNIT)
            count = sound_units(units, file.base)
            yield file.base, units[:count]
            if not self._is_closed(file, count * timer_log.SIZE):
                return

    def _is_closed(self, file: MappedFile, at: int) -> bool:
        """Return whether a blank at `at` says that the log goes on in the next file."""
        left, _, magic = timer_log.BLANK.unpack(file.map().read(at, timer_log.BLANK.size))
        return magic == timer_log.BLANK_MAGIC and left == self._file_size - at

    def cut(self, position: int) -> None:
        """End the log at `position`: zero what lies after it, on the disk too. Raises StoreError."""
        while self.files and self.files[-1].base > position:
            file = self.files.pop()
            file.unmap()
            self._disk.unlink(file.path)
            self._disk.sync_directory(self._directory)
        self.wrote = position
        if not self.files:
            return
        file = self.files[-1]
        file.wrote = position - file.base
        region = file.map()
        if region.data_end() > file.wrote:
            region.punch(file.wrote)
            region.sync(file.wrote, self._file_size - file.wrote)

    def make_room(self) -> int:
        """Make sure that the current file takes a unit; return how many it takes at least. Raises
        DiskFullError."""
        file = self.files[-1] if self.files else self._next_file(0)
        if timer_log.needs_next_file(self._file_size - file.wrote):
            # Blocks of this file first: once there is a next file, this one must be closed.
            file.allocate(self._file_size)
            following = self._next_file(file.end)
            self._write(file, timer_log.encode_blank(self._file_size - file.wrote))
            file.wrote = self._file_size
            file = following
            self.wrote = file.base
        return (self._file_size - timer_log.BLANK.size - file.wrote) // timer_log.SIZE

    def append(self, units: bytes) -> None:
        """Append units, for which `make_room` made room, at `wrote`. Raises DiskFullError; nothing was added
        then."""
        file = self.files[-1]
        self._write(file, units)
        file.wrote += len(units)
        self.wrote = file.base + file.wrote

    def _write(self, file: MappedFile, data: bytes) -> None:
        if file.wrote + len(data) > file.allocated:
            file.allocate(file.wrote + _STRIDE)
        file.map().write(file.wrote, data)

    def _next_file(self, base: int) -> MappedFile:
        if not self.files:
            self._disk.make_directory(self._directory)
        file = MappedFile.create(self._disk, self._directory, base, self._file_size)
        try:
            file.allocate(_STRIDE)
        except DiskFullError:
            # The next attempt creates it again
            file.unmap()
            self._disk.unlink(file.path, missing_ok=True)
            raise
        self._disk.sync_directory(self._directory)
        self.files.append(file)
        return file

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position; None when its file is gone."""
        if not self.files or not self.files[0].base <= position < self.wrote:
            return None
        file = self.files[(position - self.files[0].base) // self._file_size]
        return timer_log.decode(file.map().read(position - file.base, timer_log.SIZE))

    def unit_at_begin(self) -> TimerUnit | None:
        """Return the first unit of the first file, None without one."""
        units = next(self.units(), (0, ()))[1]
        return timer_log.decode(self.files[0].map().read(0, timer_log.SIZE)) if len(units) else None

    def sync(self, to: int) -> None:
        """Bring the units before `to` to the disk. Any one thread. Raises SyncError."""
        for file in list(self.files):
            file.sync(max(0, min(file.wrote, to - file.base)))

    def delete_before(self, log_minimum: int) -> None:
        """Remove the files that name no message from log offset `log_minimum` on; the last file stays."""
        while len(self.files) > 1:
            file = self.files[0]
            last = timer_log.decode(file.map().read(timer_log.last_unit_at(self._file_size), timer_log.SIZE))
            if last.log_offset >= log_minimum:
                return
            self._disk.unlink(file.path)
            self._disk.sync_directory(self._directory)
            del self.files[0]
            file.unmap()

    def close(self) -> None:
        for file in self.files:
            file.unmap()


def sound_units(units: np.ndarray, position: int) -> int:
    """Return how many of the first of `units`, which begin at `position`, can be units. A chain leads back
    only; otherwise it might not end."""
    magic, places = units["magic"], position + np.arange(len(units), dtype=np.int64) * timer_log.SIZE
    sound = (
        (units["unit_size"] == timer_log.SIZE)
        & (magic & timer_log.DEFAULT != 0)
        & (magic & ~timer_log.MAGIC_BITS == 0)
    )
    sound &= (
        (units["log_offset"] >= 0)
        & (units["size"] > 0)
        & (units["previous"] >= timer_log.NONE)
        & (units["previous"] < places)
    )
    bad = np.flatnonzero(~sound)
    return int(bad[0]) if len(bad) else len(units)
