"""What the kinds of files have in common when their bytes are cut into pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from broker_store.engine.disk.file_access import Reader
from broker_store.facts.bytes.pieces import Jump, Piece
from broker_store.facts.bytes.place import Place
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.pointers import BytePointer, Pointer
from broker_store.facts.store_facts import StoreFacts

MAX_CHECKED = 64  # units or entries of one request that are compared with their records


@dataclass(frozen=True, slots=True)
class File:
    """The file whose bytes are shown. Positions in it count from its first byte."""

    path: Path
    base: int  # position of its first byte in the sequence of files
    size: int  # bytes
    reader: Reader

    def read(self, at: int, length: int) -> bytes:
        """Return exactly `length` bytes, zeros for those that are not in the file."""
        return self.reader.read(at, min(length, max(0, self.size - at))).ljust(length, b"\0")


class Cutter(ABC):
    """What a kind of file is made of. Positions, also those of pieces, count from the file's first byte;
    fields and pointers have positions in the sequence of files."""

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, file: File, place: Place):
        self.directory, self.facts, self.file, self.place = directory, facts, file, place
        self.checked = 0

    @abstractmethod
    def usual_length(self, at: int) -> int:
        """Return how many bytes from `at` on are shown when no length is asked for."""

    @abstractmethod
    def begin(self, at: int) -> int:
        """Return where the piece begins that holds `at`."""

    @abstractmethod
    def piece(self, at: int, end: int) -> Piece:
        """Return the piece that begins at `at`; room may be cut at `end`."""

    def jumps(self, first: Piece) -> list[Jump]:
        """Return the places that belong to the first piece, beside those its fields point to."""
        return []

    def before(self, start: int) -> Pointer | None:
        """Return the place of the stretch before `start`; None at the beginning."""
        return self.pointer(max(0, start - self.usual_length(start))) if start else None

    def after(self, end: int) -> Pointer | None:
        """Return the place of the stretch after `end`; None at the end."""
        return self.pointer(end) if end < self.file.size else None

    @abstractmethod
    def pointer(self, at: int) -> Pointer:
        """Return the pointer to `at`."""

    def zeros(self, at: int, end: int, step: int) -> int:
        """Return how many bytes from `at` on, in whole steps and at most to `end`, are zero."""
        data = self.file.read(at, max(end - at, step))
        return (len(data) - len(data.lstrip(b"\0"))) // step * step


class SimpleCutter(Cutter):
    """A kind of file in which a position is enough to name a place."""

    kind: Literal["commitlog", "checkpoint", "timerlog", "timerwheel", "timercheck"]

    def pointer(self, at: int) -> BytePointer:
        return BytePointer(kind=self.kind, offset=self.file.base + at)


def numbered(what: str, first: int, last: int) -> str:
    """Return the title of units or slots: "unit 5", "units 5 to 9"."""
    return f"{what} {first:,}" if first == last else f"{what}s {first:,} to {last:,}"
