"""Topics as rows of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from broker_store.formats.topics import SERVED_TYPES
from mqadmin.admin.rows import ClusterAdmin, counted
from mqadmin.store_models import Topic


@admin.register(Topic)
class TopicAdmin(ClusterAdmin):
    kind = "topic"
    fields_to_save = ("read_queues", "write_queues", "perm", "order", "message_type")
    fields_to_remember = ("messages",)
    fields = ("name", *fields_to_save)
    list_display = ("name", "kind", "read_queues", "write_queues", "permission", "messages_kept", "groups")
    search_fields = ("name",)

    def get_form(
        self, request: HttpRequest, obj: Topic | None = None, change: bool = False, **options: Any
    ) -> Any:
        """Return the form. It offers the types that the broker takes, and the one that the topic has."""
        form = super().get_form(request, obj, change, **options)
        if (field := form.base_fields.get("message_type")) is not None:
            now = () if obj is None else (obj.message_type,)
            field.choices = [(kind, kind) for kind in dict.fromkeys((*SERVED_TYPES, *now))]
        return form

    @admin.display(ordering="perm")
    def permission(self, topic: Topic) -> str:
        words = [word for bit, word in ((4, "read"), (2, "write"), (1, "inherit")) if topic.perm & bit]
        return ", ".join(words) or "none"

    @admin.display(description="messages", ordering="messages")
    def messages_kept(self, topic: Topic) -> str:
        return "unknown" if topic.messages is None else f"{topic.messages:,}"

    def _create(self, cluster: Any, name: str, values: dict) -> None:
        cluster.topics.create(name, **values)

    def _update(self, cluster: Any, name: str, values: dict) -> None:
        cluster.topics.update(name, **values)

    def _delete(self, cluster: Any, name: str) -> None:
        cluster.topics.delete(name)

    def _loss(self, obj: Topic) -> str:
        return (
            f"{counted(obj.messages, 'message')} can no longer be read; {counted(obj.groups, 'group')} "
            f"can no longer read it. This cannot be undone."
        )
