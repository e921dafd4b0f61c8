"""Which file a name leads to, whether other names lead to it too, and copies that share blocks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from broker_store.engine.disk.system import FILE_MODE, LIBC, store_error
from broker_store.errors import SyncError

_FICLONE = 0x40049409  # ioctl of Linux: the target shares the blocks of the source
# What file systems answer that have no such copies, or none between these two files
_NO_CLONE = {
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EPERM,
    errno.ETXTBSY,
}


class FileIdentity(NamedTuple):
    """A file by its device and number; its length in bytes, the time of its last change, its names."""

    device: int
    inode: int
    size: int
    modified_ns: int
    names: int


def identity_of(path: Path) -> FileIdentity:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise store_error(error, "reading its attributes", path) from error
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_nlink)


def clone(source: Path, target: Path) -> bool:
    """Make `target` a copy that shares the blocks of `source`; return False, and leave no file, where the
    file system cannot."""
    try:
        read = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise store_error(error, "opening", source) from error
    try:
        written = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE
        )
        try:
            fcntl.ioctl(written, _FICLONE, read)
        except OSError as error:
            os.unlink(target)
            if error.errno in _NO_CLONE:
                return False
            raise
        finally:
            os.close(written)
    except OSError as error:
        raise store_error(error, f"copying {source.name}", target) from error
    finally:
        os.close(read)
    return True


def sync_file_system(path: Path) -> None:
    """Bring all that was written to a file system to the disk. A failure is final: SyncError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if LIBC.syncfs(descriptor) != 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SyncError(f"{path}: sync of its file system failed: {error.strerror}") from error
