"""One TCP connection: commands from bytes, and bytes from answers.

A `Channel` is a connection that a client opened, or one that the broker opened to a name server.
`protocol.connection` parses received bytes into commands, and the handler is called for each. The answers to
all commands of one read are written in one piece. Both sides may send requests: `request` sends a command and
returns the answer, which has the same opaque number.

The cost of a peer is bounded (docs/durability.md S7 and S14):

- the header of a frame must be complete 10 s after its first byte, the frame 60 s after it;
- without a byte in either direction for 120 s the connection is closed (clients send a heartbeat every 30 s);
- a peer that does not read its answers is not read either: above `HIGH_WATER_BYTES` of unsent answers no
  further command is handled. Above `MAX_UNSENT_BYTES` (answers that were under way, notices) the connection
  is closed. `hold` and `release` stop reading in the same way for answers that are still read from disk;
- a listener accepts `max_connections` connections and closes further ones at once. Unfinished frames of all
  its connections together are bounded; the connection with most is closed if the bound is exceeded
  (`listener.Listener.keep`).

Commands that come after an unread answer or a cold read wait in the channel. When the turn of one comes,
`late` is called and may answer it in place of its handler. `refused` counts each connection that was not
accepted or was closed for a limit.

Times are of the loop's clock. All channels are checked once a second, so a limit may be exceeded by a second.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from broker_store.errors import PeerError, ProtocolError
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame, frame_head
from broker_store.protocol.host_port import split_address
from broker_store.protocol.proxy_prologue import Peer
from broker_store.server.addresses import address_text, packed_address
from broker_store.server.tls_transport import TlsTransport

log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 10.0
FRAME_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 120.0
# Of a server that is asked: not less, since controllers elect another master when a connection ends.
SILENT_S = 10.0
# The second applies only to a peer that was above the first before: one answer may be larger than both.
HIGH_WATER_BYTES = 1 << 20
MAX_UNSENT_BYTES = 8 << 20
# A larger answer is written at once, not with the others of its turn. This shows whether the peer reads.
MAX_GATHERED_BYTES = 64 << 10
# Concurrent reads from disk for one connection, before its next command waits.
MAX_HELD = 16

# Called for each command. It returns the answer, None if that is written later or never.
OnCommand = Callable[[Command, "Channel"], Command | None]
# (command, channel, milliseconds it waited, number of waiting commands) -> the answer to a command that
# waited too long; None if it has to be handled.
Late = Callable[[Command, "Channel", int, int], Command | None]
Found = TypeVar("Found")
_ids = itertools.count(1)


class Refused(Protocol):
    """Counts a channel that was not accepted or was closed: the cause, and the value that exceeded a
    limit."""

    def __call__(
        self,
        cause: str,
        *,
        value: int | None = None,
        limit: int | None = None,
        who: str = "",
        said: str = "",
    ) -> None: ...


class Port(Protocol):
    """The listening port that accepted a channel (`listener.Listener`)."""

    late: Late
    refused: Refused

    def gone(self, connection: Channel) -> None:
        """Remove a channel that has ended."""

    def has_room_for_user(self, connection: Channel, user: str) -> bool:
        """Note that a channel is one of a user. Return False if the user has too many."""

    def keep(self, connection: Channel, kept: int) -> None:
        """Count the bytes of unfinished frames and records of a channel."""

    def count_end(
        self,
        connection: Channel,
        level: int,
        cause: str,
        text: str,
        value: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Log and count why a channel is closed."""


class RequestTimeout(TimeoutError):
    """The peer did not answer in time, or the connection ended first."""


class Channel(asyncio.Protocol):
    """One connection. `remote` is `ip:port`; `remote_host` is (packed address, port), as in records."""

    __slots__ = (
        "id", "remote", "remote_host", "listener", "loop", "handle", "connection", "transport", "last_s",
        "came_s", "frame_since_s", "closed", "kept", "tls", "_out", "_corked", "_paused", "_held", "_waiting",
        "_stalled", "_resumed", "_resumed_s", "_asked", "_opaque", "_unanswered_s",
    )  # fmt: skip

    def __init__(self, handle: OnCommand, listener: Port | None = None):
        self.id = next(_ids)
        self.remote = ""
        self.remote_host: tuple[bytes, int] = (b"\x7f\x00\x00\x01", 0)
        self.handle = handle
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self.connection = Connection()
        self.transport: asyncio.Transport | TlsTransport | None = None
        self.tls: TlsTransport | None = None  # of an accepted connection with TLS
        self.last_s = self.came_s = self.loop.time()  # came_s: when the bytes of the present commands came
        self.frame_since_s = 0.0
        self.closed = False
        self.kept = 0
        self._resumed_s = 0.0
        self._out: list[bytes] = []
        self._corked = False
        self._paused = False
        self._held = 0
        # (time of the read on the loop's clock, its commands) for each read whose commands wait.
        self._waiting: deque[tuple[float, list[Command]]] = deque()
        self._stalled = False
        self._resumed: list[Callable[[], None]] = []
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._unanswered_s = 0.0  # since when no request was answered; 0 while none waits

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that of TCP
        self.serve(transport, transport.get_extra_info("peername") or ("127.0.0.1", 0))

    def serve(self, transport: asyncio.Transport | TlsTransport, peer: Peer) -> None:
        """Serve a connection. `peer` is the other end, (address, port)."""
        self.transport = transport
        # No isinstance of asyncio.Transport: those of uvloop are no subclass.
        self.tls = transport if isinstance(transport, TlsTransport) else None
        self.remote = address_text(peer)
        self.remote_host = (packed_address(peer[0]), peer[1])
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    @property
    def local(self) -> str:
        """Return this end of the connection, `ip:port`; empty if it has ended."""
        own = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return address_text(own) if own else ""

    def data_received(self, data: bytes) -> None:
        self.last_s = self.came_s = self.loop.time()
        try:
            commands = self.connection.receive(data)
        except ProtocolError as error:
            if self.listener is None:
                log.info("closing %s: %s", self.remote, error)
            else:
                self.listener.count_end(self, logging.INFO, error.cause, str(error))
            self.abort()
            return
        kept = self.connection.buffered
        if self.tls is not None or kept != self.kept:
            self.count_kept()
        if not kept:
            self.frame_since_s = 0.0
        elif commands or not self.frame_since_s:
            self.frame_since_s = self.last_s
        if self._stalled:
            if commands:
                self._waiting.append((self.last_s, commands))
        else:
            self._handle_all(commands, self.last_s)

    def count_kept(self) -> None:
        """Count the bytes of unfinished frames and records."""
        if self.listener is not None and not self.closed:
            kept = self.connection.buffered
            if self.tls is not None:
                kept += self.tls.session.kept
            if kept != self.kept:
                self.listener.keep(self, kept)

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Log and count why the connection ends."""
        if self.listener is not None:
            self.listener.count_end(self, level, cause, text)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        callbacks, self._resumed = self._resumed, []
        for callback in callbacks:
            callback()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._waiting.clear()
        self._resumed.clear()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(RequestTimeout(f"the connection to {self.remote} ended"))
        self._asked.clear()
        if self.listener is not None:
            self.listener.keep(self, 0)
            self.listener.gone(self)

    # Commands

    def _handle_all(self, commands: list[Command], came_s: float) -> None:
        self._corked = True
        handle = self.handle
        for at, command in enumerate(commands):
            if command.flag & 1:
                self._answered(command)
                continue
            try:
                answer = handle(command, self)
            except Exception as error:  # a bug in one handler must not stop the others
                answer = failure_answer(command, error)
            if answer is not None and not command.flag & 2:
                self.write(answer)
            if self._paused or self._held >= MAX_HELD or len(self._out) > 64:
                if self._out:
                    self._write_out()
                if (self._paused or self._held >= MAX_HELD) and at + 1 < len(commands):
                    self._waiting.appendleft((came_s, commands[at + 1 :]))
                    self._stall()
                    break
        self._corked = False
        if self._out:
            self._write_out()

    def _answered(self, command: Command) -> None:
        future = self._asked.pop(command.opaque, None)
        self._unanswered_s = self.loop.time() if self._asked else 0.0
        if future is not None and not future.done():
            future.set_result(command)

    def _stall(self) -> None:
        """Handle no further command until the peer reads, or pending reads from disk are done."""
        if not self._stalled:
            self._stalled = True
            if self.transport is not None and not self.transport.is_closing():
                self.transport.pause_reading()

    def _go_on(self) -> None:
        if not self._stalled or self._paused or self._held >= MAX_HELD or self.closed or self._corked:
            return
        self._stalled = False
        if self.frame_since_s:
            self.frame_since_s = self.loop.time()  # the time without reading does not count
        while self._waiting and not self._stalled:
            came_s, commands = self._waiting.popleft()
            self.came_s = came_s
            self._handle_all(self._in_time(commands, came_s), came_s)
        if not self._stalled and self.transport is not None and not self.transport.is_closing():
            self._resumed_s = self.loop.time()
            self.transport.resume_reading()

    def _in_time(self, commands: list[Command], came_s: float) -> list[Command]:
        """Return the commands that are still to be handled. The others waited too long and are answered
        here."""
        if self.listener is None:
            return commands
        waited_ms = int((self.loop.time() - came_s) * 1000)
        waiting = len(commands) + sum(len(later) for _, later in self._waiting)
        left = []
        for command in commands:
            answer = None if command.flag & 1 else self.listener.late(command, self, waited_ms, waiting)
            if answer is None:
                left.append(command)
            elif not command.flag & 2:
                self.write(answer)
        return left

    def hold(self) -> None:
        """Count an answer that is read from disk. At MAX_HELD the next command of the connection waits."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        if self._stalled and not self.closed:
            self.loop.call_soon(self._go_on)

    # Writing

    @property
    def paused(self) -> bool:
        """Return True if the peer does not read what it was sent."""
        return self._paused

    @property
    def unsent(self) -> int:
        """Return the bytes that were written and that the system has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def when_resumed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the peer reads again; never if the connection ends first."""
        self._resumed.append(callback)

    def write(self, command: Command) -> None:
        """Write a command. If an answer is too large for a frame, SYSTEM_ERROR with the sizes is written in
        its place; a request raises ProtocolError."""
        try:
            head = frame_head(command)
        except ProtocolError as error:
            if not command.is_response:
                raise
            log.warning("the answer to a request of %s does not fit into a frame: %s", self.remote, error)
            command = command.answer(ResponseCode.SYSTEM_ERROR, str(error))
            head = frame_head(command)
        if len(command.body) > MAX_GATHERED_BYTES:
            self.write_bytes(head, command.body)
        else:
            self.write_bytes(head + command.body)

    def write_all(self, commands: Sequence[Command]) -> None:
        """Write commands, together."""
        self.write_bytes(*map(encode_frame, commands))

    def write_bytes(self, *pieces: bytes) -> None:
        """Write one whole frame, in pieces."""
        if self.closed:
            return
        self._out.extend(pieces)
        if not self._corked or len(pieces[-1]) > MAX_GATHERED_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        paused = self._paused
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        self.last_s = self.loop.time()
        if paused and (unsent := transport.get_write_buffer_size()) > MAX_UNSENT_BYTES:
            text = f"it does not read, {unsent} bytes wait"
            if self.listener is None:
                log.info("closing %s: %s", self.remote, text)
            else:
                self.listener.count_end(
                    self, logging.INFO, "peer does not read", text, unsent, MAX_UNSENT_BYTES
                )
            self.abort()

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a command and return its answer. Raises RequestTimeout after `timeout` seconds.

        A connection that this broker opened ends when for SILENT_S nothing was answered: what is between both
        may have forgotten it, and a new one may pass.
        """
        if self.closed:
            raise RequestTimeout(f"the connection to {self.remote} has ended")
        self._unanswered_s = self._unanswered_s or self.loop.time()
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque
        future = self._asked[command.opaque] = self.loop.create_future()
        self.write(command)
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 may drop a cancellation
                return await future
        except TimeoutError as error:
            if isinstance(error, RequestTimeout):
                raise
            raise RequestTimeout(
                f"{self.remote} did not answer {command.code} within {timeout:g} s"
            ) from None
        finally:
            is_answered = self._asked.pop(command.opaque, None) is None
            silent_s = self.loop.time() - self._unanswered_s
            if not is_answered and self.listener is None and silent_s >= SILENT_S:
                log.info("closing %s: it has answered nothing for %.0f s", self.remote, silent_s)
                self.abort()

    def close(self) -> None:
        """Close the connection after the data that was written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""
        if self.tls is not None and not self._stalled:
            if (why := self.tls.overdue(now_s, self._resumed_s)) is not None:
                return why
        if self.frame_since_s and not self._stalled:
            limit = HEADER_TIMEOUT_S if self.connection.awaiting_header else FRAME_TIMEOUT_S
            if now_s - self.frame_since_s > limit:
                return "slow frame", now_s - self.frame_since_s, limit
        if now_s - self.last_s > IDLE_TIMEOUT_S:
            return "idle connection", now_s - self.last_s, IDLE_TIMEOUT_S
        return None

    def __repr__(self) -> str:
        return f"<channel {self.id} {self.remote}>"


async def connect(
    host: str,
    port: int,
    timeout: float,
    handle: OnCommand = lambda command, channel: None,
    tls: ssl.SSLContext | None = None,
) -> Channel:
    """Open a connection to another server's port, with TLS if its context is given. Raises OSError, and
    TimeoutError after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, channel = await loop.create_connection(lambda: Channel(handle), host, port, ssl=tls)
    return channel


async def connect_to(address: str, timeout: float, *, tls: ssl.SSLContext | None = None) -> Channel:
    """Open a connection to `host:port`. Raises PeerError for another text, OSError, TimeoutError."""
    host, port = split_address(address)
    try:
        return await connect(host, port, timeout, tls=tls)
    except UnicodeError:  # labels of a name that has no address, as in `a..b`
        raise PeerError(f"{address!r:.60} has no host name that can be resolved") from None


def when_read(
    channel: Channel, found: Found | Future[Found], answer: Callable[[Found], Command | None]
) -> Command | None | Coroutine[None, None, Command | None]:
    """Return `answer(found)`; if the store is still reading from disk, a coroutine that returns it."""
    return _when_read(channel, found, answer) if isinstance(found, Future) else answer(found)


async def _when_read(
    channel: Channel, future: Future[Found], answer: Callable[[Found], Command | None]
) -> Command | None:
    channel.hold()
    try:
        found = await asyncio.wrap_future(future)
    finally:
        channel.release()
    return answer(found)


def failure_answer(command: Command, error: BaseException) -> Command:
    """Log an unexpected error of a handler with its traceback, and return the answer, which has no
    details."""
    log.error("request %d failed", command.code, exc_info=error)
    return command.answer(ResponseCode.SYSTEM_ERROR, "error inside the broker; its log has the details")
