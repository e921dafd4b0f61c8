"""gRPC messages in bodies, and the blocks that end calls."""

from __future__ import annotations

import pytest
from hpack import Decoder

from broker_store.protocol.grpc import framing
from broker_store.protocol.grpc.framing import (
    GrpcError,
    GrpcStatus,
    MessageReader,
    failed,
    message_of,
    percent_encoded,
    with_prefix,
)


def test_a_message_is_read_as_it_was_written():
    assert message_of(with_prefix(b"hello")) == b"hello" and message_of(with_prefix(b"")) == b""


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\0\2a", b"\0\0\0\0\1ab", with_prefix(b"a") * 2])
def test_a_body_has_one_whole_message(body):
    with pytest.raises(GrpcError) as failure:
        message_of(body)
    assert failure.value.status == GrpcStatus.INTERNAL


def test_messages_may_be_cut_at_every_byte():
    messages = [b"", b"a", b"hello" * 50, b"x"]
    data = b"".join(map(with_prefix, messages))
    for at in range(len(data) + 1):
        reader = MessageReader()
        assert reader.read(data[:at]) + reader.read(data[at:]) == messages
    reader = MessageReader()
    assert [found for at in range(len(data)) for found in reader.read(data[at : at + 1])] == messages


def test_a_long_call_has_bounded_messages_without_compression(monkeypatch):
    with pytest.raises(GrpcError) as failure:
        MessageReader().read(b"\1\0\0\0\0")
    assert failure.value.status == GrpcStatus.UNIMPLEMENTED
    monkeypatch.setattr(framing, "MAX_LONG_MESSAGE_BYTES", 100)
    with pytest.raises(GrpcError) as failure:
        MessageReader().read(b"\0\0\0\0\x65")
    assert failure.value.status == GrpcStatus.RESOURCE_EXHAUSTED


def test_a_failure_has_its_text_in_percent_encoding():
    error = GrpcError(GrpcStatus.INTERNAL, "50 % of\nüber")
    assert percent_encoded(str(error)) == "50 %25 of%0A%C3%BCber"
    trailers = [("grpc-status", "13"), ("grpc-message", "50 %25 of%0A%C3%BCber")]
    assert Decoder().decode(failed(error, has_answer=True)) == trailers
    head = [(":status", "200"), ("content-type", "application/grpc")]
    assert Decoder().decode(failed(error)) == head + trailers


def test_the_bytes_of_an_unfinished_message_are_counted_and_joined_once():
    reader = MessageReader()
    data = with_prefix(bytes(100_000))
    for at in range(0, 100_000, 1_000):
        assert reader.read(data[at : at + 1_000]) == []
        assert reader.kept == at + 1_000
    assert len(reader._parts) == 100  # the first piece has the length; no further one is joined
    assert reader.read(data[100_000:] + b"\0\0") == [bytes(100_000)] and reader.kept == 2
