"""The two hot REST routes, as plain ASGI before all other routes.

    POST /api/v1/topics/{topic}/messages                     one message, or a list of them
    GET  /api/v1/topics/{topic}/queues/{queue}/messages      ?offset=&limit=&wait_ms=

A request through Django's middleware with a token from the database takes 2 ms of the loop, here 0.03 to 0.1
ms; the sends of all clients share that loop. This module does only what these two routes need. It
authenticates the caller (a token from a table in memory, or the local socket), checks the size of the body
before it is read, and parses and checks the JSON. The gateway does the rest. All other requests go to `app`
unchanged.

A request without a token that does not come from the local socket goes to `app`, too: Django has the same two
routes for sessions of browsers, with the CSRF check. So cookies are not read here, and a wrong token in a
header is refused here, even if there is a cookie.

All is bounded before it is held in memory: one body, all bodies together, the time to send one, messages in a
list.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import orjson

from broker_store.errors import StoreError
from broker_store.excerpts import excerpt
from broker_store.repeated_log import RepeatedLog
from broker_store.rest.answers import Receipt
from broker_store.rest.callers import Caller, TokenTable
from broker_store.rest.new_messages import NewMessage, read_messages
from broker_store.rest.problems import (
    MEDIA_TYPE,
    Problem,
    problem_of,
    repeated_parameters,
    unknown_parameters,
)
from broker_store.rest.repeats import Repeats, read_key
from broker_store.units import Document

log = logging.getLogger(__name__)

BASE = "/api/v1/topics/"
MAX_BODY_BYTES = 16 << 20  # of messages, as the remoting port's frame
MAX_FORM_BYTES = 2_621_440  # of all other requests: Django's default
MAX_BODIES_BYTES = 64 << 20  # of all requests that are being read or stored
MAX_BYTES_ON_LOOP = 64 << 10  # of a body; a larger one is read in a thread
MAX_BODY_SECONDS = 30.0  # from the first byte of a body to its last
MAX_LIMIT = 100  # messages in one answer, as rows in each list of REST; more are read page by page
DEFAULT_LIMIT = 32
MAX_WAIT_MS = 30_000
MAX_INT64 = (1 << 63) - 1
MAX_PARAMETERS = 10  # of a query string
PULL_TAKES = ("offset", "limit", "wait_ms")

Default = TypeVar("Default", int, None)
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict]]
Send = Callable[[dict], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gateway(Protocol):
    """The broker, as these routes need it. `mqadmin.web.gateway.ClusterGateway` is one."""

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[Receipt | Problem]:
        """Return a receipt for each message in order, or why it was not stored. Raises an error for a topic
        that is refused."""

    async def pull(
        self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int
    ) -> Sequence[bytes]:
        """Return messages of one queue from `offset` (None: its lowest) as JSON in pieces; wait up to
        `wait_ms` for the first."""

    def refuse(self, cause: str, **case) -> None:
        """Count a request that was refused or failed: `value`, `limit`, `who` and `said` as
        broker_store/broker/flow.py keeps them."""


class HotRoutes:
    """The hot routes, before `app`."""

    def __init__(
        self,
        app: Application,
        *,
        gateway: Callable[[], Gateway | None],
        tokens: TokenTable,
        local_caller: Callable[[Scope], Caller | None] = lambda scope: None,
        repeats: Repeats | None = None,
        clock: Callable[[], float] = time.time,
        body_seconds: float = MAX_BODY_SECONDS,
    ):
        self._app = app
        self._gateway = gateway
        self._tokens = tokens
        self._local_caller = local_caller
        self._repeats = repeats or Repeats()
        self._clock = clock
        self._body_seconds = body_seconds
        self._bodies_bytes = 0
        self._log = RepeatedLog(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = _route(scope)
        if route is None:
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        authorization = headers.get(b"authorization")
        local = None if authorization is not None else self._local_caller(scope)
        if authorization is None and local is None:
            return await self._app(scope, receive, send)
        try:
            caller = self._caller_of(authorization or b"") if local is None else local
            topic, queue_id = route
            if queue_id is None:
                _parameters(scope["query_string"], ())
                answer: Sequence[bytes] = (orjson.dumps(await self._store(topic, headers, receive, caller)),)
            else:
                answer = await self._pull(topic, queue_id, scope["query_string"])
        except _Gone:
            return None
        except StoreError as error:
            self._log.write(
                logging.ERROR,
                "failed requests",
                time.monotonic(),
                "a REST request of %s to %s failed: %s",
                caller.name,
                route[0],
                error,
            )
            if (gateway := self._gateway()) is not None:  # None when the store has been closed meanwhile
                gateway.refuse(error.cause, who=caller.name)
            return await _refuse(send, error)
        except Exception as error:
            return await _refuse(send, error)
        return await _answer(send, 200, answer, b"application/json")

    def _caller_of(self, authorization: bytes) -> Caller:
        kind, _, token = authorization.decode("latin-1").partition(" ")
        caller = (
            self._tokens.caller(token.strip(), int(self._clock() * 1000))
            if kind.lower() == "bearer"
            else None
        )
        if caller is None:
            raise Problem("unauthorized", "the token is unknown, expired or revoked")
        return caller

    async def _store(self, topic: str, headers: dict[bytes, bytes], receive: Receive, caller: Caller) -> dict:
        if not caller.may("operator"):
            raise Problem(
                "forbidden", f"{caller.name} has the role {caller.role}; sending needs the role operator"
            )
        gateway = self._running()
        key = read_key(headers.get(b"idempotency-key"))
        announced = announced_length(headers.get(b"content-length"))
        if self._bodies_bytes + announced > MAX_BODIES_BYTES:
            raise _too_many_bodies(gateway, caller, self._bodies_bytes + announced)
        self._bodies_bytes += announced
        held = announced
        try:
            async with asyncio.timeout(self._body_seconds):
                parts, length = [], 0
                async for part in _parts(receive):
                    length += len(part)
                    if length > MAX_BODY_BYTES:
                        raise _body_too_large(length)
                    if length > held:  # chunked: the length was not announced
                        self._bodies_bytes += length - held
                        held = length
                        if self._bodies_bytes > MAX_BODIES_BYTES:
                            raise _too_many_bodies(gateway, caller, self._bodies_bytes)
                    parts.append(part)
            return await send_body(gateway, self._repeats, caller, topic, b"".join(parts), key)
        finally:
            self._bodies_bytes -= held

    async def _pull(self, topic: str, queue_id: int, query: bytes) -> Sequence[bytes]:
        gateway = self._running()
        asked = _parameters(query, PULL_TAKES)
        offset = query_int(asked, "offset", None, MAX_INT64)
        limit = query_int(asked, "limit", DEFAULT_LIMIT, MAX_LIMIT, least=1)
        wait_ms = query_int(asked, "wait_ms", 0, MAX_WAIT_MS)
        return await gateway.pull(topic, queue_id, offset, limit, wait_ms)

    def _running(self) -> Gateway:
        gateway = self._gateway()
        if gateway is None:
            raise Problem("starting")
        return gateway


def _parameters(query: bytes, known: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of a query string; a Problem when it is too long or names something that is not
    `known`."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise Problem("invalid", f"more than {MAX_PARAMETERS} query parameters") from None
    asked = dict(pairs)
    if unknown := asked.keys() - set(known):
        raise unknown_parameters(unknown, known)
    if len(pairs) > len(asked):
        raise repeated_parameters({name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1})
    return asked


def _route(scope: Scope) -> tuple[str, int | None] | None:
    """(topic, None) for a send, (topic, queue) for a pull, None for other requests. Names are checked by
    the gateway."""
    if scope["type"] != "http" or not scope["path"].startswith(BASE):
        return None
    pieces = scope["path"][len(BASE) :].split("/")
    if len(pieces) == 2 and pieces[1] == "messages" and scope["method"] == "POST":
        return pieces[0], None
    if len(pieces) == 4 and pieces[1] == "queues" and pieces[3] == "messages" and scope["method"] == "GET":
        if pieces[2].isascii() and pieces[2].isdigit() and len(pieces[2]) < 10:
            return pieces[0], int(pieces[2])
    return None


def most_body_bytes(method: str, path: str) -> int:
    """Return the highest number of bytes of a body for `path` (without escapes), which is larger for
    messages."""
    return (
        MAX_BODY_BYTES
        if _route({"type": "http", "method": method, "path": path}) is not None
        else MAX_FORM_BYTES
    )


class _Gone(Exception):
    """The client closed the connection and reads no answer."""


async def _parts(receive: Receive):
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Gone
        yield event.get("body", b"")
        more = event.get("more_body", False)


def _too_many_bodies(gateway: Gateway, caller: Caller, size: int) -> Problem:
    problem = Problem("busy", f"{MAX_BODIES_BYTES >> 20} MiB of requests are under way")
    gateway.refuse(
        "REST bodies under way",
        value=size,
        limit=MAX_BODIES_BYTES,
        who=caller.name,
        said=problem.detail,
        is_send=True,
    )
    return problem


def _body_too_large(length: int) -> Problem:
    return Problem("too_large", f"the body has {length} bytes or more, allowed are {MAX_BODY_BYTES}")


def announced_length(header: bytes | None) -> int:
    """Return the number in Content-Length, 0 without one. Raises Problem if it is malformed or too large."""
    if header is None:
        return 0
    if not header.isdigit() or len(header) > 18:
        raise Problem("invalid", "Content-Length is not a number")
    if int(header) > MAX_BODY_BYTES:
        raise _body_too_large(int(header))
    return int(header)


def query_int(
    asked: dict[str, str], name: str, default: Default, most: int, *, least: int = 0
) -> int | Default:
    """Remove the parameter `name` from `asked` and return it, an integer from `least` to `most`. Raises
    Problem for another value."""
    text = asked.pop(name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise Problem("invalid", f"{name} is {excerpt(text, 30)}, expected an integer from {least} to {most}")
    return int(text)


async def send_body(
    gateway: Gateway, repeats: Repeats, caller: Caller, topic: str, body: bytes, key: str | None
) -> Document:
    """Store the messages of a body and return the answer; with an Idempotency-Key only once."""

    async def send() -> Document:
        messages, is_list = (
            read_messages(body)
            if len(body) <= MAX_BYTES_ON_LOOP
            else await asyncio.to_thread(read_messages, body)
        )
        return send_answer(await gateway.send_batch(topic, messages), is_list)

    return await (send() if key is None else repeats.once(caller.name, topic, key, body, send))


def send_answer(receipts: list[Receipt | Problem], is_list: bool) -> Document:
    """Return the receipt of a message, or all receipts of a list, as JSON. Raises Problem if nothing was
    stored."""
    refused = [receipt for receipt in receipts if isinstance(receipt, Problem)]
    if len(refused) == len(receipts):
        raise refused[0]
    results = [
        {"problem": receipt.document()} if isinstance(receipt, Problem) else receipt.document()
        for receipt in receipts
    ]
    if not is_list:
        return results[0]
    return {"results": results, "stored": len(receipts) - len(refused), "complete": not refused}


async def _refuse(send: Send, error: Exception) -> None:
    problem = problem_of(error)
    if problem.code == "internal":
        log.exception("a REST request failed", exc_info=error)
    await _answer(send, problem.status, (problem.body(),), MEDIA_TYPE.encode())


async def _answer(send: Send, status: int, pieces: Sequence[bytes], media_type: bytes) -> None:
    """Send an answer; between its pieces other work of the loop has its turn."""
    headers = [
        (b"content-type", media_type),
        (b"content-length", str(sum(map(len, pieces))).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": pieces[-1]})
