"""One HTTP request to an ASGI application, without a server: what the process would answer at its door, hot
routes and all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import quote, unquote


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    application, method: str, address: str, *, headers: dict[str, str] | None = None, body: bytes = b""
) -> Answer:
    """The answer to a request over TCP from loopback; `address` is the path with its query, percent-encoded
    or not."""
    path, _, query = address.partition("?")
    given = {"host": "localhost", **{name.lower(): value for name, value in (headers or {}).items()}}
    if body:
        given["content-length"] = str(len(body))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": quote(path, safe="/%").encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
    }
    events, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive() -> dict:
        if events:
            return events.pop()
        return await asyncio.Future()  # Django listens for a client that goes away; this one stays

    async def send(event: dict) -> None:
        sent.append(event)

    await application(scope, receive, send)
    start, *parts = sent
    answered: dict[str, str] = {}
    for name, value in start["headers"]:
        name = name.decode().lower()
        answered[name] = f"{answered[name]}, {value.decode()}" if name in answered else value.decode()
    return Answer(start["status"], answered, b"".join(part.get("body", b"") for part in parts))
