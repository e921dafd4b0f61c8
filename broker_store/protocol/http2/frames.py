"""HTTP/2 frames: found in received bytes, and written.

`scan_frames` and `answer_frames` have compiled twins in `kernels/http2_frames.py`, which a server gives to
its connections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker_store.errors import ProtocolError
from broker_store.formats.http2_frame import (
    DATA,
    FLAG_ACK,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAGS_AT,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    MAX_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    ErrorCode,
)

# (data, end, highest payload) -> four ints for each whole frame: type * 256 + flags, stream, start and end of
# the payload.
Scan = Callable[[bytes, int, int], list[int]]
# (stream, header block, body, block of trailers) -> the frames of a whole answer.
AnswerFrames = Callable[[int, bytes, bytes, bytes], bytes]

_HEAD = struct.Struct(">HBBBI")
_UINT32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_TWO_UINT32 = struct.Struct(">II")


class Http2Error(ProtocolError):
    """The peer broke a rule of HTTP/2, or exceeded a bound. `stream` is the stream that ends, 0 for the whole
    connection."""

    cause = "malformed HTTP/2"

    def __init__(self, code: ErrorCode, text: str, stream: int = 0):
        self.code, self.stream = code, stream
        super().__init__(text)


def scan_frames(data: bytes, end: int, max_payload: int) -> list[int]:
    """Return four ints for each whole frame in the first `end` bytes.

    They are type and flags (type * 256 + flags), stream, start and end of the payload. The scan stops before
    a frame that is not whole, or whose payload is longer than `max_payload`.
    """
    found: list[int] = []
    at = 0
    unpack = _HEAD.unpack_from
    while end - at >= HEAD_BYTES:
        high, low, kind, flags, stream = unpack(data, at)
        start = at + HEAD_BYTES
        length = high << 8 | low
        if length > max_payload or length > end - start:
            break
        at = start + length
        found += (kind << 8 | flags, stream & STREAM_MASK, start, at)
    return found


def payload_bytes(data: bytes, at: int) -> int:
    """Return the length in the frame head at `at`."""
    return int.from_bytes(data[at : at + FLAGS_AT - 1], "big")


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the 9 bytes before a payload."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def settings_frame(pairs: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join([_SETTING.pack(name, value) for name, value in pairs.items()])
    return frame_head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK = frame_head(0, SETTINGS, FLAG_ACK, 0)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the (identifier, value) pairs of a SETTINGS payload, whose length is a multiple of 6."""
    return list(_SETTING.iter_unpack(payload))


def read_uint32(payload: bytes) -> int:
    """Return the first 4 bytes of a payload as a number."""
    value: int = _UINT32.unpack_from(payload)[0]
    return value


def ping_ack(payload: bytes) -> bytes:
    """Return the answer to a PING frame."""
    return frame_head(8, PING, FLAG_ACK, 0) + payload


def reset_frame(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame_head(4, RST_STREAM, 0, stream) + _UINT32.pack(code)


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame_head(4, WINDOW_UPDATE, 0, stream) + _UINT32.pack(increment)


def goaway_frame(last_stream: int, code: int, text: str) -> bytes:
    """Return a GOAWAY frame with a reason for people."""
    payload = _TWO_UINT32.pack(last_stream, code) + text.encode()
    return frame_head(len(payload), GOAWAY, 0, 0) + payload


def answer_frames(stream: int, head: bytes, body: bytes, trailers: bytes) -> bytes:
    """Return the frames of a whole answer: a header block, the body, and the trailers, which end the
    stream."""
    return b"".join(
        (
            frame_head(len(head), HEADERS, FLAG_END_HEADERS, stream),
            head,
            frame_head(len(body), DATA, 0, stream),
            body,
            frame_head(len(trailers), HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream),
            trailers,
        )
    )


def headers_frame(stream: int, block: bytes, flags: int) -> bytes:
    """Return a HEADERS frame. Blocks of answers are far shorter than the shortest frame that a peer must
    accept."""
    return frame_head(len(block), HEADERS, FLAG_END_HEADERS | flags, stream) + block


def without_padding(payload: bytes, flags: int) -> bytes:
    """Return the payload of a DATA or HEADERS frame without its padding. Raises Http2Error."""
    if not flags & FLAG_PADDED:
        return payload
    if not payload:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
    padding = payload[0]
    if padding >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a padding that is longer than its frame")
    return payload[1 : len(payload) - padding]


def checked_increment(increment: int, window: int, stream: int) -> int:
    """Return the increment of a window. Raises Http2Error if it is 0 or too large."""
    if not increment:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE by 0", stream)
    if window + increment > MAX_WINDOW:
        raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window above the highest allowed one", stream)
    return increment
