"""Problem documents (RFC 9457): the format of every error in REST.

    {"type": "urn:headpond:problem:topic_not_found", "title": "Topic not found", "status": 404,
     "detail": "topic Orders does not exist", "code": "topic_not_found", "hint": "create it with POST
     /api/v1/topics"}

`code` is for programs, and its meaning never changes. `detail` has the facts of the case, `hint` what to do.
None has a path of the file system or a stack trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_store import errors
from broker_store.broker.groups import TooManyGroupsError
from broker_store.broker.offsets import TooManyOffsetsError
from broker_store.broker.topics import TooManyTopicsError
from broker_store.excerpts import excerpt
from broker_store.formats.names import in_words
from broker_store.formats.record import MAX_PROPERTIES
from broker_store.messages import Message, PutStatus

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL_CHARACTERS = 500
MAX_NAMED = 5  # of what a request has too much
BROKERS_OWN_HINT = "it belongs to the broker: no role may change it"
LOOKUP_HINT = "take the name from the list it should be in"

# code -> (HTTP status, title, hint). The whole vocabulary of errors stands here.
CODES: dict[str, tuple[int, str, str]] = {
    "invalid": (400, "Request not understood", "compare the request with /api/v1/docs"),
    "invalid_name": (
        400,
        "Name not allowed",
        "names have letters, digits and % | - _ only; topics up to 127, groups up to 120",
    ),
    "unauthorized": (
        401,
        "Who are you?",
        "send 'Authorization: Bearer TOKEN', log in, or use the local socket",
    ),
    "forbidden": (403, "Not allowed", "ask an administrator for a role that may do this"),
    "csrf": (403, "CSRF check failed", "send the csrftoken cookie's value as X-CSRFToken, or use a token"),
    "tls_required": (
        403,
        "This port needs TLS",
        "ask with https:// (tls.server.mode of the broker is enforcing); replace a token that was sent",
    ),
    "not_writable": (403, "Topic is not writable", "give the topic or the broker write permission"),
    "not_readable": (403, "Topic is not readable", "give the topic or the broker read permission"),
    "not_found": (404, "Not found", "see the list it should be in"),
    "topic_not_found": (404, "Topic not found", "create it with POST /api/v1/topics"),
    "group_not_found": (404, "Group not found", "create it with POST /api/v1/groups"),
    "queue_not_found": (404, "Queue not found", "the topic's page says how many queues it has"),
    "message_not_found": (
        404,
        "Message not found",
        "it may have been cleaned away: see the lowest offset of its queue",
    ),
    "method_not_allowed": (405, "Method not allowed", "see /api/v1/docs"),
    "request_timeout": (408, "Request did not come in time", "send the whole request at once"),
    "conflict": (409, "Conflict", "read it again and repeat with what is there now"),
    "confirmation_needed": (
        409,
        "Confirmation needed",
        "repeat with confirm= and the name of what is to be changed",
    ),
    "too_large": (413, "Too large", "send less in one request"),
    "target_too_long": (414, "Address too long", "ask for less in one request"),
    "key_reused": (
        422,
        "Idempotency-Key used before",
        "give each request a key of its own; only an exact repeat carries the same",
    ),
    "invalid_fields": (422, "Fields are missing or wrong", "each entry of 'errors' names a field"),
    "header_too_large": (431, "Header too large", "send fewer or shorter header fields, cookies among them"),
    "limit_reached": (429, "Limit reached", "remove what is not used, or raise the limit in the settings"),
    "busy": (503, "Busy", "try again in a moment"),
    "starting": (503, "The broker is starting", "wait: /api/v1/recovery shows how far it is"),
    "unavailable": (503, "The store does not accept messages", "/api/v1/store shows the flag and its cause"),
    "read_only": (
        503,
        "The store is read-only",
        "a sync failed or the store was opened for inspection: see /api/v1/store",
    ),
    "database_unavailable": (
        503,
        "The dashboard's database does not answer",
        "messages are not touched by that: log in to the broker's machine and see its log",
    ),
    "jobs_unavailable": (
        503,
        "Jobs are not available",
        "Redis holds only jobs: messages are not touched by that, and the broker's log says more",
    ),
    "damaged": (
        500,
        "A message is not as it was stored",
        "/api/v1/store shows the flag; 'manage.py check_store DIR' reports all damage; ask from the "
        "next offset to go on",
    ),
    "store_failed": (
        500,
        "A file of the store could not be read or written",
        "the broker's log names the file; 'manage.py check_store DIR' reports all damage",
    ),
    "timeout": (504, "Took too long", "the outcome is unknown: look before you repeat"),
    "internal": (500, "Error inside the broker", "the log has the details"),
}


@dataclass
class Problem(Exception):
    """An error for the caller; `code` is a key of CODES."""

    code: str
    detail: str = ""
    hint: str | None = None
    errors: list[dict] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code
        super().__init__(self.detail or CODES[self.code][1])

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    @property
    def title(self) -> str:
        """Return what kind of error it is."""
        return CODES[self.code][1]

    @property
    def sentence(self) -> str:
        """Return the facts of the case, cut to their limit; where there are none, the title."""
        return (self.detail or self.title)[:MAX_DETAIL_CHARACTERS]

    @property
    def advice(self) -> str:
        """Return what to do: the hint of this case, or that of its code."""
        return self.hint or CODES[self.code][2]

    def document(self) -> dict:
        """Return the value for the JSON of the answer."""
        document = {
            "type": f"urn:headpond:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.sentence,
            "code": self.code,
            "hint": self.advice,
        }
        if self.errors:
            document["errors"] = self.errors
        return document

    def body(self) -> bytes:
        return json.dumps(self.document(), ensure_ascii=False).encode()


def unknown_parameters(names: Iterable[str], known: Iterable[str]) -> Problem:
    """Return the problem for query parameters that a route does not have; it has their names and those of the
    route."""
    named = ", ".join(excerpt(name) for name in sorted(names)[:MAX_NAMED])
    has = ", ".join(sorted(known))
    return Problem("invalid", f"unknown query parameter {named}; this route takes {has or 'none'}")


def repeated_parameters(names: Iterable[str]) -> Problem:
    """Return the problem for query parameters that were repeated and may be given once."""
    return Problem(
        "invalid",
        f"query parameter {', '.join(excerpt(name) for name in sorted(names)[:MAX_NAMED])} is given "
        f"more than once; give it one value",
    )


PUT_PROBLEMS = {
    PutStatus.SERVICE_NOT_AVAILABLE: "unavailable",
    PutStatus.CREATE_MAPPED_FILE_FAILED: "unavailable",
    PutStatus.OS_PAGE_CACHE_BUSY: "busy",
    PutStatus.MESSAGE_ILLEGAL: "invalid",  # for another reason than its size
    PutStatus.PROPERTIES_SIZE_EXCEEDED: "too_large",
}


def problem_of_put(status: PutStatus, message: Message, max_body_bytes: int) -> Problem:
    """Return the problem for a message that was not stored; for one that is too large, with its size and the
    limit."""
    code, detail, hint = PUT_PROBLEMS.get(status, "internal"), f"the store answered {status.name}", None
    if status is PutStatus.MESSAGE_ILLEGAL and len(message.body) > max_body_bytes:
        code, detail = (
            "too_large",
            f"the body has {len(message.body):,} bytes, a message has at most {max_body_bytes:,}",
        )
        hint = "split the body into several messages, or raise maxMessageSize in the settings"
    elif status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
        found = f"{len(message.properties):,}" if len(message.properties) > MAX_PROPERTIES else "too many"
        detail = (
            f"the properties, with keys, tag and what the broker adds, have {found} bytes, a message has "
            f"at most {MAX_PROPERTIES:,}"
        )
        hint = "send fewer or shorter properties and keys, or put them into the body"
    return Problem(code, detail, hint)


def problem_of(error: BaseException) -> Problem:
    """Return the problem for an error of broker_store.errors. For any other error it has no internal
    details."""
    if isinstance(error, Problem):
        return error
    for kind, code in _CODE_OF_ERROR:
        if isinstance(error, kind):
            # Store errors name files; what the caller may know is that it failed and where the facts are.
            detail = (
                ""
                if isinstance(error, errors.StoreError)
                else in_words(error)
                if isinstance(error, errors.NameError_)
                else str(error)
            )
            return Problem(code, detail, LOOKUP_HINT if isinstance(error, errors.LookupNameError) else None)
    if isinstance(error, TimeoutError):
        return Problem("timeout")
    return Problem("internal")


_CODE_OF_ERROR = (
    (TooManyTopicsError, "limit_reached"),
    (TooManyGroupsError, "limit_reached"),
    (TooManyOffsetsError, "limit_reached"),
    (errors.NameError_, "invalid_name"),
    (errors.FieldError, "invalid"),
    (errors.PeerError, "invalid"),
    (errors.NotFoundError, "not_found"),
    (errors.StoreClosedError, "starting"),
    (errors.SyncError, "read_only"),
    (errors.DiskFullError, "unavailable"),
    (errors.MapLimitError, "unavailable"),
    (errors.StoreError, "store_failed"),
    (errors.ConfigError, "invalid"),
)
