"""A slot of the timer wheel: 32 bytes for one second, with the ends of its chain in the timer log.

    time s (8)  first (8)  last (8)  count (4)  0 (4)

The wheel is a ring of two weeks (docs/spec/store-format.md section 7): a slot counts only when its time is
the one asked for, so what was delivered need not be cleared. A slot that was never used is zero. `count` is
one more for each message and one less for each request to delete one.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_store.formats.layout import Layout, ReadBuffer

PATH = "timerwheel"  # in the store
LAYOUT = Layout(("time_s", "q"), ("first", "q"), ("last", "q"), ("count", "i"), ("magic", "i"))
SLOT_BYTES = LAYOUT.size
PRECISION_MS = 1000
WINDOW_SLOTS = 7 * 86_400  # how far ahead a message may stand at most, less BLANK_SLOTS
BLANK_SLOTS = 60
SLOTS = 2 * WINDOW_SLOTS


class TimerSlot(NamedTuple):
    """The slot of second `time_s`: positions of its first and last unit in the timer log."""

    time_s: int
    first: int
    last: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    magic: int = 0


def encode(slot: TimerSlot) -> bytes:
    """The 32 bytes of a slot."""
    return LAYOUT.pack(*slot)


def decode(buffer: ReadBuffer, offset: int = 0) -> TimerSlot:
    """The slot at byte `offset`."""
    return TimerSlot(*LAYOUT.unpack(buffer, offset))
