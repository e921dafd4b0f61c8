"""Typed reading of the members of JSON objects.

Each function returns the member `name`, its default if it is missing or null, and raises FieldError with the
member's name if it has another type. Members that are not known are ignored. Whether a topic or group name is
allowed is checked by the code that uses it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from broker_store.errors import FieldError
from broker_store.protocol import fastjson

_Kind = TypeVar("_Kind")


class Members(Protocol):
    """An object of a body, or one that stands as a key (ObjectKey): its members by name, None for a missing
    one."""

    def get(self, name: str, /) -> object: ...


def loads_object(data: bytes) -> dict[Any, Any]:
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise FieldError("body", bytes(data[:50]), "an object")
    return value


def read_text(members: Members, name: str, default: str | None = None) -> str:
    return _typed(members, name, str, "text", default)


def read_int(members: Members, name: str, default: int | None = None) -> int:
    value = _typed(members, name, int, "an integer", default)
    if isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise FieldError(name, value, "a 64-bit integer")
    return value


def read_bool(members: Members, name: str, default: bool = False) -> bool:
    return _typed(members, name, bool, "true or false", default)


def read_list(members: Members, name: str) -> list[Any]:
    return _typed(members, name, list, "an array", [])


def read_object(members: Members, name: str) -> dict[Any, Any]:
    return _typed(members, name, dict, "an object", {})


def read_objects(members: Members, name: str) -> list[dict[Any, Any]]:
    values = read_list(members, name)
    for value in values:
        if not isinstance(value, dict):
            raise FieldError(name, values, "an array of objects")
    return values


def read_texts(members: Members, name: str) -> list[str]:
    values = read_list(members, name)
    for value in values:
        if not isinstance(value, str):
            raise FieldError(name, values, "an array of texts")
    return values


def _typed(members: Members, name: str, kind: type[_Kind], expected: str, default: _Kind | None) -> _Kind:
    value = members.get(name)
    if value is None:
        value = default
    if not isinstance(value, kind):
        raise FieldError(name, value, expected)
    return value
