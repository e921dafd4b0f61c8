"""Small layers around every page: its security policy, the password to be set first, refused changes, wrong methods."""

from __future__ import annotations

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from csp.middleware import CSPMiddleware
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware

from broker_store.server.problems import MEDIA_TYPE, Problem
from mqadmin import audit, roles

MUST_SET_PASSWORD = "must_set_password"  # in the session of who came in with a one-time password
ADMIN_PATHS = ("/admin/",)
PASSWORD_FREE = ("password", "logout", "login")


class ContentSecurityPolicy(CSPMiddleware):
    """'self' for all our pages; the admin's own policy for the admin, whose pages are not ours."""

    def process_response(self, request, response):
        if request.path.startswith(ADMIN_PATHS) and not hasattr(response, "_csp_config"):
            response._csp_config = settings.ADMIN_SECURITY_POLICY["DIRECTIVES"]
        return super().process_response(request, response)


@sync_and_async_middleware
def problem_for_a_wrong_method(get_response):
    """ninja answers a method that an address does not have with bare text; every error of REST is a problem document."""

    def checked(request, response):
        if response.status_code != 405 or not request.path.startswith("/api/"):
            return response
        problem = Problem("method_not_allowed", f"{request.path[:200]} takes {response['Allow']}, not {request.method[:20]}")
        return HttpResponse(problem.body(), status=problem.status, content_type=MEDIA_TYPE, headers={"Allow": response["Allow"]})

    if iscoroutinefunction(get_response):

        async def middleware(request):
            return checked(request, await get_response(request))

    else:

        def middleware(request):
            return checked(request, get_response(request))

    return middleware


class RefusalsLeaveARecord:
    """One audit record for each change that a role may not ask for, whether by a page, REST or the admin.

    Pages and REST put the caller whom they refuse into `request.refused`; the admin raises PermissionDenied.
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
def set_password_first(get_response):
    """Whoever came in with a one-time password sees only the page that sets another.

    Only the session is looked at, so it costs no query; it is loaded here, not in the view, since the views are async.
    """

    def refusal(request):
        if request.path in {reverse(name) for name in PASSWORD_FREE}:
            return None
        if request.path.startswith("/api/"):
            problem = Problem("forbidden", "this session began with a one-time password", "set a password of your own at /password/ first")
            return HttpResponse(problem.body(), status=problem.status, content_type=MEDIA_TYPE)
        return redirect("password")

    if iscoroutinefunction(get_response):

        async def middleware(request):
            must = settings.SESSION_COOKIE_NAME in request.COOKIES and await request.session.aget(MUST_SET_PASSWORD)
            return (refusal(request) if must else None) or await get_response(request)

    else:

        def middleware(request):
            must = settings.SESSION_COOKIE_NAME in request.COOKIES and request.session.get(MUST_SET_PASSWORD)
            return (refusal(request) if must else None) or get_response(request)

    return middleware
