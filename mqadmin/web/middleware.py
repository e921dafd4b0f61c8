"""Middleware: Django's own, run on the loop; the security policy, the caller, records of refused changes,
wrong methods.

Django sends each method of its own middleware to a thread and back, twice for each and each request. They
only read cookies and set headers, and the start of a thread costs the broker's loop more than that: `_OnLoop`
calls them on the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from csp.middleware import CSPMiddleware
from django.conf import settings
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpResponse
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.security import SecurityMiddleware
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware
from django.utils.deprecation import MiddlewareMixin

from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.web import roles
from mqadmin.web.failures import DATABASE_TITLE, database_failure, database_sentence, note_database_failure
from mqadmin.web.problem_responses import problem_response

MUST_SET_PASSWORD = "must_set_password"  # in the session of a user who logged in with a one-time password
ADMIN_PATHS = ("/admin/",)
PASSWORD_FREE = ("password", "logout", "login")


class _OnLoop:
    """Comes before a middleware of Django whose methods wait for nothing. In a synchronous stack it changes
    nothing."""

    get_response: Callable[
        [Any], Awaitable[HttpResponse]
    ]  # of Django's class, which comes after this in the bases

    async def __acall__(self, request):
        response = self.process_request(request) if hasattr(self, "process_request") else None
        response = response or await self.get_response(request)
        return await self.leave(request, response)

    async def leave(self, request, response):
        return self.process_response(request, response) if hasattr(self, "process_response") else response


class Security(_OnLoop, SecurityMiddleware):
    pass


class Common(_OnLoop, CommonMiddleware):
    pass


class Authentication(_OnLoop, AuthenticationMiddleware):
    """Leaves `request.user` to `identify_caller`."""


class Messages(_OnLoop, MessageMiddleware):
    """Messages are kept in a cookie (MESSAGE_STORAGE)."""


class Frames(_OnLoop, XFrameOptionsMiddleware):
    pass


class Sessions(_OnLoop, SessionMiddleware):
    async def leave(self, request, response):
        # Only a changed session is saved, and that is for a thread.
        if request.session.modified:
            return await sync_to_async(self.process_response)(request, response)
        return self.process_response(request, response)


class Csrf(_OnLoop, CsrfViewMiddleware):
    def __init__(self, get_response):
        super().__init__(get_response)
        if self.async_mode:
            self.process_view = self._view

    async def _view(self, request, callback, arguments, named):
        # The form of a request that changes something may be long.
        look = super().process_view
        return (
            look(request, callback, arguments, named)
            if request.method in ("GET", "HEAD")
            else await sync_to_async(look)(request, callback, arguments, named)
        )


class ContentSecurityPolicy(_OnLoop, CSPMiddleware):
    """'self' for all our pages; the admin's own policy for the admin, whose pages are not ours."""

    def process_response(self, request, response):
        if request.path.startswith(ADMIN_PATHS) and not hasattr(response, "_csp_config"):
            response._csp_config = settings.ADMIN_SECURITY_POLICY["DIRECTIVES"]
        return super().process_response(request, response)


@sync_and_async_middleware
def method_not_allowed(get_response):
    """Answer a method that an address does not have with a problem document, as every error of REST; ninja
    answers bare text."""

    def checked(request, response):
        if response.status_code != 405 or not request.path.startswith("/api/"):
            return response
        problem = Problem(
            "method_not_allowed", f"{request.path[:200]} takes {response['Allow']}, not {request.method[:20]}"
        )
        return problem_response(problem, {"Allow": response["Allow"]})

    if iscoroutinefunction(get_response):

        async def on_loop(request):
            return checked(request, await get_response(request))

        return on_loop

    def in_thread(request):
        return checked(request, get_response(request))

    return in_thread


@sync_and_async_middleware
def not_stored(get_response):
    """Keep pages and REST out of caches, where they could be read after a logout. Files of static/ are
    answered before this."""

    def marked(response):
        if "no-store" not in response.get("Cache-Control", ""):
            response["Cache-Control"] = "no-store"
        return response

    if iscoroutinefunction(get_response):

        async def on_loop(request):
            return marked(await get_response(request))

        return on_loop

    def in_thread(request):
        return marked(get_response(request))

    return in_thread


def without_database(request, error: DatabaseError) -> HttpResponse:
    """Return the answer to a request whose user, or what else is in the dashboard's database, could not be
    read."""
    note_database_failure(request, error)
    if request.path.startswith("/api/"):
        return problem_response(Problem("database_unavailable"))
    return render(
        request,
        "no_database.html",
        {"title": DATABASE_TITLE, "sentence": database_sentence(database_failure() or error)},
        status=503,
    )


class DatabaseFailures(_OnLoop, MiddlewareMixin):
    """Answers a page or form whose queries failed with a sentence."""

    def process_exception(self, request, exception):
        return without_database(request, exception) if isinstance(exception, DatabaseError) else None


class RecordRefusals:
    """Writes an audit record for each change that was refused for its role, by a page, REST or the admin.

    Pages and REST put the caller that they refuse into `request.refused`; the admin raises PermissionDenied.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request):
        if iscoroutinefunction(self):
            return self._answer(request)
        response = self.get_response(request)
        if _is_refused_change(request):
            audit.refused(request.refused, request.method, request.path)
        return response

    async def _answer(self, request):
        response = await self.get_response(request)
        if _is_refused_change(request):
            await sync_to_async(audit.refused)(request.refused, request.method, request.path)
        return response

    def process_exception(self, request, exception):
        if isinstance(exception, PermissionDenied) and request.user.is_authenticated:
            request.refused = roles.caller_of(request.user)


def _is_refused_change(request) -> bool:
    return hasattr(request, "refused") and request.method in audit.METHODS


@sync_and_async_middleware
def identify_caller(get_response):
    """Read session, user and role, all at once and in a thread, since the views are on the loop: there
    `request.user` and `roles.caller_of` query nothing. A user who logged in with a one-time password sees
    only the page that sets another."""

    def looked_up(request):
        """Return whether a password must be set first."""
        if settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return False
        if request.user.is_authenticated:
            roles.role_of(request.user)
        return bool(request.session.get(MUST_SET_PASSWORD))

    def refusal(request):
        if request.path in {reverse(name) for name in PASSWORD_FREE}:
            return None
        if request.path.startswith("/api/"):
            return problem_response(
                Problem(
                    "forbidden",
                    "this session began with a one-time password",
                    "set a password of your own at /password/ first",
                )
            )
        return redirect("password")

    if iscoroutinefunction(get_response):

        async def on_loop(request):
            try:
                must = settings.SESSION_COOKIE_NAME in request.COOKIES and await sync_to_async(looked_up)(
                    request
                )
            except DatabaseError as error:
                return await sync_to_async(without_database)(request, error)
            return (refusal(request) if must else None) or await get_response(request)

        return on_loop

    def in_thread(request):
        try:
            must = looked_up(request)
        except DatabaseError as error:
            return without_database(request, error)
        return (refusal(request) if must else None) or get_response(request)

    return in_thread
