"""config/timercheck: how far timer messages were put on the wheel and delivered, as far as it is surely on
the disk.

Apache's are the first seven longs of the page (docs/spec/store-format.md section 7; older files have four).
The same 56 bytes answer GET_TIMER_CHECK_POINT.

Apache's flush position is older than its queue offset: what lies between is found by reading the log's end.
All of ours are of one moment, so the log can be cut there. A seal after the seven longs marks the
page as ours: Apache's broker does not touch it, and it fits no other seven longs.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.formats.layout import Layout, ReadBuffer

PATH = "config/timercheck"  # in the store
LAYOUT = Layout(
    ("read_ms", "q"),
    ("log_flushed", "q"),
    ("queue_offset", "q"),
    ("master_queue_offset", "q"),
    ("state_version", "q"),
    ("timestamp", "q"),
    ("counter", "q"),
)
FILE_BYTES = 4096
SEALED = Layout(("magic", "i"), ("crc", "I"))
SEAL_MAGIC = 0x54494D45
_OLD_BYTES = LAYOUT.offset["state_version"]


class TimerCheck(NamedTuple):
    """Slots before `read_ms` are delivered; queue units before `queue_offset` stand in the timer log before
    `log_flushed`."""

    read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


def encode(check: TimerCheck) -> bytes:
    """The 56 bytes."""
    return LAYOUT.pack(*check)


def encode_page(check: TimerCheck) -> bytes:
    """The whole file, sealed."""
    longs = encode(check)
    return (longs + SEALED.pack(SEAL_MAGIC, zlib.crc32(longs))).ljust(FILE_BYTES, b"\0")


def decode(buffer: ReadBuffer) -> TimerCheck:
    """The longs of a file; FormatError when it is shorter than the four that all versions have."""
    if len(buffer) < _OLD_BYTES:
        raise FormatError(
            "a timer checkpoint is shorter than its fields", expected=_OLD_BYTES, found=len(buffer)
        )
    return TimerCheck(*LAYOUT.unpack(bytes(buffer[: LAYOUT.size]).ljust(LAYOUT.size, b"\0")))


def is_sealed(buffer: ReadBuffer) -> bool:
    """Return whether this broker wrote the longs that now stand there."""
    if len(buffer) < LAYOUT.size + SEALED.size:
        return False
    return SEALED.unpack(buffer, LAYOUT.size) == (SEAL_MAGIC, zlib.crc32(buffer[: LAYOUT.size]))
