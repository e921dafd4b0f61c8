"""A disk that never changes: an inspection shows what a start would do without doing it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.lock import InspectLock, StoreLock
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.system import (
    MAP_ANONYMOUS,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    entered,
    mapped,
    store_error,
)
from broker_store.errors import StoreError


class InspectRegion(Region):
    """A private map: what is written to it stays in this process. Pages that were not written show later
    changes of the file.

    It lives as long as its disk, because mapping the file again would show the old bytes.
    """

    def allocate(self, offset: int, length: int) -> None:
        pass

    def populate(self, offset: int, length: int) -> None:
        pass

    def fault_singly(self) -> None:
        pass

    def require_in_place(self) -> None:
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


class InspectReader(Reader):
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


class InspectDisk(Disk):
    """A disk on which nothing is changed: to inspect a foreign or crashed store, or one that another
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
            address = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
        except OSError as error:
            raise store_error(error, f"taking {size} bytes of memory", path) from error
        self._regions[path] = InspectRegion(path, address, size, True)
        return self._regions[path]

    def open_region(self, path: Path, writable: bool = True) -> Region:
        return self._regions.get(path) or super().open_region(path, writable=False)

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> Region:
        address = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor)
        region = InspectRegion(path, entered(path, address, size), size, True)
        self._regions[path] = region
        return region

    def open_reader(self, path: Path) -> Reader:
        region = self._regions.get(path)
        return super().open_reader(path) if region is None else InspectReader(region)

    def own(self, path: Path) -> None:
        pass

    def clone(self, source: Path, target: Path) -> bool:
        return False

    def sync_file_system(self, path: Path) -> None:
        pass

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

    def lock(self, path: Path) -> InspectLock:
        self.require_directory(path.parent)
        if not self.exists(path.parent):
            raise StoreError(f"{path.parent} is no store directory: there is nothing to inspect")
        return InspectLock(path, StoreLock.is_held(path))

    def __del__(self):
        for region in self._regions.values():
            Region.close(region)
