"""Times that messages of the timer topic state, for many records in one call (kernels/timed.py)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from broker_store.formats.timer_log import TIMER_TOPIC
from broker_store.kernels import timed

NO_NUMBER = timed.NO_NUMBER
_TOPIC = np.frombuffer(TIMER_TOPIC.encode(), dtype=np.uint8)


class Timed(NamedTuple):
    """One message; `asked_ms` and `out_ms` are NO_NUMBER where it names none. For a record that is not sound,
    that fact is the only valid field."""

    is_sound: int
    queue_offset: int
    log_offset: int
    size: int
    stored_ms: int
    asked_ms: int
    out_ms: int
    topic_at: int  # its real topic in the bytes that were read, with no length where it names none
    topic_length: int
    topic_hash: int
    deletes: int
    record_at: int


def read_timed(records: bytes, count: int) -> list[Timed]:
    """Return one `Timed` for each of `count` records that lie back to back."""
    rows = np.empty((count, timed.T_WORDS), dtype=np.int64)
    data = np.frombuffer(records, dtype=np.uint8)
    timed.read_timed(data.ctypes.data, len(data), rows.ctypes.data, count, _TOPIC.ctypes.data, len(_TOPIC))
    return list(map(Timed._make, rows.tolist()))
