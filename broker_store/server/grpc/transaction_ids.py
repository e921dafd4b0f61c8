"""The transaction id of gRPC: where the half message is stored. A client only returns it."""

from __future__ import annotations

import re

_ID = re.compile(r"([0-9A-F]{16})([0-9A-F]{16})")
_LONG = 1 << 63


def encode(queue_offset: int, log_offset: int) -> str:
    """Return the id of a half at these offsets."""
    return f"{queue_offset:016X}{log_offset:016X}"


def decode(text: str) -> tuple[int, int] | None:
    """Return the queue offset and the log offset, None for a text that is no id."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    queue_offset, log_offset = int(found[1], 16), int(found[2], 16)
    return (queue_offset, log_offset) if max(queue_offset, log_offset) < _LONG else None
