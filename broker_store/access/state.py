"""All users and their ACLs at one moment, the changes of administrators, and the text of the file that keeps
them.

A state never changes: each change returns a new one, which becomes the state of the broker after its file was
written. The texts of errors are Apache's, as far as Apache has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker_store.access.policies import (
    MAX_ENTRIES,
    Acl,
    Policy,
    PolicyError,
    PolicyType,
    acl_info,
    read_policies,
)
from broker_store.access.resources import read_resource
from broker_store.access.users import (
    MAX_NAME_CHARACTERS,
    MAX_SECRET_CHARACTERS,
    User,
    UserStatus,
    UserType,
    read_status,
    read_type,
)
from broker_store.errors import FormatError

FILE_NAME = "access.json"
MAX_USERS = 10_000
MAX_ALL_ENTRIES = 100_000
SUBJECT_PREFIX = "User:"
ONLY_BY_SUPER = "The super user can only be update by super user"


class ChangeRefused(Exception):
    """A change that is not made. `is_denied`: its sender has not the right to it."""

    def __init__(self, text: str, *, is_denied: bool = False):
        self.is_denied = is_denied
        super().__init__(text)


def read_subject(text: object) -> str:
    """Return the user name of `User:name`. Raises ChangeRefused."""
    kind, colon, name = (text if isinstance(text, str) else "").partition(":")
    if not colon or not name or f"{kind}:".lower() != SUBJECT_PREFIX.lower():
        raise ChangeRefused("The subject is null.")
    return name


def check_user(user: User) -> None:
    """Raise ChangeRefused if there can be no such user."""
    if not user.name.strip():
        raise ChangeRefused("username can not be blank")
    if not user.secret.strip():
        raise ChangeRefused("password can not be blank")
    if len(user.name) > MAX_NAME_CHARACTERS or not user.name.isprintable():
        raise ChangeRefused(f"a username has 1 to {MAX_NAME_CHARACTERS} printable characters")
    if len(user.secret) > MAX_SECRET_CHARACTERS or not user.secret.isprintable():
        raise ChangeRefused(f"a password has 1 to {MAX_SECRET_CHARACTERS} printable characters")


@dataclass(frozen=True)
class AccessState:
    """The users by name, and the ACLs of those that have one by user name."""

    users: Mapping[str, User] = field(default_factory=dict)
    acls: Mapping[str, Acl] = field(default_factory=dict)

    # Users

    def with_user(self, user: User) -> AccessState:
        """Add a user, or replace the one of its name. Raises ChangeRefused."""
        check_user(user)
        if user.name not in self.users and len(self.users) >= MAX_USERS:
            raise ChangeRefused(f"there are {len(self.users)} users, of at most {MAX_USERS}")
        return AccessState({**self.users, user.name: user}, self.acls)

    def created(self, user: User, by: User | None) -> AccessState:
        """Return the state with a new user. Raises ChangeRefused."""
        if user.is_super and by is not None and not by.is_super:
            raise ChangeRefused("The super user can only be create by super user", is_denied=True)
        check_user(user)
        if user.name in self.users:
            raise ChangeRefused("The user is existed")
        return self.with_user(user)

    def updated(
        self,
        name: str,
        by: User | None,
        *,
        secret: str = "",
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> AccessState:
        """Return the state with other facts of a user; what is not given stays. Raises ChangeRefused."""
        if kind == UserType.SUPER and by is not None and not by.is_super:
            raise ChangeRefused(ONLY_BY_SUPER, is_denied=True)
        old = self.users.get(name)
        if old is None:
            raise ChangeRefused("The user is not exist")
        if old.is_super and by is not None and not by.is_super:
            raise ChangeRefused(ONLY_BY_SUPER)
        return self.with_user(User(name, secret or old.secret, kind or old.type, status or old.status))

    def without_user(self, name: str, by: User | None) -> AccessState:
        """Return the state without a user and its ACL. Raises ChangeRefused."""
        if not name.strip():
            raise ChangeRefused("username can not be blank")
        old = self.users.get(name)
        if old is None:
            return self
        if old.is_super and by is not None and not by.is_super:
            raise ChangeRefused(ONLY_BY_SUPER)
        users = {known: user for known, user in self.users.items() if known != name}
        return AccessState(users, _without(self.acls, name))

    # ACLs

    def with_policies(self, name: str, given: Iterable[Policy]) -> AccessState:
        """Return the state after a change of the ACL of a user. Raises ChangeRefused."""
        if name not in self.users:
            raise ChangeRefused(f"The subject of {SUBJECT_PREFIX}{name} is not exist.")
        old = self.acls.get(name)
        new = Acl(tuple(given)) if old is None else old.updated(given)
        count = new.rules + sum(acl.rules for known, acl in self.acls.items() if known != name)
        if new.rules > MAX_ENTRIES or count > MAX_ALL_ENTRIES:
            raise ChangeRefused(
                f"a user has at most {MAX_ENTRIES} entries, all together have {MAX_ALL_ENTRIES}"
            )
        return AccessState(self.users, {**self.acls, name: new})

    def without_policies(self, name: str, kind: PolicyType, resource_text: str | None) -> AccessState:
        """Return the state without the entries of a user for a resource in the policy of a type; without its
        ACL if no resource is given. Raises ChangeRefused."""
        acl = self.acl_of(name)
        if acl is None:
            raise ChangeRefused("The acl is not exist.")
        if not resource_text:
            return AccessState(self.users, _without(self.acls, name))
        resource = read_resource(resource_text)
        kept = acl.filtered(lambda policy, rule: rule.resource != resource or policy.type != kind)
        acls = {**self.acls, name: kept} if kept.policies else _without(self.acls, name)
        return AccessState(self.users, acls)

    def acl_of(self, name: str) -> Acl | None:
        """Return the ACL of a user, None if it has none. Raises ChangeRefused for an unknown user."""
        if name not in self.users:
            raise ChangeRefused("The subject is not exist.")
        return self.acls.get(name)

    # The file

    def text(self) -> bytes:
        """Return the text of the file. It has the secrets, so only its owner may read it."""
        users = [
            {
                "username": user.name,
                "password": user.secret,
                "userType": str(user.type),
                "userStatus": str(user.status),
            }
            for user in self.users.values()
        ]
        acls = [acl_info(f"{SUBJECT_PREFIX}{name}", acl) for name, acl in self.acls.items()]
        # A line each: the encoder with an indent is not compiled, and takes seconds for the largest state
        lists = (f'"{name}": [\n{_lines(values)}\n]' for name, values in (("users", users), ("acls", acls)))
        return f"{{{', '.join(lists)}}}\n".encode()


def _lines(values: Iterable[object]) -> str:
    return ",\n".join(json.dumps(value, ensure_ascii=False) for value in values)


def _without(acls: Mapping[str, Acl], name: str) -> dict[str, Acl]:
    return {known: acl for known, acl in acls.items() if known != name}


def read_file(text: str) -> AccessState:
    """Return the state in the text of the file. Raises FormatError, whose text has nothing of the file but
    names of users."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise FormatError("is not readable as JSON") from None
    users, acls = _list(value, "users"), _list(value, "acls")
    found: dict[str, User] = {}
    for number, item in enumerate(users):
        user = _read_user(item)
        if user is None or user.name in found:
            what = "lacks a name, a password, a type or a status, or has the name of another"
            raise FormatError(f"user number {number + 1} {what}")
        try:
            check_user(user)
        except ChangeRefused as error:
            raise FormatError(f"user number {number + 1} is wrong: {error}") from None
        found[user.name] = user
    if len(found) > MAX_USERS:
        raise FormatError(f"has {len(found)} users, of at most {MAX_USERS}")
    return AccessState(found, _read_acls(acls, found))


def _read_acls(values: list[object], users: Mapping[str, User]) -> dict[str, Acl]:
    acls: dict[str, Acl] = {}
    entries = 0
    for number, item in enumerate(values):
        given = item if isinstance(item, dict) else {}
        try:
            name = read_subject(given.get("subject"))
            acl = Acl(read_policies(given.get("policies"), is_strict=True, have_types=True))
        except (ChangeRefused, PolicyError) as error:
            raise FormatError(f"ACL number {number + 1} is wrong: {error}") from None
        if name not in users or name in acls:
            raise FormatError(f"ACL number {number + 1} is for no user, or for one that has another")
        entries += acl.rules
        acls[name] = acl
    if entries > MAX_ALL_ENTRIES:
        raise FormatError(f"has {entries} entries of policies, of at most {MAX_ALL_ENTRIES}")
    return acls


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object. Raises FormatError if a name is in it twice: the first one would be left out."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FormatError("has an object with the same name twice")
    return found


def _list(value: object, name: str) -> list[object]:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise FormatError(f"must have a list {name}")
    return found


def _read_user(item: object) -> User | None:
    if not isinstance(item, dict):
        return None
    texts = [item.get(name) for name in ("username", "password", "userType", "userStatus")]
    name, secret, kind_text, status_text = (text if isinstance(text, str) else "" for text in texts)
    kind, status = read_type(kind_text), read_status(status_text)
    return User(name, secret, kind, status) if name and secret and kind and status else None
