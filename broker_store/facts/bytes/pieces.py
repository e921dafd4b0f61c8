"""The result of a request for bytes: the bytes as hex, named pieces with their fields, and jumps to other
places.

The pieces cover the bytes that are shown; the first and the last one may reach beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from broker_store.facts.bytes.field import Field
from broker_store.facts.bytes.place import Kind
from broker_store.facts.pointers import Pointer
from broker_store.units import Moment

What: TypeAlias = Literal[
    "record", "blank", "room", "nothing", "unit", "hole", "header", "slot", "entry", "stamps"
]
Tone: TypeAlias = Literal["", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes that belong together."""

    what: What
    title: str
    at: int  # position in the sequence of files
    length: int  # bytes
    sentence: str  # "": nothing to say
    tone: Tone  # of the sentence
    fields: list[Field]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """Another place that belongs to the first piece."""

    title: str
    pointer: Pointer | None  # None: there is no such place, and `why` says so
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBytes:
    """A stretch of a file."""

    kind: Kind
    file: str  # path in the store
    name: str
    topic: str  # "": not of a queue
    queue: int | None
    file_at: int  # position in the sequence of files at which this file begins
    file_size: int  # bytes
    at: int  # position of the first byte that is shown
    length: int  # bytes that are shown
    cut: int  # bytes that were asked for and are not shown
    hex: str
    pieces: list[Piece]
    jumps: list[Jump]
    before: Pointer | None
    after: Pointer | None
    at_ms: Moment
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBytes:
    """A record, as a stretch of the log without other places."""

    at: int  # position in the log
    length: int  # bytes that are shown
    cut: int  # bytes of the record that are not shown
    hex: str
    pieces: list[Piece]


def piece(
    what: What,
    title: str,
    at: int,
    length: int,
    sentence: str = "",
    tone: Tone = "",
    fields: list[Field] | None = None,
) -> Piece:
    return Piece(
        what=what,
        title=title,
        at=at,
        length=length,
        sentence=sentence,
        tone=tone,
        fields=fields or [],
    )


def jump(title: str, pointer: Pointer | None, why: str = "") -> Jump:
    return Jump(title=title, pointer=pointer, why=why)
