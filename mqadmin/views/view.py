"""What a view is: one noun of the dashboard with all that shows it, in one folder below this one.

    __init__.py   VIEW
    facts.py      what it asks of the cluster, and the shapes that several of its faces show
    page.py       PAGES, its addresses with their functions, and PARTS, its parts of pages
    stream.py     STREAMS, its live numbers
    api.py        router, its REST routes
    verb.py       VERBS of `manage.py store`, and `add` for their parsers
    access.txt    what each caller is answered at each of its addresses
    *.html        its templates, named from mqadmin/views/ on: store/layout/page.html

Page, stream, api and verb are its faces. A face is there when its file is. registry.py finds it and nothing
else names it; `facts` may be imported from anywhere.

A face is imported when it is asked for first. So a command loads its verbs without pages and REST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from django.http import QueryDict
    from django.urls import URLPattern
    from ninja import Router

    from mqadmin.cluster.protocol import Cluster

VIEWS_DIRECTORY = Path(__file__).parent
PACKAGE = __name__.rpartition(".")[0]
ACCESS = "access.txt"


@dataclass(frozen=True, slots=True)
class Stream:
    """Numbers that browsers watch; mqadmin/web/live.py measures them."""

    measure: Callable[[Cluster, str], object]  # (cluster, name) -> a value for JSON
    ticks: int  # between two measurements
    check: Callable[[str], str] | None = None  # of the name, raises NameError_; None: it has none
    in_thread: bool = False  # it waits for something
    in_turn: bool = True  # in its thread: after the scans of other streams, as what computes does
    fresh: bool = False  # measured again for each new watcher, whose page may be newer than the last value
    # The part of a value that charts of the last minutes are drawn from
    past: Callable[[Any], dict[str, object]] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page that is the same for all who see it; mqadmin/web/parts.py draws it once for all of
    them."""

    template: str
    # (cluster, what its address asks) -> a frozen dataclass, whose fields the template shows
    facts: Callable[[Cluster, QueryDict], object]
    asks: frozenset[str] = frozenset()  # what its address may ask for
    needs: tuple[str, str] | None = None  # what it must ask for, where the address alone is a whole page


@dataclass(frozen=True, slots=True)
class Rest:
    """Where the REST routes of a view stand in the contract."""

    tag: str  # their heading in the contract
    # Their ids are mqadmin_api_OPERATIONS_FUNCTION. Programs are generated from ids, so an id stays as it is
    # when the code moves.
    operations: str
    under: str = ""  # the begin of their addresses, after /api/v1


class VerbFace(Protocol):
    """The module verb.py of a view."""

    VERBS: Mapping[str, Callable[[Any, dict[str, Any]], None]]  # name -> function(command, options)

    def add(self, verb: Callable[..., Any]) -> None:
        """Add the parser of each verb: `verb(name, help)` gives it."""


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab above the pages of the store."""

    page: str  # the name of its address; it is the current tab at the addresses that begin so, too
    title: str
    # Among the other tabs, which follow the life of a message: it is written, flushed, indexed, read and
    # deleted; then come crashes, checks and the bytes. Places are ten apart, so that a tab fits between two.
    place: int


@dataclass(frozen=True, slots=True)
class View:
    """A view, by the package that is its folder. What it does not have is empty or None."""

    package: str
    rest: Rest | None = None  # set where there is an api.py
    tabs: tuple[Tab, ...] = ()

    @property
    def name(self) -> str:
        """Its folder from mqadmin/views/ on, with dots: store.layout."""
        return self.package.removeprefix(f"{PACKAGE}.")

    @property
    def folder(self) -> Path:
        return VIEWS_DIRECTORY.joinpath(*self.name.split("."))

    @property
    def pages(self) -> Sequence[URLPattern]:
        """Its addresses in the order in which they are tried."""
        page = self._face("page")
        return () if page is None else page.PAGES

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its parts of pages, by the names of their addresses."""
        return getattr(self._face("page"), "PARTS", {})

    @property
    def streams(self) -> Mapping[str, Stream]:
        stream = self._face("stream")
        return {} if stream is None else stream.STREAMS

    @property
    def router(self) -> Router | None:
        return getattr(self._face("api"), "router", None)

    @property
    def verb(self) -> VerbFace | None:
        return self._face("verb")

    @property
    def access(self) -> list[str]:
        """The rows of its addresses: method, address, and what each caller of tests/mqadmin/access.txt is
        answered."""
        rows = self.folder / ACCESS
        lines = rows.read_text().splitlines() if rows.is_file() else []
        return [line for line in lines if line and not line.startswith("#")]

    def _face(self, name: str) -> ModuleType | None:
        return import_module(f"{self.package}.{name}") if (self.folder / f"{name}.py").is_file() else None
