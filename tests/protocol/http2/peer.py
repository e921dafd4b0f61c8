"""A server over our connection and a client by the library `h2`, joined without sockets."""

from __future__ import annotations

from collections.abc import Callable

import h2.config
import h2.connection
import h2.events

from broker_store.protocol.http2.connection import MAX_BODY_BYTES, Connection
from broker_store.protocol.http2.events import Event, Finished, Opened, Received, Request, Reset
from broker_store.protocol.http2.fields import encode_fields
from broker_store.protocol.http2.frames import scan_frames
from broker_store.protocol.http2.functions import PLAIN, Functions

LONG = "/long"
HEAD = encode_fields([(":status", "200"), ("content-type", "application/grpc")])
TRAILERS = encode_fields([("grpc-status", "0")])
FIELDS = [
    (":method", "POST"), (":scheme", "http"), (":path", "/echo"), (":authority", "a:1"), ("te", "trailers"),
    ("content-type", "application/grpc"),
]  # fmt: skip


def body_limit(path: str) -> int | None:
    return None if path == LONG else MAX_BODY_BYTES


class Server:
    """Answers each request with its body. `hold` keeps the answers back until `release`."""

    def __init__(self, functions: Functions = PLAIN, *, hold: bool = False):
        self.connection = Connection(body_limit, 0.0, functions)
        self.events: list[Event] = []
        self.held: list[Request] | None = [] if hold else None
        self.now_s = 0.0

    def receive(self, data: bytes) -> bytes:
        connection = self.connection
        for event in connection.receive(data, self.now_s):
            self.events.append(event)
            match event:
                case Request() if self.held is not None:
                    self.held.append(event)
                case Request(stream, body):
                    connection.answer(stream, HEAD, body, TRAILERS)
                case Opened(stream):
                    connection.begin(stream, HEAD)
                case Received(stream, piece):
                    connection.send(stream, piece)
                case Finished(stream):
                    connection.finish(stream, TRAILERS)
                case Reset():
                    pass
        return b"".join(connection.take())

    def release(self) -> bytes:
        held, self.held = self.held, None
        for stream, body in held:
            self.connection.answer(stream, HEAD, body, TRAILERS)
        return b"".join(self.connection.take())


class Client:
    """A client; `answers` are the bodies of ended streams, `resets` the codes of those that the server
    ended."""

    def __init__(self, server: Server, cut: Callable[[bytes], list[bytes]] = lambda data: [data]):
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.server = server
        self.cut = cut
        self.bodies: dict[int, bytearray] = {}
        self.answers: dict[int, bytes] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.resets: dict[int, int] = {}
        self.goaway: int | None = None
        self.pongs = 0
        self.acknowledges = True  # gives windows back
        self.h2.initiate_connection()

    def exchange(self) -> None:
        """Carry bytes both ways until neither side has more."""
        while data := self.h2.data_to_send():
            for piece in self.cut(data):
                self.take(self.server.receive(piece))

    def take(self, data: bytes) -> None:
        start = 0
        for end in scan_frames(data, len(data), 1 << 24)[3::4]:
            # Frame by frame: h2 takes a new frame size for its next call only.
            self._take(data[start:end])
            start = end

    def _take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived():
                    self.bodies[event.stream_id] = bytearray()
                case h2.events.DataReceived():
                    self.bodies[event.stream_id] += event.data
                    if self.acknowledges and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.TrailersReceived():
                    self.trailers[event.stream_id] = dict(event.headers)
                case h2.events.StreamEnded():
                    self.answers[event.stream_id] = bytes(self.bodies.pop(event.stream_id, b""))
                case h2.events.StreamReset() if event.remote_reset:
                    self.resets[event.stream_id] = event.error_code
                case h2.events.ConnectionTerminated():
                    self.goaway = event.error_code
                case h2.events.PingAckReceived():
                    self.pongs += 1

    def request(self, body: bytes = b"", path: str = "/echo", **more) -> int:
        """Begin a request and send what the windows allow of its body; return its stream."""
        number = self.h2.get_next_available_stream_id()
        fields = [(name, path if name == ":path" else value) for name, value in FIELDS]
        self.h2.send_headers(
            number, fields + [(name.replace("_", "-"), value) for name, value in more.items()]
        )
        self.send(number, body)
        return number

    def send(self, number: int, body: bytes, *, end: bool = True) -> None:
        at = 0
        while True:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            size = min(room, len(body) - at)
            self.h2.send_data(number, body[at : at + size], end_stream=end and at + size == len(body))
            at += size
            if at == len(body):
                return
            self.exchange()
