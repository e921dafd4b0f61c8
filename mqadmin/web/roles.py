"""Roles and their rights. Each of the three also has the rights of the one before.

    viewer     sees everything, changes nothing
    operator   sends messages, resets offsets, runs jobs
    admin      creates, changes and deletes topics and groups, and issues tokens

A superuser is admin; a member of the Django group `admin` or `operator` has that role; every other user is a
viewer.
"""

from __future__ import annotations

from collections.abc import Container

from broker_store.rest.callers import ROLES, Caller

ROLE_GROUPS = ("admin", "operator")  # groups of Django
CHOICES = [(role, role) for role in ROLES]


def role_of(user) -> str:
    """Return the role of a Django user (one query, kept at the user for the request)."""
    if user.is_superuser:
        return "admin"
    role = getattr(user, "_mqadmin_role", None)
    if role is None:
        names = set(user.groups.filter(name__in=ROLE_GROUPS).values_list("name", flat=True))
        role = user._mqadmin_role = role_of_groups(names)
    return role


def role_of_groups(names: Container[str]) -> str:
    """Return the role of a user who is no superuser, from the names of its groups."""
    return "admin" if "admin" in names else "operator" if "operator" in names else "viewer"


def caller_of(user) -> Caller:
    """Return the caller for a logged-in user."""
    return Caller(f"user:{user.get_username()}", role_of(user))


def is_admin(request) -> bool:
    """Return whether a request to the admin's pages is by an administrator."""
    user = request.user
    return user.is_active and user.is_staff and role_of(user) == "admin"
