"""Bounds of large requests, most of which hold before they are parsed.

The parser makes an object of each field, and an empty one takes two bytes: a send of 120 MB with nothing but
empty keys takes seconds and gigabytes. Only the tags and lengths of outer fields are read here, and few of
them, so this takes less time than it takes to receive the request.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from broker_store.protocol.grpc.fields import fields_of, piece_tag
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Message
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageRequest, TelemetryCommand
from broker_store.server.grpc.clients import MAX_SETTINGS_BYTES, settings_too_large
from broker_store.server.grpc.sent_messages import (
    MAX_USER_PROPERTIES,
    MAX_USER_PROPERTIES_BYTES,
    body_too_large,
    properties_too_large,
    too_many_properties,
)
from broker_store.server.grpc.statuses import Refused

# Ours: so many messages one call may have; Apache's proxy bounds their bytes alone.
MAX_MESSAGES = 1_024
# Of all messages of a call. One has at most 16,384, of one letter each.
MAX_KEYS_OF_CALL = 64 << 10
# Of all fields of a message but its body. Each key of one byte takes three, and the id, the trace context and
# the host have no bound of their own below that of the store.
MAX_OTHER_BYTES = 4 * MAX_USER_PROPERTIES_BYTES
# So of all messages of a call: 4 KiB for each of the most.
MAX_OTHER_BYTES_OF_CALL = 4 << 20
# Of a message: its user properties, and some that appear once.
MAX_FIELDS = MAX_USER_PROPERTIES + 16
MAX_FIELDS_OF_COMMAND = 16

_MESSAGES = piece_tag(SendMessageRequest.MESSAGES_FIELD_NUMBER)
_BODY = piece_tag(Message.BODY_FIELD_NUMBER)
_STACKS = piece_tag(TelemetryCommand.THREAD_STACK_TRACE_FIELD_NUMBER)


def check_send(request: bytes, max_body: int) -> None:
    """Raise Refused for a SendMessageRequest with too many messages, or with one that has a larger body or
    larger properties than any may have; DecodeError for one that cannot be read."""
    others = 0
    for count, (tag, begin, end) in enumerate(fields_of(request, 0, len(request)), 1):
        if count > MAX_MESSAGES:
            raise too_many_messages()
        if tag == _MESSAGES:
            others += _check_message(request, begin, end, max_body)
        if others > MAX_OTHER_BYTES_OF_CALL:
            raise Refused(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"the properties of all messages of a send take at most {MAX_OTHER_BYTES_OF_CALL} bytes",
                "properties",
                value=others,
                limit=MAX_OTHER_BYTES_OF_CALL,
            )


def _check_message(data: bytes, begin: int, end: int, max_body: int) -> int:
    """Return how many bytes a message has beside its body. Raises Refused and DecodeError."""
    body = 0
    for count, (tag, its_begin, its_end) in enumerate(fields_of(data, begin, end), 1):
        if count > MAX_FIELDS:
            raise too_many_properties(count)
        if tag == _BODY:
            body += its_end - its_begin
    if body > max_body:
        raise body_too_large(body, max_body)
    if (others := end - begin - body) > MAX_OTHER_BYTES:
        raise properties_too_large(others)
    return others


def check_command(command: bytes) -> None:
    """Raise Refused for a TelemetryCommand with larger settings than a client may have; only the stacks of
    its threads may be larger. Raises DecodeError for one that cannot be read."""
    if len(command) <= MAX_SETTINGS_BYTES:
        return
    size = 0
    for count, (tag, begin, end) in enumerate(fields_of(command, 0, len(command)), 1):
        if count > MAX_FIELDS_OF_COMMAND:
            raise DecodeError("too many fields")
        if tag != _STACKS:
            size += end - begin
    if size > MAX_SETTINGS_BYTES:
        raise settings_too_large(size)


def too_many_messages() -> Refused:
    """Return the refusal of a send with more than MAX_MESSAGES."""
    return Refused(
        Code.BAD_REQUEST,
        f"a send has at most {MAX_MESSAGES} messages",
        "number of messages",
        limit=MAX_MESSAGES,
    )


def check_keys(request: SendMessageRequest) -> None:
    """Raise Refused for a send whose messages have too many keys: checking a million takes a second."""
    count = sum([len(message.system_properties.keys) for message in request.messages])
    if count > MAX_KEYS_OF_CALL:
        raise Refused(
            Code.ILLEGAL_MESSAGE_KEY,
            f"the messages of a send have at most {MAX_KEYS_OF_CALL} keys",
            "key",
            value=count,
            limit=MAX_KEYS_OF_CALL,
        )
