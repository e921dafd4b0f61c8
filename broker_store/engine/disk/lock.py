"""The lock of a store: one process writes it (docs/durability.md, G19)."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from broker_store.engine.disk.system import FILE_MODE, require_file, store_error
from broker_store.errors import StoreLockedError

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of Linux: type, whence, start, length, pid


class StoreLock:
    """The record lock on byte 0 of `lock`, as Java's FileChannel.tryLock(0, 1) takes it.

    Such a lock is lost when *any* descriptor of that file is closed in the process: it is opened once, here,
    and a registry refuses a second store on the same directory in this process before the file is touched.
    """

    is_held_by_another = False  # while this process has it; an inspection takes none (`InspectLock`)
    _held: set[str] = set()

    def __init__(self, path: Path):
        self.path = path
        self._key = os.path.realpath(path)
        if self._key in StoreLock._held:
            raise StoreLockedError(f"{path}: this process has opened this store already")
        self._descriptor = self._take()
        StoreLock._held.add(self._key)

    def _take(self) -> int:
        """Return a descriptor of the file with the lock."""
        require_file(self.path)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise store_error(error, "opening it for the lock", self.path) from error
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
            raise store_error(error, "writing the lock", self.path) from error
        return descriptor

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Return whether this process or another has the lock; it is queried, not taken."""
        if os.path.realpath(path) in cls._held:
            return True
        require_file(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False  # no process made it
        except OSError as error:
            raise store_error(error, "opening it to ask for the lock", path) from error
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            return _FLOCK.unpack(found)[0] != fcntl.F_UNLCK
        finally:
            os.close(descriptor)

    def require_in_place(self) -> None:
        """Check that the file still has its name, and create it again where it was removed. Raises
        StoreLockedError when another process took the name meanwhile.

        After `release` nothing is done: the file may be another process's by then.
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
            raise store_error(error, "reading the lock", self.path) from error
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


class InspectLock(StoreLock):
    """The lock of an inspection, which takes none. `is_held_by_another`: another process has the store."""

    def __init__(self, path: Path, is_held_by_another: bool):
        self.path, self.is_held_by_another = path, is_held_by_another
        self._descriptor = -1


def holder_of_removed(path: Path) -> int | None:
    """Return the id of the process that still has a removed file open which had this name; None without one,
    or where this user may not see it."""
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
            continue  # it ended, or belongs to another user
    return None
