"""The audit trail."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mqadmin import audit
from mqadmin.web import roles


@admin.register(LogEntry)
class AuditAdmin(ModelAdmin):
    """Audit records: read by administrators, never changed."""

    list_display = ("at", "who", "what", "kind", "name", "outcome")
    list_select_related = ("user", "content_type")
    search_fields = ("object_repr", "change_message", "user__username")
    date_hierarchy = "action_time"
    ordering = ("-pk",)
    fields = ("at", "who", "what", "kind", "name", "outcome", "change_message")
    readonly_fields = fields

    @admin.display(description="at, UTC", ordering="action_time")
    def at(self, entry: LogEntry) -> str:
        return f"{entry.action_time:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="by")
    def who(self, entry: LogEntry) -> str:
        return audit.read(entry).by

    @admin.display(description="action")
    def what(self, entry: LogEntry) -> str:
        return audit.read(entry).action

    @admin.display
    def kind(self, entry: LogEntry) -> str:
        return audit.read(entry).kind

    @admin.display(ordering="object_repr")
    def name(self, entry: LogEntry) -> str:
        return audit.read(entry).name

    @admin.display
    def outcome(self, entry: LogEntry) -> str:
        return audit.read(entry).outcome

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return roles.is_admin(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
