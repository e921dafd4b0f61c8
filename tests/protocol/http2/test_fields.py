"""Header fields beside the library `hpack`."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder

from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.http2 import fields as module
from broker_store.protocol.http2.fields import FieldDecoder, check_request, encode_fields
from broker_store.protocol.http2.frames import Http2Error

PAIRS = [
    (":method", "POST"), (":scheme", "http"), (":path", "/a/b"), ("content-type", "application/grpc"),
    ("x-mq-client-id", "client@1"), ("x-long", "v" * 300), ("x-" + "n" * 200, ""), ("user-agent", "grpc/1"),
]  # fmt: skip


def without_table() -> Encoder:
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder


def test_what_is_encoded_is_read_by_hpack():
    assert Decoder().decode(encode_fields(PAIRS)) == PAIRS


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("make", [Encoder, without_table], ids=["table", "no table"])
def test_blocks_of_hpack_are_read(make, huffman):
    encoder, decoder = make(), FieldDecoder(0.0)
    for number in range(50):
        pairs = [*PAIRS, ("x-mq-request-id", f"request-{number}")]
        assert decoder.decode(encoder.encode(pairs, huffman=huffman)) == pairs
    assert (decoder._full is None) == (make is without_table)
    assert len(decoder._texts) <= module.MAX_CACHED


def test_a_client_may_drop_its_table_and_take_it_again_before_it_knows():
    encoder, decoder = Encoder(), FieldDecoder(0.0)
    for size in (4_096, 0, 4_096, 100, 0, 0):
        encoder.header_table_size = size
        for _ in range(3):
            assert decoder.decode(encoder.encode(PAIRS)) == PAIRS
    decoder.has_no_table = True
    encoder.header_table_size = 50
    with pytest.raises(Http2Error) as failure:
        decoder.decode(encoder.encode(PAIRS))
    assert failure.value.code == ErrorCode.COMPRESSION_ERROR


def test_random_bytes_are_read_as_hpack_reads_them_or_refused():
    """Without a table both must agree: on the fields, or that there are none."""
    rng = random.Random(1)
    known = [without_table().encode(PAIRS, huffman=huffman)[1:] for huffman in (False, True)]
    agreed = 0
    for _ in range(5_000):
        block = bytearray(rng.choice(known))
        for _ in range(rng.randrange(3)):
            block[rng.randrange(len(block))] = rng.randrange(256)
        block = bytes(block[: rng.randrange(len(block) + 1)] if rng.random() < 0.3 else block)
        ours, oracle = FieldDecoder(0.0), Decoder()
        oracle.max_allowed_table_size = 0
        oracle.header_table_size = 0
        try:
            wanted = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in oracle.decode(block, raw=True)]
        except Exception:  # hpack raises many kinds
            wanted = None
        try:
            found = ours._read(block, 0)
        except (Http2Error, IndexError, module.HPACKError):
            found = None
        if block[:1] and block[0] & 0xE0 == 0x20:
            continue  # a size update, which `decode` reads
        if found is not None or wanted is not None:
            agreed += 1
        assert found == wanted, block.hex()
    assert agreed > 500


def test_repeated_fields_are_joined():
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("a", "1"), ("a", "2")]
    assert check_request(pairs)["a"] == "1,2"


@pytest.mark.parametrize(
    "field",
    [("A", "x"), ("a b", "x"), ("", "x"), ("te\x80", "x"), ("upgrade", "x"), ("a", "x\0"), ("a", "\n")],
)
def test_fields_that_are_not_allowed_are_refused(field):
    assert isinstance(check_request([*PAIRS[:3], field]), str)


@pytest.mark.parametrize(
    ("more", "legal"),
    [([("x", "v" * 20_000)], 25), ([("accept-encoding", "gzip, deflate")] * 500, 50)],
    ids=["long", "many fields"],
)
def test_long_blocks_have_a_budget_and_usual_ones_have_none(more, legal):
    """A thousand long ones in Huffman code held the loop for 3 s, a byte of them for 0.2 us."""
    block, usual = encode_fields([*PAIRS, *more]), encode_fields(PAIRS)
    decoder = FieldDecoder(0.0)
    for _ in range(legal):
        assert isinstance(decoder.request(block, 0.0), dict)
    with pytest.raises(Http2Error, match="too many long header blocks") as failed:
        for _ in range(legal):
            decoder.request(block, 0.0)
    assert (failed.value.code, failed.value.stream) == (ErrorCode.ENHANCE_YOUR_CALM, 0)
    for _ in range(10_000):
        assert isinstance(decoder.request(usual, 0.0), dict)
    assert isinstance(decoder.request(block, 10.0), dict)
