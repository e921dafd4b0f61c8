"""A table of fixed-size fields: the one place where a format's offsets come from.

Everything Apache RocketMQ stores is big-endian and unpadded, so a table of (name, struct letter) is the whole
truth about a fixed stretch of bytes.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from broker_store.errors import FormatError

# Bytes that are read in place: of a file's map, of a frame, or in an object of their own.
ReadBuffer: TypeAlias = bytes | bytearray | memoryview


class Layout:
    """A fixed run of big-endian fields, for example `Layout(("offset", "q"), ("size", "i"))`.

    `offset["size"]` is where a field starts, `size` how long the run is; both follow from the table.
    """

    __slots__ = ("names", "offset", "size", "struct")

    def __init__(self, *fields: tuple[str, str]):
        self.names = tuple(name for name, _ in fields)
        self.struct = struct.Struct(">" + "".join(letter for _, letter in fields))
        self.size = self.struct.size
        self.offset: dict[str, int] = {}
        at = 0
        for name, letter in fields:
            self.offset[name] = at
            at += struct.calcsize(">" + letter)

    def pack(self, *values: int | bytes) -> bytes:
        """The fields as bytes; FormatError when a value does not fit its field."""
        try:
            return self.struct.pack(*values)
        except struct.error as error:
            raise FormatError(f"values {values} do not fit the fields {self.names}: {error}") from None

    def unpack(self, buffer: ReadBuffer, offset: int = 0) -> tuple[Any, ...]:
        """The values of the fields at `offset`; FormatError when the buffer ends before they do."""
        try:
            return self.struct.unpack_from(buffer, offset)
        except struct.error:
            raise FormatError("fields end beyond the bytes", offset=offset, expected=self.size) from None
