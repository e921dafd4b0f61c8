"""Each step that a lookup by key takes, told in words and numbers: the twin of the walk in kernels/lookup.py.

    {"step": "hash | file | slot | entry | chain end | behind | gone | stop", "us": time it took, "why", and
    its numbers}

A lookup believes the index as far as the hash: an entry that `counts` takes one of the `limit` places, also
when its message has another key of the same hash, or is gone. Whoever asked drops those, so `kept` says what
is left for him in the end.
"""

from __future__ import annotations

import time

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.status.store_facts import LogPositions
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import index_file, properties, record
from broker_store.formats.index_file import (
    ENTRY,
    FIRST_ENTRY,
    FOR_EVER_MS,
    HEADER,
    SLOT,
    IndexGeometry,
    IndexHeader,
)

MOST_STEPS = 1_000  # told one by one
RECORDS_LOOKED_AT = 64  # before and behind what the index covers, for one with a key


def explain(
    directory: StoreDirectory,
    topic: str,
    key: str,
    begin_ms: int = 0,
    end_ms: int = FOR_EVER_MS,
    limit: int = 64,
    positions: LogPositions | None = None,
) -> list[dict]:
    """The steps. `positions` of the running store say how far the index is filled; without them the log
    behind it is looked at."""
    return _Lookup(directory, topic, key, begin_ms, end_ms, limit).run(positions)


class _Lookup:
    def __init__(
        self, directory: StoreDirectory, topic: str, key: str, begin_ms: int, end_ms: int, limit: int
    ):
        self._directory, self._topic, self._key = directory, topic, key
        self._begin_ms, self._end_ms = index_file.asked_times(begin_ms, end_ms)
        self._limit = limit
        self._text = index_file.key_text(topic, key)
        self._hashed = index_file.key_hash(self._text)
        self._log_begin, self._log_end = directory.log_range()
        self._steps: list[dict] = []
        self._found = self._kept = self._entries = self._files = 0
        self._began = self._told_at = time.perf_counter()

    def run(self, positions: LogPositions | None) -> list[dict]:
        self._tell("hash", key=self._text, hash=self._hashed)
        files = self._directory.index_files()
        why = self._walk(files)
        self._tell_behind(files, positions)
        self._tell_gone(files)
        took_us = (time.perf_counter() - self._began) * 1e6
        self._tell(
            "stop",
            why=why,
            messages=self._kept,
            counted=self._found,
            entries=self._entries,
            files=self._files,
            total_us=took_us,
        )
        return self._steps

    def _tell(self, step: str, **numbers) -> None:
        now = time.perf_counter()
        self._steps.append({"step": step, "us": (now - self._told_at) * 1e6, **numbers})
        self._told_at = now

    @property
    def _is_over(self) -> bool:
        return self._found >= self._limit or len(self._steps) > MOST_STEPS

    def _walk(self, files: list[tuple[str, IndexHeader, IndexGeometry | None]]) -> str:
        """Newest file first; why it ended."""
        for name, header, geometry in reversed(files):
            why_not = self._why_not(header, geometry)
            self._tell(
                "file",
                file=name,
                begin_ms=header.begin_timestamp or None,
                end_ms=header.end_timestamp or None,
                entries=header.count - FIRST_ENTRY,
                used=not why_not,
                why=why_not or "its time range overlaps the one asked for",
            )
            if not why_not:
                self._one_file(name)
            if self._found >= self._limit:
                return (
                    f"{self._limit} entries were found, a lookup asks for no more (maxMsgsNumBatch); "
                    f"older messages with this key may exist"
                )
            if FIRST_ENTRY < header.count and header.begin_timestamp < self._begin_ms:
                return "older files end before the time asked for"
            if self._is_over:
                return f"{MOST_STEPS:,} steps are told at the most; a lookup goes on"
        return "there is no older file" if files else "the index has no file"

    def _why_not(self, header: IndexHeader, geometry: IndexGeometry | None) -> str:
        if geometry is None:
            return "its length fits no known numbers of slots and entries; give --slots and --entries"
        if header.count <= FIRST_ENTRY:
            return "the file holds no entry"
        if header.begin_timestamp > self._end_ms:
            return "it begins after the time asked for"
        return "it ends before the time asked for" if header.end_timestamp < self._begin_ms else ""

    def _one_file(self, name: str) -> None:
        try:
            with self._directory.open_index(name) as (reader, geometry):
                self._files += 1
                self._chain(name, reader, geometry)
        except NotFoundError:
            self._tell(
                "chain end", file=name, why="the file was deleted meanwhile, since no message of it is left"
            )

    def _chain(self, name: str, reader: Reader, geometry: IndexGeometry) -> None:
        slot = self._hashed % geometry.slots
        number = index_file.decode_slot(reader.read(geometry.slot_at(slot), SLOT.size))
        # Read behind the slot: the broker may have linked entries since, and then the header counts them.
        header = index_file.decode_header(reader.read(0, HEADER.size))
        count = min(header.count, geometry.entries)
        self._tell(
            "slot",
            file=name,
            slot=slot,
            of=geometry.slots,
            entry=number,
            at=geometry.slot_at(slot),
            why=_of_slot(number, count),
        )
        while 0 < number < count and not self._is_over:
            entry = index_file.decode_entry(reader.read(geometry.entry_at(number), ENTRY.size))
            at_ms = header.begin_timestamp + entry.seconds * 1000
            counts, kept, why, message_id = self._judge(entry, at_ms)
            self._entries += 1
            self._found += counts
            self._kept += kept
            numbers = {
                "hash": entry.key_hash,
                "log_offset": entry.log_offset,
                "at_ms": at_ms,
                "previous": entry.previous,
            }
            self._tell(
                "entry",
                file=name,
                entry=number,
                at=geometry.entry_at(number),
                **numbers,
                counts=counts,
                kept=kept,
                why=why,
                message_id=message_id,
            )
            ends = _end_of_chain(number, entry, at_ms < self._begin_ms)
            if ends:
                self._tell("chain end", file=name, why=ends)
                return
            number = entry.previous

    def _judge(self, entry: index_file.IndexEntry, at_ms: int) -> tuple[bool, bool, str, str | None]:
        """(counts, kept, why, message id) of an entry."""
        if entry.key_hash != self._hashed:
            return False, False, "another hash that shares the slot", None
        if entry.seconds < 0:
            return False, False, "damaged: its time is negative", None
        if not self._begin_ms <= at_ms <= self._end_ms:
            return (
                False,
                False,
                f"stored {'before' if at_ms < self._begin_ms else 'after'} the time asked for",
                None,
            )
        if entry.log_offset < self._log_begin:
            return (
                True,
                False,
                f"its message is gone: the log begins at position {self._log_begin:,} now",
                None,
            )
        try:
            message = record.decode(self._directory.record_at(entry.log_offset), log_offset=entry.log_offset)
        except (FormatError, NotFoundError) as error:
            return True, False, f"no sound message is there: {error}", None
        if self._text in _texts(message):
            return True, True, "the message has this key", message.message_id
        return (
            True,
            False,
            f"another key of the same hash: the message is of topic {message.topic} and has "
            f"{', '.join(message.keys) or 'no key'}",
            None,
        )

    def _tell_behind(
        self, files: list[tuple[str, IndexHeader, IndexGeometry | None]], positions: LogPositions | None
    ) -> None:
        """What is written but not in the index yet."""
        if positions is not None:
            missing = positions.confirmed - positions.dispatched
            if missing > 0:
                why = (
                    f"the index is filled up to position {positions.dispatched:,} of "
                    f"{positions.confirmed:,}: messages behind are not found yet"
                )
                self._tell("behind", log_offset=positions.dispatched, bytes=missing, why=why)
            return
        last = next(
            (header.end_offset for _, header, _ in reversed(files) if header.count > FIRST_ENTRY), None
        )
        missing = self._keyed_record(self._log_begin if last is None else last, skip=last is not None)
        if missing is not None:
            self._tell(
                "behind",
                log_offset=missing,
                bytes=None,
                why=f"the message at position {missing:,} has a key and is not in the index, nor are "
                f"those behind it",
            )

    def _tell_gone(self, files: list[tuple[str, IndexHeader, IndexGeometry | None]]) -> None:
        """What is in the log before the first message that the index knows."""
        first = next((header.begin_offset for _, header, _ in files if header.count > FIRST_ENTRY), None)
        missing = None if first is None or first <= self._log_begin else self._keyed_record(self._log_begin)
        if missing is not None and missing < first:
            self._tell(
                "gone",
                log_offset=missing,
                why=f"the index begins at position {first:,}: older messages, from {missing:,} on, are "
                f"in no index file",
            )

    def _keyed_record(self, log_offset: int, skip: bool = False) -> int | None:
        """The place of the first record from there on that belongs into the index, of those that are looked
        at. `skip`: behind that one."""
        for looked_at in range(RECORDS_LOOKED_AT):
            try:
                message = record.decode(
                    self._directory.record_at(log_offset), log_offset=log_offset, check_crc=False
                )
            except (FormatError, NotFoundError):
                return None
            if not (skip and looked_at == 0) and message.is_indexed and _texts(message, with_tags=False):
                return log_offset
            log_offset += message.size
        return None


def _texts(message: record.StoredMessage, with_tags: bool = True) -> list[str]:
    """What the index holds of a message; of its tag only since Apache's 5.4.0."""
    return index_file.texts_of(
        message.topic, message.unique_key, message.properties.get(properties.KEYS), message.tags, with_tags
    )


def _of_slot(number: int, count: int) -> str:
    if number == 0:
        return "it is empty: no entry of this file has a hash of this slot"
    if 0 < number < count:
        return f"entry {number:,} is its newest"
    return (
        f"damaged: it names entry {number:,}, the header counts those up to {count - FIRST_ENTRY:,}, so "
        f"a lookup takes it for empty"
    )


def _end_of_chain(number: int, entry: index_file.IndexEntry, is_before: bool) -> str:
    """Why the chain ends at that entry; "" when it goes on."""
    if entry.previous <= 0:
        return "no older entry is in this slot"
    if entry.previous >= number:
        return (
            f"damaged: entry {number:,} names entry {entry.previous:,} as the one before it, which would "
            f"never end"
        )
    if entry.seconds < 0:
        return "the entry is damaged, and a lookup goes no further"
    return "older entries were stored before the time asked for" if is_before else ""
