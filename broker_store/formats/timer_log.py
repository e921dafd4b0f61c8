"""A unit of the timer log: 52 bytes that say when a message of the timer topic is due and where it lies.

    size 52 (4)  previous (8)  magic (4)  write time ms (8)  delay ms (4)  log offset (8)  record size (4)
                                                             topic hash (4)  0 (8)

The units of one second are a chain: each names the place of the one before it, -1 for none, and the slot of
the wheel names the last (docs/spec/store-format.md section 7). Units lie back to back in files of one length;
a unit must leave room for a blank, which closes the file and is not counted as a unit:

    bytes left (4)  0 (8)  blank magic (4)

A fresh file is zero, and zero is no unit. Positions are counted over all files, as those of the commit log.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_store.formats.layout import Layout, ReadBuffer

PATH = "timerlog"  # a directory of the store
TIMER_TOPIC = "rmq_sys_wheel_timer"

LAYOUT = Layout(
    ("unit_size", "i"),
    ("previous", "q"),
    ("magic", "i"),
    ("write_ms", "q"),
    ("delay_ms", "i"),
    ("log_offset", "q"),
    ("size", "i"),
    ("topic_hash", "i"),
    ("reserved", "q"),
)
SIZE = LAYOUT.size
BLANK = Layout(("left", "i"), ("reserved", "q"), ("magic", "i"))
BLANK_MAGIC = -875286124
NONE = -1  # where a chain ends

DEFAULT, ROLL, DELETE = 1, 2, 4
MAGIC_BITS = 0xF


class TimerUnit(NamedTuple):
    """One unit; `write_ms + delay_ms` is the time of its slot."""

    unit_size: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    size: int
    topic_hash: int
    reserved: int = 0

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms

    @property
    def is_data(self) -> bool:
        """Return whether this can be a unit at all; zeros and a blank are not."""
        return (
            self.unit_size == SIZE
            and bool(self.magic & DEFAULT)
            and self.magic & ~MAGIC_BITS == 0
            and self.log_offset >= 0
            and self.size > 0
        )

    @property
    def rolls(self) -> bool:
        """Return whether its message goes back to the timer topic, because its time lies beyond the wheel's
        window."""
        return bool(self.magic & ROLL)

    @property
    def deletes(self) -> bool:
        """Return whether its message only names another that shall not be delivered."""
        return bool(self.magic & DELETE) and not self.rolls


def encode(unit: TimerUnit) -> bytes:
    """The 52 bytes of a unit."""
    return LAYOUT.pack(*unit)


def decode(buffer: ReadBuffer, offset: int = 0) -> TimerUnit:
    """The unit at byte `offset`."""
    return TimerUnit(*LAYOUT.unpack(buffer, offset))


def encode_blank(left: int) -> bytes:
    """What closes a file with `left` bytes left."""
    return BLANK.pack(left, 0, BLANK_MAGIC)


def needs_next_file(left: int) -> bool:
    """Return whether a file with `left` bytes left takes no further unit."""
    return left < SIZE + BLANK.size


def last_unit_at(file_size: int) -> int:
    """Where in a full file its last unit begins."""
    return ((file_size - BLANK.size) // SIZE - 1) * SIZE
