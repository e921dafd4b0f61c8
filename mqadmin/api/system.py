"""REST routes for probes, versions, the caller, tokens and the audit trail."""

from __future__ import annotations

import platform
from typing import Annotated, Literal

from asgiref.sync import sync_to_async
from django.contrib.admin.models import LogEntry
from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from pydantic import Field

from broker_store import __version__
from broker_store.rest.callers import Caller
from broker_store.units import fields_of
from mqadmin import audit, token_changes
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.cluster.current import current_cluster
from mqadmin.web import tokens

router = Router()
READY_STATES = ("running", "read_only")
COMPATIBLE_WITH = "Apache RocketMQ 5.3 / 5.5"


class Health(Schema):
    status: Literal["up", "failed"]


class Ready(Schema):
    ready: bool
    state: str
    sentence: str


class Info(Schema):
    name: str
    version: str
    python: str
    cluster: str | None = None
    broker: str | None = None
    address: str | None = None
    started_ms: schemas.Time | None = None
    compatible_with: str


class Me(Schema):
    name: str
    role: schemas.Role


class NewToken(schemas.In):
    name: Annotated[str, Field(min_length=1, max_length=60)]
    role: schemas.Role = "viewer"
    days: Annotated[int, Field(strict=True, ge=1, le=tokens.MAX_DAYS)] | None = Field(
        None, description="null: does not expire"
    )


Token = schemas.schema_of(tokens.Token)
IssuedToken = schemas.schema_of(tokens.IssuedToken)


class Tokens(schemas.Page):
    items: list[Token]  # type: ignore[valid-type]  # made from a type


AuditRecord = schemas.schema_of(audit.AuditRecord)


class AuditRecords(schemas.Page):
    items: list[AuditRecord]  # type: ignore[valid-type]  # made from a type


@router.get("/health", response={200: Health, 503: Health}, auth=None)
async def health(request: HttpRequest):
    """The health of the process: 200 while it runs and its engine has not failed, else 503; then restart
    it."""
    failed = current_cluster().state().state == "failed"
    return Status(503, {"status": "failed"}) if failed else Status(200, {"status": "up"})


@router.get("/ready", response={200: Ready, 503: Ready}, auth=None)
async def ready(request: HttpRequest):
    """The readiness of the broker: 200 while messages can be read, else 503. For a load balancer."""
    state = current_cluster().state()
    is_ready = state.state in READY_STATES
    return Status(200 if is_ready else 503, {"ready": is_ready} | fields_of(state))


@router.get("/info", response=Info)
async def info(request: HttpRequest):
    cluster = current_cluster()
    broker = cluster.overview().broker if cluster.state().state in READY_STATES else None
    return {
        "name": "headpond",
        "version": __version__,
        "python": platform.python_version(),
        "cluster": broker and broker.cluster,
        "broker": broker and broker.name,
        "address": broker and broker.address,
        "started_ms": broker and broker.started_ms,
        "compatible_with": COMPATIBLE_WITH,
    }


@router.get("/auth/session", response=Me)
async def who_am_i(request: HttpRequest):
    caller: Caller = request.auth
    return {"name": caller.name, "role": caller.role}


@router.get("/auth/tokens", response=Tokens)
def list_tokens(request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    need(request, "admin")
    return paging.page(
        [tokens.shown(token) for token in tokens.ApiToken.objects.all()[:10_000]],
        lambda token: f"{token.id:012d}",
        cursor,
        limit,
    )


@router.post("/auth/tokens", response={201: IssuedToken})
def issue_token(request: HttpRequest, body: NewToken):
    """Create a token; its text is in this answer and nowhere else."""
    caller = need(request, "admin")
    return Status(201, tokens.issued(*token_changes.issue(caller, body.name, body.role, body.days)))


@router.delete("/auth/tokens/{int:token_id}", response={204: None})
def revoke_token(request: HttpRequest, token_id: int):
    caller = need(request, "admin")
    token_changes.revoke(caller, token_id)
    return Status(204, None)


@router.get("/audit", response=AuditRecords)
async def audit_trail(
    request: HttpRequest,
    cursor: Annotated[int | None, Query(ge=1, le=(1 << 53))] = None,
    limit: Limit = paging.DEFAULT_LIMIT,
):
    """Changes and their callers, newest first."""
    need(request, "admin")
    return await sync_to_async(_audit_page)(cursor, limit)


def _audit_page(cursor: int | None, limit: int) -> paging.Listed[audit.AuditRecord]:
    entries = LogEntry.objects.select_related("user", "content_type").order_by("-pk")
    total = entries.count()
    if cursor is not None:
        entries = entries.filter(pk__lt=cursor)
    found = list(entries[: limit + 1])
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return paging.Listed(items=list(map(audit.read, found[:limit])), next=following, total=total)
