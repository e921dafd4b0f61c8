"""A disk in memory that knows what a power cut may leave of it (docs/durability.md section 3).

It stands in for `engine.disk.disk.Disk`. Files are byte arrays at fixed addresses, so kernels write into them as
into a map. For every page it keeps the versions since the sync that last covered it, oldest first: the kernel
may have written back any of them. It keeps the changes of names and lengths that were not synced, in order;
`tests/support/name_rules.py` says which a sync brings to the disk, and which of the others a cut may leave.

Versions are taken by looking (`look`): at each call of the seam, and whenever the test says so, so that a
store of bytes that was not declared is seen as well. What one kernel call writes counts as one version a page; torn
pages are for the explorer, which mixes versions by sectors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.disk.file_identity import FileIdentity
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.system import PAGE
from broker_store.errors import DamagedStoreError, DiskFullError, StoreError, StoreLockedError
from tests.support.name_rules import LENGTH, RULES, Change, NameRules


class File:
    """An inode: its bytes now, its bytes on the disk, and the versions of each page in between."""

    def __init__(self, number: int, content: bytes):
        self.number = number
        self.array = np.frombuffer(content, dtype=np.uint8).copy()
        self.seen = content
        # [on disk, ..., newest]; a page that is not here is on the disk as seen
        self.pages: dict[int, list[bytes]] = {}
        # Lengths that it had since the last sync before it was lengthened: the one on the disk first
        self.shorter: list[int] = []
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
        if len(content) > len(self.array):
            self.shorter.append(len(self.array))
        old = self.seen.ljust(len(content), b"\0")[: len(content)]
        self.array = np.frombuffer(content, dtype=np.uint8).copy()
        self.seen = old
        self.look()

    def sync(self, offset: int, length: int) -> None:
        self.look()
        for page in range(offset // PAGE, -(-(offset + length) // PAGE)):
            self.pages.pop(page, None)
        if offset + length >= len(self.array):
            self.shorter.clear()


@dataclass(frozen=True)
class FileState:
    """What may be on the disk of one file."""

    content: bytes  # the newest
    # Versions of those that are not on the disk for certain, oldest first
    pages: dict[int, tuple[bytes, ...]]
    shorter: tuple[int, ...] = ()  # lengths that it may have in place of that of the content


@dataclass
class CrashPoint:
    """Everything a power cut at one moment may leave, and what had been promised by then."""

    files: dict[int, FileState]
    names: dict[Path, int]  # on the disk for certain
    directories: frozenset[Path]
    pending: tuple[Change, ...]  # changes of names and lengths that are not synced, in order
    rules: NameRules
    what: str
    promised: object = None


@dataclass
class SimulatedDisk(Disk):
    """`clock` stamps files; `on_event(what)` is called before each change of the disk, when every version was
    recorded."""

    clock: Callable[[], int]
    on_event: Callable[[str], None] | None = None
    files: dict[Path, File] = field(default_factory=dict)
    directories: set[Path] = field(default_factory=lambda: {Path("/")})
    durable_names: dict[Path, File] = field(default_factory=dict)
    durable_directories: set[Path] = field(default_factory=lambda: {Path("/")})
    pending: list[Change] = field(default_factory=list)
    rules: NameRules = RULES["directory"]
    total: int = 1 << 40
    free: int = 1 << 39
    _by_number: dict[int, File] = field(default_factory=dict)
    _changes: int = 0
    _locked: set[Path] = field(default_factory=set)
    _unlinked: list[File] = field(default_factory=list)

    # What the test asks ---------------------------------------------------------------------------

    def look(self) -> None:
        for file in self.files.values():
            file.look()

    def event(self, what: str) -> None:
        if self.on_event is not None:
            self.look()
            self.on_event(what)

    def crash_point(self, what: str) -> CrashPoint:
        self.look()
        known = {file.number: file for file in (*self.files.values(), *self.durable_names.values())}
        known |= {
            change.file: self._by_number[change.file] for change in self.pending if change.file is not None
        }
        return CrashPoint(
            {
                number: FileState(
                    file.seen,
                    {page: tuple(versions) for page, versions in file.pages.items()},
                    tuple(file.shorter),
                )
                for number, file in known.items()
            },
            {path: file.number for path, file in self.durable_names.items()},
            frozenset(self.durable_directories),
            tuple(self.pending),
            self.rules,
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
    def of(
        cls, clock, contents: dict[Path, bytes], directories, rules: NameRules = RULES["directory"]
    ) -> SimulatedDisk:
        """A disk that holds just this, all of it for certain."""
        disk = cls(clock, rules=rules)
        for path, content in contents.items():
            disk.files[path] = disk._made(content)
        disk.durable_names = dict(disk.files)
        disk.directories |= set(directories)
        disk.durable_directories = set(disk.directories)
        return disk

    # Names ----------------------------------------------------------------------------------------

    def _made(self, content: bytes) -> File:
        file = File(len(self._by_number) + 1, content)
        self._by_number[file.number] = file
        return file

    def _change(self, kind: str, path: Path, file: File | None = None, target: Path | None = None) -> None:
        self._changes += 1
        self.pending.append(Change(self._changes, kind, path, None if file is None else file.number, target))

    def _commit(self, changes: list[Change]) -> None:
        """These are on the disk now."""
        gone = {change.number for change in changes}
        for change in changes:
            if change.kind != LENGTH:
                file = None if change.file is None else self._by_number[change.file]
                apply_change(change, file, self.durable_names, self.durable_directories)
            if change.kind == "rmdir":  # changes in a directory that is no more
                gone |= {
                    other.number
                    for other in self.pending
                    if other.number < change.number
                    and other.kind != LENGTH
                    and other.path.is_relative_to(change.path)
                }
        self.pending = [change for change in self.pending if change.number not in gone]

    def _sync_file(self, file: File, offset: int, length: int) -> None:
        file.sync(offset, length)
        self._commit(self.rules.by_file_sync(self.pending, file.number))

    def _new(self, path: Path, content: bytes) -> File:
        if path.parent not in self.directories:
            raise StoreError(f"{path}: creating a file failed: no such directory")
        file = self._made(content)
        file.modified_ms = self.clock()
        self.files[path] = file
        self._change("link", path, file)
        if content:
            self._change(LENGTH, path, file)
        return file

    def _file(self, path: Path) -> File:
        if path not in self.files:
            raise StoreError(f"{path}: reading its attributes failed: no such file")
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
        # By text: a start lists a directory for each queue, and comparing paths was an eighth of a state's time.
        start = f"{path}/" if path != path.parent else str(path)
        below = (
            str(entry)[len(start) :]
            for entry in (*self.files, *self.directories)
            if str(entry).startswith(start)
        )
        return sorted(name for name in below if name and "/" not in name)

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

    def identity_of(self, path: Path) -> FileIdentity:
        if path in self.directories:
            return FileIdentity(0, 0, 0, 0, 1)
        file = self._file(path)
        names = sum(other is file for other in self.files.values())
        return FileIdentity(0, file.number, len(file.array), file.modified_ms * 1_000_000, names)

    def set_length(self, path: Path, length: int) -> None:
        file = self._file(path)
        file.set(file.array.tobytes()[:length].ljust(length, b"\0"))
        self.event(f"sync {path}")
        self._sync_file(file, 0, length)

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
        """A directory. What was not synced of its names goes with it: a state has such a name only where it
        has the move."""
        if target in self.directories:
            raise StoreError(f"{source}: renaming to {target.name} failed: it exists")
        self.pending = [
            replace(
                change,
                path=_moved(change.path, source, target),
                target=None if change.target is None else _moved(change.target, source, target),
            )
            for change in self.pending
        ]
        self._change("move", source, target=target)
        apply_change(self.pending[-1], None, self.files, self.directories)

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
        self._commit(self.rules.by_directory_sync(self.pending, path))

    def lock(self, path: Path):
        if path in self._locked:
            raise StoreLockedError(f"{path}: this process has opened this store already")
        if path not in self.files:
            self._new(path, b"lock")
        self._locked.add(path)
        return _Lock(self._locked, path)

    def usage(self, path: Path) -> Usage:
        return Usage(self.total, self.free)

    # Bytes ----------------------------------------------------------------------------------------

    def create_region(self, path: Path, size: int) -> Region:
        if path in self.files:
            raise StoreError(f"{path}: creating a file of {size} bytes failed: it exists")
        if self.free < size:
            raise DiskFullError(f"{path}: no room on the disk while creating a file of {size} bytes")
        self.event(f"create {path}")
        return SimulatedRegion(self, path, self._new(path, bytes(size)), True)

    def open_region(self, path: Path, writable: bool = True) -> Region:
        if self.size_of(path) == 0:
            raise StoreError(f"{path}: mapping failed: Invalid argument")
        return SimulatedRegion(self, path, self._file(path), writable)

    def open_reader(self, path: Path) -> SimulatedReader:
        return SimulatedReader(path, self._file(path))

    def create_writer(self, path: Path) -> SimulatedWriter:
        if path in self.files:
            raise StoreError(f"{path}: creating it failed: it exists")
        self.event(f"create {path}")
        return SimulatedWriter(self, path, self._new(path, b""))

    def clone(self, source: Path, target: Path) -> bool:
        return False

    def sync_file_system(self, path: Path) -> None:
        self.event(f"sync the file system of {path}")
        for file in self._by_number.values():
            file.sync(0, len(file.array))
        self._commit(list(self.pending))

    def write_file(self, path: Path, data: bytes) -> None:
        self.event(f"write {path}")
        if path not in self.files:
            file = self._new(path, bytes(len(data)))
        else:
            file = self.files[path]
        file.set(data)
        self.event(f"sync {path}")
        self._sync_file(file, 0, len(data))

    def append(self, path: Path, data: bytes, sync: bool = False) -> None:
        self.event(f"append {path}")
        if path not in self.files:
            self._new(path, b"")
        file = self.files[path]
        file.set(file.array.tobytes() + data)
        if sync:
            self.event(f"sync {path}")
            self._sync_file(file, 0, len(file.array))

    def link(self, source: Path, target: Path) -> None:
        self.event(f"link {target}")
        if target in self.files:
            raise StoreError(f"{target}: keeping the old file failed: it exists")
        self.files[target] = self._file(source)
        self._change("link", target, self.files[target])

    def copy_range(self, source: Region, offset: int, length: int, target: Path) -> None:
        data = source.read(offset, length)
        self._new(target, bytes(length)).set(data)
        self.event(f"sync {target}")
        self._sync_file(self.files[target], 0, length)


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) and path != source else path


def apply_change(change: Change, file: object, names: dict, directories: set) -> None:
    """Do one change of names to a table of them; `file` is what a linked or renamed name leads to in it."""
    kind, path = change.kind, change.path
    if kind == "link":
        names[path] = file
    elif kind == "unlink":
        names.pop(path, None)
    elif kind == "rename":
        names.pop(path, None)
        names[change.target] = file
    elif kind == "mkdir":
        directories.add(path)
    elif kind == "move":
        if path in directories:  # what the name led to before is out of reach: one directory has one name
            apply_change(Change(change.number, "rmdir", change.target), None, names, directories)
        for name in [name for name in names if name.is_relative_to(path)]:
            names[change.target / name.relative_to(path)] = names.pop(name)
        for directory in [directory for directory in directories if directory.is_relative_to(path)]:
            directories.discard(directory)
            directories.add(change.target / directory.relative_to(path))
    elif kind == "rmdir":
        for name in [name for name in names if name.is_relative_to(path)]:
            del names[name]
        directories -= {directory for directory in directories if directory.is_relative_to(path)}
    else:
        raise ValueError(f"{kind} is no change of names")


class SimulatedRegion(Region):
    def __init__(self, disk: SimulatedDisk, path: Path, file: File, writable: bool):
        super().__init__(path, file.address, len(file.array), writable)
        self._disk, self._file = disk, file

    def allocate(self, offset: int, length: int) -> None:
        if min(length, self.size - offset) > 0 and self._disk.free < min(length, self.size - offset):
            raise DiskFullError(
                f"{self.path}: no room on the disk while allocating {length} bytes at {offset}"
            )

    def populate(self, offset: int, length: int) -> None:
        pass

    def fault_singly(self) -> None:
        pass

    def require_in_place(self) -> None:
        pass

    def sync(self, offset: int, length: int) -> None:
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end <= start:
            return
        self._disk.event(f"sync {self.path} [{offset}, {offset + length})")
        self._disk._sync_file(self._file, start, end - start)

    def punch(self, offset: int) -> None:
        ctypes.memset(self.address + offset, 0, self.size - offset)

    def data_end(self) -> int:
        return len(self.read(0, self.size).rstrip(b"\0"))

    def close(self) -> None:
        self.address = 0


class SimulatedWriter:
    """Writes by position; nothing is synced."""

    def __init__(self, disk: SimulatedDisk, path: Path, file: File):
        self.path, self._disk, self._file = path, disk, file

    def write(self, offset: int, data: bytes) -> None:
        self._disk.event(f"write {self.path}")
        now = self._file.array.tobytes()
        self._file.set(now[:offset].ljust(offset, b"\0") + data + now[offset + len(data) :])

    def extend(self, length: int) -> None:
        self._file.set(self._file.array.tobytes()[:length].ljust(length, b"\0"))

    def close(self) -> None:
        pass


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

    def data_ranges(self, end: int) -> Iterator[tuple[int, int]]:
        if end:
            yield 0, min(end, self.size)

    def close(self) -> None:
        pass

    def __enter__(self) -> SimulatedReader:
        return self

    def __exit__(self, *_) -> None:
        pass


class _Lock:
    def __init__(self, locked: set[Path], path: Path):
        self._locked, self._path = locked, path

    def require_in_place(self) -> None:
        pass

    def release(self) -> None:
        self._locked.discard(self._path)
