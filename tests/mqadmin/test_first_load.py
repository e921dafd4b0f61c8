"""What Django loads for its first request is loaded in a thread, once."""

import asyncio
import threading

import pytest
from django.conf import settings
from django.template import engines
from django.template.loader import get_template
from django.template.loaders.filesystem import Loader
from django.urls import URLPattern, URLResolver, clear_url_caches, resolve, reverse

from mqadmin import urls
from mqadmin.web.asgi import FirstLoad, load_pages


async def test_the_first_request_loads_in_a_thread_and_those_that_come_meanwhile_wait_for_it():
    loaded_by, handled, may_end = [], [], threading.Event()

    def load():
        loaded_by.append(threading.current_thread())
        may_end.wait(10)
        return application

    async def application(scope, receive, send):
        handled.append((scope, len(loaded_by), may_end.is_set()))

    first = FirstLoad(load)
    requests = [asyncio.ensure_future(first(number, None, None)) for number in range(3)]
    requests[1].cancel()
    while not loaded_by:
        await asyncio.sleep(0)
    assert not handled, "the loop goes on, and no request is handled"
    may_end.set()
    await asyncio.gather(*requests, return_exceptions=True)
    await first(3, None, None)
    assert (
        handled == [(0, 1, True), (2, 1, True), (3, 1, True)]
        and loaded_by[0] is not threading.current_thread()
    )


async def test_a_request_of_an_installation_that_cannot_be_loaded_fails_with_the_reason():
    def load():
        raise ImportError("no module named x")

    with pytest.raises(ImportError, match="no module named x"):
        await FirstLoad(load)({}, None, None)


async def test_a_load_that_failed_is_logged_and_made_again_for_the_next_request(caplog):
    loads, handled = [], []

    def load():
        loads.append(len(loads))
        if len(loads) == 1:
            raise OSError("no more open files")
        return application

    async def application(scope, receive, send):
        handled.append(scope)

    first = FirstLoad(load)
    refused = await asyncio.gather(first(0, None, None), first(1, None, None), return_exceptions=True)
    assert [str(error) for error in refused] == ["no more open files"] * 2 and loads == [0] and not handled
    (logged,) = (entry for entry in caplog.records if entry.name == "mqadmin.web.asgi")
    assert "the next request loads them again" in logged.getMessage() and logged.exc_info[1] is refused[0]
    for number in (2, 3):
        await first(number, None, None)
    assert handled == [2, 3] and loads == [0, 1]


def test_loading_leaves_no_address_and_no_template_to_the_first_request(monkeypatch):
    clear_url_caches()
    engine = engines["django"].engine
    engine.template_loaders[0].reset()
    load_pages()
    tables, sources = [], []
    populate, read = URLResolver._populate, Loader.get_contents
    monkeypatch.setattr(URLResolver, "_populate", lambda self: (tables.append(self), populate(self))[1])
    monkeypatch.setattr(
        Loader, "get_contents", lambda self, origin: (sources.append(origin.name), read(self, origin))[1]
    )
    names = [
        pattern.name
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and not pattern.pattern.converters
    ]
    assert len(names) > 10
    for name in [*filter(None, names), "admin:mqadmin_group_changelist", "api:openapi-view"]:
        resolve(reverse(name))
    for directory in settings.TEMPLATES[0]["DIRS"]:
        for path in directory.rglob("*.html"):
            get_template(str(path.relative_to(directory)))
    assert tables == [] and sources == []
