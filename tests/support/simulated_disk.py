"""A disk in memory that knows what a power cut may leave of it (RELIABILITY.md section 3).

It stands in for `engine.disk.Disk`. Files are byte arrays at fixed addresses, so kernels write into them as into a map.
For every page it keeps the versions since the sync that last covered it, oldest first: the kernel may have written back
any of them. For every directory it keeps the changes of names since it was last synced, in order: a journal brings any
first part of them to the disk. A file whose name is among them may still be empty, if it is the last.

Versions are taken by looking (`look`): at each call of the seam, and whenever the test says so, so that a store of bytes
nobody declared is seen as well. What one kernel call writes counts as one version a page; torn pages are for the
explorer, which mixes versions by sectors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from broker_store.engine.disk import PAGE, Disk, Region, Usage
from broker_store.errors import DamagedStoreError, DiskFullError, StoreError, StoreLockedError

_WITH_FILE = ("link", "rename")  # kinds of changes that name a file


class File:
    """An inode: its bytes now, its bytes on the disk, and the versions of each page in between."""

    def __init__(self, number: int, content: bytes, durable: bool):
        self.number = number
        self.array = np.frombuffer(content, dtype=np.uint8).copy()
        self.seen = content
        self.pages: dict[int, list[bytes]] = {}  # [on disk, ..., newest]; a page that is not here is on the disk as seen
        self.has_length = durable  # whether its length is on the disk
        self.modified_ms = 0

    @property
    def address(self) -> int:
        return self.array.ctypes.data if len(self.array) else 0

    def look(self) -> bool:
        now = self.array.tobytes()
        if now == self.seen:
            return False
        for start in range(0, len(now), PAGE):
            fresh = now[start : start + PAGE]
            if fresh != self.seen[start : start + PAGE]:
                self.pages.setdefault(start // PAGE, [self.seen[start : start + PAGE]]).append(fresh)
        self.seen = now
        return True

    def set(self, content: bytes) -> None:
        """Another content, of any length (small files only)."""
        self.look()
        old = self.seen.ljust(len(content), b"\0")[: len(content)]
        self.array = np.frombuffer(content, dtype=np.uint8).copy()
        self.seen = old
        self.look()

    def sync(self, offset: int, length: int) -> None:
        self.look()
        self.has_length = True
        for page in range(offset // PAGE, -(-(offset + length) // PAGE)):
            self.pages.pop(page, None)


@dataclass(frozen=True)
class FileState:
    """What may be on the disk of one file."""

    content: bytes  # the newest
    pages: dict[int, tuple[bytes, ...]]  # versions of those that are not on the disk for certain, oldest first
    has_length: bool


@dataclass
class CrashPoint:
    """Everything a power cut at one moment may leave, and what had been promised by then."""

    files: dict[int, FileState]
    names: dict[Path, int]  # on the disk for certain
    directories: frozenset[Path]
    pending: dict[Path, list[tuple]]  # changes of names not synced, by directory, in order
    what: str
    promised: object = None


@dataclass
class SimulatedDisk(Disk):
    """`clock` stamps files; `on_event(what)` is called before each change of the disk, when every version was looked at."""

    clock: Callable[[], int]
    on_event: Callable[[str], None] | None = None
    files: dict[Path, File] = field(default_factory=dict)
    directories: set[Path] = field(default_factory=lambda: {Path("/")})
    durable_names: dict[Path, File] = field(default_factory=dict)
    durable_directories: set[Path] = field(default_factory=lambda: {Path("/")})
    pending: dict[Path, list[tuple]] = field(default_factory=dict)
    total: int = 1 << 40
    free: int = 1 << 39
    _numbers: int = 0
    _locked: set[Path] = field(default_factory=set)
    _unlinked: list[File] = field(default_factory=list)

    # What the test asks ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        for file in self.files.values():
            file.look()

    def event(self, what: str) -> None:
        if self.on_event is not None:
            self.look()
            self.on_event(what)

    def crash_point(self, what: str) -> CrashPoint:
        self.look()
        known = {id(file): file for file in (*self.files.values(), *self.durable_names.values())}
        for changes in self.pending.values():
            known |= {id(change[2]): change[2] for change in changes if change[0] in _WITH_FILE}
        return CrashPoint(
            {
                file.number: FileState(file.seen, {page: tuple(versions) for page, versions in file.pages.items()}, file.has_length)
                for file in known.values()
            },
            {path: file.number for path, file in self.durable_names.items()},
            frozenset(self.durable_directories),
            {
                directory: [(*change[:2], change[2].number, *change[3:]) if change[0] in _WITH_FILE else change for change in changes]
                for directory, changes in self.pending.items()
                if changes
            },
            what,
        )

    def kill(self) -> None:
        """The process dies: what is in memory stays, its locks go."""
        self.look()
        self._locked.clear()

    def contents(self) -> dict[Path, bytes]:
        self.look()
        return {path: file.seen for path, file in self.files.items()}

    @classmethod
    def of(cls, clock, contents: dict[Path, bytes], directories) -> SimulatedDisk:
        """A disk that holds just this, all of it for certain."""
        disk = cls(clock)
        for path, content in contents.items():
            disk._numbers += 1
            disk.files[path] = File(disk._numbers, content, True)
        disk.durable_names = dict(disk.files)
        disk.directories |= set(directories)
        disk.durable_directories = set(disk.directories)
        return disk

    # Names ----------------------------------------------------------------------------------------------------------

    def _change(self, kind: str, path: Path, *more) -> None:
        self.pending.setdefault(path.parent, []).append((kind, path, *more))

    def _new(self, path: Path, content: bytes) -> File:
        if path.parent not in self.directories:
            raise StoreError(f"{path}: creating a file failed: no such directory")
        self._numbers += 1
        file = File(self._numbers, content, False)
        file.pages = {}
        file.modified_ms = self.clock()
        self.files[path] = file
        self._change("link", path, file)
        return file

    def _file(self, path: Path) -> File:
        if path not in self.files:
            raise StoreError(f"{path}: looking at it failed: no such file")
        return self.files[path]

    def make_directory(self, path: Path, *, sync: bool = True) -> None:
        if path in self.directories:
            return
        self.make_directory(path.parent, sync=sync)
        self.event(f"mkdir {path}")
        self.directories.add(path)
        self._change("mkdir", path)
        if sync:
            self.sync_directory(path.parent)

    def list_names(self, path: Path) -> list[str]:
        names = [entry.name for entry in self.files if entry.parent == path]
        return sorted(names + [entry.name for entry in self.directories if entry.parent == path and entry != path])

    def is_directory(self, path: Path) -> bool:
        return path in self.directories

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.directories

    def size_of(self, path: Path) -> int:
        if path in self.directories:
            raise DamagedStoreError("is no regular file", file=str(path), advice="Move it out of the store.")
        return len(self._file(path).array)

    def modified_ms(self, path: Path) -> int:
        return self._file(path).modified_ms

    def allocated_bytes(self, path: Path) -> int:
        return len(self._file(path).array)

    def rename(self, source: Path, target: Path) -> None:
        self.event(f"rename {source} to {target}")
        if source in self.directories:
            self._move(source, target)
            return
        file = self._file(source)
        del self.files[source]
        self.files[target] = file
        self._change("rename", source, file, target)

    def _move(self, source: Path, target: Path) -> None:
        """A directory. What was not synced of its names goes with it: a state has such a name only where it has the move."""
        if target in self.directories:
            raise StoreError(f"{source}: renaming to {target.name} failed: it exists")
        change = ("move", source, target)
        apply_change(change, self.files, self.directories)
        if source in self.pending:
            moved = self.pending.pop(source)
            self.pending[target] = [tuple(target / part.relative_to(source) if isinstance(part, Path) else part for part in each) for each in moved]
        self._change(*change)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        if path not in self.files:
            if missing_ok:
                return
            raise StoreError(f"{path}: removing failed: no such file")
        self.event(f"unlink {path}")
        self._unlinked.append(self.files.pop(path))
        self._change("unlink", path)

    def remove_directory(self, path: Path) -> None:
        if self.list_names(path):
            raise StoreError(f"{path}: removing the directory failed: not empty")
        self.event(f"rmdir {path}")
        self.directories.discard(path)
        self._change("rmdir", path)

    def sync_directory(self, path: Path) -> None:
        self.event(f"sync directory {path}")
        for change in self.pending.pop(path, []):
            apply_change(change, self.durable_names, self.durable_directories)
            if change[0] in _WITH_FILE:
                change[2].has_length = True
            elif change[0] == "rmdir":
                for directory in [directory for directory in self.pending if directory.is_relative_to(change[1])]:
                    del self.pending[directory]  # changes in a directory that is no more

    def lock(self, path: Path):
        if path in self._locked:
            raise StoreLockedError(f"{path}: this process has opened this store already")
        if path not in self.files:
            self._new(path, b"lock")
        self._locked.add(path)
        return _Lock(self._locked, path)

    def usage(self, path: Path) -> Usage:
        return Usage(self.total, self.free)

    # Bytes ----------------------------------------------------------------------------------------------------------

    def create_region(self, path: Path, size: int) -> Region:
        if path in self.files:
            raise StoreError(f"{path}: creating a file of {size} bytes failed: it exists")
        if self.free < size:
            raise DiskFullError(f"{path}: no room on the disk while creating a file of {size} bytes")
        self.event(f"create {path}")
        return SimulatedRegion(self, path, self._new(path, bytes(size)), True)

    def open_region(self, path: Path, writable: bool = True) -> Region:
        self.size_of(path)
        return SimulatedRegion(self, path, self._file(path), writable)

    def open_reader(self, path: Path) -> SimulatedReader:
        return SimulatedReader(path, self._file(path))

    def write_file(self, path: Path, data: bytes) -> None:
        self.event(f"write {path}")
        if path not in self.files:
            file = self._new(path, bytes(len(data)))
        else:
            file = self.files[path]
        file.set(data)
        self.event(f"sync {path}")
        file.sync(0, len(data))

    def replace_file(self, path: Path, data: bytes, backup: Path | None = None) -> None:
        fresh = path.with_name(path.name + ".tmp")
        self.write_file(fresh, data)
        if backup is not None and path in self.files:
            self.unlink(backup, missing_ok=True)
            self.event(f"link {backup}")
            self.files[backup] = self.files[path]
            self._change("link", backup, self.files[path])
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def copy_range(self, source: Region, offset: int, length: int, target: Path) -> None:
        data = source.read(offset, length)
        self._new(target, bytes(length)).set(data)
        self.event(f"sync {target}")
        self.files[target].sync(0, length)


def apply_change(change: tuple, names: dict, directories: set) -> None:
    """Do one change of names to a table of them."""
    kind, path = change[:2]
    if kind == "link":
        names[path] = change[2]
    elif kind == "unlink":
        names.pop(path, None)
    elif kind == "rename":
        names.pop(path, None)
        names[change[3]] = change[2]
    elif kind == "mkdir":
        directories.add(path)
    elif kind == "move":
        for name in [name for name in names if name.is_relative_to(path)]:
            names[change[2] / name.relative_to(path)] = names.pop(name)
        for directory in [directory for directory in directories if directory.is_relative_to(path)]:
            directories.discard(directory)
            directories.add(change[2] / directory.relative_to(path))
    else:
        for name in [name for name in names if name.is_relative_to(path)]:
            del names[name]
        directories -= {directory for directory in directories if directory.is_relative_to(path)}


class SimulatedRegion(Region):
    def __init__(self, disk: SimulatedDisk, path: Path, file: File, writable: bool):
        super().__init__(path, file.address, len(file.array), writable)
        self._disk, self._file = disk, file

    def allocate(self, offset: int, length: int) -> None:
        if min(length, self.size - offset) > 0 and self._disk.free < min(length, self.size - offset):
            raise DiskFullError(f"{self.path}: no room on the disk while allocating {length} bytes at {offset}")

    def populate(self, offset: int, length: int) -> None:
        pass

    def fault_singly(self) -> None:
        pass

    def sync(self, offset: int, length: int) -> None:
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end <= start:
            return
        self._disk.event(f"sync {self.path} [{offset}, {offset + length})")
        self._file.sync(start, end - start)

    def punch(self, offset: int) -> None:
        ctypes.memset(self.address + offset, 0, self.size - offset)

    def data_end(self) -> int:
        return len(self.read(0, self.size).rstrip(b"\0"))

    def close(self) -> None:
        self.address = 0


class SimulatedReader:
    def __init__(self, path: Path, file: File):
        self.path, self._file = path, file

    def read(self, offset: int, length: int) -> bytes:
        return self._file.array[offset : offset + length].tobytes()

    def read_into(self, target: memoryview, offset: int) -> int:
        data = self.read(offset, len(target))
        target[: len(data)] = data
        return len(data)

    @property
    def size(self) -> int:
        return len(self._file.array)

    def close(self) -> None:
        pass

    def __enter__(self) -> SimulatedReader:
        return self

    def __exit__(self, *_) -> None:
        pass


class _Lock:
    def __init__(self, locked: set[Path], path: Path):
        self._locked, self._path = locked, path

    def release(self) -> None:
        self._locked.discard(self._path)
