"""Requests that go no further than the application's door, asked of the whole application over TCP and the
local socket."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_store.rest.callers import Caller
from mqadmin.web import server, tokens
from mqadmin.web.asgi import KeptThreads
from tests.support.http_client import ask

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESSES = (
    "GET /login/",
    "GET /api/v1/health",
    "GET /metrics",
    "GET /static/css/dashboard.css",
    "GET /api/v1/topics/orders/queues/0/messages",
    "POST /api/v1/topics/orders/messages",
    "GET /nowhere",
)


@pytest.fixture
async def door(fake_cluster, tmp_path, caplog):
    """(what a request is answered over TCP, over the local socket), each the status and the body."""
    from mqadmin.web.asgi import application

    caplog.set_level(logging.WARNING)
    served = await server.serve(
        asyncio.get_running_loop(), "127.0.0.1", 0, tmp_path / "web.sock", application=application
    )

    async def asked(connecting, lines: str) -> tuple[int, bytes]:
        reader, writer = await connecting
        if "Upgrade" not in lines:
            lines = lines.replace("\n", "\nConnection: close\n", 1)
        writer.write(lines.replace("\n", "\r\n").encode() + (b"" if "\n\n" in lines else b"\r\n\r\n"))
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]

    yield (
        lambda lines: asked(asyncio.open_connection("127.0.0.1", served.port), lines),
        lambda lines: asked(asyncio.open_unix_connection(str(tmp_path / "web.sock")), lines),
    )
    await served.stop()


def _lines(caplog) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("django", "uvicorn", "mqadmin"))
    ]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_under_another_name_nothing_is_answered_and_nothing_is_logged(
    door, fake_cluster, caplog, monkeypatch, address
):
    monkeypatch.setattr(tokens.TABLE, "caller", lambda token, now_ms: Caller("token:x", "admin"))
    over_tcp, _ = door
    for host in (
        "Host: evil.example",
        "Host: evil.example:8080",
        "Host: localhost.evil.example",
        "Host: localhost\nHost: evil.example",
        "Host: ",
        "Host: [::1",
        "X: no host",
    ):
        status, body = await over_tcp(f"{address} HTTP/1.1\n{host}\nAuthorization: Bearer x")
        assert (status, json.loads(body)["code"]) == (400, "invalid"), host
    assert [cause for cause, _ in fake_cluster.refused] == ["wrong Host"] * 7
    assert fake_cluster.refused[0][1]["who"].startswith("127.0.0.1:")
    assert _lines(caplog) == []


async def test_allowed_names_and_the_local_socket_under_any_name_are_answered(door, fake_cluster):
    over_tcp, over_socket = door
    for host in ("localhost", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"):
        assert (await over_tcp(f"GET /api/v1/health HTTP/1.1\nHost: {host}"))[0] == 200
    for host in ("Host: evil.example", "X: no host"):
        assert (await over_socket(f"GET /api/v1/health HTTP/1.1\n{host}"))[0] == 200
    assert fake_cluster.refused == []


UPGRADE = (
    "\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: "
    "dGhlIHNhbXBsZSBub25jZQ=="
)


@pytest.mark.parametrize(
    ("address", "host", "origin", "status"),
    [
        ("/ws/v2/", "localhost", "http://localhost", 404),
        ("/", "localhost", "http://localhost", 404),
        ("/ws/v1", "localhost", "http://localhost", 404),
        ("/ws/v1//", "localhost", "http://localhost", 404),
        ("/ws/v1/", "evil.example", "http://localhost", 400),
        ("/ws/v1/", "localhost", "http://[", 403),
        ("/ws/v1/", "localhost", "http://evil.example", 403),
    ],
)
async def test_a_websocket_that_is_not_ours_is_answered_and_leaves_no_traceback(
    door, caplog, address, host, origin, status
):
    over_tcp, _ = door
    answer, _ = await over_tcp(f"GET {address} HTTP/1.1\nHost: {host}\nOrigin: {origin}{UPGRADE}")
    assert answer == status
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO] == []


async def test_what_django_refuses_for_securitys_sake_is_counted_without_a_traceback(
    door, fake_cluster, capfd
):
    over_tcp, _ = door
    fields = "&".join(f"f{number}=1" for number in range(1_500))
    form = (
        f"POST /login/ HTTP/1.1\nHost: localhost\nContent-Type: "
        f"application/x-www-form-urlencoded\nContent-Length: {len(fields)}\nCookie: csrftoken={'a' * 32}"
    )
    status, _ = await over_tcp(f"{form}\n\n{fields}")
    assert status == 400
    status, _ = await over_tcp("POST /login/ HTTP/1.1\nHost: localhost\nContent-Length: 0")
    assert status == 403
    assert [cause for cause, _ in fake_cluster.refused] == ["suspicious HTTP request", "CSRF check"]
    assert "Traceback" not in capfd.readouterr().err


async def test_requests_that_are_not_answered_yet_are_bounded_and_the_local_socket_is_not(
    fake_cluster, monkeypatch
):
    monkeypatch.setattr(KeptThreads, "MAX_REQUESTS", 2)
    go_on, begun, finish = asyncio.Event(), [], asyncio.Event()

    async def application(scope, receive, send):
        begun.append(scope["path"])
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await finish.wait()  # who reads slowly
        await send({"type": "http.response.body", "body": b""})

    kept = KeptThreads(application)
    tasks = [asyncio.ensure_future(ask(kept, "GET", f"/{number}")) for number in range(2)]
    while len(begun) < 2:
        await asyncio.sleep(0)
    assert (await ask(kept, "GET", "/more")).status == 503
    assert [(cause, case["limit"]) for cause, case in fake_cluster.refused] == [
        ("HTTP requests under way", 2)
    ]
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(ask(kept, "GET", "/later")))
    while len(begun) < 3:
        await asyncio.sleep(0)
    finish.set()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
    assert len(kept._idle) == 3 and all(isinstance(executor, ThreadPoolExecutor) for executor in kept._idle)


async def test_one_address_has_half_of_the_requests_that_are_not_answered_yet(fake_cluster, monkeypatch):
    monkeypatch.setattr(KeptThreads, "MAX_REQUESTS_OF_ADDRESS", 2)
    go_on, begun, answers = asyncio.Event(), [], []

    async def application(scope, receive, send):
        begun.append(scope["client"][0])
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(event):
        answers.append(event.get("status"))

    def request(host: str):
        return kept({"type": "http", "client": (host, 5_000), "server": ("10.0.0.1", 8080)}, None, send)

    kept = KeptThreads(application)
    tasks = [asyncio.ensure_future(request("203.0.113.9")) for _ in range(2)]
    tasks += [asyncio.ensure_future(request(host)) for host in ("203.0.113.10", *["127.0.0.1"] * 3)]
    while len(begun) < 6:
        await asyncio.sleep(0)
    await request("203.0.113.9")
    assert answers[0] == 503
    assert [(cause, case["value"], case["limit"]) for cause, case in fake_cluster.refused] == [
        ("HTTP requests of one address", 3, 2)
    ]
    go_on.set()
    await asyncio.gather(*tasks)
    assert not kept._of_site and kept._under_way == 0
