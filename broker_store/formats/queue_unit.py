"""A consume queue unit: 20 bytes that say where a message of one queue lies in the commit log.

Unit number n lies at byte n * 20 of the queue's files (docs/spec/store-format.md section 4):

    log offset (8)  record size (4)  tags code (8)

A fresh file is zero, and a unit of size 0 is no data: that is how the end is found. A queue that does not
start at 0 has its first file filled up to its start with pre-blank units (0, 0x7FFFFFFF, 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_store.formats.java_hash import java_hash
from broker_store.formats.layout import Layout, ReadBuffer
from broker_store.formats.topics import SCHEDULE_TOPIC

LAYOUT = Layout(("log_offset", "q"), ("size", "i"), ("tags_code", "q"))
SIZE = LAYOUT.size
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = LAYOUT.pack(0, PRE_BLANK_SIZE, 0)

# How the names of Apache's light queues begin: their units point to records of other topics, which name them
# in a property
LIGHT_QUEUE = "%LMQ%"
DEFAULT_DELAY_LEVELS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200)
)


class QueueUnit(NamedTuple):
    """Offset in the commit log, size of the record in bytes, hash of the tag (or delivery time in ms)."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_data(self) -> bool:
        """Return whether Apache would take the unit for data (a pre-blank one passes too)."""
        return self.log_offset >= 0 and self.size > 0

    @property
    def is_pre_blank(self) -> bool:
        return self.size == PRE_BLANK_SIZE and self.log_offset == 0 and self.tags_code == 0


def encode(log_offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of a unit."""
    return LAYOUT.pack(log_offset, size, tags_code)


def decode(buffer: ReadBuffer, offset: int = 0) -> QueueUnit:
    """The unit at byte `offset`."""
    return QueueUnit(*LAYOUT.unpack(buffer, offset))


def decode_all(buffer: ReadBuffer) -> Iterator[QueueUnit]:
    """Every unit of a buffer whose length is a multiple of 20, data or not."""
    return map(QueueUnit._make, LAYOUT.struct.iter_unpack(buffer))


def tags_code(
    topic: str,
    tags: str | None,
    delay: str | None,
    store_timestamp: int,
    levels_ms: Sequence[int] = DEFAULT_DELAY_LEVELS_MS,
) -> int:
    """What the unit of a message holds as its tags code.

    The hash of the tag, 0 without one; in the schedule topic the time of delivery in ms, from the DELAY
    property (a level above the highest counts as the highest).
    `levels_ms[0]` is the delay of level 1.
    """
    if topic == SCHEDULE_TOPIC and delay:
        level = min(_level(delay), len(levels_ms))
        if level > 0:
            return store_timestamp + levels_ms[level - 1]
    return java_hash(tags) if tags else 0


def _level(delay: str) -> int:
    try:
        return int(delay)
    except ValueError:
        return 0
