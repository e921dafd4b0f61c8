"""The files of the index: which there are, and how many slots and entries each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker_store.check.entries import INDEX_HEADER
from broker_store.check.files import FileLists
from broker_store.check.report import ERROR
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader

MAX_SEARCHED_BYTES = 64 << 20  # a larger file is not searched for its numbers of slots and entries


class IndexFile(NamedTuple):
    """A file of the index: its length in bytes, and what its header states."""

    path: Path
    bytes: int
    header: IndexHeader

    @property
    def is_empty(self) -> bool:
        """True if its header counts no entry."""
        return self.header.count == index_file.FIRST_ENTRY


class IndexFiles:
    """The files of the index in order, without those of a wrong length or header; `geometry` is that of all,
    None where no file shows it."""

    def __init__(self, store: CheckedStore, lists: FileLists, wanted: FileSizes, noted: FileSizes):
        """`wanted` are sizes that the caller gives, `noted` those that the last start used."""
        self._disk, self._report = store.disk, store.report
        self._wanted, self._noted = wanted, noted
        self.geometry: IndexGeometry | None = None
        self.files = self._sound(self._listed(store.root / "index", lists))
        self.bytes = sum(file.bytes for file in self.files)

    def _listed(self, directory: Path, lists: FileLists) -> list[IndexFile]:
        files = []
        for name in self._disk.list_names(directory):
            path = directory / name
            if not index_file.is_name(name):
                what = "does not belong into index/, Apache refuses to start with it"
                self._report.add(ERROR, "stray-file", str(path), None, what)
                continue
            size = lists.size_of(path)
            if size is None:
                continue
            if size < index_file.HEADER.size + index_file.SLOT.size + index_file.ENTRY.size:
                what = f"is {size} bytes long, less than any index file"
                self._report.add(ERROR, "file-length", str(path), None, what)
                continue
            with self._disk.open_reader(path) as reader:
                header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
            files.append(IndexFile(path, size, header))
        self._report.count("index_files", len(files))
        return files

    def _sound(self, files: list[IndexFile]) -> list[IndexFile]:
        """Return the files that have the length of the geometry and a header that fits it."""
        if not files:
            return []
        self.geometry = self._find_geometry(files)
        if self.geometry is None:
            if not all(file.is_empty for file in files):
                path, size, _ = files[0]
                what = f"its {size} bytes fit no number of slots and entries, give the sizes"
                self._report.add(ERROR, "index-geometry", str(path), None, what)
            # Files without an entry do not show the sizes, and there is nothing to check
            return []
        sound = []
        for file in files:
            path, size, header = file
            if size != self.geometry.file_bytes:
                what = f"is {size} bytes long, not {self.geometry.file_bytes}"
                self._report.add(ERROR, "file-length", str(path), None, what)
            elif header.count > self.geometry.entries:
                what = f"states {header.count} entries, there is room for {self.geometry.entries}"
                at = index_file.HEADER.offset["count"]
                self._report.add(ERROR, INDEX_HEADER, str(path), at, what)
            else:
                sound.append(file)
        return sound

    @property
    def reaches_to(self) -> int:
        """The log offset after the begin of the last record that the headers state; 0 without an entry."""
        return max(
            (file.header.end_offset + 1 for file in self.files if file.header.count > index_file.FIRST_ENTRY),
            default=0,
        )

    def _find_geometry(self, files: list[IndexFile]) -> IndexGeometry | None:
        if self._wanted.max_hash_slot_num and self._wanted.max_index_num:
            return IndexGeometry(self._wanted.max_hash_slot_num, self._wanted.max_index_num)
        if self._noted.max_hash_slot_num and self._noted.max_index_num:
            geometry = IndexGeometry(self._noted.max_hash_slot_num, self._noted.max_index_num)
            # The only file may have lost or gained bytes: its content then shows that the noted sizes are
            # right.
            if (
                all(file.is_empty for file in files)
                or any(file.bytes == geometry.file_bytes for file in files)
                or self._is_laid_out_as(files, geometry)
            ):
                return geometry
        # The most common length first: all files of an index are alike, and one may have lost or gained
        # bytes.
        sizes = Counter(file.bytes for file in files)
        for path, size, header in sorted(files, key=lambda file: -sizes[file.bytes]):
            if header.count > index_file.FIRST_ENTRY:
                with self._disk.open_reader(path) as reader:
                    if (found := find_geometry(reader, size, header)) is not None:
                        return found
        if any(file.header.count > index_file.FIRST_ENTRY for file in files):
            return None
        return next(_usual_geometries(sizes.most_common(1)[0][0]), None)

    def _is_laid_out_as(self, files: list[IndexFile], geometry: IndexGeometry) -> bool:
        """Return whether a file with entries has them where this geometry places them, whatever its
        length."""
        for path, size, header in files:
            if (
                index_file.FIRST_ENTRY < header.count <= geometry.entries
                and geometry.entry_at(header.count) <= size
            ):
                with self._disk.open_reader(path) as reader:
                    if _last_entry(reader, geometry, header) is not None:
                        return True
        return False

    def entries_ends(self, file: IndexFile) -> tuple[int, int]:
        """Return the log offsets that the first and the last entry of a file state."""
        geometry = self.geometry
        assert geometry is not None  # there is one where there is a sound file
        with self._disk.open_reader(file.path) as reader:
            first, last = (
                index_file.decode_entry(
                    reader.read(geometry.entry_at(number), index_file.ENTRY.size)
                ).log_offset
                for number in (index_file.FIRST_ENTRY, file.header.count - 1)
            )
        return first, last


def find_geometry(reader: Reader, size: int, header: IndexHeader) -> IndexGeometry | None:
    """Return the numbers of slots and entries of a file that holds entries, from where they lie; None when
    none fit.

    Unused slots are zeros, and zeros are an entry of the record at 0 with the hash 0. So a hash of 0 counts
    only for the usual numbers, and after all others.
    """
    for geometry in _geometries(reader, size, header):
        if (last := _last_entry(reader, geometry, header)) is not None and last.key_hash:
            return geometry
    return next(
        (
            geometry
            for geometry in _usual_geometries(size)
            if _last_entry(reader, geometry, header) is not None
        ),
        None,
    )


def _usual_geometries(size: int) -> Iterator[IndexGeometry]:
    """Yield the geometry with four entries per slot, as in Apache's defaults and in most settings, if it
    fits."""
    slots, rest = divmod(size - index_file.HEADER.size, index_file.SLOT.size + 4 * index_file.ENTRY.size)
    if not rest:
        yield IndexGeometry(slots, 4 * slots)


def _geometries(reader: Reader, size: int, header: IndexHeader) -> Iterator[IndexGeometry]:
    """Yield possible numbers of slots and entries: the usual ones, then one for each position of the last
    entry's offset."""
    yield from _usual_geometries(size)
    wanted = header.end_offset.to_bytes(8, "big", signed=True)
    content = reader.read(0, size) if size <= MAX_SEARCHED_BYTES else b""
    for at in _places(content, wanted):
        entries_at = at - index_file.ENTRY.offset["log_offset"] - index_file.ENTRY.size * (header.count - 1)
        slots, rest = divmod(entries_at - index_file.HEADER.size, index_file.SLOT.size)
        if slots > 0 and not rest and not (size - entries_at) % index_file.ENTRY.size:
            yield IndexGeometry(slots, (size - entries_at) // index_file.ENTRY.size)


def _places(content: bytes, wanted: bytes) -> Iterator[int]:
    """Yield the positions of `wanted` after the header, the last one first: a message has several entries,
    and the last is searched for. Zeros, which fill the rest of the file, are searched for from the front."""
    if not any(wanted):
        at = content.find(wanted, index_file.HEADER.size)
        while at >= 0:
            yield at
            at = content.find(wanted, at + 1)
        return
    at = content.rfind(wanted, index_file.HEADER.size)
    while at >= 0:
        yield at
        at = content.rfind(wanted, index_file.HEADER.size, at + len(wanted) - 1)


def _last_entry(reader: Reader, geometry: IndexGeometry, header: IndexHeader) -> IndexEntry | None:
    """Return the last entry; None unless first and last entry lie where this geometry places them, and the
    last one's slot names it."""
    if geometry.slots < 1 or header.count > geometry.entries:
        return None
    first = index_file.decode_entry(
        reader.read(geometry.entry_at(index_file.FIRST_ENTRY), index_file.ENTRY.size)
    )
    last = index_file.decode_entry(reader.read(geometry.entry_at(header.count - 1), index_file.ENTRY.size))
    if (first.log_offset, last.log_offset) != (header.begin_offset, header.end_offset) or last.key_hash < 0:
        return None
    slot = index_file.decode_slot(
        reader.read(geometry.slot_at(last.key_hash % geometry.slots), index_file.SLOT.size)
    )
    return last if slot == header.count - 1 else None
