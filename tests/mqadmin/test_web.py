"""The server in the broker's loop: two doors, signals left alone, an end in time."""

from __future__ import annotations

import asyncio
import os
import signal
import stat

import pytest

from mqadmin.web import server


async def application(scope, receive, send):
    assert scope["type"] == "http", "lifespan is off"
    kind = b"unix" if scope["server"][1] is None else b"tcp"
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(kind)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": kind})


async def _get(connection) -> bytes:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.rpartition(b"\r\n\r\n")[2]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on either loop: runbroker uses the second."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        return lambda coroutine: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(coroutine)
    return asyncio.run


def test_both_doors_answer_and_the_socket_is_the_owners_alone(tmp_path, run):
    path = tmp_path / "run" / "web.sock"

    async def main():
        served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, path, application=application)
        assert await _get(await asyncio.open_connection("127.0.0.1", served.port)) == b"tcp"
        assert await _get(await asyncio.open_unix_connection(str(path))) == b"unix"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        await served.stop()
        await served.stop()
        assert not path.exists()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", served.port)

    run(main())


def test_signals_stay_as_they_were(tmp_path):
    async def main():
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, application=application)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        await served.stop()

    asyncio.run(main())


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path):
    async def main():
        first = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, application=application)
        with pytest.raises(OSError, match="--web-port"):
            await server.serve(asyncio.get_running_loop(), "127.0.0.1", first.port, application=application)
        await first.stop()

    asyncio.run(main())


def test_a_leftover_socket_is_replaced_and_a_path_too_long_refused(tmp_path):
    path = tmp_path / "web.sock"
    path.write_text("left over")

    async def main():
        served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, path, application=application)
        assert await _get(await asyncio.open_unix_connection(str(path))) == b"unix"
        await served.stop()
        with pytest.raises(OSError, match="shorter --data"):
            await server.serve(
                asyncio.get_running_loop(), "127.0.0.1", 0, tmp_path / ("x" * 200), application=application
            )

    asyncio.run(main())


def test_a_directory_in_the_place_of_the_socket_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "web.sock").mkdir()

    async def main():
        with pytest.raises(
            OSError, match="^/.*web.sock is a directory.*: move it away and start the broker again$"
        ):
            await server.serve(
                asyncio.get_running_loop(), "127.0.0.1", 0, tmp_path / "web.sock", application=application
            )

    asyncio.run(main())


def test_a_stream_that_never_ends_does_not_hold_the_stop(monkeypatch):
    monkeypatch.setattr(server, "GRACE_SECONDS", 0)

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.01)

    async def main():
        served = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, application=endless)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.read(20)
        await asyncio.wait_for(served.stop(), 5)
        writer.close()

    asyncio.run(main())
