"""REST under /api/v1, with OpenAPI at /api/v1/openapi.json and a page to try it at /api/v1/docs.

Success has the shape of a schema, failure that of a problem document. Routes that use the store are async and
run on the broker's loop; those that use Redis or the database run in Django's thread. The two hot routes are
served by broker_store/rest/http.py before Django; the same two are in `views/messages/api.py` for a browser's
session and for the contract.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.openapi.schema import REF_TEMPLATE
from ninja.operation import Operation

from broker_store import __version__
from broker_store.errors import BrokerStoreError, StoreError
from broker_store.rest.problems import MAX_NAMED, MEDIA_TYPE, Problem, problem_of
from broker_store.units import document_of
from mqadmin.api import schemas, system
from mqadmin.api.auth import AUTH
from mqadmin.api.body_parser import OneValueParser
from mqadmin.api.field_errors import wrong_field
from mqadmin.api.parameters import only_declared
from mqadmin.views import registry
from mqadmin.web.failures import note_database_failure, note_store_failure
from mqadmin.web.problem_responses import problem_response
from mqadmin.web.refusals import count_refusal

log = logging.getLogger(__name__)

MAX_ERRORS = 20  # fields that one answer names

# Declared for every operation, so that the contract names the errors that an operation may answer.
PROBLEMS = {
    status: schemas.ProblemDocument for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 504)
}


class Api(NinjaAPI):
    """A NinjaAPI whose operations all declare the problem documents."""

    def get_openapi_schema(self, **options: Any) -> Any:
        schema = super().get_openapi_schema(**options)
        reference = {"$ref": "#/components/schemas/ProblemDocument"}
        named = schema.setdefault("components", {}).setdefault("schemas", {})
        # No signature of an operation names these
        for model in (schemas.ProblemDocument, schemas.NewMessage):
            made = model.model_json_schema(ref_template=REF_TEMPLATE)
            named |= made.pop("$defs", {}) | {model.__name__: made}
        problem = {"description": "Problem", "content": {MEDIA_TYPE: {"schema": reference}}}
        for path in schema["paths"].values():
            for operation in path.values():
                for status in PROBLEMS:
                    operation["responses"].setdefault(status, problem)
        return schema

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the id of an operation, which stays the same when the code of a view moves."""
        operations = registry.operations_of(operation.view_func.__module__)
        if operations is None:
            return super().get_openapi_operation_id(operation)
        return f"mqadmin_api_{operations}_{operation.view_func.__name__}"


class Docs(Swagger):
    """The page on which a user tries the interface, with our template: Ninja finds its own only as an
    installed application."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **path: Any) -> HttpResponse:
        """Return the page, with the CSRF token that a session needs for everything but reading."""
        options = self.settings | {"url": self.get_openapi_url(api, path)}
        return render(request, self.template, {"swagger_settings": json.dumps(options)})


api = Api(
    title="Headpond",
    version=__version__,
    description="Topics, groups, messages, the inside of the store, and jobs. 64-bit numbers are strings; "
    "null is unknown; errors are problem documents with a code and a hint.",
    urls_namespace="api",
    auth=AUTH,
    docs=Docs(),
    parser=OneValueParser(),
)
api.add_decorator(only_declared, mode="view")
api.add_router("", system.router, tags=["System"])
for _rest, _router in registry.routers():
    api.add_router(_rest.under, _router, tags=[_rest.tag])


def _on_known(request: HttpRequest, error: Exception) -> HttpResponse:
    return problem_response(problem_of(error))


def _on_store_failure(request: HttpRequest, error: StoreError) -> HttpResponse:
    note_store_failure(request, error)
    return problem_response(problem_of(error))


def _on_database_failure(request: HttpRequest, error: DatabaseError) -> HttpResponse:
    note_database_failure(request, error)
    return problem_response(Problem("database_unavailable"))


def _on_unknown(request: HttpRequest, error: Exception) -> HttpResponse:
    log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return problem_response(problem_of(error))


def _on_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    wrong = list(map(wrong_field, error.errors[:MAX_ERRORS]))
    detail = "; ".join(f"{one.field}: {one.reason}" for one in wrong[:MAX_NAMED])
    return problem_response(Problem("invalid_fields", detail, errors=document_of(wrong)))


def _on_unauthorized(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return problem_response(Problem("unauthorized"))


def _on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    # From the parser: Ninja reports all of its errors as a body that cannot be parsed
    if isinstance(error.__cause__, Problem):
        return problem_response(error.__cause__)
    code = {
        400: "invalid",
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        405: "method_not_allowed",
        413: "too_large",
    }
    return problem_response(
        Problem(
            code.get(error.status_code, "invalid" if error.status_code < 500 else "internal"), error.message
        )
    )


def _on_large_body(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    found, most = request.headers.get("content-length", "more"), settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    problem = Problem("too_large", f"the body has {found:.20} bytes, at most {most:,} are allowed")
    count_refusal(
        "HTTP body too large", limit=most, who=request.META.get("REMOTE_ADDR") or "local", said=problem.detail
    )
    return problem_response(problem)


def _on_missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return problem_response(Problem("not_found"))


for kind, handler in {
    Problem: _on_known,
    BrokerStoreError: _on_known,
    StoreError: _on_store_failure,
    DatabaseError: _on_database_failure,
    TimeoutError: _on_known,
    ValidationError: _on_invalid,
    AuthenticationError: _on_unauthorized,
    HttpError: _on_http_error,
    Http404: _on_missing,
    RequestDataTooBig: _on_large_body,
    Exception: _on_unknown,
}.items():
    api.add_exception_handler(kind, handler)
