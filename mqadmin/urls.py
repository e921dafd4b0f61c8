"""Every address of the dashboard; two REST routes are answered before these, see web/asgi.py."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.defaults import page_not_found
from django.views.generic import RedirectView

from mqadmin.api.metrics import metrics
from mqadmin.views import registry
from mqadmin.views.query_parameters import only, text

admin.autodiscover()

urlpatterns = [
    *registry.pages(),
    path("admin/login/", only(RedirectView.as_view(pattern_name="login", query_string=True), next=text)),
    path("admin/password_change/", only(RedirectView.as_view(pattern_name="password"))),
    # Django's "view on site", which no object here has
    re_path("^admin/r/", page_not_found, {"exception": None}),
    path("admin/", admin.site.urls),
    path("api/v1/", include("mqadmin.api.urls")),
    path("metrics", metrics, name="metrics"),
    path("favicon.ico", only(RedirectView.as_view(url="/static/favicon.svg"))),
]
