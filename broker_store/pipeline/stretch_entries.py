"""The entries of the index that a stretch of the log must have, and their comparison with its keys."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from broker_store.check import entries as e
from broker_store.check.entries import ENTRY, entry_seconds
from broker_store.errors import FormatError
from broker_store.formats import index_file, properties, record
from broker_store.kernels import columns as k
from broker_store.kernels import compare
from broker_store.kernels import context as c
from broker_store.pipeline.findings import (
    MAX_ENTRIES,
    Findings,
    opened,
)
from broker_store.pipeline.splits import MAX_RECORD


@dataclass
class _Left:
    """Entries or keys that agreed with nothing yet: log offset and hash of each, and the place of entries
    (file << 32 | number)."""

    offsets: list[np.ndarray] = field(default_factory=list)
    hashes: list[np.ndarray] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)

    def add(self, offsets: np.ndarray, hashes: np.ndarray, places: np.ndarray | None = None) -> None:
        self.offsets.append(offsets)
        self.hashes.append(hashes)
        if places is not None:
            self.places.append(places)

    def pairs(self) -> np.ndarray:
        return e.pairs(np.concatenate(self.offsets or [_NONE]), np.concatenate(self.hashes or [_NONE]))


_NONE = np.zeros(0, dtype=np.int64)


class StretchEntries:
    """The entries of the index that a stretch must have, in order; the files are one sequence."""

    def __init__(self, findings: Findings, closing: ExitStack):
        self._findings, self._files, stretch = findings, findings.store.index, findings.stretch
        self._readers = [opened(file.path, findings.disk, closing) for file in self._files]
        self._begins = np.cumsum([0, *(file.header.count - index_file.FIRST_ENTRY for file in self._files)])
        self._next = 0 if stretch.is_first else self._place_at(stretch.begin)
        self._until = self._place_at(stretch.until) if stretch.until < 1 << 62 else int(self._begins[-1])
        findings.found.entries = max(0, self._until - self._next)
        self._entry_left, self._key_left = _Left(), _Left()
        self._late = np.empty(MAX_ENTRIES, dtype=np.int64)
        self._context = np.zeros(compare.E_WORDS, dtype=np.int64)
        self._context[compare.E_LATE] = self._late.ctypes.data
        self._entries, self._place = np.zeros(0, dtype=ENTRY), 0

    def _located(self, place: int) -> tuple[int, int]:
        """Return (number of the file, number of the entry) at a place of the sequence."""
        file = int(np.searchsorted(self._begins, place, side="right")) - 1
        return file, place - int(self._begins[file]) + index_file.FIRST_ENTRY

    def _place_at(self, offset: int) -> int:
        """Return the place of the first entry that points to `offset` or after it, by binary search."""

        def points_to(place: int) -> int:
            file, number = self._located(place)
            at = self._files[file].geometry.entry_at(number) + index_file.ENTRY.offset["log_offset"]
            return int.from_bytes(self._readers[file].read(at, 8), "big", signed=True)

        return bisect_left(range(int(self._begins[-1])), offset, key=points_to)

    def _load(self) -> bool:
        """Load the next entries; False when there are none."""
        if self._next >= self._until:
            return False
        file, number = self._located(self._next)
        count = min(MAX_ENTRIES, self._until - self._next, int(self._begins[file + 1]) - self._next)
        raw = self._readers[file].read(self._files[file].geometry.entry_at(number), count * ENTRY.itemsize)
        self._entries, self._place = np.frombuffer(raw, dtype=ENTRY), (file << 32) | number
        self._next += count
        begin_ms = self._files[file].header.begin_timestamp
        words = [compare.E_ENTRIES, compare.E_END, compare.E_AT, compare.E_FIRST_NUMBER, compare.E_BEGIN_MS]
        self._context[words] = self._entries.ctypes.data, len(self._entries), 0, number, begin_ms
        return len(self._entries) > 0

    def check(self, rows: np.ndarray, keys: np.ndarray) -> None:
        context = self._context
        context[[compare.E_ROWS, compare.E_COUNT, compare.E_ROW, compare.E_KEY, compare.E_KEYS]] = (
            rows.ctypes.data,
            len(rows),
            0,
            0,
            keys.ctypes.data,
        )
        while True:
            context[compare.E_LATE_COUNT] = 0
            answer = compare.compare_entries(context.ctypes.data)
            for place in self._late[: context[compare.E_LATE_COUNT]]:
                self._add_fault(
                    e.INDEX_TIME, self._place + int(place), int(self._entries["log_offset"][place])
                )
            if answer == c.DONE:
                return
            if answer == c.DIFFERS or not self._load():
                self._leave(rows, keys)
                return

    def _leave(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Put keys and entries from here to the end of the rows aside, to be compared without their order."""
        first, key = int(self._context[compare.E_ROW]), int(self._context[compare.E_KEY])
        offsets = np.repeat(rows[first:, k.ROW_LOG_OFFSET], rows[first:, k.ROW_KEY_COUNT])
        offsets = offsets[len(offsets) - (len(keys) - key) :]
        plain = keys[key:] < k.TAG_KEY
        end = int(rows[-1, k.ROW_LOG_OFFSET] + rows[-1, k.ROW_SIZE])
        taken = _Left()
        while True:
            at = int(self._context[compare.E_AT])
            waiting = self._entries["log_offset"][at:].astype(np.int64)
            beyond = np.flatnonzero(waiting >= end)
            cut = int(beyond[0]) if len(beyond) else len(waiting)
            self._put_aside(taken, at, at + cut)
            self._check_times(rows, at, cut)
            self._context[compare.E_AT] = at + cut
            if cut < len(waiting) or not self._load():
                break
        there, wanted = taken.pairs(), e.pairs(offsets, keys[key:] & (k.TAG_KEY - 1))
        extra = ~np.isin(there, wanted)
        self._entry_left.add(
            there["offset"][extra], there["hash"][extra], np.concatenate(taken.places)[extra]
        )
        missing = plain & ~np.isin(wanted, there)
        self._key_left.add(wanted["offset"][missing], wanted["hash"][missing])

    def _put_aside(self, left: _Left, at: int, end: int) -> None:
        """Put entries aside, except those of deleted records, which are in order and may be very many."""
        entries, places = self._entries[at:end], self._place + np.arange(at, end, dtype=np.int64)
        kept = entries["log_offset"] >= self._findings.store.log_begin
        left.add(
            entries["log_offset"][kept].astype(np.int64),
            entries["key_hash"][kept].astype(np.int64),
            places[kept],
        )

    def _check_times(self, rows: np.ndarray, at: int, count: int) -> None:
        entries = self._entries[at : at + count]
        offsets = entries["log_offset"].astype(np.int64)
        row_at = np.minimum(np.searchsorted(rows[:, k.ROW_LOG_OFFSET], offsets), len(rows) - 1)
        begin_ms = int(self._context[compare.E_BEGIN_MS])
        wanted = entry_seconds(rows[row_at, k.ROW_STORE_MS], begin_ms)
        places = self._place + np.arange(at, at + count, dtype=np.int64)
        is_first = (places & 0xFFFFFFFF) == index_file.FIRST_ENTRY
        wrong = (rows[row_at, k.ROW_LOG_OFFSET] == offsets) & ~is_first & (entries["seconds"] != wanted)
        for place in np.flatnonzero(wrong):
            self._add_fault(e.INDEX_TIME, int(places[place]), int(offsets[place]))

    def _add_fault(self, kind: str, place: int, offset: int, count: int = 1) -> None:
        """Note a fault; `place` is that of an entry, -1 for a key without one."""
        path = self._files[max(place, 0) >> 32].path if place >= 0 else ""
        self._findings.add(kind, "", (offset, path, place & 0xFFFFFFFF if place >= 0 else -1), count)

    def finish(self) -> None:
        store = self._findings.store
        while True:  # entries after the last record of the stretch
            at = int(self._context[compare.E_AT])
            self._put_aside(self._entry_left, at, len(self._entries))
            if not self._load():
                break
        entries, keys = self._entry_left.pairs(), self._key_left.pairs()
        if len(entries):
            extra = ~np.isin(entries, keys)
            places = np.concatenate(self._entry_left.places)[extra]
            self._judge_entries(entries["offset"][extra], entries["hash"][extra], places)
        if len(keys):
            keys = keys[~np.isin(keys, entries)]
            early, late = keys["offset"] <= store.first_entry, keys["offset"] >= store.last_entry
            inner = keys[~early & ~late]
            if len(inner):
                inner = inner[~self._elsewhere(inner)]
            for kind, chosen in (
                (e.INDEX_STARTS_LATE, keys[early]),
                (e.INDEX_BEHIND, keys[late & ~early]),
                (e.INDEX_MISSING, inner),
            ):
                if len(chosen):
                    self._add_fault(kind, -1, int(chosen["offset"].min()), len(chosen))

    def _judge_entries(self, offsets: np.ndarray, hashes: np.ndarray, places: np.ndarray) -> None:
        """Find the faults of entries that agree with no key of this stretch."""
        findings = self._findings
        behind = (offsets >= findings.log_end) & ~findings.in_damage(offsets)
        wrong = (offsets >= findings.store.log_begin) & ~behind & ~findings.in_damage(offsets)
        # Its key may have agreed with another entry: an entry may be there twice, or be read by another task.
        of_record = lru_cache(self._hashes_at)
        for place in np.flatnonzero(wrong):
            wrong[place] = int(hashes[place]) not in of_record(int(offsets[place]))
        for kind, chosen in ((e.INDEX_EXTRA, behind), (e.INDEX_ENTRY, wrong)):
            if chosen.any():
                first = int(np.flatnonzero(chosen)[np.argmin(offsets[chosen])])
                self._add_fault(kind, int(places[first]), int(offsets[first]), int(chosen.sum()))

    def _hashes_at(self, offset: int) -> set[int]:
        """Return the hashes that the index must have for the record at a log offset; none without a valid
        record."""
        for path, base, end in self._findings.store.files:
            if base <= offset < end:
                with ExitStack() as closing:
                    reader = opened(str(path), self._findings.disk, closing)
                    head = reader.read(offset - base, record.HEAD.size)
                    size = record.read_head(head).total_size if len(head) == record.HEAD.size else 0
                    try:
                        one = record.decode(
                            reader.read(offset - base, min(max(size, 0), MAX_RECORD)),
                            log_offset=offset,
                            max_size=MAX_RECORD,
                        )
                    except FormatError:
                        return set()
                if not one.is_indexed:
                    return set()
                texts = index_file.texts_of(
                    one.topic,
                    one.properties.get(properties.UNIQUE_KEY),
                    one.properties.get(properties.KEYS),
                    one.tags,
                )
                return {index_file.key_hash(text) for text in texts}
        return set()

    def _elsewhere(self, keys: np.ndarray) -> np.ndarray:
        """Return for which keys an entry is at a place of another stretch: in an index that steps back, as
        after a crash of Apache's broker."""
        known = np.zeros(len(keys), dtype=bool)
        low, high = keys["offset"].min(), keys["offset"].max()
        for file, reader in zip(self._files, self._readers, strict=True):
            if file.header.begin_offset > high or file.header.end_offset < low:
                continue
            for number in range(index_file.FIRST_ENTRY, file.header.count, MAX_ENTRIES):
                count = min(MAX_ENTRIES, file.header.count - number)
                entries = np.frombuffer(
                    reader.read(file.geometry.entry_at(number), count * ENTRY.itemsize), dtype=ENTRY
                )
                offsets = entries["log_offset"].astype(np.int64)
                near = (offsets >= low) & (offsets <= high)
                if near.any():
                    known |= np.isin(keys, e.pairs(offsets[near], entries["key_hash"][near].astype(np.int64)))
        return known
