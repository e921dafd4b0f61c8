"""The part of the check that reads the index files, once from front to back, beside the walk over the log.

Entries stand in the order of the log, so the entries that point into a slice are the next ones: `check_rows`
takes them and compares them with the keys of the slice's records. On the way each entry must name the one
before it in its slot, which is computed anew, and in the end each slot its newest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker_store.check import rules
from broker_store.check.report import ERROR, WARNING
from broker_store.engine.disk import Reader
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.kernels import context as c

ENTRIES_AT_ONCE = 1 << 15  # so few that they stay near the processor until they are compared
SLOTS_AT_ONCE = 1 << 18
ENTRY = np.dtype([("key_hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT = np.dtype(">i4")
_CHUNK_WORDS = [
    compare.E_ENTRIES,
    compare.E_END,
    compare.E_AT,
    compare.E_FIRST_NUMBER,
    compare.E_BEGIN_MS,
    compare.E_LATE_COUNT,
]


@dataclass(slots=True)
class _Chunk:
    """Entries of one file, one behind another."""

    file: int
    first: int  # number of the first
    entries: np.ndarray
    at: int = 0  # those before are taken


class IndexCheck:
    """The index files, read once from front to back beside the log."""

    def __init__(self, check):
        """`check` is the walk this is a part of: its disk, root, report and what it knows of the log."""
        self.files: list[tuple[Path, int, IndexHeader]] = []
        self.geometry: IndexGeometry | None = None
        self._check = check
        self._disk = self._check.disk
        self._file = self._entry = 0  # the cursor: file number, next entry number
        self._chunks: deque[_Chunk] = deque()  # read, and not all of them taken
        self._words, self._late = (
            np.zeros(compare.E_WORDS, dtype=np.int64),
            np.empty(ENTRIES_AT_ONCE, dtype=np.int64),
        )
        self._words[compare.E_LATE] = self._late.ctypes.data
        self._first_offset: int | None = None
        # Log offsets of entries that point behind the log's end, when it was read
        self.after_log = np.empty(0, dtype=np.int64)
        self._last_offset = -1
        self._unindexed = 0
        self._unindexed_from: int | None = None
        # Offsets and places of entries that point behind all files of the log
        self._beyond_log: list[tuple[np.ndarray, np.ndarray]] = []
        files = check.log_files
        self._log_limit = files[-1].base + files[-1].size if files else 0
        self._read_to = 0  # log offset of the last entry that was read
        self._load()
        self.bytes = sum(size for _, size, _ in self.files)

    def _load(self) -> None:
        report, directory = self._check.report, self._check.root / "index"
        for name in self._check.disk.list_names(directory):
            path = directory / name
            if not index_file.is_name(name):
                report.add(
                    ERROR,
                    "stray-file",
                    str(path),
                    None,
                    "does not belong into index/, Apache refuses to start with it",
                )
                continue
            size = self._check.size_of(path)
            if size is None:
                continue
            if size < index_file.HEADER.size + index_file.SLOT.size + index_file.ENTRY.size:
                report.add(
                    ERROR, "file-length", str(path), None, f"is {size} bytes long, less than any index file"
                )
                continue
            with self._check.disk.open_reader(path) as reader:
                header = index_file.decode_header(reader.read(0, index_file.HEADER.size))
            self.files.append((path, size, header))
        report.count("index_files", len(self.files))
        if not self.files:
            return
        self.geometry = self._find_geometry()
        if self.geometry is None and all(
            header.count == index_file.FIRST_ENTRY for _, _, header in self.files
        ):
            # Nothing was ever put in, so there is nothing to see the sizes from, and nothing to check
            self.files = []
            return
        if self.geometry is None:
            path, size, _ = self.files[0]
            report.add(
                ERROR,
                "index-geometry",
                str(path),
                None,
                f"its {size} bytes fit no number of slots and entries, give the sizes",
            )
            self.files = []
            return
        for path, size, header in list(self.files):
            if size != self.geometry.file_bytes:
                report.add(
                    ERROR,
                    "file-length",
                    str(path),
                    None,
                    f"is {size} bytes long, not {self.geometry.file_bytes}",
                )
                self.files.remove((path, size, header))
            elif header.count > self.geometry.entries:
                what = f"states {header.count} entries, there is room for {self.geometry.entries}"
                report.add(ERROR, "index-header", str(path), index_file.HEADER.offset["count"], what)
                self.files.remove((path, size, header))

    @property
    def reaches_to(self) -> int:
        """A log offset in the last record that the headers state; 0 without an entry."""
        return max(
            (header.end_offset + 1 for _, _, header in self.files if header.count > index_file.FIRST_ENTRY),
            default=0,
        )

    def _find_geometry(self) -> IndexGeometry | None:
        wanted = self._check.wanted
        if getattr(wanted, "max_hash_slot_num", None) and getattr(wanted, "max_index_num", None):
            return IndexGeometry(wanted.max_hash_slot_num, wanted.max_index_num)
        noted = self._check.noted
        if noted.max_hash_slot_num and noted.max_index_num:
            geometry = IndexGeometry(noted.max_hash_slot_num, noted.max_index_num)
            is_empty = all(header.count == index_file.FIRST_ENTRY for _, _, header in self.files)
            # The only file may have lost or got bytes: what lies in it says then that the noted sizes are its
            # own.
            if (
                is_empty
                or any(size == geometry.file_bytes for _, size, _ in self.files)
                or self._is_laid_out_as(geometry)
            ):
                return geometry
        # The most common length first: all files of an index are alike, and one may have lost or got bytes.
        sizes = Counter(size for _, size, _ in self.files)
        for path, size, header in sorted(self.files, key=lambda file: -sizes[file[1]]):
            if header.count > index_file.FIRST_ENTRY:
                with self._check.disk.open_reader(path) as reader:
                    if (geometry := find_geometry(reader, size, header)) is not None:
                        return geometry
        if any(header.count > index_file.FIRST_ENTRY for _, _, header in self.files):
            return None
        return next(_usual_geometries(sizes.most_common(1)[0][0]), None)

    def _is_laid_out_as(self, geometry: IndexGeometry) -> bool:
        """Whether the entries of a file that holds some lie where this geometry has them, whatever its
        length."""
        for path, size, header in self.files:
            if (
                index_file.FIRST_ENTRY < header.count <= geometry.entries
                and geometry.entry_at(header.count) <= size
            ):
                with self._check.disk.open_reader(path) as reader:
                    if _fits(reader, geometry, header):
                        return True
        return False

    def check_rows(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """The keys of a slice's records against the entries that point into the slice."""
        if not self.files:
            self._check.report.count("keys_without_index", len(keys))
            return
        end = int(rows[-1, k.ROW_LOG_OFFSET]) + int(rows[-1, k.ROW_SIZE])
        if self._agree(rows, keys, end):
            return
        offsets, hashes, seconds, begins, places = self._take(end)
        counts = rows[:, k.ROW_KEY_COUNT]
        key_offsets = np.repeat(rows[:, k.ROW_LOG_OFFSET], counts)
        is_tag = keys >= k.TAG_KEY
        wanted_hashes = keys & (k.TAG_KEY - 1)
        self._check_times(rows, offsets, hashes, seconds, begins, places)
        if len(offsets) and self._first_offset is None:
            self._first_offset = int(offsets[0])
            if self._unindexed:  # of slices before the first entry
                self._check.report.count("keys_before_index", self._unindexed)
                self._unindexed, self._unindexed_from = 0, None
        if len(offsets) and self._unindexed:
            self._tell_unindexed("index-missing")
        if len(offsets):
            self._last_offset = max(self._last_offset, int(offsets.max()))
        if _same(offsets, hashes, key_offsets, wanted_hashes):
            return
        plain = ~is_tag
        if _same(offsets, hashes, key_offsets[plain], wanted_hashes[plain]):
            return
        self._compare(offsets, hashes, places, key_offsets, wanted_hashes, is_tag)

    def _agree(self, rows: np.ndarray, keys: np.ndarray, end: int) -> bool:
        """Whether the next entries are those of the rows' keys, and no more below `end`, seen by compiled
        code; they are taken then.

        The ends of a file are left to the other way, for its header.
        """
        if self._unindexed:
            return False
        words = self._words
        words[[compare.E_ROWS, compare.E_COUNT, compare.E_ROW, compare.E_KEY, compare.E_KEYS]] = (
            rows.ctypes.data,
            len(rows),
            0,
            0,
            keys.ctypes.data,
        )
        last = None
        for number, chunk in enumerate(self._each_chunk()):
            header = self.files[chunk.file][2]
            words[_CHUNK_WORDS] = (
                chunk.entries.ctypes.data,
                len(chunk.entries),
                chunk.at,
                chunk.first,
                header.begin_timestamp,
                0,
            )
            differs = compare.compare_entries(words.ctypes.data) == c.DIFFERS
            at = int(words[compare.E_AT])
            if differs or words[compare.E_LATE_COUNT]:
                return False
            if at > chunk.at:
                if chunk.first + chunk.at == index_file.FIRST_ENTRY or chunk.first + at == header.count:
                    return False
                last = chunk.entries[at - 1]
            if at < len(chunk.entries):
                if last is None or chunk.entries[at]["log_offset"] < end:
                    return False
                self._last_offset = max(self._last_offset, int(last["log_offset"]))
                chunk.at = at
                for _ in range(number):
                    self._chunks.popleft()
                return True
        return False  # behind the last file

    def _compare(self, offsets, hashes, places, key_offsets, wanted_hashes, is_tag) -> None:
        """Which entries are too many and which are missing; tags may be missing, and entries may stand
        twice."""
        found = _pairs(offsets, hashes)
        wanted = _pairs(key_offsets, wanted_hashes)
        for place in np.flatnonzero((offsets >= self._check.log_start) & ~np.isin(found, wanted)):
            offset = int(offsets[place])
            if any(low <= offset < high for low, high in self._check.damaged):
                continue
            path, at = self._place(int(places[place]))
            what = (
                f"the record at {offset} has no key with the hash {int(hashes[place])}, or there is no record"
            )
            self._check.report.add(ERROR, "index-entry", path, at, what)
        missing = ~np.isin(wanted, found) & ~is_tag
        late = missing & (key_offsets >= self._last_offset)
        if late.any():  # perhaps the rest of the index comes with a later slice
            self._unindexed += int(late.sum())
            if self._unindexed_from is None:
                self._unindexed_from = int(key_offsets[late][0])
        first = self._first_offset
        early = missing & ~late & (key_offsets <= (first if first is not None else 1 << 62))
        inner = missing & ~late & ~early
        if early.any():
            self._check.report.count("keys_before_index", int(early.sum()))
        path = str(self.files[max(0, min(self._file, len(self.files) - 1))][0])
        for place in np.flatnonzero(inner):
            what = (
                f"the key with the hash {int(wanted_hashes[place])} of the record at "
                f"{int(key_offsets[place])} is in no index file"
            )
            self._check.report.add(self._check.behind, "index-missing", path, None, what)

    def _check_times(self, rows, offsets, hashes, seconds, begins, places) -> None:
        """An entry states the whole seconds between its file's begin and its record."""
        if not len(offsets):
            return
        row_offsets = rows[:, k.ROW_LOG_OFFSET]
        at = np.minimum(np.searchsorted(row_offsets, offsets), len(row_offsets) - 1)
        known = row_offsets[at] == offsets
        expected = rules.entry_seconds(rows[at, k.ROW_STORE_MS], begins)
        numbers = places & ((1 << 32) - 1)
        first = numbers == index_file.FIRST_ENTRY  # it was written before its file had a begin of its own
        self._check_stamps(numbers, places, known, rows[at, k.ROW_STORE_MS])
        for place in np.flatnonzero(known & ~first & (seconds != expected)):
            path, where = self._place(int(places[place]))
            what = (
                f"the entry of the record at {int(offsets[place])} has time {int(seconds[place])} s, "
                f"expected {int(expected[place])} s"
            )
            self._check.report.add(ERROR, "index-time", path, where, what)

    def _check_stamps(self, numbers, places, known, store_ms) -> None:
        """A file begins and ends at the store time of its first and last entry's record."""
        for place in np.flatnonzero(known & (numbers == index_file.FIRST_ENTRY)):
            self._check_stamp("begin_timestamp", int(places[place]) >> 32, int(store_ms[place]))
        counts = np.array([header.count for _, _, header in self.files], dtype=np.int64)
        for place in np.flatnonzero(known & (numbers == counts[places >> 32] - 1)):
            self._check_stamp("end_timestamp", int(places[place]) >> 32, int(store_ms[place]))

    def _check_stamp(self, name: str, file: int, expected: int) -> None:
        path, _, header = self.files[file]
        if getattr(header, name) != expected:
            what = rules.wrong_stamp(name, getattr(header, name), expected)
            severity = self._check.behind if file == len(self.files) - 1 else ERROR
            self._check.report.add(severity, "index-header", str(path), index_file.HEADER.offset[name], what)

    def _place(self, place: int) -> tuple[str, int]:
        """(path, offset in the file) of an entry: its file's number and its own, packed."""
        file, number = place >> 32, place & ((1 << 32) - 1)
        return str(self.files[file][0]), self.geometry.entry_at(number)

    def _take(self, end: int) -> tuple[np.ndarray, ...]:
        """Offsets, hashes, seconds, begin times and places of all entries below log offset `end` that were
        not yet taken.

        Entries that point behind all files of the log keep no others back.
        """
        parts = []
        for chunk in self._each_chunk():
            left = chunk.entries[chunk.at :]
            has_place = left["log_offset"] < self._log_limit
            beyond = np.flatnonzero((left["log_offset"] >= end) & has_place)
            cut = int(beyond[0]) if len(beyond) else len(left)
            taken, first = left[:cut], chunk.first + chunk.at
            columns = [taken[name].astype(np.int64) for name in ("log_offset", "key_hash", "seconds")]
            columns += [
                np.full(cut, self.files[chunk.file][2].begin_timestamp, dtype=np.int64),
                chunk.file << 32 | np.arange(first, first + cut, dtype=np.int64),
            ]
            kept = has_place[:cut]
            parts.append(tuple(column[kept] for column in columns))
            if not kept.all():
                self._beyond_log.append((columns[0][~kept], columns[4][~kept]))
            chunk.at += cut
            if len(beyond):
                break
        while self._chunks and self._chunks[0].at == len(self._chunks[0].entries):
            self._chunks.popleft()
        if not parts:
            return tuple(np.empty(0, dtype=np.int64) for _ in range(5))
        return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _each_chunk(self) -> Iterator[_Chunk]:
        """What was read and not taken yet, then what follows; it is kept until it is taken."""
        yield from tuple(self._chunks)
        while (chunk := self._read_chunk()) is not None:
            self._chunks.append(chunk)
            yield chunk

    def _read_chunk(self) -> _Chunk | None:
        """The next entries in order, checked for their chains; None behind the last file."""
        while self._file < len(self.files):
            path, _, header = self.files[self._file]
            if self._entry == 0:
                self._entry = index_file.FIRST_ENTRY
                self._heads = np.zeros(self.geometry.slots, dtype=np.int32)
            if self._entry >= header.count:
                self._check_slots(path, header)
                self._file, self._entry = self._file + 1, 0
                continue
            count = min(ENTRIES_AT_ONCE, header.count - self._entry)
            with self._disk.open_reader(path) as reader:
                raw = reader.read(self.geometry.entry_at(self._entry), count * ENTRY.itemsize)
            entries = np.frombuffer(raw, dtype=ENTRY)
            self._check.report.count("entries", len(entries))
            self._check.progress(None, "index")
            self._check_chains(path, entries)
            chunk = _Chunk(self._file, self._entry, entries)
            self._entry += count
            return chunk
        return None

    def _check_chains(self, path: Path, entries: np.ndarray) -> None:
        """Each entry names the one before it in its slot, has a hash that is none below zero, and stands in
        the order of the log."""
        flaws = compare.flaws_of(entries.ctypes.data, len(entries))
        for place in np.flatnonzero(entries["key_hash"] < 0) if flaws & compare.HAS_NEGATIVE else ():
            at = self.geometry.entry_at(self._entry + int(place))
            self._check.report.add(
                ERROR, "index-entry", str(path), at, f"the hash {int(entries['key_hash'][place])} is negative"
            )
        wrong = np.empty((len(entries), 2), dtype=np.int64)
        count = compare.wrong_links(
            entries.ctypes.data,
            self._entry,
            len(entries),
            self.geometry.slots,
            self._heads.ctypes.data,
            wrong.ctypes.data,
            len(wrong),
        )
        for number, expected in wrong[:count].tolist():
            previous = int(entries["previous"][number - self._entry])
            what = f"entry {number} names {previous} as the one before it in its slot, that is {expected}"
            self._check.report.add(
                self._chain_severity(), "index-chain", str(path), self.geometry.entry_at(number), what
            )
        if flaws & compare.STEPS_BACK or entries["log_offset"][0] < self._read_to:
            self._check_order(path, entries["log_offset"].astype(np.int64))
        self._read_to = int(entries["log_offset"][-1])

    def _check_slots(self, path: Path, header: IndexHeader) -> None:
        """Each slot names the newest of its entries, and the header counts the slots in use."""
        severity = self._chain_severity()
        found = np.empty(min(SLOTS_AT_ONCE, self.geometry.slots), dtype=SLOT)
        room = memoryview(found.view(np.uint8))
        with self._disk.open_reader(path) as reader:
            for first in range(0, self.geometry.slots, SLOTS_AT_ONCE):
                heads = self._heads[first : first + SLOTS_AT_ONCE]
                read = (
                    reader.read_into(room[: len(heads) * SLOT.itemsize], self.geometry.slot_at(first))
                    // SLOT.itemsize
                )
                if compare.wrong_slots(found.ctypes.data, heads.ctypes.data, read):
                    self._tell_slots(path, header, first, found[:read], heads[:read], severity)
        used = int(np.count_nonzero(self._heads))
        if used != header.slots_used:
            at = index_file.HEADER.offset["slots_used"]
            self._check.report.add(
                severity,
                "index-header",
                str(path),
                at,
                f"states {header.slots_used} slots in use, there are {used}",
            )
        if header.count > index_file.FIRST_ENTRY and self._entries_ends(path, header) != (
            header.begin_offset,
            header.end_offset,
        ):
            at = index_file.HEADER.offset["begin_offset"]
            self._check.report.add(severity, "index-header", str(path), at, rules.WRONG_ENDS)

    def _tell_slots(
        self, path: Path, header: IndexHeader, first: int, found: np.ndarray, heads: np.ndarray, severity: str
    ) -> None:
        wrong = found != heads
        if self._check.limit is not None and self._file == len(self.files) - 1:
            wrong &= found < header.count  # a running broker goes on adding entries; those are not looked at
        for place in np.flatnonzero(wrong):
            slot = first + int(place)
            what = f"slot {slot} names entry {int(found[place])}, its newest is {int(heads[place])}"
            self._check.report.add(severity, "index-slot", str(path), self.geometry.slot_at(slot), what)

    def _chain_severity(self) -> str:
        """A start after an unclean stop links the last file anew."""
        return self._check.behind if self._file == len(self.files) - 1 else ERROR

    def _entries_ends(self, path: Path, header: IndexHeader) -> tuple[int, int]:
        with self._disk.open_reader(path) as reader:
            first = index_file.decode_entry(
                reader.read(self.geometry.entry_at(index_file.FIRST_ENTRY), index_file.ENTRY.size)
            )
            last = index_file.decode_entry(
                reader.read(self.geometry.entry_at(header.count - 1), index_file.ENTRY.size)
            )
        return first.log_offset, last.log_offset

    def _check_order(self, path: Path, offsets: np.ndarray) -> None:
        """Entries stand in the order of the log, and behind those of the files before."""
        behind = np.concatenate(([self._read_to], offsets[:-1]))
        for place in np.flatnonzero(offsets < behind):
            at = self.geometry.entry_at(self._entry + int(place))
            self._check.report.add(
                ERROR,
                "index-entry",
                str(path),
                at,
                rules.points_back(int(offsets[place]), int(behind[place])),
            )

    def finish(self) -> None:
        """What is left when the log has ended: entries that point behind it, keys that no file holds."""
        report = self._check.report
        offsets, _, _, _, places = self._take(1 << 62)
        offsets, places = (
            np.concatenate(columns) for columns in zip((offsets, places), *self._beyond_log, strict=True)
        )
        outside = np.ones(len(offsets), dtype=bool)
        for low, high in self._check.damaged:
            outside &= (offsets < low) | (offsets >= high)
        if self._check.limit is not None:
            outside &= offsets < self._check.limit
        is_after = offsets >= self._check.log_end  # also in a damaged tail, whose entries that was told of
        if self._check.limit is not None:
            is_after &= offsets < self._check.limit
        self.after_log = np.unique(offsets[is_after])
        if outside.any():
            path, at = self._place(int(places[outside][0]))
            report.add(
                WARNING,
                "index-extra",
                path,
                at,
                f"{int(outside.sum())} entries from here on point behind the end of the log",
            )
        if self._unindexed:
            self._tell_unindexed("index-behind")
        if report.counts.get("keys_without_index"):
            what = rules.keys_without_index(report.counts["keys_without_index"])
            report.add(WARNING, rules.NO_INDEX, str(self._check.root / "index"), None, what)
        early = report.counts.get("keys_before_index")
        if early:
            report.add(
                self._check.behind,
                "index-starts-late",
                str(self.files[0][0]),
                None,
                f"{early} keys of older records are in no index file",
            )

    def _tell_unindexed(self, kind: str) -> None:
        """Keys that no entry was found for, told when it is known whether more entries follow."""
        path = str(self.files[min(self._file, len(self.files) - 1)][0])
        what = rules.keys_not_in_index(self._unindexed, self._unindexed_from)
        self._check.report.add(self._check.behind, kind, path, None, what)
        self._unindexed, self._unindexed_from = 0, None


def _same(offsets, hashes, wanted_offsets, wanted_hashes) -> bool:
    return len(offsets) == len(wanted_offsets) and bool(
        (offsets == wanted_offsets).all() and (hashes == wanted_hashes).all()
    )


def _pairs(offsets: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """(offset, hash) as one comparable value each."""
    pairs = np.empty(len(offsets), dtype=[("offset", np.int64), ("hash", np.int64)])
    pairs["offset"], pairs["hash"] = offsets, hashes
    return pairs


def find_geometry(reader: Reader, size: int, header: IndexHeader) -> IndexGeometry | None:
    """The numbers of slots and entries of a file that holds entries, seen from where they lie; None when none
    fit."""
    return next(
        (geometry for geometry in _geometries(reader, size, header) if _fits(reader, geometry, header)), None
    )


def _usual_geometries(size: int) -> Iterator[IndexGeometry]:
    """Four entries a slot, as in Apache's defaults and in most settings."""
    slots, rest = divmod(size - index_file.HEADER.size, index_file.SLOT.size + 4 * index_file.ENTRY.size)
    if not rest:
        yield IndexGeometry(slots, 4 * slots)


def _geometries(reader: Reader, size: int, header: IndexHeader) -> Iterator[IndexGeometry]:
    """What the numbers of slots and entries may be: the usual ones, then wherever the last entry's offset
    stands."""
    yield from _usual_geometries(size)
    wanted = header.end_offset.to_bytes(8, "big", signed=True)
    content = reader.read(0, size) if size <= 64 << 20 else b""
    for at in _places(content, wanted):
        entries_at = at - index_file.ENTRY.offset["log_offset"] - index_file.ENTRY.size * (header.count - 1)
        slots, rest = divmod(entries_at - index_file.HEADER.size, index_file.SLOT.size)
        if slots > 0 and not rest and not (size - entries_at) % index_file.ENTRY.size:
            yield IndexGeometry(slots, (size - entries_at) // index_file.ENTRY.size)


def _places(content: bytes, wanted: bytes) -> Iterator[int]:
    """Where `wanted` stands behind the header, the last place first: a message has several entries, and the
    last one is looked for. Zeros, which fill the rest of the file, are looked for from the front."""
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


def _fits(reader: Reader, geometry: IndexGeometry, header: IndexHeader) -> bool:
    """Whether first and last entry lie where this geometry has them, and the last one's slot names it."""
    if geometry.slots < 1 or header.count > geometry.entries:
        return False
    first = index_file.decode_entry(
        reader.read(geometry.entry_at(index_file.FIRST_ENTRY), index_file.ENTRY.size)
    )
    last = index_file.decode_entry(reader.read(geometry.entry_at(header.count - 1), index_file.ENTRY.size))
    if (first.log_offset, last.log_offset) != (header.begin_offset, header.end_offset) or last.key_hash < 0:
        return False
    slot = index_file.decode_slot(
        reader.read(geometry.slot_at(last.key_hash % geometry.slots), index_file.SLOT.size)
    )
    return slot == header.count - 1
