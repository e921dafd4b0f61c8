"""The protocol of a master's HA port (docs/spec/replication.md).

    slave ──► master   int64                      where the log of the slave ends; the first: where to begin
    master ──► slave   int64 offset, int32 size   then `size` bytes of the log from `offset` on; 0: heartbeat

Numbers are big-endian, as in Apache's `DefaultHAConnection` and `DefaultHAClient`.
"""

from __future__ import annotations

import struct

REPORT = struct.Struct(">q")
FRAME_HEAD = struct.Struct(">qi")
# Apache's slave reads into a buffer of 4 MiB, head included.
MAX_FRAME_BODY = (4 << 20) - FRAME_HEAD.size


def last_report(received: bytearray) -> int | None:
    """Take the whole reports from the begin of `received`; return the last one, None without a whole one."""
    whole = len(received) // REPORT.size * REPORT.size
    if not whole:
        return None
    value = int.from_bytes(received[whole - REPORT.size : whole], "big", signed=True)
    del received[:whole]
    return value
