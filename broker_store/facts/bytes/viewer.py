"""The byte viewer: any stretch of any file of a store, cut into named pieces."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from broker_store.errors import NotFoundError
from broker_store.facts.bytes.cutter import Cutter, File
from broker_store.facts.bytes.index import Index
from broker_store.facts.bytes.log import Log
from broker_store.facts.bytes.pieces import FileBytes, Piece
from broker_store.facts.bytes.place import MAX_BYTES, Kind, Place
from broker_store.facts.bytes.queue import Queue
from broker_store.facts.bytes.stamps import Checkpoint, TimerCheck
from broker_store.facts.bytes.timer import TimerLog, TimerWheel
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.store_facts import FileFacts, StoreFacts
from broker_store.formats import queue_unit, timer_check, timer_wheel
from broker_store.formats.index_file import IndexGeometry

MAX_PIECES = 1_024
_CUTTERS: dict[Kind, type[Cutter]] = {
    "commitlog": Log,
    "consumequeue": Queue,
    "index": Index,
    "checkpoint": Checkpoint,
    "timercheck": TimerCheck,
    "timerlog": TimerLog,
    "timerwheel": TimerWheel,
}


class _Found(NamedTuple):
    """A file, and a position in it that counts from its first byte."""

    path: Path
    base: int
    size: int
    start: int


class Viewer:
    """Shows the bytes of one store's files. At most `max_usual` bytes are shown when no length is asked for.

    It reads by position, not through a map, and may wait for the disk: call it in a thread.
    """

    def __init__(
        self, directory: StoreDirectory, facts: StoreFacts | None = None, max_usual: int = MAX_BYTES
    ):
        self._directory = directory
        self._facts = facts or FileFacts(directory)
        self._max_usual = max_usual
        self._finders: dict[Kind, Callable[[Place], _Found]] = {
            "commitlog": self._find_in_log,
            "consumequeue": self._find_in_queue,
            "index": self._find_in_index,
            "checkpoint": lambda place: self._single(directory.root / "checkpoint", place.offset or 0),
            "timercheck": lambda place: self._single(directory.root / timer_check.PATH, place.offset or 0),
            "timerlog": self._find_in_timer_log,
            "timerwheel": self._find_in_timer_wheel,
        }

    def read(self, place: Place) -> FileBytes:
        """Return the bytes at a place. NotFoundError when the store has no such file or place."""
        place.check()
        path, base, size, start = self._finders[place.kind](place)
        with self._directory.disk.open_reader(path) as reader:
            file = File(path, base, size, reader)
            cutter = _CUTTERS[place.kind](self._directory, self._facts, file, place)
            usual = min(cutter.usual_length(start), self._max_usual)
            length = min(place.length or usual, size - start)
            pieces, end = _cut(cutter, start, start + length)
            return FileBytes(
                kind=place.kind,
                file=self._name_of(path),
                name=path.name,
                topic=place.topic,
                queue=place.queue if place.kind == "consumequeue" else None,
                file_at=base,
                file_size=size,
                at=base + start,
                length=end - start,
                cut=start + length - end,
                hex=file.read(start, end - start).hex(),
                pieces=[replace(one, at=base + one.at) for one in pieces],
                jumps=cutter.jumps(pieces[0]),
                before=cutter.before(start),
                after=cutter.after(end),
                at_ms=time.time_ns() // 1_000_000,
                source=self._facts.source,
            )

    def _name_of(self, path: Path) -> str:
        """Return the path in the store; the log may lie outside of it."""
        root = self._directory.root
        return str(path.relative_to(root)) if path.is_relative_to(root) else f"commitlog/{path.name}"

    def _find_in_log(self, place: Place) -> _Found:
        return _in_sequence(self._directory.log_files(), place.offset, "the commit log")

    def _find_in_queue(self, place: Place) -> _Found:
        files = self._directory.queue_files(place.topic, place.queue)
        if not files:
            raise NotFoundError(f"queue {place.queue} of topic {place.topic} has no files")
        offset = place.offset if place.unit is None else place.unit * queue_unit.SIZE
        return _in_sequence(files, offset, f"queue {place.queue} of topic {place.topic}")

    def _find_in_index(self, place: Place) -> _Found:
        files = self._directory.index_files()
        if not files:
            raise NotFoundError("there is no index file")
        found = [file for file in files if file[0] == place.name] if place.name else files
        if not found:
            raise NotFoundError(
                f"there is no index file {place.name!r:.40}; there are "
                + ", ".join(file[0] for file in files[-8:])
            )
        name, _, shape = found[-1]
        path, at = self._directory.root / "index" / name, place.offset or 0
        if place.slot is not None:
            shape = _known(name, shape)
            _check_number(name, place.slot, shape.slots, "slots")
            at = shape.slot_at(place.slot)
        elif place.entry is not None:
            shape = _known(name, shape)
            _check_number(name, place.entry, shape.entries, "entries")
            at = shape.entry_at(place.entry)
        return self._single(path, at)

    def _find_in_timer_log(self, place: Place) -> _Found:
        files = self._directory.timer_log_files()
        if not files:
            raise NotFoundError("there is no timer log: no message was timed yet")
        return _in_sequence(files, place.offset, "the timer log")

    def _find_in_timer_wheel(self, place: Place) -> _Found:
        at = (place.offset or 0) if place.slot is None else place.slot * timer_wheel.SLOT_BYTES
        return self._single(self._directory.root / timer_wheel.PATH, at)

    def _single(self, path: Path, at: int) -> _Found:
        if not self._directory.disk.exists(path):
            raise NotFoundError(f"the store has no file {path.name}")
        size = self._directory.disk.size_of(path)
        if at >= size:
            raise NotFoundError(f"{path.name} has {size:,} bytes; there is none at {at:,}")
        return _Found(path, 0, size, at)


def _known(file: str, shape: IndexGeometry | None) -> IndexGeometry:
    """Return the geometry of an index file. NotFoundError when it is not known."""
    if shape is None:
        raise NotFoundError(f"how many slots index file {file} has is not known; give --slots and --entries")
    return shape


def _check_number(file: str, number: int, count: int, what: str) -> None:
    if number >= count:
        raise NotFoundError(
            f"index file {file} has {count:,} {what}, counted from 0; there is no number {number:,}"
        )


def _in_sequence(files: list[tuple[int, int, Path]], offset: int | None, what: str) -> _Found:
    """Return the file of a sequence that holds a position; None stands for the first position."""
    if not files:
        raise NotFoundError(f"{what} has no files")
    offset = files[0][0] if offset is None else offset
    for base, size, path in files:
        if base <= offset < base + size:
            return _Found(path, base, size, offset - base)
    raise NotFoundError(
        f"position {offset:,} is not in {what}: its files hold {files[0][0]:,} to "
        f"{files[-1][0] + files[-1][1] - 1:,}"
    )


def _cut(cutter: Cutter, start: int, end: int) -> tuple[list[Piece], int]:
    """Return the pieces that cover [start, end) of a file, and where they end if there would be too many."""
    pieces: list[Piece] = []
    at = cutter.begin(start)
    while at < end:
        if len(pieces) == MAX_PIECES:
            return pieces, at
        one = cutter.piece(at, end)
        pieces.append(one)
        at += one.length
    return pieces, end
