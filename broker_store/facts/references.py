"""What else in a store names a record: its unit in the queue and its entries in the index.

All reads are by position and bounded, so a page may ask once a second; what a bound hides is reported as not
known.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from broker_store.engine.disk.file_access import Reader
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.neighbours import MAX_FOREIGN_RECORD
from broker_store.facts.pointers import EntryPointer, Pointer, SlotPointer, UnitPointer
from broker_store.facts.store_facts import UNIT, StoreFacts
from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.formats.java_hash import java_hash
from broker_store.formats.record import StoredMessage
from broker_store.formats.topics import SCHEDULE_TOPIC

MAX_CHAIN = 2_000  # entries of a chain that a search follows
MAX_NEAR = 250  # entries of a chain that are followed to an entry that a binary search finds, too
NOT_DISPATCHED = "it is not dispatched yet"

IndexFile: TypeAlias = tuple[str, IndexHeader, IndexGeometry | None]


def message_at(directory: StoreDirectory, log_offset: int) -> StoredMessage | None:
    """Return the whole record that begins at `log_offset` and states this place, None if there is none. Its
    CRC is not checked."""
    try:
        return record.decode(
            directory.record_at(log_offset),
            log_offset=log_offset,
            max_size=MAX_FOREIGN_RECORD,
            check_crc=False,
        )
    except (FormatError, NotFoundError):
        return None


# The queue


@dataclass(frozen=True, slots=True)
class UnitReference:
    """What a queue's unit says of a record."""

    state: Literal["there", "wrong", "absent", "unknown"]
    why: str  # the end of a sentence
    pointer: Pointer | None = None  # to the unit, if there is room for it


def unit_of(directory: StoreDirectory, facts: StoreFacts, stored: StoredMessage) -> UnitReference:
    """Return what the unit of a message says of it."""
    if not stored.is_queued:
        return UnitReference("absent", "prepared and rolled back messages have no unit: no reader sees them")
    place = stored.queue_offset * UNIT
    positions = facts.positions()
    is_dispatched = positions.dispatched is None or stored.log_offset < positions.dispatched
    files = directory.queue_files(stored.topic, stored.queue_id)
    path = next((path for base, size, path in files if base <= place < base + size), None)
    if path is None:
        if not is_dispatched:
            return UnitReference("unknown", NOT_DISPATCHED)
        return UnitReference("absent", _why_no_file(bool(files), bool(files) and place < files[0][0]))
    with directory.disk.open_reader(path) as reader:
        unit = queue_unit.decode(reader.read(place - int(path.name), UNIT).ljust(UNIT, b"\0"))
    pointer = UnitPointer(topic=stored.topic, queue=stored.queue_id, unit=stored.queue_offset)
    if not unit.is_data:
        if not is_dispatched:
            return UnitReference("unknown", NOT_DISPATCHED, pointer)
        why = "nothing is written there"
        if stored.log_offset >= (positions.min or 0):
            why += ": a start would dispatch the message again"
        return UnitReference("absent", why, pointer)
    wrong = disagreement(unit, stored)
    if wrong:
        return UnitReference("wrong", wrong, pointer)
    return UnitReference("there", "it names this record, its size and its tag", pointer)


def _why_no_file(has_files: bool, is_before: bool) -> str:
    if is_before:
        return "its file of the queue was deleted, with those before it"
    if has_files:
        return "the queue has no file for this offset"
    return "the queue has no files; its topic may have been deleted"


def disagreement(unit: queue_unit.QueueUnit, stored: StoredMessage) -> str:
    """Return how a unit differs from the record that it should name; "" if it does not. Delivery times are
    not compared."""
    if unit.log_offset != stored.log_offset:
        return f"it names position {unit.log_offset:,}, and the record lies at {stored.log_offset:,}"
    if unit.size != stored.size:
        return f"it says {unit.size:,} bytes, and the record has {stored.size:,}"
    tags_code = java_hash(stored.tags) if stored.tags else 0
    if stored.topic != SCHEDULE_TOPIC and unit.tags_code != tags_code:
        return f"its tags code is {unit.tags_code}, and the message's tag has {tags_code}"
    return ""


# The index


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry that a message should have in the index."""

    of: Literal["message id", "key", "tag"]
    text: str
    hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryReference:
    """What the index has of a message for one text."""

    of: Literal["message id", "key", "tag"]
    text: str
    state: Literal["there", "absent", "unknown"]
    why: str = ""  # the end of a sentence; "": it is there
    file: str | None = None
    slot: int | None = None
    number: int | None = None
    depth: int | None = None  # in its chain, from 1; None: beyond MAX_NEAR
    pointer: Pointer | None = None  # to the entry, else to the slot


def entries_of(
    directory: StoreDirectory, facts: StoreFacts, stored: StoredMessage, max_keys: int
) -> list[EntryReference]:
    """Return the index entries that a message should have: of its message id, of each of its first `max_keys`
    keys, and of its tag."""
    wanted = _wanted(stored, max_keys)
    if not stored.is_indexed:
        return [_missing(one, "absent", "rolled back messages are not indexed") for one in wanted]
    dispatched = facts.positions().dispatched
    if dispatched is not None and stored.log_offset >= dispatched:
        return [_missing(one, "unknown", NOT_DISPATCHED) for one in wanted]
    files = directory.index_files()
    # The header of a file that a crash left may be older than its entries, so the last file that began before
    # the record counts too.
    begun = [file for file in reversed(files) if file[1].begin_offset <= stored.log_offset]
    likely = [
        file for number, file in enumerate(begun) if number == 0 or file[1].end_offset >= stored.log_offset
    ]
    if not likely:
        why = (
            "its index file was deleted: those that are there begin later"
            if files
            else "there is no index file"
        )
        return [_missing(one, "absent", why) for one in wanted]
    return [_entry(directory, likely, one, stored) for one in wanted]


def _wanted(stored: StoredMessage, max_keys: int) -> list[Wanted]:
    texts = [stored.unique_key] if stored.unique_key else []
    found = [_of_text("message id", stored.topic, text) for text in texts]
    found += [_of_text("key", stored.topic, key) for key in stored.keys[:max_keys]]
    if stored.tags:
        text = index_file.tag_text(stored.topic, stored.tags)
        found.append(Wanted("tag", stored.tags, index_file.key_hash(text)))
    return found


def _of_text(of: Literal["message id", "key"], topic: str, text: str) -> Wanted:
    return Wanted(of, text, index_file.key_hash(index_file.key_text(topic, text)))


def _missing(wanted: Wanted, state: Literal["absent", "unknown"], why: str) -> EntryReference:
    return EntryReference(of=wanted.of, text=wanted.text, state=state, why=why)


def _entry(
    directory: StoreDirectory, files: list[IndexFile], wanted: Wanted, stored: StoredMessage
) -> EntryReference:
    """Search the entry in files, the likeliest first."""
    searched: list[SlotPointer] = []
    for name, header, shape in files:
        if shape is None:
            why = f"how many slots {name} has is not known; give --slots and --entries"
            return _missing(wanted, "unknown", why)
        slot = wanted.hash % shape.slots
        searched.append(SlotPointer(name=name, slot=slot))
        with directory.disk.open_reader(directory.root / "index" / name) as reader:
            found = _in_file(_IndexSearch(reader, name, header, shape, slot), wanted, stored)
        if found is not None:
            return found
    why = "the chain of its slot does not lead to it" + (
        "; brokers before 5.4.0 do not index tags" if wanted.of == "tag" else ""
    )
    first = searched[0]
    return replace(_missing(wanted, "absent", why), file=first.name, slot=first.slot, pointer=first)


@dataclass(frozen=True, slots=True)
class _IndexSearch:
    """An open index file and a slot of it."""

    reader: Reader
    name: str
    header: IndexHeader
    shape: IndexGeometry
    slot: int

    def found(self, wanted: Wanted, number: int, depth: int | None) -> EntryReference:
        return EntryReference(
            of=wanted.of,
            text=wanted.text,
            state="there",
            file=self.name,
            slot=self.slot,
            number=number,
            depth=depth,
            pointer=EntryPointer(name=self.name, entry=number),
        )


def _in_file(search: _IndexSearch, wanted: Wanted, stored: StoredMessage) -> EntryReference | None:
    """Return the entry in one file; None if the chain ends without it."""
    for depth, number, entry in chain(search.reader, search.shape, search.slot):
        if depth > MAX_NEAR:
            return _far_entry(search, wanted, stored)
        if entry.key_hash == wanted.hash and entry.log_offset == stored.log_offset:
            return search.found(wanted, number, depth)
        if entry.previous >= number:
            return replace(
                search.found(wanted, number, None),
                state="unknown",
                why=f"the chain is damaged: entry {number:,} names {entry.previous:,} as the one before it",
            )
    return None


def _far_entry(search: _IndexSearch, wanted: Wanted, stored: StoredMessage) -> EntryReference:
    """Find an entry far down its chain by binary search: entries stand in the order of the log."""

    def at(number: int) -> index_file.IndexEntry:
        raw = search.reader.read(search.shape.entry_at(number), index_file.ENTRY.size)
        return index_file.decode_entry(raw)

    numbers = range(index_file.FIRST_ENTRY, min(search.header.count, search.shape.entries))
    first = bisect.bisect_left(numbers, stored.log_offset, key=lambda number: at(number).log_offset)
    for number in numbers[first : first + MAX_CHAIN]:
        entry = at(number)
        if entry.log_offset != stored.log_offset:
            break
        if entry.key_hash == wanted.hash:
            return search.found(wanted, number, None)
    why = (
        f"it is not among the newest {MAX_NEAR:,} entries of its chain, and not where it would stand by its "
        f"place in the log"
    )
    return replace(
        _missing(wanted, "unknown", why),
        file=search.name,
        slot=search.slot,
        pointer=SlotPointer(name=search.name, slot=search.slot),
    )


def chain(
    reader: Reader, shape: IndexGeometry, slot: int
) -> Iterator[tuple[int, int, index_file.IndexEntry]]:
    """Yield (depth, number, entry) of a slot's chain, newest first, with depths from 1 on. It ends at an
    entry that does not lead to a lower one."""
    number, depth = index_file.decode_slot(reader.read(shape.slot_at(slot), index_file.SLOT.size)), 0
    while 0 < number < shape.entries:
        depth += 1
        entry = index_file.decode_entry(reader.read(shape.entry_at(number), index_file.ENTRY.size))
        yield depth, number, entry
        if entry.previous >= number:
            return
        number = entry.previous
