"""One file of a sequence. Its length is fixed, blocks are allocated in strides, bytes reach the disk by
`sync`.

    0 ......... flushed ......... wrote ......... allocated ......... size
      on disk      in memory only    blocks, zero      no blocks yet

A sequence (commit log, one consume queue) is named by start offsets of 20 digits and has no gaps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.residency import Residency
from broker_store.errors import DamagedStoreError


def file_name(base: int) -> str:
    return f"{base:020d}"


def is_file_name(name: str) -> bool:
    return len(name) == 20 and name.isascii() and name.isdigit()


class MappedFile:
    """`base` is the offset of its first byte in the sequence; all positions are relative to the file."""

    __slots__ = (
        "_directory",
        "_residency",
        "allocated",
        "base",
        "disk",
        "flushed",
        "populated",
        "region",
        "size",
        "wrote",
    )

    def __init__(self, disk: Disk, directory: str, base: int, size: int, region: Region | None):
        self.disk, self.base, self.size, self.region = disk, base, size, region
        self._directory = directory  # one text for all files of it: a Path takes 300 bytes
        self.wrote = self.flushed = self.allocated = self.populated = 0
        self._residency: Residency | None = None

    @classmethod
    def create(cls, disk: Disk, directory: Path, base: int, size: int) -> MappedFile:
        return cls(disk, str(directory), base, size, disk.create_region(directory / file_name(base), size))

    @property
    def path(self) -> Path:
        return Path(self._directory, file_name(self.base))

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def address(self) -> int:
        return self.map().address

    @property
    def residency(self) -> Residency:
        """What is known about the map's pages; dropped with the map."""
        if self._residency is None:
            self._residency = Residency(self.map())
        return self._residency

    def map(self, writable: bool = True) -> Region:
        """Return the map, made when there is none. Raises StoreError; DamagedStoreError for a file that
        became shorter."""
        if self.region is None:
            self.region = self.disk.open_region(self.path, writable).at_least(self.size)
        return self.region

    def release_map(self) -> Region:
        """Return the map of a mapped file and keep no reference to it; the caller closes it later."""
        region, self.region, self._residency = self.region, None, None
        assert region is not None
        return region

    def unmap(self) -> None:
        if self.region is not None:
            self.release_map().close()

    @contextlib.contextmanager
    def mapped(self) -> Iterator[Region]:
        """Give the map for the time of a block. A file that was not mapped before it is unmapped again where
        more than `Disk.kept_maps` files are mapped. For steps that go through many files: each map takes
        memory (`engine/queue/queue_maps.py`)."""
        was_mapped = self.region is not None
        try:
            yield self.map()
        finally:
            if not was_mapped and self.disk.mapped_files() > self.disk.kept_maps:
                self.unmap()

    def own(self) -> None:
        """Give the file bytes of its own before it is written, where a backup shares them (`Disk.own`). Its
        map is made again at the next use."""
        if not self.disk.is_inspecting and self.disk.identity_of(self.path).names > 1:
            self.unmap()
            self.disk.own(self.path)

    def allocate(self, to: int) -> None:
        """Allocate blocks up to `to`. Raises DiskFullError; the file's state is then unchanged."""
        to = min(to, self.size)
        if to > self.allocated:
            self.map().allocate(self.allocated, to - self.allocated)
            self.allocated = to

    def sync(self, to: int, through_end: bool = False) -> bool:
        """Sync [flushed, to), or everything from `flushed` on with `through_end`; return False when there was
        nothing. Raises SyncError."""
        if to <= self.flushed and not through_end:
            return False
        self.map().sync(self.flushed, (self.size if through_end else to) - self.flushed)
        self.flushed = max(self.flushed, to)
        return True


class Hole(NamedTuple):
    """Where a sequence is interrupted: a file is missing or has length 0, and files follow."""

    files: list[Path]  # after the hole, ascending
    error: DamagedStoreError


def load_sequence(
    disk: Disk, directory: Path, size: int, setting: str, delete: bool = True
) -> list[MappedFile]:
    """Return the files of a directory, ascending, not mapped; wrote, flushed and allocated are set to the
    file's size.

    Last files of length 0 are deleted, as Apache does with one: they were made ahead and never used. A hole,
    another length and a name that is no offset are refused: DamagedStoreError with what to do. `setting`
    names the setting of `size`. Directories are skipped, as Apache does, except one in the place of a file:
    that file could not be made.
    """
    files, hole = load_up_to_hole(disk, directory, size, setting, delete)
    if hole is not None:
        raise hole.error
    return files


QUEUE_SIZE = "mappedFileSizeConsumeQueue"


def load_up_to_hole(
    disk: Disk, directory: Path, size: int, setting: str, delete: bool = True, leave_out: Container[Path] = ()
) -> tuple[list[MappedFile], Hole | None]:
    """Return what `load_sequence` does; of an interrupted sequence the files before the hole, and the hole.
    For files that can be built from the log.

    Files of `leave_out` count as gone.
    """
    files: list[MappedFile] = []
    text = str(directory)
    names = [
        name
        for name in disk.list_names(directory)
        if is_file_name(name) or not disk.is_directory(directory / name)
    ]
    paths = [path for path in (directory / name for name in names) if path not in leave_out]
    for path in paths:
        if not is_file_name(path.name):
            raise DamagedStoreError(
                "is no file of the store (its name must be a start offset of 20 digits)",
                file=str(path),
                advice="Move it out of this directory.",
            )
    lengths = [disk.size_of(path) for path in paths]
    while lengths and lengths[-1] == 0:
        lengths.pop()
        path = paths.pop()
        if delete:
            disk.unlink(path)
    for position, (path, length) in enumerate(zip(paths, lengths, strict=True)):
        base = int(path.name)
        error = None
        if length != size:
            put_back = "put the file back from a copy"
            if setting == QUEUE_SIZE:
                put_back += ", or move it out of the store: a queue's files are made again from the log"
            advice = (
                f"{put_back[0].upper()}{put_back[1:]}"
                if size in lengths
                else f"Set {setting} to the file size this store was written with, or {put_back}"
            )
            error = DamagedStoreError(
                f"has {length} bytes, expected {size}",
                file=str(path),
                advice=f"{advice}; `manage.py check_store DIR --plan` shows what a repair would do.",
            )
            if length:
                raise error
        elif files and base != files[-1].end:
            error = DamagedStoreError(
                f"follows {files[-1].path.name}, but {file_name(files[-1].end)} should: a file is missing",
                file=str(path),
                advice="Put the missing file back from a copy, and start again; `manage.py check_store DIR "
                "--plan` shows what a repair would do without it.",
            )
        if error is not None:
            return files, Hole(paths[position:], error)
        if base % size:
            raise DamagedStoreError(
                f"starts at {base}, which is no multiple of the file size {size}",
                file=str(path),
                advice=f"Set {setting} to the file size this store was written with.",
            )
        file = MappedFile(disk, text, base, size, None)
        file.wrote = file.flushed = file.allocated = size
        files.append(file)
    return files, None


def is_expired_name(name: str, minimum: int, names: Container[str]) -> bool:
    """Return whether a file lies below `minimum`, where the sequence is known to begin and a file of `names`
    does."""
    return is_file_name(name) and int(name) < minimum and file_name(minimum) in names
