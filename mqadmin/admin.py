"""The admin: topics and groups of the cluster as if they were rows, API tokens, the audit trail.

Whoever may change here has the role for it (roles.py): rights follow it and nothing else, so a page, REST and
the admin never disagree. Saving, deleting and the actions ask the cluster and leave one audit record each;
Django's own entries are not written beside them. What cannot be taken back (a deletion, a reset of offsets)
is done one at a time and wants the name typed; a wrong name leaves its record, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group as UserGroup
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django_rq.admin import QueueAdmin
from django_rq.models import Dashboard
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from broker_store.errors import BrokerStoreError, StoreClosedError
from broker_store.formats import moment
from broker_store.rest.problems import problem_of
from broker_store.units import fields_of
from mqadmin import audit, queue_pages
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.groups import OffsetMove
from mqadmin.store_models import Group, Topic
from mqadmin.views.asked import whole
from mqadmin.web import roles, tokens
from mqadmin.web.admin_site import unavailable

SERVING = ("running", "read_only")

for model in (User, UserGroup, Dashboard):
    admin.site.unregister(model)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):
    """Users; their role is their membership in `admin` or `operator`."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # a user's records in the audit trail would go along: take away `active` instead


@admin.register(UserGroup)
class UserGroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """The groups whose names are roles."""


# Addresses of ModelAdmin, for which a queue is a row, and of a package that is not installed: they could only
# fail.
WITHOUT = {
    *(f"django_rq_dashboard_{name}" for name in ("add", "history", "delete", "change")),
    "django_rq_scheduler_jobs",
    None,
}


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


class ConfirmForm(forms.Form):
    """The name once more."""

    confirm = forms.CharField(
        required=False,
        label="Name",
        strip=True,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "required": True}),
    )

    def __init__(self, name: str, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._name = name
        self.fields["confirm"].help_text = f"type {name} to delete it"

    def clean_confirm(self) -> str:
        if self.cleaned_data["confirm"] != self._name:
            raise ValidationError(f"Type {self._name} to delete it.")
        return self._name


class ClusterAdmin(ModelAdmin):
    """What topics and groups have in common. `fields_to_save` are those the cluster takes."""

    kind: str
    fields_to_save: tuple[str, ...]
    fields_to_remember: tuple[str, ...]  # what a deletion's record keeps beside them
    actions: tuple[str, ...] = ("delete_one",)
    list_per_page = 100
    show_full_result_count = False
    actions_on_bottom = False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.is_active and request.user.is_staff

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, "admin")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, "admin") and (obj is None or obj.kind != "system")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, "admin") and (obj is None or obj.kind != "system")

    def _may(self, request: HttpRequest, role: str) -> bool:
        return self.has_view_permission(request) and roles.caller_of(request.user).may(role)

    def has_operator_permission(self, request: HttpRequest) -> bool:
        """For `@admin.action(permissions=["operator"])`."""
        return self._may(request, "operator")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj is not None else ()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return self.model.objects.filter(pk=object_id).first()

    def get_actions(self, request: HttpRequest) -> dict:
        """Without Django's deletion of many, which asks for no name."""
        return {
            name: action for name, action in super().get_actions(request).items() if name != "delete_selected"
        }

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        if request.POST.get("action") in {*self.actions} - {*self.get_actions(request)}:
            raise PermissionDenied  # Django would only say that no action was selected, and leave no record
        return self._or_sentence(
            request, lambda: super(ClusterAdmin, self).changelist_view(request, extra_context)
        )

    # Django calls these two within a transaction. An error that left it would take back the audit record of
    # the failure.

    def _changeform_view(
        self, request: HttpRequest, object_id: str | None, form_url: str, extra_context: dict | None
    ) -> HttpResponse:
        return self._or_sentence(
            request,
            lambda: super(ClusterAdmin, self)._changeform_view(request, object_id, form_url, extra_context),
        )

    def _delete_view(self, request: HttpRequest, object_id: str, extra_context: dict | None) -> HttpResponse:
        return self._or_sentence(request, lambda: self._confirm_and_delete(request, object_id))

    def _confirm_and_delete(self, request: HttpRequest, object_id: str) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id))
        if not self.has_delete_permission(request, obj):
            raise PermissionDenied
        if obj is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        form = ConfirmForm(obj.pk, request.POST if request.method == "POST" else None)
        if form.is_valid():
            self.delete_model(request, obj)
            return self.response_delete(request, str(obj), obj.pk)
        if form.is_bound:
            audit.unconfirmed(roles.caller_of(request.user), "delete", self.kind, obj.pk)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Delete {obj.pk}",
            "opts": self.opts,
            "name": obj.pk,
            "back": reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"),
            "loss": self._loss(obj),
            "form": form,
        }
        return TemplateResponse(request, "admin/confirm_delete.html", context)

    @admin.action(description="Delete a %(verbose_name)s…", permissions=["delete"])
    def delete_one(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """To the page that asks for the name."""
        chosen = list(queryset[:2])
        if len(chosen) == 1:
            return redirect(f"admin:{self.opts.app_label}_{self.opts.model_name}_delete", quote(chosen[0].pk))
        self.message_user(request, "Choose one: each is deleted by its own name.", messages.WARNING)
        return None

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict | None = None
    ) -> HttpResponse:
        return self._or_sentence(
            request, lambda: super(ClusterAdmin, self).history_view(request, object_id, extra_context)
        )

    def _or_sentence(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """The view; when the broker cannot answer, a page that says so in place of one that says error."""
        try:
            state = current_cluster().call(current_cluster().state)
            if state.state not in SERVING:  # the list would take the error for a wrong filter and redirect
                raise StoreClosedError(state.sentence)
            response = view()
            return response.render() if hasattr(response, "render") and not response.is_rendered else response
        except (BrokerStoreError, TimeoutError) as error:
            return unavailable(request, problem_of(error))

    def save_model(self, request: HttpRequest, obj: Any, form: forms.ModelForm, change: bool) -> None:
        cluster = current_cluster()
        caller = roles.caller_of(request.user)
        if change:
            before = self.get_object(request, obj.pk)
            values = {name: getattr(obj, name) for name in self.fields_to_save if name in form.changed_data}
            if not values:
                return
            old = {name: getattr(before, name) for name in values}
            with audit.audited(caller, "update", self.kind, obj.pk, before=old, after=values):
                cluster.call(lambda: self._update(cluster, obj.pk, values))
        else:
            values = {name: getattr(obj, name) for name in self.fields_to_save}
            with audit.audited(caller, "create", self.kind, obj.pk, after=values):
                cluster.call(lambda: self._create(cluster, obj.pk, values))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        cluster = current_cluster()
        before = {name: getattr(obj, name) for name in (*self.fields_to_save, *self.fields_to_remember)}
        with audit.audited(roles.caller_of(request.user), "delete", self.kind, obj.pk, before=before):
            cluster.call(lambda: self._delete(cluster, obj.pk))

    def _create(self, cluster: Any, name: str, values: dict) -> None:
        raise NotImplementedError

    def _update(self, cluster: Any, name: str, values: dict) -> None:
        raise NotImplementedError

    def _delete(self, cluster: Any, name: str) -> None:
        raise NotImplementedError

    def _loss(self, obj: Any) -> str:
        """What a deletion takes away, in a sentence."""
        raise NotImplementedError

    # The audit record is the history; Django's entries would say the same again, with less in them.

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        return None


@admin.register(Topic)
class TopicAdmin(ClusterAdmin):
    kind = "topic"
    fields_to_save = ("read_queues", "write_queues", "perm", "order")
    fields_to_remember = ("messages",)
    fields = ("name", *fields_to_save)
    list_display = ("name", "kind", "read_queues", "write_queues", "permission", "messages_kept", "groups")
    search_fields = ("name",)

    @admin.display(ordering="perm")
    def permission(self, topic: Topic) -> str:
        words = [word for bit, word in ((4, "read"), (2, "write"), (1, "inherit")) if topic.perm & bit]
        return ", ".join(words) or "none"

    @admin.display(description="messages", ordering="messages")
    def messages_kept(self, topic: Topic) -> str:
        return "unknown" if topic.messages is None else f"{topic.messages:,}"

    def _create(self, cluster: Any, name: str, values: dict) -> None:
        cluster.create_topic(name, **values)

    def _update(self, cluster: Any, name: str, values: dict) -> None:
        cluster.update_topic(name, **values)

    def _delete(self, cluster: Any, name: str) -> None:
        cluster.delete_topic(name)

    def _loss(self, obj: Topic) -> str:
        return (
            f"{_counted(obj.messages, 'message')} can no longer be read; {_counted(obj.groups, 'group')} "
            f"will find nothing here. This cannot be undone."
        )


class ResetForm(forms.Form):
    """Where to. What it would do is shown before it is done."""

    topic = forms.ChoiceField(widget=UnfoldAdminSelectWidget)
    to = forms.ChoiceField(
        choices=(
            ("earliest", "the first message kept"),
            ("latest", "the end"),
            ("time", "a time"),
            ("offset", "an offset"),
        ),
        widget=UnfoldAdminSelectWidget,
    )
    value = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text=f"the time, UTC, such as {moment.EXAMPLE}, or milliseconds since 1970; or the offset",
    )
    queue_id = forms.IntegerField(
        min_value=0,
        max_value=(1 << 31) - 1,
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="empty: every queue",
    )
    confirm = forms.CharField(
        required=False, widget=UnfoldAdminTextInputWidget, help_text="type the group's name to do it"
    )

    def __init__(self, topics: list[str], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.fields["topic"].choices = [(topic, topic) for topic in topics]

    def clean(self) -> dict:
        values = super().clean()
        to, typed = values.get("to"), values.get("value", "").strip()
        if (to in ("time", "offset")) != bool(typed):
            raise ValidationError("A value goes with a time and with an offset, and only with these.")
        try:
            values["value"] = (moment.read(typed) if to == "time" else whole(typed, None)) if typed else None
        except ValueError as error:
            self.add_error("value", f"{error}.")
        return values


@admin.register(Group)
class GroupAdmin(ClusterAdmin):
    kind = "group"
    fields_to_save = ("consume_enable", "broadcast", "orderly", "retry_queues", "retry_max_times")
    fields_to_remember = ("lag",)
    fields = ("name", *fields_to_save)
    list_display = (
        "name",
        "kind",
        "consume_enable",
        "broadcast",
        "orderly",
        "retry_max_times",
        "clients",
        "messages_behind",
    )
    search_fields = ("name",)
    actions = (*ClusterAdmin.actions, "reset_offset")

    @admin.display(description="lag", ordering="lag")
    def messages_behind(self, group: Group) -> str:
        return "unknown" if group.lag is None else f"{group.lag:,}"

    def _create(self, cluster: Any, name: str, values: dict) -> None:
        cluster.create_group(name, **values)

    def _update(self, cluster: Any, name: str, values: dict) -> None:
        cluster.update_group(name, **values)

    def _delete(self, cluster: Any, name: str) -> None:
        cluster.delete_group(name)

    def _loss(self, obj: Group) -> str:
        return (
            f"Its offsets are forgotten: {_counted(obj.clients, 'connected client')} would start over. "
            f"This cannot be undone."
        )

    @admin.action(description="Reset offsets of a group…", permissions=["operator"])
    def reset_offset(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Preview, then the name typed, then done: one group at a time, since each has topics of its own."""
        groups = list(queryset[:2])
        if len(groups) != 1:
            self.message_user(request, "Choose one group: each has topics of its own.", messages.WARNING)
            return None
        name, cluster = groups[0].pk, current_cluster()
        # Those that people named stand first.
        topics = sorted(
            cluster.call(lambda: cluster.group(name)).topics,
            key=lambda topic: (topic.startswith("%"), topic),
        )
        if not topics:
            self.message_user(
                request, f"{name} has read no topic, so there is no offset to move.", messages.WARNING
            )
            return None
        form = ResetForm(topics, request.POST if "to" in request.POST else None)
        moves = doubt = None
        if form.is_bound and form.is_valid():
            wanted = {key: form.cleaned_data[key] for key in ("topic", "to", "value", "queue_id")}
            if form.cleaned_data["confirm"] == name:
                self._reset(request, cluster, name, wanted)
                return None
            if form.cleaned_data["confirm"]:
                audit.unconfirmed(roles.caller_of(request.user), "reset_offset", "group", name, **wanted)
                form.add_error("confirm", f"Type {name} to do it.")
            moves = cluster.call(lambda: _reset(cluster, name, wanted, dry_run=True))
            if wanted["to"] == "time":
                doubt = async_to_sync(cluster.time_doubt)(
                    wanted["topic"], wanted["value"], wanted["queue_id"]
                )
        context = {
            **self.admin_site.each_context(request),
            "title": f"Reset offsets of {name}",
            "opts": self.opts,
            "group": name,
            "form": form,
            "moves": moves,
            "doubt": doubt,
            "selected": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/reset_offset.html", context)

    def _reset(self, request: HttpRequest, cluster: Any, name: str, wanted: dict) -> None:
        with audit.audited(roles.caller_of(request.user), "reset_offset", "group", name, **wanted) as record:
            moves = cluster.call(lambda: _reset(cluster, name, wanted, dry_run=False))
            record["moves"] = list(map(fields_of, moves))
        self.message_user(
            request, f"{name}: {len(moves)} offsets of {wanted['topic']} are moved.", messages.SUCCESS
        )


def _counted(number: int | None, noun: str) -> str:
    """A number with its noun; what is not known is said to be so."""
    return (
        f"an unknown number of {noun}s"
        if number is None
        else f"{number:,} {noun}{'' if number == 1 else 's'}"
    )


def _reset(cluster: Any, group: str, wanted: dict, *, dry_run: bool) -> list[OffsetMove]:
    return cluster.reset_offset(
        group, wanted["topic"], wanted["to"], wanted["value"], queue_id=wanted["queue_id"], dry_run=dry_run
    )


@admin.register(tokens.ApiToken)
class ApiTokenAdmin(ModelAdmin):
    """Tokens are made and revoked; a token that was made does not change."""

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
        self.message_user(request, f"The token is {text} — shown this once.", messages.SUCCESS)

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: Any) -> None:
        for token in queryset:
            with audit.audited(roles.caller_of(request.user), "delete", "apitoken", token.name, id=token.pk):
                tokens.revoke(token)
        self.message_user(request, f"{len(queryset)} revoked; they stop within a second.", messages.SUCCESS)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None


@admin.register(LogEntry)
class AuditAdmin(ModelAdmin):
    """The audit trail: to be read, by administrators, and never changed."""

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
        return audit.read(entry)["by"]

    @admin.display(description="action")
    def what(self, entry: LogEntry) -> str:
        return audit.read(entry)["action"]

    @admin.display
    def kind(self, entry: LogEntry) -> str:
        return audit.read(entry)["kind"]

    @admin.display(ordering="object_repr")
    def name(self, entry: LogEntry) -> str:
        return audit.read(entry)["name"]

    @admin.display
    def outcome(self, entry: LogEntry) -> str:
        return audit.read(entry)["outcome"]

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
