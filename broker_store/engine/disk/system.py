"""What the disk seam uses of the operating system: libc by ctypes, file modes, and errors of the store.

Files are mapped through libc, not Python's `mmap`, which keeps a descriptor per map and holds the interpreter
lock during `flush` and `madvise`; ctypes releases it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from pathlib import Path

from broker_store.errors import DamagedStoreError, DiskFullError, MapLimitError, StoreError, SyncError
from broker_store.throttle import pause

PAGE = 4096
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS = 1, 2, 0x20
MS_SYNC = 4
MADV_RANDOM = 1
MADV_POPULATE_WRITE = 23
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
# bytes: while Linux answers for their pages, about 0.1 ms, no other thread gets that core
_MAX_ASKED_BYTES = 4 << 20
BEYOND_END = 4 << 20  # bytes after a file's end: further than the largest folio that holds its last page
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
DELETED = b" (deleted)"

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
for _name in ("munmap", "msync", "madvise", "mincore"):
    getattr(LIBC, _name).restype = ctypes.c_int
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
LIBC.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
LIBC.fallocate.restype = ctypes.c_int
LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_MAP_FAILED = ctypes.c_void_p(-1).value


def store_error(error: OSError, doing: str, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: no room on the disk while {doing}")
    if error.errno == errno.ENOMEM and (mapped := mapped_files()) > max_maps() * 3 // 4:
        return MapLimitError(
            f"{path}: {doing} failed: {mapped:,} files are mapped, and the system allows a process "
            f"{max_maps():,} maps;"
            f" raise it (sysctl -w vm.max_map_count={4 * max_maps()}) and start again"
        )
    return StoreError(f"{path}: {doing} failed: {error.strerror or error}")


def mapped(size: int, protection: int, flags: int, descriptor: int) -> int:
    address = LIBC.mmap(None, size, protection, flags, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def mapped_files() -> int:
    from broker_store.engine.disk.map_table import MAPS

    return len(MAPS)


@functools.cache
def max_maps() -> int:
    """Return how many maps the system allows a process; Linux's default where it does not say."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65_530


def entered(path: Path, address: int, size: int) -> int:
    """Enter the map in the table of the handler of SIGBUS (`map_table.py`); return its address."""
    # Imported with the first map: this module takes the store's lock before Numba is imported, which takes
    # seconds.
    from broker_store.engine.disk.map_table import MAPS

    MAPS.enter(path, address, size)
    return address


def unmap(address: int, size: int) -> None:
    from broker_store.engine.disk.map_table import MAPS

    MAPS.take_out(address)
    LIBC.munmap(address, size)


def ask_pages_at(address: int, length: int, answers: int) -> bool:
    """Run mincore over a mapped range, in pieces; return False when the system does not say."""
    for offset in range(0, length, _MAX_ASKED_BYTES):
        if (
            LIBC.mincore(address + offset, min(_MAX_ASKED_BYTES, length - offset), answers + offset // PAGE)
            != 0
        ):
            return False
        pause()
    return True


def require_file(path: Path) -> None:
    """Raise for a path that exists and is no regular file: to open a FIFO would wait for its other end."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, "reading its attributes", path) from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedStoreError("is no regular file", file=str(path), advice="Move it out of the store.")


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`: one call may write less than it was given."""
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def sync_written(descriptor: int, path: Path) -> None:
    """Sync a file that was written. A failure is final: SyncError. A disk that is full may say so only here:
    DiskFullError by the caller."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SyncError(f"{path}: sync failed: {error.strerror}") from error
