"""One TCP connection of the gRPC port: calls from bytes, and bytes from answers.

`protocol.http2.connection` makes requests of received bytes, and the service is called for each. The answers
to all requests of one read are written in one piece, and those to sends once for each group.

The cost of a peer is bounded as on the broker port (`server/channel.py`): by the limits of
`http2.connection`, by the bytes of unfinished requests on all connections of the port, by the time from the
beginning of a request to its end, and by the bytes that it does not read. A peer that leaves answers unread
is not read either. One that does not open its windows is closed after WINDOW_TIMEOUT_S, or when
MAX_QUEUED_BYTES wait for them.

The first byte decides whether the connection has TLS. Then `TlsTransport` stands between the transport of the
system and this protocol.

Times are of the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from broker_store.kernels.http2_fields import read_fields
from broker_store.kernels.http2_frames import answer_frames, scan_frames
from broker_store.protocol.grpc.framing import HEAD, TRAILERS_OK, GrpcError, GrpcStatus, failed
from broker_store.protocol.http2.connection import Connection
from broker_store.protocol.http2.events import Event, Finished, Opened, Received, Request, Reset, TooLarge
from broker_store.protocol.http2.functions import Functions
from broker_store.protocol.http2.stream import Stream
from broker_store.protocol.tls import HANDSHAKE
from broker_store.server.channel import (
    FRAME_TIMEOUT_S,
    HIGH_WATER_BYTES,
    IDLE_TIMEOUT_S,
    MAX_KEPT_BYTES,
    MAX_UNSENT_BYTES,
    Refused,
    address_text,
    packed_address,
)
from broker_store.server.tls_transport import TlsPort, TlsTransport

log = logging.getLogger(__name__)

COMPILED = Functions(scan_frames, answer_frames, read_fields)

# Of answers that wait for windows: a peer takes MIN_TAKEN_BYTES of them, or all, in WINDOW_TIMEOUT_S.
WINDOW_TIMEOUT_S = 60.0
MIN_TAKEN_BYTES = 64 << 10
MAX_QUEUED_BYTES = 64 << 20
MAX_ALL_QUEUED_BYTES = 256 << 20  # of all connections of the port
MAX_RESUMED_PER_TURN = 32
# Calls of one read are handled so long; the others have their turn, and then the next of this one.
MAX_TURN_S = 0.01
EVENTS_AT_ONCE = 8  # between two readings of the clock
# Each costs the groups of its client, and a notice for each member of them.
MAX_GIVEN_UP_PER_TURN = 32


class GrpcHandler(Protocol):
    """What answers the calls of a connection (`service.Service`)."""

    def body_limit(self, path: str) -> int | None:
        """Return how many bytes a call with one message may have. None for a long call, whose messages are
        handled as they come."""

    def call(self, channel: GrpcChannel, stream: Stream, body: bytes) -> None:
        """Answer a call that has one message, now or later. Raises GrpcError."""

    def opened(self, channel: GrpcChannel, stream: Stream) -> None:
        """Begin a long call."""

    def received(self, channel: GrpcChannel, stream: Stream, piece: bytes) -> None:
        """Handle a piece of the messages of a long call. Raises GrpcError."""

    def finished(self, channel: GrpcChannel, stream: Stream) -> None:
        """End a long call whose client has ended it."""

    def gone(self, stream: Stream) -> None:
        """Forget a call that was cancelled, or whose connection ends."""


class GrpcPort(Protocol):
    """The listening port that accepted a channel (`port.GrpcListener`)."""

    kept_bytes: int
    queued_bytes: int  # of answers that wait for windows, of all its connections
    channels: set[GrpcChannel]
    refused: Refused
    tls: TlsPort | None  # None if connections have no TLS

    def admit(self, channel: GrpcChannel) -> bool: ...

    def gone(self, channel: GrpcChannel) -> None: ...

    def write_log(self, level: int, cause: str, text: str, *arguments: object) -> None: ...


class GrpcChannel(asyncio.Protocol):
    """One connection. `remote` is `ip:port`; `remote_host` is (packed address, port), as in records."""

    __slots__ = (
        "remote", "remote_host", "listener", "loop", "handler", "connection", "transport", "tls",
        "last_s", "closed", "_has_begun", "_kept", "_is_receiving", "_is_scheduled", "_is_paused",
        "_resumed_s", "_queued", "_queued_since_s", "_released", "_promised", "_unwritten", "_resumed",
        "_given_up", "_events",
    )  # fmt: skip

    def __init__(self, handler: GrpcHandler, listener: GrpcPort):
        self.remote = ""
        self.remote_host: tuple[bytes, int] = (b"\x7f\x00\x00\x01", 0)
        self.handler = handler
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self.last_s = self.loop.time()
        self.connection = Connection(handler.body_limit, self.last_s, COMPILED)
        self.transport: asyncio.Transport | TlsTransport | None = None
        self.tls: TlsTransport | None = None
        self.closed = False
        self._has_begun = False
        self._kept = 0
        self._is_receiving = self._is_scheduled = self._is_paused = False
        self._resumed_s = 0.0
        self._queued = 0
        self._queued_since_s = 0.0
        self._released = 0  # of `connection.released`, at that time
        self._promised = self._unwritten = 0
        self._resumed: deque[Callable[[], None]] = deque()
        self._given_up: deque[Stream] = deque()  # which the handler has not forgotten yet
        self._events: list[Event] = []  # of the last read; no further data is read until all are handled

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of TCP
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("127.0.0.1", 0)
        self.remote = address_text(peer)
        self.remote_host = (packed_address(peer[0]), peer[1])
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        # Nothing is written before the first byte of the client, which may be that of TLS.
        if not self.listener.admit(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            if data[0] == HANDSHAKE and self.listener.tls is not None:
                self._begin_tls(self.listener.tls, data)
                return
        self.last_s = now_s = self.loop.time()
        connection = self.connection
        self._handle_events(self._events + connection.receive(data, now_s))
        if connection.failure is not None:
            self._close_for(logging.INFO, connection.failure.cause, str(connection.failure))
            return
        kept = connection.kept
        if self.tls is not None:
            kept += self.tls.session.kept
        if kept != self._kept:
            self._keep(kept)

    def _begin_tls(self, port: TlsPort, data: bytes) -> None:
        raw = cast(asyncio.Transport, self.transport)  # that of the system, until now
        self.transport = self.tls = TlsTransport(raw, self, port)
        raw.set_protocol(self.tls)
        self.tls.data_received(data)

    def count_kept(self) -> None:
        """Take notice that the bytes of unfinished records have changed."""
        if self.tls is not None and not self.closed:
            self._keep(self.connection.kept + self.tls.session.kept)

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Log and count why the connection ends."""
        self._count_end(level, cause, text)
        self._give_up_streams()

    def _handle_events(self, events: list[Event]) -> None:
        """Handle what was read, for MAX_TURN_S; the rest in later turns, when the client reads its answers.
        Nothing is read meanwhile."""
        self._is_receiving = True
        self._events = events
        until_s = math.inf
        for at, event in enumerate(events):
            if at % EVENTS_AT_ONCE == EVENTS_AT_ONCE - 1:
                now_s = time.perf_counter()
                if now_s > until_s:
                    self._events = events[at:]
                    break
                until_s = min(until_s, now_s + MAX_TURN_S)
            self._handle(event)
        else:
            self._events = []
        self._is_receiving = False
        self._write_out()
        if self._events and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._handle_rest)

    def _handle_rest(self) -> None:
        if self._is_paused or self.closed:
            return
        if self._events:
            self._handle_events(self._events)
        if not self._events and not self._is_paused:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._resumed_s = self.loop.time()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _handle(self, event: Event) -> None:
        handler, stream = self.handler, event.stream
        try:
            match event:
                case Request():
                    handler.call(self, stream, event.body)
                case TooLarge():
                    text = f"a request of more than {event.limit} bytes"
                    self.listener.refused("large request", limit=event.limit, who=self.remote, said=text)
                    self.fail(stream, GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text))
                case Received():
                    handler.received(self, stream, event.data)
                case Opened():
                    handler.opened(self, stream)
                case Finished():
                    handler.finished(self, stream)
                case Reset() if stream.is_long:  # many may come at once
                    self._give_up([stream])
                case Reset():
                    handler.gone(stream)
        except GrpcError as error:
            handler.gone(stream)
            self.fail(stream, error)

    def _keep(self, kept: int) -> None:
        """Count the bytes of unfinished requests. If the bound of all connections is exceeded, the one with
        most is closed."""
        listener = self.listener
        listener.kept_bytes += kept - self._kept
        grows = kept > self._kept
        self._kept = kept
        if grows and listener.kept_bytes > MAX_KEPT_BYTES:
            most = max((self, *listener.channels), key=lambda channel: channel._kept)
            most._close_for(
                logging.WARNING,
                "unfinished frames",
                f"unfinished requests of all connections take {listener.kept_bytes} bytes, {most._kept} of "
                "them this one's",
                listener.kept_bytes,
                MAX_KEPT_BYTES,
            )
            most.abort()
            most._keep(0)  # `connection_lost` comes later, and others may grow before

    def _close_for(
        self, level: int, cause: str, text: str, value: int | None = None, limit: int | None = None
    ) -> None:
        """Log and count why the connection is closed, and close it after what was written."""
        self._count_end(level, cause, text, value, limit)
        self.close()

    def _count_end(
        self, level: int, cause: str, text: str, value: int | None = None, limit: int | None = None
    ) -> None:
        self.listener.write_log(level, cause, "closing %s: %s", self.remote, text)
        self.listener.refused(cause, value=value, limit=limit, who=self.remote, said=text)

    def pause_writing(self) -> None:
        self._is_paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._handle_rest()
        self._call_resumed()

    @property
    def paused(self) -> bool:
        """Return True if the client does not read what it was sent, or does not open its windows, or if so
        much will be sent that this must be seen first."""
        return self._is_paused or self.connection.queued + self._promised + self._unwritten > HIGH_WATER_BYTES

    def promise(self, size: int) -> None:
        """Count bytes that will be sent when they are confirmed. A negative size takes them back."""
        self._promised += size

    @property
    def unsent(self) -> int:
        """Return the bytes that were written and that the client has not taken yet."""
        written = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return written + self.connection.queued

    def when_resumed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client reads again; never if the connection ends first."""
        self._resumed.append(callback)

    def _call_resumed(self) -> None:
        """Call what waits for the client to read, one after another, as each may send much."""
        for _ in range(MAX_RESUMED_PER_TURN):
            if not self._resumed or self.paused:
                return
            self._resumed.popleft()()
        self.loop.call_soon(self._call_resumed)

    def connection_lost(self, error: Exception | None) -> None:
        self._give_up_streams()
        self._keep(0)
        self.listener.gone(self)

    # Answers

    def answer(self, stream: Stream, body: bytes) -> None:
        """Answer a call with one message, which has its prefix, unless it was cancelled."""
        self.connection.answer(stream, HEAD, body, TRAILERS_OK)
        self._schedule()

    def begin(self, stream: Stream) -> None:
        """Begin the answer to a long call."""
        self.connection.begin(stream, HEAD)
        self._schedule()

    def keep(self, stream: Stream, size: int) -> None:
        """Count the bytes of a message of a long call that is not complete."""
        self.connection.keep(stream, size)

    def send(self, stream: Stream, piece: bytes) -> None:
        """Send messages of the answer to a long call, each with its prefix."""
        self.connection.send(stream, piece)
        self._unwritten += len(piece)
        self._schedule()

    def finish(self, stream: Stream) -> None:
        """End the answer to a long call."""
        self.connection.finish(stream, TRAILERS_OK)
        self._schedule()

    def refuse(self, stream: Stream, block: bytes) -> None:
        """Answer a call with one header block."""
        self.connection.refuse(stream, block)
        self._schedule()

    def fail(self, stream: Stream, error: GrpcError) -> None:
        """End a call with a status of gRPC."""
        if stream.has_answer:
            self.connection.finish(stream, failed(error, has_answer=True))
        else:
            self.connection.refuse(stream, failed(error))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_receiving and not self._is_scheduled and not self.closed:
            self._is_scheduled = True
            self.loop.call_soon(self._write_out)

    def _write_out(self) -> None:
        self._is_scheduled = False
        self._unwritten = 0
        out = self.connection.take()
        transport = self.transport
        if out and transport is not None and not transport.is_closing():
            was_paused = self._is_paused
            if len(out) == 1:
                transport.write(out[0])
            else:
                transport.writelines(out)
            self.last_s = self.loop.time()
            unsent = transport.get_write_buffer_size()
            if was_paused and unsent > MAX_UNSENT_BYTES:
                self._close_for(
                    logging.INFO, "peer does not read", f"{unsent} bytes wait", unsent, MAX_UNSENT_BYTES
                )
                self.abort()
        if self.connection.queued != self._queued and not self.closed:
            self._count_queued(self.connection.queued)
        if self._resumed:
            self.loop.call_soon(self._call_resumed)

    def _count_queued(self, queued: int) -> None:
        """Count the bytes that wait for windows. The connection is closed if it has too many; if all of the
        port have too many, the one with the most is."""
        listener, released = self.listener, self.connection.released
        if not self._queued or released - self._released >= MIN_TAKEN_BYTES:
            self._queued_since_s, self._released = self.loop.time(), released
        listener.queued_bytes += queued - self._queued
        self._queued = queued
        if queued > MAX_QUEUED_BYTES:
            self._end_for_queue(f"{queued} bytes wait for its windows", MAX_QUEUED_BYTES)
        elif listener.queued_bytes > MAX_ALL_QUEUED_BYTES:
            most = max(listener.channels, key=lambda channel: channel._queued)
            text = f"{listener.queued_bytes} bytes wait for windows, {most._queued} of them for its own"
            most._end_for_queue(text, MAX_ALL_QUEUED_BYTES)

    def _end_for_queue(self, text: str, limit: int) -> None:
        self._close_for(logging.INFO, "peer does not read", text, self._queued, limit)
        self.abort()

    # The end

    def close(self) -> None:
        """Close the connection after the data that was written has been sent."""
        self.connection.leave()
        self._write_out()
        if self.transport is not None:
            self.transport.close()
        self._give_up_streams()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._give_up_streams()

    def _give_up_streams(self) -> None:
        """Forget the calls that are under way: nothing can be sent any more. That is not left to
        `connection_lost`, which comes only when the client has read what was written before."""
        self.closed = True
        self._resumed.clear()
        self.listener.queued_bytes -= self._queued
        self._queued = 0
        cancelled = [event.stream for event in self._events if isinstance(event, Reset)]
        self._events = []
        self._give_up(cancelled + self.connection.end())

    def _give_up(self, streams: list[Stream]) -> None:
        """Forget calls, MAX_GIVEN_UP_PER_TURN in each turn."""
        if streams and not self._given_up:
            self.loop.call_soon(self._give_up_some)
        self._given_up.extend(streams)

    def _give_up_some(self) -> None:
        for _ in range(min(MAX_GIVEN_UP_PER_TURN, len(self._given_up))):
            self.handler.gone(self._given_up.popleft())
        if self._given_up:
            self.loop.call_soon(self._give_up_some)

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""
        if self.tls is not None and not self._is_paused:
            if (why := self.tls.overdue(now_s, self._resumed_s)) is not None:
                return why
        since_s = self.connection.unfinished_since()
        if since_s is not None and not self._is_paused:
            unfinished_s = now_s - max(since_s, self._resumed_s)  # the time without reading does not count
            if unfinished_s > FRAME_TIMEOUT_S:
                return "slow frame", unfinished_s, FRAME_TIMEOUT_S
        if self._queued and now_s - self._queued_since_s > WINDOW_TIMEOUT_S:
            return "peer does not read", now_s - self._queued_since_s, WINDOW_TIMEOUT_S
        if now_s - self.last_s > IDLE_TIMEOUT_S:
            return "idle connection", now_s - self.last_s, IDLE_TIMEOUT_S
        return None
