"""The audit trail: one LogEntry for each requested change of the broker, also for a refused one.

Django's own table is used, so that the admin's history pages, its recent actions and changes made over REST
or by a command are in one place. An entry needs a user: for a token and for the local socket it is a user
with the caller's name that cannot log in. Changes through the ports of broker and name server come from
`server/change_records.py` after they are done: the broker does not wait for the audit. A change by the
dashboard that cannot be recorded is not done: `audited` writes the entry before the change, and its outcome
after it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from asgiref.sync import sync_to_async
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import Q

from broker_store.rest.callers import Caller
from broker_store.rest.change_record import ChangeRecord
from broker_store.rest.problems import problem_of
from broker_store.units import Document

FLAGS = {"create": ADDITION, "update": CHANGE, "delete": DELETION}
METHODS = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
MAX_DETAIL = 4_000
MAX_KEPT_KEYS = 40  # of a detail that is too long
MAX_KEY = 80


def user_for(caller: Caller):
    """Return the row of a caller: the user who is logged in, or a user of the caller's name that has no
    password and cannot log in."""
    User = get_user_model()
    kind, _, name = caller.name.partition(":")
    if kind == "user":
        return User.objects.get(**{User.USERNAME_FIELD: name})
    user, made = User.objects.get_or_create(username=caller.name, defaults={"is_active": False})
    if made:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def begin(
    caller: Caller, action: str, kind: str, name: str, detail: dict[str, object] | None = None
) -> LogEntry:
    """Write the entry of a change that begins, and return it. `kind` is a model of this application (`topic`,
    `group`, `apitoken`), or a noun without a model (`job`, `schedule` and others)."""
    # A job has no model: its entry has no content type, and only the audit trail shows it.
    content_type = ContentType.objects.get_by_natural_key("mqadmin", kind) if kind in MODELLED else None
    return LogEntry.objects.create(
        user=user_for(caller),
        content_type=content_type,
        object_id=name[:255],
        object_repr=name[:200],
        action_flag=FLAGS.get(action, CHANGE),
        change_message=_message(action, kind, "begun", detail),
    )


MODELLED = ("topic", "group", "apitoken")
DASHBOARD_USER = "dashboard_user"  # the kind of changes of users of the dashboard


def end(entry: LogEntry, outcome: str, detail: dict[str, object] | None = None) -> None:
    """Write the outcome of a change into its entry: `done`, or the code of the problem."""
    begun = read(entry)
    entry.change_message = _message(begun.action, begun.kind, outcome, begun.detail | (detail or {}))
    entry.save(update_fields=["change_message"])


def _message(action: str, kind: str, outcome: str, detail: dict[str, object] | None, **more: str) -> str:
    """Return the entry's text, of at most MAX_DETAIL characters. A value of `detail` that is too long is
    replaced by its first characters and its length."""
    head, detail = {"action": action, "kind": kind, "outcome": outcome, **more}, detail or {}
    text = json.dumps(head | {"detail": detail}, default=str)
    room = MAX_DETAIL
    while len(text) > MAX_DETAIL and room > MAX_KEPT_KEYS:
        room //= 2
        text = json.dumps(head | {"detail": _shortened(detail, room)}, default=str)
    return text if len(text) <= MAX_DETAIL else json.dumps(head | {"detail": {"cut": True}})


def _shortened(detail: dict[str, object], room: int) -> dict[str, object]:
    """Return `detail` with at most MAX_KEPT_KEYS of its keys, and values of about `room` characters
    together."""
    kept = dict(list(detail.items())[:MAX_KEPT_KEYS])
    each = room // len(kept)
    left_out = len(detail) - len(kept)
    return {key[:MAX_KEY]: _begin_of(value, each) for key, value in kept.items()} | (
        {"keys_left_out": left_out} if left_out else {}
    )


def _begin_of(value: object, most: int) -> object:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def refused(caller: Caller, method: str, path: str) -> None:
    """Write the entry of a change that was not begun, because the caller's role does not permit it."""
    entry = begin(caller, METHODS[method], "request", path, {"method": method, "role": caller.role})
    end(entry, "forbidden")


def unconfirmed(caller: Caller, action: str, kind: str, name: str, /, **detail: object) -> None:
    """Write the entry of a dangerous action that was not begun, because another name was typed to confirm
    it."""
    end(begin(caller, action, kind, name, detail), "confirmation_needed")


@contextmanager
def audited(
    caller: Caller, action: str, kind: str, name: str, /, **detail: object
) -> Iterator[dict[str, object]]:
    """Record a change: `with audited(...) as more:` encloses it. Keys that are put into `more` are added to
    the entry's detail.

    The first four parameters are positional only, so that the detail may have keys of any name."""
    entry = begin(caller, action, kind, name, detail)
    more: dict[str, object] = {}
    try:
        yield more
    except BaseException as error:
        end(entry, problem_of(error).code, more)
        raise
    end(entry, "done", more)


@asynccontextmanager
async def aaudited(
    caller: Caller, action: str, kind: str, name: str, /, **detail: object
) -> AsyncIterator[dict[str, object]]:
    """Record a change as `audited` does, in a coroutine of the event loop."""
    entry = await sync_to_async(begin)(caller, action, kind, name, detail)
    more: dict[str, object] = {}
    try:
        yield more
    except BaseException as error:
        await sync_to_async(end)(entry, problem_of(error).code, more)
        raise
    await sync_to_async(end)(entry, "done", more)


WIRE = "wire:clients"  # one user for all clients of the broker's ports, which have no login


def write_changes(records: Sequence[ChangeRecord]) -> None:
    """Write an entry for each change through the ports of broker and name server. Called in a thread of its
    own."""
    try:
        LogEntry.objects.bulk_create(_entries_of(records))
    except Exception:
        connection.close()  # a broken connection would fail the next time, too
        raise


def _entries_of(records: Sequence[ChangeRecord]) -> list[LogEntry]:
    user = user_for(Caller(WIRE))
    types = {kind: ContentType.objects.get_by_natural_key("mqadmin", kind) for kind in MODELLED}
    return [
        LogEntry(
            user=user,
            action_time=datetime.fromtimestamp(record.at_ms / 1000, UTC),
            content_type=types.get(record.kind),
            object_id=record.name[:255],
            object_repr=record.name[:200],
            action_flag=FLAGS.get(record.action, CHANGE),
            change_message=_message(
                record.action, record.kind, record.outcome, _detail_of(record), by=f"wire:{record.address}"
            ),
        )
        for record in records
    ]


def _detail_of(record: ChangeRecord) -> dict[str, object]:
    """Return the detail of an entry: the request's code, what its client states of itself, the number of
    equal requests, and the rest."""
    client = {"client_id": record.client_id, "language": record.language, "version": record.version}
    return {
        "code": record.code,
        **client,
        **({"count": record.count} if record.count > 1 else {}),
        **record.detail,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """An entry as REST and pages show it."""

    at: str  # ISO 8601, UTC
    by: str  # kind and name of the caller
    action: str
    kind: str
    name: str
    outcome: str  # begun, done or the code of a problem
    detail: Annotated[Document, "the requested change; which names there are depends on the action"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRecords:
    """The latest records of some kinds. `is_all`: no older ones were left out."""

    records: list[AuditRecord]
    is_all: bool


MAX_SEARCHED = 5_000  # records; a search for some kinds reads the text of each


def latest_of(kinds: Collection[str], count: int) -> LatestRecords:
    """Return the latest records of some kinds, the newest first, of the last MAX_SEARCHED of the trail."""
    entries = LogEntry.objects.select_related("user", "content_type").order_by("-pk")
    newest = entries.values_list("pk", flat=True).first()
    if newest is None:
        return LatestRecords(records=[], is_all=True)
    of_kinds = Q(content_type__app_label="auth")
    for kind in kinds:
        of_kinds |= Q(change_message__contains=f'"kind": "{kind}"')
    read_all = map(read, entries.filter(of_kinds, pk__gt=newest - MAX_SEARCHED).iterator(chunk_size=100))
    found = list(islice((record for record in read_all if record.kind in kinds), count + 1))
    return LatestRecords(records=found[:count], is_all=len(found) <= count and newest <= MAX_SEARCHED)


def read(entry: LogEntry) -> AuditRecord:
    """Return the content of an entry. An entry that Django's admin wrote itself has no detail."""
    try:
        known = json.loads(entry.change_message)
        assert isinstance(known, dict)
    except (ValueError, AssertionError):
        known = {}
    flags = {flag: action for action, flag in FLAGS.items()}
    return AuditRecord(
        at=entry.action_time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        by=known.get("by") or _caller_name(entry),
        action=known.get("action", flags.get(entry.action_flag, "update")),
        kind=known.get("kind") or _kind_of(entry),
        name=entry.object_id or entry.object_repr,
        outcome=known.get("outcome", "done"),
        detail=known.get("detail") or {},
    )


def _kind_of(entry: LogEntry) -> str:
    """Return the kind of an entry that Django's admin wrote. `user` alone is a user of the broker."""
    if entry.content_type is None:
        return ""
    model = entry.content_type.model
    return DASHBOARD_USER if (entry.content_type.app_label, model) == ("auth", "user") else model


def _caller_name(entry: LogEntry) -> str:
    name = entry.user.get_username()
    return name if ":" in name else f"user:{name}"
