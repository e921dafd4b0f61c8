"""The base of all pages: the role that a page needs, the frame around it, and the page that is shown while
the broker does not serve.

A page that uses the store is a coroutine on the broker's own loop: it reads facts and does not block. `page`
is its guard. User and role were read before (`identify_caller` in web/middleware.py), so views and templates
query nothing.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from broker_store.engine.status.store_state import Snapshot
from broker_store.errors import NameError_, NotFoundError, StoreClosedError, StoreError
from broker_store.facts.starts import StartReport
from broker_store.formats import names
from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.overview import State
from mqadmin.views.query_parameters import Reader, moment_of, refusals, refused, whole
from mqadmin.web import roles
from mqadmin.web.failures import note_store_failure

Row = TypeVar("Row")

# (url name, title, icon); the first piece of an address finds its entry.
NAVIGATION = (
    ("overview", "Overview", ""),
    ("topics", "Topics", "topics"),
    ("messages", "Messages", "messages"),
    ("groups", "Groups", "groups"),
    ("store", "Store", "store"),
    ("pipeline", "Pipeline", "pipeline"),
    ("jobs", "Jobs", "jobs"),
    ("access", "Access", "access"),
)
DAY_MS = 24 * 3_600_000
# In these states there are no topics and groups to show; `closed` is the state while the broker stops.
NOT_SERVING = frozenset({"starting", "opening", "recovering", "failed", "closed"})


def page(role: str = "viewer", takes: Mapping[str, Reader] = MappingProxyType({})):
    """Return a decorator for a view that needs at least `role`, at an address with no other parameters than
    `takes`. Errors (broker_store/errors.py) become pages that state what is wrong. A POST takes a form, and
    no parameters in its address."""

    def decorate(view):
        @functools.wraps(view)
        async def guarded(request: HttpRequest, *arguments, **named) -> HttpResponse:
            if not request.user.is_authenticated:
                return to_login(request)
            request.caller = roles.caller_of(request.user)
            if not request.caller.may(role):
                request.refused = request.caller
                return failure_page(
                    request,
                    403,
                    "Not allowed",
                    f"This needs the role {role}; you have the role {request.caller.role}.",
                )
            if wrong := refusals(request.GET, {} if request.method == "POST" else takes):
                return render(request, "refused.html", fields_of(refused(request.GET, wrong)), status=400)
            try:
                return await view(request, *arguments, **named)
            except StoreClosedError:
                return render(
                    request,
                    "starting.html",
                    fields_of(starting_page()),
                    status=503 if request.htmx else 200,
                )
            except (NotFoundError, NameError_) as error:
                return failure_page(request, 404, "Not found", f"{capital(said(error))}.")
            except Problem as problem:
                return failure_page(request, problem.status, problem.title, sentence_of(problem))
            except StoreError as error:
                note_store_failure(request, error)
                return failure_page(
                    request,
                    500,
                    "The store could not be read",
                    f"{capital(said(error))}. The doctor (page Store) finds all damage.",
                )
            except TimeoutError:
                return failure_page(
                    request, 504, "Took too long", "The outcome is unknown; check it before you repeat it."
                )

        # Tests read it, and request each page with values that it does not take.
        guarded.takes = takes  # type: ignore[attr-defined]  # functions have no such attribute
        return guarded

    return decorate


def by_method(show: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    """Return the view of an address that shows something, and that changes something on a POST; both have
    their own `page`."""

    async def view(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
        return await (change if request.method == "POST" else show)(request, *arguments, **named)

    view.takes = show.takes  # type: ignore[attr-defined]  # functions have no such attribute
    return view


async def draw(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | Callable[[], dict[str, Any]],
    status: int = 200,
) -> HttpResponse:
    """Draw a page whose size depends on producers: `context` is measured and the page drawn in the request's
    thread. The facts of the frame are the broker's, so they are read before, on its loop."""
    request.frame = page_context(request)
    return await sync_to_async(
        lambda: render(request, template, context() if callable(context) else context, status=status)
    )()


def to_login(request: HttpRequest) -> HttpResponse:
    """Redirect to the login page; for a request of htmx the whole page goes there."""
    if request.htmx:
        response = HttpResponse(status=204)
        response["HX-Redirect"] = redirect_to_login(request.htmx.current_url_abs_path or "/").url
        return response
    return redirect_to_login(request.get_full_path())


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePage:
    """The data of failure.html."""

    title: str
    sentence: str
    status: int  # of HTTP


def failure_page(request: HttpRequest, status: int, title: str, sentence: str) -> HttpResponse:
    shown = FailurePage(title=title, sentence=sentence, status=status)
    return render(request, "failure.html", fields_of(shown), status=status)


# Hints for pages, by code of the problem, where the problem's own hint names requests.
HINTS = {
    "invalid": "",
    "topic_not_found": "the page Topics lists all topics",
    "group_not_found": "the page Groups lists all groups",
    "unauthorized": "log in",
    "confirmation_needed": "type the name to confirm",
    "starting": "wait; the page Store shows the progress",
    "unavailable": "the page Store shows why",
    "read_only": "a sync failed or the store was opened for inspection: the page Store shows which",
    "store_failed": "the doctor (page Store) finds all damage",
    "damaged": "the doctor (page Store) finds all damage",
}


def sentence_of(problem: Problem) -> str:
    """Return a problem in the words of a page: what is wrong, and what to do."""
    hint = HINTS.get(problem.code, problem.advice)
    return f"{capital(said(problem))}." + (f" {capital(hint)}." if hint else "")


def show_problem(request: HttpRequest, problem: Problem) -> None:
    """Show a problem as a message on the next page. Raises `not_found` problems: they have a page of their
    own."""
    if problem.code == "not_found":
        raise problem
    messages.error(request, f"{capital(said(problem))}.")


def said(error: Exception) -> str:
    """Return the sentence of an error, without a full stop."""
    return names.in_words(error) if isinstance(error, NameError_) else f"{error}".rstrip(".")


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPage:
    """The data of the page that is shown before the broker serves."""

    recovery: StartReport | None  # None: the store has not been opened
    store: Snapshot
    state: State
    says_so_itself: bool = True  # the page shows the state, so the frame does not


def starting_page() -> StartingPage:
    cluster = current_cluster()
    return StartingPage(
        recovery=cluster.store.recovery(), store=cluster.store.snapshot(), state=cluster.state()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationEntry:
    """A link of the navigation."""

    name: str  # of its address
    title: str
    active: bool  # the page is one of its pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The data of the frame around every page."""

    navigation: list[NavigationEntry]
    cluster_state: State
    not_serving: bool  # there are no topics and groups to show
    inspects: bool  # the store was opened for inspection
    caller: Caller
    may_operate: bool
    may_administer: bool


def frame_of(request: HttpRequest, caller: Caller) -> Frame:
    first = request.path.split("/")[1]
    state = current_cluster().state()
    return Frame(
        navigation=[
            NavigationEntry(name=name, title=title, active=first == piece)
            for name, title, piece in NAVIGATION
        ],
        cluster_state=state,
        not_serving=state.state in NOT_SERVING,
        inspects=current_cluster().store.inspects,
        caller=caller,
        may_operate=caller.may("operator"),
        may_administer=caller.may("admin"),
    )


def page_context(request: HttpRequest) -> dict[str, object]:
    """Return the frame for Django's templates, which need a dict. Empty without the decorator `page`: the
    admin's pages and the login page have no frame."""
    if hasattr(request, "frame"):
        return request.frame
    caller = getattr(request, "caller", None)
    return {} if caller is None else fields_of(frame_of(request, caller))


class WrongField(ValueError):
    """A value of a form is wrong. The page shows the sentence beside its field, and the typed value again."""

    def __init__(self, field: str, sentence: str):
        self.field = field
        super().__init__(sentence)


@contextmanager
def of_field(field: str) -> Iterator[None]:
    """Raise a ValueError of the block as WrongField of this field."""
    try:
        yield
    except (ValueError, NameError_) as error:
        raise WrongField(field, said(error)) from None


def window(begin_text: str, end_text: str) -> tuple[int, int]:
    """Return begin and end in ms of the fields `from` and `to`. The default is all up to a day from now, so
    that store times of a clock that is ahead are included."""
    with of_field("to"):
        end = moment_of(end_text, int(time.time() * 1000) + DAY_MS)
    with of_field("from"):
        begin = moment_of(begin_text, 0)
    if begin > end:
        raise WrongField("from", "This time is after the time in “To”.")
    return begin, end


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfList:
    """A link above a list to its rows of one kind."""

    name: str
    word: str
    count: int  # rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPart(Generic[Row]):
    """One part of a long list."""

    rows: list[Row]
    part: int  # its number, from 1
    parts: int
    total: int  # rows of all parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(ListPart[Row]):
    """The data of the page of a long list."""

    kind: str  # of the rows, or all
    q: str  # the part of a name that was searched for
    sort: str
    kinds: list[KindOfList]


async def part_of(
    request: HttpRequest, find: Callable[[int, int], Awaitable[tuple[list[Row], int]]], size: int = 100
) -> ListPart[Row]:
    """Return what `slice_of` does, for a list that is not in memory as a whole: `find(begin, count)` returns
    a piece of it and the length of the list."""
    part = whole(request.GET.get("part"), 1)
    rows, total = await find((part - 1) * size, size)
    parts = max(1, -(-total // size))
    if part > parts:
        part = parts
        rows, total = await find((part - 1) * size, size)
    return ListPart(rows=rows, part=part, parts=parts, total=total)


async def drawn(
    request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Draw a page of a long table in a thread: a hundred rows take about ten milliseconds."""
    return await asyncio.to_thread(render, request, template, context, status=status)


def slice_of(rows: list[Row], request: HttpRequest, size: int = 100) -> ListPart[Row]:
    """Return one part of a long list, by ?part=."""
    parts = max(1, -(-len(rows) // size))
    part = min(whole(request.GET.get("part"), 1), parts)
    return ListPart(rows=rows[(part - 1) * size : part * size], part=part, parts=parts, total=len(rows))
