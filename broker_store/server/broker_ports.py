"""The two ports of a broker: the one of the settings, and the fast port below it."""

from __future__ import annotations

import contextlib
import socket

from broker_store.server.listener import bind_for

FAST_PORT_BELOW = 2
PORT_CHOICES = 10


def bind_broker_ports(host: str, wanted: int, *, with_fast_port: bool) -> list[socket.socket]:
    """Return the sockets of the broker port and of the fast port below it. A port that the system chooses
    (`wanted` is 0) is chosen again if the fast port is taken. Raises OSError."""
    for _ in range(0 if wanted else PORT_CHOICES - 1):
        with contextlib.suppress(OSError):
            return _bind_both(host, wanted, with_fast_port=with_fast_port)
    return _bind_both(host, wanted, with_fast_port=with_fast_port)


def _bind_both(host: str, port: int, *, with_fast_port: bool) -> list[socket.socket]:
    sockets = [bind_for(host, port, "--broker-port")]
    if with_fast_port:
        below = sockets[0].getsockname()[1] - FAST_PORT_BELOW
        option = f"--broker-port: the one {FAST_PORT_BELOW} below it is used too"
        try:
            sockets.append(bind_for(host, below, option))
        except OSError:
            sockets[0].close()
            raise
    return sockets
