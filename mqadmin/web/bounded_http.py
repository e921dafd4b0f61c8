"""Limits of one connection of the dashboard's port: bytes and times of headers, bodies and frames.

uvicorn and its parser have no bound on a header's size or time, on a body, on requests sent in advance
(pipelined) or on what a peer leaves unread. The protocols here are uvicorn's with these bounds: `BoundedHttp`
judges each piece before and while it is parsed, `BoundedWebsocket` takes the connection over after an
upgrade. A request beyond a bound is answered with a status where HTTP still allows one, and counted; the
connection is then closed.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from broker_store.protocol.proxy_prologue import Peer as Address
from broker_store.rest.http import MAX_FORM_BYTES, most_body_bytes
from broker_store.rest.problems import MEDIA_TYPE, Problem
from broker_store.server.tls_transport import TlsTransport
from mqadmin.web.peers import CountedTransport, Peer, Peers, Refusal

HEADER_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its header
BODY_SECONDS = 30.0  # from the end of the header to the last byte of its body
LINGER_SECONDS = 2.0  # for a peer to read why it was refused
MAX_TARGET_BYTES = 25 << 10  # path and query: a SQL92 filter of 8,192 signs takes three bytes for each
MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100
MAX_HEADER_LINE_BYTES = 8_000  # of a websocket's handshake: its parser ends at 8,192
# Of all requests that are not answered; the routes of messages refuse at half of it
MAX_BODIES_BYTES = 128 << 20
MAX_BODIES_OF_ADDRESS = MAX_BODIES_BYTES // 2  # loopback and proxies may have all
MAX_PIPELINED = 16  # requests of one connection that wait for answers to earlier ones
WEBSOCKET_BURST_BYTES = 256 << 10  # from a browser, at once ...
WEBSOCKET_BYTES_PER_SECOND = 16 << 10  # ... and in the long run
MAX_FRAGMENTS = 64  # of one websocket message
MAX_WEBSOCKET_UNSENT_BYTES = 4 << 20
SLICE_BYTES = 16 << 10  # parsed at once: by so much a header may pass its bound


class _Stop(Exception):
    """Ends the parser, which then reports a failed callback; the refusal is in the protocol."""


class OverTls:
    """What `TlsTransport` calls besides the methods of a protocol."""

    peers: Peers
    peer: Peer

    def count_kept(self) -> None:
        """Do nothing: a record that is not complete has at most 16 KiB, for each connection."""

    def tls_failed(self, level: int, cause: str, text: str) -> None:
        """Count why the connection ends."""
        self.peers.refused(cause, who=self.peer.who, said=text)


class BoundedHttp(OverTls, HttpToolsProtocol):
    """uvicorn's HTTP/1.1 within the bounds of this module."""

    transport: CountedTransport  # type: ignore[assignment]  # what `connection_made` gives

    def __init__(self, *arguments, peers: Peers, **named):
        super().__init__(*arguments, **named)
        self.peers = peers
        self.peer: Peer  # from connection_made on
        self._refusal: Refusal | None = None
        self._header_bytes = self._header_fields = self._body_bytes = self._held_bytes = 0
        self._incomplete_bytes = 0  # of the header; or between and after the chunks of a body
        self._cycles: list[RequestResponseCycle] = []  # without an answer, the running one first

    # What the loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # no other comes
        self._begin(CountedTransport(transport))

    def serve(self, transport: asyncio.Transport | TlsTransport, peer: Address) -> None:
        """Serve a connection whose first bytes are known (`opening.AcceptedChannel`)."""
        known = transport.get_extra_info("peername") == peer
        self._begin(CountedTransport(transport, None if known else peer))

    def _begin(self, transport: CountedTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # has what is called
        self.peer, refusal = self.peers.take(self.transport, self)
        if refusal is not None:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        peer = self.peer
        if peer.waits_for in ("", "connection") and peer.ends_at_s is None:
            peer.wait_for("header", self.loop.time())
        for at in range(0, len(data), SLICE_BYTES):
            if peer.ends_at_s is not None or peer.protocol is not self or self.transport.is_closing():
                return
            self._parse(data if len(data) <= SLICE_BYTES else data[at : at + SLICE_BYTES])

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._release()
        self.peers.gone(self.transport)

    def judge_time(self, now_s: float) -> None:
        """Refuse a request that is not complete in time. Called by `Peers`."""
        peer = self.peer
        if self.flow.read_paused:
            return peer.wait_for(peer.waits_for, now_s)  # we do not read: this time does not count
        limit_s = BODY_SECONDS if peer.waits_for == "body" else HEADER_SECONDS
        waited_s = now_s - peer.since_s
        if waited_s <= limit_s:
            return None
        if peer.waits_for == "connection":  # browsers open some in advance
            return self.transport.close()
        problem = Problem(
            "request_timeout", f"the {peer.waits_for} of the request did not come within {limit_s:g} s"
        )
        return self._refuse(Refusal(f"slow HTTP {peer.waits_for}", problem, round(waited_s), round(limit_s)))

    @property
    def is_idle(self) -> bool:
        """True if all requests are answered and no other has begun."""
        return (
            self.peer.waits_for == ""
            and not self._cycles
            and self.peer.ends_at_s is None
            and not self.transport.get_write_buffer_size()
        )

    # Parsing

    def _parse(self, piece: bytes) -> None:
        self._incomplete_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:  # answer it as a request without an upgrade
                self.cycle.keep_alive = False
                self.flow.pause_reading()
        except httptools.HttpParserError as error:
            self._refuse(
                self._refusal
                or Refusal(
                    "malformed HTTP request",
                    Problem("invalid", f"the request is no HTTP/1.1: {_why_malformed(piece, error)}"[:200]),
                )
            )
        else:
            if self.peer.waits_for in ("header", "body") and self._incomplete_bytes > MAX_HEADER_BYTES:
                what = (
                    "header"
                    if self.peer.waits_for == "header"
                    else "trailer of the body, or what is between two of its chunks,"
                )
                self._refuse(_header_too_large(self._incomplete_bytes, what=what))

    def _stop(self, refusal: Refusal) -> _Stop:
        self._refusal = refusal
        return _Stop()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise self._stop(
                Refusal("pipelined HTTP requests", Problem("busy"), len(self.pipeline) + 1, MAX_PIPELINED)
            )
        super().on_message_begin()
        self._header_bytes = self._header_fields = self._incomplete_bytes = self._body_bytes = 0
        if self.peer.waits_for != "header":
            self.peer.wait_for("header", self.loop.time())

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            problem = Problem("target_too_long", f"path and query have more than {MAX_TARGET_BYTES:,} bytes")
            raise self._stop(Refusal("HTTP target too long", problem, len(self.url), MAX_TARGET_BYTES))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header. One of the trailer (after a chunked body) is counted and dropped.

        uvicorn would add it to the header, which the application reads after the body: RFC 9110, 6.5.1.
        """
        if self.peer.waits_for == "header":
            super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4
        self._header_fields += 1
        if self._header_bytes > MAX_HEADER_BYTES:
            raise self._stop(_header_too_large(self._header_bytes))
        if self._header_fields > MAX_HEADERS:
            problem = Problem("header_too_large", f"the request has more than {MAX_HEADERS} header fields")
            raise self._stop(Refusal("HTTP header fields", problem, self._header_fields, MAX_HEADERS))

    def on_headers_complete(self) -> None:
        announced = next(
            (int(value) for name, value in self.headers if name == b"content-length" and value.isdigit()), 0
        )
        self._judge_body(announced)
        if self.parser.should_upgrade() and self._should_upgrade():
            self._judge_handshake()
        super().on_headers_complete()
        self._incomplete_bytes = 0
        self.peer.wait_for("body", self.loop.time())

    def _judge_body(self, length: int) -> None:
        """Refuse a body of `length` bytes where its route takes less. Only large bodies need the path."""
        if length <= MAX_FORM_BYTES:
            return
        path = unquote(httptools.parse_url(self.url).path.decode("latin-1"))
        most = most_body_bytes(self.parser.get_method().decode("latin-1"), path)
        if length > most:
            raise self._stop(_body_too_large(length, most))

    def _judge_handshake(self) -> None:
        """Refuse a handshake that the websocket's parser does not take: it would end without an answer."""
        longest = max(len(name) + len(value) for name, value in self.headers)
        if longest > MAX_HEADER_LINE_BYTES:
            raise self._stop(_header_too_large(longest, MAX_HEADER_LINE_BYTES))
        if (
            len(self.url) > MAX_HEADER_LINE_BYTES
            or not self.url.isascii()
            or self.parser.get_method() != b"GET"
            or self.parser.get_http_version() != "1.1"
        ):
            raise self._stop(
                Refusal(
                    "malformed HTTP request",
                    Problem("invalid", "a websocket begins with a GET of HTTP/1.1 for an ASCII path"),
                )
            )

    def on_body(self, body: bytes) -> None:
        self._incomplete_bytes = 0
        self._body_bytes += len(body)
        self._judge_body(self._body_bytes)
        if self._cycles:  # a body that comes after its answer is dropped
            self._held_bytes += len(body)
            of_site = self.peers.hold_body(self.peer, len(body))
            if of_site > MAX_BODIES_OF_ADDRESS:
                problem = Problem(
                    "busy", f"{MAX_BODIES_OF_ADDRESS >> 20} MiB of requests of {self.peer.site} are under way"
                )
                raise self._stop(
                    Refusal("HTTP bodies of one address", problem, of_site, MAX_BODIES_OF_ADDRESS)
                )
            if self.peers.body_bytes > MAX_BODIES_BYTES:
                problem = Problem("busy", f"{MAX_BODIES_BYTES >> 20} MiB of requests are under way")
                raise self._stop(
                    Refusal("HTTP bodies under way", problem, self.peers.body_bytes, MAX_BODIES_BYTES)
                )
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.peer.wait_for("", self.loop.time())

    # Answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app) -> None:
        self._cycles = [cycle]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._cycles = []
        if self.peer.waits_for == "":
            self.peer.since_s = self.loop.time()
        if not self.pipeline:
            self._release_bodies()
        super().on_response_complete()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with the refusal when no other answer has begun, read nothing more, and end."""
        self.peers.refused(
            refusal.cause,
            value=refusal.value,
            limit=refusal.limit,
            who=self.peer.who,
            said=refusal.problem.detail,
        )
        can_answer = (
            not self.pipeline
            and not any(cycle.response_started for cycle in self._cycles)
            and not self.peers.is_crowded(self.peer)
        )
        self._release()
        self.peer.ends_at_s = self.loop.time() + LINGER_SECONDS
        if not can_answer or self.transport.is_closing():
            return self.transport.abort()
        body = refusal.problem.body()
        head = (
            f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\ncache-control: "
            f"no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[refusal.problem.status] + head.encode() + body)
        # Read and drop for a while: a close with unread bytes is a reset, which discards the answer.
        self.transport.write_eof()
        return self.flow.resume_reading()

    def _release(self) -> None:
        """Mark the running and the waiting requests of this connection as disconnected."""
        for cycle in (*self._cycles, *(cycle for cycle, _ in self.pipeline)):
            cycle.disconnected = True
            cycle.message_event.set()
        self._cycles = []
        self.pipeline.clear()
        self._release_bodies()
        self._unset_keepalive_if_required()

    def _release_bodies(self) -> None:
        self.peers.release_body(self.peer, self._held_bytes)
        self._held_bytes = 0


class BoundedWebsocket(OverTls, WebSocketsSansIOProtocol):
    """uvicorn's websocket within the bounds of this module."""

    transport: CountedTransport  # type: ignore[assignment]  # that of the HTTP connection before

    def __init__(self, *arguments, peers: Peers, **named):
        super().__init__(*arguments, **named)
        self.peers = peers
        self.peer: Peer  # from connection_made on
        self._allowance = float(WEBSOCKET_BURST_BYTES)
        self._allowed_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # no other comes
        super().connection_made(transport)
        self.peer = self.peers.peer_of(self.transport)
        self.peer.protocol = self
        self.peer.wait_for("", self.loop.time())

    def data_received(self, data: bytes) -> None:
        now_s = self.loop.time()
        grown = self._allowance + (now_s - self._allowed_s) * WEBSOCKET_BYTES_PER_SECOND
        self._allowance, self._allowed_s = min(grown, WEBSOCKET_BURST_BYTES) - len(data), now_s
        if self._allowance < 0:
            return self._end(
                "websocket flood", WEBSOCKET_BURST_BYTES - round(self._allowance), WEBSOCKET_BURST_BYTES
            )
        super().data_received(data)
        if len(self.frames) > MAX_FRAGMENTS:
            return self._end("websocket fragments", len(self.frames), MAX_FRAGMENTS)
        unsent = self.transport.get_write_buffer_size()
        if unsent > MAX_WEBSOCKET_UNSENT_BYTES:
            self._end("answer not read", unsent, MAX_WEBSOCKET_UNSENT_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.peers.gone(self.transport)

    async def send(self, message) -> None:
        await super().send(message)
        # uvicorn treats a handshake that was answered with a status as one without an answer
        if self.close_sent:
            self.handshake_complete = True

    @property
    def is_idle(self) -> bool:
        """False: a page that is open holds it."""
        return False

    def judge_time(self, now_s: float) -> None:
        """Do nothing: a websocket need not send, and uvicorn's pings find peers that are gone."""

    def _end(self, cause: str, value: int, limit: int) -> None:
        self.peers.refused(cause, value=value, limit=limit, who=self.peer.who)
        self.transport.abort()


def _why_malformed(piece: bytes, error: httptools.HttpParserError) -> str:
    if piece.startswith(b"\x16\x03"):
        return "a TLS client, and this port has no TLS: use http:// or a proxy that has TLS"
    if piece.startswith(b"CONNECT "):
        return "CONNECT is for proxies, and this is none"
    return str(error)


def _header_too_large(found: int, limit: int = MAX_HEADER_BYTES, *, what: str = "header") -> Refusal:
    return Refusal(
        "HTTP header too large",
        Problem("header_too_large", f"the {what} has more than {limit:,} bytes"),
        found,
        limit,
    )


def _body_too_large(found: int, most: int) -> Refusal:
    return Refusal(
        "HTTP body too large",
        Problem("too_large", f"the body has {found:,} bytes or more, allowed are {most:,}"),
        found,
        most,
    )
