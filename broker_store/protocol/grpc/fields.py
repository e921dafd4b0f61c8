"""The fields of a protobuf message, without parsing what is in them.

    | tag: number * 8 + kind | value: a number, or 4 or 8 bytes, or a length and so many bytes |

So sizes can be bounded before a message is parsed: the parser makes an object of each field, and an empty one
takes two bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

_NUMBER, _EIGHT_BYTES, _PIECE, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def piece_tag(number: int) -> int:
    """Return the tag of a field whose value is a text, bytes or a message."""
    return number << 3 | _PIECE


def fields_of(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Iterate over the fields of the message in `data[begin:end]`: the tag of each, and where its value
    begins and ends. Raises DecodeError, also for a group, which protobuf no longer has."""
    at = begin
    while at < end:
        tag, value = data[at], at + 1
        if tag >= 0x80:  # most tags and lengths have one byte
            tag, value = _varint(data, at, end)
        kind, at = tag & 7, value
        if kind == _PIECE:
            length = data[value] if value < end else 0x80
            value += 1
            if length >= 0x80:
                length, value = _varint(data, at, end)
            at = value + length
        elif kind == _NUMBER:
            _, at = _varint(data, at, end)
        elif kind == _EIGHT_BYTES:
            at += 8
        elif kind == _FOUR_BYTES:
            at += 4
        else:
            raise DecodeError(f"a field of kind {kind}")
        if at > end:
            raise DecodeError(f"a field that ends {at - end} bytes after its message")
        yield tag, value, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = shift = 0
    for place in range(at, min(end, at + _MAX_VARINT_BYTES)):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + 1
        shift += 7
    raise DecodeError("a number that does not end")
