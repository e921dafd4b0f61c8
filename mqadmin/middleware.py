"""Two small layers around every page: its content security policy, and the password that must be set first."""

from __future__ import annotations

from asgiref.sync import iscoroutinefunction
from csp.middleware import CSPMiddleware
from django.conf import settings
from django.http import JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware

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
def set_password_first(get_response):
    """Whoever came in with a one-time password sees only the page that sets another.

    Only the session is looked at, so it costs no query; it is loaded here, not in the view, since the views are async.
    """

    def refusal(request):
        if request.path in {reverse(name) for name in PASSWORD_FREE}:
            return None
        if request.path.startswith("/api/"):
            return JsonResponse(
                {"title": "Set a password first", "status": 403, "code": "forbidden", "detail": "this session began with a one-time password"},
                status=403,
                content_type="application/problem+json",
            )
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
