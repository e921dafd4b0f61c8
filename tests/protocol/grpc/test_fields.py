"""The outer fields of protobuf messages."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from broker_store.protocol.grpc.fields import fields_of, piece_tag
from broker_store.protocol.grpc.v2.definition_pb2 import Encoding, Message, Resource, SystemProperties


def test_each_field_is_found_with_its_value():
    system = SystemProperties(message_id="ID", keys=["k" * 300, ""], body_encoding=Encoding.GZIP, queue_id=-1)
    given = Message(
        topic=Resource(name="T"), body=b"b" * 20_000, system_properties=system
    ).SerializeToString()
    data = b"before" + given + b"after"
    found = list(fields_of(data, 6, 6 + len(given)))
    assert [tag for tag, _, _ in found] == [piece_tag(1), piece_tag(3), piece_tag(4)]
    assert data[found[2][1] : found[2][2]] == b"b" * 20_000
    inner = list(fields_of(data, *found[1][1:]))
    assert [tag >> 3 for tag, _, _ in inner] == [2, 2, 3, 5, 13]
    assert [end - begin for _, begin, end in inner] == [300, 0, 2, 1, 10]
    assert data[inner[2][1] : inner[2][2]] == b"ID"


def test_fields_of_four_and_eight_bytes_and_long_tags_are_passed_over():
    data = b"\x0d1234" + b"\x0912345678" + b"\xa2\x80\x00\x02ab"
    assert [(tag, data[begin:end]) for tag, begin, end in fields_of(data, 0, len(data))] == [
        (0x0D, b"1234"),
        (0x09, b"12345678"),
        (piece_tag(4), b"ab"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abcd",
        b"\x0d123",
        b"\x09",
        b"\x08",
        b"\x08\x80",
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\x80" * 20,
    ],
)
def test_bytes_that_are_no_message_are_an_error(data):
    with pytest.raises(DecodeError):
        list(fields_of(data, 0, len(data)))
    with pytest.raises(DecodeError):
        list(fields_of(data + bytes(20), 0, len(data)))
