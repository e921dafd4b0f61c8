"""Consumer groups as rows of the admin, and the reset of their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from broker_store.formats import moment
from broker_store.units import fact_of, fields_of
from mqadmin import audit
from mqadmin.admin.rows import ClusterAdmin, counted
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.groups import OffsetMove
from mqadmin.store_models import Group
from mqadmin.views.query_parameters import whole
from mqadmin.web import roles


class ResetForm(forms.Form):
    """The target of a move of offsets. A preview shows what the move would do."""

    topic = forms.ChoiceField(widget=UnfoldAdminSelectWidget)
    to = forms.ChoiceField(
        choices=(
            ("earliest", "the first message that is kept"),
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
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="type the group's name to move the offsets",
    )

    def __init__(self, topics: list[str], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.fields["topic"].choices = [(topic, topic) for topic in topics]

    def clean(self) -> None:
        """Convert the value: a time to milliseconds since 1970, an offset to a number."""
        super().clean()
        values = self.cleaned_data
        to, typed = values.get("to"), values.get("value", "").strip()
        if (to in ("time", "offset")) != bool(typed):
            raise ValidationError("A time and an offset need a value; the other targets take none.")
        try:
            values["value"] = (moment.read(typed) if to == "time" else whole(typed, None)) if typed else None
        except ValueError as error:
            self.add_error("value", f"{error}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reset:
    """The values of a valid ResetForm: where the offsets of a topic are to move."""

    topic: str
    to: str
    value: int | None
    queue_id: int | None


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
        cluster.groups.create(name, **values)

    def _update(self, cluster: Any, name: str, values: dict) -> None:
        cluster.groups.update(name, **values)

    def _delete(self, cluster: Any, name: str) -> None:
        cluster.groups.delete(name)

    def _loss(self, obj: Group) -> str:
        return (
            f"Its offsets are deleted: {counted(obj.clients, 'connected client')} would start without "
            f"an offset. This cannot be undone."
        )

    @admin.action(description="Reset offsets of a group…", permissions=["operator"])
    def reset_offset(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Show a preview; move the offsets once the name is typed. One group at a time, since each group has
        topics of its own."""
        groups = list(queryset[:2])
        if len(groups) != 1:
            self.message_user(
                request, "Choose one group: each group has topics of its own.", messages.WARNING
            )
            return None
        name, cluster = groups[0].pk, current_cluster()
        # Topics of the system (%RETRY%, %DLQ%) come last.
        topics = sorted(
            cluster.call(lambda: cluster.groups.detail(name)).topics,
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
            wanted = fact_of(_Reset, form.cleaned_data)
            if form.cleaned_data["confirm"] == name:
                self._reset(request, cluster, name, wanted)
                return None
            if form.cleaned_data["confirm"]:
                audit.unconfirmed(
                    roles.caller_of(request.user), "reset_offset", "group", name, **fields_of(wanted)
                )
                form.add_error("confirm", f"Type {name} to move the offsets.")
            moves = cluster.call(lambda: _reset(cluster, name, wanted, dry_run=True))
            if wanted.to == "time" and wanted.value is not None:
                doubt = async_to_sync(cluster.search.time_doubt)(wanted.topic, wanted.value, wanted.queue_id)
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

    def _reset(self, request: HttpRequest, cluster: Any, name: str, wanted: _Reset) -> None:
        caller, asked = roles.caller_of(request.user), fields_of(wanted)
        with audit.audited(caller, "reset_offset", "group", name, **asked) as record:
            moves = cluster.call(lambda: _reset(cluster, name, wanted, dry_run=False))
            record["moves"] = list(map(fields_of, moves))
        self.message_user(
            request, f"{name}: {len(moves)} offsets of {wanted.topic} are moved.", messages.SUCCESS
        )


def _reset(cluster: Any, group: str, wanted: _Reset, *, dry_run: bool) -> list[OffsetMove]:
    return cluster.groups.reset_offsets(
        group, wanted.topic, wanted.to, wanted.value, queue_id=wanted.queue_id, dry_run=dry_run
    )
