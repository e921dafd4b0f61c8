"""TLS on the dashboard's port: each mode, cookies, PROXY prologues, and what ends a connection that does not
get to a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as websocket

from broker_store.config.broker import BrokerSettings
from broker_store.engine.disk.disk import Disk
from broker_store.protocol.tls import client_context
from broker_store.server import tls_server
from broker_store.server.tls_setup import own_names, what_comes_before
from mqadmin.web import first_bytes, over_tls, server
from mqadmin.web.asgi import AllowedHosts
from mqadmin.web.over_tls import SecureCookies
from tests.mqadmin.test_web import run  # noqa: F401 - a fixture
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.waits import LIMIT_S, until

MIB = 1 << 20
GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"


async def shown(scope, receive, send):
    """Answer with what the application sees; an echo for a websocket, 8 MiB at /large."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": f"{scope['scheme']} {event['text']}"})
        return
    length, more = 0, True
    while more:
        event = await receive()
        length += len(event.get("body", b""))
        more = event.get("more_body", False)
    if scope["path"] == "/large":
        body = bytes(8 * MIB)
    else:
        cookies = b"".join(value for name, value in scope["headers"] if name == b"cookie")
        body = json.dumps(
            {
                "scheme": scope["scheme"],
                "client": scope["client"],
                "body": length,
                "cookies": cookies.decode(),
            }
        ).encode()
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"set-cookie", b"mqadmin_session=1; Path=/"),
        (b"set-cookie", b"csrftoken=2; Path=/; Secure"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Port:
    """A served port, and what it refused."""

    def __init__(self, served, before, refused):
        self.served, self.before, self.refused = served, before, refused

    @property
    def causes(self):
        return [cause for cause, _ in self.refused]

    async def connect(self, tls: ssl.SSLContext | None = None, first: bytes = b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.served.port)
        writer.write(first)
        if tls is not None:
            await writer.start_tls(tls)
        return reader, writer

    async def ask(self, sent: bytes, tls=None, first: bytes = b"") -> tuple[int, bytes, bytes]:
        """Return status, head and body of one answer; status 0 if the connection ends without one."""
        reader, writer = await self.connect(tls, first)
        try:
            writer.write(sent)
            async with asyncio.timeout(LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith(b"content-length")
                )
                return int(head.split()[1]), head, await reader.readexactly(length)
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0, b"", b""
        finally:
            writer.transport.abort()


@asynccontextmanager
async def opened(tmp_path, monkeypatch, application=shown, **settings):
    before = what_comes_before(BrokerSettings(**settings), tmp_path / "tls", own_names(()), Disk())
    if before.tls is not None:
        await before.tls.open()
    refused: list = []
    for module in (server, over_tls):
        monkeypatch.setattr(module, "count_refusal", lambda cause, **case: refused.append((cause, case)))
    served = await server.serve(
        asyncio.get_running_loop(),
        "127.0.0.1",
        0,
        tmp_path / "run" / "web.sock",
        application=application,
        before=before,
    )
    try:
        yield Port(served, before, refused)
    finally:
        await served.stop()
        if before.tls is not None:
            before.tls.close()


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
def test_each_mode_on_either_loop(tmp_path, monkeypatch, run, mode):  # noqa: F811
    async def main():
        async with opened(tmp_path, monkeypatch, tls_server_mode=mode) as port:
            status, head, body = await port.ask(GET % (b"/a?b=c", b""))
            if mode == "enforcing":
                assert status == 307 and b"location: https://localhost/a?b=c\r\n" in head
            else:
                assert status == 200 and json.loads(body)["scheme"] == "http"
                assert b"__Secure-" not in head
            tls = client_context(None)
            if mode == "disabled":
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await port.connect(tls)
                assert port.causes == ["malformed HTTP request"]
                return
            status, _, body = await port.ask(GET % (b"/a", b""), tls)
            assert status == 200
            found = json.loads(body)
            assert found["scheme"] == "https" and found["client"][0] == "127.0.0.1"
            assert port.causes == []

    run(main())


def test_large_bodies_and_answers_by_tls(tmp_path, monkeypatch, run):  # noqa: F811
    async def main():
        async with opened(tmp_path, monkeypatch) as port:
            tls = client_context(None)
            body = bytes(2 * MIB)
            sent = b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            status, _, answer = await port.ask(sent + body, tls)
            assert status == 200 and json.loads(answer)["body"] == len(body)
            status, _, answer = await port.ask(GET % (b"/large", b""), tls)
            assert status == 200 and answer == bytes(8 * MIB)

    run(main())


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_websockets_by_tls_and_without(tmp_path, monkeypatch, scheme):
    async with opened(tmp_path, monkeypatch) as port:
        tls = client_context(None) if scheme == "wss" else None
        async with websocket(f"{scheme}://localhost:{port.served.port}/ws/v1/", ssl=tls) as socket:
            for text in ("one", "x" * 4_000):
                await socket.send(text)
                assert await socket.recv() == f"{scheme} {text}"


async def test_what_is_refused_without_tls_when_the_port_enforces_it(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch, tls_server_mode="enforcing") as port:
        for sent in (
            GET % (b"/", b"Authorization: Bearer t\r\n"),
            GET % (b"/api/v1/topics", b""),
            b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
            GET % (b"/ws/v1/", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                               b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"),
        ):  # fmt: skip
            status, _, body = await port.ask(sent)
            assert status == 403 and json.loads(body)["code"] == "tls_required"
        assert port.causes == ["HTTP request without TLS"] * 4
        # A page of a foreign name is not sent anywhere.
        status, head, _ = await port.ask(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert status == 403 and b"location" not in head
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "run" / "web.sock"))
        writer.write(GET % (b"/", b"Authorization: Bearer t\r\n"))
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_cookies_by_tls_are_secure_and_those_without_are_others(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as port:
        cookies = b"Cookie: mqadmin_session=plain; __Secure-mqadmin_session=tls; __Secure-csrftoken=t\r\n"
        status, head, body = await port.ask(GET % (b"/", cookies), client_context(None))
        assert status == 200 and json.loads(body)["cookies"] == "mqadmin_session=tls; csrftoken=t"
        assert b"set-cookie: __Secure-mqadmin_session=1; Path=/; Secure\r\n" in head
        assert b"set-cookie: __Secure-csrftoken=2; Path=/; Secure\r\n" in head
        _, head, body = await port.ask(GET % (b"/", cookies))
        assert json.loads(body)["cookies"].startswith("mqadmin_session=plain;")
        assert b"set-cookie: mqadmin_session=1; Path=/\r\n" in head
        # None was set by TLS: the application gets none.
        _, _, body = await port.ask(GET % (b"/", b"Cookie: csrftoken=t\r\n"), client_context(None))
        assert json.loads(body)["cookies"] == ""


async def test_a_browser_that_knows_http_2_gets_http_1_and_replaced_files_are_used(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as port:
        tls = client_context(None)
        tls.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await port.connect(tls)
        known = writer.get_extra_info("ssl_object")
        assert known.selected_alpn_protocol() == "http/1.1"
        first = known.getpeercert(binary_form=True)
        writer.transport.abort()
        (tmp_path / "tls" / "self-signed.pem").unlink()
        await port.before.tls.renew()
        _, writer = await port.connect(tls)
        assert writer.get_extra_info("ssl_object").getpeercert(binary_form=True) != first
        writer.transport.abort()


@pytest.mark.parametrize("with_tls", [True, False])
async def test_the_client_behind_a_prologue_is_the_one_that_is_seen_and_counted(
    tmp_path, monkeypatch, settings, with_tls
):
    settings.WEB_CONNECTIONS = 2
    prologue = b"PROXY TCP4 192.0.2.%d 10.0.0.1 51000 8080\r\n"
    tls = client_context(None) if with_tls else None
    async with opened(tmp_path, monkeypatch, proxy_protocol_addresses="127.0.0.1") as port:
        _, _, body = await port.ask(GET % (b"/", b""), tls, prologue % 7)
        assert json.loads(body)["client"] == ["192.0.2.7", 51000]
        held = [await port.connect(tls, prologue % 7) for _ in range(2)]
        for _, writer in held:
            writer.write(b"GET ")
        await until(lambda: port.served._port.openings == 0)
        status, _, body = await port.ask(GET % (b"/", b""), tls, prologue % 7)
        assert status == 503 and b"2 connections of 192.0.2.7" in body
        assert port.refused[-1][1]["who"] == "192.0.2.7:51000"
        assert (await port.ask(GET % (b"/", b""), tls, prologue % 8))[0] == 200
        for _, writer in held:
            writer.transport.abort()


async def test_a_prologue_of_an_address_that_no_setting_names_is_no_http(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as port:
        status, _, _ = await port.ask(b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 8080\r\n" + GET % (b"/", b""))
        assert status == 400 and port.causes == ["malformed HTTP request"]


async def test_a_refusal_by_tls_arrives_whole(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as port:
        sent = GET % (b"/", b"X-Long: " + b"a" * 100_000 + b"\r\n")
        status, _, body = await port.ask(sent, client_context(None))
        assert status == 431 and json.loads(body)["code"] == "header_too_large"
        assert port.causes == ["HTTP header too large"]


async def test_what_does_not_get_to_a_request_is_ended_in_time_and_number(tmp_path, monkeypatch):
    monkeypatch.setattr(first_bytes, "MAX_OPENINGS", 4)
    monkeypatch.setattr(tls_server, "MAX_HANDSHAKES", 2)
    async with opened(tmp_path, monkeypatch) as port:
        web = port.served._port
        bad_reader, bad = await port.connect(first=b"\x16\x03\x01\x00\x05hello")
        assert b"HTTP" not in await bad_reader.read()
        assert port.causes == ["TLS"]
        port.refused.clear()
        # The beginning of a handshake: the third ends the first.
        shaking = [await port.connect(first=b"\x16\x03\x01\x02\x00\x01") for _ in range(3)]
        await until(lambda: port.causes == ["too many handshakes"])
        await until(lambda: web.openings == 2)
        port.refused.clear()
        silent = [await port.connect() for _ in range(3)]
        await until(lambda: port.causes == ["too many HTTP connections"] and web.openings == 4)
        port.refused.clear()
        web.sweep(asyncio.get_running_loop().time() + 10.5)
        await until(lambda: web.openings == 0)
        assert port.causes == ["slow TLS handshake"]
        assert (await port.ask(GET % (b"/", b""), client_context(None)))[0] == 200
        for _, writer in (*shaking, *silent, (None, bad)):
            writer.transport.abort()


@pytest.mark.parametrize(("proxies", "refused"), [("", 1), ("127.0.0.1", 0)], ids=["client", "proxy"])
async def test_one_address_has_its_part_of_the_connections_without_a_request_and_a_proxy_has_none(
    tmp_path, monkeypatch, settings, proxies, refused
):
    settings.WEB_CONNECTIONS = 2
    monkeypatch.setattr(server, "LOOPBACK", ())
    async with opened(tmp_path, monkeypatch, proxy_protocol_addresses=proxies) as port:
        silent = [await port.connect() for _ in range(3)]
        await until(lambda: port.served._port.openings + len(port.causes) == 3)
        assert port.causes == ["HTTP connections of one address"] * refused
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: port.served._port.openings == 0 and not port.served._port._of_site)


async def test_the_port_stops_at_once_with_connections_in_each_state(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as port:
        tls = client_context(None)
        held = [await port.connect(), await port.connect(first=b"\x16\x03"), await port.connect(tls)]
        began_s = asyncio.get_running_loop().time()
        await port.served.stop()
        assert asyncio.get_running_loop().time() - began_s < 2.0
        for reader, writer in held:
            with contextlib.suppress(ConnectionResetError):  # how an aborted connection ends
                assert await reader.read() == b""
            writer.transport.abort()


async def test_a_foreign_name_is_answered_400_by_tls(tmp_path, monkeypatch):
    monkeypatch.setattr("mqadmin.web.refused_requests.count_refusal", lambda cause, **case: None)
    async with opened(tmp_path, monkeypatch, application=AllowedHosts(SecureCookies(shown))) as port:
        sent = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        assert (await port.ask(sent, client_context(None)))[0] == 400


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_logs_in_and_its_numbers_move_by_tls_alone(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (make deps installs one)")
    sync_api = pytest.importorskip("playwright.sync_api")
    environment = os.environ | {
        "BROKER_DATA_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "tests.support.dashboard_settings",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.run_fake_dashboard", "0", "running", "enforcing"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        address = process.stdout.readline().split()[1].rstrip("/")
        assert address.startswith("https://")
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            context = browser.new_context(ignore_https_errors=True)
            page = context.new_page()
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            sockets: list[str] = []
            page.on("websocket", lambda socket: sockets.append(socket.url))
            page.goto(address.replace("https://", "http://") + "/")  # redirected
            assert page.url.startswith(address)
            page.fill("#id_username", "admin")
            page.fill("#id_password", "admin-password")
            page.click("button[type=submit]")
            before = page.inner_text("#log-position")
            page.wait_for_function(
                "before => document.querySelector('#log-position').textContent !== before",
                arg=before,
                timeout=8_000,
            )
            cookies = {cookie["name"]: cookie["secure"] for cookie in context.cookies()}
            assert cookies["__Secure-mqadmin_session"] and cookies["__Secure-csrftoken"]
            assert not any(not secure for secure in cookies.values())
            assert sockets and all(url.startswith("wss://") for url in sockets)
            assert complaints == []
            browser.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()
