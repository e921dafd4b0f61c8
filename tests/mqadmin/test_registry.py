"""A view is one folder, and only the registry names what is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orjson
import pytest
from django.template import RequestContext
from django.template.loader import get_template

from mqadmin.templatetags.tabs import store_tabs
from mqadmin.views import registry
from mqadmin.views.view import VIEWS_DIRECTORY, View
from tests.support import access_table
from tests.support.syntax import drop_trees, nodes_of  # noqa: F401  (drop_trees is a fixture)

PROJECT = Path(__file__).resolve().parent.parent.parent
FACES = {"page", "stream", "api", "verb"}


def addresses_of(view: View) -> set[str]:
    """The addresses of a view as access.txt writes them."""
    pages = {"/" + re.sub(r"<\w+:(\w+)>", r"<\1>", str(page.pattern)) for page in view.pages}
    routes = () if view.router is None else view.router.path_operations
    return pages | {
        "/api/v1" + view.rest.under + re.sub(r"\{(?:\w+:)?(\w+)\}", r"<\1>", path) for path in routes
    }


def test_every_folder_of_the_views_is_a_view_that_the_registry_names():
    folders = {path.parent for path in VIEWS_DIRECTORY.rglob("*") if path.suffix in (".py", ".html", ".txt")}
    assert {view.folder for view in registry.VIEWS} == folders - {VIEWS_DIRECTORY}


@pytest.mark.parametrize("view", registry.VIEWS, ids=lambda view: view.name)
def test_a_view_has_its_faces_whole(view):
    assert (view.rest is None) == (view.router is None)
    assert all(pattern.name for pattern in view.pages)
    assert view.parts.keys() <= {pattern.name for pattern in view.pages}
    for part in view.parts.values():
        get_template(part.template)


@pytest.mark.parametrize("view", registry.VIEWS, ids=lambda view: view.name)
def test_a_view_has_a_row_of_access_for_each_of_its_addresses(view):
    assert {row.split()[1] for row in view.access} == addresses_of(view)


def test_the_table_of_access_has_the_rows_of_the_views():
    text = access_table.TABLE.read_text()
    assert access_table.table(text) == text, "run python -m tests.support.access_table"


@pytest.mark.parametrize("view", registry.VIEWS, ids=lambda view: view.name)
def test_a_tab_names_a_page_of_its_view(view):
    assert {tab.page for tab in view.tabs} <= {pattern.name for pattern in view.pages}


def test_the_tabs_have_places_of_their_own_and_begin_with_the_map():
    places = [tab.place for tab in registry.tabs()]
    assert places == sorted(set(places))
    assert registry.tabs()[0].page == "store"


@pytest.mark.parametrize(
    ("here", "current"),
    [
        ("/store/", "/store/"),
        ("/store/disk/", "/store/disk/"),
        ("/store/recovery/start-1/", "/store/recovery/"),
        ("/jobs/", None),
    ],
)
def test_the_current_tab_is_that_of_the_address_or_of_the_begin_of_it(here, current, rf):
    shown = store_tabs(RequestContext(rf.get(here)))
    assert shown["current"] == current
    assert len(shown["tabs"]) == len(registry.tabs())


@pytest.mark.parametrize(
    "key", [("recovery", ""), ("store.index", "20251123050000000"), ("store.chains", "20251123050000000")]
)
def test_a_frame_has_the_names_of_json_where_python_keeps_a_name_for_itself(key, fake_cluster):
    stream, name = key
    body = orjson.dumps(registry.streams()[stream].measure(fake_cluster, name))
    assert b'"from":' in body and b'_":' not in body


def test_no_name_is_given_twice():
    names = [pattern.name for pattern in registry.pages()]
    assert len(names) == len(set(names))
    assert registry.streams() and registry.parts()


def test_nothing_outside_of_a_view_names_its_faces():
    wrong = []
    faces = {f"{view.package}.{face}" for view in registry.VIEWS for face in FACES}
    for file in sorted((PROJECT / "mqadmin").rglob("*.py")):
        own = ".".join((*file.relative_to(PROJECT).parts[:-1], ""))
        for node in nodes_of(file):
            if isinstance(node, ast.Import):
                modules = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            wrong += [
                f"{file.relative_to(PROJECT)} imports {module}"
                for module in sorted(modules & faces)
                if module.rpartition(".")[0] + "." != own
            ]
    assert wrong == []


def test_only_the_registry_names_the_packages_of_views():
    """Their facts are named where they are used; the packages hold a VIEW, which is for the registry."""
    packages = {view.package for view in registry.VIEWS}
    wrong = [
        f"{file.relative_to(PROJECT)} imports VIEW of {node.module}"
        for file in sorted((PROJECT / "mqadmin").rglob("*.py"))
        if file != VIEWS_DIRECTORY / "registry.py"
        for node in nodes_of(file)
        if isinstance(node, ast.ImportFrom) and node.module in packages
        for alias in node.names
        if alias.name == "VIEW"
    ]
    assert wrong == []
