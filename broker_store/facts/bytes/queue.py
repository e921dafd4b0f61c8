"""Consume queues: units, room that was never written, and holes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker_store.facts import references
from broker_store.facts.bytes.cutter import MAX_CHECKED, Cutter, File, numbered
from broker_store.facts.bytes.field import Field, Reading, edited, judged, number, of_layout, time_words
from broker_store.facts.bytes.pieces import Piece, Tone, piece
from broker_store.facts.bytes.place import Place
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.pointers import Pointer, QueueBytePointer, to_log
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import queue_unit
from broker_store.formats.topics import SCHEDULE_TOPIC

_SHOWN_UNITS = 16  # when no length is asked for
_MEANINGS = {
    "log_offset": "where the message's record begins in the commit log",
    "size": "length of that record",
    "tags_code": "hash of the message's tag, by which a read skips what a group does not want; the time of "
    "delivery in the topic of delayed messages",
}


def unit_fields(buffer: bytes, at: int, topic: str) -> list[Field]:
    unit = queue_unit.decode(buffer)

    def read(name: str, value: int) -> Reading:
        if name == "log_offset" and unit.is_data and not unit.is_pre_blank:
            return Reading(f"{value:,}", to_log(value))
        if name == "tags_code" and topic == SCHEDULE_TOPIC:
            return Reading(time_words(value))
        return number(name, value)

    return of_layout(_MEANINGS, queue_unit.LAYOUT, buffer, at, read)


class Queue(Cutter):
    def __init__(self, directory: StoreDirectory, facts: StoreFacts, file: File, place: Place):
        super().__init__(directory, facts, file, place)
        self._span = facts.queue_span(place.topic, place.queue)

    def usual_length(self, at: int) -> int:
        return _SHOWN_UNITS * queue_unit.SIZE

    def begin(self, at: int) -> int:
        return at // queue_unit.SIZE * queue_unit.SIZE

    def pointer(self, at: int) -> QueueBytePointer:
        return QueueBytePointer(topic=self.place.topic, queue=self.place.queue, offset=self.file.base + at)

    def piece(self, at: int, end: int) -> Piece:
        unit_number = (self.file.base + at) // queue_unit.SIZE
        zeros = self.zeros(at, end, queue_unit.SIZE)
        if zeros:
            return self._room(at, zeros, unit_number)
        raw = self.file.read(at, queue_unit.SIZE)
        fields = unit_fields(raw, self.file.base + at, self.place.topic)
        fields, sentence, tone = self._judge(queue_unit.decode(raw), unit_number, fields)
        return piece("unit", f"unit {unit_number:,}", at, queue_unit.SIZE, sentence, tone, fields)

    def _judge(
        self, unit: queue_unit.QueueUnit, unit_number: int, fields: list[Field]
    ) -> tuple[list[Field], str, Tone]:
        """Return the fields with which are right, and (sentence, tone) for the unit."""
        span = self._span
        if unit.is_pre_blank:
            return (
                fields,
                "Filled up: the queue does not begin at offset 0, so the units before its first one say "
                "nothing.",
                "",
            )
        if span is not None and unit_number < span[0]:
            return fields, f"Readers begin at {span[0]:,}: the record that it names was cleaned away.", "warn"
        if span is not None and unit_number >= span[1]:
            return fields, f"The queue ends at {span[1]:,}: readers do not see this unit.", "warn"
        if not unit.is_data:
            return fields, "No unit could be like this.", "bad"
        if self.checked == MAX_CHECKED:
            return fields, "", ""
        self.checked += 1
        return self._compare(unit, unit_number, fields)

    def _room(self, at: int, zeros: int, first: int) -> Piece:
        title = numbered("unit", first, first + zeros // queue_unit.SIZE - 1)
        if self._span is None:
            return piece("room", title, at, zeros, "Never written.")
        end = self._span[1]
        if first >= end:
            return piece("room", title, at, zeros, f"Never written: the queue ends at {end:,}.")
        if self.facts.is_dry_run:
            sentence = (
                f"Nothing is written here. The start that was tried in memory made units up to {end:,}."
            )
            return piece("hole", title, at, zeros, sentence, "warn")
        sentence = f"A hole: the queue ends at {end:,}, and nothing is written here."
        return piece("hole", title, at, zeros, sentence, "bad")

    def _compare(
        self, unit: queue_unit.QueueUnit, unit_number: int, fields: list[Field]
    ) -> tuple[list[Field], str, Tone]:
        """Compare a unit with the record that it names."""
        stored = references.message_at(self.directory, unit.log_offset)
        if stored is None:
            wrong = f"WRONG: no record begins at {unit.log_offset:,}."
            return judged(fields, "log_offset", False), wrong, "bad"
        if (stored.topic, stored.queue_id, stored.queue_offset) != (
            self.place.topic,
            self.place.queue,
            unit_number,
        ):
            wrong = (
                f"WRONG: the record there is of {stored.topic}, queue {stored.queue_id}, offset "
                f"{stored.queue_offset:,}."
            )
            return judged(fields, "log_offset", False), wrong, "bad"
        fields = judged(judged(fields, "log_offset", True), "size", unit.size == stored.size)
        if self.place.topic != SCHEDULE_TOPIC:
            fields = _with_tag(fields, unit.tags_code, stored.tags)
        disagreement = references.disagreement(unit, stored)
        if disagreement:
            return fields, f"WRONG: {disagreement}.", "bad"
        return fields, f"Message {stored.message_id}.", ""

    def before(self, start: int) -> Pointer | None:
        if start:
            return super().before(start)
        is_first = all(base >= self.file.base for base, _, _ in self._files())
        return None if is_first else self.pointer(-self.usual_length(0))

    def after(self, end: int) -> Pointer | None:
        if end < self.file.size:
            return self.pointer(end)
        is_last = all(base <= self.file.base for base, _, _ in self._files())
        return None if is_last else self.pointer(self.file.size)

    def _files(self) -> list[tuple[int, int, Path]]:
        return self.directory.queue_files(self.place.topic, self.place.queue)


def _with_tag(fields: list[Field], stated: int, tag: str | None) -> list[Field]:
    """Return the fields with whether the tags code is that of the message's tag."""
    tags_code = queue_unit.tags_code("", tag, None, 0)
    right = tags_code == stated
    if right:
        words = f" (of tag {tag})" if tag else ""
    else:
        words = f" (WRONG: the message's tag has {tags_code})"
    return edited(fields, "tags_code", lambda one: replace(one, right=right, value=one.value + words))
