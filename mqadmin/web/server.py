"""uvicorn inside the loop that already runs: the dashboard shares the broker's process and thread.

uvicorn expects to own the process: it handles the signals, raises the caught one again after it has stopped,
and ends only after all responses. Here runbroker owns the process, so uvicorn handles no signals, `stop` ends
it, and open streams are cut after `GRACE_SECONDS`. Lifespan is off: the pages must answer while the store
recovers.

It listens at a TCP port, with TLS and without (first_bytes.py, over_tls.py), and at a Unix socket (mode 0600,
in a directory of mode 0700) for commands and jobs of the same user. Limits of connections are in peers.py and
bounded_http.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
from pathlib import Path

import uvicorn
from django.conf import settings

from broker_store.facts import memory
from broker_store.facts.memory import COUNTED, Growing
from broker_store.server.listener import NOTHING_BEFORE, Before
from mqadmin.web.bounded_http import MAX_BODIES_BYTES, BoundedWebsocket
from mqadmin.web.first_bytes import WebPort
from mqadmin.web.over_tls import OnlyTls, SecureCookies
from mqadmin.web.peers import MAX_UNSENT_BYTES, Peers
from mqadmin.web.refusals import count_refusal
from mqadmin.web.trusted_proxies import LOOPBACK

GRACE_SECONDS = 2  # uvicorn takes whole seconds; runbroker has five to stop
BACKLOG = 512
MAX_SOCKET_PATH_BYTES = 107
MAX_WEBSOCKET_FRAME_BYTES = 64 << 10
KEEP_ALIVE_SECONDS = 30


class Web:
    """The listening dashboard; `port` is the bound one, also when 0 was given."""

    def __init__(
        self,
        server: uvicorn.Server,
        sockets: list[socket.socket],
        task: asyncio.Task,
        unix_socket_path: Path | None,
        port: WebPort,
        peers: Peers,
    ):
        self._count_no_more = memory.count_beside(memory_parts(peers))
        self.port: int = sockets[0].getsockname()[1]
        self._server = server
        self._sockets = sockets
        self._task = task
        self._unix_socket_path = unix_socket_path
        self._port = port

    @property
    def ended(self) -> asyncio.Task:
        """The task of the server, done when it has stopped."""
        return self._task

    async def stop(self) -> None:
        """Finish the running requests, close the websockets with 1012, stop listening. May be called
        twice."""
        self._count_no_more()
        self._server.should_exit = True
        self._port.close()
        done, _ = await asyncio.wait({self._task}, timeout=GRACE_SECONDS + 1)
        if not done:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        if self._unix_socket_path is not None:
            self._unix_socket_path.unlink(missing_ok=True)


async def serve(
    loop: asyncio.AbstractEventLoop,
    host: str,
    port: int,
    unix_socket_path: Path | None = None,
    *,
    application=None,
    before: Before = NOTHING_BEFORE,
) -> Web:
    """Start listening; return when both addresses answer. `before` is what the port of TCP reads before a
    request. Raises OSError with a sentence when one is taken."""
    if application is None:
        from mqadmin.web.asgi import application
    peers = Peers(
        count_refusal,
        max_of_address=settings.WEB_CONNECTIONS,
        unbounded=(*LOOPBACK, *settings.TRUSTED_PROXIES),
    )
    web_port = WebPort(peers, before)
    application = SecureCookies(application)
    if before.tls is not None and before.tls.is_required:
        application = OnlyTls(application)
    sockets = [_tcp_socket(host, port)]
    if unix_socket_path is not None:
        try:
            sockets.append(_unix_socket(unix_socket_path))
        except OSError:
            sockets[0].close()
            raise
    config = uvicorn.Config(
        application,
        lifespan="off",
        http=web_port.protocol,  # type: ignore[arg-type]  # called as a class is
        ws=functools.partial(BoundedWebsocket, peers=peers),  # type: ignore[arg-type]  # the same
        ws_max_size=MAX_WEBSOCKET_FRAME_BYTES,
        # Frames are small and many: to compress them costs the loop more than it saves
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        access_log=False,
        log_config=None,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    # runbroker has handlers of its own.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # does nothing, as wanted
    task = loop.create_task(server.serve(sockets=sockets), name="web")
    while not server.started:
        if task.done():
            for listening in sockets:
                listening.close()
            task.result()
            raise OSError(f"the dashboard did not start on {host}:{port}")
        await asyncio.sleep(0.005)
    return Web(server, sockets, task, unix_socket_path, web_port, peers)


def memory_parts(peers: Peers) -> list[Growing]:
    """Return what the connections of the dashboard may hold, for the memory by part."""
    return [
        Growing(
            "requests under way, dashboard",
            lambda: peers.body_bytes,
            COUNTED,
            MAX_BODIES_BYTES,
            "MAX_BODIES_BYTES",
            "a further request is answered 429",
        ),
        Growing(
            "answers that are not sent, dashboard",
            lambda: peers.unsent_bytes,
            COUNTED,
            MAX_UNSENT_BYTES,
            "MAX_UNSENT_BYTES",
            "the connection with most of them ends",
        ),
    ]


def _tcp_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken: another program listens there; choose another with "
                f"--web-port"
            ) from None
        raise OSError(f"the dashboard cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


def _unix_socket(path: Path) -> socket.socket:
    """Return a socket that only this user can open. A socket at its path is left over: the store's lock shows
    that no other broker runs."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise OSError(
            errno.ENAMETOOLONG,
            f"the path of the local socket is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}; use "
            f"a shorter --data",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        raise OSError(
            f"{path} is a directory, where the socket for commands and jobs belongs: move it away "
            f"and start the broker again"
        )
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
