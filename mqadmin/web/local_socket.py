"""The caller at the other end of the Unix socket in the run directory, which only the broker's user may
enter."""

from __future__ import annotations

import os
import pwd

from broker_store.rest.callers import Caller


def local_caller(scope: dict) -> Caller | None:
    """Return the caller at the other end of the Unix socket; None for a TCP connection.

    In ASGI the server of a Unix socket is (path, None). Addresses in headers have no effect.
    """
    server = scope.get("server")
    if not server or server[1] is not None:
        return None
    return Caller(f"local:{user_name()}", "admin")


def user_name() -> str:
    """Return the name of the user of this process; its number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
