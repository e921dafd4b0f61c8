"""Numbers and lengths of protobuf, in bytes of a message, and the prefix of a message of gRPC.

A field begins with its number * 8 + its kind, which is 2 for what has a length and 0 for a number. Lengths
and numbers have 7 bits in each byte, the lowest first; all bytes but the last have their highest bit set.
"""

from __future__ import annotations

from broker_store.kernels.memory import inlined, load_u8, store_be32, store_u8

PREFIX_BYTES = 5  # 0 for a message that is not compressed, and its length

_MAX_LENGTH_BYTES = 5


@inlined
def number_at(at, end):
    """Return the number at `at` and the position after it; position 0 if it is cut or takes more than 6
    bytes."""
    value = 0
    shift = 0
    while at < end and shift < 42:
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, 0


@inlined
def piece_at(at, end):
    """Return the length of what begins at `at` with its length, and the position of its first byte; position
    0 if it is cut, or if its length takes more bytes than protobuf allows."""
    length, first = number_at(at, end)
    if first == 0 or first - at > _MAX_LENGTH_BYTES or length > end - first:
        return 0, 0
    return length, first


@inlined
def varint_bytes(value):
    """Return how many bytes a number of 0 or more takes, 7 bits in each."""
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@inlined
def write_varint(to, value):
    """Write a number of 0 or more; return the position after it."""
    while value > 0x7F:
        store_u8(to, value & 0x7F | 0x80)
        value >>= 7
        to += 1
    store_u8(to, value)
    return to + 1


@inlined
def write_prefix(to, length):
    """Write the prefix of a message; return the position after it."""
    store_u8(to, 0)
    store_be32(to + 1, length)
    return to + PREFIX_BYTES
