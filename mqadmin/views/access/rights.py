"""What a caller of the dashboard may do, and why: for people who ask before they try.

Each right names a REST route that needs it. A test compares its role with the table of access, so what is
answered here is what the routes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.views.access import users
from mqadmin.web import roles, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A right, the least role that has it, and one of the routes that need it."""

    name: str
    words: str
    role: tokens.Role
    method: str
    address: str


RIGHTS = tuple(
    Right(name=name, words=words, role=cast(tokens.Role, role), method=method, address=address)
    for name, words, role, method, address in (
        ("see", "see topics, groups, messages and the store", "viewer", "GET", "/api/v1/topics"),
        ("send", "send a message", "operator", "POST", "/api/v1/topics/<topic>/messages"),
        ("reset_offsets", "move offsets", "operator", "POST", "/api/v1/groups/<group>/offsets/reset"),
        ("run_jobs", "start and cancel jobs", "operator", "POST", "/api/v1/jobs"),
        ("change_topics", "create, change and delete topics", "admin", "POST", "/api/v1/topics"),
        ("change_groups", "create, change and delete groups", "admin", "POST", "/api/v1/groups"),
        ("change_access", "change users and rules of the broker", "admin", "POST", "/api/v1/access/users"),
        ("change_users", "create and change users of the dashboard", "admin", "POST", "/api/v1/auth/users"),
        ("issue_tokens", "issue and revoke tokens", "admin", "POST", "/api/v1/auth/tokens"),
        ("read_audit", "read the audit trail", "admin", "GET", "/api/v1/audit"),
    )
)  # fmt: skip
BY_NAME = {right.name: right for right in RIGHTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAnswer:
    """May this caller do that? With the rule that decides."""

    caller: Annotated[str, "`user:NAME`, or `token:ID`"]
    right: str
    needs: Annotated[tokens.Role, "the least role that has the right"]
    role: Annotated[tokens.Role | None, "of the caller; null for one that is refused before its role counts"]
    is_allowed: bool
    why: Annotated[str, "what decides, in words"]


def answer_of(caller: str, right_name: str) -> DashboardAnswer:
    """Return whether a caller has a right. Reads the database. Raises Problem for unknown ones."""
    right = BY_NAME.get(right_name)
    if right is None:
        raise Problem("invalid", f"right: {right_name[:60]!r} is none: expected one of {', '.join(BY_NAME)}")
    kind, _, name = caller.partition(":")
    if kind == "user":
        role, reason = _of_user(name)
    elif kind == "token" and name.isascii() and name.isdigit() and len(name) < 10:
        role, reason = _of_token(int(name))
    else:
        raise Problem("invalid", f"caller: {caller[:60]!r} is none: expected user:NAME or token:ID")
    is_allowed = role is not None and Caller(caller, role).may(right.role)
    needs = f"this needs the role {right.role}"
    return DashboardAnswer(
        caller=caller,
        right=right.name,
        needs=right.role,
        role=role,
        is_allowed=is_allowed,
        why=reason if role is None else f"{needs}; {reason}",
    )


def _of_user(name: str) -> tuple[tokens.Role | None, str]:
    user = users.find(name)
    if not user.is_active:
        return None, "the user is not active, so it cannot log in"
    role = cast(tokens.Role, roles.role_of(user))
    if user.is_superuser:
        return role, "a superuser has the role admin"
    if role == "viewer":
        return role, "the user is in none of the groups admin and operator, so its role is viewer"
    return role, f"the user is in the group {role}, so its role is {role}"


def _of_token(token_id: int) -> tuple[tokens.Role | None, str]:
    token = tokens.ApiToken.objects.filter(pk=token_id).first()
    if token is None:
        raise Problem("not_found", f"there is no token {token_id}")
    if token.state != "active":
        return None, f"the token is {token.state}"
    return token.role, f"the token was issued with the role {token.role}"
