"""The disk: names and bytes of one file system.

    engine ──► Disk ──┬──► Region        a mapped file: kernels write by address, sync by pages
                      ├──► Reader        reads by position, from any thread
                      ├──► Writer        writes by position: the live page
                      └──► StoreLock     one process writes a store

Every access of the engine to a disk goes through a `Disk` and the objects that it makes. So tests can pass a
disk that fails the n-th call or keeps only what was synced (docs/durability.md section 3).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.file_access import Reader, Writer
from broker_store.engine.disk.file_identity import FileIdentity, clone, identity_of, sync_file_system
from broker_store.engine.disk.lock import StoreLock, holder_of_removed
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.system import (
    BEYOND_END,
    DELETED,
    DIRECTORY_MODE,
    FILE_MODE,
    LIBC,
    MAP_PRIVATE,
    MAP_SHARED,
    PAGE,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    ask_pages_at,
    entered,
    mapped,
    mapped_files,
    max_maps,
    require_file,
    store_error,
    sync_written,
    write_all,
)
from broker_store.errors import DamagedStoreError, OtherDiskError, StoreError, StoreLockedError, SyncError


class Usage(NamedTuple):
    """Bytes of the file system that holds a path, as far as any user may use it: `total` does not count what
    is reserved for root or by a quota.

    The ratio is that of df and of Apache's UtilAll.getDiskPartitionSpaceUsedPercent: used / (used +
    available).
    """

    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        return 1 - self.free / self.total if self.total else 0.0


class Disk:
    """Names and bytes of one file system. Every method may raise StoreError or DiskFullError."""

    is_inspecting = False  # True: nothing on the disk is changed
    kept_maps = 0  # up to so many mapped files a start keeps the maps that it made (`MappedFile.mapped`)

    def make_directory(self, path: Path, *, sync: bool = True) -> None:
        """Make a directory with its parents; each new name is synced into the directory above, unless the
        caller does that later."""
        if os.path.isdir(path):
            return
        if path.parent != path:
            self.make_directory(path.parent, sync=sync)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            self.require_directory(path)
            return
        except OSError as error:
            raise store_error(error, "making the directory", path) from error
        if sync:
            self.sync_directory(path.parent)

    def require_directory(self, path: Path) -> None:
        """Check that a path is a directory, a link to one, or absent. Raises DamagedStoreError for anything
        else."""
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise store_error(error, "reading its attributes", path) from error
            if os.path.lexists(path):
                raise DamagedStoreError(
                    "is a link that leads nowhere",
                    file=str(path),
                    advice="Mount what it leads to, or move it out of the store.",
                ) from None
            return
        if not is_directory:
            raise DamagedStoreError("is no directory", file=str(path), advice="Move it out of the store.")

    def require_file(self, path: Path) -> None:
        """Check that a path is a regular file or absent: to open a FIFO would wait for its other end. Raises
        DamagedStoreError, StoreError."""
        if os.path.lexists(path):
            self.size_of(path)

    def list_names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; none when there is no such directory. Another kind of file
        in its place is refused."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            self.require_directory(path)
            return []
        except NotADirectoryError:
            raise DamagedStoreError(
                "is no directory", file=str(path), advice="Move it out of the store."
            ) from None
        except OSError as error:
            raise store_error(error, "listing", path) from error

    def is_directory(self, path: Path) -> bool:
        """Return whether a path is a directory and no link to one. Raises StoreError where that cannot be
        read."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False  # ValueError: a name with a NUL, which a damaged record may state for its topic
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return False
            raise store_error(error, "reading its attributes", path) from error

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def size_of(self, path: Path) -> int:
        """Return the length of a regular file in bytes. A symbolic link or anything else in its place is
        refused."""
        try:
            found = os.lstat(path)
        except OSError as error:
            raise store_error(error, "reading its attributes", path) from error
        if not stat.S_ISREG(found.st_mode):
            raise DamagedStoreError("is no regular file", file=str(path), advice="Move it out of the store.")
        return found.st_size

    def modified_ms(self, path: Path) -> int:
        try:
            return os.lstat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise store_error(error, "reading its attributes", path) from error

    def allocated_bytes(self, path: Path) -> int:
        """Return the disk blocks of the file, in bytes."""
        try:
            return os.lstat(path).st_blocks * 512
        except OSError as error:
            raise store_error(error, "reading its attributes", path) from error

    def identity_of(self, path: Path) -> FileIdentity:
        """Return which file a name leads to, and how many names it has."""
        return identity_of(path)

    def own(self, path: Path) -> None:
        """Give a file bytes of its own where another name shares them, as that of a backup: what is written
        to it must not change there. A name that is mapped is to be unmapped before.

        The copy is made beside the directory of the file, since a start refuses a foreign name in it.
        """
        found = self.identity_of(path)
        if found.names < 2:
            return
        fresh = path.parent.parent / f"{path.name}.tmp"
        self.unlink(fresh, missing_ok=True)
        region = self.open_region(path, writable=False)
        try:
            self.copy_range(region, 0, region.data_end(), fresh)
        finally:
            region.close()
        self.set_length(fresh, found.size)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def clone(self, source: Path, target: Path) -> bool:
        """Make a file that shares the blocks of another until one of them is written; return False where the
        file system cannot. The name is not synced."""
        return clone(source, target)

    def sync_file_system(self, path: Path) -> None:
        """Bring all that was written to the file system of `path` to the disk. Raises SyncError."""
        sync_file_system(path)

    def create_region(self, path: Path, size: int) -> Region:
        """Make a new file of full length, no blocks yet, and map it. The name is not synced."""
        try:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
            )
            try:
                os.ftruncate(descriptor, size)
                return self._map(path, descriptor, size, True)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"creating a file of {size} bytes", path) from error

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
            raise store_error(error, "mapping", path) from error

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> Region:
        protection = PROT_READ | (PROT_WRITE if writable else 0)
        found = os.fstat(descriptor)
        address = entered(path, mapped(size, protection, MAP_SHARED, descriptor), size)
        return Region(path, address, size, writable, (found.st_dev, found.st_ino))

    def open_reader(self, path: Path) -> Reader:
        try:
            return Reader(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError as error:
            raise store_error(error, "opening", path) from error

    def create_writer(self, path: Path) -> Writer:
        """Make a new file of length 0, to be written by position. The name is not synced."""
        try:
            return Writer(
                path,
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE),
            )
        except OSError as error:
            raise store_error(error, "creating it", path) from error

    def read_file(self, path: Path, limit: int = 64 << 20) -> bytes | None:
        """Return the whole file, None when there is none; one longer than `limit` is refused before it is
        read."""
        if not self.exists(path):
            return None
        size = self.size_of(path)
        if size > limit:
            raise DamagedStoreError(f"is {size} bytes, at most {limit} are read", file=str(path))
        with self.open_reader(path) as reader:
            return reader.read(0, size)

    def write_file(self, path: Path, data: bytes) -> None:
        """Write and sync a file; its name is synced by `sync_directory`."""
        require_file(path)
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
            )
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"writing {len(data)} bytes", path) from error

    def set_length(self, path: Path, length: int) -> None:
        """Cut a file, or extend it with zeros, and sync it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.ftruncate(descriptor, length)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"making it {length} bytes long", path) from error

    def append(self, path: Path, data: bytes, sync: bool = False) -> None:
        """Append to a file, which is created when it is absent. Without `sync` a power cut may take the
        bytes."""
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
            )
            try:
                write_all(descriptor, data)
                if sync:
                    sync_written(descriptor, path)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"adding {len(data)} bytes", path) from error

    def replace_file(self, path: Path, data: bytes, backup: Path | None = None) -> None:
        """Replace a file atomically: a reader finds the old bytes or the new ones. The old file becomes
        `backup` if that is given."""
        fresh = path.with_name(path.name + ".tmp")
        self.write_file(fresh, data)
        if backup is not None and self.exists(path):
            # A link first, so that `path` is never absent; then the old name is replaced.
            self.unlink(backup, missing_ok=True)
            self.link(path, backup)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. The name is not synced."""
        try:
            os.link(source, target)
        except OSError as error:
            raise store_error(error, f"keeping {source.name}", target) from error

    def rename(self, source: Path, target: Path) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise OtherDiskError(f"{source}: {target} is on another file system") from error
            raise store_error(error, f"renaming to {target.name}", source) from error

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
                raise store_error(error, "removing", path) from error
        except OSError as error:
            raise store_error(error, "removing", path) from error

    def remove_directory(self, path: Path) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            raise store_error(error, "removing the directory", path) from error

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
                target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
            )
            try:
                for at in range(offset, offset + length, 1 << 20):
                    piece = source.read(at, min(1 << 20, offset + length - at))
                    os.pwrite(descriptor, piece, at - offset)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, f"copying {length} bytes", target) from error

    def held_after_deletion(self, *directories: Path) -> list[tuple[Path, int]]:
        """Return (path, bytes) of files below `directories` that were deleted while this process still maps
        them or has them open.

        Linux shows them in /proc; a system that does not gives none.
        """
        held: dict[Path, int] = {}
        tops = tuple(f"{os.path.realpath(directory)}/" for directory in directories)
        try:
            with open("/proc/self/maps", "rb") as maps:
                for line in maps:
                    if line.endswith(DELETED + b"\n"):
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
        if not target.endswith(DELETED):
            return
        path = os.fsdecode(target.removesuffix(DELETED))
        if path.startswith(tops):
            if sum_of:
                begin, _, end = sum_of.split(maxsplit=1)[0].partition(b"-")
                size = int(end, 16) - int(begin, 16)
            held[Path(path)] = max(held.get(Path(path), 0), size)

    def pages_in_memory(self, path: Path) -> bytearray | None:
        """Return one byte for each page of the file: its lowest bit is 1 when the page is in memory now. None
        when the system does not say.

        The file is mapped separately for the question, and no byte of it is read. For a file that this user
        neither owns nor may write, Linux reports every page as in memory. It then reports so of a page far
        after the file's end too, which cannot be: that is how the case is detected.
        """
        size = self.size_of(path)
        pages = -(-size // PAGE)
        answers = bytearray(pages)
        if not pages:
            return answers
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                address = mapped(pages * PAGE + BEYOND_END, PROT_NONE, MAP_PRIVATE, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_error(error, "mapping", path) from error
        try:
            beyond = ctypes.c_ubyte(1)
            last = address + pages * PAGE + BEYOND_END - PAGE
            given = LIBC.mincore(last, PAGE, ctypes.addressof(beyond)) == 0 and not beyond.value & 1
            if not given or not ask_pages_at(
                address, pages * PAGE, ctypes.addressof(ctypes.c_char.from_buffer(answers))
            ):
                return None
            return answers
        finally:
            LIBC.munmap(address, pages * PAGE + BEYOND_END)

    def mapped_files(self) -> int:
        """Return how many files this process has mapped."""
        return mapped_files()

    def spare_maps(self) -> int:
        """Return how many files of new queues this process may still map.

        An eighth of the maps that the system allows (Linux: `vm.max_map_count`) is reserved for the log, the
        index, files of existing queues, and thread stacks, without which the process could not stop.
        """
        return max_maps() * 7 // 8 - mapped_files()

    def usage(self, path: Path) -> Usage:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise store_error(error, "asking for free room", path) from error
        used = found.f_blocks - found.f_bfree
        return Usage((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: Path) -> StoreLock:
        """Take the lock of a store. Raises StoreLockedError when another process has it, also where the
        lock's file was removed under that process."""
        if (
            not self.exists(path)
            and self.exists(path.with_name("abort"))
            and (pid := holder_of_removed(path)) is not None
        ):
            raise StoreLockedError(
                f"{path} was removed, but process {pid} still has the store open: stop it first"
            )
        return StoreLock(path)
