"""Pointers: places in a store's files that fields, jumps and stops name.

The fields of a pointer are the parameters of a request for the bytes at that place (bytes/place.py). In JSON
a pointer has the parameters of its type only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePointer:
    """A byte of the log, of the timer log, or of one of the single files."""

    kind: Literal["commitlog", "checkpoint", "timerlog", "timerwheel", "timercheck"]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBytePointer:
    """A byte of a consume queue."""

    kind: Literal["consumequeue"] = "consumequeue"
    topic: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPointer:
    """A unit of a consume queue, by its offset in the queue."""

    kind: Literal["consumequeue"] = "consumequeue"
    topic: str
    queue: int
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBytePointer:
    """A byte of an index file."""

    kind: Literal["index"] = "index"
    name: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPointer:
    """A slot of an index file."""

    kind: Literal["index"] = "index"
    name: str
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPointer:
    """An entry of an index file."""

    kind: Literal["index"] = "index"
    name: str
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSlotPointer:
    """A slot of the timer wheel."""

    kind: Literal["timerwheel"] = "timerwheel"
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPointer:
    """The checkpoint file."""

    kind: Literal["checkpoint"] = "checkpoint"


Pointer: TypeAlias = (
    BytePointer
    | QueueBytePointer
    | UnitPointer
    | IndexBytePointer
    | SlotPointer
    | EntryPointer
    | WheelSlotPointer
    | CheckpointPointer
)


def to_log(offset: int) -> BytePointer:
    """The pointer to a position of the commit log."""
    return BytePointer(kind="commitlog", offset=offset)
