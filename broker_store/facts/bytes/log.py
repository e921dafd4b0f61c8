"""The commit log: records, ends of files, room that was never written, and bytes that are no record."""

from __future__ import annotations

from broker_store.facts import neighbours, references
from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.bytes.cutter import File, SimpleCutter
from broker_store.facts.bytes.pieces import Jump, Piece, Tone, jump, piece
from broker_store.facts.bytes.place import Place
from broker_store.facts.bytes.record import blank_fields, problem_words, record_fields, with_unit
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.pointers import Pointer, to_log
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import record

_ROOM_BYTES = 256  # of what is no record, when no length is asked for


class Log(SimpleCutter):
    kind = "commitlog"

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, file: File, place: Place):
        super().__init__(directory, facts, file, place)
        self._positions = facts.positions()

    def _head(self, at: int) -> record.Head:
        return record.read_head(self.file.read(at, record.HEAD.size))

    def usual_length(self, at: int) -> int:
        head = self._head(at)
        return head.total_size if self._is_record(head, at) else _ROOM_BYTES

    def _is_record(self, head: record.Head, at: int) -> bool:
        """Return whether a record may have this head: its size fits the file."""
        largest = min(neighbours.MAX_FOREIGN_RECORD, self.file.size - at)
        return head.is_record and record.MIN_RECORD <= head.total_size <= largest

    def begin(self, at: int) -> int:
        head = self._head(at)
        if head.is_blank or self._is_record(head, at):
            return at
        found = self._record_before(at)
        if found is None:
            return at
        start, size = found
        if start + size > at:
            return start
        after = self._head(start + size)
        # In the unused rest of a file, after its blank
        return start + size if after.is_blank and after.total_size == self.file.size - start - size else at

    def _record_before(self, at: int) -> tuple[int, int] | None:
        return neighbours.record_before(self.file.reader, self.file.base, self.file.size, at)

    def _record_after(self, at: int) -> int | None:
        return neighbours.next_record(self.file.reader, self.file.base, self.file.size, at + 1)

    def piece(self, at: int, end: int) -> Piece:
        left = self.file.size - at
        head = self._head(at)
        if head.is_blank and left >= record.BLANK_BYTES:
            return self._blank(at, left, head)
        if self._is_record(head, at):
            return self._record(at, head.total_size)
        zeros = self.zeros(at, end, 1)
        if zeros >= min(record.HEAD.size, end - at):
            return piece("room", f"{zeros:,} zeros", at, zeros, *self._room_words(at))
        return self._nothing(at, end, head)

    def _blank(self, at: int, left: int, head: record.Head) -> Piece:
        sentence, tone = self._blank_words(left, head)
        fields = blank_fields(self.file.read(at, record.HEAD.size), self.file.base + at, left)
        return piece("blank", f"end of file, {left:,} bytes left", at, left, sentence, tone, fields)

    def _blank_words(self, left: int, head: record.Head) -> tuple[str, Tone]:
        if head.total_size == left:
            return "The rest of this file is not used: the next record begins with the next file.", ""
        return (
            f"This is an end of file, but it says that {head.total_size:,} bytes are left, and {left:,} are.",
            "bad",
        )

    def _record(self, at: int, size: int) -> Piece:
        raw = self.file.read(at, size)
        fields, problem = record_fields(raw, self.file.base + at)
        title = f"record of {size:,} bytes"
        if problem:
            return piece("record", title, at, size, *problem_words(problem), fields)
        stored = record.decode(raw, max_size=len(raw), check_crc=False)
        title += f": {stored.topic}, queue {stored.queue_id}, offset {stored.queue_offset:,}"
        return piece("record", title, at, size, *self._how_far(at, size), with_unit(fields, stored))

    def _how_far(self, at: int, size: int) -> tuple[str, Tone]:
        """Return (sentence, tone): whether the positions have passed a record yet."""
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

    def _room_words(self, at: int) -> tuple[str, Tone]:
        wrote = self._positions.wrote
        if wrote is not None and self.file.base + at >= wrote:
            return f"Never written: the log ends at {wrote:,}, and this room was made ahead.", ""
        sentence = self._with_next("Zeros, so no record: never written, or lost.", at, self._record_after(at))
        return sentence, "warn" if wrote is None else "bad"

    def _nothing(self, at: int, end: int, head: record.Head) -> Piece:
        following = self._record_after(at)
        why = (
            f"its size would be {head.total_size:,} bytes"
            if head.is_record
            else f"its magic would be {head.magic & 0xFFFFFFFF:#010x}"
        )
        length = (self.file.size if following is None else following) - at
        sentence, tone = self._beyond_words(at, f"No record begins here: {why}.")
        return piece(
            "nothing",
            "bytes that are no record",
            at,
            min(length, max(end - at, 1)),
            self._with_next(sentence, at, following),
            tone,
        )

    def _beyond_words(self, at: int, sentence: str) -> tuple[str, Tone]:
        """Return (sentence, tone) for bytes that are no record: they do no harm beyond the end of the log."""
        wrote = self._positions.wrote
        if wrote is not None and self.file.base + at >= wrote:
            return f"{sentence} It lies beyond the end of the log, which is {wrote:,}.", "warn"
        return sentence, "bad"

    def _with_next(self, sentence: str, at: int, following: int | None) -> str:
        """Return the sentence with where the next record begins."""
        if following is not None:
            return f"{sentence} The next record begins at {self.file.base + following:,}."
        searched = min(self.file.size, at + 1 + neighbours.SEARCH_BYTES)
        return f"{sentence} None begins before {self.file.base + searched:,}" + (
            ", the end of this file." if searched == self.file.size else "; further was not looked."
        )

    def jumps(self, first: Piece) -> list[Jump]:
        found = [self._previous(first.at), self._next(first)]
        stored = (
            references.message_at(self.directory, self.file.base + first.at)
            if first.what == "record"
            else None
        )
        if stored is None:
            return found
        unit = references.unit_of(self.directory, self.facts, stored)
        words = {"there": "", "wrong": f"WRONG: {unit.why}"}.get(unit.state, unit.why)
        found.append(jump(f"Its unit in queue {stored.queue_id} of {stored.topic}", unit.pointer, words))
        for entry in references.entries_of(self.directory, self.facts, stored, SHOWN_KEYS):
            found.append(jump(f"Index entry of its {entry.of} {entry.text}", entry.pointer, entry.why))
        if len(stored.keys) > SHOWN_KEYS:
            more = f"Index entries of {len(stored.keys) - SHOWN_KEYS:,} more keys"
            found.append(jump(more, None, f"only its first {SHOWN_KEYS} keys are looked up"))
        if stored.prepared_transaction_offset > 0:
            found.append(jump("Its prepared half", to_log(stored.prepared_transaction_offset)))
        return found

    def _previous(self, at: int) -> Jump:
        title = "Previous record"
        if at:
            found = self._record_before(at)
            if found is None:
                return jump(title, None, "none was found before it in this file")
            return jump(title, self.pointer(found[0]))
        before = [file for file in self.directory.log_files() if file[0] < self.file.base]
        if not before:
            return jump(title, None, "this is where the log begins")
        base, size, path = before[-1]
        with self.directory.disk.open_reader(path) as reader:
            found = neighbours.record_before(reader, base, size, size)
        if found is None:
            return jump(title, None, "none was found at the end of the file before")
        return jump(title, to_log(base + found[0]))

    def _next(self, first: Piece) -> Jump:
        title = "Next record"
        if first.what not in ("record", "blank"):
            found = self._record_after(first.at)
            if found is None:
                return jump(title, None, "none was found after it in this file")
            return jump(title, self.pointer(found))
        at = first.at + first.length
        head = self._head(at) if at < self.file.size else None
        if head is not None and not (head.is_blank and first.what == "record"):
            return jump(title, self.pointer(at))
        following = self._next_file()
        if following is None:
            return jump(title, None, "there is no further file")
        return jump(title, following, "" if head is None else "after the end of this file")

    def _next_file(self) -> Pointer | None:
        following = [base for base, _, _ in self.directory.log_files() if base > self.file.base]
        return to_log(following[0]) if following else None

    def before(self, start: int) -> Pointer | None:
        if not start:
            return self._previous(0).pointer
        found = self._record_before(start)
        if found is not None and sum(found) > start - _ROOM_BYTES:
            return self.pointer(found[0])
        return self.pointer(max(0, start - _ROOM_BYTES))

    def after(self, end: int) -> Pointer | None:
        return self.pointer(end) if end < self.file.size else self._next_file()
