"""Access control of the broker's ports. No fact that is shown has a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from broker_store.units import Moment, Small

UserType: TypeAlias = Literal["Normal", "Super"]
UserStatus: TypeAlias = Literal["enable", "disable"]
PolicyType: TypeAlias = Literal["Custom", "Default"]
Verdict: TypeAlias = Literal["Allow", "Deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequests:
    """Requests that access control refused since the start, by cause and user."""

    cause: Annotated[str, "not authenticated: no proof of who sends it; not authorized: no right to it"]
    user: Annotated[str | None, "null: without a name, with the name of no user, or beyond 1,000 users"]
    count: int
    at_ms: Moment  # of the last one
    address: Annotated[str, "where the last one came from"]
    answer: Annotated[str, "the text that its sender got"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessUsers:
    """The numbers of users and rules."""

    users: Small
    super_users: Small
    disabled: Small
    rules: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessState:
    """Whether access control is on, and what it refused."""

    authenticates: Annotated[bool, "each request must be signed by a known user"]
    authorizes: Annotated[bool, "a user needs a right for each request"]
    inspects: Annotated[bool, "the store is only read, and its users are not"]
    cluster: Annotated[str, "the name in rules about the cluster"]
    open_to_all: Annotated[list[str], "requests that need no signature: authenticationWhitelist"]
    open_to_users: Annotated[list[str], "requests that need no right: authorizationWhitelist"]
    counts: Annotated[AccessUsers | None, "null while access control is off: users are not read then"]
    refusals: Annotated[list[RefusedRequests], "the latest first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessUser:
    """A user of the ports."""

    name: str
    type: Annotated[UserType, "a Super user may do everything"]
    status: Annotated[UserStatus, "requests of a user with the status disable are refused"]
    is_of_settings: Annotated[bool, "the settings make it again at a start where it is missing"]
    rule_count: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """A rule of a user."""

    policy: Annotated[PolicyType, "rules of Default decide only where none of Custom matches"]
    resource: Annotated[str, "`*`, `Type:*`, `Type:prefix*` or `Type:name`"]
    actions: list[str]
    addresses: Annotated[list[str], "source addresses and blocks; none: all"]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessUserDetail(AccessUser):
    """A user of the ports with its rules, and what it was refused since the start."""

    rules: list[AccessRule]
    refusals: list[RefusedRequests]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedUsers:
    """What an import of users made, or would make."""

    dry_run: Annotated[bool, "nothing was made"]
    created: list[str]
    skipped: Annotated[list[str], "there is a user of that name, which stays as it is"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToImport:
    """A user that an import adds. Its password is in no text of it."""

    name: str
    password: str = field(repr=False)
    type: UserType
    rules: list[AccessRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAnswer:
    """May this user do that? With the rule that decides."""

    user: str
    resource: str
    action: str
    address: str | None
    is_allowed: bool
    why: Annotated[str, "what decides, in words"]
    rule: Annotated[AccessRule | None, "null if no rule decides"]
