"""Peers of the gRPC port that break its rules, or do not read, by real sockets with and without TLS."""

from __future__ import annotations

import asyncio
import ssl
import struct

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.formats import http2_frame as f
from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.grpc.framing import GrpcStatus, message_of, with_prefix
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import Code, MessageQueue
from broker_store.protocol.http2.answers import MAX_IDLE_FRAMES
from broker_store.protocol.http2.connection import MAX_CANCELS, MAX_STREAMS, PREFACE
from broker_store.protocol.http2.fields import encode_fields
from broker_store.protocol.http2.frames import frame_head, settings_frame
from broker_store.server.channel import IDLE_TIMEOUT_S
from broker_store.server.grpc import channel as channel_module
from broker_store.server.grpc import turns as turns_module
from broker_store.server.grpc.settings import MAX_COMMANDS
from tests.server.grpc.conftest import GROUP, ORDERS, route, settings_of
from tests.server.grpc.wire import BLOCK, Wire, connect, fields_of, nothing_is_left
from tests.support.waits import LIMIT_S, until

WITH_AND_WITHOUT_TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@WITH_AND_WITHOUT_TLS
@pytest.mark.parametrize("cut", [1 << 20, 8_191, 97])
async def test_each_of_a_thousand_requests_is_answered(port, tls, cut):
    wire = await connect(port, tls)
    wire.begin()
    wanted = {}
    for number in range(1_000):
        topic = f"T{number % 7}"
        if number < 7 and number % 2:
            port.parts.topics.put(TopicConfig(topic, number, number))
        wanted[wire.request(route(topic).SerializeToString())] = number % 7
    data = wire.h2.data_to_send()
    assert len(data) > 50_000
    for at in range(0, len(data), cut):
        wire.writer.write(data[at : at + cut])
        await asyncio.sleep(0)
    await wire.read(lambda: len(wire.statuses) == 1_000)
    assert wire.statuses == dict.fromkeys(wanted, "0") and wire.resets == {}
    for stream, kind in wanted.items():
        answer = s.QueryRouteResponse.FromString(message_of(wire.bodies[stream]))
        assert len(answer.message_queues) == (kind if kind % 2 else 0)
        assert answer.status.code == (Code.OK if kind % 2 else Code.TOPIC_NOT_FOUND)
    await nothing_is_left(port)


def requests(count: int, flags: int = f.FLAG_END_HEADERS, more=lambda stream: b"") -> bytes:
    return b"".join(
        frame_head(len(BLOCK), f.HEADERS, flags, stream) + BLOCK + more(stream)
        for stream in range(1, 2 * count, 2)
    )


def reset(stream: int) -> bytes:
    return frame_head(4, f.RST_STREAM, 0, stream) + struct.pack(">I", ErrorCode.CANCEL)


FLOODS = {
    "PING": (frame_head(8, f.PING, 0, 0) + bytes(8)) * (MAX_IDLE_FRAMES + 500),
    "SETTINGS": frame_head(0, f.SETTINGS, 0, 0) * (MAX_IDLE_FRAMES + 500),
    "WINDOW_UPDATE": (frame_head(4, f.WINDOW_UPDATE, 0, 0) + b"\0\0\0\1") * (MAX_IDLE_FRAMES + 500),
    "CONTINUATION": requests(1, 0) + (frame_head(1, f.CONTINUATION, 0, 1) + b"\0") * 1_000,
    "rapid reset": requests(MAX_CANCELS + 500, more=reset),
    "empty DATA": requests(1) + frame_head(0, f.DATA, 0, 1) * (MAX_IDLE_FRAMES + 500),
    "unknown frames": frame_head(0, 0x42, 0, 0) * (MAX_IDLE_FRAMES + 500),
}


@WITH_AND_WITHOUT_TLS
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_ends_its_connection_and_no_other(port, tls, flood):
    wire = await connect(port, tls)
    wire.writer.write(PREFACE + settings_frame({}) + flood)
    data = b""
    while piece := await wire.read_some():
        data += piece
    assert struct.pack(">I", ErrorCode.ENHANCE_YOUR_CALM) in data
    assert (await port.call("QueryRoute", route())).status.code == Code.OK
    assert sum(port.parts.statistics.refusals.counts().values()) == 1
    await port.channel.close()
    await nothing_is_left(port)


@WITH_AND_WITHOUT_TLS
async def test_more_streams_than_allowed_are_refused_one_by_one(port, tls):
    wire = await connect(port, tls)
    wire.writer.write(PREFACE + settings_frame({}) + requests(MAX_STREAMS + 3))
    data = b""
    while data.count(struct.pack(">I", ErrorCode.REFUSED_STREAM)) < 3:
        piece = await wire.read_some()
        assert piece, "the connection was ended"
        data += piece
    assert (await port.call("QueryRoute", route())).status.code == Code.OK
    await port.channel.close()
    await nothing_is_left(port)


@WITH_AND_WITHOUT_TLS
async def test_a_peer_that_does_not_read_is_not_read_and_gets_its_answers_later(port, tls):
    port.parts.topics.put(TopicConfig("Wide", 512, 512))
    wire = await connect(port, tls)
    wire.begin()
    wire.h2.update_settings({f.SETTING_INITIAL_WINDOW_SIZE: 1 << 24})
    wire.writer.transport.pause_reading()
    wide = route("Wide", "n" * 900).SerializeToString()  # its answer has a copy for each queue
    for _ in range(64):
        wire.request(wide)
    wire.writer.write(wire.h2.data_to_send())
    await until(lambda: any(channel._is_paused for channel in port.port.channels))
    (channel,) = port.port.channels
    # Whether or not the system's buffers take more meanwhile, it is not read as long as much is unsent.
    wire.request(wide)
    wire.writer.write(wire.h2.data_to_send())
    for _ in range(20):
        await asyncio.sleep(0.001)
        assert channel.unsent < 8 << 20
    await until(lambda: channel._is_paused)
    now_s = asyncio.get_running_loop().time()
    assert channel.overdue(now_s + IDLE_TIMEOUT_S + 1)[0] == "idle connection"
    wire.writer.transport.resume_reading()
    await wire.read(lambda: len(wire.statuses) == 65)
    assert set(wire.statuses.values()) == {"0"} and len(wire.statuses) == 65
    await nothing_is_left(port)


@WITH_AND_WITHOUT_TLS
async def test_a_peer_that_goes_in_the_middle_leaves_nothing(port, tls):
    for size in (1, 30, 200, 70_000):
        wire = await connect(port, tls)
        wire.begin()
        for _ in range(1_000):
            wire.request(route().SerializeToString())
        wire.writer.write(wire.h2.data_to_send()[:size])
        await wire.writer.drain()
    await until(lambda: len(port.port.channels) == 4)
    await nothing_is_left(port)


async def test_a_changed_record_of_tls_ends_its_connection(port):
    wire = await connect(port, True)
    wire.begin()
    await wire.read(lambda: wire.h2.remote_settings.max_concurrent_streams == MAX_STREAMS)
    (channel,) = port.port.channels
    channel.tls.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):  # the alert that the port sends
        await wire.read(lambda: False)
    assert port.parts.statistics.refusals.counts()["TLS"] == 1
    await nothing_is_left(port)


def opened_calls() -> bytes:
    """A consumer's Telemetry with its settings, 40 without, and two receives that wait for a message."""
    asked = s.ReceiveMessageRequest(group=GROUP, message_queue=MessageQueue(topic=ORDERS), batch_size=1)
    asked.invisible_duration.FromSeconds(20)
    asked.long_polling_timeout.FromSeconds(20)
    settings = s.TelemetryCommand(settings=settings_of()).SerializeToString()
    calls = [("Telemetry", settings)] + [("Telemetry", None)] * 40
    calls += [("ReceiveMessage", asked.SerializeToString())] * 2
    data = b""
    for number, (method, body) in enumerate(calls):
        stream = 2 * number + 1
        block = encode_fields(fields_of(method))
        data += frame_head(len(block), f.HEADERS, f.FLAG_END_HEADERS, stream) + block
        if body is not None:
            piece = with_prefix(body)
            flags = f.FLAG_END_STREAM if method == "ReceiveMessage" else 0
            data += frame_head(len(piece), f.DATA, flags, stream) + piece
    return data


async def _half_a_request(wire, channel) -> None:
    size = 1_000
    wire.writer.write(requests(1).replace(b"\0\0\0\1", b"\0\0\2\1", 1) + frame_head(size, f.DATA, 0, 513))
    wire.writer.write(bytes(size - 1))


async def _changed_record(wire, channel) -> None:
    if channel.tls is None:
        wire.writer.write(frame_head(1 << 20, f.DATA, 0, 1))  # a frame that is too long
    else:
        channel.tls.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))


async def _unread(wire, channel) -> None:
    """End a connection whose client does not read: what was written stays in the buffer of the port."""
    wire.writer.transport.pause_reading()
    channel.transport.write(bytes(8 << 20))
    channel.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert channel in channel.listener.channels and channel.handler._telemetry == {}


async def _do(action) -> None:
    action()


ENDS = {
    "error": lambda wire, channel: _do(lambda: wire.writer.write(frame_head(5, f.PING, 0, 0) + b"hello")),
    "close": lambda wire, channel: _do(channel.close),
    "abort": lambda wire, channel: _do(channel.abort),
    "client closes": lambda wire, channel: _do(wire.writer.close),
    "client aborts": lambda wire, channel: _do(wire.writer.transport.abort),
    "unfinished requests": _half_a_request,
    "TLS or frame": _changed_record,
    "unread": _unread,
}


@WITH_AND_WITHOUT_TLS
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_each_call_of_a_connection_that_ends_is_forgotten_once(port, tls, end, monkeypatch):
    wire = await connect(port, tls)
    wire.writer.write(PREFACE + settings_frame({}) + opened_calls())
    await until(lambda: port.port.channels)
    (channel,) = port.port.channels
    service, parts = channel.handler, port.parts
    await until(lambda: len(parts.parked_pops._channels) == 2)
    assert len(service._telemetry) == 41 and len(parts.clients.consumers("CG")) == 1
    gone: list[int] = []
    forget = service.gone
    monkeypatch.setattr(service, "gone", lambda stream: (gone.append(stream.id), forget(stream)))
    port.port.shares.unfinished_bytes = 500
    await end(wire, channel)
    await until(lambda: len(gone) >= 43)
    assert service._telemetry == {} and service._receives._under_way == {}
    assert parts.parked_pops._channels == {} and parts.clients.consumer_groups() == []
    wire.writer.transport.abort()
    await until(lambda: not port.port.channels)
    assert sorted(set(gone)) == sorted(gone) and len(gone) == 43 + (end is _half_a_request)
    await nothing_is_left(port)


async def test_many_calls_that_end_at_once_are_forgotten_in_turns(port, monkeypatch):
    wire = await connect(port, False)
    block = encode_fields(fields_of("Telemetry"))
    calls = [
        frame_head(len(block), f.HEADERS, f.FLAG_END_HEADERS, 2 * number + 1) + block for number in range(600)
    ]
    wire.writer.write(PREFACE + settings_frame({}) + b"".join(calls))
    await until(lambda: port.port.channels)
    (channel,) = port.port.channels
    service = channel.handler
    await until(lambda: len(service._telemetry) == 600)
    monkeypatch.setattr(turns_module, "MAX_FORGET_S", 0)
    turn = [0]
    most: dict[int, int] = {}
    forget = service.gone

    def gone(stream):
        most[turn[0]] = most.get(turn[0], 0) + 1
        forget(stream)

    monkeypatch.setattr(service, "gone", gone)
    wire.writer.write(b"".join(reset(2 * number + 1) for number in range(300)))
    await wire.writer.drain()
    for left in (300, 0):
        async with asyncio.timeout(LIMIT_S):
            while len(service._telemetry) > left:
                turn[0] += 1
                await asyncio.sleep(0)
        if left:
            wire.writer.transport.abort()
    assert max(most.values()) == 1 and sum(most.values()) == 600


async def test_costly_calls_of_one_read_leave_turns_to_others(port, monkeypatch):
    """One of 1,000 QueryRoutes took 2 s."""
    port.parts.topics.put(TopicConfig("Wide", 128, 128))
    monkeypatch.setattr(turns_module, "MAX_PORT_TURN_S", 0.001)
    wire = await connect(port, False)
    wire.begin()
    for _ in range(200):
        wire.request(route("Wide").SerializeToString())
    requests = wire.h2.data_to_send()
    await until(lambda: port.port.channels)
    (channel,) = port.port.channels
    most, handled = 0, []
    call = channel.handler.call
    monkeypatch.setattr(channel.handler, "call", lambda *given: handled.append(1) or call(*given))
    wire.writer.write(requests)
    while len(handled) < 200:
        before = len(handled)
        await asyncio.sleep(0)
        most = max(most, len(handled) - before)
    assert most <= 20
    await wire.read(lambda: len(wire.statuses) == 200)
    assert set(wire.statuses.values()) == {"0"}
    # A client goes before all of its calls had their turn: nothing of it is left.
    wire = await connect(port, False)
    wire.begin()
    wire.writer.write(requests)
    await until(lambda: any(channel._events for channel in port.port.channels))
    await nothing_is_left(port)


async def test_more_commands_than_a_client_has_end_its_telemetry(port):
    """A frame of 13,000 empty commands took 40 ms, and one of 2,000 with settings 0.2 s."""
    wire = await connect(port, False)
    wire.begin()
    number = wire.h2.get_next_available_stream_id()
    wire.h2.send_headers(number, fields_of("Telemetry"))
    settings = s.TelemetryCommand(settings=settings_of()).SerializeToString()
    wire.h2.send_data(number, with_prefix(settings) * MAX_COMMANDS)
    wire.writer.write(wire.h2.data_to_send())
    await until(lambda: port.parts.clients.consumers("CG"))
    wire.h2.send_data(number, with_prefix(b"") * 3_000)
    wire.writer.write(wire.h2.data_to_send())
    await wire.read(lambda: number in wire.statuses)
    assert wire.statuses[number] == str(int(GrpcStatus.INVALID_ARGUMENT))
    assert port.parts.statistics.refusals.counts() == {"commands of Telemetry": 1}
    assert not port.parts.clients.consumers("CG") and port.service._telemetry == {}
    await nothing_is_left(port)


async def with_answers_that_wait(port, calls: int) -> Wire:
    """A connection whose client opens no window, with answers of some KiB."""
    wire = await connect(port, False)
    wire.writer.write(PREFACE + settings_frame({f.SETTING_INITIAL_WINDOW_SIZE: 0}))
    body = with_prefix(route("Wide").SerializeToString())
    for number in range(calls):
        stream = 2 * number + 1
        wire.writer.write(frame_head(len(BLOCK), f.HEADERS, f.FLAG_END_HEADERS, stream) + BLOCK)
        wire.writer.write(frame_head(len(body), f.DATA, f.FLAG_END_STREAM, stream) + body)
    return wire


async def test_of_answers_that_wait_the_connection_with_the_most_is_ended(port):
    port.parts.topics.put(TopicConfig("Wide", 64, 64))
    small, large = await with_answers_that_wait(port, 1), await with_answers_that_wait(port, 3)

    def queued() -> list[int]:
        return sorted(channel._queued for channel in port.port.channels)

    await until(lambda: 0 < 3 * queued()[0] == queued()[-1])
    one = queued()[0]
    assert one > 1_000 and port.port.queued_bytes == 4 * one
    port.port.shares.unfinished_bytes = 4 * one
    another = await with_answers_that_wait(port, 1)
    await until(lambda: queued() == [one, one])
    assert port.port.queued_bytes == 2 * one
    async with asyncio.timeout(LIMIT_S):
        await large.reader.read()  # it ends
    assert port.parts.statistics.refusals.counts()["peer does not read"] == 1
    for wire in (small, another):
        wire.writer.transport.abort()
    await until(lambda: not port.port.channels)
    assert port.port.queued_bytes == 0


async def test_the_answers_that_wait_for_one_address_are_bounded_and_its_largest_connection_ends(port):
    port.parts.topics.put(TopicConfig("Wide", 64, 64))
    port.parts.shares._sites["127.0.0.1"] = "203.0.113.9"  # loopback has no share
    small, large = await with_answers_that_wait(port, 1), await with_answers_that_wait(port, 3)

    def queued() -> list[int]:
        return sorted(channel.queued for channel in port.port.channels)

    await until(lambda: len(queued()) == 2 and 0 < 3 * queued()[0] == queued()[-1])
    one = queued()[0]
    assert port.port._queued.counts == {"203.0.113.9": 4 * one}
    port.port._queued.total = 8 * one
    another = await with_answers_that_wait(port, 1)
    await until(lambda: queued() == [one, one])
    assert port.port._queued.counts == {"203.0.113.9": 2 * one}
    (facts,) = port.parts.statistics.refusals.facts()
    assert (facts["cause"], facts["limit"]) == ("peer does not read", 4 * one)
    assert "of 203.0.113.9" in facts["said"]
    for wire in (small, large, another):
        wire.writer.transport.abort()
    await until(lambda: not port.port.channels)
    assert not port.port._queued.counts and not port.port._held.counts


async def test_a_client_that_opens_its_windows_by_single_bytes_has_its_time(port):
    port.parts.topics.put(TopicConfig("Wide", 64, 64))
    wire = await with_answers_that_wait(port, 1)
    await until(lambda: port.port.queued_bytes)
    (channel,) = port.port.channels
    since_s, queued = channel._queued_since_s, channel._queued
    wire.writer.write(frame_head(4, f.WINDOW_UPDATE, 0, 1) + b"\0\0\0\1")
    await until(lambda: channel._queued == queued - 1)
    assert channel._queued_since_s == since_s
    cause, _, limit_s = channel.overdue(since_s + channel_module.WINDOW_TIMEOUT_S + 1)
    assert (cause, limit_s) == ("peer does not read", channel_module.WINDOW_TIMEOUT_S)


async def test_fields_of_open_calls_are_kept_bytes_until_they_are_answered(port):
    """Those of 1,024 calls took 33 MB that nothing counted."""
    wire = await connect(port, False)
    block = encode_fields([*fields_of("QueryRoute"), ("x-long", "a" * 5_000)])
    usual = encode_fields(fields_of("QueryRoute"))
    wire.writer.write(PREFACE + settings_frame({}) + frame_head(0, f.SETTINGS, f.FLAG_ACK, 0))
    for number, some in enumerate([b"\x20" + usual, usual, *[block] * 10]):
        wire.writer.write(frame_head(len(some), f.HEADERS, f.FLAG_END_HEADERS, 2 * number + 1) + some)
    await until(lambda: port.port.channels)
    (channel,) = port.port.channels
    await until(lambda: len(channel.connection.streams) == 12)
    kept = channel.kept
    assert 50_000 < kept < 60_000 and port.port.kept_bytes == kept
    body = with_prefix(route("Orders").SerializeToString())
    for number in range(2, 7):
        wire.writer.write(frame_head(len(body), f.DATA, f.FLAG_END_STREAM, 2 * number + 1) + body)
    await until(lambda: len(channel.connection.streams) == 7)
    assert channel.kept == port.port.kept_bytes == kept // 2
    wire.writer.write(b"".join(reset(2 * number + 1) for number in range(7, 12)))
    await until(lambda: port.port.kept_bytes == 0)
    await nothing_is_left(port)
