"""A listening port, and the channels that it accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from broker_store.broker.shares import Full, Held, Holders, Shares
from broker_store.config.checks import Network
from broker_store.repeated_log import RepeatedLog
from broker_store.server.acceptor import Acceptor
from broker_store.server.channel import IDLE_TIMEOUT_S, Channel, Late, OnCommand, Refused
from broker_store.server.opening import AcceptedChannel, Opening
from broker_store.server.tls_server import TlsServer

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0


class Accepted(AcceptedChannel, Protocol):
    """A connection of a port."""

    remote: str
    kept: int  # bytes of unfinished requests and records, as `Listener.keep` has counted them

    @property
    def unsent(self) -> int:
        """The bytes that were written and that the system has not taken yet."""

    def close(self) -> None:
        """Close the connection after the data that was written has been sent."""

    def abort(self) -> None:
        """Close the connection at once."""

    def overdue(self, now_s: float) -> tuple[str, float, float] | None:
        """Return why the connection has to be closed at loop time `now_s` (cause, seconds, limit), or
        None."""


@dataclass(frozen=True, slots=True)
class Before:
    """What comes before the first byte of a request: TLS, and the addresses that may send a PROXY
    prologue."""

    tls: TlsServer | None = None
    proxies: tuple[Network, ...] = ()


NOTHING_BEFORE = Before()

# A connection of the port; it is also asyncio's protocol.
Connection = TypeVar("Connection", bound=Accepted)


class Listener(Generic[Connection]):
    """A listening port. `channels` are its open connections, which `make` returns for new ones; `openings`
    are those whose first bytes are not known yet."""

    idle_timeout_s = IDLE_TIMEOUT_S

    def __init__(
        self,
        make: Callable[[Listener[Connection]], Connection],
        max_connections: int,
        on_closed: Callable[[Connection], None] | None,
        late: Late,
        refused: Refused,
        before: Before = NOTHING_BEFORE,
        shares: Shares | None = None,
    ):
        self.shares = shares or Shares()
        self._held = Held(self.shares, max_connections)
        self._kept = Held(self.shares, self.shares.unfinished_bytes)
        self._holders: dict[Connection | Opening, Holders] = {}  # of those that have some
        self.tls, self.proxies = before.tls, before.proxies
        self._make = make
        self.max_connections = max_connections
        self.on_closed = on_closed
        self.late = late
        self.refused = refused
        self.channels: set[Connection] = set()
        self.openings: set[Opening] = set()
        self.kept_bytes = 0
        self.port = 0  # set by `open`
        self._log = RepeatedLog(log)
        self._acceptor: Acceptor | None = None
        self._is_closed = False
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event = asyncio.Event()

    async def open(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self.port = listening.getsockname()[1]
        self._acceptor = Acceptor(listening, lambda: Opening(self), self._log)
        self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._sweep_channels, loop)

    def write_log(self, level: int, cause: str, text: str, *arguments: object) -> None:
        """Log why a channel is closed, at most one line each second for each cause."""
        self._log.write(level, cause, asyncio.get_running_loop().time(), text, *arguments)

    def admit(self, opening: Opening) -> bool:
        """Add a new connection. Return False if there are too many, or the port is closed."""
        if self._is_closed:
            return False
        count = len(self.channels) + len(self.openings)
        if count >= self.max_connections:
            cause = "too many connections"
            self.write_log(
                logging.WARNING, cause, "refused %s: %d connections are open", opening.remote, count
            )
            self.refused(cause, value=count, limit=self.max_connections, who=opening.remote)
            return False
        self.openings.add(opening)
        return self._count_for(opening)

    def moved(self, opening: Opening) -> bool:
        """Count a connection for the client that its prologue names. Return False if there is no room for
        it."""
        self._held.give(self._holders.pop(opening, ()))
        return self._count_for(opening)

    def _count_for(self, connection: Connection | Opening) -> bool:
        """Count a connection for its address and user, and return True; or return False if it is one too
        many."""
        holders = self.shares.holders(connection.remote)
        if not holders:
            return True
        if (full := self._held.full(holders)) is not None:
            cause = full.cause("connections")
            self.write_log(
                logging.WARNING,
                cause,
                "refused %s: %d connections of %s are open, at most %d",
                connection.remote,
                full.count,
                full.holder,
                full.most,
            )
            self.refused(
                cause, value=full.count, limit=full.most, who=connection.remote, said=f"of {full.holder}"
            )
            return False
        self._held.take(holders)
        self._holders[connection] = holders
        return True

    def has_room_for_user(self, connection: Connection, user: str) -> bool:
        """Note that a connection is one of a user, who signs its requests. Return False if the user has too
        many."""
        earlier = self._holders.pop(connection, ())
        self._held.give(earlier)
        self._kept.give(earlier, connection.kept)
        self.shares.note_user(connection.remote, user)
        is_admitted = self._count_for(connection)
        self._kept.take(self._holders.get(connection, ()), connection.kept)
        return is_admitted

    def opened(self, opening: Opening) -> Connection:
        """Return the channel that takes the place of an opening."""
        self.keep(opening, 0)
        self.openings.discard(opening)
        channel = self._make(self)
        self.channels.add(channel)
        if (holders := self._holders.pop(opening, None)) is not None:
            self._holders[channel] = holders
        return channel

    def gone(self, connection: Connection | Opening) -> None:
        """Remove a connection that has ended."""
        if self._holders:
            self._held.give(self._holders.pop(connection, ()))
        if isinstance(connection, Opening):
            self.openings.discard(connection)
        elif connection in self.channels:
            self.channels.discard(connection)
            self.shares.forget(connection.remote)
            if self.on_closed is not None:
                self.on_closed(connection)
        if not self.channels and not self.openings:
            self._empty.set()

    def keep(self, connection: Connection | Opening, kept: int) -> None:
        """Count the bytes of unfinished requests and records of a connection. If the bound of all connections
        is exceeded, or that of its address or user, the one with most of them is closed."""
        grows = kept > connection.kept
        if holders := self._holders.get(connection):
            self._kept.give(holders, connection.kept)
            if grows and (full := self._kept.full(holders, kept)) is not None:
                self._close_largest_of(full, connection, kept)
            self._kept.take(holders, kept)
        self.kept_bytes += kept - connection.kept
        connection.kept = kept
        if grows and self.kept_bytes > (limit := self.shares.unfinished_bytes):
            every: list[Connection | Opening] = [connection, *self.channels, *self.openings]
            most = max(every, key=lambda one: one.kept)
            text = (
                f"unfinished requests of all connections take {self.kept_bytes} bytes, {most.kept} of them "
                "this one's"
            )
            self.count_end(most, logging.WARNING, "unfinished frames", text, self.kept_bytes, limit)
            most.abort()
            self.keep(most, 0)  # `connection_lost` comes later, and others may grow before

    def holders_of(self, connection: Connection) -> Holders:
        """Return which address and user a connection counts for."""
        return self._holders.get(connection, ())

    def channels_of(self, holder: str) -> list[Connection]:
        """Return the channels of an address or user."""
        return [one for one in self.channels if holder in self._holders.get(one, ())]

    def _close_largest_of(self, full: Full, connection: Connection | Opening, kept: int) -> None:
        its = [one for one, holders in self._holders.items() if full.holder in holders]
        most = max(its, key=lambda one: kept if one is connection else one.kept)
        text = f"unfinished requests of {full.holder} take {full.count + kept} bytes"
        self.count_end(
            most,
            logging.WARNING,
            full.cause("unfinished frames"),
            text,
            full.count + kept,
            full.most,
        )
        most.abort()
        if most is not connection:
            self.keep(most, 0)  # `connection_lost` comes later, and others may grow before

    def count_end(
        self,
        connection: Connection | Opening,
        level: int,
        cause: str,
        text: str,
        value: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Log and count why a connection ends."""
        self.write_log(level, cause, "closing %s: %s", connection.remote, text)
        self.refused(cause, value=value, limit=limit, who=connection.remote, said=text)

    def _sweep_channels(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        every: list[Connection | Opening] = [*self.channels, *self.openings]
        overdue = [(channel, why) for channel in every if (why := channel.overdue(now_s)) is not None]
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
        self._bound_unsent()
        self._log.flush(now_s)
        self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._sweep_channels, loop)

    def _bound_unsent(self) -> None:
        """Close the connections with most bytes while what peers do not read, and unfinished requests, take
        more than the bound of these. Each connection may have a MiB of answers before it is not read any
        more, also of refusals."""
        limit = self.shares.unfinished_bytes
        waiting = [(channel.unsent + channel.kept, channel) for channel in self.channels if channel.unsent]
        total = self.kept_bytes + sum(size - channel.kept for size, channel in waiting)
        for size, most in sorted(waiting, key=lambda one: one[0], reverse=True):
            if total <= limit:
                return
            text = f"unread answers and unfinished requests take {total} bytes, {size} of them this one's"
            self.count_end(most, logging.WARNING, "unread answers", text, total, limit)
            most.abort()
            total -= size

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self, limit_s: float = 1.0) -> None:
        """Stop accepting, send what was written, close the channels; after `limit_s` seconds they are
        aborted. Idempotent."""
        if self._acceptor is None or self._is_closed:
            return
        self._is_closed = True
        self._acceptor.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for opening in list(self.openings):
            opening.abort()
        if self.channels or self.openings:
            self._empty.clear()
            for channel in list(self.channels):
                channel.close()
            try:
                await asyncio.wait_for(self._empty.wait(), limit_s)
            except TimeoutError:
                for channel in list(self.channels):
                    channel.abort()
                await asyncio.sleep(0)


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
    before: Before = NOTHING_BEFORE,
    shares: Shares | None = None,
) -> Listener[Channel]:
    """Accept connections of the remoting protocol on a bound socket. `handle(command, channel)` returns the
    answer, or None if it is written later or never."""
    listener = Listener[Channel](
        lambda port: Channel(handle, port), max_connections, on_closed, late, refused, before, shares
    )
    await listener.open(listening)
    return listener
