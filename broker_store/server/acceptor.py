"""Accepts the connections of a listening socket.

uvloop accepts one connection in each turn of the loop, so a new one waits for as many turns as others are
before it. Under load a turn takes milliseconds: the thousandth connection waited for seconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from broker_store.repeated_log import RepeatedLog

BACKLOG = 1024
# About 5 ms of work.
MAX_ACCEPTS_PER_TURN = 64
# After an error of the system, which often has no file descriptor left.
RETRY_S = 1.0
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on a bound socket until `close`. `make` returns the asyncio protocol of a new connection."""

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.Protocol], log: RepeatedLog):
        self._listening, self._make, self._log = listening, make, log
        self._port = listening.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._loop.add_reader(listening, self._accept)

    def _accept(self) -> None:
        """Accept the connections that wait, MAX_ACCEPTS_PER_TURN in each turn."""
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _NO_MORE:
                    continue  # of a connection that ended before it was accepted
                self._pause(error)
                return
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make, accepted)
        except OSError as error:
            accepted.close()
            self._write_log(logging.INFO, "failed connections", "a new connection failed", error)

    def _pause(self, error: OSError) -> None:
        """Accept no connection for RETRY_S: the socket stays ready, and each turn would fail again."""
        self._write_log(
            logging.ERROR, "failed accepts", "cannot accept connections, and tries again in a second", error
        )
        self._loop.remove_reader(self._listening)
        self._again = self._loop.call_later(RETRY_S, self._resume)

    def _resume(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening, self._accept)

    def _write_log(self, level: int, cause: str, text: str, error: OSError) -> None:
        self._log.write(level, cause, self._loop.time(), "port %d: %s: %s", self._port, text, error.strerror)

    def close(self) -> None:
        """Accept no more connections, and close the socket. Idempotent."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()
