"""Check of the entries of the index against the keys of the records, during the walk of the log.

The index files are read once, from front to back. Entries stand in the order of the log, so the entries that
point into a slice are the next ones: `check_rows` takes them and compares them with the keys of the slice's
records. Each entry must name the one before it in its slot, which is computed again here, and at the end of
a file each slot must name its newest entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from broker_store.check import entries as e
from broker_store.check import rules
from broker_store.check.index_files import IndexFile, IndexFiles
from broker_store.check.log import Log
from broker_store.check.report import ERROR, WARNING
from broker_store.check.store import CheckedStore
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexGeometry
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.kernels import context as c

ENTRIES_PER_READ = 1 << 15  # so few that they stay in the processor's cache until they are compared
SLOTS_PER_READ = 1 << 18
_NEVER = 1 << 62  # after every log offset
_NUMBER_BITS = 32  # a place is the number of the file, shifted by so many bits, and that of the entry
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
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
    """Entries of one file that follow one another."""

    file: int
    first: int  # number of the first
    entries: np.ndarray
    at: int = 0  # those before are taken


class IndexCheck:
    """Compares entries with the records that the walk passes to `check_rows`, in the order of the log.

    `after_log` are the log offsets of entries that point after the end of the log, once `finish` was called.
    """

    def __init__(self, store: CheckedStore, log: Log, index: IndexFiles):
        self._store, self._report, self._disk, self._log = store, store.report, store.disk, log
        self._index, self._files = index, index.files
        # Without a file there is no geometry, and nothing is computed with this one
        self._geometry = index.geometry or IndexGeometry(0, 0)
        self._file = self._entry = 0  # the cursor: file number, next entry number
        self._chunks: deque[_Chunk] = deque()  # read, and not all of them taken
        self._words = np.zeros(compare.E_WORDS, dtype=np.int64)
        self._late = np.empty(ENTRIES_PER_READ, dtype=np.int64)
        self._words[compare.E_LATE] = self._late.ctypes.data
        self._wrong = np.empty((ENTRIES_PER_READ, 2), dtype=np.int64)
        self._first_offset: int | None = None
        self.after_log = np.empty(0, dtype=np.int64)
        self._last_offset = -1
        self._unindexed = 0
        self._unindexed_from = 0
        # Offsets and places of entries that point after all files of the log
        self._beyond_log: list[tuple[np.ndarray, np.ndarray]] = []
        self._log_limit = log.files[-1].end if log.files else 0
        self._read_to = 0  # log offset of the last entry that was read

    def check_rows(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Compare the keys of a slice's records with the entries that point into the slice."""
        if not self._files:
            self._report.count("keys_without_index", len(keys))
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
                self._report.count("keys_before_index", self._unindexed)
                self._unindexed = 0
        if len(offsets) and self._unindexed:
            self._report_unindexed(e.INDEX_MISSING)
        if len(offsets):
            self._last_offset = max(self._last_offset, int(offsets.max()))
        if _same(offsets, hashes, key_offsets, wanted_hashes):
            return
        plain = ~is_tag
        if _same(offsets, hashes, key_offsets[plain], wanted_hashes[plain]):
            return
        self._compare(offsets, hashes, places, key_offsets, wanted_hashes, is_tag)

    def _agree(self, rows: np.ndarray, keys: np.ndarray, end: int) -> bool:
        """Return whether the next entries are those of the rows' keys, with no more entries below `end`, by
        compiled code. They are taken then.

        The first and the last entry of a file are left to the slower way, which compares its header too.
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
            header = self._files[chunk.file].header
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
        return False  # after the last file

    def _compare(
        self,
        offsets: np.ndarray,
        hashes: np.ndarray,
        places: np.ndarray,
        key_offsets: np.ndarray,
        wanted_hashes: np.ndarray,
        is_tag: np.ndarray,
    ) -> None:
        """Report extra and missing entries; entries of tags may be missing, and entries may occur twice."""
        found = e.pairs(offsets, hashes)
        wanted = e.pairs(key_offsets, wanted_hashes)
        extra = (offsets >= self._log.start) & ~np.isin(found, wanted) & ~self._log.is_damaged(offsets)
        for place in np.flatnonzero(extra):
            offset = int(offsets[place])
            path, at = self._place(int(places[place]))
            what = (
                f"the record at {offset} has no key with the hash {int(hashes[place])}, or there is no record"
            )
            self._report.add(ERROR, e.INDEX_ENTRY, path, at, what)
        missing = ~np.isin(wanted, found) & ~is_tag
        late = missing & (key_offsets >= self._last_offset)
        if late.any():  # a later slice may bring the rest of the index
            if not self._unindexed:
                self._unindexed_from = int(key_offsets[late][0])
            self._unindexed += int(late.sum())
        first = self._first_offset
        early = missing & ~late & (key_offsets <= (first if first is not None else _NEVER))
        inner = missing & ~late & ~early
        if early.any():
            self._report.count("keys_before_index", int(early.sum()))
        path = str(self._file_now.path)
        for place in np.flatnonzero(inner):
            what = (
                f"the key with the hash {int(wanted_hashes[place])} of the record at "
                f"{int(key_offsets[place])} is in no index file"
            )
            self._report.add(self._store.late, e.INDEX_MISSING, path, None, what)

    def _check_times(
        self,
        rows: np.ndarray,
        offsets: np.ndarray,
        hashes: np.ndarray,
        seconds: np.ndarray,
        begins: np.ndarray,
        places: np.ndarray,
    ) -> None:
        """Report entries that do not state the whole seconds between their file's begin and their record."""
        if not len(offsets):
            return
        row_offsets = rows[:, k.ROW_LOG_OFFSET]
        at = np.minimum(np.searchsorted(row_offsets, offsets), len(row_offsets) - 1)
        known = row_offsets[at] == offsets
        expected = e.entry_seconds(rows[at, k.ROW_STORE_MS], begins)
        numbers = places & _NUMBER_MASK
        first = numbers == index_file.FIRST_ENTRY  # it was written before its file had a begin of its own
        self._check_stamps(numbers, places, known, rows[at, k.ROW_STORE_MS])
        for place in np.flatnonzero(known & ~first & (seconds != expected)):
            path, where = self._place(int(places[place]))
            what = (
                f"the entry of the record at {int(offsets[place])} has time {int(seconds[place])} s, "
                f"expected {int(expected[place])} s"
            )
            self._report.add(ERROR, e.INDEX_TIME, path, where, what)

    def _check_stamps(
        self, numbers: np.ndarray, places: np.ndarray, known: np.ndarray, store_ms: np.ndarray
    ) -> None:
        """Report files that do not begin and end at the store times of the records of their first and last
        entry."""
        for place in np.flatnonzero(known & (numbers == index_file.FIRST_ENTRY)):
            self._check_stamp("begin_timestamp", int(places[place]) >> _NUMBER_BITS, int(store_ms[place]))
        counts = np.array([file.header.count for file in self._files], dtype=np.int64)
        for place in np.flatnonzero(known & (numbers == counts[places >> _NUMBER_BITS] - 1)):
            self._check_stamp("end_timestamp", int(places[place]) >> _NUMBER_BITS, int(store_ms[place]))

    def _check_stamp(self, name: str, file: int, expected: int) -> None:
        path, _, header = self._files[file]
        if getattr(header, name) != expected:
            what = e.wrong_stamp(name, getattr(header, name), expected)
            severity = self._store.late if file == len(self._files) - 1 else ERROR
            self._report.add(severity, e.INDEX_HEADER, str(path), index_file.HEADER.offset[name], what)

    def _place(self, place: int) -> tuple[str, int]:
        """Return (path, offset in the file) of an entry, from its place."""
        file, number = place >> _NUMBER_BITS, place & _NUMBER_MASK
        return str(self._files[file].path), self._geometry.entry_at(number)

    def _take(self, end: int) -> tuple[np.ndarray, ...]:
        """Return offsets, hashes, seconds, begin times and places of all entries below log offset `end` that
        were not taken yet.

        Entries that point after all files of the log do not stop it.
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
                np.full(cut, self._files[chunk.file].header.begin_timestamp, dtype=np.int64),
                chunk.file << _NUMBER_BITS | np.arange(first, first + cut, dtype=np.int64),
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
        """Yield what was read and not taken yet, then what follows; each chunk is kept until it is taken."""
        yield from tuple(self._chunks)
        while (chunk := self._read_chunk()) is not None:
            self._chunks.append(chunk)
            yield chunk

    def _read_chunk(self) -> _Chunk | None:
        """Return the next entries in order, with their chains checked; None after the last file."""
        while self._file < len(self._files):
            file = self._files[self._file]
            if self._entry == 0:
                self._entry = index_file.FIRST_ENTRY
                self._heads = np.zeros(self._geometry.slots, dtype=np.int32)
            if self._entry >= file.header.count:
                self._check_slots(file)
                self._file, self._entry = self._file + 1, 0
                continue
            count = min(ENTRIES_PER_READ, file.header.count - self._entry)
            with self._disk.open_reader(file.path) as reader:
                raw = reader.read(self._geometry.entry_at(self._entry), count * e.ENTRY.itemsize)
            entries = np.frombuffer(raw, dtype=e.ENTRY)
            self._report.count("entries", len(entries))
            self._store.progress.step("index")
            self._check_chains(str(file.path), entries)
            chunk = _Chunk(self._file, self._entry, entries)
            self._entry += count
            return chunk
        return None

    def _check_chains(self, path: str, entries: np.ndarray) -> None:
        """Report entries that do not name the previous one of their slot, have a negative hash, or are not in
        the order of the log."""
        flaws = compare.flaws_of(entries.ctypes.data, len(entries))
        for place in np.flatnonzero(entries["key_hash"] < 0) if flaws & compare.HAS_NEGATIVE else ():
            at = self._geometry.entry_at(self._entry + int(place))
            self._report.add(
                ERROR, e.INDEX_ENTRY, path, at, f"the hash {int(entries['key_hash'][place])} is negative"
            )
        links, _ = e.wrong_links(entries, self._entry, self._heads, self._wrong)
        for link in links:
            at = self._geometry.entry_at(link.number)
            self._report.add(self._chain_severity(), e.INDEX_CHAIN, path, at, e.wrong_link(link))
        if flaws & compare.STEPS_BACK or entries["log_offset"][0] < self._read_to:
            for step in e.steps_back(entries, self._entry, self._read_to):
                at = self._geometry.entry_at(step.number)
                what = e.points_back(step.log_offset, step.before)
                self._report.add(ERROR, e.INDEX_ENTRY, path, at, what)
        self._read_to = int(entries["log_offset"][-1])

    def _check_slots(self, file: IndexFile) -> None:
        """Report slots that do not name the newest of their entries, and a header that does not count the
        slots in use."""
        severity, path, header = self._chain_severity(), str(file.path), file.header
        found = np.empty(min(SLOTS_PER_READ, self._geometry.slots), dtype=e.SLOT)
        room = memoryview(found.view(np.uint8))
        with self._disk.open_reader(file.path) as reader:
            for first in range(0, self._geometry.slots, SLOTS_PER_READ):
                heads = self._heads[first : first + SLOTS_PER_READ]
                read = (
                    reader.read_into(room[: len(heads) * e.SLOT.itemsize], self._geometry.slot_at(first))
                    // e.SLOT.itemsize
                )
                if compare.wrong_slots(found.ctypes.data, heads.ctypes.data, read):
                    self._report_slots(file, first, found[:read], heads[:read], severity)
        used = int(np.count_nonzero(self._heads))
        if used != header.slots_used:
            at = index_file.HEADER.offset["slots_used"]
            self._report.add(
                severity,
                e.INDEX_HEADER,
                path,
                at,
                e.wrong_slots_used(header.slots_used, used),
            )
        if header.count > index_file.FIRST_ENTRY and self._index.entries_ends(file) != (
            header.begin_offset,
            header.end_offset,
        ):
            at = index_file.HEADER.offset["begin_offset"]
            self._report.add(severity, e.INDEX_HEADER, path, at, e.WRONG_ENDS)

    def _report_slots(
        self, file: IndexFile, first: int, found: np.ndarray, heads: np.ndarray, severity: str
    ) -> None:
        wrong = found != heads
        if self._store.limit is not None and self._file == len(self._files) - 1:
            wrong &= (
                found < file.header.count
            )  # a running broker goes on adding entries; those are not compared
        for place in np.flatnonzero(wrong):
            slot = first + int(place)
            what = e.wrong_slot(slot, int(found[place]), int(heads[place]))
            self._report.add(severity, e.INDEX_SLOT, str(file.path), self._geometry.slot_at(slot), what)

    def _chain_severity(self) -> str:
        """Return the severity of a wrong link in the file under the cursor.

        A start after an unclean stop links the last file again.
        """
        return self._store.late if self._file == len(self._files) - 1 else ERROR

    def finish(self) -> None:
        """Report what is left after the log: entries that point after it, keys that no file holds."""
        report = self._report
        offsets, _, _, _, places = self._take(_NEVER)
        offsets, places = (
            np.concatenate(columns) for columns in zip((offsets, places), *self._beyond_log, strict=True)
        )
        outside = ~self._log.is_damaged(offsets)
        if self._store.limit is not None:
            outside &= offsets < self._store.limit
        is_after = offsets >= self._log.end  # also in a damaged tail, whose entries are not reported
        if self._store.limit is not None:
            is_after &= offsets < self._store.limit
        self.after_log = np.unique(offsets[is_after])
        if outside.any():
            path, at = self._place(int(places[outside][0]))
            report.add(
                WARNING,
                e.INDEX_EXTRA,
                path,
                at,
                f"{int(outside.sum())} entries from here on point {rules.AFTER_THE_LOG}",
            )
        if self._unindexed:
            self._report_unindexed(e.INDEX_BEHIND)
        if report.counts.get("keys_without_index"):
            what = e.keys_without_index(report.counts["keys_without_index"])
            report.add(WARNING, e.NO_INDEX, str(self._store.root / "index"), None, what)
        early = report.counts.get("keys_before_index")
        if early:
            report.add(
                self._store.late,
                e.INDEX_STARTS_LATE,
                str(self._files[0].path),
                None,
                f"{early} keys of older records are in no index file",
            )

    @property
    def _file_now(self) -> IndexFile:
        """The file under the cursor; the last one after all were read."""
        return self._files[min(self._file, len(self._files) - 1)]

    def _report_unindexed(self, kind: str) -> None:
        """Report the keys without an entry. Called when it is known whether entries follow."""
        path = str(self._file_now.path)
        what = e.keys_not_in_index(self._unindexed, self._unindexed_from)
        self._report.add(self._store.late, kind, path, None, what)
        self._unindexed = 0


def _same(
    offsets: np.ndarray, hashes: np.ndarray, wanted_offsets: np.ndarray, wanted_hashes: np.ndarray
) -> bool:
    return len(offsets) == len(wanted_offsets) and bool(
        (offsets == wanted_offsets).all() and (hashes == wanted_hashes).all()
    )
