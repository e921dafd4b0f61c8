"""The kernel for sends reads a call as protobuf and the checks of sent messages do, or not at all."""

from __future__ import annotations

import random

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from broker_store.formats import properties
from broker_store.kernels.grpc_send import usual_sends
from broker_store.protocol.grpc.framing import GrpcError, message_of, with_prefix
from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2.definition_pb2 import DigestType, Encoding, MessageType
from broker_store.protocol.grpc.v2.service_pb2 import SendMessageRequest
from broker_store.server.grpc.property_names import REFUSED
from broker_store.server.grpc.sent_messages import NORMAL, properties_of, type_of
from broker_store.server.grpc.statuses import Refused

ADDED = properties.encode({"CLUSTER": "DefaultCluster"})
NOW_MS = 1_790_000_000_000
read = usual_sends(REFUSED, ADDED)


def message(user=(), **system) -> v2.Message:
    given = {"message_id": "01AF", "message_type": MessageType.NORMAL} | system
    return v2.Message(
        topic=v2.Resource(name="Orders"),
        user_properties=dict(user),
        system_properties=v2.SystemProperties(**given),
        body=b"body",
    )


def call(*messages: v2.Message) -> bytes:
    return with_prefix(SendMessageRequest(messages=messages).SerializeToString())


def by_protobuf(body: bytes):
    """Return what the kernel should, from protobuf and the checks; None for a call that is not usual."""
    try:
        request = SendMessageRequest.FromString(message_of(body))
    except (DecodeError, GrpcError):
        return None
    if len(request.messages) != 1:
        return None
    (given,) = request.messages
    system = given.system_properties
    kind = type_of(system)
    try:
        pairs = properties_of(given, kind, given.topic.name, NOW_MS)
    except Refused:
        return None
    if kind != NORMAL:
        return None
    born = system.born_timestamp
    encoded = properties.encode(pairs) + ADDED
    return (
        given.topic.name,
        system.message_id,
        given.body,
        {*encoded.split(b"\x02")},  # the order of a map is not that of its bytes
        born.seconds * 1_000 + born.nanos // 1_000_000,
        system.body_encoding,
    )


def by_kernel(body: bytes):
    found = read(body)
    return (*found[:3], {*found[3].split(b"\x02")}, *found[4:]) if found else None


USUAL = {
    "least": message(),
    "java": message(
        {"region": "eu", "a": "1"},
        tag="TagA",
        keys=["k1", "k2"],
        born_timestamp=Timestamp(seconds=1_790_000_000, nanos=123_456_789),
        born_host="host-1",
        body_encoding=Encoding.IDENTITY,
        queue_id=3,
        trace_context="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    "digest": message(body_digest=v2.Digest(type=DigestType.CRC32, checksum="0A1B2C3D")),
    "gzip": message(body_encoding=Encoding.GZIP),
    "no type": message(message_type=MessageType.MESSAGE_TYPE_UNSPECIFIED),
    "in order without a group": message(message_type=MessageType.FIFO),
    "nanoseconds alone": message(born_timestamp=Timestamp(nanos=999_999_999)),
    "no time": message(born_timestamp=Timestamp()),
    "no digest": message(body_digest=v2.Digest()),
    "16 properties": message({f"name-{number}": "v" * number for number in range(1, 17)}),
    "blanks within": message({"a b": " c "}, tag="a b", keys=["k 1"]),
    "long": message({"a": "b" * 8_000}, tag="t" * 1_024, keys=["k" * 1_024] * 3),
    "many keys": message(keys=["k"] * 4_000),
    "16 KiB": message({"a": "b" * (16_383 - 3)}, tag="t", keys=["kk"]),
}
OTHER = {
    "two messages": (message(), message()),
    "none": (),
    "no topic": (v2.Message(system_properties=message().system_properties, body=b"x"),),
    "a namespace": (
        v2.Message(
            topic=v2.Resource(name="Orders", resource_namespace="n"),
            system_properties=message().system_properties,
            body=b"x",
        ),
    ),
    "no properties": (v2.Message(topic=v2.Resource(name="Orders"), body=b"x"),),
    "no body": (v2.Message(topic=v2.Resource(name="Orders"), system_properties=message().system_properties),),
    "no id": (message(message_id=""),),
    "a blank id": (message(message_id="  "),),
    "an id that is not ASCII": (message(message_id="é"),),
    "a control character in the id": (message(message_id="a\x7f"),),
    "a long id": (message(message_id="a" * 1_025),),
    "a blank tag": (message(tag=" "),),
    "a tag with a bar": (message(tag="a|b"),),
    "a tag that is not ASCII": (message(tag="ü"),),
    "an empty key": (message(keys=["a", ""]),),
    "a property of the broker": (message({"KEYS": "a"}),),
    "a trace context as property": (message({"TRACE_CONTEXT": "a"}, trace_context="b"),),
    "a property without name": (message({"": "a"}),),
    "a property without value": (message({"a": ""}),),
    "a blank value": (message({"a": "  "}),),
    "a value with a separator": (message({"a": "b\x02"}),),
    "17 properties": (message({f"name-{number}": "v" for number in range(17)}),),
    "more than 16 KiB": (message({"a": "b" * (16_384 - 3)}, tag="t", keys=["kk"]),),
    "too many keys": (message(keys=["k"] * 16_385),),
    "a delivery time": (message(delivery_timestamp=Timestamp(seconds=1)),),
    "a group": (message(message_group="g"),),
    "a transaction": (message(message_type=MessageType.TRANSACTION),),
    "a priority": (message(priority=1),),
    "a light topic": (message(lite_topic="l"),),
    "a time of recovery": (message(orphaned_transaction_recovery_duration=Duration(seconds=1)),),
    "a negative time": (message(born_timestamp=Timestamp(seconds=-1)),),
    "a time that is too large": (message(born_timestamp=Timestamp(seconds=1 << 40)),),
    "negative nanoseconds": (message(born_timestamp=Timestamp(nanos=-1)),),
    "a negative queue": (message(queue_id=-1),),
    "an unknown encoding": (message(body_encoding=3),),
    "another system property": (message(store_host="h"),),
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_calls_are_read_as_by_protobuf(name):
    body = call(USUAL[name])
    found = by_kernel(body)
    assert found is not None and found == by_protobuf(body)


def test_properties_are_encoded_in_the_same_order():
    given = message(
        {"region": "eu"},
        tag="TagA",
        keys=["k1", "k2"],
        born_timestamp=Timestamp(seconds=5, nanos=1_000_000),
        born_host="host-1",
        trace_context="t",
    )
    pairs = properties_of(given, NORMAL, "Orders", NOW_MS)
    assert read(call(given))[3] == properties.encode(pairs) + ADDED


@pytest.mark.parametrize("name", OTHER)
def test_other_calls_are_left_to_protobuf(name):
    assert read(call(*OTHER[name])) == ()


def field(number: int, content: bytes) -> bytes:
    """Return a field with a length below 128."""
    return bytes((number << 3 | 2, len(content))) + content


@pytest.mark.parametrize(
    "raw", [b"\xf8\x01\x00", b"\x0a\x01t", b"\x0a\x00"], ids=["unknown", "again", "empty"]
)
def test_unknown_and_repeated_fields_are_left_to_protobuf(raw):
    """`raw` is field 31, or field 1, which each of the three messages has already."""
    given = message(tag="t")
    topic, system = given.topic.SerializeToString(), given.system_properties.SerializeToString()

    def made(in_request: bytes = b"", in_message: bytes = b"", in_system: bytes = b"") -> bytes:
        parts = field(1, topic), in_message, field(3, system + in_system), field(4, b"body")
        return with_prefix(field(1, b"".join(parts)) + in_request)

    assert made() == call(given) and read(made())
    for changed in (made(in_request=raw), made(in_message=raw), made(in_system=raw)):
        assert read(changed) == ()


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0\0\0\0", b"\0\0\0\0\x01\x0a", b"\0\0\0\0\x02\x0a\x05", b"\x01" + call(message())[1:]],
)
def test_malformed_bodies_are_left_to_protobuf(body):
    assert read(body) == ()


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("place", ["message", "name", "value", "id", "body"])
def test_lengths_of_more_bytes_than_needed_are_read_as_by_protobuf_or_left_to_it(place, size):
    def field(first: int, content: bytes, name: str = "") -> bytes:
        head = bytes((len(content),))
        if name == place and size > 1:
            head = bytes((len(content) | 0x80, *b"\x80" * (size - 2), 0))
        return bytes((first,)) + head + content

    entry = field(0x0A, b"a", "name") + field(0x12, b"b", "value")
    system = field(0x1A, b"01AF", "id")
    topic = field(0x0A, field(0x12, b"Orders"))
    given = topic + field(0x12, entry) + field(0x1A, system) + field(0x22, b"body", "body")
    body = with_prefix(field(0x0A, given, "message"))
    assert by_kernel(body) == by_protobuf(body)
    assert (by_kernel(body) is not None) == (size <= 5)


def test_calls_that_are_cut_are_left_to_protobuf():
    body = call(USUAL["java"])
    for end in range(len(body)):
        assert read(body[:end]) == ()
        inner = body[5:end]
        found = by_kernel(with_prefix(inner))
        assert found is None or found == by_protobuf(with_prefix(inner))


def test_damaged_calls_are_read_as_by_protobuf_or_left_to_it():
    rng = random.Random(1)
    known = [call(given) for name, given in USUAL.items() if "many" not in name and "long" not in name]
    agreed = 0
    for _ in range(30_000):
        body = bytearray(rng.choice(known))
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(5, len(body))] = rng.choice((rng.randrange(256), rng.randrange(32)))
        found = by_kernel(bytes(body))
        if found is not None:
            agreed += 1
            assert found == by_protobuf(bytes(body)), body.hex()
    assert agreed > 1_000


@pytest.mark.parametrize("arguments", [(), (b"", b""), ("text",)])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError):
        read(*arguments)
