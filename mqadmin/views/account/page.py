"""The pages for login, logout and password.

Any wrong login gets the same sentence after the same time: for an unknown name a hash is computed, too (by
Django's backend). Limits of tries are in mqadmin/web/logins.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django import forms
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm
from django.contrib.auth.views import LoginView, LogoutView
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from broker_store.units import fields_of
from mqadmin.models import FirstLogin
from mqadmin.views.query_parameters import only, text
from mqadmin.web import logins
from mqadmin.web.middleware import MUST_SET_PASSWORD
from mqadmin.web.refusals import count_refusal

log = logging.getLogger(__name__)


class LoginForm(AuthenticationForm):
    """Name and password, which are checked within limits; `refusal` states why a password was not checked."""

    error_messages = {
        "invalid_login": "Name or password is wrong.",
        "inactive": "Name or password is wrong.",
    }
    refusal: logins.TryRefused | None = None

    def clean(self):
        name, limits = self.cleaned_data.get("username") or "", logins.limits
        source, device = logins.source_of(self.request), logins.device_of(self.request, name)
        try:
            tried = limits.begin(source, device)
            with limits.hashing(known=device is not None):
                cleaned = super().clean()
            if not _take_first_login(self.get_user()):
                raise self.get_invalid_login_error()
        except logins.TryRefused as refusal:
            self.refusal = refusal
            count_refusal("tries to log in", who=source.site, said=str(refusal))
            raise forms.ValidationError(str(refusal), code="too_many") from None
        except forms.ValidationError:
            log.warning("a login as %.60r from %s was refused", name, source.site)
            raise
        limits.succeeded(tried)
        return cleaned


def _take_first_login(user) -> bool:
    """Return whether `user` may log in. A one-time password is marked as used here: of several logins at once
    exactly one succeeds."""
    if user is None or not hasattr(user, "first_login"):
        return True
    return FirstLogin.objects.filter(user=user, used_at=None).update(used_at=timezone.now()) == 1


class Login(LoginView):
    """The only login page; the admin's redirects here."""

    template_name = "account/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def dispatch(self, request, *arguments, **named):
        # The admin redirects users without access to this page; redirecting them back would be an endless
        # loop.
        if (
            request.user.is_authenticated
            and not request.user.is_staff
            and self.get_redirect_url().startswith(reverse("admin:index"))
        ):
            return render(request, "403.html", status=403)
        return super().dispatch(request, *arguments, **named)

    def form_valid(self, form):
        user = form.get_user()
        response = self._enter(user)
        logins.remember(self.request, response, user.get_username())
        return response

    def form_invalid(self, form):
        response = super().form_invalid(form)
        if form.refusal is not None:
            response.status_code = form.refusal.status
            response["Retry-After"] = str(form.refusal.wait_s)
        return response

    def _enter(self, user):
        one_time = FirstLogin.objects.filter(user=user).exists()
        if one_time:
            user.set_unusable_password()
            user.save(update_fields=["password"])
        login(self.request, user)
        if one_time:
            self.request.session[MUST_SET_PASSWORD] = True
            return redirect("password")
        return redirect(self.get_success_url())


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordPage:
    """The data of the page that sets a password."""

    form: forms.Form
    must: bool  # the session began with a one-time password
    refusal: str = ""  # why no password was checked


@never_cache
@sensitive_post_parameters()
@login_required
def password(request):
    """Set another password. A session that began with a one-time password does not need the old one."""
    must = request.session.get(MUST_SET_PASSWORD, False)
    form_class = SetPasswordForm if must else OwnPasswordForm
    form = form_class(request.user, request.POST or None)
    user = None
    try:
        if request.method == "POST":
            tried = logins.limits.begin(logins.LOCAL_SOCKET, ("password page", request.user.get_username()))
            with logins.limits.hashing(known=True):
                user = form.save() if form.is_valid() else None
    except logins.TryRefused as refusal:
        shown = PasswordPage(form=form_class(request.user), must=must, refusal=str(refusal))
        response = render(request, "account/password.html", fields_of(shown), status=refusal.status)
        response["Retry-After"] = str(refusal.wait_s)
        return response
    if user is not None:
        logins.limits.succeeded(tried)
        FirstLogin.objects.filter(user=user).delete()
        request.session.pop(MUST_SET_PASSWORD, None)
        update_session_auth_hash(request, user)
        return redirect("overview")
    return render(request, "account/password.html", fields_of(PasswordPage(form=form, must=must)))


class OwnPasswordForm(SetPasswordForm):
    """The form of a user who has a password, which must be given again."""

    old_password = forms.CharField(
        label="Present password",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    field_order = ["old_password", "new_password1", "new_password2"]

    def clean_old_password(self):
        old = self.cleaned_data["old_password"]
        if not self.user.check_password(old):
            raise forms.ValidationError("This is not your present password.")
        return old


PAGES = (
    path("login/", only(Login.as_view(), next=text), name="login"),
    path("logout/", only(LogoutView.as_view(), next=text), name="logout"),
    path("password/", only(password), name="password"),
)
