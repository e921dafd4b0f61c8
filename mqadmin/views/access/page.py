"""The pages of access: users of the broker, one of them with its rules, and users and tokens of the
dashboard. Administrators alone change something, and no page shows a password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import path

from broker_store.access.users import MAX_SECRET_CHARACTERS
from broker_store.rest.callers import ROLES
from broker_store.rest.problems import Problem
from broker_store.units import fields_of, small_by_field
from mqadmin import audit
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.access import (
    AccessAnswer,
    AccessRule,
    AccessState,
    AccessUser,
    AccessUserDetail,
    PolicyType,
    UserStatus,
    UserType,
    Verdict,
)
from mqadmin.views.access import facts, rights, users
from mqadmin.views.page import ListPart, by_method, capital, drawn, page, part_of, said
from mqadmin.views.query_parameters import PART, text, whole
from mqadmin.web import tokens

ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
# Fields of the forms with room for what is wrong
WITH_ERRORS = frozenset({"name", "password", "resource", "addresses", "action", "actions", "days"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What was typed into the fields of a form; empty where it has no such field. Passwords are left out."""

    name: str = ""
    type: str = ""
    status: str = ""
    policy: str = ""
    resource: str = ""
    verdict: str = ""
    addresses: str = ""
    role: str = ""
    active: str = ""
    token: str = ""
    days: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The fields of a question about a user of the broker."""

    user: str
    resource: str
    action: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfDashboard:
    """The fields of a question about a user or token of the dashboard."""

    caller: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalsPart:
    """The data of access/refusals.html."""

    state: AccessState


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form that was sent, and what is wrong with it by field."""

    action: str = ""  # which form of the page
    asked: Typed = field(default_factory=Typed)
    actions: list[str] = field(default_factory=list)  # of a rule
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this user do that? What was asked, and the answer or what is wrong with the question."""

    asked: Asked
    answer: AccessAnswer | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPage:
    """The data of the page of the broker's users."""

    state: AccessState
    listed: ListPart[AccessUser]
    q: str  # the part of a name that was searched for
    question: Question
    changes: audit.LatestRecords | None  # None: only an administrator sees them
    form: Form
    actions: tuple[str, ...] = ACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPage:
    """The data of the page of a user."""

    state: AccessState
    shown: AccessUserDetail
    question: Question
    form: Form
    actions: tuple[str, ...] = ACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerChoice:
    """A user or token that a question may be about."""

    value: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardPage:
    """The data of the page of the dashboard's users and tokens."""

    people: list[users.DashboardUser]
    issued_tokens: list[tokens.Token]
    callers: list[CallerChoice]
    known_rights: tuple[rights.Right, ...]
    asked: AskedOfDashboard
    answer: rights.DashboardAnswer | None
    problem: str
    changes: audit.LatestRecords
    form: Form
    issued: str = ""  # the text of a token that was issued by this request, and is shown this once
    known_roles: tuple[str, ...] = ROLES


# The broker's users


@page(takes={**dict.fromkeys(small_by_field(Asked), text), "q": text, "part": PART})
async def show(request: HttpRequest) -> HttpResponse:
    if request.htmx:  # a request was refused
        state = current_cluster().access.state()
        return render(request, "access/refusals.html", fields_of(RefusalsPart(state=state)))
    return await _draw_users(request, request.GET, Form())


@page("admin")
async def create(request: HttpRequest) -> HttpResponse:
    given = request.POST
    form = _form_of(given, "create")
    name = form.asked.name
    try:
        kind, status = _type(form.asked.type), _status(form.asked.status)
        await facts.create_user(request.caller, name, _password(given), kind, status)
    except Problem as problem:
        return await _draw_users(request, QueryDict(), _wrong(form, problem), 400)
    messages.success(request, f"User {name} was created. It may do what its rules allow.")
    return redirect("access_user", name=name)


async def _draw_users(request: HttpRequest, asked: QueryDict, form: Form, status: int = 200) -> HttpResponse:
    access = current_cluster().access
    state = access.state()
    q = asked.get("q", "").strip()

    async def find(begin: int, count: int) -> tuple[list[AccessUser], int]:
        return ([], 0) if state.counts is None else access.page(q, begin, count)

    shown = AccessPage(
        state=state,
        listed=await part_of(request, find),
        q=q,
        question=_question(asked, state),
        changes=await sync_to_async(audit.latest_of)(facts.KINDS, facts.SHOWN_CHANGES)
        if request.caller.may("admin")
        else None,
        form=form,
    )
    return await drawn(request, "access/page.html", fields_of(shown), status)


def _question(given: QueryDict, state: AccessState) -> Question:
    asked = Asked(**{name: given.get(name, "").strip() for name in small_by_field(Asked)})
    if state.counts is None or not (asked.user and asked.resource):
        return Question(asked=asked)
    try:
        answer = current_cluster().access.decide(
            asked.user, asked.resource, asked.action or "Sub", asked.address or None
        )
    except Problem as problem:
        return Question(asked=asked, problem=_sentence(problem))
    return Question(asked=asked, answer=answer)


@page(takes=dict.fromkeys(small_by_field(Asked), text))
async def show_user(request: HttpRequest, name: str) -> HttpResponse:
    return await _draw_user(request, name, Form())


@page("admin")
async def change_user(request: HttpRequest, name: str) -> HttpResponse:
    """Make the change of one of the forms of a user's page."""
    given = request.POST
    form = _form_of(given, given.get("do", ""))
    try:
        sentence = await _change(request, name, form, given)
    except Problem as problem:
        if problem.code == "not_found" and form.action != "delete_rule":
            raise
        return await _draw_user(request, name, _wrong(form, problem), 400)
    messages.success(request, sentence)
    return redirect("access") if form.action == "delete" else redirect("access_user", name=name)


async def _change(request: HttpRequest, name: str, form: Form, given: QueryDict) -> str:
    """Make a change; return what was done, in a sentence. Raises Problem."""
    caller, asked = request.caller, form.asked
    if form.action == "change":
        kind, status = _type(asked.type), _status(asked.status)
        await facts.update_user(caller, name, password=None, kind=kind, status=status)
        return f"User {name} was changed. It acts on the next request."
    if form.action == "password":
        password = _password(given)
        await facts.update_user(caller, name, password=password, kind=None, status=None)
        return f"The password of {name} was changed. Clients that sign with the old one are refused."
    if form.action == "put_rule":
        rule = AccessRule(
            policy=_policy(asked.policy),
            resource=asked.resource,
            actions=form.actions,
            addresses=asked.addresses.replace(",", " ").split(),
            verdict=_verdict(asked.verdict),
        )
        await facts.put_rule(caller, name, rule)
        return f"The rule for {rule.resource} was kept. It acts on the next request."
    if form.action == "delete_rule":
        await facts.delete_rule(caller, name, _policy(asked.policy), asked.resource)
        return f"The rule for {asked.resource} was deleted."
    if form.action == "delete":
        await facts.delete_user(caller, name, given.get("confirm", "").strip())
        return f"User {name} was deleted with its rules."
    raise Problem("invalid", f"{form.action[:30]!r} is no form of this page")


async def _draw_user(request: HttpRequest, name: str, form: Form, status: int = 200) -> HttpResponse:
    access = current_cluster().access
    state, detail = access.state(), access.detail(name)
    asked = request.GET.copy()
    asked.setlist("user", [name])
    shown = UserPage(state=state, shown=detail, question=_question(asked, state), form=form)
    return await drawn(request, "access/user.html", fields_of(shown), status)


# The dashboard's users and tokens


@page("admin", takes=dict.fromkeys(small_by_field(AskedOfDashboard), text))
async def dashboard(request: HttpRequest) -> HttpResponse:
    return await _draw_dashboard(request, Form())


@page("admin")
async def change_dashboard(request: HttpRequest) -> HttpResponse:
    """Make the change of one of the forms of the dashboard's page."""
    given = request.POST
    form = _form_of(given, given.get("do", ""))
    try:
        sentence, issued = await _change_dashboard(request, form, given)
    except Problem as problem:
        return await _draw_dashboard(request, _wrong(form, problem), status=400)
    if issued:  # shown in this answer alone: the next page is kept in the history of the browser, too
        return await _draw_dashboard(request, Form(), issued=issued)
    messages.success(request, sentence)
    return redirect("access_dashboard")


async def _change_dashboard(request: HttpRequest, form: Form, given: QueryDict) -> tuple[str, str]:
    """Make a change; return what was done, and the text of an issued token. Raises Problem."""
    caller, asked = request.caller, form.asked
    name = asked.name
    if form.action == "create_user":
        made = await facts.create_dashboard_user(caller, name, _role(asked.role), _password(given))
        return f"User {made.name} was created. The password is good for one login.", ""
    if form.action == "change_user":
        password = given.get("password") or None
        active = {"": None, "yes": True, "no": False}.get(asked.active)
        role = _role(asked.role) if asked.role else None
        await facts.change_dashboard_user(caller, name, role=role, is_active=active, password=password)
        return f"User {name} was changed.", ""
    if form.action == "issue_token":
        try:
            days = whole(asked.days, None, tokens.MAX_DAYS, 1)
        except ValueError as error:
            raise Problem("invalid", f"days: {error}") from None
        return "", await facts.issue_token(caller, name, _role(asked.role), days)
    if form.action == "revoke_token":
        await facts.revoke_token(caller, asked.token)
        return "The token was revoked. It is refused within a second.", ""
    raise Problem("invalid", f"{form.action[:30]!r} is no form of this page")


async def _draw_dashboard(
    request: HttpRequest, form: Form, *, issued: str = "", status: int = 200
) -> HttpResponse:
    fields = small_by_field(AskedOfDashboard)
    asked = AskedOfDashboard(**{name: request.GET.get(name, "").strip() for name in fields})

    def read() -> DashboardPage:
        people, issued_tokens = users.listed(), facts.shown_tokens()
        answer, problem = None, ""
        if asked.caller and asked.right:
            try:
                answer = rights.answer_of(asked.caller, asked.right)
            except Problem as error:
                problem = _sentence(error)
        return DashboardPage(
            people=people,
            issued_tokens=issued_tokens,
            callers=_callers(people, issued_tokens),
            known_rights=rights.RIGHTS,
            asked=asked,
            answer=answer,
            problem=problem,
            changes=audit.latest_of(facts.DASHBOARD_KINDS, facts.SHOWN_CHANGES),
            form=form,
            issued=issued,
        )

    return await drawn(request, "access/dashboard.html", fields_of(await sync_to_async(read)()), status)


def _callers(people: list[users.DashboardUser], issued: list[tokens.Token]) -> list[CallerChoice]:
    return [
        *(CallerChoice(value=f"user:{person.name}", title=person.name) for person in people),
        *(
            CallerChoice(value=f"token:{token.id}", title=f"token {token.name} ({token.start}…)")
            for token in issued
        ),
    ]


# Forms


def _form_of(given: QueryDict, action: str) -> Form:
    asked = Typed(**{name: given.get(name, "").strip() for name in small_by_field(Typed)})
    return Form(action=action, asked=asked, actions=given.getlist("actions")[:10])


def _wrong(form: Form, problem: Problem) -> Form:
    """Return the form with what is wrong beside the field whose name the problem begins with."""
    name, colon, _ = problem.detail.partition(":")
    if problem.code == "confirmation_needed":
        errors = {"confirm": "Type the name to confirm."}
    elif colon and name in WITH_ERRORS:
        errors = {"actions" if name == "action" else name: capital(problem.detail[len(name) + 1 :].strip())}
    else:
        errors = {"form": _sentence(problem)}
    return Form(action=form.action, asked=form.asked, actions=form.actions, errors=errors)


def _sentence(problem: Problem) -> str:
    hint = f" {capital(problem.hint)}." if problem.hint else ""
    return f"{capital(said(problem))}.{hint}"


def _password(given: QueryDict) -> str:
    password = given.get("password", "")
    if not password.strip() or len(password) > MAX_SECRET_CHARACTERS:
        raise Problem("invalid", f"password: expected 1 to {MAX_SECRET_CHARACTERS:,} characters")
    return password


def _one_of(field_name: str, value: str, *known: str) -> str:
    if value not in known:
        raise Problem("invalid", f"{field_name}: {value[:30]!r} is none of {', '.join(known)}")
    return value


def _type(value: str) -> UserType:
    return cast(UserType, _one_of("type", value, "Normal", "Super"))


def _status(value: str) -> UserStatus:
    return cast(UserStatus, _one_of("status", value, "enable", "disable"))


def _policy(value: str) -> PolicyType:
    return cast(PolicyType, _one_of("policy", value, "Custom", "Default"))


def _verdict(value: str) -> Verdict:
    return cast(Verdict, _one_of("verdict", value, "Allow", "Deny"))


def _role(value: str) -> tokens.Role:
    return cast(tokens.Role, _one_of("role", value, *ROLES))


PAGES = (
    path("access/", by_method(show, create), name="access"),
    path("access/dashboard/", by_method(dashboard, change_dashboard), name="access_dashboard"),
    path("access/users/<path:name>", by_method(show_user, change_user), name="access_user"),
)
