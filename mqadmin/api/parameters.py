"""Query parameters: a route takes those that its function declares, and refuses every other by its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from broker_store.server.problems import unknown_parameters


def declared(operation: Any) -> frozenset[str]:
    """The names of an operation's query parameters."""
    return frozenset(name for model in operation.models if model.__ninja_param_source__ == "query" for name in model.__ninja_flatten_map__)


def only_declared(run: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of ninja's for every operation. Who asks is looked up first, so a stranger learns nothing by a wrong name."""
    operation = run.__self__
    known = declared(operation)

    def refusal(request: HttpRequest) -> Any:
        return operation.api.on_exception(request, unknown_parameters(request.GET.keys() - known, known))

    if operation.is_async:

        @functools.wraps(run)
        async def guarded(request: HttpRequest, **named: Any) -> Any:
            if request.GET.keys() <= known:
                return await run(request, **named)
            refused = operation._run_checks(request)
            return (await refused if inspect.isawaitable(refused) else refused) or refusal(request)

    else:

        @functools.wraps(run)
        def guarded(request: HttpRequest, **named: Any) -> Any:
            return run(request, **named) if request.GET.keys() <= known else operation._run_checks(request) or refusal(request)

    return guarded
