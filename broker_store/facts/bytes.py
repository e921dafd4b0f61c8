"""The byte viewer: a stretch of any file of a store, cut into pieces that are named, each with its fields
(fields.py).

    commitlog      records, blanks (end of a file), never written room, bytes that are no record
    consumequeue   units of 20 bytes
    index          the header, slots of 4 bytes, entries of 20
    checkpoint, timercheck   their longs
    timerlog       units of 52 bytes, blanks; timerwheel: slots of 32

`Viewer.look(Place)` reads by position, never through a map, and may wait for the disk: it belongs into a
thread. What it gives is ready for a page or for JSON:

    {"kind", "file", "name", "topic", "queue", "file_at", "file_size", "at", "length", "hex", "pieces", "cut",
    "jumps", "before", "behind", "at_ms", "source"}

`file_at` is the position in the sequence of files at which this one begins, `at` the position of the first
byte shown, `cut` how many bytes less than asked for are shown. A piece is {"what", "title", "at", "length",
"sentence", "tone", "fields"}; the pieces cover what is shown, the first and the last may reach beyond it. A
jump is {"title", "pointer", "why"}: a pointer is the parameters of another look, None when there is nowhere
to go, and `why` says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_store.engine.disk.file_access import Reader
from broker_store.errors import FieldError, FormatError, NotFoundError
from broker_store.facts import fields, neighbours, whereabouts
from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.fields import Field, Pointer
from broker_store.facts.knowing import FromFiles, Knowing
from broker_store.formats import (
    checkpoint,
    index_file,
    names,
    queue_unit,
    record,
    timer_check,
    timer_log,
    timer_wheel,
)
from broker_store.formats.index_file import IndexGeometry, IndexHeader

KINDS = ("commitlog", "consumequeue", "index", "checkpoint", "timerlog", "timerwheel", "timercheck")
MAX_BYTES = 64 << 10  # of one look
MAX_PIECES = 1_024
CHECKED_UNITS = 64  # units and entries of a look that are compared with their record
# Shown when no length is asked for
_UNITS, _SLOTS, _ENTRIES, _TIMER_UNITS, _WHEEL_SLOTS, _ROOM = 16, 64, 16, 8, 8, 256

Piece = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look. `offset` is a position in the log, in a queue or in the timer log, and in one file for
    the others; for a queue `unit`, for an index file `slot` or `entry`, for the wheel `slot` may stand in its
    place. Without any of them it is the beginning."""

    kind: str = "commitlog"
    offset: int | None = None
    topic: str = ""
    queue: int = 0
    unit: int | None = None
    name: str = ""
    slot: int | None = None
    entry: int | None = None
    length: int | None = None

    def check(self) -> Place:
        """Itself. FieldError, NameError_ for what cannot be a place."""
        if self.kind not in KINDS:
            raise FieldError("kind", self.kind, "one of " + ", ".join(KINDS))
        for name in ("offset", "queue", "unit", "slot", "entry"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1 << 63:
                raise FieldError(name, value, "a number from 0 on")
        if self.length is not None and not 0 < self.length <= MAX_BYTES:
            raise FieldError("length", self.length, f"1 to {MAX_BYTES} bytes")
        if self.kind == "consumequeue":
            names.check_stored_topic(self.topic)
        return self


@dataclass(slots=True)
class _File:
    """The file that is looked at. Within it places are counted from its first byte."""

    kind: str
    path: Path
    base: int
    size: int
    reader: Reader

    def read(self, at: int, length: int) -> bytes:
        """Exactly so many bytes, zeros for what is not in the file."""
        return self.reader.read(at, min(length, max(0, self.size - at))).ljust(length, b"\0")


def piece(
    what: str,
    title: str,
    at: int,
    length: int,
    sentence: str = "",
    tone: str = "",
    its_fields: list[Field] | None = None,
) -> Piece:
    return {
        "what": what,
        "title": title,
        "at": at,
        "length": length,
        "sentence": sentence,
        "tone": tone,
        "fields": its_fields or [],
    }


def jump(title: str, pointer: Pointer | None, why: str = "") -> dict:
    return {"title": title, "pointer": pointer, "why": why}


class Viewer:
    """Looks at one store's files. `most` bytes are shown of what has its own length, where none is asked
    for."""

    def __init__(self, directory: StoreDirectory, knows: Knowing | None = None, most: int = MAX_BYTES):
        self._directory = directory
        self._knows = knows or FromFiles(directory)
        self._most = most

    def look(self, place: Place) -> dict:
        """See the module. NotFoundError when the store has no such file or place."""
        place.check()
        path, base, size, start = getattr(self, f"_find_{place.kind}")(place)
        with self._directory.disk.open_reader(path) as reader:
            file = _File(place.kind, path, base, size, reader)
            cutter = _CUTTERS[place.kind](self._directory, self._knows, file, place)
            length = min(place.length or min(cutter.usual_length(start), self._most), size - start)
            pieces, end = _cut(cutter, start, start + length)
            return {
                "kind": place.kind,
                "file": str(path.relative_to(self._directory.root))
                if path.is_relative_to(self._directory.root)
                else f"commitlog/{path.name}",
                "name": path.name,
                "topic": place.topic,
                "queue": place.queue if place.kind == "consumequeue" else None,
                "file_at": base,
                "file_size": size,
                "at": base + start,
                "length": end - start,
                "cut": start + length - end,
                "hex": file.read(start, end - start).hex(),
                "pieces": [one | {"at": base + one["at"]} for one in pieces],
                "jumps": cutter.jumps(pieces[0]),
                "before": cutter.before(start),
                "behind": cutter.behind(start, end),
                "at_ms": time.time_ns() // 1_000_000,
                "source": self._knows.source,
            }

    # Finding the file

    def _find_commitlog(self, place: Place) -> tuple[Path, int, int, int]:
        return _in_sequence(self._directory.log_files(), place.offset, "the commit log")

    def _find_consumequeue(self, place: Place) -> tuple[Path, int, int, int]:
        files = self._directory.queue_files(place.topic, place.queue)
        if not files:
            raise NotFoundError(f"queue {place.queue} of topic {place.topic} has no files")
        offset = place.offset if place.unit is None else place.unit * queue_unit.SIZE
        return _in_sequence(files, offset, f"queue {place.queue} of topic {place.topic}")

    def _find_index(self, place: Place) -> tuple[Path, int, int, int]:
        files = self._directory.index_files()
        if not files:
            raise NotFoundError("there is no index file")
        name, _, shape = next(
            (file for file in files if file[0] == place.name),
            files[-1] if not place.name else ("", None, None),
        )
        if not name:
            raise NotFoundError(
                f"there is no index file {place.name!r:.40}; there are "
                + ", ".join(file[0] for file in files[-8:])
            )
        path, at = self._directory.root / "index" / name, place.offset or 0
        if place.slot is not None or place.entry is not None:
            if shape is None:
                raise NotFoundError(
                    f"how many slots index file {name} has is not known; give --slots and --entries"
                )
            number, most, what = (
                (place.slot, shape.slots, "slots")
                if place.slot is not None
                else (place.entry, shape.entries, "entries")
            )
            if number >= most:
                raise NotFoundError(
                    f"index file {name} has {most:,} {what}, counted from 0; there is no number {number:,}"
                )
            at = shape.slot_at(number) if place.slot is not None else shape.entry_at(number)
        return self._single(path, at)

    def _find_checkpoint(self, place: Place) -> tuple[Path, int, int, int]:
        return self._single(self._directory.root / "checkpoint", place.offset or 0)

    def _find_timercheck(self, place: Place) -> tuple[Path, int, int, int]:
        return self._single(self._directory.root / timer_check.PATH, place.offset or 0)

    def _find_timerlog(self, place: Place) -> tuple[Path, int, int, int]:
        files = self._directory.timer_log_files()
        if not files:
            raise NotFoundError("there is no timer log: no message was timed yet")
        return _in_sequence(files, place.offset, "the timer log")

    def _find_timerwheel(self, place: Place) -> tuple[Path, int, int, int]:
        return self._single(
            self._directory.root / timer_wheel.PATH,
            (place.offset or 0) if place.slot is None else place.slot * timer_wheel.SLOT_BYTES,
        )

    def _single(self, path: Path, at: int) -> tuple[Path, int, int, int]:
        if not self._directory.disk.exists(path):
            raise NotFoundError(f"the store has no file {path.name}")
        size = self._directory.disk.size_of(path)
        if at >= size:
            raise NotFoundError(f"{path.name} has {size:,} bytes; there is none at {at:,}")
        return path, 0, size, at


def record_view(raw: bytes, log_offset: int, most: int) -> dict:
    """The fields of one record whose bytes are at hand, and `most` of its bytes, in the shape of a look
    without where else it leads."""
    its_fields, trouble = fields.record_fields(raw, log_offset)
    return {
        "kind": "commitlog",
        "at": log_offset,
        "length": min(len(raw), most),
        "cut": max(0, len(raw) - most),
        "hex": raw[:most].hex(),
        "pieces": [
            piece(
                "record",
                "record",
                log_offset,
                len(raw),
                f"No reader takes this for a sound record: {trouble}." if trouble else "",
                "bad" if trouble else "",
                its_fields,
            )
        ],
    }


def _in_sequence(
    files: list[tuple[int, int, Path]], offset: int | None, what: str
) -> tuple[Path, int, int, int]:
    """(path, base, size, place in the file) of a position in a sequence of files; the first there is for
    None."""
    if not files:
        raise NotFoundError(f"{what} has no files")
    offset = files[0][0] if offset is None else offset
    for base, size, path in files:
        if base <= offset < base + size:
            return path, base, size, offset - base
    raise NotFoundError(
        f"position {offset:,} is not in {what}: its files hold {files[0][0]:,} to "
        f"{files[-1][0] + files[-1][1] - 1:,}"
    )


def _cut(cutter: _Cutter, start: int, end: int) -> tuple[list[Piece], int]:
    """The pieces that cover [start, end) of a file, and where that ends when there would be too many."""
    pieces, at = [], cutter.begin(start)
    while at < end:
        if len(pieces) == MAX_PIECES:
            return pieces, at
        one = cutter.piece(at, end)
        pieces.append(one)
        at += one["length"]
    return pieces, end


class _Cutter:
    """What a kind of file is made of. Places count from the file's first byte; pointers name positions in the
    sequence."""

    def __init__(self, directory: StoreDirectory, knows: Knowing, file: _File, place: Place):
        self.directory, self.knows, self.file, self.place = directory, knows, file, place
        self.checked = 0

    def usual_length(self, at: int) -> int:
        raise NotImplementedError

    def begin(self, at: int) -> int:
        """Where the piece that `at` lies in begins."""
        raise NotImplementedError

    def piece(self, at: int, end: int) -> Piece:
        """What begins at `at`; room may be cut at `end`."""
        raise NotImplementedError

    def jumps(self, first: Piece) -> list[dict]:
        """Where the first piece leads, beside what its fields point to."""
        return []

    def before(self, start: int) -> Pointer | None:
        length = self.usual_length(start)
        return self.pointer(max(0, start - length)) if start else None

    def behind(self, start: int, end: int) -> Pointer | None:
        return self.pointer(end) if end < self.file.size else None

    def pointer(self, at: int) -> Pointer:
        return {"kind": self.file.kind, "offset": self.file.base + at}

    def zeros(self, at: int, end: int, step: int, one_at_least: int = 1) -> int:
        """How many bytes from `at` on, in whole steps and at most to `end`, are zero."""
        data = self.file.read(at, max(end - at, step * one_at_least))
        return (len(data) - len(data.lstrip(b"\0"))) // step * step


class _Log(_Cutter):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._positions = self.knows.positions()

    def usual_length(self, at: int) -> int:
        head = record.read_head(self.file.read(at, record.HEAD.size))
        return head.total_size if head.is_record and self._fits(head.total_size, at) else _ROOM

    def _fits(self, size: int, at: int) -> bool:
        return record.MIN_RECORD <= size <= min(neighbours.MOST_RECORD, self.file.size - at)

    def begin(self, at: int) -> int:
        if self._is_begin(at):
            return at
        found = neighbours.record_before(self.file.reader, self.file.base, self.file.size, at)
        if found is None:
            return at
        start, size = found
        if start + size > at:
            return start
        after = record.read_head(self.file.read(start + size, record.HEAD.size))
        # In the unused rest of a file, behind its blank.
        return start + size if after.is_blank and after.total_size == self.file.size - start - size else at

    def _is_begin(self, at: int) -> bool:
        head = record.read_head(self.file.read(at, record.HEAD.size))
        return head.is_blank or (head.is_record and self._fits(head.total_size, at))

    def piece(self, at: int, end: int) -> Piece:
        left = self.file.size - at
        head = record.read_head(self.file.read(at, record.HEAD.size))
        if head.is_blank and left >= record.BLANK_BYTES:
            right = head.total_size == left
            sentence = (
                "The rest of this file is not used: the next record begins with the next file."
                if right
                else f"This is an end of file, but it says that {head.total_size:,} bytes are left, and "
                f"{left:,} are."
            )
            return piece(
                "blank",
                f"end of file, {left:,} bytes left",
                at,
                left,
                sentence,
                "" if right else "bad",
                fields.blank_fields(self.file.read(at, 8), self.file.base + at, left),
            )
        if head.is_record and self._fits(head.total_size, at):
            return self._record(at, head.total_size)
        zeros = self.zeros(at, end, 1)
        if zeros >= min(record.HEAD.size, end - at):
            return piece("room", f"{zeros:,} zeros", at, zeros, *self._room_words(at, end))
        return self._nothing(at, end, head)

    def _record(self, at: int, size: int) -> Piece:
        raw = self.file.read(at, size)
        its_fields, trouble = fields.record_fields(raw, self.file.base + at)
        title = f"record of {size:,} bytes"
        if trouble:
            return piece(
                "record",
                title,
                at,
                size,
                f"No reader takes this for a sound record: {trouble}.",
                "bad",
                its_fields,
            )
        stored = record.decode(raw, max_size=len(raw), check_crc=False)
        fields.link_queue_offset(its_fields, stored)
        return piece(
            "record",
            f"{title}: {stored.topic}, queue {stored.queue_id}, offset {stored.queue_offset:,}",
            at,
            size,
            *self._how_far(at, size),
            its_fields,
        )

    def _how_far(self, at: int, size: int) -> tuple[str, str]:
        """(sentence, tone): whether the positions have passed a record yet."""
        known, begin, end = self._positions, self.file.base + at, self.file.base + at + size
        if known.wrote is not None and begin >= known.wrote:
            return (
                f"It lies beyond the end of the log, which is {known.wrote:,}: no reader gets it, "
                f"and what is written next replaces it.",
                "warn",
            )
        if known.dispatched is not None and begin >= known.dispatched:
            return (
                f"It is not dispatched yet: queues and index know the log up to {known.dispatched:,}.",
                "warn",
            )
        if known.flushed is not None and end > known.flushed:
            return f"It is in memory only: the log is on the disk up to {known.flushed:,}.", "warn"
        return "", ""

    def _room_words(self, at: int, end: int) -> tuple[str, str]:
        wrote = self._positions.wrote
        if wrote is not None and self.file.base + at >= wrote:
            return f"Never written: the log ends at {wrote:,}, and this room was made ahead.", ""
        return self._then(
            at, "Zeros, so no record: never written, or lost."
        ), "warn" if wrote is None else "bad"

    def _nothing(self, at: int, end: int, head: record.Head) -> Piece:
        following = neighbours.next_record(self.file.reader, self.file.base, self.file.size, at + 1)
        why = (
            f"its size would be {head.total_size:,} bytes"
            if head.is_record
            else f"its magic would be {head.magic & 0xFFFFFFFF:#010x}"
        )
        length = (self.file.size if following is None else following) - at
        wrote = self._positions.wrote
        is_beyond = wrote is not None and self.file.base + at >= wrote
        sentence = f"No record begins here: {why}." + (
            f" It lies beyond the end of the log, which is {wrote:,}." if is_beyond else ""
        )
        return piece(
            "nothing",
            "bytes that are no record",
            at,
            min(length, max(end - at, 1)),
            self._then(at, sentence, following),
            "warn" if is_beyond else "bad",
        )

    def _then(self, at: int, sentence: str, following: int | None = None) -> str:
        following = (
            neighbours.next_record(self.file.reader, self.file.base, self.file.size, at + 1)
            if following is None
            else following
        )
        if following is not None:
            return f"{sentence} The next record begins at {self.file.base + following:,}."
        searched = min(self.file.size, at + 1 + neighbours.SEARCH_BYTES)
        return f"{sentence} None begins before {self.file.base + searched:,}" + (
            ", the end of this file." if searched == self.file.size else "; further was not looked."
        )

    def jumps(self, first: Piece) -> list[dict]:
        at = first["at"]
        found = [self._previous(at), self._next(first)]
        stored = (
            whereabouts.message_at(self.directory, self.file.base + at) if first["what"] == "record" else None
        )
        if stored is None:
            return found
        unit = whereabouts.unit_of(self.directory, self.knows, stored)
        words = {"there": "", "wrong": f"WRONG: {unit.why}"}.get(unit.state, unit.why)
        found.append(jump(f"Its unit in queue {stored.queue_id} of {stored.topic}", unit.pointer, words))
        for entry in whereabouts.entries_of(self.directory, self.knows, stored, SHOWN_KEYS):
            found.append(jump(f"Index entry of its {entry.of} {entry.text}", entry.pointer, entry.why))
        if len(stored.keys) > SHOWN_KEYS:
            more = f"Index entries of {len(stored.keys) - SHOWN_KEYS:,} more keys"
            found.append(jump(more, None, f"only its first {SHOWN_KEYS} keys are looked up"))
        if stored.prepared_transaction_offset > 0:
            found.append(jump("Its prepared half", fields.to_log(stored.prepared_transaction_offset)))
        return found

    def _previous(self, at: int) -> dict:
        if at:
            found = neighbours.record_before(self.file.reader, self.file.base, self.file.size, at)
            return jump(
                "Previous record",
                None if found is None else self.pointer(found[0]),
                "" if found else "none was found before it in this file",
            )
        before = [file for file in self.directory.log_files() if file[0] < self.file.base]
        if not before:
            return jump("Previous record", None, "this is where the log begins")
        base, size, path = before[-1]
        with self.directory.disk.open_reader(path) as reader:
            found = neighbours.record_before(reader, base, size, size)
        return jump(
            "Previous record",
            None if found is None else fields.to_log(base + found[0]),
            "" if found else "none was found at the end of the file before",
        )

    def _next(self, first: Piece) -> dict:
        if first["what"] in ("record", "blank"):
            at = first["at"] + first["length"]
            head = record.read_head(self.file.read(at, record.HEAD.size)) if at < self.file.size else None
            if head is None or (head.is_blank and first["what"] == "record"):
                following = [file for file in self.directory.log_files() if file[0] > self.file.base]
                if following:
                    return jump(
                        "Next record",
                        fields.to_log(following[0][0]),
                        "" if head is None else "behind the end of this file",
                    )
                return jump("Next record", None, "there is no further file")
            return jump("Next record", self.pointer(at))
        found = neighbours.next_record(self.file.reader, self.file.base, self.file.size, first["at"] + 1)
        return jump(
            "Next record",
            None if found is None else self.pointer(found),
            "" if found is not None else "none was found behind it in this file",
        )

    def before(self, start: int) -> Pointer | None:
        if not start:
            return self._previous(0)["pointer"]
        found = neighbours.record_before(self.file.reader, self.file.base, self.file.size, start)
        return self.pointer(
            found[0] if found is not None and sum(found) > start - _ROOM else max(0, start - _ROOM)
        )

    def behind(self, start: int, end: int) -> Pointer | None:
        if end < self.file.size:
            return self.pointer(end)
        following = [base for base, _, _ in self.directory.log_files() if base > self.file.base]
        return fields.to_log(following[0]) if following else None


class _Queue(_Cutter):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._span = self.knows.queue_span(self.place.topic, self.place.queue)
        self._dispatched = self.knows.positions().dispatched

    def usual_length(self, at: int) -> int:
        return _UNITS * queue_unit.SIZE

    def begin(self, at: int) -> int:
        return at // queue_unit.SIZE * queue_unit.SIZE

    def pointer(self, at: int) -> Pointer:
        return {
            "kind": "consumequeue",
            "topic": self.place.topic,
            "queue": self.place.queue,
            "offset": self.file.base + at,
        }

    def piece(self, at: int, end: int) -> Piece:
        number = (self.file.base + at) // queue_unit.SIZE
        zeros = self.zeros(at, end, queue_unit.SIZE)
        if zeros:
            return self._room(at, zeros, number)
        raw = self.file.read(at, queue_unit.SIZE)
        unit = queue_unit.decode(raw)
        its_fields = fields.unit_fields(raw, self.file.base + at, self.place.topic)
        sentence, tone = "", ""
        if unit.is_pre_blank:
            sentence = (
                "Filled up: the queue does not begin at offset 0, so the units before its first one say "
                "nothing."
            )
        elif self._span is not None and number < self._span[0]:
            sentence, tone = (
                f"Readers begin at {self._span[0]:,}: the record that it names was cleaned away.",
                "warn",
            )
        elif self._span is not None and number >= self._span[1]:
            sentence, tone = f"The queue ends at {self._span[1]:,}: readers do not see this unit.", "warn"
        elif unit.is_data and self.checked < CHECKED_UNITS:
            self.checked += 1
            sentence, tone = self._compare(unit, number, its_fields)
        elif not unit.is_data:
            sentence, tone = "No unit could be like this.", "bad"
        return piece("unit", f"unit {number:,}", at, queue_unit.SIZE, sentence, tone, its_fields)

    def _room(self, at: int, zeros: int, number: int) -> Piece:
        last = number + zeros // queue_unit.SIZE - 1
        title = f"unit {number:,}" if last == number else f"units {number:,} to {last:,}"
        if self._span is not None and number < self._span[1]:
            if self.knows.is_tried:
                return piece(
                    "hole",
                    title,
                    at,
                    zeros,
                    f"Nothing is written here. The start that was tried in memory made units up to "
                    f"{self._span[1]:,}.",
                    "warn",
                )
            return piece(
                "hole",
                title,
                at,
                zeros,
                f"A hole: the queue ends at {self._span[1]:,}, and nothing is written here.",
                "bad",
            )
        return piece(
            "room",
            title,
            at,
            zeros,
            "Never written" + (f": the queue ends at {self._span[1]:,}." if self._span else "."),
        )

    def _compare(self, unit: queue_unit.QueueUnit, number: int, its_fields: list[Field]) -> tuple[str, str]:
        """Whether the record is what the unit says, told in its fields as well."""
        stored = whereabouts.message_at(self.directory, unit.log_offset)
        by_name = {one["name"]: one for one in its_fields}
        if stored is None:
            by_name["log_offset"]["right"] = False
            return f"WRONG: no record begins at {unit.log_offset:,}.", "bad"
        if (stored.topic, stored.queue_id, stored.queue_offset) != (
            self.place.topic,
            self.place.queue,
            number,
        ):
            by_name["log_offset"]["right"] = False
            return (
                f"WRONG: the record there is of {stored.topic}, queue {stored.queue_id}, offset "
                f"{stored.queue_offset:,}.",
                "bad",
            )
        by_name["log_offset"]["right"], by_name["size"]["right"] = True, unit.size == stored.size
        if self.place.topic != queue_unit.SCHEDULE_TOPIC:
            tags = stored.tags
            by_name["tags_code"]["right"] = (
                tags_code := queue_unit.tags_code("", tags, None, 0)
            ) == unit.tags_code
            by_name["tags_code"]["value"] += (
                f" (of tag {tags})"
                if tags_code == unit.tags_code and tags
                else ""
                if tags_code == unit.tags_code
                else f" (WRONG: the message's tag has {tags_code})"
            )
        wrong = whereabouts.disagreement(unit, stored)
        return (f"WRONG: {wrong}.", "bad") if wrong else (f"Message {stored.message_id}.", "")

    def before(self, start: int) -> Pointer | None:
        if start:
            return super().before(start)
        files = [
            file
            for file in self.directory.queue_files(self.place.topic, self.place.queue)
            if file[0] < self.file.base
        ]
        return self.pointer(-self.usual_length(0)) if files else None

    def behind(self, start: int, end: int) -> Pointer | None:
        if end < self.file.size:
            return self.pointer(end)
        is_last = all(
            base <= self.file.base
            for base, _, _ in self.directory.queue_files(self.place.topic, self.place.queue)
        )
        return None if is_last else self.pointer(self.file.size)


class _Index(_Cutter):
    shape: IndexGeometry | None
    header: IndexHeader

    def __init__(self, *arguments):
        super().__init__(*arguments)
        name, self.header, self.shape = next(
            file for file in self.directory.index_files() if file[0] == self.file.path.name
        )
        self.name = name

    @property
    def _entries_at(self) -> int:
        return self.file.size if self.shape is None else self.shape.entries_at

    def usual_length(self, at: int) -> int:
        if at < index_file.HEADER.size:
            return index_file.HEADER.size - at + _SLOTS * index_file.SLOT.size
        return _SLOTS * index_file.SLOT.size if at < self._entries_at else _ENTRIES * index_file.ENTRY.size

    def begin(self, at: int) -> int:
        if at < index_file.HEADER.size:
            return 0
        if self.shape is None:
            return at
        first, size = (
            (index_file.HEADER.size, index_file.SLOT.size)
            if at < self._entries_at
            else (self._entries_at, index_file.ENTRY.size)
        )
        return first + (at - first) // size * size

    def pointer(self, at: int) -> Pointer:
        return {"kind": "index", "name": self.name, "offset": at}

    def piece(self, at: int, end: int) -> Piece:
        if at < index_file.HEADER.size:
            return piece(
                "header",
                "header",
                at,
                index_file.HEADER.size,
                "",
                "",
                fields.header_fields(self.file.read(at, index_file.HEADER.size), at),
            )
        if self.shape is None:
            return piece(
                "nothing",
                "slots and entries",
                at,
                end - at,
                "How many slots this file has is not known from its length, so they are not told "
                "from entries.",
                "warn",
            )
        return self._slot(at, end) if at < self._entries_at else self._entry(at, end)

    def _slot(self, at: int, end: int) -> Piece:
        number = (at - index_file.HEADER.size) // index_file.SLOT.size
        zeros = self.zeros(at, min(end, self._entries_at), index_file.SLOT.size)
        if zeros:
            last = min(number + zeros // index_file.SLOT.size, self.shape.slots) - 1
            return piece(
                "room",
                f"slot {number:,}" if last == number else f"slots {number:,} to {last:,}",
                at,
                (last - number + 1) * index_file.SLOT.size,
                "No entry." if last == number else "No entries.",
            )
        its_fields = fields.slot_fields(
            self.file.read(at, index_file.SLOT.size), at, self.name, self.header.count
        )
        wrong = its_fields[0]["right"] is False
        return piece(
            "slot",
            f"slot {number:,}",
            at,
            index_file.SLOT.size,
            "WRONG: it leads to no entry." if wrong else "",
            "bad" if wrong else "",
            its_fields,
        )

    def _entry(self, at: int, end: int) -> Piece:
        size = index_file.ENTRY.size
        number = (at - self._entries_at) // size
        if number == 0:
            return piece(
                "room",
                "entry 0",
                at,
                size,
                "Never used: numbers begin at 1, so that 0 can say none.",
                "",
                None,
            )
        if number >= self.header.count:
            count = max(1, -(-(end - at) // size))
            return piece(
                "room",
                f"entries {number:,} to {number + count - 1:,}",
                at,
                count * size,
                f"Never written: the file has entries 1 to {self.header.count - 1:,}."
                if self.header.count > 1
                else "Never written: the file has no entry yet.",
            )
        raw = self.file.read(at, size)
        its_fields = fields.entry_fields(raw, at, self.name, number, self.shape, self.header.begin_timestamp)
        wrong = any(one["right"] is False for one in its_fields)
        sentence, tone = ("WRONG: the entry before it is not lower.", "bad") if wrong else ("", "")
        if not wrong and self.checked < CHECKED_UNITS:
            self.checked += 1
            sentence, tone = self._compare(index_file.decode_entry(raw), its_fields)
        return piece("entry", f"entry {number:,}", at, size, sentence, tone, its_fields)

    def _compare(self, entry: index_file.IndexEntry, its_fields: list[Field]) -> tuple[str, str]:
        by_name = {one["name"]: one for one in its_fields}
        if entry.log_offset < self.knows.positions().min:
            return "The record that it names was cleaned away.", "warn"
        stored = whereabouts.message_at(self.directory, entry.log_offset)
        if stored is None:
            by_name["log_offset"]["right"] = False
            return f"WRONG: no record begins at {entry.log_offset:,}.", "bad"
        texts = index_file.texts_of(stored.topic, stored.unique_key, " ".join(stored.keys), stored.tags)
        named = [text for text in texts if index_file.key_hash(text) == entry.key_hash]
        by_name["key_hash"]["right"] = bool(named)
        return (
            (f"Of {named[0]}.", "") if named else ("WRONG: the record there has no key of this hash.", "bad")
        )

    def jumps(self, first: Piece) -> list[dict]:
        if self.shape is None:
            return []
        return [
            jump("Header", self.pointer(0)),
            jump("Slots", {"kind": "index", "name": self.name, "slot": 0}),
            jump("Entries", {"kind": "index", "name": self.name, "entry": 1}),
        ]


class _Stamps(_Cutter):
    """The checkpoint and the timer's: some longs, then zeros to the end of a page."""

    LAYOUTS = {
        "checkpoint": (checkpoint.LAYOUT.size, fields.checkpoint_fields, "what is surely on the disk"),
        "timercheck": (
            timer_check.LAYOUT.size + timer_check.SEALED.size,
            fields.timercheck_fields,
            "how far timed messages are dealt with",
        ),
    }

    def usual_length(self, at: int) -> int:
        return self.LAYOUTS[self.file.kind][0] if not at else _ROOM

    def begin(self, at: int) -> int:
        return 0 if at < self.LAYOUTS[self.file.kind][0] else at

    def piece(self, at: int, end: int) -> Piece:
        length, decode, title = self.LAYOUTS[self.file.kind]
        if not at:
            try:
                return piece("stamps", title, 0, length, "", "", decode(self.file.read(0, length), 0))
            except FormatError as error:
                return piece("nothing", title, 0, end, f"{error}.", "bad")
        return piece("room", "the rest of the page", at, max(1, end - at), "Never used.")


class _TimerLog(_Cutter):
    def usual_length(self, at: int) -> int:
        return _TIMER_UNITS * timer_log.SIZE

    def begin(self, at: int) -> int:
        return min(
            at // timer_log.SIZE * timer_log.SIZE, timer_log.last_unit_at(self.file.size) + timer_log.SIZE
        )

    def piece(self, at: int, end: int) -> Piece:
        zeros = self.zeros(at, end, 1)
        if zeros >= min(timer_log.SIZE, end - at):
            return piece("room", f"{zeros:,} zeros", at, zeros, "Never written.")
        raw = self.file.read(at, timer_log.SIZE)
        left, _, magic = timer_log.BLANK.unpack(raw)
        if magic == timer_log.BLANK_MAGIC and left == self.file.size - at:
            return piece(
                "blank",
                f"end of file, {left:,} bytes left",
                at,
                left,
                "The next unit begins with the next file.",
                "",
                fields.timer_blank_fields(raw, self.file.base + at),
            )
        unit = timer_log.decode(raw)
        tone, sentence = ("", "") if unit.is_data else ("bad", "No unit could be like this.")
        return piece(
            "unit",
            f"unit {(self.file.base + at) // timer_log.SIZE:,}",
            at,
            timer_log.SIZE,
            sentence,
            tone,
            fields.timer_unit_fields(raw, self.file.base + at),
        )


class _Wheel(_Cutter):
    def usual_length(self, at: int) -> int:
        return _WHEEL_SLOTS * timer_wheel.SLOT_BYTES

    def begin(self, at: int) -> int:
        return at // timer_wheel.SLOT_BYTES * timer_wheel.SLOT_BYTES

    def piece(self, at: int, end: int) -> Piece:
        size = timer_wheel.SLOT_BYTES
        number, zeros = at // size, self.zeros(at, end, size)
        if zeros:
            last = number + zeros // size - 1
            return piece(
                "room",
                f"slot {number:,}" if last == number else f"slots {number:,} to {last:,}",
                at,
                zeros,
                "Never used.",
            )
        its_fields = fields.wheel_fields(self.file.read(at, size), at, number, self.file.size // size)
        wrong = any(one["right"] is False for one in its_fields)
        return piece(
            "slot",
            f"slot {number:,}",
            at,
            size,
            "WRONG: this second belongs to another slot." if wrong else "",
            "bad" if wrong else "",
            its_fields,
        )


_CUTTERS: dict[str, type[_Cutter]] = {
    "commitlog": _Log,
    "consumequeue": _Queue,
    "index": _Index,
    "checkpoint": _Stamps,
    "timercheck": _Stamps,
    "timerlog": _TimerLog,
    "timerwheel": _Wheel,
}
