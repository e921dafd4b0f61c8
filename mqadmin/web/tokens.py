"""API tokens: made once, shown once, kept as hashes.

The token itself is `mq_` and 256 random bits. Only its SHA-256 is stored (`TokenTable` in
broker_store/rest/callers.py explains why that is enough), with the first characters, by which a user
recognizes a token. Requests never read the database: the process holds a copy in memory, `TABLE`. It is
replaced at each change made here and, for changes by another process (a command run without the broker's
socket), twice a second by `watch`. So a revoked token ends within a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, models
from django.utils import timezone

from broker_store.rest.callers import Caller, TokenTable
from broker_store.units import Small, fields_of
from mqadmin.web import roles

log = logging.getLogger(__name__)

Role: TypeAlias = Literal["viewer", "operator", "admin"]
State: TypeAlias = Literal["active", "expired", "revoked"]

TABLE = TokenTable()
REFRESH_SECONDS = 0.5
MAX_TOKENS = 1_000  # of those that are not revoked
MAX_DAYS = 3_650  # for longer, issue a token that does not expire
SHOWN_CHARACTERS = 9  # of the token: `mq_` and six more


class ApiToken(models.Model):
    """A token of a program. Revoked ones stay, so that `token:NAME` in audit records keeps its meaning."""

    name = models.CharField(max_length=60, help_text="what uses it; shown in the audit records as token:NAME")
    role = models.CharField(max_length=10, choices=roles.CHOICES, default="viewer")
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    start = models.CharField("begins with", max_length=SHOWN_CHARACTERS, editable=False)
    created_by = models.CharField(max_length=160, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        app_label = "mqadmin"
        verbose_name = "API token"
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"{self.name} ({self.start}…)"

    def clean(self) -> None:
        """Refuse a name with characters that control a terminal or break a line of the audit trail."""
        if not self.name.isprintable():
            raise ValidationError({"name": "A name has printable characters only."})

    @property
    def state(self) -> State:
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= timezone.now() else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as REST and commands show it, without its text."""

    id: Small
    name: str
    role: Role
    start: str  # of its text
    state: State
    created_by: str
    created_at: str
    expires_at: str | None  # None: it does not expire
    last_used_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken(Token):
    """A new token."""

    token: Annotated[str, "shown this once"]


def shown(token: ApiToken) -> Token:
    return Token(
        id=token.pk,
        name=token.name,
        role=token.role,
        start=token.start,
        state=token.state,
        created_by=token.created_by,
        created_at=token.created_at.isoformat(),
        expires_at=token.expires_at and token.expires_at.isoformat(),
        last_used_at=token.last_used_at and token.last_used_at.isoformat(),
    )


def issued(token: ApiToken, text: str) -> IssuedToken:
    """Return a new token with its text."""
    return IssuedToken(**fields_of(shown(token)), token=text)


class TooManyTokens(Exception):
    """MAX_TOKENS tokens are in use."""


def issue(
    name: str, role: str, created_by: str, days: int | None = None, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """Make a token; return it and its text, which is stored nowhere. It expires in `days`, or at a time, or
    never.

    Raises ValidationError, TooManyTokens.
    """
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise ValidationError({"days": f"A token is good for 1 to {MAX_DAYS:,} days."})
    if ApiToken.objects.filter(revoked_at=None).count() >= MAX_TOKENS:
        raise TooManyTokens(f"{MAX_TOKENS} tokens are in use; revoke some")
    text = "mq_" + secrets.token_urlsafe(32)
    token = ApiToken(
        name=name,
        role=role,
        created_by=created_by,
        digest=hashlib.sha256(text.encode()).digest(),
        start=text[:SHOWN_CHARACTERS],
    )
    token.expires_at = timezone.now() + timedelta(days=days) if days is not None else expires_at
    token.full_clean(exclude=["digest"])
    token.save()
    refresh()
    return token, text


def what_is_wrong(error: ValidationError) -> str:
    """Return which values a token cannot have, and why."""
    return "; ".join(
        f"{name}: {' '.join(messages).rstrip('.')}" for name, messages in error.message_dict.items()
    )


def revoke(token: ApiToken) -> None:
    """End a token, at once in this process."""
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
    refresh()


def refresh(table: TokenTable = TABLE) -> None:
    """Fill the table in memory from the database, and store which tokens were used."""
    used = table.take_used()
    if used:
        ApiToken.objects.filter(digest__in=used).update(last_used_at=timezone.now())
    now = timezone.now()
    callers = {}
    for name, role, digest, expires_at in ApiToken.objects.filter(revoked_at=None).values_list(
        "name", "role", "digest", "expires_at"
    ):
        if expires_at is None or expires_at > now:
            callers[bytes(digest)] = (
                Caller(f"token:{name}", role),
                int(expires_at.timestamp() * 1000) if expires_at else 0,
            )
    table.replace(callers)


def _refresh_in_thread() -> None:
    try:
        refresh()
    finally:
        connection.close_if_unusable_or_obsolete()


async def watch() -> None:
    """Refresh the table until cancelled. When the database does not answer, keep the last copy, and log it
    once."""
    failing = False
    while True:
        try:
            await asyncio.to_thread(_refresh_in_thread)
            failing = False
        except DatabaseError as error:
            if not failing:
                log.warning("the token table cannot be read, tokens stay as they were: %s", error)
            failing = True
        await asyncio.sleep(REFRESH_SECONDS)
