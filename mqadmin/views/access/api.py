"""REST of access: users and rules of the broker, users of the dashboard, and what each may do. No answer has
a password."""

from __future__ import annotations

from typing import Annotated

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Query, Router, Status
from pydantic import Field, StringConstraints

from broker_store.access.policies import MAX_ENTRIES, MAX_RESOURCE_CHARACTERS, MAX_SOURCES
from broker_store.access.users import MAX_NAME_CHARACTERS, MAX_SECRET_CHARACTERS
from mqadmin.api import paging, schemas
from mqadmin.api.auth import need
from mqadmin.api.paging import Cursor, Limit
from mqadmin.api.parameters import Confirm
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.access import (
    AccessAnswer,
    AccessRule,
    AccessState,
    AccessUser,
    AccessUserDetail,
    ImportedUsers,
    PolicyType,
    UserStatus,
    UserToImport,
    UserType,
    Verdict,
)
from mqadmin.views.access import facts, rights, users

router = Router()
MAX_ACTIONS = 10
MAX_IMPORTED = 100  # users in one request

Password = Annotated[
    str,
    Field(description="in no answer, page, log or record"),
    StringConstraints(strict=True, min_length=1, max_length=MAX_SECRET_CHARACTERS),
]
UserName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MAX_NAME_CHARACTERS)]
ResourceText = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=MAX_RESOURCE_CHARACTERS)
]
ShortText = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=64)]


class NewAccessUser(schemas.In):
    name: UserName
    password: Password
    type: UserType = "Normal"
    status: UserStatus = "enable"


class AccessUserChange(schemas.In):
    password: Password | None = None
    type: UserType | None = None
    status: UserStatus | None = None


class NewAccessRule(schemas.In):
    policy: PolicyType = "Custom"
    resource: ResourceText
    actions: Annotated[list[ShortText], Field(min_length=1, max_length=MAX_ACTIONS)]
    addresses: Annotated[list[ShortText], Field(max_length=MAX_SOURCES)] = []
    verdict: Verdict = "Allow"


class NewImportedUser(schemas.In):
    name: UserName
    password: Password
    type: UserType = "Normal"
    rules: Annotated[list[NewAccessRule], Field(max_length=MAX_ENTRIES)] = []


class NewImport(schemas.In):
    users: Annotated[list[NewImportedUser], Field(min_length=1, max_length=MAX_IMPORTED)]
    dry_run: schemas.Flag = True


class NewDashboardUser(schemas.In):
    name: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=users.MAX_NAME_CHARACTERS)]
    role: schemas.Role = "viewer"
    password: Annotated[Password, Field(description="for one login; the user then sets another")]


class DashboardUserChange(schemas.In):
    role: schemas.Role | None = None
    is_active: schemas.Flag | None = None
    password: Annotated[Password, Field(description="for one login; the user then sets another")] | None = (
        None
    )


class AccessUsersPage(schemas.Page):
    items: list[schemas.schema_of(AccessUser)]  # type: ignore[valid-type]  # made from a type


class DashboardUsersPage(schemas.Page):
    items: list[schemas.schema_of(users.DashboardUser)]  # type: ignore[valid-type]  # made from a type


UserDetail = schemas.schema_of(AccessUserDetail)


@router.get("/access", response=schemas.schema_of(AccessState))
async def access(request: HttpRequest):
    """Whether access control of the ports is on, its numbers of users and rules, and what it refused since
    the start."""
    return schemas.facts(current_cluster().access.state())


@router.get("/access/decision", response=schemas.schema_of(AccessAnswer))
async def decide(
    request: HttpRequest,
    user: Annotated[str, Query(min_length=1, max_length=MAX_NAME_CHARACTERS)],
    resource: Annotated[
        str, Query(min_length=1, max_length=MAX_RESOURCE_CHARACTERS, description="such as Topic:orders")
    ],
    action: Annotated[str, Query(max_length=64, description="Pub, Sub, Create, Update, Delete, Get or List")],
    address: Annotated[str | None, Query(max_length=64, description="of the client; none: unknown")] = None,
):
    """May this user of the broker do that? With the rule that decides."""
    return schemas.facts(current_cluster().access.decide(user, resource, action, address))


@router.get("/access/users", response=AccessUsersPage)
async def list_users(request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT):
    """Users of the broker by name."""
    found = current_cluster().access
    counts = found.state().counts
    return paging.page_after(
        found.after, lambda user: user.name, cursor, limit, 0 if counts is None else counts.users
    )


@router.post("/access/users", response={201: UserDetail})
async def create_user(request: HttpRequest, body: NewAccessUser):
    caller = need(request, "admin")
    await facts.create_user(caller, body.name, body.password, body.type, body.status)
    return Status(201, schemas.facts(current_cluster().access.detail(body.name)))


@router.get("/access/users/{path:name}", response=UserDetail)
async def show_user(request: HttpRequest, name: str):
    """A user of the broker with its rules, and what it was refused since the start."""
    return schemas.facts(current_cluster().access.detail(name))


@router.patch("/access/users/{path:name}", response=UserDetail)
async def change_user(request: HttpRequest, name: str, body: AccessUserChange):
    """Change password, type or status; what is left out stays."""
    caller = need(request, "admin")
    await facts.update_user(caller, name, password=body.password, kind=body.type, status=body.status)
    return schemas.facts(current_cluster().access.detail(name))


@router.delete("/access/users/{path:name}", response={204: None})
async def delete_user(request: HttpRequest, name: str, confirm: Confirm = None):
    """Delete a user with its rules; `confirm` is its name."""
    caller = need(request, "admin")
    await facts.delete_user(caller, name, confirm)
    return Status(204, None)


@router.post("/access/import", response=schemas.schema_of(ImportedUsers))
async def import_users(request: HttpRequest, body: NewImport):
    """Add users with their rules, all or none; those that are there stay as they are. With dry_run, the
    default, nothing is made. `manage.py access import` sends the accounts of Apache 4.9 here."""
    caller = need(request, "admin")
    given = [
        UserToImport(
            name=user.name,
            password=user.password,
            type=user.type,
            rules=list(map(_rule, user.rules)),
        )
        for user in body.users
    ]
    return await facts.import_users(caller, given, body.dry_run)


def _rule(body: NewAccessRule) -> AccessRule:
    return AccessRule(
        policy=body.policy,
        resource=body.resource,
        actions=body.actions,
        addresses=body.addresses,
        verdict=body.verdict,
    )


@router.put("/access/rules/{path:name}", response=UserDetail)
async def put_rule(request: HttpRequest, name: str, body: NewAccessRule):
    """Add a rule to a user; one for an equal resource in the same policy is replaced."""
    caller = need(request, "admin")
    return schemas.facts(await facts.put_rule(caller, name, _rule(body)))


@router.delete("/access/rules/{path:name}", response={204: None})
async def delete_rule(
    request: HttpRequest,
    name: str,
    resource: Annotated[str, Query(min_length=1, max_length=MAX_RESOURCE_CHARACTERS)],
    policy: PolicyType = "Custom",
):
    """Delete the rule of a user for a resource."""
    caller = need(request, "admin")
    await facts.delete_rule(caller, name, policy, resource)
    return Status(204, None)


# The dashboard's own


@router.get("/auth/decision", response=schemas.schema_of(rights.DashboardAnswer))
async def decide_dashboard(
    request: HttpRequest,
    caller: Annotated[str, Query(min_length=1, max_length=200, description="user:NAME, or token:ID")],
    right: Annotated[str, Query(max_length=64, description=", ".join(rights.BY_NAME))],
):
    """May this user or token of the dashboard do that? With the rule that decides."""
    need(request, "admin")
    return await sync_to_async(rights.answer_of)(caller, right)


@router.get("/auth/users", response=DashboardUsersPage)
async def list_dashboard_users(
    request: HttpRequest, cursor: Cursor = None, limit: Limit = paging.DEFAULT_LIMIT
):
    """Users of the dashboard by name."""
    need(request, "admin")
    return paging.page(await sync_to_async(users.listed)(), lambda user: user.name, cursor, limit)


@router.post("/auth/users", response={201: schemas.schema_of(users.DashboardUser)})
async def create_dashboard_user(request: HttpRequest, body: NewDashboardUser):
    """Create a user of the dashboard. The password is for one login; the user then sets another."""
    caller = need(request, "admin")
    return Status(201, await facts.create_dashboard_user(caller, body.name, body.role, body.password))


@router.patch("/auth/users/{path:name}", response=schemas.schema_of(users.DashboardUser))
async def change_dashboard_user(request: HttpRequest, name: str, body: DashboardUserChange):
    """Change role, password or whether the user is active. No user is deleted, because records name it."""
    caller = need(request, "admin")
    return await facts.change_dashboard_user(
        caller, name, role=body.role, is_active=body.is_active, password=body.password
    )
