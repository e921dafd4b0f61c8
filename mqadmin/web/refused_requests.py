"""Requests that are refused before the application: under another name, to no websocket of ours, too many at
once.

The rule of ALLOWED_HOSTS holds for every address, also for those that are answered before Django
(broker_store/rest/http.py): else a page of another site could reach this one under a name of its own (DNS
rebinding). Django refuses such a request after its first middleware and writes a traceback for each; here it
is answered 400 and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from broker_store.rest.problems import MEDIA_TYPE, Problem
from mqadmin.web.refusals import count_refusal

Application = Callable[
    [dict, Callable[[], Awaitable[dict]], Callable[[dict], Awaitable[None]]], Awaitable[None]
]

CAUSES = {"django.security.csrf": "CSRF check"}
SECURITY = "django.security."
OTHER_CAUSE = "suspicious HTTP request"


class AllowedHosts:
    """Calls `application` for requests under an allowed name. The local socket has no name: its requests are
    for localhost."""

    def __init__(self, application: Application):
        self._application = application

    async def __call__(self, scope: dict, receive, send) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and is_allowed_host(hosts[0]):
            return await self._application(scope, receive, send)
        if is_local(scope):
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            return await self._application(
                scope | {"headers": [*others, (b"host", b"localhost")]}, receive, send
            )
        asked = b", ".join(hosts).decode("latin-1")[:100]
        problem = Problem(
            "invalid",
            f"nothing is served under the name {asked!r}",
            "ask under localhost or a name of BROKER_WEB_HOST, in one Host header",
        )
        count_refusal("wrong Host", who=who_asked(scope), said=problem.detail)
        return await refuse(problem, scope, receive, send)


class Websockets:
    """Calls `application` for websockets to `path` with a valid Origin; others are answered 404 and 403."""

    def __init__(self, application: Application, path: str):
        self._application, self._path = application, path

    async def __call__(self, scope: dict, receive, send) -> None:
        if scope["path"] != self._path:
            return await refuse(
                Problem("not_found", "there is no websocket at this address"), scope, receive, send
            )
        for name, value in scope["headers"]:
            if name == b"origin" and not _is_address(value):
                return await refuse(Problem("forbidden", "the Origin is no address"), scope, receive, send)
        return await self._application(scope, receive, send)


async def refuse(problem: Problem, scope: dict, receive, send) -> None:
    """Answer a request, or a websocket's handshake, with a problem."""
    kind, body = "http.response", problem.body()
    if scope["type"] == "websocket":
        await receive()  # its beginning
        if "websocket.http.response" not in scope.get("extensions", {}):
            return await send({"type": "websocket.close", "code": 1008})
        kind = "websocket.http.response"
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": f"{kind}.start", "status": problem.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
    return None


class CountsSecurity(logging.Filter):
    """A filter of the log: what Django refuses for security is counted, and writes no line and no traceback.
    A client that repeats such requests would fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(SECURITY):
            return True
        scope = getattr(getattr(record, "request", None), "scope", {})
        count_refusal(CAUSES.get(record.name, OTHER_CAUSE), who=who_asked(scope), said=record.getMessage())
        return False


@lru_cache(maxsize=256)
def is_allowed_host(host: bytes) -> bool:
    """Return whether Django would serve a request with this Host header."""
    domain, _ = split_domain_port(host.decode("latin-1"))
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def _is_address(origin: bytes) -> bool:
    try:
        urlsplit(origin.decode("latin-1"))
    except ValueError:
        return False
    return True


def is_local(scope: dict) -> bool:
    """Return whether a request came by the local socket."""
    server = scope.get("server")
    return server is not None and len(server) > 1 and server[1] is None


def who_asked(scope: dict) -> str:
    """Return the address of the peer, for the record of a refusal."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "local socket" if is_local(scope) else ""
