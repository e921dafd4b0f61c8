"""/metrics for Prometheus, with a token or over the local socket; never with a browser's session.

All values are read at the scrape, from the same facts that the pages show; unknown values are left out.
Values are collected in turns of the loop and written in a thread, so that a scrape delays no send.
"""

from __future__ import annotations

import asyncio

from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from broker_store.rest.problems import Problem
from mqadmin.api.auth import LocalSocket, Token
from mqadmin.api.parameters import problem_of_query
from mqadmin.cluster.current import current_cluster
from mqadmin.metrics.families import families
from mqadmin.metrics.measured import Measured, measure
from mqadmin.web.problem_responses import problem_response


async def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics as text."""
    try:
        if not (await Token()(request) or await LocalSocket()(request)):
            raise Problem("unauthorized")
    except Problem as refused:
        return problem_response(refused)
    if problem := problem_of_query(request.GET, frozenset()):
        return problem_response(problem)
    if request.method != "GET":
        return problem_response(Problem("method_not_allowed"))
    text = await asyncio.to_thread(text_of, await measure(current_cluster()))
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def text_of(measured: Measured) -> bytes:
    """Return the metrics in the format of Prometheus. For a thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families(measured)))
    return generate_latest(registry)


class _Collected:
    def __init__(self, found: list[Metric]):
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found
