"""Topics and groups of the cluster as rows of the admin: what both have in common.

Saving, deleting and the actions call the cluster and write one audit record each; Django's own entries are
not written in addition. What cannot be undone (a deletion, a reset of offsets) is done for one row at a time,
and the user must type the name; a wrong name is recorded, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from broker_store.errors import BrokerStoreError, StoreClosedError
from broker_store.rest.problems import Problem, problem_of
from mqadmin import audit
from mqadmin.cluster.current import current_cluster
from mqadmin.web import roles
from mqadmin.web.admin_site import unavailable

SERVING = ("running", "read_only")


class ConfirmForm(forms.Form):
    """A form in which a user types the name of a row to confirm its deletion."""

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
    """The base of the admin of topics and of groups. `fields_to_save` are the fields that the cluster
    takes."""

    kind: str
    fields_to_save: tuple[str, ...]
    fields_to_remember: tuple[str, ...]  # other fields that the audit record of a deletion has
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
        """Return whether the user is an operator; Django calls this for
        `@admin.action(permissions=["operator"])`."""
        return self._may(request, "operator")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj is not None else ()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return self.model.objects.filter(pk=object_id).first()

    def get_actions(self, request: HttpRequest) -> dict[str, tuple[Any, str, str]]:
        """Return the actions without Django's deletion of many, which asks for no name."""
        return {
            name: action for name, action in super().get_actions(request).items() if name != "delete_selected"
        }

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        if request.POST.get("action") in {*self.actions} - {*self.get_actions(request)}:
            raise PermissionDenied  # Django would answer that no action was selected, and write no record
        return self._or_sentence(
            request, lambda: super(ClusterAdmin, self).changelist_view(request, extra_context)
        )

    # Django calls these two within a transaction. An error that left it would roll back the audit record of
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
        """Go to the page that asks for the name."""
        chosen = list(queryset[:2])
        if len(chosen) == 1:
            return redirect(f"admin:{self.opts.app_label}_{self.opts.model_name}_delete", quote(chosen[0].pk))
        self.message_user(request, "Choose one: each is deleted by typing its own name.", messages.WARNING)
        return None

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict | None = None
    ) -> HttpResponse:
        return self._or_sentence(
            request, lambda: super(ClusterAdmin, self).history_view(request, object_id, extra_context)
        )

    def _or_sentence(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Return the answer of a view, or a page with the reason why the broker cannot answer."""
        try:
            state = current_cluster().call(current_cluster().state)
            # The list would treat the error as a wrong filter, and redirect
            if state.state not in SERVING:
                raise StoreClosedError(state.sentence)
            response = view()
            return response.render() if hasattr(response, "render") and not response.is_rendered else response
        except (BrokerStoreError, Problem, TimeoutError) as error:
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
        """Return a sentence that states what a deletion removes."""
        raise NotImplementedError

    # The audit record is the history; Django's entries would repeat a part of it.

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        return None


def counted(number: int | None, noun: str) -> str:
    """Return a number with its noun, such as "2 messages"; "an unknown number of messages" for None."""
    return (
        f"an unknown number of {noun}s"
        if number is None
        else f"{number:,} {noun}{'' if number == 1 else 's'}"
    )
