"""What a peer may hold of the dashboard's port, tried over real sockets; time passes by a sweep at a later
moment."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from django.conf import settings

from broker_store.rest.http import MAX_FORM_BYTES
from broker_store.sql92.parser import MAX_CHARACTERS
from mqadmin.web import bounded_http, server
from mqadmin.web import peers as bounds
from mqadmin.web.trusted_proxies import LOOPBACK, connection_site, proxies_of
from tests.support.waits import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
MIB = 1 << 20


class World:
    """A server on a port of its own, with an application that answers when it is let, and what was
    refused."""

    def __init__(self, application, tmp_path):
        self.refused: list[tuple[str, dict]] = []
        self.application, self.tmp_path = application, tmp_path
        self.writers: list[asyncio.StreamWriter] = []
        self.peers: bounds.Peers = None  # type: ignore[assignment]

    async def begin(
        self, monkeypatch, max_connections: int, max_of_address: int, unbounded: tuple | None
    ) -> None:
        monkeypatch.setattr(server, "count_refusal", lambda cause, **case: self.refused.append((cause, case)))

        def peers(refused, **given):
            given |= {"max_of_address": max_of_address} | (
                {} if unbounded is None else {"unbounded": unbounded}
            )
            self.peers = bounds.Peers(refused, max_connections, **given)
            return self.peers

        monkeypatch.setattr(server, "Peers", peers)
        self.socket = self.tmp_path / "run" / "web.sock"
        self.served = await server.serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, self.socket, application=self.application
        )

    async def end(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        await self.served.stop()

    async def connect(
        self, sent: bytes = b"", *, local: bool = False, of: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        count = len(list(self.peers))
        reader, writer = await (
            asyncio.open_unix_connection(str(self.socket))
            if local
            else asyncio.open_connection("127.0.0.1", self.served.port, local_addr=(of, 0))
        )
        self.writers.append(writer)
        writer.write(sent)
        await until(
            lambda: (
                len(list(self.peers)) > count
                or self.served._port.openings > 0
                or reader._eof  # it was answered and ended at once
                or count > 0
            )
        )
        return reader, writer

    async def ask(self, sent: bytes) -> bytes:
        """All that is answered until the server ends the connection."""
        reader, writer = await self.connect(sent)
        return await reader.read()

    def later(self, seconds: float) -> None:
        now_s = asyncio.get_running_loop().time() + seconds
        self.served._port.sweep(now_s)
        self.peers.sweep(now_s)

    def causes(self) -> list[str]:
        return [cause for cause, _ in self.refused]


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def plain(scope, receive, send, body=b"answered"):
    """Reads the body as Django does, answers, and for a websocket takes whatever comes."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    length, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        length += len(event.get("body", b""))
        more = event.get("more_body", False)
    answer = body + b" %d" % length
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(answer)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def open_world(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)

    @asynccontextmanager
    async def opened(
        application=plain,
        max_connections: int = bounds.MAX_CONNECTIONS,
        max_of_address: int = 200,
        unbounded: tuple | None = None,
    ) -> AsyncIterator[World]:
        world = World(application, tmp_path)
        await world.begin(monkeypatch, max_connections, max_of_address, unbounded)
        try:
            yield world
        finally:
            await world.end()
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], (
            "who is refused writes no log"
        )

    return opened


async def test_a_header_that_drips_ends_after_ten_seconds_with_408(open_world):
    async with open_world() as world:
        opened = [await world.connect(b"GET / HTTP/1.1\r\nHost: loc") for _ in range(30)]
        await until(lambda: sum(peer.waits_for == "header" for peer in world.peers) == 30)
        world.later(5.0)  # from now; the machine may have taken some of the ten seconds itself
        assert len(list(world.peers)) == 30 and world.refused == []
        for _, writer in opened:
            writer.write(b"a")  # a byte more changes nothing: the time counts from the first
        await asyncio.sleep(0)
        world.later(10.1)
        answers = [await reader.read() for reader, _ in opened]
        assert {status_of(answer) for answer in answers} == {408}
        assert json.loads(answers[0].partition(b"\r\n\r\n")[2])["code"] == "request_timeout"
        assert world.causes() == ["slow HTTP header"] * 30
        assert world.refused[0][1]["limit"] == 10 and world.refused[0][1]["who"].startswith("127.0.0.1:")


async def test_a_connection_without_a_byte_ends_too_and_is_no_refusal(open_world):
    async with open_world() as world:
        reader, _ = await world.connect()
        world.later(10.1)
        assert await reader.read() == b"" and world.refused == []


async def test_a_connection_that_rests_between_two_requests_stays_and_a_blank_line_does_not_keep_it(
    open_world,
):
    async with open_world() as world:
        reader, writer = await world.connect(GET)
        await reader.readuntil(b"answered 0")
        world.later(25.0)
        writer.write(GET)
        await reader.readuntil(b"answered 0")
        writer.write(b"\r\n")
        await until(lambda: [peer.waits_for for peer in world.peers] == ["header"])
        world.later(10.1)
        assert status_of(await reader.read()) == 408


UPGRADE = (
    b"GET /ws/v1/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "
    b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


async def test_the_longest_sql92_filter_has_room_in_an_address(open_world):
    """The page and REST take it in the query."""
    async with open_world() as world:
        target = b"/messages/?by=offset&topic=orders&sql=" + b"%28" * MAX_CHARACTERS
        reader, _ = await world.connect(
            b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert status_of(await reader.read()) not in (414, 431)


@pytest.mark.parametrize(
    ("sent", "status", "cause"),
    [
        (b"GET /" + b"a" * 26_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "HTTP target too long"),
        (b"GET /" + b"a" * (16 * MIB), 414, "HTTP target too long"),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 40_000 + b"\r\n\r\n", 431, "HTTP header too large"),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * MIB, 431, "HTTP header too large"),
        (b"GET / HTTP/1.1\r\n" + b"a" * MIB, 431, "HTTP header too large"),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(102)), 431, "HTTP header fields"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 16777217\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST /api/v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            b"1000000000000\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999999999\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2621441\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST /api/v1/topics/orders/messages/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            b"2621441\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"PUT /api/v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            b"2621441\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (
            b"POST http://localhost/a?/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            b"2621441\r\n\r\n",
            413,
            "HTTP body too large",
        ),
        (UPGRADE + b"Content-Length: 1000000000000\r\n\r\n", 413, "HTTP body too large"),
        (b"GET / SMTP\r\n\r\n", 400, "malformed HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed HTTP request"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400, "malformed HTTP request"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "malformed HTTP request",
        ),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed HTTP request"),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed HTTP request"),
    ],
)
async def test_what_is_too_large_or_no_http_is_answered_at_once_and_counted(open_world, sent, status, cause):
    async with open_world() as world:
        reader, writer = await world.connect(sent)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert (status_of(answer), world.causes()) == (status, [cause])
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == status
        assert b"connection: close" in answer
        assert world.peers.body_bytes == 0


@pytest.mark.parametrize(
    "target", ["/api/v1/topics/orders/messages", "http://localhost/api/v1/topics/or%64ers/messages?a=1"]
)
async def test_messages_may_have_larger_bodies_than_all_else(open_world, target):
    async with open_world() as world:
        reader, writer = await world.connect(
            f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {16 * MIB}\r\n\r\n".encode()
            + bytes(16 * MIB)
        )
        await reader.readuntil(b"answered %d" % (16 * MIB))
        assert world.refused == []


@pytest.mark.parametrize(("path", "chunks"), [("/", 3), ("/api/v1/topics/orders/messages", 17)])
async def test_a_chunked_body_ends_at_the_bound_and_its_application_hears_that_it_has_ended(
    open_world, path, chunks
):
    heard = []

    async def application(scope, receive, send):
        while (event := await receive())["type"] == "http.request" and event["more_body"]:
            pass
        heard.append(event["type"])

    async with open_world(application) as world:
        reader, writer = await world.connect(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        chunk = b"%x\r\n" % MIB + bytes(MIB) + b"\r\n"
        for _ in range(chunks):
            writer.write(chunk)
            await writer.drain()
        assert status_of(await reader.read()) == 413
        await until(lambda: heard == ["http.disconnect"])
        assert world.causes() == ["HTTP body too large"] and world.peers.body_bytes == 0


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"0\r\nX: " + b"a" * MIB, "HTTP header too large"),
        (b"0\r\n" + b"a" * MIB, "HTTP header too large"),
        (b"0\r\n" + b"X: %s\r\n" % (b"a" * 5_000) * 100, "HTTP header too large"),
        (b"0\r\n" + b"X: a\r\n" * 200, "HTTP header fields"),
        (b"1;a=" + b"a" * MIB, "HTTP header too large"),
        (b"1\r\na\r\n2;a=" + b"a" * MIB, "HTTP header too large"),
    ],
    ids=["value", "name", "bytes", "fields", "extension", "second extension"],
)
async def test_what_stands_between_and_behind_the_chunks_has_the_bounds_of_a_header(open_world, sent, cause):
    """A trailer field without end was copied once for each piece: one connection held the loop for most of 30
    s."""
    async with open_world() as world:
        reader, writer = await world.connect(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + sent
        )
        answer = await asyncio.wait_for(reader.read(), 10)
        assert (status_of(answer), world.causes()) == (431, [cause])


async def test_a_trailer_field_is_no_header_field(open_world):
    """RFC 9110, 6.5.1: a field that came late would pass what was judged by the header."""
    seen = []

    async def application(scope, receive, send):
        await plain(scope, receive, send)
        seen.append([name for name, _ in scope["headers"]])

    async with open_world(application) as world:
        reader, _ = await world.connect(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n1\r\na\r\n0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n" + GET
        )
        await reader.readuntil(b"answered 1")
        await reader.readuntil(b"answered 0")
        assert seen == [[b"host", b"transfer-encoding"], [b"host"]] and world.refused == []


async def test_a_body_that_drips_ends_after_thirty_seconds_with_408(open_world):
    async with open_world() as world:
        reader, writer = await world.connect(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\na"
        )
        await until(lambda: [peer.waits_for for peer in world.peers] == ["body"])
        world.later(29.9)
        assert world.refused == []
        world.later(30.1)
        assert status_of(await reader.read()) == 408 and world.causes() == ["slow HTTP body"]


async def test_a_body_that_nobody_reads_is_not_the_peers_fault(open_world):
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await go_on.wait()
        await plain(scope, receive, send)

    async with open_world(slow) as world:
        reader, writer = await world.connect(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % MIB + bytes(MIB)
        )
        await until(lambda: any(peer.protocol.flow.read_paused for peer in world.peers))
        world.later(40.0)
        go_on.set()
        assert (await reader.readuntil(b"answered 1048576")) and world.refused == []


async def test_the_bodies_of_one_address_are_bounded_and_given_back(open_world, monkeypatch):
    monkeypatch.setattr(bounded_http, "MAX_BODIES_OF_ADDRESS", 100_000)
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await go_on.wait()
        await plain(scope, receive, send)

    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000)
    async with open_world(slow, unbounded=()) as world:
        first, _ = await world.connect(request)
        await until(lambda: world.peers.body_bytes == 60_000)
        assert status_of(await world.ask(request)) == 503
        assert world.causes() == ["HTTP bodies of one address"] and world.refused[0][1]["limit"] == 100_000
        other, _ = await world.connect(request, of="127.0.0.2")
        await until(lambda: world.peers.body_bytes == 120_000)
        go_on.set()
        for reader in (first, other):
            await reader.readuntil(b"answered 60000")
        await until(lambda: world.peers.body_bytes == 0)
        assert not world.peers._bodies_of_site


async def test_all_bodies_together_are_bounded_and_given_back(open_world, monkeypatch):
    monkeypatch.setattr(bounded_http, "MAX_BODIES_BYTES", 100_000)
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await go_on.wait()
        await plain(scope, receive, send)

    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000)
    async with open_world(slow) as world:
        first, _ = await world.connect(request)
        await until(lambda: world.peers.body_bytes == 60_000)
        assert status_of(await world.ask(request)) == 503 and world.causes() == ["HTTP bodies under way"]
        gone, writer = await world.connect(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n" + bytes(30_000)
        )
        await until(lambda: world.peers.body_bytes == 90_000)
        writer.transport.abort()
        await until(lambda: world.peers.body_bytes == 60_000)
        go_on.set()
        await first.readuntil(b"answered 60000")
        await until(lambda: world.peers.body_bytes == 0)


async def test_requests_in_advance_are_bounded_and_those_within_are_answered_in_order(open_world):
    async with open_world() as world:
        reader, writer = await world.connect(GET * bounded_http.MAX_PIPELINED)
        for _ in range(bounded_http.MAX_PIPELINED):
            await reader.readuntil(b"answered 0")
        assert world.refused == []
        running = []

        async def waits(scope, receive, send):
            running.append(1)
            while (await receive())["type"] != "http.disconnect":
                pass
            running.pop()

        world.served._server.config.loaded_app = waits
        reader, writer = await world.connect(GET * 5_000)
        with pytest.raises(ConnectionError):
            await reader.read()
        assert world.causes() == ["pipelined HTTP requests"]
        await until(lambda: running == [])


async def test_a_full_port_answers_503_and_the_local_socket_goes_on(open_world):
    async with open_world(max_connections=3) as world:
        for _ in range(3):
            await world.connect(b"GET ")
        await until(lambda: len(list(world.peers)) == 3)
        assert status_of(await world.ask(b"G")) == 503
        assert world.causes() == ["too many HTTP connections"] and world.refused[0][1]["limit"] == 3
        reader, _ = await world.connect(GET, local=True)
        await reader.readuntil(b"answered 0")


async def test_a_full_port_ends_a_connection_that_rests_for_one_that_asks(open_world):
    async with open_world(max_connections=2) as world:
        resting, _ = await world.connect(GET)
        await resting.readuntil(b"answered 0")
        await world.connect(b"GET ")
        reader, _ = await world.connect(GET)
        await reader.readuntil(b"answered 0")
        assert await resting.read() == b"" and world.refused == []
        assert len(list(world.peers)) == 2


async def test_300_slow_clients_of_one_address_leave_room_for_others(open_world):
    """They filled the port, and clients of other addresses were refused."""
    async with open_world(max_connections=250, unbounded=()) as world:
        for _ in range(300):
            await world.connect(b"GET ", of="127.0.0.2")
        await until(lambda: world.causes() == ["HTTP connections of one address"] * 100)
        case = world.refused[0][1]
        assert (case["value"], case["limit"]) == (201, 200) and case["said"].startswith(
            "200 connections of 127.0.0.2 are open"
        )
        await until(lambda: len(list(world.peers)) <= 200 + bounds.MAX_ADDRESS_LINGERING)
        reader, _ = await world.connect(GET, of="127.0.0.3")
        await reader.readuntil(b"answered 0")
        world.later(bounded_http.LINGER_SECONDS)
        await until(lambda: len(list(world.peers)) == 201)


async def test_an_address_beyond_its_part_is_answered_503_and_its_resting_connection_makes_room(open_world):
    async with open_world(max_of_address=2, unbounded=()) as world:
        resting, _ = await world.connect(GET)
        await resting.readuntil(b"answered 0")
        other, _ = await world.connect(GET, of="127.0.0.2")
        await other.readuntil(b"answered 0")
        await world.connect(b"GET ")
        reader, writer = await world.connect(GET)
        await reader.readuntil(b"answered 0")
        assert await resting.read() == b"" and world.refused == [] and len(list(world.peers)) == 3
        writer.write(b"GET ")
        await until(lambda: sum(peer.waits_for == "header" for peer in world.peers) == 2)
        answer = await world.ask(b"G")
        assert status_of(answer) == 503 and b"BROKER_WEB_CONNECTIONS" in answer


@pytest.mark.parametrize(
    "bounds", [{"max_of_address": 2}, {"max_of_address": 0, "unbounded": ()}], ids=["loopback", "no bound"]
)
async def test_loopback_has_no_part_and_a_bound_of_0_is_none(open_world, bounds):
    async with open_world(**bounds) as world:
        opened = [await world.connect(GET) for _ in range(20)]
        for reader, _ in opened:
            await reader.readuntil(b"answered 0")
        assert world.refused == [] and len(list(world.peers)) == 20


def test_connections_count_by_address_by_ipv6_site_and_not_for_proxies():
    unbounded = (*LOOPBACK, *proxies_of(["10.0.0.0/24"]))
    sites = {
        peer: connection_site(peer, unbounded)
        for peer in (
            "203.0.113.9",
            "::ffff:203.0.113.9",
            "2001:db8::1",
            "2001:db8::2",
            "10.0.0.7",
            "::1",
            "127.0.0.9",
        )
    }
    assert list(sites.values()) == [
        "203.0.113.9",
        "203.0.113.9",
        "2001:db8::/64",
        "2001:db8::/64",
        None,
        None,
        None,
    ]


async def test_the_setting_and_the_proxies_reach_the_door(monkeypatch, settings):
    given = {}
    monkeypatch.setattr(
        server, "Peers", lambda refused, **more: given.update(more) or bounds.Peers(refused, **more)
    )
    settings.WEB_CONNECTIONS, settings.TRUSTED_PROXIES = 7, proxies_of(["10.0.0.1"])
    served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, application=plain)
    await served.stop()
    assert given == {"max_of_address": 7, "unbounded": (*LOOPBACK, *settings.TRUSTED_PROXIES)}


async def test_those_who_are_told_that_there_is_no_room_are_bounded_too(open_world, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_LINGERING", 4)
    async with open_world(max_connections=1) as world:
        await world.connect(b"GET ")
        opened = [await world.connect(b"GET ") for _ in range(20)]
        await until(lambda: len(world.refused) == 20)
        await until(lambda: len(list(world.peers)) <= 5)
        world.later(bounded_http.LINGER_SECONDS)
        await until(lambda: len(list(world.peers)) == 1)
        assert len(opened) == 20


def large_answer(size: int):
    async def large(scope, receive, send):
        await plain(scope, receive, send, bytes(size))

    return large


async def begin_to_read_nothing(world: World) -> tuple[asyncio.StreamReader, bounds.Peer]:
    """One that asked for more than the kernel's buffers take and reads none of it."""
    reader, _ = await world.connect(GET)
    await until(lambda: any(peer.transport.get_write_buffer_size() for peer in world.peers))
    world.later(0.0)
    await until(lambda: reader._paused)
    [peer] = world.peers
    await until(lambda taken=[-1]: taken[-1] == peer.transport.taken or taken.append(peer.transport.taken))
    world.later(0.0)
    return reader, peer


async def read_until_taken(reader: asyncio.StreamReader, peer: bounds.Peer, count: int) -> None:
    taken = peer.transport.taken
    while peer.transport.taken < taken + count:
        await reader.read(16 << 10)


async def test_who_does_not_read_an_answer_ends_after_a_minute_and_who_reads_slowly_does_not(open_world):
    """Slowly is 64 KiB a minute. The kernel's buffer takes megabytes, so for most of that time nothing leaves
    the broker's."""
    async with open_world(large_answer(12 * MIB)) as world:
        reader, peer = await begin_to_read_nothing(world)
        world.later(59.0)
        for seconds in (60, 120, 180):
            await read_until_taken(reader, peer, bounds.MIN_TAKEN_BYTES)
            world.later(seconds)
        assert world.refused == [] and len(list(world.peers)) == 1
        world.later(241.0)
        assert world.causes() == ["answer not read"] and world.refused[0][1]["limit"] == 60
        await until(lambda: list(world.peers) == [])


async def test_who_reads_a_little_now_and_then_ends_too(open_world):
    """A byte a minute held a connection and its answer for years."""
    async with open_world(large_answer(12 * MIB)) as world:
        reader, peer = await begin_to_read_nothing(world)
        unsent = peer.transport.get_write_buffer_size()
        world.later(0.0)
        # Something leaves the broker's buffer, and that was enough
        while peer.transport.get_write_buffer_size() == unsent:
            await reader.read(1 << 10)
        peer.taken = peer.transport.taken - bounds.MIN_TAKEN_BYTES + 1  # in the minute before
        world.later(61.0)
        assert world.causes() == ["answer not read"]


async def test_unread_answers_of_all_are_bounded_and_the_largest_ends(open_world, monkeypatch):
    async def large(scope, receive, send):
        await plain(scope, receive, send, bytes(12 * MIB if scope["path"] == "/large" else 9 * MIB))

    async with open_world(large) as world:
        for path in (b"/", b"/large", b"/"):
            await world.connect(GET.replace(b"/", path, 1))
        await until(lambda: sum(peer.transport.get_write_buffer_size() > 0 for peer in world.peers) == 3)
        sizes = sorted(peer.transport.get_write_buffer_size() for peer in world.peers)
        monkeypatch.setattr(bounds, "MAX_UNSENT_BYTES", sum(sizes) - 1)
        world.later(1.0)
        assert world.causes() == ["unread answers"]
        await until(
            lambda: sorted(peer.transport.get_write_buffer_size() for peer in world.peers) == sizes[:2]
        )


async def test_an_upgrade_to_what_is_not_there_is_answered_without_it(open_world):
    async with open_world() as world:
        answer = await world.ask(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        )
        assert status_of(answer) == 200 and world.refused == []


# -- websockets

SHAKE = (
    b"GET /ws/v1/%s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "
    b"websocket\r\nSec-WebSocket-Version: 13\r\n%sSec-WebSocket-Key: %s\r\n\r\n"
)
shake = functools.partial(lambda path=b"", more=b"": SHAKE % (path, more, base64.b64encode(os.urandom(16))))


def frame(opcode: int, data: bytes = b"", *, final: bool = True) -> bytes:
    head = bytes([opcode | (0x80 if final else 0)])
    return (
        head
        + (bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2))
        + bytes(4)
        + data
    )


async def websocket(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await world.connect(shake())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_a_websocket_stays_while_nothing_comes_and_counts_among_the_connections(open_world):
    async with open_world(max_connections=2) as world:
        await websocket(world)
        await websocket(world)
        world.later(3_600)
        assert len(list(world.peers)) == 2
        assert status_of(await world.ask(GET)) == 503


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (frame(1, b"x") * 60_000, "websocket flood"),
        (frame(9) * 60_000, "websocket flood"),
        (frame(2, b"x", final=False) + frame(0, final=False) * 100, "websocket fragments"),
    ],
)
async def test_a_flood_of_frames_ends_its_websocket(open_world, sent, cause):
    async with open_world() as world:
        reader, writer = await websocket(world)
        writer.write(sent)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                await reader.readexactly(1 << 16)
        assert world.causes() == [cause]


async def test_a_websocket_that_never_reads_ends(open_world):
    async def talks(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "bytes": bytes(MIB)})

    async with open_world(talks) as world:
        await websocket(world)
        await until(lambda: any(peer.transport.get_write_buffer_size() for peer in world.peers))
        world.later(0.0)
        sizes = [0]
        while sizes[-1] != (size := sum(peer.transport.get_write_buffer_size() for peer in world.peers)):
            sizes.append(size)
            await asyncio.sleep(0.05)
        world.later(1.0)
        assert max(sizes) <= 2 * MIB
        world.later(70.0)
        assert world.causes() == ["answer not read"]
        await until(lambda: list(world.peers) == [])


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (shake(b"\xff"), 400),
        (shake(b"?" + b"a" * 8_150), 400),
        (shake(b"", b"Cookie: " + b"a" * 9_000 + b"\r\n"), 431),
        (shake().replace(b"GET", b"POST"), 400),
        (shake().replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (shake().replace(b"Sec-WebSocket-Key", b"X-Key"), 400),
        (shake().replace(b"Version: 13", b"Version: 12"), 400),
    ],
)
async def test_a_handshake_that_the_second_parser_does_not_take_is_answered(
    open_world, request_bytes, status
):
    async with open_world() as world:
        assert status_of(await asyncio.wait_for(world.ask(request_bytes), 5)) == status


def test_a_bound_of_an_address_that_is_no_number_of_connections_stops_the_start(tmp_path):
    environment = os.environ | {"BROKER_WEB_CONNECTIONS": "-1", "BROKER_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "import mqadmin.settings"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (
        done.returncode
        and "BROKER_WEB_CONNECTIONS is -1, expected 0 (no bound) or a number of connections" in done.stderr
    )


def test_django_takes_bodies_of_forms_to_the_same_bound():
    assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE == MAX_FORM_BYTES
