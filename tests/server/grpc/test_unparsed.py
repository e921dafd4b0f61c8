"""Large requests of the gRPC port that are refused before they are parsed."""

from __future__ import annotations

import gc

import grpc
import pytest
from google.protobuf.message import DecodeError

from broker_store.protocol.grpc.fields import piece_tag
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Address,
    Code,
    Message,
    MessageQueue,
    Settings,
    Subscription,
    SystemProperties,
)
from broker_store.server.grpc import clients as clients_module
from broker_store.server.grpc import unparsed
from broker_store.server.grpc.service import MAX_SMALL_BODY_BYTES, SEND_MESSAGE
from broker_store.server.grpc.statuses import Refused
from broker_store.server.grpc.unparsed import check_command, check_send
from tests.server.grpc.conftest import GROUP, METADATA, ORDERS, connected, message, settings_of
from tests.support.grpc_calls import path_of
from tests.support.waits import until

MOST = 4 << 20  # of a body
EMPTY_KEY = bytes((piece_tag(SystemProperties.KEYS_FIELD_NUMBER), 0))
EMPTY_PROPERTY = bytes((piece_tag(Message.USER_PROPERTIES_FIELD_NUMBER), 0))


def piece(number: int, value: bytes) -> bytes:
    """A field."""
    length, encoded = len(value), []
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((piece_tag(number), *encoded, length)) + value


def with_system(fields: bytes) -> bytes:
    """A message with these fields in its system properties."""
    return message().SerializeToString() + piece(Message.SYSTEM_PROPERTIES_FIELD_NUMBER, fields)


def request(*messages: bytes) -> bytes:
    return b"".join([piece(1, each) for each in messages])


def with_body(size: int) -> bytes:
    return message(bytes(size)).SerializeToString()


def test_the_largest_messages_that_may_be_stored_pass():
    """Each has one-byte keys as large as the store takes, and the most properties."""
    user = {f"p{number}": "v" for number in range(128)}
    largest = message(bytes(MOST), user=user, keys=["k"] * 15_000, trace_context="t" * 1_000)
    check_send(s.SendMessageRequest(messages=[largest]).SerializeToString(), MOST)
    many = [message(bytes(2_000), user={"p": "v" * 3_900})] * unparsed.MAX_MESSAGES
    check_send(s.SendMessageRequest(messages=many).SerializeToString(), MOST)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (request(with_system(EMPTY_KEY * 600_000)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (request(with_system(b""), with_system(b"\x12\x01k" * 600_000)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (request(with_body(1) + EMPTY_PROPERTY * 600_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (request(*[with_system(EMPTY_KEY * 30_000)] * 100), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (request(with_body(MOST + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (request(with_body(MOST) + with_body(1)), Code.MESSAGE_BODY_TOO_LARGE),
        (b"\x10\x00" + request(*[b""] * 600_000), Code.BAD_REQUEST),
        (b"\x10\x00" * 600_000, Code.BAD_REQUEST),
    ],
    ids=["empty keys", "keys", "properties", "keys of all", "body", "two bodies", "messages", "unknown"],
)
def test_a_request_that_none_may_be_is_refused(sent, code):
    with pytest.raises(Refused) as refused:
        check_send(sent, MOST)
    assert refused.value.status.code == code


def test_bytes_that_cannot_be_read_are_not_parsed():
    with pytest.raises(DecodeError):
        check_send(request(with_body(5)) + b"\x0a\xff", MOST)


async def test_a_large_message_is_refused_before_it_is_parsed(opened, monkeypatch):
    port = await opened()
    assert (await port.send(message(bytes(MOST)))).status.code == Code.OK
    (connection,) = port.port.channels
    handled = []
    monkeypatch.setitem(connection.handler._handlers, SEND_MESSAGE, lambda *given: handled.append(given))
    sent = request(with_system(EMPTY_KEY * 600_000))
    assert len(sent) > MAX_SMALL_BODY_BYTES
    call = port.channel.unary_unary(path_of("SendMessage"), None, s.SendMessageResponse.FromString)
    answer = await call(sent, metadata=METADATA, timeout=30)
    assert (answer.status.code, handled) == (Code.MESSAGE_PROPERTIES_TOO_LARGE, [])
    assert port.parts.statistics.refusals.counts()["properties"] == 1


def test_settings_are_bounded_by_their_bytes_and_stacks_are_not():
    most = clients_module.MAX_SETTINGS_BYTES
    stacks = s.ThreadStackTrace(nonce="n", thread_stack_trace="s" * (2 * most))
    check_command(s.TelemetryCommand(thread_stack_trace=stacks).SerializeToString())
    check_command(s.TelemetryCommand(settings=settings_of()).SerializeToString() * 20)
    with pytest.raises(Refused, match="settings of 524288 bytes, most is 262144"):
        check_command(piece(2, bytes(most)) * 2)
    with pytest.raises(DecodeError):
        check_command(b"\x12\x00" * most)


async def test_large_settings_are_refused_before_they_are_parsed(opened, monkeypatch):
    port = await opened()
    taken = []
    monkeypatch.setattr(clients_module.GrpcClients, "take_settings", lambda *given: taken.append(given))
    subscriptions = piece(Subscription.SUBSCRIPTIONS_FIELD_NUMBER, b"") * clients_module.MAX_SETTINGS_BYTES
    settings = Settings()
    settings.MergeFromString(piece(Settings.SUBSCRIPTION_FIELD_NUMBER, subscriptions))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await connected(port, settings)
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT and taken == []


async def test_what_is_kept_of_settings_and_receives_is_what_is_used(opened):
    """A receive of 1 MiB with empty addresses took 20 MB while it waited: 1,000 of them all memory."""
    port = await opened()
    addresses = [Address()] * 20_000
    settings = settings_of()
    settings.access_point.addresses.extend(addresses)
    call, answer = await connected(port, settings)
    assert len(answer.settings.access_point.addresses) > 20_000  # a client gets its own settings back
    client = port.service._clients.find("client-1")
    assert client.settings.subscription == settings.subscription and client.settings.ByteSize() < 100
    asked = s.ReceiveMessageRequest(group=GROUP, message_queue=MessageQueue(topic=ORDERS), batch_size=1)
    asked.message_queue.broker.endpoints.addresses.extend(addresses)
    asked.invisible_duration.FromSeconds(20)
    asked.filter_expression.expression = "TagA"
    receiving = port.receiving(asked)
    await until(lambda: port.parts.parked_pops.count == 1)
    (line,) = port.parts.parked_pops._lines.values()
    (parked,) = line
    assert parked.request.answer.args[1].ByteSize() < 100
    port.put(b"other", tag="TagB")
    port.put(b"hello", tag="TagA")
    bodies = [answer.message.body async for answer in receiving if answer.HasField("message")]
    assert bodies == [b"hello"]
    call.cancel()


async def test_a_refused_request_is_freed_at_once(opened):
    """Ten large sends that were refused took 600 MB until the garbage collector came."""
    port = await opened()
    gc.collect()
    gc.disable()
    try:
        assert (await port.send(message(topic="None"))).status.code == Code.TOPIC_NOT_FOUND
        assert not [found for found in gc.get_objects() if type(found) is Refused]
    finally:
        gc.enable()
