"""The checkpoint: one page that says up to which store time log, queues and index are surely on disk.

The stamps are lower bounds (docs/spec/store-format.md section 6). They decide only where recovery starts to
read; what exists is decided by the commit log alone. The sixth number is Apache 5.5.0's own; we write 0
there, because a value larger than the truth would make it skip what it must rebuild.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_store.errors import FormatError
from broker_store.formats.layout import Layout, ReadBuffer

LAYOUT = Layout(
    ("physic_msg_timestamp", "q"),
    ("logics_msg_timestamp", "q"),
    ("index_msg_timestamp", "q"),
    ("master_flushed_offset", "q"),
    ("confirm_phy_offset", "q"),
    ("logics_physical_offset", "q"),
)
FILE_BYTES = 4096
SAFETY_MS = 3000  # Apache's distance between the stamps and where it trusts them


class Checkpoint(NamedTuple):
    """Store times in ms of what is synced, and three offsets that only Apache sets."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """The store time up to which log and queues can be relied upon."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MS)


def encode(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    return LAYOUT.pack(*checkpoint).ljust(FILE_BYTES, b"\0")


def decode(buffer: ReadBuffer) -> Checkpoint:
    """The longs of a file; FormatError when it is shorter than the six of them."""
    if len(buffer) < LAYOUT.size:
        raise FormatError("a checkpoint is shorter than its fields", expected=LAYOUT.size, found=len(buffer))
    return Checkpoint(*LAYOUT.unpack(buffer))
