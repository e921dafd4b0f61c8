"""The caller at the other end of the Unix socket in the run directory, which only the user of the broker may
enter."""

from __future__ import annotations

import os
import pwd

from broker_store.rest.callers import Caller


def local_caller(scope: dict) -> Caller | None:
    """The caller at the other end of the Unix socket; None for a TCP connection.

    By ASGI the server of a Unix socket is (path, None). The address a client claims in a header plays no
    part.
    """
    server = scope.get("server")
    if not server or server[1] is not None:
        return None
    return Caller(f"local:{user_name()}", "admin")


def user_name() -> str:
    """The name of the user this process runs as; its number where the system knows no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
