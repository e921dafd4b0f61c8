"""One file of the index: its map, what is known about the pages of the map, and its header."""

from __future__ import annotations

import time
from pathlib import Path

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.region import Region
from broker_store.engine.disk.residency import Residency
from broker_store.engine.rows import Words
from broker_store.formats import index_file
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, IndexGeometry, IndexHeader
from broker_store.kernels import context as c


def local_time_name(now_ms: int) -> str:
    """Return yyyyMMddHHmmssSSS in the host's time zone, as Apache names index files."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"


class IndexFile:
    """One file. Each kernel call that adds entries writes the header last, so the map always has the current
    one."""

    def __init__(self, disk: Disk, path: Path, geometry: IndexGeometry, region: Region | None):
        self.disk, self.path, self.geometry, self.region = disk, path, geometry, region
        self.allocated_entries = geometry.entries
        self.synced = False
        self.entered_in: Words | None = None  # the words of a lookup that hold the address of its map
        self._residency: Residency | None = None
        self._reader: Reader | None = None

    @property
    def name(self) -> str:
        return self.path.name

    def map(self) -> Region:
        if self.region is None:
            self.region = self.disk.open_region(self.path).at_least(self.geometry.file_bytes)
        return self.region

    def unmap(self) -> None:
        if self.entered_in is not None:
            self.entered_in[c.K_FILE_COUNT] = -1
            self.entered_in = None
        if self.region is not None:
            self.region.close()
            self.region = self._residency = None
        self._reader = None

    @property
    def residency(self) -> Residency:
        """What is known about the map's pages; dropped with the map."""
        if self._residency is None:
            self._residency = Residency(self.map())
        return self._residency

    @property
    def reader(self) -> Reader:
        """A reader for another thread. The file may be deleted before it is read: the last reference closes
        the reader.

        The open does not wait for the disk, since a mapped file's name is in memory.
        """
        if self._reader is None:
            self.map()
            self._reader = self.disk.open_reader(self.path)
        return self._reader

    def header(self) -> IndexHeader:
        return index_file.decode_header(self.map().read(0, HEADER.size))

    @property
    def bounded_count(self) -> int:
        """The header's count, limited to the file: after a crash it may be any number."""
        return min(max(self.header().count, FIRST_ENTRY), self.geometry.entries)

    def give_entries(self, to: int) -> None:
        """Allocate blocks for entry numbers below `to`. Raises DiskFullError."""
        to = min(to, self.geometry.entries)
        if to > self.allocated_entries:
            start = self.geometry.entry_at(self.allocated_entries)
            self.map().allocate(start, self.geometry.entry_at(to) - start)
            self.allocated_entries = to

    def entry(self, number: int) -> index_file.IndexEntry:
        return index_file.decode_entry(self.map().read(self.geometry.entry_at(number), ENTRY.size))
