"""The admin's site: unfold's, but an address with a parameter that a page does not take is refused, as on
every other page.

Django's own answer to an unknown filter or part of a list is a redirect to the whole list, with `?e=1`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.views.main import (
    ALL_VAR,
    ERROR_FLAG,
    IS_FACETS_VAR,
    ORDER_VAR,
    PAGE_VAR,
    SEARCH_VAR,
)
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.sites import UnfoldAdminSite

from broker_store.rest.problems import Problem
from mqadmin.views.query_parameters import PART, Reader, refusal_alone, refusals, text

UNREADABLE = "The list has no such part, or a value of a filter cannot be read."


def _columns(value: str) -> str:
    """Return the value when it is numbers of columns, as Django writes an order: 1.-2. Raises ValueError."""
    for piece in value.split("."):
        if not piece.removeprefix("-").isdecimal():
            raise ValueError(f"{piece[:30]!r} is no number of a column")
    return value


OF_MODEL: Mapping[str, Reader] = {"_changelist_filters": text, IS_POPUP_VAR: text, TO_FIELD_VAR: text}
OF_LIST: Mapping[str, Reader] = {
    **OF_MODEL,
    ALL_VAR: text,
    IS_FACETS_VAR: text,
    SEARCH_VAR: text,
    ORDER_VAR: _columns,
    PAGE_VAR: PART,
}
# By the name of the view's function.
OF_VIEW: Mapping[str, Mapping[str, Reader]] = {
    "changelist_view": OF_LIST,
    "history_view": {**OF_MODEL, PAGE_VAR: PART},
    "autocomplete_view": dict.fromkeys(("app_label", "model_name", "field_name", "term", "page"), text),
    "search": {"s": text, "extended": text, "page": PART},
}
OF_QUEUES: Mapping[str, Reader] = {"page": PART, "desc": text, "name[]": text}  # django-rq's views


class Site(UnfoldAdminSite):
    def admin_view(
        self, view: Callable[..., HttpResponse], cacheable: bool = False
    ) -> Callable[..., HttpResponse]:
        @functools.wraps(view)
        def checked(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
            if (takes := _takes(view, request)) is not None and (wrong := refusals(request.GET, takes)):
                return refusal_alone(request, list(wrong.values()))
            response = view(request, *arguments, **named)
            if response.status_code == 302 and response["Location"].endswith(f"?{ERROR_FLAG}=1"):
                return refusal_alone(request, [UNREADABLE])
            return response

        return super().admin_view(checked, cacheable)


def unavailable(request: HttpRequest, problem: Problem, **more: object) -> HttpResponse:
    """Return a page that says why the broker cannot answer."""
    context = {
        **admin.site.each_context(request),
        "title": problem.title,
        "sentence": f"{problem.sentence} {problem.advice}",
        **more,
    }
    return TemplateResponse(
        request, "admin/cluster_unavailable.html", context, status=problem.status
    ).render()


def _takes(view: Callable[..., HttpResponse], request: HttpRequest) -> Mapping[str, Reader] | None:
    """Return the parameters that a view takes; None where the address has no page."""
    owner, name = getattr(view, "__self__", None), view.__name__
    if name == "catch_all_view":
        return None
    if view.__module__.startswith("django_rq."):
        return OF_QUEUES
    takes = OF_VIEW.get(name, OF_MODEL if isinstance(owner, ModelAdmin) else {})
    if name != "changelist_view" or not isinstance(owner, ModelAdmin):
        return takes
    filters = {*owner.get_list_filter(request), owner.date_hierarchy}
    return {**takes, **{asked: text for asked in request.GET if asked.partition("__")[0] in filters}}
