"""One TCP connection of the gRPC port: calls from bytes, and bytes from answers.

`protocol.http2.connection` makes requests of received bytes, and the service is called for each, in the turns
that all connections of the port share (`turns.py`). The answers to all requests of one turn are written in
one piece, and those to sends once for each group.

The cost of a peer is bounded as on the broker port (`server/channel.py`): by the limits of
`http2.connection`, by the bytes of unfinished requests on all connections of the port, by the time from the
beginning of a request to its end, and by the bytes that it does not read. A peer that leaves answers unread
is not read either. One that does not open its windows is closed after WINDOW_TIMEOUT_S, or when
MAX_QUEUED_BYTES wait for them.

`opening.Opening` has read the first byte. If the connection has TLS, `TlsTransport` stands between the
transport of the system and this protocol.

Times are of the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker_store.broker.shares import Full, Shares
from broker_store.kernels.http2_fields import read_fields
from broker_store.kernels.http2_frames import answer_frames, scan_frames
from broker_store.protocol.grpc.framing import HEAD, TRAILERS_OK, GrpcError, GrpcStatus, failed
from broker_store.protocol.http2.connection import Connection
from broker_store.protocol.http2.events import Event, Finished, Opened, Received, Request, Reset, TooLarge
from broker_store.protocol.http2.functions import Functions
from broker_store.protocol.http2.stream import Stream
from broker_store.protocol.proxy_prologue import Peer
from broker_store.server.addresses import address_text, packed_address
from broker_store.server.channel import (
    FRAME_TIMEOUT_S,
    HIGH_WATER_BYTES,
    IDLE_TIMEOUT_S,
    MAX_UNSENT_BYTES,
    Refused,
)
from broker_store.server.grpc.turns import Turns
from broker_store.server.tls_transport import TlsTransport

log = logging.getLogger(__name__)

COMPILED = Functions(scan_frames, answer_frames, read_fields)

# Of answers that wait for windows: a peer takes MIN_TAKEN_BYTES of them, or all, in WINDOW_TIMEOUT_S.
WINDOW_TIMEOUT_S = 60.0
MIN_TAKEN_BYTES = 64 << 10
MAX_QUEUED_BYTES = 64 << 20
MAX_RESUMED_PER_TURN = 32
# What was read is parsed in pieces: 256 KiB of header blocks that are not usual take 0.2 s. Each piece has a
# cost of its own, so those of a connection grow while they are parsed quickly.
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 16 << 10, 64 << 10
QUICK_PIECE_S = 0.002
# Of work that waits: a request that is parsed counts as so many bytes that are not.
REQUEST_BYTES = 512


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

    queued_bytes: int  # of answers that wait for windows, of all its connections
    shares: Shares
    channels: set[GrpcChannel]
    refused: Refused

    @property
    def turns(self) -> Turns[GrpcChannel, Stream]:
        """Return the turns that its connections share."""

    def gone(self, connection: GrpcChannel) -> None: ...

    def has_room_for_user(self, connection: GrpcChannel, user: str) -> bool: ...

    def queue(self, connection: GrpcChannel, size: int) -> Full | None:
        """Count bytes that wait for windows. Return the holder that has too many of them, None if all may
        have so many."""

    def channels_of(self, holder: str) -> list[GrpcChannel]:
        """Return the channels of an address or user."""

    def keep(self, connection: GrpcChannel, kept: int) -> None: ...

    def count_end(
        self,
        connection: GrpcChannel,
        level: int,
        cause: str,
        text: str,
        value: int | None = None,
        limit: int | None = None,
    ) -> None: ...


class GrpcChannel(asyncio.Protocol):
    """One connection. `remote` is `ip:port`; `remote_host` is (packed address, port), as in records."""

    __slots__ = (
        "remote", "remote_host", "listener", "loop", "handler", "connection", "transport", "tls",
        "last_s", "closed", "kept", "waits_for_turn", "turn_times_s", "_is_receiving", "_is_scheduled",
        "_is_paused", "_is_held", "_resumed_s", "_queued", "_queued_since_s", "_released", "_promised",
        "_unwritten", "_resumed", "_unread", "_unread_at", "_unread_bytes", "_piece_bytes", "_events",
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
        self.kept = 0
        self.waits_for_turn = False
        self.turn_times_s = (0.0, 0.0)
        self._is_receiving = self._is_scheduled = self._is_paused = False
        self._is_held = False  # nothing is read until all that came is handled
        self._resumed_s = 0.0
        self._queued = 0
        self._queued_since_s = 0.0
        self._released = 0  # of `connection.released`, at that time
        self._promised = self._unwritten = 0
        self._resumed: deque[Callable[[], None]] = deque()
        # What came and waits for its turn: bytes, the first of them from `_unread_at` on, and events.
        self._unread: deque[bytes] = deque()
        self._unread_at = self._unread_bytes = 0
        self._piece_bytes = LEAST_PIECE_BYTES
        self._events: deque[Event] = deque()

    def serve(self, transport: asyncio.Transport | TlsTransport, peer: Peer) -> None:
        """Serve a connection. `peer` is the client's (address, port). Nothing is written before its first
        byte."""
        self.transport = transport
        self.tls = transport if isinstance(transport, TlsTransport) else None
        self.remote = address_text(peer)
        self.remote_host = (packed_address(peer[0]), peer[1])
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    # Callbacks of asyncio

    def data_received(self, data: bytes) -> None:
        self.last_s = self.loop.time()
        self._unread.append(data)
        self._unread_bytes += len(data)
        if not self._is_paused and not self.closed:
            self.listener.turns.begin(self)
        if self._unread_bytes:
            self._hold()

    def count_kept(self) -> None:
        """Count the bytes of unfinished requests and records, and of what waits for its turn."""
        kept = self.connection.kept + self._unread_bytes
        if self.tls is not None:
            kept += self.tls.session.kept
        if kept != self.kept and not self.closed:
            self.listener.keep(self, kept)

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Log and count why the connection ends."""
        self.listener.count_end(self, level, cause, text)
        self._give_up_streams()

    @property
    def unread(self) -> int:
        """Return about how many bytes wait for the turn of this connection."""
        return self._unread_bytes + REQUEST_BYTES * len(self._events)

    def take_turn(self, until_s: float) -> bool:
        """Handle what came, until this time of `time.perf_counter`. Return True if more is left. Then nothing
        is read until all is handled."""
        if self._is_paused or self.closed:
            return False  # `resume_writing` goes on
        self._is_receiving = True
        connection, events = self.connection, self._events
        is_first = True
        # One event may take milliseconds: a send of 1,024 messages, a piece with 100 commands.
        while (events or self._unread) and (is_first or time.perf_counter() < until_s):
            is_first = False
            if events:
                self._handle(events.popleft())
            else:
                events.extend(self._parse_piece())
        self._is_receiving = False
        self._write_out()
        if self.closed:
            return False
        if connection.failure is not None:
            self._close_for(logging.INFO, connection.failure.cause, str(connection.failure))
            return False
        self.count_kept()
        if events or self._unread:
            self._hold()
            return not self._is_paused
        if self._is_held and not self._is_paused:
            self._resume_reading()
        return False

    def _parse_piece(self) -> list[Event]:
        piece, began_s = self._next_piece(), time.perf_counter()
        events = self.connection.receive(piece, self.loop.time())
        if time.perf_counter() - began_s > QUICK_PIECE_S:
            self._piece_bytes = LEAST_PIECE_BYTES
        elif len(piece) == self._piece_bytes < MOST_PIECE_BYTES:
            self._piece_bytes *= 2
        return events

    def _next_piece(self) -> bytes:
        data, at = self._unread[0], self._unread_at
        end = at + self._piece_bytes
        if end < len(data):
            piece, self._unread_at = data[at:end], end
        else:
            piece = data[at:] if at else data
            self._unread.popleft()
            self._unread_at = 0
        self._unread_bytes -= len(piece)
        return piece

    def _hold(self) -> None:
        """Read nothing more until what came is handled."""
        if not self._is_held:
            self._is_held = True
            if self.transport is not None and not self.transport.is_closing():
                self.transport.pause_reading()
        self.count_kept()

    def _resume_reading(self) -> None:
        self._is_held = False
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

    def _close_for(
        self, level: int, cause: str, text: str, value: int | None = None, limit: int | None = None
    ) -> None:
        """Log and count why the connection is closed, and close it after what was written."""
        self.listener.count_end(self, level, cause, text, value, limit)
        self.close()

    def pause_writing(self) -> None:
        self._is_paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._events or self._unread:
            self.listener.turns.wait(self)
        else:
            self._resume_reading()
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

    @property
    def queued(self) -> int:
        """Return the bytes that wait for windows, as the port has counted them."""
        return self._queued

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
        self.listener.keep(self, 0)
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
        if self.kept:
            self.count_kept()  # streams may have ended
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
        full = listener.queue(self, queued - self._queued)
        self._queued = queued
        if queued > MAX_QUEUED_BYTES:
            self._end_for_queue(f"{queued} bytes wait for its windows", MAX_QUEUED_BYTES)
        elif listener.queued_bytes > (limit := listener.shares.unfinished_bytes):
            most = max(listener.channels, key=lambda channel: channel._queued)
            text = f"{listener.queued_bytes} bytes wait for windows, {most._queued} of them for its own"
            most._end_for_queue(text, limit)
        elif full is not None:
            most = max(listener.channels_of(full.holder), key=lambda channel: channel._queued)
            text = f"{full.count} bytes wait for windows of {full.holder}, {most._queued} of them for its own"
            most._end_for_queue(text, full.most)

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
        self.listener.queue(self, -self._queued)
        self._queued = 0
        cancelled = [event.stream for event in self._events if isinstance(event, Reset)]
        self._events.clear()
        self._unread.clear()
        self._unread_bytes = self._unread_at = 0
        self.listener.turns.leave(self)
        self._give_up(cancelled + self.connection.end())

    def _give_up(self, streams: list[Stream]) -> None:
        """Forget calls. Each costs the groups of its client, and a notice for each member of them."""
        self.listener.turns.forget(streams)

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""
        if self.tls is not None and not self._is_paused:
            if (why := self.tls.overdue(now_s, self._resumed_s)) is not None:
                return why
        if self.waits_for_turn:
            return None  # it is this side that is late
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
