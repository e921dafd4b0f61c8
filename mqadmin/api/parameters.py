"""Query parameters: a route takes those that its function declares, each once, and refuses any other."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from django.http import HttpRequest, QueryDict
from ninja import Query

from broker_store.rest.problems import Problem, repeated_parameters, unknown_parameters

# The parameter `confirm` of routes whose action cannot be undone
Confirm = Annotated[str | None, Query(max_length=255, description="the name once more")]


def declared(operation: Any) -> frozenset[str]:
    """Return the names of an operation's query parameters."""
    return frozenset(
        name
        for model in operation.models
        if model.__ninja_param_source__ == "query"
        for name in model.__ninja_flatten_map__
    )


def problem_of_query(query: QueryDict, known: frozenset[str]) -> Problem | None:
    """Return the problem of a query string for a route that takes the parameters `known`; None without
    one."""
    if unknown := query.keys() - known:
        return unknown_parameters(unknown, known)
    if repeated := [name for name, values in query.lists() if len(values) > 1]:
        return repeated_parameters(repeated)
    return None


def only_declared(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation of Ninja so that it refuses parameters that it does not declare.

    The caller is checked first, so that an unknown caller does not learn the names of parameters."""
    operation = run.__self__  # type: ignore[attr-defined]  # ninja gives a method
    known = declared(operation)

    def is_right(request: HttpRequest) -> bool:
        return problem_of_query(request.GET, known) is None

    def refusal(request: HttpRequest) -> Any:
        return operation.api.on_exception(request, problem_of_query(request.GET, known))

    if operation.is_async:

        @functools.wraps(run)
        async def guarded(request: HttpRequest, **named: Any) -> Any:
            if is_right(request):
                return await run(request, **named)
            refused = operation._run_checks(request)
            return (await refused if inspect.isawaitable(refused) else refused) or refusal(request)

    else:

        @functools.wraps(run)
        def guarded(request: HttpRequest, **named: Any) -> Any:
            return (
                run(request, **named)
                if is_right(request)
                else operation._run_checks(request) or refusal(request)
            )

    return guarded
