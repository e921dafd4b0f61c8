"""One side of a connection, without I/O: received bytes in, commands out (docs/spec/remoting.md section 1).

The commands depend only on the bytes, not on how they were split into reads. The buffer grows with the
received bytes, not with an announced length, and a length is checked as soon as it is received: a peer that
announces 16 MiB costs nothing until it sends them.

The data after a malformed frame cannot be trusted: `receive` raises ProtocolError, and again for every
further call. Frames before the malformed one in the same read are not returned; they were not acknowledged.

The caller handles timeouts, for which it reads `awaiting_header` and `buffered`.
"""

from __future__ import annotations

import struct

from broker_store.errors import ForeignProtocolError, ProtocolError
from broker_store.protocol.command import Command
from broker_store.protocol.framing import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MIN_FRAME_BYTES,
    check_header_length,
    decode_parts,
)

_HEAD = struct.Struct(">II")
# As a length these are more than a frame may have, so no client of ours is taken for one of them.
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS = b"\x16\x03"


class Connection:
    """Splits a byte stream into commands."""

    __slots__ = ("_buffer", "_has_begun", "_max_frame_bytes", "_max_header_bytes", "_wanted", "error")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES):
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._wanted = 4
        self._has_begun = False
        self.error: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Return the number of bytes of the unfinished frame."""
        return len(self._buffer)

    @property
    def awaiting_header(self) -> bool:
        """Return True if a frame has begun and its header is not complete."""
        buffer = self._buffer
        if not buffer:
            return False
        return len(buffer) < 8 or len(buffer) < 8 + (int.from_bytes(buffer[4:8], "big") & 0xFFFFFF)

    def receive(self, data: bytes) -> list[Command]:
        """Return the commands that these bytes complete. Raises ProtocolError, and then always."""
        if self.error is not None:
            raise self.error
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._wanted:
                return []
            data = bytes(buffer)
            buffer.clear()
        elif type(data) is not bytes:
            data = bytes(data)
        try:
            return self._cut(data)
        except ProtocolError as error:
            self.error = error
            buffer.clear()
            raise

    def _cut(self, data: bytes) -> list[Command]:
        commands = []
        at, end = 0, len(data)
        while end - at >= 8:
            length, marked = _HEAD.unpack_from(data, at)
            header_bytes = marked & 0xFFFFFF
            if (
                length > self._max_frame_bytes
                or header_bytes > self._max_header_bytes
                or header_bytes > length - 4
            ):
                self._check_length(length, data[at : at + 4])
                check_header_length(header_bytes, length, self._max_header_bytes)
            frame_end = at + 4 + length
            if frame_end > end:
                if marked >> 24 > 1:
                    raise ProtocolError(f"serialisation type {marked >> 24}, expected 0 or 1")
                self._wanted = 4 + length
                break
            body_at = at + 8 + header_bytes
            commands.append(decode_parts(marked >> 24, data[at + 8 : body_at], data[body_at:frame_end]))
            at = frame_end
            self._has_begun = True
        else:
            self._wanted = 4
            if end - at >= 4:
                self._wanted = 8
                self._check_length(int.from_bytes(data[at : at + 4], "big"), data[at : at + 4])
        if at < end:
            self._buffer += data[at:] if at else data
        return commands

    def _check_length(self, length: int, first: bytes) -> None:
        """Raise ProtocolError unless a frame may have that length, which stands in the bytes `first`."""
        if MIN_FRAME_BYTES <= length <= self._max_frame_bytes:
            return
        if not self._has_begun:
            if first.startswith(_TLS):
                raise ForeignProtocolError(
                    "TLS client", "a TLS client, and this port has no TLS: set useTLS=false in the client"
                )
            if first in _HTTP:
                raise ForeignProtocolError(
                    "HTTP client",
                    "an HTTP client, and this port speaks remoting: HTTP is on the web port (--web-port)",
                )
        raise ProtocolError(
            f"a frame of {length} bytes, expected {MIN_FRAME_BYTES} to {self._max_frame_bytes}"
        )
