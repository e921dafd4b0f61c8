"""What the annotations of facts say about their numbers.

A fact is what was measured: a frozen dataclass with slots, declared in the room that measures it. Its fields
are the names of its JSON, in their order, and None is "not known". A unit stands in a field's name (`_ms`,
`_bytes`, `_per_s`) or in a comment beside it. A text in its annotation is its description in REST's contract.

A whole number may need 64 bits, so REST gives it as a string; one that is `Small` is a number there. A name
that Python keeps for itself has an underscore after it, which JSON does not have: `from_` is `from`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

Fact = TypeVar("Fact")

# JSON that is passed on: of Redis, of a command, of REST. What is read of it becomes a fact
Document = dict[str, Any]

SMALL = object()
Small = Annotated[int, SMALL]  # stays below 2**31
MOMENT = "milliseconds since 1970"
Moment = Annotated[int, MOMENT]


def fields_of(fact: Any) -> dict[str, Any]:
    """The fields of a fact and their values, which are not copied."""
    fields = small_by_field(type(fact))  # type: ignore[arg-type]  # mypy sees the hash of an object of it
    return {name: getattr(fact, name) for name in fields}


def json_name(field: str) -> str:
    """The name in JSON of a field of facts."""
    return field.removesuffix("_")


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a type of facts: a list may have thousands of them to read."""
    return typing.get_type_hints(kind, include_extras=True)


@functools.cache
def small_by_field(kind: type) -> dict[str, bool]:
    """The names of the fields of a type of facts, each with whether its whole numbers are `Small`."""
    hints = _hints_of(kind)
    return {field.name: _is_small(hints[field.name]) for field in dataclasses.fields(kind)}


def _is_small(hint: Any) -> bool:
    return SMALL in getattr(hint, "__metadata__", ()) or any(map(_is_small, typing.get_args(hint)))


def document_of(value: Any) -> Any:
    """Facts as JSON has them: those in a value as dicts, the rest as it is."""
    if dataclasses.is_dataclass(value):
        return {json_name(name): document_of(item) for name, item in fields_of(value).items()}
    if isinstance(value, dict):
        return {key: document_of(item) for key, item in value.items()}
    return [document_of(item) for item in value] if isinstance(value, list | tuple) else value


class FactError(ValueError):
    """JSON that does not have the fields of a fact, as that of another version."""


def fact_of(kind: type[Fact], document: Document) -> Fact:
    """The fact whose JSON is `document`, as REST gives it; what the type does not have is left out.

    A field that is missing has its default, or is None where it may be. Raises FactError when another is
    missing, or one is of another type.
    """
    try:
        return typing.cast(Fact, _read(kind, document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FactError(f"no {kind.__name__}: {error!r}") from error


def _read_one(kinds: list[Any], value: Any) -> Any:
    """A value of one of several types; of types of facts the one that has most of the value's fields."""
    if len(kinds) > 1 and isinstance(value, dict):
        fields = {kind: set(map(json_name, small_by_field(kind))) for kind in kinds}
        fitting = [kind for kind in kinds if fields[kind] <= value.keys()]
        if not fitting:
            raise ValueError(f"no type has the fields {', '.join(value)}")
        kinds = [max(fitting, key=lambda kind: len(fields[kind]))]
    return _read(kinds[0], value) if len(kinds) == 1 else value


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _read(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _read_one(kinds, value)
    if origin is list:
        return [_read(arguments[0], item) for item in value]
    if origin is dict:
        return {key: _read(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        hints = _hints_of(hint)  # type: ignore[arg-type]  # it is a class
        found = {}
        for field in dataclasses.fields(hint):
            name = json_name(field.name)
            if name in value or not _may_be_missing(field, hints[field.name]):
                found[field.name] = _read(hints[field.name], value[name])
            elif field.default is field.default_factory is dataclasses.MISSING:
                found[field.name] = None
        return hint(**found)  # type: ignore[operator]  # it is a class
    return int(value) if hint is int else float(value) if hint is float else value


def _may_be_missing(field: dataclasses.Field[Any], hint: Any) -> bool:
    has_default = not (field.default is field.default_factory is dataclasses.MISSING)
    while typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return has_default or types.NoneType in typing.get_args(hint)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each text in it changed; facts, dicts and lists are copied."""
    if isinstance(value, str):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {name: with_texts(item, change) for name, item in fields_of(value).items()}
        return dataclasses.replace(value, **changed)
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, list) else value
