"""Parts of pages that are the same for everybody: rendered once, however many browsers show them (the stream `part`).

A part is named by the address from which a browser without the stream would fetch it, and is what the page's own view answers
there to whoever has the least role.
"""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, QueryDict
from django.urls import Resolver404, resolve
from django_htmx.middleware import HtmxDetails

from broker_store.errors import NameError_
from broker_store.server.http import Caller
from broker_store.server.problems import Problem

# The pages whose parts these are, by the names of their addresses.
PAGES = frozenset({"cache", "disk", "index", "layout"})
MOST_ADDRESS = 1_024
VIEWER = Caller("part", "viewer")


def check_address(address: str) -> str:
    """`address` when a part stands there; else NameError_."""
    path, _, _ = address.partition("?")
    try:
        found = resolve(path).url_name if len(address) <= MOST_ADDRESS and address.isascii() and "#" not in address else None
    except Resolver404:
        found = None
    if found not in PAGES:
        raise NameError_(f"a part is named by an address of {', '.join(sorted(PAGES))}")
    return address


async def render(address: str) -> str:
    """The HTML of the part. Raises what the view raises, and Problem when it does not answer with a part."""
    path, _, query = address.partition("?")
    match = resolve(path)
    request = HttpRequest()
    request.method, request.path, request.path_info, request.GET = "GET", path, path, QueryDict(query)
    request.META = {"QUERY_STRING": query, "HTTP_HX_REQUEST": "true"}
    request.htmx, request.user, request.caller = HtmxDetails(request), AnonymousUser(), VIEWER
    response = await match.func.__wrapped__(request, *match.args, **match.kwargs)
    if response.status_code != 200:
        raise Problem("internal", f"{address} answered {response.status_code}")
    return response.content.decode()
