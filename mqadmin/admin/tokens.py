"""API tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mqadmin import audit
from mqadmin.web import roles, tokens


@admin.register(tokens.ApiToken)
class ApiTokenAdmin(ModelAdmin):
    """Tokens are created and revoked, never changed."""

    list_display = (
        "name",
        "role",
        "start",
        "state",
        "created_by",
        "created_at",
        "expires_at",
        "last_used_at",
    )
    list_filter = ("role",)
    search_fields = ("name",)
    fields = ("name", "role", "expires_at")
    actions = ("revoke",)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return roles.is_admin(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return roles.is_admin(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return roles.is_admin(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # the audit's `token:NAME` would lose its meaning

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return roles.is_admin(request)

    def save_model(
        self, request: HttpRequest, obj: tokens.ApiToken, form: forms.ModelForm, change: bool
    ) -> None:
        caller = roles.caller_of(request.user)
        with audit.audited(
            caller, "create", "apitoken", obj.name, role=obj.role, expires_at=obj.expires_at
        ) as record:
            made, text = tokens.issue(obj.name, obj.role, caller.name, expires_at=obj.expires_at)
            record["id"] = obj.pk = made.pk
        obj.refresh_from_db()
        self.message_user(request, f"The token is {text}. It is shown only this once.", messages.SUCCESS)

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: Any) -> None:
        for token in queryset:
            with audit.audited(roles.caller_of(request.user), "delete", "apitoken", token.name, id=token.pk):
                tokens.revoke(token)
        self.message_user(
            request, f"{len(queryset)} revoked; they are refused within a second.", messages.SUCCESS
        )

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None
