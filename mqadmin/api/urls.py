"""The addresses of the REST interface; what is under /api/v1 and is none of them gets a problem document."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from broker_store.server.problems import Problem
from mqadmin.api import api, problem_response


@csrf_exempt  # there is nothing to protect, and the check would answer with a page
def unknown(request: HttpRequest) -> HttpResponse:
    return problem_response(Problem("not_found", "there is no such address", "see /api/v1/docs"))


urlpatterns = [path("", api.urls), re_path("^", unknown)]
