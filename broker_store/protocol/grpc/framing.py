"""gRPC over HTTP/2: messages in bodies, and the header blocks of answers.

    | 1 byte, 1 for a compressed message | 4 bytes length | message |

A call ends with trailers that have its status. No compression is used: a client may compress only after the
server has announced that it can read it.
"""

from __future__ import annotations

import enum
import struct

from google.protobuf.message import Message

from broker_store.errors import PeerError
from broker_store.protocol.http2.fields import encode_fields

PREFIX_BYTES = 5
# Of a call that goes on: a client may send the stacks of all its threads.
MAX_LONG_MESSAGE_BYTES = 8 << 20

_PREFIX = struct.Struct(">BI")
_CONTENT_TYPE = ("content-type", "application/grpc")


class GrpcStatus(enum.IntEnum):
    """How a call ended, those codes that this server sends."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class GrpcError(PeerError):
    """The bytes of a call are not as gRPC wants them; the call ends with `status`."""

    cause = "malformed call"

    def __init__(self, status: GrpcStatus, text: str):
        self.status = status
        super().__init__(text)


HEAD = encode_fields([(":status", "200"), _CONTENT_TYPE])
TRAILERS_OK = encode_fields([("grpc-status", "0")])
# In place of an answer, to what is no gRPC.
NOT_GRPC = encode_fields([(":status", "415")])


def message_of(body: bytes) -> bytes:
    """Return the message of a call that has one. Raises GrpcError."""
    if len(body) < PREFIX_BYTES:
        raise GrpcError(GrpcStatus.INTERNAL, f"a body of {len(body)} bytes has no message")
    compressed, length = _PREFIX.unpack_from(body)
    if compressed:
        raise _compressed()
    if length != len(body) - PREFIX_BYTES:
        raise GrpcError(
            GrpcStatus.INTERNAL, f"a message of {length} bytes in a body of {len(body) - PREFIX_BYTES}"
        )
    return body[PREFIX_BYTES:]


def with_prefix(message: bytes) -> bytes:
    """Return a message as it stands in a body."""
    return _PREFIX.pack(0, len(message)) + message


def body_of(message: Message) -> bytes:
    """Return the body of a call or an answer that has this message."""
    return with_prefix(message.SerializeToString())


class MessageReader:
    """Cuts the pieces of a call's body into messages. `kept` are the bytes of one that is not complete."""

    __slots__ = ("kept", "_parts", "_wanted")

    def __init__(self) -> None:
        self.kept = 0
        self._parts: list[bytes] = []
        self._wanted = PREFIX_BYTES  # below so many bytes no message is complete

    def read(self, piece: bytes) -> list[bytes]:
        """Return the messages that are complete with this piece. Raises GrpcError."""
        self._parts.append(piece)
        self.kept += len(piece)
        # Pieces of a long message are joined once, not with each further piece.
        if self.kept < self._wanted:
            return []
        data = b"".join(self._parts)
        found: list[bytes] = []
        wanted = PREFIX_BYTES
        at = 0
        while len(data) - at >= PREFIX_BYTES:
            compressed, length = _PREFIX.unpack_from(data, at)
            if compressed:
                raise _compressed()
            if length > MAX_LONG_MESSAGE_BYTES:
                raise GrpcError(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"a message of {length} bytes, most is {MAX_LONG_MESSAGE_BYTES}",
                )
            end = at + PREFIX_BYTES + length
            if end > len(data):
                wanted += length
                break
            found.append(data[at + PREFIX_BYTES : end])
            at = end
        self._parts = [data[at:]]
        self.kept, self._wanted = len(data) - at, wanted
        return found


def failed(error: GrpcError, *, has_answer: bool = False) -> bytes:
    """Return the header block that ends a call: all of an answer, or the trailers of one that has begun."""
    head = [] if has_answer else [(":status", "200"), _CONTENT_TYPE]
    return encode_fields(
        [
            *head,
            ("grpc-status", str(int(error.status))),
            ("grpc-message", percent_encoded(str(error))),
        ]
    )


# Units of `grpc-timeout`, in microseconds.
_TIMEOUT_UNITS_US = {"H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000, "m": 1_000, "u": 1, "n": 0.001}


def timeout_ms(text: str) -> int | None:
    """Return the time of a `grpc-timeout` in milliseconds; None for a text that is none."""
    digits, unit = text[:-1], _TIMEOUT_UNITS_US.get(text[-1:])
    if unit is None or not 1 <= len(digits) <= 8 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(int(digits) * unit) // 1_000


def percent_encoded(text: str) -> str:
    """Return a text as it stands in `grpc-message`."""
    return "".join(
        [chr(byte) if 0x20 <= byte < 0x7F and byte != 0x25 else f"%{byte:02X}" for byte in text.encode()]
    )


def _compressed() -> GrpcError:
    return GrpcError(GrpcStatus.UNIMPLEMENTED, "messages must not be compressed")
