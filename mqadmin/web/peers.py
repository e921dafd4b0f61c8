"""The connections of the dashboard's port and local socket, and what they may hold together.

`Peers` has the connections, and checks them each second: how many there are, what a peer leaves unread, and
what waits for a peer too long. What one connection may send is in bounded_http.py.

One address (an IPv6 one with its site) has a part of the port's connections, so a single client leaves room
for others. Loopback and proxies that the settings name have no such part: their connections belong to many
clients.

The Unix socket has the same bounds on time and size. Its connections are not part of MAX_CONNECTIONS, so
commands of the same user work while the port is full.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker_store.protocol.proxy_prologue import Peer as Address
from broker_store.rest.problems import Problem
from broker_store.server.tls_transport import TlsTransport
from mqadmin.web.trusted_proxies import LOOPBACK, MAX_ADDRESS_CONNECTIONS, Network, connection_site

MAX_CONNECTIONS = 1_000  # of the port, websockets among them; a browser opens at most seven
MAX_LINGERING = 100  # beyond MAX_CONNECTIONS, while they read that there is no room
MAX_ADDRESS_LINGERING = 10  # of one address, beyond its part of the connections
UNREAD_SECONDS = 60.0  # in which a peer must take MIN_TAKEN_BYTES of what waits for it, or all
MIN_TAKEN_BYTES = 64 << 10  # about 1 KiB a second
SWEEP_SECONDS = 1.0
MAX_UNSENT_BYTES = 256 << 20  # of all connections; the one with most ends

# (cause, value=, limit=, who=, said=), as broker_store/broker/flow.py keeps it.
Refused = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request, or its whole connection, is ended. `value` went over `limit`."""

    cause: str
    problem: Problem
    value: int | None = None
    limit: int | None = None


class CountedTransport:
    """A connection's transport, with the number of bytes that were written to it. `peer` is the client's
    address where a PROXY prologue has named it."""

    def __init__(self, transport: asyncio.Transport | TlsTransport, peer: Address | None = None):
        self._transport = transport
        self._peer = peer
        self.written = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection, as asyncio's transports do."""
        if self._peer is not None and name == "peername":
            return self._peer
        if self._peer is not None and name == "socket":
            return None  # uvicorn would ask it for the address of the proxy
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    @property
    def taken(self) -> int:
        """The number of bytes that the peer's machine has acknowledged.

        The kernel's send buffer holds megabytes, so what left our buffer may still wait there.
        """
        connection = self._transport.get_extra_info("socket")
        in_kernel = 0
        if connection is not None and connection.fileno() >= 0:
            in_kernel = int.from_bytes(
                fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder
            )
        return self.written - self._transport.get_write_buffer_size() - in_kernel

    def __getattr__(self, name: str):
        return getattr(self._transport, name)


class BoundedProtocol(Protocol):
    """The methods of a connection's protocol that `Peers` calls (mqadmin/web/bounded_http.py)."""

    loop: asyncio.AbstractEventLoop

    @property
    def is_idle(self) -> bool:
        """True if the connection may be ended to make room."""

    def judge_time(self, now_s: float) -> None:
        """End or refuse what takes too long, at loop time `now_s`."""


class Peer:
    """One connection, from its first byte to its end; an upgrade to a websocket gives it another protocol."""

    __slots__ = (
        "transport",
        "who",
        "is_local",
        "site",
        "protocol",
        "waits_for",
        "since_s",
        "unsent",
        "taken",
        "taken_at_s",
        "ends_at_s",
    )

    def __init__(
        self,
        transport: CountedTransport,
        protocol: BoundedProtocol,
        now_s: float,
        unbounded: Sequence[Network],
    ):
        peer = transport.get_extra_info("peername")
        self.is_local = not isinstance(peer, tuple)
        # None: counts for no address
        self.site = None if self.is_local else connection_site(peer[0], unbounded)
        self.transport = transport
        self.who = "local socket" if self.is_local else f"{peer[0]}:{peer[1]}"
        self.protocol: BoundedProtocol = protocol
        # Then "header", "body" or "", with the time from which it counts
        self.waits_for, self.since_s = "connection", now_s
        # `taken` of what was written, at the last time that it was enough
        self.unsent, self.taken, self.taken_at_s = 0, 0, now_s
        self.ends_at_s: float | None = None  # of one that was refused

    def wait_for(self, what: str, now_s: float) -> None:
        self.waits_for, self.since_s = what, now_s

    def is_too_slow(self, now_s: float) -> bool:
        """Return whether data waits for the peer and it took less than MIN_TAKEN_BYTES in
        UNREAD_SECONDS."""
        self.unsent = self.transport.get_write_buffer_size()
        taken = self.transport.taken
        if self.unsent == 0 or taken - self.taken >= MIN_TAKEN_BYTES:
            self.taken, self.taken_at_s = taken, now_s
        return now_s - self.taken_at_s > UNREAD_SECONDS


class Peers:
    """The connections of the port and of the local socket, and their limits together. `refused` counts."""

    def __init__(
        self,
        refused: Refused,
        max_connections: int = MAX_CONNECTIONS,
        *,
        max_of_address: int = MAX_ADDRESS_CONNECTIONS,
        unbounded: Sequence[Network] = LOOPBACK,
    ):
        """`max_of_address` 0: no bound for an address. Addresses of `unbounded` have none anyway."""
        self.refused = refused
        self.max_connections = max_connections
        self.max_of_address = max_of_address
        self.body_bytes = 0
        self._bodies_of_site: Counter[str] = Counter()
        self.unbounded = unbounded
        self._peers: dict[CountedTransport, Peer] = {}
        self._remote = 0  # of them that came over TCP
        self._of_site: Counter[str] = Counter()  # those by address that count for one
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unsent_bytes(self) -> int:
        """The bytes that wait for all peers, as the last sweep found them. Any thread."""
        return sum(peer.unsent for peer in list(self._peers.values()))

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def peer_of(self, transport: CountedTransport) -> Peer:
        return self._peers[transport]

    def take(self, transport: CountedTransport, protocol: BoundedProtocol) -> tuple[Peer, Refusal | None]:
        """Return the peer of a new connection, and why there is no room for it. A connection that rests
        between two requests is closed to make room."""
        loop = protocol.loop
        peer = Peer(transport, protocol, loop.time(), self.unbounded)
        refusal = None if peer.is_local else self._no_room_for(peer.site)
        self._peers[transport] = peer
        self._remote += not peer.is_local
        if peer.site is not None:
            self._of_site[peer.site] += 1
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_SECONDS, self._swept, loop)
        return peer, refusal

    def _no_room_for(self, site: str | None) -> Refusal | None:
        most = self.max_of_address
        if site is not None and most and self._of_site[site] >= most and not self._close_an_idle_one(site):
            said = f"{most:,} connections of {site} are open, as many as one address may have"
            problem = Problem(
                "busy",
                said,
                "close some; BROKER_WEB_CONNECTIONS sets how many one address may have, "
                "BROKER_WEB_PROXIES names proxies",
            )
            return Refusal("HTTP connections of one address", problem, self._of_site[site] + 1, most)
        many = self.max_connections
        if self._remote >= many and not self._close_an_idle_one():
            return Refusal(
                "too many HTTP connections", Problem("busy", f"{many:,} connections are open"), many + 1, many
            )
        return None

    def hold_body(self, peer: Peer, size: int) -> int:
        """Count the bytes of a body that is under way. Return how many those of its address take; 0 for a
        peer that counts for no address."""
        self.body_bytes += size
        if peer.site is None:
            return 0
        self._bodies_of_site[peer.site] += size
        return self._bodies_of_site[peer.site]

    def release_body(self, peer: Peer, size: int) -> None:
        """Count the bytes of a body that is not under way any more."""
        self.body_bytes -= size
        if peer.site is not None:
            self._bodies_of_site[peer.site] -= size
            if not self._bodies_of_site[peer.site]:
                del self._bodies_of_site[peer.site]

    def is_crowded(self, peer: Peer) -> bool:
        """Return whether so many connections are refused, in all or of this peer's address, that the next one
        is closed without an answer."""
        of_site = self._of_site[peer.site] if peer.site is not None and self.max_of_address else 0
        return (
            self._remote > self.max_connections + MAX_LINGERING
            or of_site > self.max_of_address + MAX_ADDRESS_LINGERING
        )

    def gone(self, transport: CountedTransport) -> None:
        peer = self._peers.pop(transport, None)
        if peer is not None:
            self._remote -= not peer.is_local
            if peer.site is not None:
                self._of_site[peer.site] -= 1
                if not self._of_site[peer.site]:
                    del self._of_site[peer.site]
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sweep(self, now_s: float) -> None:
        """End what is overdue at loop time `now_s`, and the largest while all together hold too much."""
        for peer in list(self._peers.values()):
            if peer.ends_at_s is not None:
                if now_s >= peer.ends_at_s:
                    peer.transport.abort()
                continue
            if peer.is_too_slow(now_s):
                self.refused(
                    "answer not read",
                    value=round(now_s - peer.taken_at_s),
                    limit=round(UNREAD_SECONDS),
                    who=peer.who,
                )
                peer.transport.abort()
            elif peer.waits_for:
                peer.protocol.judge_time(now_s)
        unsent = sum(peer.unsent for peer in self._peers.values())
        for peer in sorted(self._peers.values(), key=lambda peer: peer.unsent, reverse=True):
            if unsent <= MAX_UNSENT_BYTES:
                break
            self.refused("unread answers", value=unsent, limit=MAX_UNSENT_BYTES, who=peer.who)
            peer.transport.abort()
            unsent -= peer.unsent

    def _swept(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(SWEEP_SECONDS, self._swept, loop)
        self.sweep(loop.time())

    def _close_an_idle_one(self, site: str | None = None) -> bool:
        """End the connection (of `site`, where one is given) that has rested longest. Return whether there
        was one."""
        of_site = (peer for peer in self._peers.values() if not peer.is_local and site in (None, peer.site))
        idle = [peer for peer in of_site if peer.protocol.is_idle]
        if not idle:
            return False
        longest = min(idle, key=lambda peer: peer.since_s)
        longest.transport.abort()
        self.gone(longest.transport)
        return True
