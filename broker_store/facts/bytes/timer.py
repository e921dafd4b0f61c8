"""The files of timed messages: the timer log's units and the timer wheel's slots."""

from __future__ import annotations

from broker_store.facts.bytes.cutter import SimpleCutter, numbered
from broker_store.facts.bytes.field import Field, Reading, number, of_layout, time_words
from broker_store.facts.bytes.pieces import Piece, piece
from broker_store.facts.pointers import BytePointer, WheelSlotPointer, to_log
from broker_store.formats import timer_log, timer_wheel
from broker_store.formats.timer_log import TimerUnit

_SHOWN_UNITS, _SHOWN_SLOTS = 8, 8  # when no length is asked for
_UNIT_MEANINGS = {
    "unit_size": "always 52",
    "previous": "the unit before it that is due in the same second; -1 ends the chain",
    "magic": "what it asks for: 1 deliver, 3 put on the wheel again, 5 delete another",
    "write_ms": "when it was put on the wheel",
    "delay_ms": "how long after that it is due",
    "log_offset": "where the message waits in the commit log",
    "size": "length of its record",
    "topic_hash": "hash of the topic it goes to",
    "reserved": "always 0",
}
_BLANK_MEANINGS = {
    "left": "how much of the file is left, these bytes included",
    "reserved": "always 0",
    "magic": "says that the timer log goes on in the next file",
}
_SLOT_MEANINGS = {
    "time_s": "the second that this slot stands for; the slot counts only while that second is to come",
    "first": "the oldest unit of the second's chain in the timer log",
    "last": "the newest unit of the second's chain, where a reader begins",
    "count": "messages due in that second, less those asked to be deleted",
    "magic": "always 0",
}


def unit_fields(buffer: bytes, at: int) -> list[Field]:
    unit = timer_log.decode(buffer)

    def read(name: str, value: int) -> Reading:
        if name == "previous":
            if value < 0:
                return Reading("-1 (the chain ends here)")
            return Reading(f"{value:,}", _to_timer_log(value))
        if name == "write_ms":
            return Reading(time_words(value))
        if name == "delay_ms":
            slot = unit.slot_ms // timer_wheel.PRECISION_MS % timer_wheel.SLOTS
            words = f"{value:,} (due {time_words(unit.slot_ms).partition('(')[2]}"
            return Reading(words, WheelSlotPointer(slot=slot))
        if name == "log_offset":
            return Reading(f"{value:,}", to_log(value))
        if name == "magic":
            return Reading(f"{value} ({_fate(unit)})")
        if name == "unit_size":
            return Reading(f"{value:,}", right=value == timer_log.SIZE)
        return number(name, value)

    return of_layout(_UNIT_MEANINGS, timer_log.LAYOUT, buffer, at, read)


def _fate(unit: TimerUnit) -> str:
    if unit.deletes:
        return "deletes another"
    return "goes on the wheel again" if unit.rolls else "is delivered"


def _to_timer_log(offset: int) -> BytePointer:
    return BytePointer(kind="timerlog", offset=offset)


def blank_fields(buffer: bytes, at: int) -> list[Field]:
    def read(name: str, value: int) -> Reading:
        if name == "magic":
            return Reading(f"{value & 0xFFFFFFFF:#010x} (end of this file)")
        return number(name, value)

    return of_layout(_BLANK_MEANINGS, timer_log.BLANK, buffer, at, read)


def slot_fields(buffer: bytes, at: int, slot: int, slots: int) -> list[Field]:
    """Return the fields of slot number `slot` of a timer wheel that has `slots`."""

    def read(name: str, value: int) -> Reading:
        if name == "time_s":
            right = value % slots == slot
            wrong = "" if right else f" (WRONG: that second has slot {value % slots:,})"
            return Reading(time_words(value * 1000) + wrong, right=right)
        if name in ("first", "last") and value >= 0:
            return Reading(f"{value:,}", _to_timer_log(value))
        return number(name, value)

    return of_layout(_SLOT_MEANINGS, timer_wheel.LAYOUT, buffer, at, read)


class TimerLog(SimpleCutter):
    kind = "timerlog"

    def usual_length(self, at: int) -> int:
        return _SHOWN_UNITS * timer_log.SIZE

    def begin(self, at: int) -> int:
        last = timer_log.last_unit_at(self.file.size) + timer_log.SIZE
        return min(at // timer_log.SIZE * timer_log.SIZE, last)

    def piece(self, at: int, end: int) -> Piece:
        zeros = self.zeros(at, end, 1)
        if zeros >= min(timer_log.SIZE, end - at):
            return piece("room", f"{zeros:,} zeros", at, zeros, "Never written.")
        raw, place = self.file.read(at, timer_log.SIZE), self.file.base + at
        left, _, magic = timer_log.BLANK.unpack(raw)
        if magic == timer_log.BLANK_MAGIC and left == self.file.size - at:
            title, sentence = f"end of file, {left:,} bytes left", "The next unit begins with the next file."
            return piece("blank", title, at, left, sentence, fields=blank_fields(raw, place))
        title, fields = f"unit {place // timer_log.SIZE:,}", unit_fields(raw, place)
        if timer_log.decode(raw).is_data:
            return piece("unit", title, at, timer_log.SIZE, fields=fields)
        return piece("unit", title, at, timer_log.SIZE, "No unit could be like this.", "bad", fields)


class TimerWheel(SimpleCutter):
    kind = "timerwheel"

    def usual_length(self, at: int) -> int:
        return _SHOWN_SLOTS * timer_wheel.SLOT_BYTES

    def begin(self, at: int) -> int:
        return at // timer_wheel.SLOT_BYTES * timer_wheel.SLOT_BYTES

    def piece(self, at: int, end: int) -> Piece:
        size = timer_wheel.SLOT_BYTES
        slot, zeros = at // size, self.zeros(at, end, size)
        if zeros:
            return piece("room", numbered("slot", slot, slot + zeros // size - 1), at, zeros, "Never used.")
        fields = slot_fields(self.file.read(at, size), at, slot, self.file.size // size)
        if any(one.right is False for one in fields):
            sentence = "WRONG: this second belongs to another slot."
            return piece("slot", f"slot {slot:,}", at, size, sentence, "bad", fields)
        return piece("slot", f"slot {slot:,}", at, size, fields=fields)
