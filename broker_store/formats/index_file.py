"""The hash index over message keys (docs/spec/store-format.md section 5).

    header (40)   slots (4 bytes each)   entries (20 bytes each)

A slot holds the number of the newest entry whose key hash falls into it, an entry the number of the one
before it in the same slot. Numbers start at 1, so that zero means "none"; the header's count is the next
number to be given. An entry has its time only in whole seconds since the file's first message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker_store.errors import LookupNameError
from broker_store.formats.java_hash import java_hash
from broker_store.formats.layout import Layout, ReadBuffer
from broker_store.formats.properties import split_keys

HEADER = Layout(
    ("begin_timestamp", "q"),
    ("end_timestamp", "q"),
    ("begin_offset", "q"),
    ("end_offset", "q"),
    ("slots_used", "i"),
    ("count", "i"),
)
SLOT = Layout(("entry", "i"))
ENTRY = Layout(("key_hash", "i"), ("log_offset", "q"), ("seconds", "i"), ("previous", "i"))
FIRST_ENTRY = 1
MAX_SECONDS = 0x7FFFFFFF
FOR_EVER_MS = 1 << 62
_FIRST_MS, _LAST_MS = -(1 << 63), (1 << 63) - 1
NAME_DIGITS = 17
KEY_SEPARATOR = "#"
TAGS_MARK = "T"  # since 5.4.0 the tag is indexed too, under `topic#T#tag`


class IndexHeader(NamedTuple):
    """Times in ms, offsets in the commit log; `count` is the number of the next entry (1 in an empty
    file)."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slots_used: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here


class IndexEntry(NamedTuple):
    """Hash of the key, place of the message, seconds since the file's begin, number of the entry before in
    its slot."""

    key_hash: int
    log_offset: int
    seconds: int
    previous: int


@dataclass(frozen=True, slots=True)
class IndexGeometry:
    """Where things lie in an index file of `slots` slots and room for entry numbers below `entries`."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        """Where the (never used) entry 0 begins."""
        return HEADER.size + self.slots * SLOT.size

    @property
    def file_bytes(self) -> int:
        return self.entries_at + self.entries * ENTRY.size

    def slot_at(self, slot: int) -> int:
        return HEADER.size + slot * SLOT.size

    def entry_at(self, number: int) -> int:
        return self.entries_at + number * ENTRY.size


def is_name(name: str) -> bool:
    """Return whether a file of the index may be called so: yyyyMMddHHmmssSSS."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def check_name(name: str) -> str:
    """Return `name` if a file of the index may have it. Raises LookupNameError."""
    if not is_name(name):
        raise LookupNameError(f"An index file's name has {NAME_DIGITS} digits")
    return name


def encode_header(header: IndexHeader) -> bytes:
    """The 40 bytes of a header."""
    return HEADER.pack(*header)


def decode_header(buffer: ReadBuffer, offset: int = 0) -> IndexHeader:
    """The header; a count of 0 or less, as in a new file, is taken as 1."""
    header = IndexHeader(*HEADER.unpack(buffer, offset))
    return header if header.count > 0 else header._replace(count=FIRST_ENTRY)


def encode_entry(entry: IndexEntry) -> bytes:
    """The 20 bytes of an entry."""
    return ENTRY.pack(*entry)


def decode_entry(buffer: ReadBuffer, offset: int = 0) -> IndexEntry:
    """The entry at byte `offset`."""
    return IndexEntry(*ENTRY.unpack(buffer, offset))


def decode_slot(buffer: ReadBuffer, offset: int = 0) -> int:
    """The entry number in the slot at byte `offset`."""
    entry: int = SLOT.unpack(buffer, offset)[0]
    return entry


def asked_times(begin_ms: int, end_ms: int) -> tuple[int, int]:
    """Bounds for the times in headers and entries: from 0, or to FOR_EVER_MS and later, is a question without
    that bound.

    A damaged store time may be any number. With a bound, the file that begins with it would end the walk
    before older files.
    """
    return min(begin_ms, _FIRST_MS) if begin_ms <= 0 else begin_ms, max(
        end_ms, _LAST_MS
    ) if end_ms >= FOR_EVER_MS else end_ms


def key_hash(key_text: str) -> int:
    """The non-negative hash of `topic#key`: the absolute Java hash, 0 for the one value that has none."""
    value = abs(java_hash(key_text))
    return 0 if value > 0x7FFFFFFF else value


def key_text(topic: str, key: str) -> str:
    """Return what is hashed for a key of a topic."""
    return f"{topic}{KEY_SEPARATOR}{key}"


def tag_text(topic: str, tags: str) -> str:
    """Return what is hashed for the tag of a message."""
    return f"{topic}{KEY_SEPARATOR}{TAGS_MARK}{KEY_SEPARATOR}{tags}"


def texts_of(
    topic: str, unique_key: str | None, keys: str | None, tags: str | None, with_tags: bool = True
) -> list[str]:
    """What is put into the index for a message, in order: unique key, each key, and (since 5.4.0) the tag."""
    texts = [key_text(topic, unique_key)] if unique_key else []
    texts += [key_text(topic, key) for key in split_keys(keys)]
    if with_tags and tags:
        texts.append(tag_text(topic, tags))
    return texts


def seconds_since(begin_timestamp: int, store_timestamp: int) -> int:
    """The time of an entry: whole seconds since the file's begin, never negative, 0 in a file without a
    begin."""
    if begin_timestamp <= 0:
        return 0
    return min(max(0, (store_timestamp - begin_timestamp) // 1000), MAX_SECONDS)
