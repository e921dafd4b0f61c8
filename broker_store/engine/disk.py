"""The seam: the only module that calls the operating system for files.

Everything the engine does to a disk goes through a `Disk` and the `Region`s it makes, so that tests can hand
in another one that fails the n-th call or keeps only what was synced (docs/durability.md section 3).

What shapes it:

* Files are mapped through libc, not `mmap`: Python's keeps a descriptor per map and its `flush` and `madvise`
  hold the interpreter lock for the whole call, here ctypes lets go of it.
* A region has its full *length* at once, since Apache checks it, but disk blocks only where `allocate` was
  called. Writing beyond would kill the process with SIGBUS when the disk is full; `posix_fallocate` says so
  in words.
* `sync` is msync over a range of pages. The map holds the file open, so an error of write-back since the map
  was made is reported here even when no descriptor is left. It is reported once, which is why a failed sync
  is final.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from broker_store.errors import (
    DamagedStoreError,
    DiskFullError,
    MapLimitError,
    OtherDiskError,
    StoreError,
    StoreLockedError,
    SyncError,
)
from broker_store.throttle import pause

PAGE = 4096
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 0x20
_MS_SYNC = 4
_MADV_RANDOM = 1
_MADV_POPULATE_WRITE = 23
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
# bytes: while the kernel answers for their pages, some 0.1 ms, nothing else gets that core
_ASKED_AT_ONCE = 4 << 20
_BEYOND_END = 4 << 20  # of a file: further than the largest piece of memory that holds its last page
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_DELETED = b" (deleted)"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
for _name in ("munmap", "msync", "madvise", "mincore"):
    getattr(_libc, _name).restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.fallocate.restype = ctypes.c_int
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_MAP_FAILED = ctypes.c_void_p(-1).value


class Usage(NamedTuple):
    """Bytes of the file system that holds a path, as far as it is for everyone: what is kept back for root,
    or by a quota, is not in `total`.

    The ratio is that of df and of Apache's UtilAll.getDiskPartitionSpaceUsedPercent: used / (used +
    available).
    """

    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        return 1 - self.free / self.total if self.total else 0.0


def _store_error(error: OSError, doing: str, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: no room on the disk while {doing}")
    if error.errno == errno.ENOMEM and (mapped := _mapped_files()) > _max_maps() * 3 // 4:
        return MapLimitError(
            f"{path}: {doing} failed: {mapped:,} files are mapped, and the system allows a process "
            f"{_max_maps():,} maps;"
            f" raise it (sysctl -w vm.max_map_count={4 * _max_maps()}) and start again"
        )
    return StoreError(f"{path}: {doing} failed: {error.strerror or error}")


def _mapped(size: int, protection: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(None, size, protection, flags, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def _mapped_files() -> int:
    from broker_store.engine.map_table import MAPS

    return len(MAPS)


@functools.cache
def _max_maps() -> int:
    """Maps that the system allows a process; Linux's default where it does not say."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65_530


def _entered(path: Path, address: int, size: int) -> int:
    """Let the handler of SIGBUS know the map (`engine/map_table.py`)."""
    # Imported with the first map: this module takes the store's lock before Numba is imported, which takes
    # seconds.
    from broker_store.engine.map_table import MAPS

    MAPS.enter(path, address, size)
    return address


def _unmap(address: int, size: int) -> None:
    from broker_store.engine.map_table import MAPS

    MAPS.take_out(address)
    _libc.munmap(address, size)


def _ask_pages(address: int, length: int, answers: int) -> bool:
    """mincore of a mapped range, in pieces; False when the system does not say."""
    for offset in range(0, length, _ASKED_AT_ONCE):
        if (
            _libc.mincore(address + offset, min(_ASKED_AT_ONCE, length - offset), answers + offset // PAGE)
            != 0
        ):
            return False
        pause()
    return True


class Region:
    """A mapped file. `address` is valid until `close`; whoever computes with it keeps the region."""

    def __init__(
        self, path: Path, address: int, size: int, writable: bool, inode: tuple[int, int] | None = None
    ):
        self.path, self.address, self.size, self.writable = path, address, size, writable
        self._inode = inode  # (device, number) of the mapped file

    @property
    def closed(self) -> bool:
        return self.address == 0

    def at_least(self, size: int) -> Region:
        """Return the region, or close it if its file is shorter than `size`: kernels would use memory after
        the map. Raises DamagedStoreError."""
        if self.size < size:
            found = self.size
            self.close()
            raise DamagedStoreError(
                f"has {found:,} bytes, and should have {size:,}: it was made shorter while the store is open",
                file=str(self.path),
                advice="Stop the broker and run `manage.py check_store`.",
            )
        return self

    def view(self, offset: int = 0, length: int | None = None) -> memoryview:
        """A view of the bytes; it must be gone before `close`."""
        length = self.size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + length}) is not in {self.size} bytes")
        return memoryview((ctypes.c_char * length).from_address(self.address + offset)).cast("B")

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + length}) is not in {self.size} bytes")
        return ctypes.string_at(self.address + offset, length)

    def write(self, offset: int, data: bytes) -> None:
        """For what is written rarely (headers, blanks of recovery); kernels write by address."""
        if offset < 0 or offset + len(data) > self.size:
            raise IndexError(f"{self.path}: [{offset}, {offset + len(data)}) is not in {self.size} bytes")
        ctypes.memmove(self.address + offset, data, len(data))

    def allocate(self, offset: int, length: int) -> None:
        """Give [offset, offset + length) disk blocks, cut at the region's end. Raises DiskFullError."""
        length = min(length, self.size - offset)
        if length <= 0:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_size < self.size:
                    # Another process made it shorter. Blocks at its end would make it long again, with zeros
                    # for what was lost.
                    self.read(self.size - 1, 1)  # stops the process, as a write to the lost part would
                os.posix_fallocate(descriptor, offset, length)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"allocating {length} bytes at {offset}", self.path) from error

    def ask_pages(self, offset: int, length: int, answers: int) -> bool:
        """A byte a page at the address `answers`, from the page that begins at `offset`: its lowest bit is 1
        when the page is in memory now. Cut at the region's end. False when the system does not say."""
        return _libc.mincore(self.address + offset, min(length, self.size - offset), answers) == 0

    def populate(self, offset: int, length: int) -> None:
        """Touch pages ahead of the writer, best effort: a kernel without the call is only slower."""
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end > start:
            _libc.madvise(self.address + start, end - start, _MADV_POPULATE_WRITE)

    def fault_singly(self) -> None:
        """Let a fault bring one page, not up to megabytes around it in one large folio, best effort.

        The system keeps dirt by folio: a sync of a group of messages would write the megabytes again, zeros
        mostly, and would make every page of them fault at its next write.
        """
        _libc.madvise(self.address, self.size, _MADV_RANDOM)

    def sync(self, offset: int, length: int) -> None:
        """Bring [offset, offset + length) to the disk. A failure is final: SyncError."""
        start = offset // PAGE * PAGE
        end = min(self.size, offset + length)
        if end <= start:
            return
        if _libc.msync(self.address + start, end - start, _MS_SYNC) != 0:
            number = ctypes.get_errno()
            raise SyncError(
                f"{self.path}: sync of [{offset}, {offset + length}) failed: {os.strerror(number)}"
            )

    def demand_in_place(self) -> None:
        """See that the mapped file still has its name and its length. Raises SyncError.

        A map of a file that was removed takes writes, and its sync reports success, as does that of pages
        behind a shortened end.
        """
        try:
            found = os.lstat(self.path)
        except OSError as error:
            raise SyncError(
                f"{self.path}: the file is gone while the store writes it ({error.strerror}): what "
                f"was written since then is not on the disk"
            ) from error
        if (found.st_dev, found.st_ino) != self._inode:
            raise SyncError(
                f"{self.path}: another file has this name now: what was written to the one that the "
                f"store has mapped is not on the disk"
            )
        if found.st_size < self.size:
            raise SyncError(
                f"{self.path}: the file has {found.st_size:,} bytes, and {self.size:,} when the "
                f"store mapped it: what was written behind them is not on the disk"
            )

    def punch(self, offset: int) -> None:
        """Make everything from `offset` to the end zero, and give its blocks back."""
        start = -(-offset // PAGE) * PAGE
        first_part = min(start, self.size) - offset
        if first_part > 0:
            ctypes.memset(self.address + offset, 0, first_part)
        if start >= self.size:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, start, self.size - start) != 0:
                    number = ctypes.get_errno()
                    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                        raise OSError(number, os.strerror(number))
                    ctypes.memset(self.address + start, 0, self.size - start)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"zeroing from {offset}", self.path) from error

    def data_end(self) -> int:
        """Offset behind the last allocated, written extent (SEEK_DATA); everything from there on is zero."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = end = 0
            while at < self.size:
                try:
                    at = os.lseek(descriptor, at, os.SEEK_DATA)
                    at = end = os.lseek(descriptor, at, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        return end
                    raise
            return end
        except OSError as error:
            raise _store_error(error, "looking for data", self.path) from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self.address:
            _unmap(self.address, self.size)
            self.address = 0


class Reader:
    """Positional reads of one file from any thread; a read never faults through a map (docs/durability.md
    section 6)."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, fewer only at the end of the file."""
        parts = []
        try:
            while length > 0:
                part = os.pread(self._descriptor, length, offset)
                if not part:
                    break
                if len(part) == length and not parts:
                    return part
                parts.append(part)
                offset += len(part)
                length -= len(part)
        except OSError as error:
            raise _store_error(error, f"reading at {offset}", self.path) from error
        return b"".join(parts)

    def read_into(self, target: memoryview, offset: int) -> int:
        """Fills `target`, fewer bytes only at the end of the file; how many. Large pieces in one place spare
        the kernel making new pages for each."""
        done = 0
        try:
            while done < len(target):
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise _store_error(error, f"reading at {offset}", self.path) from error
        return done

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        # Whoever keeps readers lets go of one while another thread may still read it: the last reference
        # closes it.
        self.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Writer:
    """Positional writes to one file; nothing is synced. For a small page that other processes read."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    def write(self, offset: int, data: bytes) -> None:
        """All of `data` at `offset`. Raises StoreError, DiskFullError."""
        try:
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                offset, data = offset + written, data[written:]
        except OSError as error:
            raise _store_error(error, f"writing {len(data)} bytes at {offset}", self.path) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of Linux: type, whence, start, length, pid


class StoreLock:
    """The record lock on byte 0 of `lock`, as Java's FileChannel.tryLock(0, 1) takes it.

    Such a lock is lost when *any* descriptor of that file is closed in the process: it is opened once, here,
    and a registry refuses a second store on the same directory in this process before the file is touched.
    """

    _held: set[str] = set()

    def __init__(self, path: Path):
        self.path = path
        self._key = os.path.realpath(path)
        if self._key in StoreLock._held:
            raise StoreLockedError(f"{path}: this process has opened this store already")
        self._descriptor = self._take()
        StoreLock._held.add(self._key)

    def _take(self) -> int:
        """A descriptor of the file with the lock."""
        _require_file(self.path)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        except OSError as error:
            raise _store_error(error, "opening it for the lock", self.path) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreLockedError(f"{self.path} is locked by another process") from error
        try:
            os.pwrite(descriptor, b"lock", 0)
        except OSError as error:
            if os.fstat(descriptor).st_size == 0:
                # This call made it: left here, the next one would take it for another process's lock
                self.path.unlink(missing_ok=True)
            os.close(descriptor)
            raise _store_error(error, "writing the lock", self.path) from error
        return descriptor

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Whether this process or another has the lock; it is asked about, not taken."""
        if os.path.realpath(path) in cls._held:
            return True
        _require_file(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False  # nobody made it
        except OSError as error:
            raise _store_error(error, "opening it to ask for the lock", path) from error
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            return _FLOCK.unpack(found)[0] != fcntl.F_UNLCK
        finally:
            os.close(descriptor)

    def demand_in_place(self) -> None:
        """See that the file still has its name, and make it again where it was removed. StoreLockedError when
        another process took the name meanwhile.

        Nothing is done for a lock that was released: its file may be another process's by then.
        """
        if self._descriptor < 0:
            return
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            removed, self._descriptor = self._descriptor, self._take()
            os.close(removed)
            return
        except OSError as error:
            raise _store_error(error, "looking at the lock", self.path) from error
        own = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            raise StoreLockedError(
                f"{self.path}: another file has this name now, so another process may write the store"
            )

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            StoreLock._held.discard(self._key)


def _holder_of_removed(path: Path) -> int | None:
    """The process that has a file open which had this name and was removed; None without one, or where that
    is not shown to this user."""
    name = f"{os.path.realpath(path)} (deleted)"
    try:
        processes = os.listdir("/proc")
    except OSError:
        return None
    for pid in filter(str.isdigit, processes):
        try:
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") == name:
                    return int(pid)
        except OSError:
            continue  # it ended, or belongs to somebody else
    return None


def _require_file(path: Path) -> None:
    """Refuse what is there and is no regular file: to open a FIFO would wait for its other end."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _store_error(error, "looking at it", path) from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedStoreError("is no regular file", file=str(path), advice="Move it out of the store.")


def _write_all(descriptor: int, data: bytes) -> None:
    """The system may take less than it was given."""
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _sync_written(descriptor: int, path: Path) -> None:
    """A failure is final: SyncError. A disk that is full may say so only here: DiskFullError by the
    caller."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SyncError(f"{path}: sync failed: {error.strerror}") from error


class Disk:
    """Names and bytes of one file system. Stateless; every method may raise StoreError or DiskFullError."""

    is_inspecting = False  # True: nothing on the disk is changed

    def make_directory(self, path: Path, *, sync: bool = True) -> None:
        """With its parents; each new name is synced into the directory above, unless the caller does that
        later."""
        if os.path.isdir(path):
            return
        if path.parent != path:
            self.make_directory(path.parent, sync=sync)
        try:
            os.mkdir(path, _DIRECTORY_MODE)
        except FileExistsError:
            self.demand_directory(path)
            return
        except OSError as error:
            raise _store_error(error, "making the directory", path) from error
        if sync:
            self.sync_directory(path.parent)

    def demand_directory(self, path: Path) -> None:
        """See that a directory, a link to one or nothing is there. Raises DamagedStoreError for anything
        else."""
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise _store_error(error, "looking at it", path) from error
            if os.path.lexists(path):
                raise DamagedStoreError(
                    "is a link that leads nowhere",
                    file=str(path),
                    advice="Mount what it leads to, or move it out of the store.",
                ) from None
            return
        if not is_directory:
            raise DamagedStoreError("is no directory", file=str(path), advice="Move it out of the store.")

    def demand_file(self, path: Path) -> None:
        """See that a regular file or nothing is there: to open a FIFO would wait for its other end. Raises
        DamagedStoreError, StoreError."""
        if os.path.lexists(path):
            self.size_of(path)

    def list_names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; nothing when there is no such directory. What is there and is none is
        refused."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            self.demand_directory(path)
            return []
        except NotADirectoryError:
            raise DamagedStoreError(
                "is no directory", file=str(path), advice="Move it out of the store."
            ) from None
        except OSError as error:
            raise _store_error(error, "listing", path) from error

    def is_directory(self, path: Path) -> bool:
        """Whether a directory is there, and no link to one. Raises StoreError where that cannot be seen."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False  # ValueError: a name with a NUL, which a damaged record may state for its topic
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return False
            raise _store_error(error, "looking at it", path) from error

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def size_of(self, path: Path) -> int:
        """Length of a regular file. A symbolic link or anything else in its place is refused."""
        try:
            found = os.lstat(path)
        except OSError as error:
            raise _store_error(error, "looking at it", path) from error
        if not stat.S_ISREG(found.st_mode):
            raise DamagedStoreError("is no regular file", file=str(path), advice="Move it out of the store.")
        return found.st_size

    def modified_ms(self, path: Path) -> int:
        try:
            return os.lstat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise _store_error(error, "looking at it", path) from error

    def allocated_bytes(self, path: Path) -> int:
        """Disk blocks of the file, in bytes."""
        try:
            return os.lstat(path).st_blocks * 512
        except OSError as error:
            raise _store_error(error, "looking at it", path) from error

    def create_region(self, path: Path, size: int) -> Region:
        """A new file of full length, no blocks yet, mapped. The name is not synced."""
        try:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
            )
            try:
                os.ftruncate(descriptor, size)
                return self._map(path, descriptor, size, True)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"creating a file of {size} bytes", path) from error

    def open_region(self, path: Path, writable: bool = True) -> Region:
        self.size_of(path)
        try:
            descriptor = os.open(
                path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            try:
                return self._map(path, descriptor, os.fstat(descriptor).st_size, writable)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, "mapping", path) from error

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> Region:
        protection = _PROT_READ | (_PROT_WRITE if writable else 0)
        found = os.fstat(descriptor)
        address = _entered(path, _mapped(size, protection, _MAP_SHARED, descriptor), size)
        return Region(path, address, size, writable, (found.st_dev, found.st_ino))

    def open_reader(self, path: Path) -> Reader:
        try:
            return Reader(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError as error:
            raise _store_error(error, "opening", path) from error

    def create_writer(self, path: Path) -> Writer:
        """A new file of length 0, to be written by position. The name is not synced."""
        try:
            return Writer(
                path,
                os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
                ),
            )
        except OSError as error:
            raise _store_error(error, "creating it", path) from error

    def read_file(self, path: Path, limit: int = 64 << 20) -> bytes | None:
        """The whole file, None when there is none; longer than `limit` is refused before it is read."""
        if not self.exists(path):
            return None
        size = self.size_of(path)
        if size > limit:
            raise DamagedStoreError(f"is {size} bytes, at most {limit} are read", file=str(path))
        with self.open_reader(path) as reader:
            return reader.read(0, size)

    def write_file(self, path: Path, data: bytes) -> None:
        """Write and sync a file; its name is synced by `sync_directory`."""
        _require_file(path)
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
            )
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"writing {len(data)} bytes", path) from error

    def set_length(self, path: Path, length: int) -> None:
        """Cut a file, or let it go on with zeros, and sync that."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.ftruncate(descriptor, length)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"making it {length} bytes long", path) from error

    def append(self, path: Path, data: bytes, sync: bool = False) -> None:
        """Add to the end of a file, made when it is not there. Without `sync` it is for what a power cut may
        take."""
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
            )
            try:
                _write_all(descriptor, data)
                if sync:
                    _sync_written(descriptor, path)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"adding {len(data)} bytes", path) from error

    def replace_file(self, path: Path, data: bytes, backup: Path | None = None) -> None:
        """Atomically: a reader finds the old bytes or the new ones. The old file becomes `backup` if that is
        given."""
        fresh = path.with_name(path.name + ".tmp")
        self.write_file(fresh, data)
        if backup is not None and self.exists(path):
            # A link first, so that `path` is never absent; then the old name is replaced.
            self.unlink(backup, missing_ok=True)
            self.link(path, backup)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def link(self, source: Path, target: Path) -> None:
        """A second name of a file. The name is not synced."""
        try:
            os.link(source, target)
        except OSError as error:
            raise _store_error(error, f"keeping {source.name}", target) from error

    def rename(self, source: Path, target: Path) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise OtherDiskError(f"{source}: {target} is on another file system") from error
            raise _store_error(error, f"renaming to {target.name}", source) from error

    def move(self, source: Path, target: Path) -> None:
        """Rename; onto another file system copy a file (without zeros at the end), sync, then remove. The
        caller syncs the old directory.

        A directory, link or device cannot be moved there: StoreError.
        """
        try:
            self.rename(source, target)
            self.sync_directory(target.parent)
        except OtherDiskError as error:
            if not stat.S_ISREG(os.lstat(source).st_mode):
                what = (
                    f"{source}: is no regular file, and {target.parent} is on another file system. Move "
                    f"it out of the store by hand, then try again"
                )
                raise StoreError(what) from error
            region = self.open_region(source, writable=False)
            try:
                self.copy_range(region, 0, region.data_end(), target)
            finally:
                region.close()
            self.sync_directory(target.parent)
            self.unlink(source)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError as error:
            if not missing_ok:
                raise _store_error(error, "removing", path) from error
        except OSError as error:
            raise _store_error(error, "removing", path) from error

    def remove_directory(self, path: Path) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            raise _store_error(error, "removing the directory", path) from error

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable. A failure is final: SyncError."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SyncError(f"{path}: sync of the directory failed: {error.strerror}") from error

    def copy_range(self, source: Region, offset: int, length: int, target: Path) -> None:
        """Copy a part of a region into a new file and sync it, a MiB at a time."""
        try:
            descriptor = os.open(
                target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
            )
            try:
                for at in range(offset, offset + length, 1 << 20):
                    piece = source.read(at, min(1 << 20, offset + length - at))
                    os.pwrite(descriptor, piece, at - offset)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, f"copying {length} bytes", target) from error

    def held_after_deletion(self, *directories: Path) -> list[tuple[Path, int]]:
        """(path, bytes) of files below `directories` that were deleted while this process still maps them or
        has them open.

        The system tells (/proc); where it does not, there are none.
        """
        held: dict[Path, int] = {}
        tops = tuple(f"{os.path.realpath(directory)}/" for directory in directories)
        try:
            with open("/proc/self/maps", "rb") as maps:
                for line in maps:
                    if line.endswith(_DELETED + b"\n"):
                        self._note_held(held, tops, line.split(maxsplit=5)[5].strip(), sum_of=line)
            for name in os.listdir("/proc/self/fd"):
                try:
                    target, size = (
                        os.readlink(f"/proc/self/fd/{name}"),
                        os.stat(f"/proc/self/fd/{name}").st_size,
                    )
                except OSError:
                    continue  # closed since
                self._note_held(held, tops, os.fsencode(target), size)
        except OSError:
            return []
        return sorted(held.items())

    @staticmethod
    def _note_held(
        held: dict[Path, int], tops: tuple[str, ...], target: bytes, size: int = 0, sum_of: bytes = b""
    ) -> None:
        if not target.endswith(_DELETED):
            return
        path = os.fsdecode(target.removesuffix(_DELETED))
        if path.startswith(tops):
            if sum_of:
                begin, _, end = sum_of.split(maxsplit=1)[0].partition(b"-")
                size = int(end, 16) - int(begin, 16)
            held[Path(path)] = max(held.get(Path(path), 0), size)

    def pages_in_memory(self, path: Path) -> bytearray | None:
        """A byte a page of the file: its lowest bit is 1 when the page is in memory now. None when the system
        does not say.

        A map of its own is asked, from which nothing is read. Of a file that this user neither owns nor may
        write, Linux says that every page is in memory; then it says so of a page far behind the file's end,
        too, which cannot be.
        """
        size = self.size_of(path)
        pages = -(-size // PAGE)
        answers = bytearray(pages)
        if not pages:
            return answers
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                address = _mapped(pages * PAGE + _BEYOND_END, _PROT_NONE, _MAP_PRIVATE, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _store_error(error, "mapping", path) from error
        try:
            beyond = ctypes.c_ubyte(1)
            told = (
                _libc.mincore(address + pages * PAGE + _BEYOND_END - PAGE, PAGE, ctypes.addressof(beyond))
                == 0
                and not beyond.value & 1
            )
            if not told or not _ask_pages(
                address, pages * PAGE, ctypes.addressof(ctypes.c_char.from_buffer(answers))
            ):
                return None
            return answers
        finally:
            _libc.munmap(address, pages * PAGE + _BEYOND_END)

    def spare_maps(self) -> int:
        """How many files of new queues this process may still map.

        An eighth of the maps that the system allows a process (Linux: `vm.max_map_count`) is kept: for the
        log, the index, files of queues that are there, and the stacks of threads, without which the process
        could not stop.
        """
        return _max_maps() * 7 // 8 - _mapped_files()

    def usage(self, path: Path) -> Usage:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise _store_error(error, "asking for free room", path) from error
        used = found.f_blocks - found.f_bfree
        return Usage((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: Path) -> StoreLock:
        """Take the lock of a store that nobody has. Raises StoreLockedError, also where the lock's file was
        removed under the process that has it."""
        if (
            not self.exists(path)
            and self.exists(path.with_name("abort"))
            and (pid := _holder_of_removed(path)) is not None
        ):
            raise StoreLockedError(
                f"{path} was removed, but process {pid} still has the store open: stop it first"
            )
        return StoreLock(path)


class InspectRegion(Region):
    """A private map: what is written to it stays in this process, and a file may change beneath what was not
    written.

    It lives as long as its disk, because mapping the file again would show the old bytes.
    """

    def allocate(self, offset: int, length: int) -> None:
        pass

    def populate(self, offset: int, length: int) -> None:
        pass

    def fault_singly(self) -> None:
        pass

    def demand_in_place(self) -> None:
        pass

    def sync(self, offset: int, length: int) -> None:
        pass

    def punch(self, offset: int) -> None:
        end = self.data_end()
        if end > offset:
            ctypes.memset(self.address + offset, 0, end - offset)

    def data_end(self) -> int:
        return super().data_end() if os.path.lexists(self.path) else self.size

    def close(self) -> None:
        pass


class _InspectReader(Reader):
    def __init__(self, region: InspectRegion):
        super().__init__(region.path, -1)
        self._region = region

    def read(self, offset: int, length: int) -> bytes:
        return self._region.read(offset, max(0, min(length, self._region.size - offset)))

    def read_into(self, target: memoryview, offset: int) -> int:
        data = self.read(offset, len(target))
        target[: len(data)] = data
        return len(data)

    @property
    def size(self) -> int:
        return self._region.size


class _NoLock:
    """Of a look, which takes no lock; `is_held_by_another` is whether somebody else has the store."""

    def __init__(self, is_held_by_another: bool):
        self.is_held_by_another = is_held_by_another

    def demand_in_place(self) -> None:
        pass

    def release(self) -> None:
        pass


class InspectDisk(Disk):
    """A disk on which nothing is changed: for a look into a foreign or crashed store, or one that another
    process holds.

    The engine recovers as always, but in its own memory. So what is shown is what a start would make of the
    store.
    """

    is_inspecting = True

    def __init__(self) -> None:
        self._regions: dict[Path, InspectRegion] = {}

    def make_directory(self, path: Path, *, sync: bool = True) -> None:
        pass

    def exists(self, path: Path) -> bool:
        return path in self._regions or super().exists(path)

    def create_region(self, path: Path, size: int) -> Region:
        try:
            address = _mapped(size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1)
        except OSError as error:
            raise _store_error(error, f"taking {size} bytes of memory", path) from error
        self._regions[path] = InspectRegion(path, address, size, True)
        return self._regions[path]

    def open_region(self, path: Path, writable: bool = True) -> Region:
        return self._regions.get(path) or super().open_region(path, writable=False)

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> Region:
        address = _mapped(size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE, descriptor)
        region = InspectRegion(path, _entered(path, address, size), size, True)
        self._regions[path] = region
        return region

    def open_reader(self, path: Path) -> Reader:
        region = self._regions.get(path)
        return super().open_reader(path) if region is None else _InspectReader(region)

    def write_file(self, path: Path, data: bytes) -> None:
        pass

    def set_length(self, path: Path, length: int) -> None:
        pass

    def append(self, path: Path, data: bytes, sync: bool = False) -> None:
        pass

    def replace_file(self, path: Path, data: bytes, backup: Path | None = None) -> None:
        pass

    def move(self, source: Path, target: Path) -> None:
        pass

    def link(self, source: Path, target: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        pass

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        pass

    def remove_directory(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def copy_range(self, source: Region, offset: int, length: int, target: Path) -> None:
        pass

    def lock(self, path: Path) -> _NoLock:
        self.demand_directory(path.parent)
        if not self.exists(path.parent):
            raise StoreError(f"{path.parent} is no store directory: there is nothing to inspect")
        return _NoLock(StoreLock.is_held(path))

    def __del__(self):
        for region in self._regions.values():
            Region.close(region)
