"""The kernel makes the messages that protobuf makes, or none."""

from __future__ import annotations

import random

import pytest

from broker_store.errors import FormatError
from broker_store.formats import properties, record
from broker_store.kernels.grpc_received import received_messages
from broker_store.messages import Message
from broker_store.protocol.grpc.framing import message_of
from broker_store.protocol.grpc.v2.definition_pb2 import Resource
from broker_store.protocol.grpc.v2.service_pb2 import ReceiveMessageResponse
from broker_store.server.grpc.property_names import RESERVED
from broker_store.server.grpc.received_messages import digest_of, received_message

TOPIC = Resource(name="Orders", resource_namespace="n")
HANDLE = "0 1795244468000 60000 0 0 broker-a 1 0 8192 5f2c01ab"
NOW_MS = 1_790_000_000_000
ID = {"UNIQ_KEY": "01AF"}
make = received_messages(RESERVED)
topic_field = ReceiveMessageResponse(message={"topic": TOPIC}).message.SerializeToString()


def encoded(
    pairs=None, *, body=b"body", born_ms=NOW_MS - 5, stored_ms=NOW_MS, queue=3, offset=7, **more
) -> bytes:
    pairs = {**ID, **(pairs or {})}
    raw = pairs if isinstance(pairs, bytes) else properties.encode(pairs)
    message = Message("Orders", queue, body, more.pop("raw", raw), 0, born_timestamp=born_ms, **more)
    if message.store_host is None:
        message.store_host = (b"\x0a\0\0\x01", 10_911)
    return record.encode(message, queue_offset=offset, log_offset=8_192, store_timestamp=stored_ms)


def by_kernel(data: bytes, at: int = 0, attempt: int = 1) -> bytes:
    body = record.decode(data, at, check_crc=False).body
    return make(data, at, topic_field, HANDLE, digest_of(body), attempt)


def by_protobuf(data: bytes, at: int = 0) -> ReceiveMessageResponse:
    stored = record.decode(data, at, check_crc=False)
    return ReceiveMessageResponse(message=received_message(stored, TOPIC, HANDLE, NOW_MS))


USUAL = {
    "least": encoded(),
    "tag and keys": encoded({"TAGS": "TagA", "KEYS": " k1 k2  k3 "}),
    "user": encoded({"region": "eu", "a b": " c ", "x" * 200: "y" * 20_000}),
    "of the broker": encoded({"MSG_REGION": "r", "TRACE_ON": "true", "CLUSTER": "c", "WAIT": "true"}),
    "of gRPC": encoded({"__BORNHOST": "host-1", "TRACE_CONTEXT": "00-4b", "BORN_TIMESTAMP": "5"}),
    "in order": encoded({"__SHARDINGKEY": "g", "TRACE_CONTEXT": "t"}),
    "compressed": encoded(sys_flag=record.SYS_COMPRESSED),
    "first of its queue": encoded(queue=0, offset=0),
    "far in its queue": encoded(offset=1 << 60),
    "without a body": encoded(body=b""),
    "large": encoded(body=b"x" * 100_000),
    "whole seconds": encoded(born_ms=1_000, stored_ms=253_402_300_799_000),
    "bytes of addresses": encoded(born_host=(b"\xff\0\x63\x64", 65_535), store_host=(b"\x09\x0a\x64\xc8", 0)),
    "many keys": encoded({"KEYS": "k " * 15_000}),
    "many properties": encoded({f"{number:04x}": "v" for number in range(3_000)}),
    "no end": encoded(raw=b"UNIQ_KEY\x0101AF\x02a\x01b"),
}
OTHER = {
    "no id": encoded(raw=b"a\x01b\x02"),
    "no properties": encoded(raw=b""),
    "not ASCII": encoded({"a": "ü"}),
    "a control character": encoded({"a": "b\tc"}),
    "no pair": encoded(raw=b"UNIQ_KEY\x0101AF\x02a\x02"),
    "no name": encoded(raw=b"UNIQ_KEY\x0101AF\x02\x01b\x02"),
    "no value": encoded(raw=b"UNIQ_KEY\x0101AF\x02a\x01\x02"),
    "two separators": encoded(raw=b"UNIQ_KEY\x0101AF\x02a\x01b\x01c\x02"),
    "two tags": encoded(raw=b"UNIQ_KEY\x0101AF\x02TAGS\x01a\x02TAGS\x01b\x02"),
    "a delay": encoded({"DELAY": "3"}),
    "a delivery time": encoded({"TIMER_DELIVER_MS": "1790000000001"}),
    "a transaction": encoded({"TRAN_MSG": "true"}),
    "a priority": encoded({"_SYS_MSG_PRIORITY_": "1"}),
    "a light topic": encoded({"__LITE_TOPIC": "l"}),
    "a dead letter": encoded({"DLQ_ORIGIN_TOPIC": "t", "DLQ_ORIGIN_MESSAGE_ID": "m"}),
    "IPv6": encoded(born_host=(bytes(15) + b"\x01", 1)),
    "IPv6 of the store": encoded(store_host=(bytes(15) + b"\x01", 1)),
    "a time before 1970": encoded(born_ms=-5),
    "no time": encoded(born_ms=0),
    "a time after 9999": encoded(born_ms=253_402_300_800_000),
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_records_are_made_as_by_protobuf(name):
    made = by_kernel(USUAL[name])
    assert ReceiveMessageResponse.FromString(message_of(made)) == by_protobuf(USUAL[name])


@pytest.mark.parametrize("name", ["least", "tag and keys", "of gRPC"])
def test_the_bytes_are_those_of_protobuf(name):
    assert message_of(by_kernel(USUAL[name])) == by_protobuf(USUAL[name]).SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("name", OTHER)
def test_other_records_are_left_to_protobuf(name):
    assert by_kernel(OTHER[name]) == b""
    assert by_protobuf(OTHER[name]).message.topic == TOPIC


def test_each_record_of_several_is_made():
    together, at = b"".join(USUAL.values()), 0
    for one in USUAL.values():
        assert by_kernel(together, at) == by_kernel(one)
        at += len(one)


@pytest.mark.parametrize("attempt", [1, 2, 127, 128, (1 << 31) - 1])
def test_the_attempt_is_stated(attempt):
    made = ReceiveMessageResponse.FromString(message_of(by_kernel(USUAL["least"], attempt=attempt)))
    assert made.message.system_properties.delivery_attempt == attempt


def test_what_is_no_record_gives_nothing():
    data = USUAL["tag and keys"]
    for place in (-1, 1, len(data), len(data) - 50, 1 << 40):
        assert make(data, place, topic_field, HANDLE, "d", 1) == b""
    for end in range(len(data)):
        assert make(data[:end], 0, topic_field, HANDLE, "d", 1) == b""
    assert make(data, 0, topic_field, "h" * 1_025, "d", 1) == b""
    assert make(data, 0, topic_field, HANDLE, "d" * 65, 1) == b""
    assert make(data, 0, topic_field, HANDLE, "d", 0) == b""


def test_damaged_records_are_made_as_by_protobuf_or_left_to_it():
    rng = random.Random(1)
    names = ("least", "tag and keys", "of the broker", "of gRPC", "in order")
    made = 0
    for _ in range(20_000):
        data = bytearray(USUAL[rng.choice(names)])
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), rng.randrange(3)))
        found = make(bytes(data), 0, topic_field, HANDLE, "d", 1)
        if found:
            try:
                wanted = by_protobuf(bytes(data))
            except FormatError:  # a topic that is not UTF-8: the kernel does not read it
                continue
            made += 1
            wanted.message.system_properties.body_digest.checksum = "d"
            wanted.message.system_properties.delivery_attempt = 1
            assert ReceiveMessageResponse.FromString(message_of(found)) == wanted, bytes(data).hex()
    assert made > 2_000


@pytest.mark.parametrize(
    "arguments",
    [(), (b"",), ("", 0, b"", "", "", 1), (b"", "0", b"", "", "", 1), (b"", 0, b"", b"", "", 1)],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError):
        make(*arguments)
