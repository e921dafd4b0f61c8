"""Java's String.hashCode: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 code units, wrapped to a signed 32-bit integer.

Tags in queue units and keys in the index are stored as this hash, so it has to agree for every text, also for
characters outside the basic plane (two code units each).
"""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """The hash of `text`, between -2**31 and 2**31 - 1."""
    value = 0
    for unit in _code_units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _code_units(text: str):
    if text.isascii():
        return text.encode("ascii")
    encoded = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(encoded) // 2}H", encoded)
