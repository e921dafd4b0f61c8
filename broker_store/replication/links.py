"""The connection of a feeder to a slave, plain or with TLS.

    first byte 0x16 ─► TLS        any other ─► plain, unless TLS is required

The first byte of a slave without TLS belongs to a log offset or a number of 32 bits, and is never 0x16: such
an offset would be beyond 10^18. Apache's slaves have no TLS here.

A plain link sends files by the system (`sendfile`). With TLS the bytes are read and encrypted here, so what
the socket does not take of a piece waits in `unsent`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Protocol

from broker_store.engine.disk.file_access import Reader
from broker_store.protocol.tls import HANDSHAKE, TlsError, TlsSession

PIECE_BYTES = 64 << 10  # of a file that is encrypted at once


class HaTls(Protocol):
    """TLS of the HA port (`server/tls_server.py`). Any thread."""

    is_required: bool

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""


class Link(Protocol):
    """One connection. Its socket does not block."""

    @property
    def unsent(self) -> int:
        """Return the bytes that `send` or `send_file` took and that have not left."""

    def receive(self, size: int, now_s: float) -> bytes:
        """Return what came; nothing if the peer has ended. Raises BlockingIOError if nothing came, OSError,
        TlsError."""

    def send(self, data: bytes, *, more_follows: bool) -> int:
        """Send bytes; return how many were taken, 0 if none can be now. Raises OSError, TlsError."""

    def send_file(self, reader: Reader, offset: int, length: int) -> int:
        """Send bytes of a file; return how many were taken. Raises as `send`, and StoreError."""

    def flush(self) -> bool:
        """Send what is unsent; return True if all has left. Raises OSError."""

    def close(self) -> None:
        """Say that the connection ends, as far as that needs no waiting. The socket stays open."""


def link_of(connection: socket.socket, tls: HaTls | None, now_s: float) -> Link | None:
    """Return the link of a new connection; None until its first byte is there. Raises TlsError if it has to
    be TLS and is not, OSError."""
    if tls is None:
        return PlainLink(connection)
    try:
        first = connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    if first and first[0] == HANDSHAKE:
        return TlsLink(connection, tls.context, now_s)
    if first and tls.is_required:
        raise TlsError("this port needs TLS (tls.server.mode is enforcing); at a slave tls.enable")
    return PlainLink(connection)


class PlainLink:
    """A connection without TLS."""

    unsent = 0  # the system has all that was taken

    def __init__(self, connection: socket.socket):
        self._connection = connection

    def receive(self, size: int, now_s: float) -> bytes:
        return self._connection.recv(size)

    def send(self, data: bytes, *, more_follows: bool) -> int:
        try:
            return self._connection.send(data, socket.MSG_MORE if more_follows else 0)
        except BlockingIOError:
            return 0

    def send_file(self, reader: Reader, offset: int, length: int) -> int:
        return reader.send(self._connection.fileno(), offset, length)

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the end of the connection says it."""


class TlsLink:
    """A connection with TLS, from the first byte of its handshake on."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, now_s: float):
        self._connection, self._session = connection, TlsSession(context, now_s)
        self._out = b""

    @property
    def unsent(self) -> int:
        return len(self._out)

    def receive(self, size: int, now_s: float) -> bytes:
        session = self._session
        self.flush()
        data = self._connection.recv(size)
        if not data:
            return b""
        try:
            if not session.is_open:
                session.keep(data, now_s)
                session.shake_hands()
                data = b""  # the session has it
            plain = session.receive(data, now_s) if session.is_open else b""
        finally:
            self._out += session.take()
            self.flush()
        if not plain and not session.has_ended:
            raise BlockingIOError
        return plain

    def send(self, data: bytes, *, more_follows: bool) -> int:
        if not self.flush():
            return 0
        self._out = self._session.send(data)
        self.flush()
        return len(data)

    def send_file(self, reader: Reader, offset: int, length: int) -> int:
        if not self.flush():
            return 0
        return self.send(reader.read(offset, min(length, PIECE_BYTES)), more_follows=False)

    def flush(self) -> bool:
        while self._out:
            try:
                self._out = self._out[self._connection.send(self._out) :]
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        self._out += self._session.close()
        with contextlib.suppress(OSError):
            self.flush()
