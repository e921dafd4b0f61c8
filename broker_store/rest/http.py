"""The two hot REST routes, as plain ASGI in front of everything else.

    POST /api/v1/topics/{topic}/messages                     one message, or a list of them
    GET  /api/v1/topics/{topic}/queues/{queue}/messages      ?offset=&limit=&wait_ms=

A request through Django's middleware and a token row in the database costs 2 ms of the loop's time, here 0.03
to 0.1; sends share that loop with every client of the broker. What is here is only what these two need: who
is it (a token from a table in memory, or the local socket), is the body small enough (known before it is
read), is it JSON of the right shape. The rest is the gateway's, and every other request goes on to `app`,
untouched.

A request without a token and not from the local socket goes on too: the same two routes exist in Django for a
browser's session, where the CSRF check is. So a cookie is never looked at here, and a header that names a
wrong token is refused here, whatever cookie comes with it.

Everything is bounded before it is held: one body, all bodies together, the time to send one, messages in a
list.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import orjson

from broker_store.errors import StoreError
from broker_store.excerpts import excerpt
from broker_store.repeated_log import RepeatedLog
from broker_store.rest.problems import (
    MEDIA_TYPE,
    Problem,
    problem_of,
    repeated_parameters,
    unknown_parameters,
)
from broker_store.rest.repeats import Repeats, read_key

log = logging.getLogger(__name__)

BASE = "/api/v1/topics/"
MAX_BODY_BYTES = 16 << 20  # of messages, as the remoting port's frame
MAX_FORM_BYTES = 2_621_440  # of all other requests: what Django takes unless it is told otherwise
MAX_BODIES_BYTES = 64 << 20  # of all requests that are being read or stored
MAX_VALUES = 50_000  # in a body
MAX_BYTES_ON_LOOP = 64 << 10  # of a body; a larger one is read in a thread
MAX_PROPERTIES = 8_191  # of a message: 32,767 bytes of properties, and the shortest takes four
MAX_WRONG = 20  # fields that an answer names
BODY_SECONDS = 30.0  # from the first byte of a body to its last
MAX_MESSAGES = 1_000  # in one request
MAX_LIMIT = 100  # messages in one answer, as rows in each list of REST: whoever wants more pages on
DEFAULT_LIMIT = 32
MAX_WAIT_MS = 30_000
MAX_INT64 = (1 << 63) - 1
MAX_INT32 = (1 << 31) - 1
MAX_TAG = 255
MAX_PARAMETERS = 10  # of a query string
PULL_TAKES = ("offset", "limit", "wait_ms")

Default = TypeVar("Default", int, None)
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict]]
Send = Callable[[dict], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ROLES = ("viewer", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name` is what the audit records show: `user:NAME`, `token:NAME` or `local:NAME`."""

    name: str
    role: str = "viewer"

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class TokenTable:
    """The tokens that are good now, by the SHA-256 of their text; replaced as a whole, so a reader sees one
    picture.

    A token is 256 random bits, so a plain hash of it cannot be searched, and looking one up by its hash tells
    nothing by the time it takes.
    """

    def __init__(self) -> None:
        self._callers: Mapping[bytes, tuple[Caller, int]] = {}
        self._used: set[bytes] = set()

    def replace(self, callers: Mapping[bytes, tuple[Caller, int]]) -> None:
        """Take over `{digest: (caller, expires_ms)}`; `expires_ms` 0 is never. What is not in it is refused
        from now on."""
        self._callers = dict(callers)

    def caller(self, token: str, now_ms: int) -> Caller | None:
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        entry = self._callers.get(digest)
        if entry is None or 0 < entry[1] <= now_ms:
            return None
        self._used.add(digest)
        return entry[0]

    def take_used(self) -> set[bytes]:
        """Digests that were used since the last call; for the list of tokens, which shows when."""
        used, self._used = self._used, set()
        return used


@dataclass(slots=True)
class NewMessage:
    """One message of a REST request, checked as far as the request alone allows. `queue_id` None: the broker
    chooses."""

    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int | None = None
    flag: int = 0


class Gateway(Protocol):
    """The broker, as these routes need it. `mqadmin.clusters.Cluster` is one."""

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[dict]:
        """A receipt a message, in order; in place of a receipt {"problem": document} for what was not stored.
        Raises for a refused topic."""

    async def pull(
        self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int
    ) -> Sequence[bytes]:
        """Messages of one queue from `offset` (None: its lowest), waiting up to `wait_ms` for the first: JSON
        in pieces."""

    def refuse(self, cause: str, **case) -> None:
        """Count a request that was refused or failed: `value`, `limit`, `who` and `said` as
        broker_store/broker/flow.py keeps them."""


class HotRoutes:
    """`app` with the hot routes in front.

    `gateway()` is the broker or None while there is none yet; `local_caller(scope)` names who is on the other
    end of the local socket, None for every other connection.
    """

    def __init__(
        self,
        app: Application,
        *,
        gateway: Callable[[], Gateway | None],
        tokens: TokenTable,
        local_caller: Callable[[Scope], Caller | None] = lambda scope: None,
        repeats: Repeats | None = None,
        clock: Callable[[], float] = time.time,
        body_seconds: float = BODY_SECONDS,
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
            raise Problem("forbidden", f"{caller.name} is {caller.role}; sending needs operator")
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
                    if length > held:  # chunked: nobody announced it
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
    """What a query string asks; a Problem when it is too long or names something that is not `known`."""
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
    """(topic, None) for a send, (topic, queue) for a pull, None for what is not ours. Names are checked by
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
    """Bytes that the body of a request to `path` (without escapes) may have: more for messages than for all
    else."""
    return (
        MAX_BODY_BYTES
        if _route({"type": "http", "method": method, "path": path}) is not None
        else MAX_FORM_BYTES
    )


class _Gone(Exception):
    """The other side closed the connection; nobody reads an answer."""


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
    """Bytes that Content-Length announces, 0 when it is absent; a Problem when that is no number or too
    much."""
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
    """Take parameter `name` out of `asked` as an integer of least..most; a Problem when it is not one."""
    text = asked.pop(name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise Problem("invalid", f"{name} is {excerpt(text, 30)}, want an integer from {least} to {most}")
    return int(text)


# In texts, where they count as nothing, and elsewhere. A text longer than one match is gone through piece by
# piece.
_TEXT_OR_VALUE = re.compile(rb'"(?:[^"\\]{1,1024}+|\\.){0,64}+"|[\[{,"]', re.DOTALL)
_TEXT_OR_NAMED = re.compile(rb'"(?:[^"\\]{1,1024}+|\\.){0,64}+"|[:"]', re.DOTALL)
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")  # a colon of the text that was read, none of the body
_PIECE_OF_TEXT = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){0,64}+', re.DOTALL)
_COUNTED_AT_ONCE = 1 << 20


def check_values(body: bytes) -> None:
    """A Problem when a body has more values than MAX_VALUES: JSON is read in one call, which keeps all
    threads from running, and five million empty lists take two seconds."""
    if (
        _count_with_texts(body, b",", b"[", b"{") > MAX_VALUES
        and _count_outside_texts(body, _TEXT_OR_VALUE, MAX_VALUES) > MAX_VALUES
    ):
        raise Problem(
            "too_large", f"the body has more than {MAX_VALUES} values", "send fewer messages in one request"
        )


def _check_names(body: bytes, messages: list[dict]) -> None:
    """A Problem when an object of a body names a field twice, of which the reader took the last: the body has
    more colons than the fields and texts of `messages`, which were read, have."""
    members = sum(len(message) + len(message.get("properties") or ()) for message in messages)
    colons = _count_with_texts(body, b":")
    if colons <= members or (
        colons == members + sum(map(_colons_in_texts, messages)) and not _ESCAPED_COLON.search(body)
    ):
        return
    if _count_outside_texts(body, _TEXT_OR_NAMED, members) > members:
        raise Problem("invalid_fields", "a field is given more than once in one object; give it one value")


def _colons_in_texts(message: dict) -> int:
    """How many colons the texts of a message have."""
    keys, properties = message.get("keys") or (), message.get("properties") or {}
    count = message["body"].count(":") + (message.get("tag") or "").count(":")
    count += keys.count(":") if isinstance(keys, str) else sum(key.count(":") for key in keys)
    return count + sum(name.count(":") + value.count(":") for name, value in properties.items())


def _count_with_texts(body: bytes, *marks: bytes) -> int:
    """How often marks occur, those within texts too: an upper bound, found fast."""
    return sum(
        body.count(mark, at, at + _COUNTED_AT_ONCE)
        for at in range(0, len(body), _COUNTED_AT_ONCE)
        for mark in marks
    )


def _count_outside_texts(body: bytes, text_or_mark: re.Pattern[bytes], most: int) -> int:
    """How often marks occur outside of texts; the count ends one above `most`."""
    count, at = 0, 0
    while count <= most and (match := text_or_mark.search(body, at)):
        at = match.end()
        if body[at - 1] == 0x22:
            if match.end() - match.start() == 1:  # a long text begins
                while (piece := _PIECE_OF_TEXT.match(body, at)) and piece.end() > at:
                    at = piece.end()
                at += 1
            continue
        count += 1
    return count


def read_messages(body: bytes) -> tuple[list[NewMessage], bool]:
    """The messages of a request body, and whether they came as a list."""
    check_values(body)
    try:
        value = orjson.loads(body)
    except ValueError as error:  # also for nesting that is too deep
        raise Problem("invalid", f"the body is not JSON: {error}") from None
    if isinstance(value, list):
        if not 1 <= len(value) <= MAX_MESSAGES:
            raise Problem(
                "too_large" if value else "invalid",
                f"a list of {len(value)} messages, want 1 to {MAX_MESSAGES}",
            )
        messages, is_list = [read_message(item, f"[{index}]") for index, item in enumerate(value)], True
    else:
        messages, is_list, value = [read_message(value, "")], False, [value]
    _check_names(body, value)
    return messages, is_list


_FIELDS = frozenset({"body", "body_encoding", "tag", "keys", "properties", "queue_id", "flag"})


def read_message(value: object, place: str) -> NewMessage:
    """One message out of JSON; a Problem that names each field that is wrong."""
    if not isinstance(value, dict):
        raise Problem("invalid_fields", f"message{place} is not an object")
    wrong = [
        _wrong(place, name, "not known")
        for name in islice((name for name in value if name not in _FIELDS), MAX_WRONG)
    ]
    body, body_error = _read_body(value.get("body"), value.get("body_encoding", "utf-8"))
    if body_error:
        wrong.append(_wrong(place, "body", body_error))
    tag = _or_default(value.get("tag"), "")
    if not _is_text(tag, MAX_TAG):
        wrong.append(
            _wrong(place, "tag", f"want a string of at most {MAX_TAG} characters without control characters")
        )
    keys = _or_default(value.get("keys"), [])
    keys = ([keys] if keys else []) if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not all(_is_text(key, 1024) and key and " " not in key for key in keys):
        wrong.append(_wrong(place, "keys", "want strings without blanks, none empty"))
    properties = _or_default(value.get("properties"), {})
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        wrong.append(
            _wrong(
                place,
                "properties",
                f"has {len(properties)} names, at most {MAX_PROPERTIES} fit into a message",
            )
        )
    elif not isinstance(properties, dict) or not all(
        _is_text(k, 255) and k and _is_text(v, 32767) and v for k, v in properties.items()
    ):
        wrong.append(_wrong(place, "properties", "want an object of strings, names and values not empty"))
    queue_id, flag = value.get("queue_id"), value.get("flag", 0)
    if queue_id is not None and not _is_int(queue_id, 0, MAX_INT32):
        wrong.append(_wrong(place, "queue_id", "want a queue number from 0"))
    if not _is_int(flag, -MAX_INT32 - 1, MAX_INT32):
        wrong.append(_wrong(place, "flag", "want a 32-bit integer"))
    if wrong:
        raise Problem(
            "invalid_fields",
            "; ".join(f"{entry['field']}: {entry['reason']}" for entry in wrong[:5]),
            errors=wrong[:MAX_WRONG],
        )
    return NewMessage(body, tag, tuple(keys), dict(properties), queue_id, flag)


def _read_body(text: object, encoding: object) -> tuple[bytes, str]:
    if not isinstance(text, str):
        return b"", "want a string"
    if encoding == "utf-8":
        return text.encode(), ""
    if encoding != "base64":
        return b"", "body_encoding is utf-8 or base64"
    try:
        return base64.b64decode(text, validate=True), ""
    except (binascii.Error, ValueError):
        return b"", "is not base64"


def _or_default(value: Any, default: Any) -> Any:
    """The value of a field, `default` where it is null or absent. Other empty values are kept: their types
    are checked."""
    return default if value is None else value


def _is_text(value: object, limit: int) -> bool:
    """A string that can stand in a properties string: its separators are control characters."""
    return (
        isinstance(value, str)
        and len(value) <= limit
        and not ("\x00" in value or "\x01" in value or "\x02" in value)
    )


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _wrong(place: str, name: str, reason: str) -> dict:
    return {"field": f"{place}.{name}".lstrip(".")[:100], "reason": reason}


async def send_body(
    gateway: Gateway, repeats: Repeats, caller: Caller, topic: str, body: bytes, key: str | None
) -> dict:
    """Store what a request body holds and answer it; with an Idempotency-Key, once."""

    async def send() -> dict:
        messages, is_list = (
            read_messages(body)
            if len(body) <= MAX_BYTES_ON_LOOP
            else await asyncio.to_thread(read_messages, body)
        )
        return send_answer(await gateway.send_batch(topic, messages), is_list)

    return await (send() if key is None else repeats.once(caller.name, topic, key, body, send))


def send_answer(receipts: list[dict], is_list: bool) -> dict:
    """The answer to a send: the receipt, or for a list all of them; a Problem when nothing at all was
    stored."""
    refused = [receipt["problem"] for receipt in receipts if "problem" in receipt]
    if len(refused) == len(receipts):
        raise Problem(refused[0]["code"], refused[0]["detail"], refused[0].get("hint"))
    if not is_list:
        return receipts[0]
    return {"results": receipts, "stored": len(receipts) - len(refused), "complete": not refused}


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
