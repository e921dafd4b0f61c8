"""Users that are added together, with their rules: all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_store.access.policies import Policy
from broker_store.access.state import AccessState, ChangeRefused
from broker_store.access.users import User


class Imported(NamedTuple):
    """The state after an import, the names of the users that it added, and of those that were there, which
    stay as they are."""

    state: AccessState
    created: list[str]
    skipped: list[str]


def with_imported(before: AccessState, given: Iterable[tuple[User, Sequence[Policy]]]) -> Imported:
    """Add users that are not there. Raises ChangeRefused, with the name of the user that there cannot be."""
    found = Imported(before, [], [])
    for user, policies in given:
        if user.name in before.users:
            found.skipped.append(user.name)
            continue
        found.created.append(user.name)
        try:
            state = found.state.created(user, None)
            for policy in policies:
                state = state.with_policies(user.name, [policy])
        except ChangeRefused as error:
            raise ChangeRefused(f"user {user.name[:60]}: {error}") from None
        found = found._replace(state=state)
    return found
