"""HTTP/2 of the server beside the library `h2` as its client: answers counted, frames cut, windows, floods."""

from __future__ import annotations

import random
import struct

import h2.settings
import pytest

from broker_store.formats import http2_frame as f
from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.http2 import connection as limits
from broker_store.protocol.http2.answers import IDLE_FRAMES_PER_S, MAX_IDLE_FRAMES
from broker_store.protocol.http2.connection import PREFACE, Connection
from broker_store.protocol.http2.events import Request, Reset, TooLarge
from broker_store.protocol.http2.fields import encode_fields
from broker_store.protocol.http2.frames import answer_frames, frame_head, scan_frames, settings_frame
from broker_store.protocol.http2.functions import PLAIN
from broker_store.server.grpc.channel import COMPILED
from tests.protocol.http2.peer import FIELDS, HEAD, LONG, TRAILERS, Client, Server, body_limit

FUNCTIONS = pytest.mark.parametrize("functions", [PLAIN, COMPILED], ids=["plain", "compiled"])
BEGIN = PREFACE + settings_frame({})
BLOCK = encode_fields(FIELDS)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream) + payload


def headers(stream: int, flags: int = f.FLAG_END_HEADERS | f.FLAG_END_STREAM, block: bytes = BLOCK) -> bytes:
    return frame(f.HEADERS, flags, stream, block)


@FUNCTIONS
def test_a_request_is_answered_with_its_body_and_trailers(functions):
    client = Client(Server(functions))
    number = client.request(b"hello", x_mq_client_id="c1")
    client.exchange()
    assert client.answers == {number: b"hello"} and client.trailers == {number: {"grpc-status": "0"}}
    (request,) = client.server.events
    assert request.stream.fields["x-mq-client-id"] == "c1" and request.stream.fields[":path"] == "/echo"


@FUNCTIONS
def test_frames_may_be_cut_at_every_byte(functions):
    recorded: list[bytes] = []
    first = Client(Server(functions), lambda data: recorded.append(data) or [data])
    for size in (0, 1, 300, 20_000):
        first.request(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    first.exchange()
    data = b"".join(recorded)
    wanted = [event.body for event in first.server.events if isinstance(event, Request)]
    assert len(wanted) == 4
    for at in [*range(1, 700), *range(700, len(data), 197)]:
        server = Server(functions)
        server.receive(data[:at])
        server.receive(data[at:])
        assert [event.body for event in server.events] == wanted, at
    server = Server(functions)
    for at in range(len(data)):
        server.receive(data[at : at + 1])
    assert [event.body for event in server.events] == wanted


@FUNCTIONS
def test_each_of_many_streams_gets_its_own_answer(functions):
    server = Server(functions, hold=True)
    client = Client(server)
    client.exchange()
    sent = {}
    for number in range(limits.MAX_STREAMS):
        body = b"%d" % number * (number % 90)
        sent[client.request(body)] = body
    client.exchange()
    assert client.answers == {} and len(server.connection.streams) == limits.MAX_STREAMS
    client.take(server.release())
    client.exchange()
    assert client.answers == sent and server.connection.streams == {}
    for number in range(1_500):  # and more than that one after another
        sent[client.request(b"again %d" % number)] = b"again %d" % number
        if number % 500 == 0:
            client.exchange()
    client.exchange()
    assert client.answers == sent and client.goaway is None


def test_one_stream_too_many_is_refused_and_the_others_go_on():
    server = Server(hold=True)
    client = Client(server)
    client.exchange()
    for _ in range(limits.MAX_STREAMS):
        client.request(b"x")
    client.exchange()
    late = 2 * limits.MAX_STREAMS + 1
    refused = server.receive(headers(late))
    assert refused == frame(f.RST_STREAM, 0, late, struct.pack(">I", ErrorCode.REFUSED_STREAM))
    client.take(server.release())
    assert len(client.answers) == limits.MAX_STREAMS


@pytest.mark.parametrize("window", [1, 10, 16_383, 100_000])
def test_no_more_is_sent_than_the_clients_windows_allow(window):
    server = Server()
    client = Client(server)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    client.exchange()
    client.acknowledges = False
    body = random.Random(1).randbytes(100_000 if window > 10 else 300)
    number = client.request(body)
    client.exchange()
    got = len(client.bodies.get(number, b"")) if number not in client.answers else len(body)
    assert got == min(len(body), window, 65_535)
    assert server.connection.queued == len(body) - got
    while number not in client.answers:  # h2 raises FlowControlError for a byte too much
        client.h2.increment_flow_control_window(7_000)
        client.h2.increment_flow_control_window(min(7_000, max(window, 1)), number)
        client.exchange()
    assert client.answers[number] == body and server.connection.queued == 0


def test_a_larger_initial_window_lets_waiting_answers_go():
    server = Server()
    client = Client(server)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.exchange()
    numbers = [client.request(b"body %d" % number) for number in range(20)]
    client.exchange()
    assert client.answers == {} and server.connection.queued == sum(len(b"body %d" % n) for n in range(20))
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000})
    client.exchange()
    assert [client.answers[number] for number in numbers] == [b"body %d" % n for n in range(20)]


def test_bodies_beyond_all_windows_arrive_whole():
    client = Client(Server())
    body = random.Random(2).randbytes(20 << 20)
    numbers = [client.request(body), client.request(body)]
    client.exchange()
    assert [client.answers[number] == body for number in numbers] == [True, True]
    assert client.server.connection.kept == 0


def test_a_long_request_is_given_piece_by_piece():
    client = Client(Server())
    number = client.h2.get_next_available_stream_id()
    client.h2.send_headers(number, [(name, LONG if name == ":path" else value) for name, value in FIELDS])
    for piece in (b"one", b"two"):
        client.send(number, piece, end=False)
        client.exchange()
        assert bytes(client.bodies[number]).endswith(piece)
    client.send(number, b"")
    client.exchange()
    assert client.answers == {number: b"onetwo"}


def test_padding_priority_continuation_and_trailers_are_read():
    server = Server()
    server.receive(BEGIN)
    cut = len(BLOCK) // 2
    padded = frame(
        f.HEADERS, f.FLAG_PADDED | f.FLAG_PRIORITY, 1, b"\x03" + b"\0\0\0\0\x10" + BLOCK[:cut] + b"\0\0\0"
    )
    server.receive(padded + frame(f.CONTINUATION, f.FLAG_END_HEADERS, 1, BLOCK[cut:]))
    server.receive(
        frame(f.DATA, f.FLAG_PADDED, 1, b"\x05body\0\0\0\0\0") + frame(f.PRIORITY, 0, 1, b"\0" * 5)
    )
    server.receive(headers(1, block=encode_fields([("checked", "yes")])))
    assert [event.body for event in server.events] == [b"body"]
    assert server.connection.failure is None


def test_ping_is_answered_and_leaving_lets_requests_end():
    server = Server(hold=True)
    client = Client(server)
    client.h2.ping(b"12345678")
    number = client.request(b"x")
    client.exchange()
    server.connection.leave()
    out = server.receive(headers(number + 2))  # not given to h2, which takes no answer after GOAWAY
    assert out == frame(f.GOAWAY, 0, 0, struct.pack(">II", number, 0) + b"the broker stops")
    assert client.pongs == 1 and len(server.held) == 1
    client.take(server.release())
    assert client.answers == {number: b"x"}


def test_a_cancelled_request_is_reported_and_its_answer_dropped():
    server = Server(hold=True)
    client = Client(server)
    number = client.request(b"x")
    client.exchange()
    client.h2.reset_stream(number, ErrorCode.CANCEL)
    client.exchange()
    assert server.events[-1] == Reset(server.held[0].stream, ErrorCode.CANCEL)
    assert server.release() == b""


def test_an_answer_before_the_end_of_its_request_ends_the_stream():
    server = Server()
    server.receive(BEGIN + headers(1, f.FLAG_END_HEADERS))
    (stream,) = server.connection.streams.values()
    server.connection.refuse(stream, HEAD)
    out = b"".join(server.connection.take())
    assert out.endswith(frame(f.RST_STREAM, 0, 1, bytes(4))) and not server.connection.streams
    server.receive(frame(f.DATA, 0, 1, b"late"))
    assert server.connection.failure is None


def test_a_smaller_table_of_the_client_is_acknowledged_in_the_next_block():
    client = Client(Server())
    client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    client.exchange()
    number = client.request(b"x")  # h2 raises for a block without the size update
    client.exchange()
    assert client.answers == {number: b"x"}


OF_CONNECTION = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n" + bytes(20), ErrorCode.PROTOCOL_ERROR),
    "no settings first": (PREFACE + headers(1), ErrorCode.PROTOCOL_ERROR),
    "frame too long": (BEGIN + frame_head(limits.MAX_PAYLOAD_BYTES + 1, f.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    "even stream": (BEGIN + headers(2), ErrorCode.PROTOCOL_ERROR),
    "stream 0": (BEGIN + headers(0), ErrorCode.PROTOCOL_ERROR),
    "data on stream 0": (BEGIN + frame(f.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data on idle stream": (BEGIN + frame(f.DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
    "padding too long": (BEGIN + frame(f.HEADERS, 0xC, 1, b"\x09abc"), ErrorCode.PROTOCOL_ERROR),
    "padding without length": (BEGIN + frame(f.HEADERS, 0xC, 1), ErrorCode.FRAME_SIZE_ERROR),
    "priority too short": (BEGIN + frame(f.HEADERS, 0x24, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
    "bad block": (BEGIN + headers(1, block=b"\xff\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "cut block": (BEGIN + headers(1, block=BLOCK[:-3]), ErrorCode.COMPRESSION_ERROR),
    "interrupted block": (BEGIN + frame(f.HEADERS, 0, 1, BLOCK) + frame(f.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "continuation of another": (BEGIN + frame(f.HEADERS, 0, 1, BLOCK) + frame(f.CONTINUATION, 4, 3), ErrorCode.PROTOCOL_ERROR),
    "continuation alone": (BEGIN + frame(f.CONTINUATION, 4, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "push": (BEGIN + frame(f.PUSH_PROMISE, 4, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "settings on a stream": (BEGIN + frame(f.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings of 5 bytes": (BEGIN + frame(f.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "settings ack with payload": (BEGIN + frame(f.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "window too large": (BEGIN + settings_frame({4: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
    "frame size too small": (BEGIN + settings_frame({5: 100}), ErrorCode.PROTOCOL_ERROR),
    "push 2": (BEGIN + settings_frame({2: 2}), ErrorCode.PROTOCOL_ERROR),
    "ping of 7 bytes": (BEGIN + frame(f.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "ping on a stream": (BEGIN + frame(f.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "goaway on a stream": (BEGIN + frame(f.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "goaway too short": (BEGIN + frame(f.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "reset of an idle stream": (BEGIN + frame(f.RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "reset of 3 bytes": (BEGIN + headers(1) + frame(f.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "update by 0": (BEGIN + frame(f.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "update of 3 bytes": (BEGIN + frame(f.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "update too large": (BEGIN + frame(f.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
    "update of an idle stream": (BEGIN + frame(f.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
    "priority on stream 0": (BEGIN + frame(f.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize(("data", "code"), OF_CONNECTION.values(), ids=OF_CONNECTION)
def test_an_error_of_the_connection_ends_it_with_its_code(data, code):
    server = Server(hold=True)
    out = server.receive(data)
    assert server.connection.failure.code == code
    kind, stream, start, _ = scan_frames(out, len(out), 1 << 24)[-4:]
    assert (kind >> 8, stream, struct.unpack_from(">I", out, start + 4)[0]) == (f.GOAWAY, 0, code)
    assert server.receive(headers(1)) == b"" and not server.connection.streams


OPEN = BEGIN + headers(1, f.FLAG_END_HEADERS)
OF_STREAM = {
    "data after the end": (BEGIN + headers(1) + frame(f.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
    "headers after the end": (BEGIN + headers(1) + headers(1), ErrorCode.STREAM_CLOSED),
    "trailers without end": (OPEN + headers(1, f.FLAG_END_HEADERS), ErrorCode.PROTOCOL_ERROR),
    "update by 0": (OPEN + frame(f.WINDOW_UPDATE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "update too large": (OPEN + frame(f.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
    "priority of 4 bytes": (OPEN + frame(f.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "upper case": (BEGIN + headers(1, block=BLOCK + encode_fields([("Upper", "x")])), ErrorCode.PROTOCOL_ERROR),
    "connection field": (BEGIN + headers(1, block=BLOCK + encode_fields([("connection", "x")])), ErrorCode.PROTOCOL_ERROR),
    "late pseudo-header": (BEGIN + headers(1, block=BLOCK + encode_fields([(":path", "/")])), ErrorCode.PROTOCOL_ERROR),
    "unknown pseudo-header": (BEGIN + headers(1, block=encode_fields([(":status", "200")])), ErrorCode.PROTOCOL_ERROR),
    "no path": (BEGIN + headers(1, block=encode_fields(FIELDS[:2])), ErrorCode.PROTOCOL_ERROR),
    "line break in a value": (BEGIN + headers(1, block=BLOCK + encode_fields([("x", "a\r\nb")])), ErrorCode.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize(("data", "code"), OF_STREAM.values(), ids=OF_STREAM)
def test_an_error_of_a_stream_ends_that_stream_alone(data, code):
    server = Server(hold=True)
    out = server.receive(data)
    assert frame(f.RST_STREAM, 0, 1, struct.pack(">I", code)) in out
    assert server.connection.failure is None and not server.connection.streams
    server.receive(headers(3))
    assert server.held[-1].stream.id == 3


def test_a_request_above_the_largest_is_not_kept_and_waits_for_its_answer():
    server = Server()
    server.connection = Connection(lambda path: 1_000, 0.0)
    server.receive(OPEN + frame(f.DATA, 0, 1, bytes(600)))
    assert server.connection.kept == 600
    server.receive(frame(f.DATA, 0, 1, bytes(600)) + frame(f.DATA, 1, 1, bytes(600)))
    (event,) = server.events
    assert event == TooLarge(server.connection.streams[1], 1_000) and server.connection.kept == 0
    server.connection.refuse(event.stream, TRAILERS)
    assert server.connection.streams == {} and server.connection.failure is None
    server.receive(headers(3, f.FLAG_END_HEADERS) + frame(f.DATA, 1, 3, bytes(1_000)))
    assert server.events[1].body == bytes(1_000)


def many_fields(stream: int) -> bytes:
    return headers(stream, block=BLOCK + encode_fields([(f"x-{number}", "y" * 100) for number in range(280)]))


FLOODS = {
    "ping": lambda number: frame(f.PING, 0, 0, bytes(8)),
    "settings": lambda number: settings_frame({4: number}),
    "priority": lambda number: frame(f.PRIORITY, 0, 1, bytes(5)),
    "window": lambda number: frame(f.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "unknown type": lambda number: frame(99, 0, 0),
    "goaway": lambda number: frame(f.GOAWAY, 0, 0, bytes(8)),
    "tiny data": lambda number: frame(f.DATA, 0, 1, b"x"),
    "empty data": lambda number: frame(f.DATA, 0, 1),
    "ended stream": lambda number: frame(f.RST_STREAM, 0, 3, bytes(4)),
    "rapid reset": lambda number: headers(5 + 2 * number) + frame(f.RST_STREAM, 0, 5 + 2 * number, bytes(4)),
    "malformed requests": lambda number: headers(5 + 2 * number, block=encode_fields(FIELDS[:2])),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_the_connection(flood):
    server = Server(hold=True)
    server.receive(BEGIN + headers(1, f.FLAG_END_HEADERS) + headers(3) + frame(f.RST_STREAM, 0, 3, bytes(4)))
    for number in range(20_000):
        server.receive(flood(number))
        if server.connection.failure is not None:
            break
    # Each cancelled stream was a request, which refills the budget of others, and has one of its own.
    assert number <= MAX_IDLE_FRAMES + limits.MAX_CANCELS
    assert server.connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "data",
    [
        frame(f.HEADERS, 0, 5, BLOCK) + frame(f.CONTINUATION, 0, 5, b"\0") * 50,
        frame(f.HEADERS, 0, 5, BLOCK) + frame(f.CONTINUATION, 0, 5, bytes(16_384)) * 3,
        many_fields(5),
    ],
    ids=["many continuations", "long block", "many fields"],
)
def test_header_blocks_are_bounded(data):
    server = Server()
    server.receive(BEGIN + data)
    assert server.connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM


# Floods of a client with 1,000 answers that wait for a window. Each frame may send a byte of each of them.
WINDOW_FLOODS = {
    "connection, by one": (0, lambda number: frame(f.WINDOW_UPDATE, 0, 0, b"\0\0\0\1")),
    "streams, by one": (1, lambda number: frame(f.WINDOW_UPDATE, 0, 2 * (number % 1_000) + 1, b"\0\0\0\1")),
    "all streams, by one": (1, lambda number: settings_frame({f.SETTING_INITIAL_WINDOW_SIZE: number + 1})),
    "up and down": (1, lambda number: settings_frame({f.SETTING_INITIAL_WINDOW_SIZE: number % 2})),
}


@pytest.mark.parametrize(("own", "flood"), WINDOW_FLOODS.values(), ids=WINDOW_FLOODS)
def test_a_flood_of_small_windows_ends_the_connection(own, flood):
    server = Server()
    connection = server.connection
    window = f.MAX_WINDOW - f.DEFAULT_WINDOW if own else 0
    server.receive(BEGIN + settings_frame({f.SETTING_INITIAL_WINDOW_SIZE: 0 if own else f.MAX_WINDOW}))
    if own:
        server.receive(frame(f.WINDOW_UPDATE, 0, 0, struct.pack(">I", window)))
    else:
        server.receive(headers(1, f.FLAG_END_HEADERS) + frame(f.DATA, f.FLAG_END_STREAM, 1, bytes(60_000)))
        server.receive(headers(3, f.FLAG_END_HEADERS) + frame(f.DATA, f.FLAG_END_STREAM, 3, bytes(60_000)))
    for number in range(5, 2_001, 2):
        server.receive(headers(number, f.FLAG_END_HEADERS) + frame(f.DATA, 1, number, bytes(5_000)))
    if own:
        server.receive(headers(2_001, f.FLAG_END_HEADERS) + frame(f.DATA, 1, 2_001, bytes(5_000)))
        server.receive(headers(2_003, f.FLAG_END_HEADERS) + frame(f.DATA, 1, 2_003, bytes(5_000)))
    assert connection.queued > 4_000_000 and connection.failure is None
    sent = 0
    for number in range(20_000):
        sent += server.receive(flood(number)).count(b"\0\0\1\0\0")  # DATA frames of one byte
        if connection.failure is not None:
            break
    assert number <= MAX_IDLE_FRAMES + 1 and sent <= 20_000
    assert connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM


def test_the_settings_of_a_frame_are_paid_too():
    """A frame of 64 KiB has 10,900, which take 2 ms."""
    server = Server()
    server.receive(BEGIN)
    pairs, sent = 10_000, 0
    while server.connection.failure is None and sent < MAX_IDLE_FRAMES:
        server.receive(settings_frame(dict.fromkeys(range(100, 100 + pairs), 1)))
        sent += 1
    assert sent == 1 + MAX_IDLE_FRAMES // (pairs // limits.PAIRS_PER_FRAME)
    assert server.connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_that_the_peer_makes_this_side_end_are_counted_as_cancelled():
    server = Server(hold=True)
    server.receive(BEGIN)
    for number in range(20_000):
        stream = 2 * number + 1
        server.receive(headers(stream) + frame(f.WINDOW_UPDATE, 0, stream, bytes(4)))
        if server.connection.failure is not None:
            break
    assert number <= limits.MAX_CANCELS
    assert server.connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_cancelled_stream_that_waits_for_a_window_is_forgotten():
    server = Server()
    server.receive(BEGIN + settings_frame({f.SETTING_INITIAL_WINDOW_SIZE: 100}))
    for number in range(1, 61, 2):
        server.receive(headers(number, f.FLAG_END_HEADERS) + frame(f.DATA, 1, number, bytes(5_000)))
    server.receive(frame(f.WINDOW_UPDATE, 0, 1, struct.pack(">I", 200_000)))
    connection = server.connection
    server.receive(frame(f.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))
    assert len(connection.streams) == 29 and connection.queued > 100_000
    for number in range(1, 61, 2):
        server.receive(frame(f.RST_STREAM, 0, number, bytes(4)))
    assert (connection.streams, connection._waiting, connection._opened) == ({}, {}, {})
    assert connection.queued == 0


def test_a_client_that_works_may_ping_and_update_windows_as_long_as_it_likes():
    client = Client(Server())
    for _ in range(2 * MAX_IDLE_FRAMES):
        client.h2.ping(b"12345678")
        client.h2.increment_flow_control_window(1)
        client.request(b"x")
        client.exchange()
    assert client.server.connection.failure is None


def test_over_time_frames_without_a_request_are_allowed_again():
    server = Server()
    server.receive(BEGIN)
    for second in range(100):
        server.now_s = float(second)
        server.receive(frame(f.PING, 0, 0, bytes(8)) * IDLE_FRAMES_PER_S)
    assert server.connection.failure is None


def test_what_is_unfinished_has_the_time_of_its_first_byte():
    server = Server(hold=True)
    unfinished_since = server.connection.unfinished_since

    def receive(now_s: float, data: bytes) -> None:
        server.now_s = now_s
        server.receive(data)

    receive(1.0, BEGIN[:10])
    assert unfinished_since() == 1.0
    receive(2.0, BEGIN[10:])
    assert unfinished_since() is None
    receive(3.0, headers(1, f.FLAG_END_HEADERS))
    for number in range(5, 50, 4):  # whole requests beside it do not make it younger
        receive(float(number), headers(number) + frame(f.DATA, 0, 1, bytes(300)) + headers(number + 2)[:5])
        assert unfinished_since() == 3.0
        receive(number + 0.5, headers(number + 2)[5:])
    receive(60.0, frame(f.DATA, f.FLAG_END_STREAM, 1, b"x"))
    assert unfinished_since() is None
    receive(61.0, frame(f.HEADERS, 0, 201, BLOCK))
    assert unfinished_since() == 61.0
    receive(61.5, frame(f.CONTINUATION, 0, 201) + frame(f.CONTINUATION, 0, 201)[:5])
    assert unfinished_since() == 61.0
    receive(61.6, frame(f.CONTINUATION, 0, 201)[5:])
    assert unfinished_since() == 61.0
    receive(62.0, frame(f.CONTINUATION, f.FLAG_END_HEADERS, 201))
    assert unfinished_since() == 62.0
    receive(63.0, frame(f.RST_STREAM, 0, 201, bytes(4)))
    assert unfinished_since() is None


def test_the_unfinished_messages_of_a_long_request_are_counted():
    server = Server()
    server.receive(BEGIN + headers(1, f.FLAG_END_HEADERS, encode_fields([*FIELDS[:2], (":path", LONG)])))
    connection = server.connection
    (stream,) = connection.streams.values()
    server.now_s = 5.0
    server.receive(frame(f.DATA, 0, 1, bytes(300)))
    connection.keep(stream, 300)
    server.now_s = 6.0
    server.receive(frame(f.DATA, 0, 1, bytes(300)))
    connection.keep(stream, 600)
    assert connection.kept == 600 and connection.unfinished_since() == 5.0
    connection.keep(stream, 10)  # a message was complete, and another one began
    assert connection.kept == 10 and connection.unfinished_since() == 6.0
    server.receive(frame(f.RST_STREAM, 0, 1, bytes(4)))
    connection.keep(stream, 20)
    assert connection.kept == 0 and connection.unfinished_since() is None


def fuzz_valid(seed: int, operations: int, functions) -> int:
    """A client does what it may at random, its bytes arrive in random pieces, and every request is
    answered. Return the number of its frames."""
    rng = random.Random(seed)
    frames = 0

    def cut(data: bytes) -> list[bytes]:
        nonlocal frames
        if not data.startswith(PREFACE):
            frames += len(scan_frames(data, len(data), 1 << 24)) // 4
        places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]

    client = Client(Server(functions), cut)
    client.exchange()
    sent: dict[int, bytes] = {}
    open_streams: dict[int, bytearray] = {}
    for _ in range(operations):
        choice = rng.randrange(9)
        if choice <= 3:
            body = rng.randbytes(rng.choice((0, 1, 50, 3_000, 70_000)) if choice == 3 else rng.randrange(90))
            sent[client.request(body, x_id=f"{rng.random()}")] = body
        elif choice == 4 and len(open_streams) < 20:
            number = client.h2.get_next_available_stream_id()
            client.h2.send_headers(
                number, FIELDS, priority_weight=rng.randrange(1, 257), priority_depends_on=0
            )
            open_streams[number] = bytearray()
        elif choice == 5 and open_streams:
            number = rng.choice(list(open_streams))
            piece = rng.randbytes(rng.randrange(500))
            if client.h2.local_flow_control_window(number) > 1_000:
                end = rng.random() < 0.4
                client.h2.send_data(number, piece, end_stream=end, pad_length=rng.choice((None, 0, 9)))
                open_streams[number] += piece
                if end:
                    sent[number] = bytes(open_streams.pop(number))
        elif choice == 6 and open_streams:
            number = rng.choice(list(open_streams))
            del open_streams[number]
            client.h2.reset_stream(number)
        elif choice == 7:
            client.h2.update_settings(
                {
                    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: rng.choice((500, 65_535, 1 << 20)),
                    h2.settings.SettingCodes.MAX_FRAME_SIZE: rng.choice((16_384, 70_000)),
                    h2.settings.SettingCodes.HEADER_TABLE_SIZE: rng.choice((0, 4_096)),
                }
            )
        else:
            client.h2.ping(rng.randbytes(8))
        if rng.random() < 0.5:
            client.exchange()
    for number, body in open_streams.items():
        client.send(number, b"")
        sent[number] = bytes(body)
    client.exchange()
    connection = client.server.connection
    if connection.streams:
        # After a smaller initial window h2 may send no WINDOW_UPDATE for what it got before.
        assert all(stream.window <= 0 for stream in connection.streams.values()) or connection._window <= 0
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        client.exchange()
    assert connection.failure is None
    assert client.answers == sent
    assert (connection.queued, connection.kept) == (0, 0)
    assert (connection._waiting, connection._opened) == ({}, {})
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_random_requests_are_all_answered(seed):
    fuzz_valid(seed, 100, (PLAIN, COMPILED)[seed % 2])


@pytest.mark.slow
def test_many_random_requests_are_all_answered():
    for seed in range(1_000, 1_200):
        fuzz_valid(seed, 400, (PLAIN, COMPILED)[seed % 2])


@pytest.mark.proof
def test_the_requests_in_a_million_random_frames_of_h2_are_all_answered():
    frames, seed = 0, 2_000
    while frames < 1_000_000:
        frames += fuzz_valid(seed, 400, (PLAIN, COMPILED)[seed % 2])
        seed += 1


def fuzz_bytes(seed: int, frames: int) -> None:
    """Random and damaged frames: no exception, bounded memory, and both scans find the same."""
    rng = random.Random(seed)
    while frames > 0:
        server = Connection(body_limit, 0.0, COMPILED)
        server.receive(BEGIN, 0.0)
        while server.failure is None and frames > 0:
            frames -= 1
            kind = rng.choice((*range(10), 77))
            flags = rng.choice((0, 1, 4, 5, 8, 0x20, 0x2D, rng.randrange(256)))
            payload = rng.choice((b"", BLOCK, bytes(4), bytes(5), bytes(8), rng.randbytes(rng.randrange(40))))
            stream = rng.choice((0, 1, 3, 5, 2 * rng.randrange(500) + 1, rng.randrange(1 << 32)))
            data = frame(kind, flags, stream, payload)
            if rng.random() < 0.05:
                data = bytearray(data)
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                data = bytes(data)
            assert scan_frames(data, len(data), 16_384) == COMPILED.scan_frames(data, len(data), 16_384)
            for event in server.receive(data, 0.0):
                if isinstance(event, Request) and rng.random() < 0.8:
                    server.answer(event.stream, HEAD, event.body, TRAILERS)
            assert server.kept < 200_000 and len(server.streams) <= limits.MAX_STREAMS
            server.take()


def test_random_frames_raise_nothing():
    fuzz_bytes(1, 10_000)


@pytest.mark.slow
def test_many_random_frames_raise_nothing():
    fuzz_bytes(2, 100_000)


@pytest.mark.proof
def test_a_million_random_frames_raise_nothing():
    fuzz_bytes(3, 1_000_000)


@pytest.mark.parametrize("last", [b"", frame(f.PING, 0, 0, b"short")], ids=["closed", "an error"])
def test_the_end_of_a_connection_returns_each_stream_that_nothing_else_has_ended(last):
    long = encode_fields([(name, LONG if name == ":path" else value) for name, value in FIELDS])
    server = Server(hold=True)
    server.receive(
        BEGIN
        + headers(1)
        + headers(3, f.FLAG_END_HEADERS, long)
        + headers(5, f.FLAG_END_HEADERS)
        + headers(7)
        + frame(f.RST_STREAM, 0, 7, struct.pack(">I", ErrorCode.CANCEL))
        + headers(9)
    )
    server.connection.answer(server.held[2].stream, HEAD, b"", TRAILERS)
    server.receive(last)
    assert [stream.id for stream in server.connection.end()] == [1, 3, 5]
    assert server.connection.end() == [] and server.connection.streams == {}
    assert (server.connection.kept, server.connection.queued) == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 100_000])
@pytest.mark.parametrize("stream", [1, 3, (1 << 31) - 1])
def test_the_frames_of_an_answer_are_the_same_from_both_functions(size, stream):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = COMPILED.answer_frames(stream, b"head", body, b"trailers")
    assert made == answer_frames(stream, b"head", body, b"trailers")
    for arguments in ((), (1, b"", b""), ("1", b"", b"", b""), (1, "", b"", b""), (1, b"", b"", None)):
        with pytest.raises(TypeError):
            COMPILED.answer_frames(*arguments)
