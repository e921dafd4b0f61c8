"""Login, logout, password.

Whatever is wrong with a login, the answer is the same sentence after the same work: an unknown name costs a hash too
(Django's backend sees to that). Tries are counted per address and name before the password is looked at, so that many
at once are no way round; five within a minute close that pair for the rest of it, right password or not, and a login
forgets them. The counts are in this process's memory, where all logins happen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from django import forms
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm
from django.contrib.auth.views import LoginView
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from mqadmin.middleware import MUST_SET_PASSWORD
from mqadmin.models import FirstLogin

log = logging.getLogger(__name__)

TRIES = 5
WINDOW_SECONDS = 60.0
MAX_PAIRS = 10_000  # remembered at once; the oldest is forgotten first


class LoginThrottle:
    """Tries to log in by (address, name). Each request has a thread of its own, so looking and counting are one step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def may_try(self, address: str, name: str) -> bool:
        """Whether this pair may try now; if so the try is counted as one that failed until `succeeded` is called."""
        pair, now = (address, name.casefold()), self._clock()
        with self._lock:
            tries = self._tries.setdefault(pair, deque(maxlen=TRIES))
            if len(tries) == TRIES and now < tries[0] + WINDOW_SECONDS:
                return False
            tries.append(now)
            self._tries.move_to_end(pair)
            while len(self._tries) > MAX_PAIRS:
                self._tries.popitem(last=False)
        return True

    def succeeded(self, address: str, name: str) -> None:
        with self._lock:
            self._tries.pop((address, name.casefold()), None)


throttle = LoginThrottle()


class LoginForm(AuthenticationForm):
    """Name and password, throttled."""

    error_messages = {
        "invalid_login": "Name or password is wrong.",
        "inactive": "Name or password is wrong.",
        "too_many": "Too many failed logins with this name. Try again in a minute.",
    }

    def clean(self):
        address, name = self.request.META.get("REMOTE_ADDR") or "", self.cleaned_data.get("username") or ""
        if not throttle.may_try(address, name):
            raise forms.ValidationError(self.error_messages["too_many"], code="too_many")
        try:
            cleaned = super().clean()
            if not _take_first_login(self.get_user()):
                raise self.get_invalid_login_error()
        except forms.ValidationError:
            log.warning("a login as %.60r from %s was refused", name, address)
            raise
        throttle.succeeded(address, name)
        return cleaned


def _take_first_login(user) -> bool:
    """Whether `user` may come in; a one-time password stops being one here, for exactly one of those who try at once."""
    if user is None or not hasattr(user, "first_login"):
        return True
    return FirstLogin.objects.filter(user=user, used_at=None).update(used_at=timezone.now()) == 1


class Login(LoginView):
    """The only door; the admin's login leads here too."""

    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def dispatch(self, request, *arguments, **named):
        # The admin sends whoever it does not want here; sending them back would go round for ever.
        if request.user.is_authenticated and not request.user.is_staff and self.get_redirect_url().startswith(reverse("admin:index")):
            return render(request, "403.html", status=403)
        return super().dispatch(request, *arguments, **named)

    def form_valid(self, form):
        user = form.get_user()
        one_time = FirstLogin.objects.filter(user=user).exists()
        if one_time:
            user.set_unusable_password()
            user.save(update_fields=["password"])
        login(self.request, user)
        if one_time:
            self.request.session[MUST_SET_PASSWORD] = True
            return redirect("password")
        return redirect(self.get_success_url())


@never_cache
@sensitive_post_parameters()
@login_required
def password(request):
    """Set another password. The old one is not asked for when the session began with a one-time password."""
    must = request.session.get(MUST_SET_PASSWORD, False)
    form_class = SetPasswordForm if must else OwnPasswordForm
    form = form_class(request.user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        user = form.save()
        FirstLogin.objects.filter(user=user).delete()
        request.session.pop(MUST_SET_PASSWORD, None)
        update_session_auth_hash(request, user)
        return redirect("overview")
    return render(request, "password.html", {"form": form, "must": must})


class OwnPasswordForm(SetPasswordForm):
    """The password page of somebody who has one: it is asked for once more."""

    old_password = forms.CharField(label="Present password", strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}))
    field_order = ["old_password", "new_password1", "new_password2"]

    def clean_old_password(self):
        old = self.cleaned_data["old_password"]
        if not self.user.check_password(old):
            raise forms.ValidationError("That is not your present password.")
        return old
