"""Users of the dashboard: people who log in. Their role is their membership in a group (roles.py).

An administrator sets a password that is good for one login; the user then sets another, which only the user
knows. No user is deleted, because audit records name it: it is made inactive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.models import FirstLogin
from mqadmin.web import roles
from mqadmin.web.tokens import Role

MAX_USERS = 1_000
MAX_NAME_CHARACTERS = 150  # of Django's table
MAX_PASSWORD_CHARACTERS = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardUser:
    """A user of the dashboard."""

    name: str
    role: Role
    is_superuser: Annotated[bool, "has the role admin without a group"]
    is_active: Annotated[bool, "may log in"]
    is_one_time: Annotated[bool, "has a password for one login, and has not set another"]
    last_login: str | None  # ISO 8601, UTC; None: never


def everyone() -> QuerySet[User]:
    """Return the users by name. The callers of the audit trail that cannot log in (`token:NAME`) are none."""
    found = get_user_model().objects.exclude(username__contains=":").select_related("first_login")
    return found.prefetch_related("groups").order_by("username")


def listed() -> list[DashboardUser]:
    """Return the first MAX_USERS users by name."""
    return list(map(shown, everyone()[:MAX_USERS]))


def find(name: str) -> User:
    """Return a user. Raises Problem if there is none."""
    user = everyone().filter(username=name).first() if len(name) <= MAX_NAME_CHARACTERS else None
    if user is None:
        raise Problem("not_found", f"there is no user {name[:60]!r} of the dashboard")
    return user


def shown(user: User) -> DashboardUser:
    names = [group.name for group in user.groups.all()]  # `listed` has read them for all users
    role = "admin" if user.is_superuser else roles.role_of_groups(names)
    return DashboardUser(
        name=user.username,
        role=cast(Role, role),
        is_superuser=user.is_superuser,
        is_active=user.is_active,
        is_one_time=hasattr(user, "first_login"),
        last_login=None if user.last_login is None else user.last_login.isoformat(timespec="seconds"),
    )


@transaction.atomic
def create(name: str, role: Role, password: str) -> DashboardUser:
    """Make a user with a password for one login. Raises Problem."""
    User = get_user_model()
    if User.objects.count() >= MAX_USERS:
        raise Problem("limit_reached", f"there are {MAX_USERS} users", "use one that is inactive again")
    if User.objects.filter(username=name).exists():
        raise Problem("conflict", f"user {name} exists", "change it")
    user = User(username=name, is_staff=role != "viewer")
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise Problem("invalid", f"name: {' '.join(error.messages)}".rstrip(".")) from None
    _set_password(user, password)
    _set_role(user, role)
    return shown(find(name))


@transaction.atomic
def change(
    user: User,
    by: Caller,
    *,
    role: Role | None = None,
    is_active: bool | None = None,
    password: str | None = None,
) -> DashboardUser:
    """Change a user; what is None stays. A changed password and an inactive user end its sessions. Raises
    Problem."""
    takes_admin = (role is not None and role != "admin") or is_active is False
    if takes_admin and by.name == f"user:{user.username}":
        raise Problem("conflict", "you cannot take your own role or make yourself inactive")
    if role is not None and user.is_superuser and role != "admin":
        raise Problem("conflict", f"{user.username} is a superuser, who has the role admin without a group")
    if takes_admin and roles.role_of(user) == "admin" and not _other_admins(user):
        raise Problem("conflict", f"{user.username} is the last active administrator")
    if is_active is not None:
        user.is_active = is_active
        user.save(update_fields=["is_active"])
    if role is not None and not user.is_superuser:
        _set_role(user, role)
    if password is not None:
        _set_password(user, password)
    return shown(find(user.username))


def _other_admins(user: User) -> bool:
    is_admin = Q(is_superuser=True) | Q(groups__name="admin")
    return get_user_model().objects.filter(is_admin, is_active=True).exclude(pk=user.pk).exists()


def _set_password(user: User, password: str) -> None:
    if len(password) > MAX_PASSWORD_CHARACTERS:
        raise Problem("invalid", f"password: at most {MAX_PASSWORD_CHARACTERS} characters")
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Problem("invalid", f"password: {' '.join(error.messages)}".rstrip(".")) from None
    user.set_password(password)
    user.save()
    FirstLogin.objects.update_or_create(user=user, defaults={"used_at": None})


def _set_role(user: User, role: Role) -> None:
    for name in roles.ROLE_GROUPS:
        group, _ = Group.objects.get_or_create(name=name)
        (user.groups.add if name == role else user.groups.remove)(group)
    user.is_staff = role != "viewer"
    user.save(update_fields=["is_staff"])
