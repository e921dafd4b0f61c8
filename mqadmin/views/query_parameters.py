"""The query parameters of a page: each name with the reader of its value.

A page refuses every other name, and every value that its reader does not accept, with a sentence that states
what is allowed. A field of a form is checked by the page itself, which shows the form again; its reader here
is `text`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from broker_store.errors import NameError_
from broker_store.formats import moment
from broker_store.formats.names import in_words
from broker_store.units import fields_of

Reader = Callable[[str], object]  # raises ValueError or NameError_ for a value that it does not accept

MAX_SHOWN = 3  # sentences; an address may hold thousands of names
SHOWN_CHARACTERS = 30
MAX_ROWS = 20  # parameters that the page of a refusal shows


def text(value: str) -> str:
    """Return any text."""
    return value


def one_of(*words: str) -> Reader:
    """Return a reader of one of these words."""

    def read(value: str) -> str:
        if value not in words:
            raise ValueError(
                f"{value[:SHOWN_CHARACTERS]!r} is "
                f"{'none of ' if len(words) > 1 else 'not '}{', '.join(words)}"
            )
        return value

    return read


def number(most: int, least: int = 1) -> Reader:
    """Return a reader of a number."""
    return lambda value: whole(value, None, most, least)


PART = number((1 << 31) - 1)  # of a long list


@overload
def whole(typed: str | None, default: int, most: int = ..., least: int = ...) -> int: ...
@overload
def whole(typed: str | None, default: None, most: int = ..., least: int = ...) -> int | None: ...
def whole(typed: str | None, default: int | None, most: int = (1 << 63) - 1, least: int = 0) -> int | None:
    """Return a number from a query string, `default` when there is none. Raises ValueError when it is no
    number of least..most."""
    typed = (typed or "").strip().replace(",", "").replace(" ", "")
    if not typed:
        return default
    if not (typed.isascii() and typed.isdigit() and len(typed) < 20 and least <= int(typed) <= most):
        raise ValueError(f"{typed[:SHOWN_CHARACTERS]!r} is not a number from {least} to {most:,}")
    return int(typed)


@overload
def moment_of(text: str, default: int) -> int: ...
@overload
def moment_of(text: str, default: None) -> int | None: ...
def moment_of(text: str, default: int | None) -> int | None:
    """Return ms of a typed time (broker_store/formats/moment.py). Raises ValueError when it is none."""
    return moment.read(text) if text else default


def refusals(asked: QueryDict, takes: Mapping[str, Reader]) -> dict[str, str]:
    """Return name -> sentence for each name that a page does not take and each value that cannot be read. An
    empty value counts as absent."""
    found: dict[str, str] = {}
    for name, values in asked.lists():
        if name not in takes:
            found[name] = (
                f"The page has no field {name[:SHOWN_CHARACTERS]!r}: it takes "
                f"{', '.join(sorted(takes)) or 'nothing in its address'}."
            )
        elif len(set(values)) > 1:
            found[name] = f"{name} is given {len(values)} times, with different values: give it once."
        elif values[0].strip():
            try:
                takes[name](values[0])
            except ValueError as error:
                found[name] = f"{name} cannot be taken: {error}."
            except NameError_ as error:
                found[name] = f"{name} cannot be taken: {in_words(error)}."
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an address."""

    name: str
    value: str
    is_wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAddress:
    """The data of the page that refuses an address."""

    sentences: list[str]  # what is wrong, at most MAX_SHOWN
    more: int  # sentences that are left out
    rows: list[Parameter]  # at most MAX_ROWS
    more_rows: int
    right: str  # the query string without the wrong parameters


def refused(asked: QueryDict, wrong: dict[str, str]) -> RefusedAddress:
    right = asked.copy()
    for name in wrong:
        del right[name]
    sentences = list(wrong.values())
    rows = [
        Parameter(name=name, value=value, is_wrong=name in wrong)
        for name, values in asked.lists()
        for value in values
    ]
    return RefusedAddress(
        sentences=sentences[:MAX_SHOWN],
        more=max(0, len(sentences) - MAX_SHOWN),
        rows=rows[:MAX_ROWS],
        more_rows=max(0, len(rows) - MAX_ROWS),
        right=right.urlencode(),
    )


def only(view: Callable[..., HttpResponse], **takes: Reader) -> Callable[..., HttpResponse]:
    """Return a synchronous view, without the frame of pages, that refuses parameters that it does not
    take."""

    @functools.wraps(view)
    def guarded(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
        if wrong := refusals(request.GET, takes):
            return refusal_alone(request, list(wrong.values()))
        return view(request, *arguments, **named)

    return guarded


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAlone:
    """The data of 400.html."""

    sentences: list[str]


def refusal_alone(request: HttpRequest, sentences: list[str]) -> HttpResponse:
    """Return the answer to a wrong address of a page without the frame."""
    shown = RefusedAlone(sentences=sentences[:MAX_SHOWN])
    return render(request, "400.html", fields_of(shown), status=400)
