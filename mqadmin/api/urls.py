"""The addresses of the REST interface; any other address under /api/v1 gets a problem document."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from broker_store.rest.problems import Problem
from mqadmin.api.contract import api
from mqadmin.api.parameters import problem_of_query
from mqadmin.web.problem_responses import problem_response


@csrf_exempt  # nothing to protect, and the check would answer with a page
def unknown(request: HttpRequest) -> HttpResponse:
    return problem_response(Problem("not_found", "there is no such address", "see /api/v1/docs"))


def without_parameters(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return the view for addresses without a query string."""

    @functools.wraps(view)
    def guarded(request: HttpRequest, **named: Any) -> HttpResponse:
        problem = problem_of_query(request.GET, frozenset())
        return view(request, **named) if problem is None else problem_response(problem)

    return guarded


_patterns, *_names = api.urls
for _pattern in _patterns:
    if _pattern.name in ("openapi-json", "openapi-view"):  # Ninja's own, which are no operations
        _pattern.callback = without_parameters(_pattern.callback)

urlpatterns = [path("", (_patterns, *_names)), re_path("^", unknown)]
