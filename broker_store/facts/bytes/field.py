"""A field of a file's bytes: name, place, value in words, meaning, and what it points to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from broker_store.facts.pointers import Pointer
from broker_store.formats.layout import Layout

MAX_TIME_MS = 253_402_300_800_000  # the year 10000, which no clock here shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value in a file's bytes."""

    name: str
    title: str
    at: int  # position in the sequence of files
    length: int  # bytes
    raw: int | None  # the number that the bytes hold; None: they hold none
    value: str  # the same in words
    meaning: str
    pointer: Pointer | None  # the place that the value names
    right: bool | None  # whether it agrees with what else is known; None: nothing to compare with


@dataclass(frozen=True, slots=True)
class Reading:
    """What a number means where it stands."""

    value: str  # in words
    pointer: Pointer | None = None
    right: bool | None = None


def number(name: str, value: int) -> Reading:
    """Read a number that is nothing more."""
    return Reading(f"{value:,}")


def field(
    meanings: Mapping[str, str],
    name: str,
    at: int,
    length: int,
    reading: Reading,
    raw: int | None = None,
) -> Field:
    """Return the field `name`, whose meaning is in `meanings`."""
    return Field(
        name=name,
        title=name.replace("_", " "),
        at=at,
        length=length,
        raw=raw,
        value=reading.value,
        meaning=meanings[name],
        pointer=reading.pointer,
        right=reading.right,
    )


def of_layout(
    meanings: Mapping[str, str],
    layout: Layout,
    buffer: bytes,
    at: int,
    read: Callable[[str, int], Reading] = number,
) -> list[Field]:
    """Return the fields of the layout that `buffer` begins with; `read(name, value)` says what each value
    means."""
    ends = [*list(layout.offset.values())[1:], layout.size]
    return [
        field(
            meanings,
            name,
            at + start,
            end - start,
            read(name, value),
            value if isinstance(value, int) else None,
        )
        for (name, start), end, value in zip(layout.offset.items(), ends, layout.unpack(buffer), strict=True)
    ]


def edited(fields: list[Field], name: str, edit: Callable[[Field], Field]) -> list[Field]:
    """Return the fields with the one called `name` as `edit` returns it."""
    return [edit(one) if one.name == name else one for one in fields]


def judged(fields: list[Field], name: str, right: bool) -> list[Field]:
    """Return the fields with whether the one called `name` is right."""
    return edited(fields, name, lambda one: replace(one, right=right))


def time_words(time_ms: int) -> str:
    """Return the milliseconds and the time in UTC that they stand for."""
    if not 0 < time_ms < MAX_TIME_MS:
        return f"{time_ms} (no time)"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{time_ms} ({moment.replace('+00:00', 'Z')})"
