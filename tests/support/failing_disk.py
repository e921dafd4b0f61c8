"""A disk whose calls may fail: `on_call(name)` is called before each and may raise (docs/durability.md G8,
G9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.region import Region


class _Region(Region):
    disk: FailingDisk

    def sync(self, offset: int, length: int) -> None:
        self.disk.on_call("sync")
        super().sync(offset, length)

    def allocate(self, offset: int, length: int) -> None:
        self.disk.on_call("allocate")
        super().allocate(offset, length)


class FailingDisk(Disk):
    """The real disk below."""

    def __init__(self, on_call: Callable[[str], None]):
        self.on_call = on_call

    def _map(self, path: Path, descriptor: int, size: int, writable: bool) -> Region:
        region = super()._map(path, descriptor, size, writable)
        region.__class__ = _Region
        region.disk = self
        return region

    def create_region(self, path: Path, size: int) -> Region:
        self.on_call("create")
        return super().create_region(path, size)

    def sync_directory(self, path: Path) -> None:
        self.on_call("sync_directory")
        super().sync_directory(path)

    def sync_file_system(self, path: Path) -> None:
        self.on_call("sync_file_system")
        super().sync_file_system(path)

    def write_file(self, path: Path, data: bytes) -> None:
        self.on_call("write_file")
        super().write_file(path, data)

    def set_length(self, path: Path, length: int) -> None:
        self.on_call("set_length")
        super().set_length(path, length)

    def append(self, path: Path, data: bytes, sync: bool = False) -> None:
        self.on_call("append")
        super().append(path, data, sync)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        self.on_call("unlink")
        super().unlink(path, missing_ok)

    def rename(self, source: Path, target: Path) -> None:
        self.on_call("rename")
        super().rename(source, target)

    def make_directory(self, path: Path, *, sync: bool = True) -> None:
        self.on_call("make_directory")
        super().make_directory(path, sync=sync)

    def remove_directory(self, path: Path) -> None:
        self.on_call("remove_directory")
        super().remove_directory(path)

    def copy_range(self, source: Region, offset: int, length: int, target: Path) -> None:
        self.on_call("copy_range")
        super().copy_range(source, offset, length, target)

    def open_region(self, path: Path, writable: bool = True) -> Region:
        self.on_call("open_region")
        return super().open_region(path, writable)

    def open_reader(self, path: Path) -> Reader:
        self.on_call("open_reader")
        return super().open_reader(path)

    def list_names(self, path: Path) -> list[str]:
        self.on_call("list_names")
        return super().list_names(path)

    def size_of(self, path: Path) -> int:
        self.on_call("size_of")
        return super().size_of(path)

    def modified_ms(self, path: Path) -> int:
        self.on_call("modified_ms")
        return super().modified_ms(path)

    def usage(self, path: Path) -> Usage:
        self.on_call("usage")
        return super().usage(path)
