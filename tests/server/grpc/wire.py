"""Connections on which a test may write any bytes to the port."""

from __future__ import annotations

import asyncio
import ssl

import h2.config
import h2.connection
import h2.events

from broker_store.protocol.grpc.framing import with_prefix
from broker_store.protocol.http2.fields import encode_fields
from tests.support.grpc_calls import path_of
from tests.support.waits import LIMIT_S, until


def fields_of(method: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"), (":scheme", "http"), (":path", path_of(method)), (":authority", "a:1"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("x-mq-client-id", "client-1"),
    ]  # fmt: skip


BLOCK = encode_fields(fields_of("QueryRoute"))


class Wire:
    """A connection on which a test may write any bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.bodies: dict[int, bytes] = {}
        self.statuses: dict[int, str] = {}
        self.resets: dict[int, int] = {}
        self.goaway: int | None = None

    def begin(self) -> None:
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window((1 << 30), None)
        self.writer.write(self.h2.data_to_send())

    def request(self, body: bytes) -> int:
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, fields_of("QueryRoute"))
        self.h2.send_data(number, with_prefix(body), end_stream=True)
        return number

    async def read_some(self) -> bytes:
        """Read what has arrived; nothing if the port has ended the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read(1 << 16)

    async def read(self, condition) -> None:
        """Read until a condition holds or the port ends the connection."""
        while not condition():
            data = await self.read_some()
            if not data:
                return
            for event in self.h2.receive_data(data):
                match event:
                    case h2.events.DataReceived():
                        self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                        if event.flow_controlled_length:
                            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    case h2.events.TrailersReceived():
                        self.statuses[event.stream_id] = dict(event.headers)[b"grpc-status"].decode()
                    case h2.events.StreamReset():
                        self.resets[event.stream_id] = event.error_code
                    case h2.events.ConnectionTerminated():
                        self.goaway = event.error_code
            if answer := self.h2.data_to_send():
                self.writer.write(answer)


async def connect(port, tls: bool) -> Wire:
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port.port.port, ssl=context))
    port.wires.append(wire)
    return wire


async def nothing_is_left(port) -> None:
    """Wait until the port has no connection of this test and keeps no bytes."""
    for wire in port.wires:
        wire.writer.transport.abort()
    await until(lambda: not port.port.channels)
    assert (port.port.kept_bytes, port.port.tls.shaking) == (0, {})
