"""The dashboard's connections until their first bytes are known: PROXY prologues and TLS, as on every port.

    accepted ─► local socket ──────────────────────────────────► BoundedHttp
             └► TCP ─► Opening ─► prologue? TLS handshake? ─────► BoundedHttp over `TlsTransport`
                                 └► a first byte of plain HTTP ─► BoundedHttp

A connection counts among the port's (`Peers`) from its first plain byte on. Before that it counts here: at
most MAX_OPENINGS, of which the oldest ends for a new one, and of one address as many as it may have
connections. A browser opens connections in advance, so one that ends without a byte is no refusal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from broker_store.config.checks import Network
from broker_store.server.listener import SWEEP_INTERVAL_S, Before
from broker_store.server.opening import Opening
from broker_store.server.tls_server import HttpTls
from mqadmin.web.bounded_http import HEADER_SECONDS, BoundedHttp
from mqadmin.web.peers import Peers
from mqadmin.web.trusted_proxies import connection_site

MAX_OPENINGS = 1_000
_SILENT = "idle connection"

Make = Callable[[], BoundedHttp]


class WebPort:
    """What openings of the dashboard's port have in common (`opening.OpeningPort`)."""

    idle_timeout_s = HEADER_SECONDS

    def __init__(self, peers: Peers, before: Before):
        self.tls = None if before.tls is None else HttpTls(before.tls)
        self.proxies: tuple[Network, ...] = before.proxies
        self._peers = peers
        self._openings: dict[Opening, tuple[Make, str | None]] = {}  # the oldest first, with its site
        self._of_site: Counter[str] = Counter()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def protocol(self, **of_uvicorn) -> asyncio.Protocol:
        """Return the protocol of a new connection, in place of uvicorn's."""
        return FirstBytes(self, lambda: BoundedHttp(**of_uvicorn, peers=self._peers))

    @property
    def openings(self) -> int:
        """The number of connections whose first bytes are not known."""
        return len(self._openings)

    def begin(self, transport: asyncio.Transport, make: Make) -> None:
        """Begin with a connection over TCP. `make` returns the protocol of its requests."""
        opening = Opening(self)
        # One of a proxy counts for no address: the client that its prologue names does.
        unbounded = (*self._peers.unbounded, *self.proxies)
        site = connection_site(transport.get_extra_info("peername")[0], unbounded)
        self._openings[opening] = (make, site)
        if site is not None:
            self._of_site[site] += 1
        transport.set_protocol(opening)
        opening.connection_made(transport)

    def admit(self, opening: Opening) -> bool:
        """Return False if there is no room for a new connection."""
        _, site = self._openings[opening]
        most = self._peers.max_of_address
        if site is not None and most and self._of_site[site] > most:
            self._peers.refused(
                "HTTP connections of one address",
                value=self._of_site[site],
                limit=most,
                who=opening.remote,
                said="none of them has sent a request yet",
            )
            return False
        if len(self._openings) > MAX_OPENINGS:
            oldest = next(iter(self._openings))
            self._peers.refused(
                "too many HTTP connections",
                value=len(self._openings),
                limit=MAX_OPENINGS,
                who=oldest.remote,
                said="connections without a request",
            )
            self.gone(oldest)
            oldest.abort()
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._swept, loop)
        return not self._is_closed

    def moved(self, opening: Opening) -> bool:
        """Return True: the client that a prologue names counts from its first request on."""
        return True

    def opened(self, opening: Opening) -> BoundedHttp:
        """Return the protocol of the requests, which takes the place of an opening."""
        make, _ = self._openings[opening]
        self.gone(opening)
        return make()

    def gone(self, connection: Opening) -> None:
        """Remove a connection that has ended, or whose first bytes are known."""
        found = self._openings.pop(connection, None)
        if found is not None and (site := found[1]) is not None:
            self._of_site[site] -= 1
            if not self._of_site[site]:
                del self._of_site[site]

    def keep(self, connection: Opening, kept: int) -> None:
        """Note the unfinished bytes of a prologue or of a handshake, which are bounded for each
        connection."""
        connection.kept = kept

    def count_end(self, connection: Opening, level: int, cause: str, text: str) -> None:
        """Count why a connection ends."""
        self._peers.refused(cause, who=connection.remote, said=text)

    def sweep(self, now_s: float) -> None:
        """End what is overdue at loop time `now_s`."""
        for opening in list(self._openings):
            if (why := opening.overdue(now_s)) is not None:
                cause, seconds, limit = why
                if cause != _SILENT:
                    self._peers.refused(cause, value=round(seconds), limit=round(limit), who=opening.remote)
                opening.abort()

    def _swept(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._swept, loop) if self._openings else None
        self.sweep(loop.time())

    def close(self) -> None:
        """End these connections, and begin with no further one."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for opening in list(self._openings):
            opening.abort()


class FirstBytes(asyncio.Protocol):
    """A connection that was just accepted."""

    def __init__(self, port: WebPort, make: Make):
        self._port, self._make = port, make

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # no other comes
        if isinstance(transport.get_extra_info("peername"), tuple):
            self._port.begin(transport, self._make)
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
