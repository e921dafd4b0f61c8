"""Queues and workers of django-rq."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django_rq.admin import QueueAdmin
from django_rq.models import Dashboard

from mqadmin import queue_pages
from mqadmin.web import roles

# Addresses of ModelAdmin, which treats a queue as a row of a table, and of a package that is not installed.
# All of them would fail.
WITHOUT = {
    *(f"django_rq_dashboard_{name}" for name in ("add", "history", "delete", "change")),
    "django_rq_scheduler_jobs",
    None,
}


admin.site.unregister(Dashboard)


@admin.register(Dashboard)
class QueuesAdmin(QueueAdmin):
    """django-rq's own pages (queues, workers, failures), for administrators only; each change leaves a
    record."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return roles.is_admin(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return roles.is_admin(request)

    def get_urls(self) -> list:
        patterns = [pattern for pattern in super().get_urls() if pattern.name not in WITHOUT]
        for pattern in patterns:
            pattern.callback = queue_pages.guarded(pattern.callback, pattern.name.removeprefix("django_rq_"))
        return patterns
