"""HTTP/2 frames in received bytes, and those of an answer. `protocol/http2/frames.py` has the same in plain
Python."""

from __future__ import annotations

from broker_store.formats.http2_frame import (
    DATA,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAGS_AT,
    HEAD_BYTES,
    HEADERS,
    STREAM_AT,
    STREAM_MASK,
    TYPE_AT,
)
from broker_store.kernels.memory import (
    copy_memory,
    inlined,
    load_be16,
    load_be32,
    load_u8,
    store_be16,
    store_be32,
    store_u8,
)
from broker_store.kernels.objects import (
    answer,
    argument,
    bytes_data,
    bytes_size,
    entry_point,
    has_failed,
    int_argument,
    new_bytes,
    new_int,
    new_list,
    put_into_list,
    wrong_call,
)

_ROW = 4  # type and flags, stream, start and end of the payload


@inlined
def _payload_bytes(address):
    return (load_be16(address) & 0xFFFF) << 8 | load_u8(address + 2)


@entry_point
def scan_frames(self, arguments, count):
    """`scan_frames(data, end, max_payload)`: return four ints for each whole frame in the first `end` bytes.

    They are type and flags (type * 256 + flags), stream, start and end of the payload. The scan stops before
    a frame that is not whole, or whose payload is longer than `max_payload`.
    """
    if count != 3:
        return wrong_call()
    data = bytes_data(argument(arguments, 0))
    end = int_argument(arguments, 1)
    max_payload = int_argument(arguments, 2)
    if has_failed():
        return 0
    frames = 0
    at = 0
    while end - at >= HEAD_BYTES:
        length = _payload_bytes(data + at)
        if length > max_payload or length > end - at - HEAD_BYTES:
            break
        frames += 1
        at += HEAD_BYTES + length
    made = new_list(_ROW * frames)
    if made == 0:
        return 0
    at = 0
    for frame in range(frames):
        start = at + HEAD_BYTES
        length = _payload_bytes(data + at)
        kind = load_u8(data + at + TYPE_AT) << 8 | load_u8(data + at + FLAGS_AT)
        put_into_list(made, _ROW * frame, new_int(kind))
        put_into_list(made, _ROW * frame + 1, new_int(load_be32(data + at + STREAM_AT) & STREAM_MASK))
        put_into_list(made, _ROW * frame + 2, new_int(start))
        at = start + length
        put_into_list(made, _ROW * frame + 3, new_int(at))
    return answer(made)


@inlined
def _write_frame(to, kind, flags, stream, payload, length):
    """Write a frame; return the position after it."""
    store_be16(to, length >> 8)
    store_u8(to + 2, length)
    store_u8(to + TYPE_AT, kind)
    store_u8(to + FLAGS_AT, flags)
    store_be32(to + STREAM_AT, stream)
    copy_memory(to + HEAD_BYTES, payload, length)
    return to + HEAD_BYTES + length


@entry_point
def answer_frames(self, arguments, count):
    """`answer_frames(stream, head, body, trailers)`: return the frames of a whole answer: a header block, the
    body, and the trailers, which end the stream."""
    if count != 4:
        return wrong_call()
    stream = int_argument(arguments, 0)
    head, body, trailers = argument(arguments, 1), argument(arguments, 2), argument(arguments, 3)
    head_data, body_data, trailers_data = bytes_data(head), bytes_data(body), bytes_data(trailers)
    if has_failed():
        return 0
    head_bytes, body_bytes, trailers_bytes = bytes_size(head), bytes_size(body), bytes_size(trailers)
    made = new_bytes(0, 3 * HEAD_BYTES + head_bytes + body_bytes + trailers_bytes)
    if made != 0:
        to = bytes_data(made)
        to = _write_frame(to, HEADERS, FLAG_END_HEADERS, stream, head_data, head_bytes)
        to = _write_frame(to, DATA, 0, stream, body_data, body_bytes)
        flags = FLAG_END_HEADERS | FLAG_END_STREAM
        _write_frame(to, HEADERS, flags, stream, trailers_data, trailers_bytes)
    return made
