"""Index files: the header, slots and entries."""

from __future__ import annotations

from broker_store.facts import references
from broker_store.facts.bytes.cutter import MAX_CHECKED, Cutter, File, numbered
from broker_store.facts.bytes.field import Field, Reading, judged, number, of_layout, time_words
from broker_store.facts.bytes.pieces import Jump, Piece, Tone, jump, piece
from broker_store.facts.bytes.place import Place
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.pointers import EntryPointer, IndexBytePointer, SlotPointer, to_log
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import index_file
from broker_store.formats.index_file import ENTRY, FIRST_ENTRY, HEADER, SLOT, IndexGeometry

_SHOWN_SLOTS, _SHOWN_ENTRIES = 64, 16  # when no length is asked for
_HEADER_MEANINGS = {
    "begin_timestamp": "store time of the first message in this file; the seconds of the entries count "
    "from it",
    "end_timestamp": "store time of the last message in this file",
    "begin_offset": "place in the log of the first message in this file",
    "end_offset": "place in the log of the last message in this file",
    "slots_used": "slots that hold at least one entry",
    "count": "number of the next entry; 1 in an empty file",
}
_SLOT_MEANINGS = {"entry": "the newest entry whose hash falls into this slot; 0 when there is none"}
_ENTRY_MEANINGS = {
    "key_hash": "hash of topic#key; what is left when it is divided by the number of slots says which slot's "
    "chain this belongs to",
    "log_offset": "where the message's record begins in the commit log",
    "seconds": "store time, in whole seconds since the file's first message",
    "previous": "the entry before it in the chain of this slot; 0 ends the chain",
}


def header_fields(buffer: bytes, at: int) -> list[Field]:
    has_entries = index_file.decode_header(buffer).count > FIRST_ENTRY

    def read(name: str, value: int) -> Reading:
        if name.endswith("timestamp"):
            return Reading(time_words(value))
        if name.endswith("offset") and has_entries:
            return Reading(f"{value:,}", to_log(value))
        return number(name, value)

    return of_layout(_HEADER_MEANINGS, HEADER, buffer, at, read)


def slot_fields(buffer: bytes, at: int, file: str, count: int) -> list[Field]:
    """Return the fields of a slot of an index file whose next entry gets the number `count`."""

    def read(name: str, value: int) -> Reading:
        if not value:
            return Reading("0 (none)")
        if 0 < value < count:
            return Reading(f"{value:,}", EntryPointer(name=file, entry=value), right=True)
        return Reading(f"{value:,} (WRONG: the file has entries 1 to {count - 1:,})", right=False)

    return of_layout(_SLOT_MEANINGS, SLOT, buffer, at, read)


def entry_fields(
    buffer: bytes, at: int, file: str, entry_number: int, shape: IndexGeometry, begin_ms: int
) -> list[Field]:
    """Return the fields of an entry of an index file whose first message was stored at `begin_ms`."""

    def read(name: str, value: int) -> Reading:
        if name == "key_hash":
            slot = value % shape.slots
            return Reading(f"{value} (slot {slot:,})", SlotPointer(name=file, slot=slot))
        if name == "log_offset":
            return Reading(f"{value:,}", to_log(value))
        if name == "seconds" and begin_ms > 0:
            return Reading(f"{value:,} ({time_words(begin_ms + value * 1000).partition('(')[2]}")
        if name == "seconds":
            return number(name, value)
        if not value:
            return Reading("0 (the chain ends here)")
        if 0 < value < entry_number:
            return Reading(f"{value:,}", EntryPointer(name=file, entry=value), right=True)
        return Reading(f"{value:,} (WRONG: a chain goes to lower numbers)", right=False)

    return of_layout(_ENTRY_MEANINGS, ENTRY, buffer, at, read)


class Index(Cutter):
    def __init__(self, directory: StoreDirectory, facts: StoreFacts, file: File, place: Place):
        super().__init__(directory, facts, file, place)
        self.name = file.path.name
        _, self._header, self._shape = next(
            found for found in directory.index_files() if found[0] == self.name
        )

    @property
    def _entries_at(self) -> int:
        """The position of the entries; of a file of unknown geometry its end."""
        return self.file.size if self._shape is None else self._shape.entries_at

    def usual_length(self, at: int) -> int:
        if at < HEADER.size:
            return HEADER.size - at + _SHOWN_SLOTS * SLOT.size
        return _SHOWN_SLOTS * SLOT.size if at < self._entries_at else _SHOWN_ENTRIES * ENTRY.size

    def begin(self, at: int) -> int:
        if at < HEADER.size:
            return 0
        if self._shape is None:
            return at
        if at < self._entries_at:
            return HEADER.size + (at - HEADER.size) // SLOT.size * SLOT.size
        return self._entries_at + (at - self._entries_at) // ENTRY.size * ENTRY.size

    def pointer(self, at: int) -> IndexBytePointer:
        return IndexBytePointer(name=self.name, offset=at)

    def piece(self, at: int, end: int) -> Piece:
        if at < HEADER.size:
            fields = header_fields(self.file.read(at, HEADER.size), at)
            return piece("header", "header", at, HEADER.size, fields=fields)
        if self._shape is None:
            return piece(
                "nothing",
                "slots and entries",
                at,
                end - at,
                "How many slots this file has is not known from its length, so they are not shown "
                "from entries.",
                "warn",
            )
        if at < self._entries_at:
            return self._slot(at, end, self._shape)
        return self._entry(at, end, self._shape)

    def _slot(self, at: int, end: int, shape: IndexGeometry) -> Piece:
        first = (at - HEADER.size) // SLOT.size
        zeros = self.zeros(at, min(end, self._entries_at), SLOT.size)
        if zeros:
            last = min(first + zeros // SLOT.size, shape.slots) - 1
            sentence = "No entry." if last == first else "No entries."
            return piece("room", numbered("slot", first, last), at, (last - first + 1) * SLOT.size, sentence)
        fields = slot_fields(self.file.read(at, SLOT.size), at, self.name, self._header.count)
        sentence, tone = _if_wrong(fields, "WRONG: it leads to no entry.")
        return piece("slot", f"slot {first:,}", at, SLOT.size, sentence, tone, fields)

    def _entry(self, at: int, end: int, shape: IndexGeometry) -> Piece:
        first = (at - self._entries_at) // ENTRY.size
        if first == 0:
            sentence = "Never used: numbers begin at 1, so that 0 can say none."
            return piece("room", "entry 0", at, ENTRY.size, sentence)
        if first >= self._header.count:
            count = max(1, -(-(end - at) // ENTRY.size))
            return piece(
                "room",
                f"entries {first:,} to {first + count - 1:,}",
                at,
                count * ENTRY.size,
                f"Never written: the file has entries 1 to {self._header.count - 1:,}."
                if self._header.count > 1
                else "Never written: the file has no entry yet.",
            )
        raw = self.file.read(at, ENTRY.size)
        fields = entry_fields(raw, at, self.name, first, shape, self._header.begin_timestamp)
        sentence, tone = _if_wrong(fields, "WRONG: the entry before it is not lower.")
        if not tone and self.checked < MAX_CHECKED:
            self.checked += 1
            fields, sentence, tone = self._compare(index_file.decode_entry(raw), fields)
        return piece("entry", f"entry {first:,}", at, ENTRY.size, sentence, tone, fields)

    def _compare(self, entry: index_file.IndexEntry, fields: list[Field]) -> tuple[list[Field], str, Tone]:
        """Compare an entry with the record that it names."""
        log_begin = self.facts.positions().min
        if log_begin is not None and entry.log_offset < log_begin:
            return fields, "The record that it names was cleaned away.", "warn"
        stored = references.message_at(self.directory, entry.log_offset)
        if stored is None:
            wrong = f"WRONG: no record begins at {entry.log_offset:,}."
            return judged(fields, "log_offset", False), wrong, "bad"
        texts = index_file.texts_of(stored.topic, stored.unique_key, " ".join(stored.keys), stored.tags)
        named = [text for text in texts if index_file.key_hash(text) == entry.key_hash]
        fields = judged(fields, "key_hash", bool(named))
        if not named:
            return fields, "WRONG: the record there has no key of this hash.", "bad"
        return fields, f"Of {named[0]}.", ""

    def jumps(self, first: Piece) -> list[Jump]:
        if self._shape is None:
            return []
        return [
            jump("Header", self.pointer(0)),
            jump("Slots", SlotPointer(name=self.name, slot=0)),
            jump("Entries", EntryPointer(name=self.name, entry=1)),
        ]


def _if_wrong(fields: list[Field], sentence: str) -> tuple[str, Tone]:
    """Return the sentence and its tone if a field is wrong."""
    return (sentence, "bad") if any(one.right is False for one in fields) else ("", "")
