"""What pages and REST share: the changes of users, rules and tokens, each with its audit record."""

from __future__ import annotations

from collections.abc import Sequence

from asgiref.sync import sync_to_async

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin import audit, token_changes
from mqadmin.audit import aaudited, audited
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.access import (
    AccessRule,
    AccessUserDetail,
    ImportedUsers,
    PolicyType,
    UserStatus,
    UserToImport,
    UserType,
)
from mqadmin.views.access import users
from mqadmin.web import tokens
from mqadmin.web.tokens import Role

KINDS = ("user", "acl")  # of audit records of the broker's users; `acl` are rules
DASHBOARD_KINDS = (audit.DASHBOARD_USER, "apitoken")
SHOWN_CHANGES = 12
SHOWN_TOKENS = 200  # the newest, with revoked ones
SUBJECT = "User:"  # before the name of a user in the records of its rules, as through the broker port


def rule_text(rule: AccessRule) -> str:
    """Return a rule in words, as an audit record has it."""
    addresses = f" from {', '.join(rule.addresses)}" if rule.addresses else ""
    return f"{rule.policy}: {rule.verdict} {', '.join(rule.actions)} on {rule.resource}{addresses}"


async def create_user(caller: Caller, name: str, password: str, kind: UserType, status: UserStatus) -> None:
    async with aaudited(caller, "create", "user", name, type=kind, status=status):
        await current_cluster().access.create_user(name, password, kind, status)


async def update_user(
    caller: Caller, name: str, *, password: str | None, kind: UserType | None, status: UserStatus | None
) -> None:
    """Change a user. The record has that its password was changed, and no password."""
    before = current_cluster().access.detail(name)
    wanted = {"type": kind, "status": status, "password": None if password is None else "changed"}
    after = {field: value for field, value in wanted.items() if value is not None}
    if after:
        old = {field: getattr(before, field) for field in after if field != "password"}
        async with aaudited(caller, "update", "user", name, before=old, after=after):
            await current_cluster().access.update_user(name, password=password, kind=kind, status=status)


async def delete_user(caller: Caller, name: str, confirm: str | None) -> None:
    """Delete a user with its rules; `confirm` is its name once more. Raises Problem."""
    before = current_cluster().access.detail(name)
    old = {"type": before.type, "status": before.status, "rules": list(map(rule_text, before.rules))}
    async with aaudited(caller, "delete", "user", name, before=old):
        if confirm != name:
            raise Problem(
                "confirmation_needed",
                f"deleting the user {name} deletes its {before.rule_count} rules; its clients are refused",
                hint="repeat with confirm= and its name",
            )
        await current_cluster().access.delete_user(name)


async def put_rule(caller: Caller, name: str, rule: AccessRule) -> AccessUserDetail:
    async with aaudited(caller, "update", "acl", f"{SUBJECT}{name}", rule=rule_text(rule)) as record:
        record["before"] = list(map(rule_text, current_cluster().access.detail(name).rules))
        await current_cluster().access.put_rule(name, rule)
    return current_cluster().access.detail(name)


async def import_users(caller: Caller, given: Sequence[UserToImport], dry_run: bool) -> ImportedUsers:
    """Add the users that are not there, all or none. A dry run changes nothing, and leaves no record."""
    if dry_run:
        return await current_cluster().access.import_users(given, True)
    async with aaudited(caller, "import", "user", f"{len(given)} users") as record:
        made = await current_cluster().access.import_users(given, False)
        record |= {"created": made.created, "skipped": made.skipped}
    return made


async def delete_rule(caller: Caller, name: str, policy: PolicyType, resource: str) -> None:
    async with aaudited(
        caller, "delete", "acl", f"{SUBJECT}{name}", policy=policy, resource=resource
    ) as record:
        record["before"] = list(map(rule_text, current_cluster().access.detail(name).rules))
        await current_cluster().access.delete_rule(name, policy, resource)


# Users and tokens of the dashboard. These read and write the database, so they run in threads.


@sync_to_async
def create_dashboard_user(caller: Caller, name: str, role: Role, password: str) -> users.DashboardUser:
    with audited(caller, "create", audit.DASHBOARD_USER, name, role=role):
        return users.create(name, role, password)


@sync_to_async
def change_dashboard_user(
    caller: Caller, name: str, *, role: Role | None, is_active: bool | None, password: str | None
) -> users.DashboardUser:
    user = users.find(name)
    old = users.shown(user)
    wanted = {"role": role, "is_active": is_active, "password": None if password is None else "changed"}
    after = {field: value for field, value in wanted.items() if value is not None}
    if not after:
        return old
    before = {field: getattr(old, field) for field in after if field != "password"}
    with audited(caller, "update", audit.DASHBOARD_USER, name, before=before, after=after):
        return users.change(user, caller, role=role, is_active=is_active, password=password)


def shown_tokens() -> list[tokens.Token]:
    """Return the newest tokens, without their texts."""
    return [tokens.shown(token) for token in tokens.ApiToken.objects.all()[:SHOWN_TOKENS]]


@sync_to_async
def issue_token(caller: Caller, name: str, role: Role, days: int | None) -> str:
    """Issue a token; return its text, which is kept nowhere. Raises Problem."""
    return token_changes.issue(caller, name, role, days)[1]


@sync_to_async
def revoke_token(caller: Caller, id_text: str) -> None:
    """End a token. Raises Problem if there is none."""
    if not (id_text.isascii() and id_text.isdigit() and len(id_text) < 10):
        raise Problem("not_found", f"there is no token {id_text[:20]!r}")
    token_changes.revoke(caller, int(id_text))
