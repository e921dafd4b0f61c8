"""Where else a store tells of a record: its unit in the queue and its entries in the index.

Everything is reading by position and bounded, so it may be asked once a second by a page; what a bound hid is
said to be not known.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from broker_store.engine.disk.file_access import Reader
from broker_store.errors import FormatError, NotFoundError
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.fields import Pointer, to_entry, to_slot, to_unit
from broker_store.facts.knowing import UNIT, Knowing
from broker_store.facts.neighbours import MOST_RECORD
from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.index_file import IndexGeometry, IndexHeader
from broker_store.formats.java_hash import java_hash
from broker_store.formats.record import StoredMessage

MOST_DEEP = 2_000  # entries of a chain that are followed in a search
NEAR = 250  # entries of a chain that are followed to an entry whose place can be told otherwise


def message_at(directory: StoreDirectory, log_offset: int) -> StoredMessage | None:
    """The record that begins at a place, if a whole one does that states this place; its CRC is not looked
    at."""
    try:
        return record.decode(
            directory.record_at(log_offset), log_offset=log_offset, max_size=MOST_RECORD, check_crc=False
        )
    except (FormatError, NotFoundError):
        return None


# The queue


class Agreement(NamedTuple):
    """What a queue unit says of a record. `state` is there, wrong, absent or unknown; `why` a sentence's
    end."""

    state: str
    why: str
    unit: queue_unit.QueueUnit | None = None
    pointer: Pointer | None = None


def unit_of(directory: StoreDirectory, knows: Knowing, stored: StoredMessage) -> Agreement:
    """The unit of a message in its queue, and whether it says what it must."""
    if not stored.is_queued:
        return Agreement("absent", "prepared and rolled back messages have no unit: no reader sees them")
    place = stored.queue_offset * UNIT
    pointer = to_unit(stored.topic, stored.queue_id, stored.queue_offset)
    positions = knows.positions()
    not_yet = positions.dispatched is not None and stored.log_offset >= positions.dispatched
    files = directory.queue_files(stored.topic, stored.queue_id)
    path = next((path for base, size, path in files if base <= place < base + size), None)
    if path is None:
        if not_yet:
            return Agreement("unknown", "it is not dispatched yet")
        if files and place < files[0][0]:
            return Agreement("absent", "its file of the queue was deleted, with those before it")
        return Agreement(
            "absent",
            "the queue has no file for this offset"
            if files
            else "the queue has no files; its topic may have been deleted",
        )
    with directory.disk.open_reader(path) as reader:
        unit = queue_unit.decode(reader.read(place - int(path.name), UNIT).ljust(UNIT, b"\0"))
    if not unit.is_data:
        why = (
            "it is not dispatched yet"
            if not_yet
            else "nothing is written there: a start would dispatch the message again"
            if stored.log_offset >= positions.min
            else "nothing is written there"
        )
        return Agreement("unknown" if not_yet else "absent", why, unit, pointer)
    wrong = disagreement(unit, stored)
    return Agreement(
        "wrong" if wrong else "there", wrong or "it names this record, its size and its tag", unit, pointer
    )


def disagreement(unit: queue_unit.QueueUnit, stored: StoredMessage) -> str:
    """How a unit differs from what the record it should name asks for; "" when it does not. Delivery times
    are not judged."""
    if unit.log_offset != stored.log_offset:
        return f"it names position {unit.log_offset:,}, and the record lies at {stored.log_offset:,}"
    if unit.size != stored.size:
        return f"it says {unit.size:,} bytes, and the record has {stored.size:,}"
    tags_code = java_hash(stored.tags) if stored.tags else 0
    if stored.topic != queue_unit.SCHEDULE_TOPIC and unit.tags_code != tags_code:
        return f"its tags code is {unit.tags_code}, and the message's tag has {tags_code}"
    return ""


# The index


class Entry(NamedTuple):
    """One of a message's entries. `of` is message id, key or tag; `state` there, absent or unknown; `depth`
    its place in the chain, from 1, None beyond NEAR."""

    of: str
    text: str
    hash: int
    state: str
    why: str
    file: str | None = None
    slot: int | None = None
    number: int | None = None
    depth: int | None = None
    pointer: Pointer | None = None


def entries_of(
    directory: StoreDirectory, knows: Knowing, stored: StoredMessage, max_keys: int
) -> list[Entry]:
    """The index entries that a message should have: of its message id, each of its first `max_keys` keys, and
    its tag."""
    wanted = [("message id", stored.unique_key)] if stored.unique_key else []
    wanted += [("key", key) for key in stored.keys[:max_keys]]
    texts = [(of, text, index_file.key_text(stored.topic, text)) for of, text in wanted]
    if stored.tags:
        texts.append(("tag", stored.tags, index_file.tag_text(stored.topic, stored.tags)))
    if not stored.is_indexed:
        return [
            Entry(of, text, index_file.key_hash(hashed), "absent", "rolled back messages are not indexed")
            for of, text, hashed in texts
        ]
    dispatched = knows.positions().dispatched
    if dispatched is not None and stored.log_offset >= dispatched:
        return [
            Entry(of, text, index_file.key_hash(hashed), "unknown", "it is not dispatched yet")
            for of, text, hashed in texts
        ]
    files = directory.index_files()
    # The header of a file that a crash left may be older than its entries, so the last file that began before
    # the record counts too.
    begun = [file for file in reversed(files) if file[1].begin_offset <= stored.log_offset]
    likely = [
        file for number, file in enumerate(begun) if number == 0 or file[1].end_offset >= stored.log_offset
    ]
    return [
        _entry(directory, likely, bool(files), of, text, index_file.key_hash(hashed), stored)
        for of, text, hashed in texts
    ]


def _entry(
    directory: StoreDirectory,
    files: list,
    any_file: bool,
    of: str,
    text: str,
    hashed: int,
    stored: StoredMessage,
) -> Entry:
    if not files:
        return Entry(
            of,
            text,
            hashed,
            "absent",
            "its index file was deleted: those that are there begin later"
            if any_file
            else "there is no index file",
        )
    for name, header, shape in files:
        if shape is None:
            return Entry(
                of,
                text,
                hashed,
                "unknown",
                f"how many slots {name} has is not known; give --slots and --entries",
            )
        slot = hashed % shape.slots
        with directory.disk.open_reader(directory.root / "index" / name) as reader:
            for depth, number, entry in chain(reader, shape, slot):
                if depth > NEAR:
                    return _far_entry(
                        reader, header, shape, Entry(of, text, hashed, "unknown", "", name, slot), stored
                    )
                if entry.key_hash == hashed and entry.log_offset == stored.log_offset:
                    return Entry(
                        of, text, hashed, "there", "", name, slot, number, depth, to_entry(name, number)
                    )
                if entry.previous >= number:
                    return Entry(
                        of,
                        text,
                        hashed,
                        "unknown",
                        f"the chain is damaged: entry {number:,} names {entry.previous:,} as the one "
                        f"before it",
                        name,
                        slot,
                        number,
                        pointer=to_entry(name, number),
                    )
    name, _, shape = files[0]
    slot = hashed % shape.slots
    why = "the chain of its slot does not lead to it" + (
        "; brokers before 5.4.0 do not index tags" if of == "tag" else ""
    )
    return Entry(of, text, hashed, "absent", why, name, slot, pointer=to_slot(name, slot))


def _far_entry(
    reader: Reader, header: IndexHeader, shape: IndexGeometry, wanted: Entry, stored: StoredMessage
) -> Entry:
    """An entry far down its chain, found by its place: entries stand in the order of the log."""

    def at(number: int) -> index_file.IndexEntry:
        return index_file.decode_entry(reader.read(shape.entry_at(number), index_file.ENTRY.size))

    numbers = range(index_file.FIRST_ENTRY, min(header.count, shape.entries))
    first = bisect.bisect_left(numbers, stored.log_offset, key=lambda number: at(number).log_offset)
    for number in numbers[first : first + MOST_DEEP]:
        entry = at(number)
        if entry.log_offset != stored.log_offset:
            break
        if entry.key_hash == wanted.hash:
            return wanted._replace(state="there", number=number, pointer=to_entry(wanted.file, number))
    return wanted._replace(
        why=f"it is not among the newest {NEAR:,} entries of its chain, and not where it would stand by "
        f"its place in the log",
        pointer=to_slot(wanted.file, wanted.slot),
    )


def chain(
    reader: Reader, shape: IndexGeometry, slot: int
) -> Iterator[tuple[int, int, index_file.IndexEntry]]:
    """(depth, number, entry) of a slot's chain, newest first and from depth 1 on; it ends at an entry that
    does not lead to a lower one."""
    number, depth = index_file.decode_slot(reader.read(shape.slot_at(slot), index_file.SLOT.size)), 0
    while 0 < number < shape.entries:
        depth += 1
        entry = index_file.decode_entry(reader.read(shape.entry_at(number), index_file.ENTRY.size))
        yield depth, number, entry
        if entry.previous >= number:
            return
        number = entry.previous
