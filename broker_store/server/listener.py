"""A listening port, and the channels that it accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from broker_store.repeated_log import RepeatedLog
from broker_store.server.channel import Channel, Late, OnCommand, Refused

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0
BACKLOG = 1024


class Accepted(Protocol):
    """A connection of a port."""

    remote: str

    def close(self) -> None:
        """Close the connection after the data that was written has been sent."""

    def abort(self) -> None:
        """Close the connection at once."""

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""


# A connection of the port; it is also asyncio's protocol.
Connection = TypeVar("Connection", bound=Accepted)


class Listener(Generic[Connection]):
    """A listening port. `channels` are its open connections, which `make` returns for new ones."""

    def __init__(
        self,
        make: Callable[[Listener[Connection]], Connection],
        max_connections: int,
        on_closed: Callable[[Connection], None] | None,
        late: Late,
        refused: Refused,
    ):
        self._make = make
        self.max_connections = max_connections
        self.on_closed = on_closed
        self.late = late
        self.refused = refused
        self.channels: set[Connection] = set()
        self.kept_bytes = 0
        self.port = 0  # set by `open`
        self._log = RepeatedLog(log)
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event = asyncio.Event()

    async def open(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self.port = listening.getsockname()[1]
        self._server = await loop.create_server(
            lambda: self._make(self),  # type: ignore[arg-type, return-value]  # it is a protocol too
            sock=listening,
            backlog=BACKLOG,
        )
        self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._sweep_channels, loop)

    def write_log(self, level: int, cause: str, text: str, *arguments: object) -> None:
        """Log why a channel is closed, at most one line each second for each cause."""
        self._log.write(level, cause, asyncio.get_running_loop().time(), text, *arguments)

    def admit(self, channel: Connection) -> bool:
        if len(self.channels) >= self.max_connections:
            self.write_log(
                logging.WARNING,
                "too many connections",
                "refused %s: %d connections are open",
                channel.remote,
                len(self.channels),
            )
            self.refused(
                "too many connections",
                value=len(self.channels),
                limit=self.max_connections,
                who=channel.remote,
            )
            return False
        self.channels.add(channel)
        return True

    def gone(self, channel: Connection) -> None:
        if channel in self.channels:
            self.channels.discard(channel)
            if self.on_closed is not None:
                self.on_closed(channel)
        if not self.channels:
            self._empty.set()

    def _sweep_channels(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        overdue = [(channel, why) for channel in self.channels if (why := channel.overdue(now_s)) is not None]
        for channel, (cause, seconds, limit) in overdue:
            self.write_log(
                logging.INFO,
                cause,
                "closing %s: %s for %.1f s, at most %g s",
                channel.remote,
                cause,
                seconds,
                limit,
            )
            self.refused(cause, value=round(seconds), limit=round(limit), who=channel.remote)
            channel.abort()
        self._log.flush(now_s)
        self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._sweep_channels, loop)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, limit_s: float = 1.0) -> None:
        """Stop accepting, send what was written, close the channels; after `limit_s` seconds they are
        aborted. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        if self.channels:
            self._empty.clear()
            for channel in list(self.channels):
                channel.close()
            try:
                await asyncio.wait_for(self._empty.wait(), limit_s)
            except TimeoutError:
                for channel in list(self.channels):
                    channel.abort()
                await asyncio.sleep(0)
        await server.wait_closed()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port and does not listen yet, so that a caller can read its port.
    Raises OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def bind_for(host: str, port: int, option: str) -> socket.socket:
    """Call `bind`. Its OSError has a text with the port and the command line option that changes it."""
    try:
        return bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken: another program listens there; choose another with {option}"
            ) from None
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None


async def listen(
    handle: OnCommand,
    listening: socket.socket,
    *,
    max_connections: int = 10_000,
    on_closed: Callable[[Channel], None] | None = None,
    late: Late = lambda command, channel, waited_ms, waiting: None,
    refused: Refused = lambda cause, **case: None,
) -> Listener[Channel]:
    """Accept connections of the remoting protocol on a bound socket. `handle(command, channel)` returns the
    answer, or None if it is written later or never."""
    listener = Listener[Channel](
        lambda port: Channel(handle, port), max_connections, on_closed, late, refused
    )
    await listener.open(listening)
    return listener
