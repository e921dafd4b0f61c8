"""Users and the groups whose names are roles."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group as UserGroup
from django.contrib.auth.models import User
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

for model in (User, UserGroup):
    admin.site.unregister(model)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):
    """Users; their role is their membership in `admin` or `operator`."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return (
            False  # it would delete the user's audit records, too; an administrator clears `active` instead
        )


@admin.register(UserGroup)
class UserGroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """The groups whose names are roles."""
