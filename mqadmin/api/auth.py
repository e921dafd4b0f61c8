"""The caller of the REST interface, by a token, the local socket, or a browser's session, checked in this
order.

If a request has a token, only the token is checked. A wrong token is refused, also with a valid cookie. A
right token needs no CSRF check, since no browser adds it by itself. A session needs the CSRF token for
everything but reading. The local socket is in a directory that only the broker's user may enter; its caller
is `local:USER`.
"""

from __future__ import annotations

import time

from django.conf import settings
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from ninja.security import APIKeyCookie, HttpBearer
from ninja.security.base import AuthBase

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.web import roles, tokens
from mqadmin.web.local_socket import local_caller


class Token(HttpBearer):
    """`Authorization: Bearer TOKEN`"""

    async def __call__(self, request: HttpRequest) -> Caller | None:
        authorization = request.headers.get("Authorization")
        if authorization is None:
            return None
        kind, _, token = authorization.partition(" ")
        return await self.authenticate(request, token.strip() if kind.lower() == "bearer" else "")

    async def authenticate(self, request: HttpRequest, token: str) -> Caller:
        caller = tokens.TABLE.caller(token, int(time.time() * 1000))
        if caller is None:
            raise Problem("unauthorized", "the token is unknown, expired or revoked")
        return caller


class LocalSocket(AuthBase):
    """The Unix socket in the run directory."""

    openapi_type = "http"
    openapi_scheme = "unix-socket"
    openapi_description = "requests over run/web.sock of the data directory need nothing else"

    async def __call__(self, request: HttpRequest) -> Caller | None:
        return local_caller(getattr(request, "scope", {}))


class Session(APIKeyCookie):
    """A logged-in browser; every request that changes something needs the X-CSRFToken header."""

    param_name = settings.SESSION_COOKIE_NAME

    async def __call__(self, request: HttpRequest) -> Caller | None:
        if not request.user.is_authenticated:
            return None
        _check_csrf(request)
        return roles.caller_of(request.user)

    def authenticate(self, request: HttpRequest, key: str | None) -> None:
        raise NotImplementedError  # the base class requires it; __call__ does the work


class _Csrf(CsrfViewMiddleware):
    """Django's check, which raises a refusal instead of rendering a page."""

    def _reject(self, request: HttpRequest, reason: str) -> None:
        raise Problem("csrf", reason)


def _check_csrf(request: HttpRequest) -> None:
    check = _Csrf(lambda request: None)
    check.process_request(request)
    request.csrf_processing_done = False  # the middleware saw an exempt view and did not check
    check.process_view(request, None, (), {})


AUTH = [Token(), LocalSocket(), Session()]


def need(request: HttpRequest, role: str) -> Caller:
    """Return the caller if it has at least this role. Raises Problem (403) if not; the middleware then writes
    an audit record."""
    caller: Caller = request.auth
    if not caller.may(role):
        request.refused = caller
        raise Problem("forbidden", f"this needs the role {role}; {caller.name} has the role {caller.role}")
    return caller
