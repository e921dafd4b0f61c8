"""Answers to requests to REST that fail."""

from __future__ import annotations

from django.http import HttpResponse

from broker_store.rest.problems import MEDIA_TYPE, Problem


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> HttpResponse:
    """Return the problem document as an answer that no cache keeps."""
    response = HttpResponse(problem.body(), status=problem.status, content_type=MEDIA_TYPE, headers=headers)
    response["Cache-Control"] = "no-store"
    if problem.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="broker"'
    return response
