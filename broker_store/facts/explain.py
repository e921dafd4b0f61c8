"""Each step that a lookup by key takes, in words and numbers: the twin of the walk in kernels/lookup.py.

A lookup trusts the index as far as the hash: an entry that `counts` takes one of the `limit` places, also
when its message has another key of the same hash, or is gone. The caller drops those, so `kept` says what
is left in the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from broker_store.engine.disk.file_access import Reader
from broker_store.engine.status.store_state import LogPositions
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
from broker_store.units import Moment, Small

MAX_STEPS = 1_000  # that are shown one by one
MAX_RECORDS_READ = 64  # before and after what the index covers, to find one with a key


@dataclass(frozen=True, slots=True, kw_only=True)
class HashStep:
    """The key becomes a hash."""

    step: Literal["hash"] = "hash"
    us: float
    key: str
    hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStep:
    """An index file is chosen or passed over."""

    step: Literal["file"] = "file"
    us: float
    file: str
    begin_ms: Moment | None
    end_ms: Moment | None
    entries: int
    used: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStep:
    """The slot of the hash is read."""

    step: Literal["slot"] = "slot"
    us: float
    file: str
    slot: int
    of: int  # slots of the file
    entry: int  # that it names; 0: none
    at: int  # its first byte in the file
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStep:
    """An entry of the chain is read."""

    step: Literal["entry"] = "entry"
    us: float
    file: str
    entry: int
    at: int  # its first byte in the file
    hash: int
    log_offset: int
    at_ms: Moment
    previous: int  # entry; 0: none
    counts: bool  # takes one of the places of the lookup
    kept: bool  # its message has the key
    why: str
    message_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEndStep:
    """The walk over a chain ends."""

    step: Literal["chain end"] = "chain end"
    us: float
    file: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnindexedStep:
    """The end of the log is not in the index yet."""

    step: Literal["unindexed"] = "unindexed"
    us: float
    log_offset: int
    bytes: int | None  # of the log that are missing; None: not known
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneStep:
    """The beginning of the log is in the index no longer."""

    step: Literal["gone"] = "gone"
    us: float
    log_offset: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStep:
    """The lookup ends."""

    step: Literal["stop"] = "stop"
    us: float
    why: str
    messages: int  # that have the key
    counted: Small  # places that entries took
    entries: int  # that were read
    files: int  # that were read
    total_us: float


LookupStep: TypeAlias = (
    HashStep | FileStep | SlotStep | EntryStep | ChainEndStep | UnindexedStep | GoneStep | StopStep
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLookup:
    """The steps of a lookup, of which the last is a StopStep."""

    items: list[LookupStep]


# Index files, oldest first: name, header, and the geometry if it is known
Files: TypeAlias = list[tuple[str, IndexHeader, IndexGeometry | None]]


def explain(
    directory: StoreDirectory,
    topic: str,
    key: str,
    begin_ms: int = 0,
    end_ms: int = FOR_EVER_MS,
    limit: int = 64,
    positions: LogPositions | None = None,
) -> list[LookupStep]:
    """Return the steps of a lookup; the last one is a StopStep. `positions` of a running store say how far
    the index is filled; without them the log after it is read."""
    return _Lookup(directory, topic, key, begin_ms, end_ms, limit).run(positions)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """Whether an entry counts, whether its message is kept, and why."""

    counts: bool
    kept: bool
    why: str
    message_id: str | None = None


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
        self._steps: list[LookupStep] = []
        self._found = self._kept = self._entries = self._files = 0
        self._began = self._last_at = time.perf_counter()

    def run(self, positions: LogPositions | None) -> list[LookupStep]:
        self._steps.append(HashStep(us=self._us(), key=self._text, hash=self._hashed))
        files = self._directory.index_files()
        why = self._walk(files)
        self._add_behind(files, positions)
        self._add_gone(files)
        total_us = (time.perf_counter() - self._began) * 1e6
        self._steps.append(
            StopStep(
                us=self._us(),
                why=why,
                messages=self._kept,
                counted=self._found,
                entries=self._entries,
                files=self._files,
                total_us=total_us,
            )
        )
        return self._steps

    def _us(self) -> float:
        """Return the microseconds since the last step."""
        before, self._last_at = self._last_at, time.perf_counter()
        return (self._last_at - before) * 1e6

    @property
    def _is_over(self) -> bool:
        return self._found >= self._limit or len(self._steps) > MAX_STEPS

    def _walk(self, files: Files) -> str:
        """Read the files, the newest first, and return why the lookup ends."""
        for name, header, geometry in reversed(files):
            why_not = self._why_not(header, geometry)
            self._steps.append(
                FileStep(
                    us=self._us(),
                    file=name,
                    begin_ms=header.begin_timestamp or None,
                    end_ms=header.end_timestamp or None,
                    entries=header.count - FIRST_ENTRY,
                    used=not why_not,
                    why=why_not or "its time range overlaps the one asked for",
                )
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
                return f"{MAX_STEPS:,} steps are shown at most; a lookup goes on"
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
            self._end_chain(name, "the file was deleted meanwhile, since no message of it is left")

    def _end_chain(self, file: str, why: str) -> None:
        self._steps.append(ChainEndStep(us=self._us(), file=file, why=why))

    def _chain(self, name: str, reader: Reader, geometry: IndexGeometry) -> None:
        slot = self._hashed % geometry.slots
        number = index_file.decode_slot(reader.read(geometry.slot_at(slot), SLOT.size))
        # Read after the slot: the broker may have linked entries since, and then the header counts them.
        header = index_file.decode_header(reader.read(0, HEADER.size))
        count = min(header.count, geometry.entries)
        self._steps.append(
            SlotStep(
                us=self._us(),
                file=name,
                slot=slot,
                of=geometry.slots,
                entry=number,
                at=geometry.slot_at(slot),
                why=_of_slot(number, count),
            )
        )
        while 0 < number < count and not self._is_over:
            entry = index_file.decode_entry(reader.read(geometry.entry_at(number), ENTRY.size))
            at_ms = header.begin_timestamp + entry.seconds * 1000
            judged = self._judge(entry, at_ms)
            self._entries += 1
            self._found += judged.counts
            self._kept += judged.kept
            self._steps.append(
                EntryStep(
                    us=self._us(),
                    file=name,
                    entry=number,
                    at=geometry.entry_at(number),
                    hash=entry.key_hash,
                    log_offset=entry.log_offset,
                    at_ms=at_ms,
                    previous=entry.previous,
                    counts=judged.counts,
                    kept=judged.kept,
                    why=judged.why,
                    message_id=judged.message_id,
                )
            )
            ends = _end_of_chain(number, entry, at_ms < self._begin_ms)
            if ends:
                self._end_chain(name, ends)
                return
            number = entry.previous

    def _judge(self, entry: index_file.IndexEntry, at_ms: int) -> _Judgement:
        if entry.key_hash != self._hashed:
            return _Judgement(False, False, "another hash that shares the slot")
        if entry.seconds < 0:
            return _Judgement(False, False, "damaged: its time is negative")
        if not self._begin_ms <= at_ms <= self._end_ms:
            order = "before" if at_ms < self._begin_ms else "after"
            return _Judgement(False, False, f"stored {order} the time asked for")
        if entry.log_offset < self._log_begin:
            why = f"its message is gone: the log begins at position {self._log_begin:,} now"
            return _Judgement(True, False, why)
        try:
            message = record.decode(self._directory.record_at(entry.log_offset), log_offset=entry.log_offset)
        except (FormatError, NotFoundError) as error:
            return _Judgement(True, False, f"no sound message is there: {error}")
        if self._text in _texts(message):
            return _Judgement(True, True, "the message has this key", message.message_id)
        keys = ", ".join(message.keys) or "no key"
        why = f"another key of the same hash: the message is of topic {message.topic} and has {keys}"
        return _Judgement(True, False, why)

    def _add_behind(self, files: Files, positions: LogPositions | None) -> None:
        """Add what is written but not in the index yet."""
        if positions is not None:
            dispatched, confirmed = positions.dispatched, positions.confirmed
            if dispatched is not None and confirmed is not None and confirmed > dispatched:
                why = (
                    f"the index is filled up to position {dispatched:,} of {confirmed:,}: messages after "
                    f"it are not found yet"
                )
                self._steps.append(
                    UnindexedStep(us=self._us(), log_offset=dispatched, bytes=confirmed - dispatched, why=why)
                )
            return
        last = next(
            (header.end_offset for _, header, _ in reversed(files) if header.count > FIRST_ENTRY), None
        )
        missing = self._keyed_record(self._log_begin if last is None else last, skip=last is not None)
        if missing is not None:
            why = (
                f"the message at position {missing:,} has a key and is not in the index, nor are those "
                f"after it"
            )
            self._steps.append(UnindexedStep(us=self._us(), log_offset=missing, bytes=None, why=why))

    def _add_gone(self, files: Files) -> None:
        """Add what is in the log before the first message of the index."""
        first = next((header.begin_offset for _, header, _ in files if header.count > FIRST_ENTRY), None)
        if first is None or first <= self._log_begin:
            return
        missing = self._keyed_record(self._log_begin)
        if missing is not None and missing < first:
            why = (
                f"the index begins at position {first:,}: older messages, from {missing:,} on, are in no "
                f"index file"
            )
            self._steps.append(GoneStep(us=self._us(), log_offset=missing, why=why))

    def _keyed_record(self, log_offset: int, skip: bool = False) -> int | None:
        """Return the place of the first record that belongs into the index, among MAX_RECORDS_READ from
        `log_offset` on, or with `skip` from the one after it on."""
        for number in range(MAX_RECORDS_READ):
            try:
                message = record.decode(
                    self._directory.record_at(log_offset), log_offset=log_offset, check_crc=False
                )
            except (FormatError, NotFoundError):
                return None
            if not (skip and number == 0) and message.is_indexed and _texts(message, with_tags=False):
                return log_offset
            log_offset += message.size
        return None


def _texts(message: record.StoredMessage, with_tags: bool = True) -> list[str]:
    """Return what the index holds of a message; brokers before Apache's 5.4.0 do not index its tag."""
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
    """Return why the chain ends at that entry; "" when it goes on."""
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
