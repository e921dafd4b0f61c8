"""Requests of the dashboard by TLS and without it: what each is answered, and the names of cookies.

`OnlyTls` is for `tls.server.mode` enforcing. A page that a browser asks for by plain HTTP is redirected.
Every other request is refused: its body, token or password has crossed the network already, and a redirect
would hide that.

`SecureCookies` gives each cookie that is set by TLS the attribute Secure and the prefix `__Secure-`. Browsers
take such a cookie from a TLS connection only and send it over no other. So in permissive mode no other
machine of the network can read the session of a user who uses https, or set one for this user. Sessions by
plain HTTP have the names without the prefix, and both kinds exist beside each other in one browser.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_store.rest.problems import Problem
from mqadmin.web.refusals import count_refusal
from mqadmin.web.refused_requests import Application, is_allowed_host, is_local, refuse, who_asked

PREFIX = b"__Secure-"


class OnlyTls:
    """Calls `application` for requests by TLS and for those of the local socket."""

    def __init__(self, application: Application):
        self._application = application

    async def __call__(self, scope: dict, receive, send) -> None:
        if scope["scheme"] in ("https", "wss") or is_local(scope):
            return await self._application(scope, receive, send)
        if place := _redirected_to(scope):
            headers = [(b"location", place), (b"content-length", b"0"), (b"cache-control", b"no-store")]
            # Temporary: the mode may be changed back, and browsers keep permanent ones.
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            return await send({"type": "http.response.body", "body": b""})
        problem = Problem("tls_required")
        count_refusal("HTTP request without TLS", who=who_asked(scope), said=problem.detail)
        return await refuse(problem, scope, receive, send)


def _redirected_to(scope: dict) -> bytes:
    """Return where a request is redirected to; empty if it is refused."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return b""
    headers = scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    if any(name == b"authorization" for name, _ in headers) or scope["path"].startswith("/api/"):
        return b""
    if len(hosts) != 1 or not is_allowed_host(hosts[0]):
        return b""
    query = scope["query_string"]
    return b"https://" + hosts[0] + scope["raw_path"] + (b"?" + query if query else b"")


class SecureCookies:
    """Calls `application`, for which cookies have their plain names."""

    def __init__(self, application: Application):
        self._application = application

    async def __call__(self, scope: dict, receive, send) -> None:
        if scope["scheme"] not in ("https", "wss"):
            return await self._application(scope, receive, send)

        async def send_secured(event: dict) -> None:
            if headers := event.get("headers"):
                event = event | {"headers": [_secured(*header) for header in headers]}
            await send(event)

        return await self._application(
            scope | {"headers": list(_plainly_named(scope["headers"]))}, receive, send_secured
        )


def _plainly_named(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    """Yield the headers of a request, with those cookies only that were set by TLS."""
    for name, value in headers:
        if name != b"cookie":
            yield name, value
            continue
        cookies = (one.strip() for one in value.split(b";"))
        secure = [one.removeprefix(PREFIX) for one in cookies if one.startswith(PREFIX)]
        if secure:
            yield name, b"; ".join(secure)


def _secured(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    if name.lower() != b"set-cookie":
        return name, value
    attributes = value.lower().split(b";")[1:]
    is_secure = any(one.strip() == b"secure" for one in attributes)
    return name, PREFIX + value + (b"" if is_secure else b"; Secure")
