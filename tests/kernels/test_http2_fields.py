"""The kernel for header fields gives what the plain reader gives, or nothing."""

from __future__ import annotations

import random

import pytest
from hpack import Encoder, HPACKError

from broker_store.kernels.http2_fields import read_fields
from broker_store.protocol.http2.fields import STATIC_WORDS, FieldDecoder, check_request, encode_fields
from broker_store.protocol.http2.frames import Http2Error

TARGET = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b")]
# As the clients send them.
PAIRS = [
    (":method", "POST"), (":scheme", "https"), (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    (":authority", "127.0.0.1:8081"), ("content-type", "application/grpc"), ("te", "trailers"),
    ("user-agent", "grpc-java-netty/1.50.0"), ("x-mq-client-id", "host@7@0@3fVq"), ("x-mq-language", "JAVA"),
    ("x-mq-protocol", "v2"), ("x-mq-request-id", "0a1b-2c3d"), ("x-mq-date-time", "20261129T014500Z"),
    ("x-mq-client-version", "5.2.0"), ("authorization", "MQv2-HMAC-SHA1 Credential=k, Signature=0AF"),
    ("grpc-accept-encoding", "gzip"), ("grpc-timeout", "3S"), ("accept-encoding", ""),
]  # fmt: skip


def encoded(pairs, *, huffman: bool) -> bytes:
    if not huffman:
        return encode_fields(pairs)
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(pairs, huffman=True)[1:]


def plain(block: bytes):
    """Return what the plain reader gives: fields, the reason of a malformed request, or an error."""
    decoder = FieldDecoder(0.0)
    try:
        return check_request(decoder._read(block, 0))
    except (Http2Error, HPACKError, IndexError) as error:
        return error


@pytest.mark.parametrize("huffman", [False, True])
def test_the_fields_of_the_clients_are_read(huffman):
    block = encoded(PAIRS, huffman=huffman)
    assert read_fields(block, STATIC_WORDS) == dict(PAIRS) == plain(block)


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 300, 2_048])
def test_texts_of_each_length_are_read(length, huffman):
    block = encoded([*TARGET, ("x-text", "ab" * (length // 2) + "c" * (length % 2))], huffman=huffman)
    found = read_fields(block, STATIC_WORDS)
    assert len(found["x-text"]) == length and found == plain(block)


def test_each_byte_of_a_value_is_read_in_huffman_code_or_left_to_the_plain_reader():
    left = []
    for byte in range(256):
        block = encoded([*TARGET, ("x-text", f"a{chr(byte)}b")], huffman=True)
        found = read_fields(block, STATIC_WORDS)
        if not found:
            left.append(byte)
        else:
            assert found == plain(block) and found["x-text"] == f"a{chr(byte)}b".encode().decode("latin-1")
    assert left == [0, 10, 13]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        TARGET[:2],
        [*TARGET[:2], (":path", "")],
        [("a", "1"), *TARGET],
        [*TARGET, (":path", "/c")],
        [*TARGET, (":status", "200")],
        [*TARGET, (":other", "1")],
        [*TARGET, ("a", "1"), ("a", "2")],
        [*TARGET, ("connection", "close")],
        [*TARGET, ("proxy-connection", "close")],
        [*TARGET, ("keep-alive", "1")],
        [*TARGET, ("transfer-encoding", "chunked")],
        [*TARGET, ("upgrade", "h2c")],
        [*TARGET, ("A", "1")],
        [*TARGET, ("a b", "1")],
        [*TARGET, ("", "1")],
        [*TARGET, ("a", "\0")],
        [*TARGET, ("a", "1\r")],
        [*TARGET, ("a", "1\n")],
        [*TARGET, ("a", "X" * 2_049)],
        [*TARGET, *((f"a{number}", "") for number in range(62))],
        [*TARGET, *((f"a{number}", "X" * 2_000) for number in range(5))],
    ],
)
@pytest.mark.parametrize("huffman", [False, True])
def test_other_requests_are_left_to_the_plain_reader(pairs, huffman):
    assert read_fields(encoded(pairs, huffman=huffman), STATIC_WORDS) == {}


@pytest.mark.parametrize(
    "rest",
    [
        b"\x20",  # the size of a table
        b"\x80",  # field 0
        b"\xff\x00",  # field 127
        b"\xc0",  # field 64: of a dynamic table
        b"\x00\x01a\x05abcd",  # a text that is longer than the block
        b"\x00\x01a\x7f",
        b"\x00\x01a\x7f\xff\xff\x7f",
        b"\x00\x01a",
        b"\x00",
        b"\x0f",
        b"\x00\x01a\x81\x00",  # padding of zeros
        b"\x00\x01a\x82\x1f\xff",  # a padding of more than 7 bits
        b"\x00\x01a\x84\xff\xff\xff\xff",  # the end of a text
    ],
)
def test_malformed_blocks_are_left_to_the_plain_reader(rest):
    block = encode_fields(TARGET) + rest
    assert read_fields(encode_fields(TARGET), STATIC_WORDS) == dict(TARGET)
    assert read_fields(block, STATIC_WORDS) == {}
    assert not isinstance(plain(block), dict)


def test_damaged_blocks_are_read_as_the_plain_reader_reads_them_or_left_to_it():
    rng = random.Random(1)
    known = [encoded(PAIRS, huffman=huffman) for huffman in (False, True)]
    read = 0
    for _ in range(20_000):
        block = bytearray(rng.choice(known))
        for _ in range(rng.randrange(3)):
            block[rng.randrange(len(block))] = rng.randrange(256)
        if rng.random() < 0.2:
            del block[rng.randrange(len(block)) :]
        found = read_fields(bytes(block), STATIC_WORDS)
        if found:
            read += 1
            assert found == plain(bytes(block)), block.hex()
    assert read > 5_000


@pytest.mark.parametrize("arguments", [(), (b"",), (b"", [], 1), ("text", STATIC_WORDS)])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError):
        read_fields(*arguments)
