"""Java's strings: how bytes become one, and String.hashCode, s[0]*31^(n-1) + ... + s[n-1] over UTF-16 code
units, wrapped to a signed 32-bit integer.

Tags in queue units and keys in the index are stored as this hash, so it has to agree for every text, also for
characters outside the basic plane (two code units each).
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Sequence

_REPLACED = "broker-store-java"  # an error handler that replaces invalid UTF-8 as Java does


def java_hash(text: str) -> int:
    """The hash of `text`, between -2**31 and 2**31 - 1."""
    value = 0
    for unit in _code_units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _code_units(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode("ascii")
    encoded = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(encoded) // 2}H", encoded)


def java_text(raw: bytes) -> str:
    """Return UTF-8 decoded as by Java's String: U+FFFD for invalid bytes, as in Python, but a single one for
    a surrogate of three bytes."""
    return raw.decode("utf-8", _REPLACED)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeDecodeError)  # the handler is used to decode only
    data, at = error.object, error.start
    if data[at] == 0xED and 0xA0 <= (data[at + 1] if at + 1 < len(data) else 0) <= 0xBF:
        third = data[at + 2 : at + 3]
        return "\ufffd", at + (3 if third and third[0] & 0xC0 == 0x80 else 2)
    return "\ufffd", error.end


codecs.register_error(_REPLACED, _replace)
