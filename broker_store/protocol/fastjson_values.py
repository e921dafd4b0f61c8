"""Values of fastjson's dialect: objects that are keys, and the members that hold other values."""

from __future__ import annotations

from typing import Any, TypeAlias

# The deepest body that any client sends has 6 levels.
MAX_DEPTH = 64

# What holds other values. Keys are texts, ints or ObjectKeys, and members are of any kind.
Container: TypeAlias = dict[Any, Any] | list[Any]


class ObjectKey:
    """An object as a key: immutable, hashable, equal by content."""

    __slots__ = ("_hash", "members")

    def __init__(self, members: dict[str, object]):
        self.members = tuple(sorted(members.items()))
        self._hash = hash(self.members)

    def __getitem__(self, name: str) -> object:
        for member, value in self.members:
            if member == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: object = None) -> object:
        return next((value for member, value in self.members if member == name), default)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self.members == other.members

    def __repr__(self) -> str:
        return f"ObjectKey({dict(self.members)!r})"


def containers(value: object) -> list[tuple[Any, Container]]:
    """Yield (place, member) of each member that is an object or an array."""
    if isinstance(value, dict):
        return [pair for pair in value.items() if type(pair[1]) is dict or type(pair[1]) is list]
    if isinstance(value, list):
        return [pair for pair in enumerate(value) if type(pair[1]) is dict or type(pair[1]) is list]
    return []
