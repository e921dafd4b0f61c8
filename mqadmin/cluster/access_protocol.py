"""The interface of access control; protocol.py has that of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
)


class Access(Protocol):
    """Access control of the ports: users and their rules. No method returns a password.

    All but `state` raise Problem while access control is off, and the changes if the store is inspected."""

    def state(self) -> AccessState:
        """Return whether access control is on, the numbers of users and rules, and the refusals."""

    def page(self, search: str, begin: int, count: int) -> tuple[list[AccessUser], int]:
        """Return `count` users from number `begin` on, of those whose names contain `search` in any case, and
        the number of all these."""

    def after(self, name: str | None, count: int) -> list[AccessUser]:
        """Return the first `count` users after a name; None is the beginning."""

    def detail(self, name: str) -> AccessUserDetail:
        """Return a user with its rules. Raises Problem if there is none."""

    def decide(self, name: str, resource: str, action: str, address: str | None) -> AccessAnswer:
        """Return whether a user may do an action on a resource, from an address (None: unknown). Raises
        Problem for an unknown user, and for a resource, action or address that is none."""

    async def create_user(self, name: str, password: str, kind: UserType, status: UserStatus) -> None:
        """Add a user. Raises Problem for a name that is taken or not allowed."""

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        """Change a user; what is None stays. Raises Problem if there is none."""

    async def delete_user(self, name: str) -> None:
        """Delete a user with its rules. Raises Problem if there is none."""

    async def put_rule(self, name: str, rule: AccessRule) -> None:
        """Add a rule, or replace the one for an equal resource in the same policy. Raises Problem if there is
        no such user, or can be no such rule."""

    async def import_users(self, users: Sequence[UserToImport], dry_run: bool) -> ImportedUsers:
        """Add the users that are not there, all or none of them. Raises Problem."""

    async def delete_rule(self, name: str, policy: PolicyType, resource: str) -> None:
        """Delete the rule of a user for a resource. Raises Problem if there is none."""
