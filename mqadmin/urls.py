"""Every address of the dashboard; two REST routes are answered before they come here, see asgi.py."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import include, path, re_path
from django.views.defaults import page_not_found
from django.views.generic import RedirectView

from mqadmin.api.metrics import metrics
from mqadmin.views import (
    account,
    dead_letters,
    groups,
    jobs,
    messages,
    overview,
    pipeline,
    registry,
    topics,
    waiting,
)
from mqadmin.views.asked import only, text

admin.autodiscover()

urlpatterns = [
    *registry.pages(),
    path("", overview.overview, name="overview"),
    path("topics/", topics.topics, name="topics"),
    path("topics/<str:name>/", topics.topic, name="topic"),
    path("messages/", messages.messages, name="messages"),
    path("messages/waiting/", waiting.waiting, name="waiting"),
    path("messages/<int:log_offset>/", messages.message, name="message"),
    path("messages/<int:log_offset>/journey", messages.message_journey, name="message_journey"),
    path("messages/<int:log_offset>/<str:part>", messages.message_bytes, name="message_bytes"),
    path("groups/", groups.groups, name="groups"),
    path("groups/<str:name>/", groups.group, name="group"),
    path("groups/<str:name>/timeline", groups.timeline, name="group_timeline"),
    path("groups/<str:name>/dead-letters/", dead_letters.resend, name="dead_letters"),
    path("groups/<str:name>/retries", groups.retries, name="group_retries"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/start", jobs.start_job, name="start_job"),
    path("jobs/<str:job_id>/", jobs.job, name="job"),
    path("jobs/<str:job_id>/cancel", jobs.cancel_job, name="cancel_job"),
    path("pipeline/", pipeline.overview, name="pipeline"),
    path("pipeline/schedules/add", pipeline.add_schedule, name="add_schedule"),
    path("pipeline/schedules/<int:schedule_id>/remove", pipeline.remove_schedule, name="remove_schedule"),
    path("pipeline/start/<str:name>", pipeline.start, name="start_run"),
    path("pipeline/runs/<str:run_id>/", pipeline.run, name="run"),
    path("pipeline/runs/<str:run_id>/log", pipeline.run_log, name="run_log"),
    path("pipeline/runs/<str:run_id>/cancel", pipeline.cancel_run, name="cancel_run"),
    path("pipeline/runs/<str:run_id>/retry", pipeline.retry_run, name="retry_run"),
    path("login/", only(account.Login.as_view(), next=text), name="login"),
    path("logout/", only(LogoutView.as_view(), next=text), name="logout"),
    path("password/", only(account.password), name="password"),
    path("admin/login/", only(RedirectView.as_view(pattern_name="login", query_string=True), next=text)),
    path("admin/password_change/", only(RedirectView.as_view(pattern_name="password"))),
    # "view on site": nothing of ours has such an address
    re_path("^admin/r/", page_not_found, {"exception": None}),
    path("admin/", admin.site.urls),
    path("api/v1/", include("mqadmin.api.urls")),
    path("metrics", metrics, name="metrics"),
    path("favicon.ico", only(RedirectView.as_view(url="/static/favicon.svg"))),
]
