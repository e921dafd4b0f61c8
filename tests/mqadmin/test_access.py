"""Every address of the program with each caller; access.txt has what each must be
answered.

The addresses are found, not listed: Django's resolver, the operations of the REST contract, and the
websocket. One that is added later fails the first test until it has a line in access.txt, and a door that
opens or closes fails the second. Requests go through the application that uvicorn serves, so the routes in
front of Django answer for themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from prometheus_client import CollectorRegistry

from mqadmin.api.contract import api
from mqadmin.web import tokens
from tests.support.http_client import Answer, ask
from tests.support.websocket import WebsocketCommunicator

pytestmark = pytest.mark.django_db(transaction=True)

MATRIX = Path(__file__).with_name("access.txt")
CALLERS = (
    "anonymous",
    "viewer",
    "operator",
    "admin",
    "superuser",
    "token:viewer",
    "token:operator",
    "token:admin",
)
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
WEBSOCKET = ("WS", "/ws/v1/")
# An address that stands for a pattern: what is written in access.txt, and what is asked for where that
# differs.
PATTERNS = {
    "^stats.json/?$": "stats.json",
    r"^stats.json/(?P<token>[\w]+)?/?$": "stats.json/<token>",
    "^metrics/?$": "metrics",
    "^(?P<app_label>mqadmin|django_rq|admin|auth)/$": "<app_label>/",
    "(?P<url>.*)$": "<whatever>",
    "^admin/r/": "admin/r/<whatever>",
    "^": "<whatever>",
}
VALUES = {
    "log_offset": "40000", "part": "record", "topic": "orders", "group": "billing", "queue_id": "0", "message_id": "x", "job_id": "x", "token_id": "999", "job": "audit", "run_id": "x", "recovery_id": "x", "schedule_id": "999",
    "queue_index": "0", "connection_index": "0", "scheduler_name": "x", "cron_job_name": "x", "result_id": "x", "key": "rq:worker:x",
    "content_type_id": "1", "token": "x", "app_label": "auth", "whatever": "nothing-here",
    "file": "20251123050000000",
}  # fmt: skip
BODIES = {
    "/api/v1/topics": {"name": "orders"},
    "/api/v1/groups": {"name": "billing"},
    "/api/v1/topics/<topic>": {"perm": 4},
    "/api/v1/groups/<group>": {"orderly": True},
    "/api/v1/topics/<topic>/messages": {"body": "x"},
    "/api/v1/groups/<group>/offsets/reset": {"topic": "orders", "to": "latest"},
    "/api/v1/jobs": {"kind": "check_store"},
    "/api/v1/pipeline/<job>/runs": {"topic": None},
    "/api/v1/pipeline/schedules": {"job": "audit", "cron": "30 2 * * *"},
    "/api/v1/store/recoveries/dry-run": {},
    "/api/v1/store/index/explain": {"topic": "orders", "key": "k"},
    "/api/v1/auth/tokens": {"name": "t"},
    "/api/v1/access/import": {"users": [{"name": "shop", "password": "x"}]},
    "/api/v1/access/users": {"name": "billing", "password": "x"},
    "/api/v1/access/users/<name>": {"type": "Normal"},
    "/api/v1/access/rules/<name>": {"resource": "Topic:orders", "actions": ["Sub"]},
    "/api/v1/auth/users": {"name": "root", "password": "a-good-long-one"},
    "/api/v1/auth/users/<name>": {"role": "viewer"},
}
QUERIES = {
    "/api/v1/messages": "?topic=orders&key=k",
    "/api/v1/access/decision": "?user=billing&resource=Topic:orders&action=Sub",
    "DELETE /api/v1/access/rules/<name>": "?resource=Topic:none",
    "/api/v1/auth/decision": "?caller=user:root&right=send",
    "/api/v1/store/journey": "?log_offset=40000",
    "/api/v1/topics/<topic>/queues/<queue_id>/offset": "?time_ms=1",
    "/admin/autocomplete/": "?app_label=admin&model_name=logentry&field_name=user",
}
CSRF = "c" * 32
# The contract and what is not in it are read only and answer alike to every method; /metrics never reads a
# session.
NOTHING_TO_CHANGE = {"/api/v1/openapi.json", "/api/v1/docs", "/api/v1/", "/api/v1/<whatever>", "/metrics"}


def routes() -> Iterator[str]:
    """Every address that Django knows, as access.txt writes it."""

    def below(patterns: list, prefix: str) -> Iterator[str]:
        for pattern in patterns:
            text = prefix + PATTERNS.get(str(pattern.pattern), str(pattern.pattern))
            if isinstance(pattern, URLResolver):
                yield from below(pattern.url_patterns, text)
            else:
                assert isinstance(pattern, URLPattern) and not re.search(r"[\^$()?]", text), (
                    f"give {text} an address in PATTERNS"
                )
                yield re.sub(r"<\w+:(\w+)>", r"<\1>", text)

    yield from dict.fromkeys(below(get_resolver().url_patterns, "/"))


def doors() -> list[tuple[str, str]]:
    """(method, address) of everything that can be asked."""
    contract = api.get_openapi_schema(path_prefix="/api/v1/")["paths"]
    operations = {
        re.sub(r"\{(\w+)\}", r"<\1>", path): [method.upper() for method in methods]
        for path, methods in contract.items()
    }
    assert operations.keys() <= set(routes())
    return [WEBSOCKET] + [
        (method, route) for route in routes() for method in sorted(operations.get(route, ("GET", "POST")))
    ]


def lines() -> dict[tuple[str, str], list[str]]:
    """access.txt: (method, address) -> an answer for each of CALLERS."""
    rows = [line.split() for line in MATRIX.read_text().splitlines() if line and not line.startswith("#")]
    assert rows[0] == ["method", "address", *CALLERS], "the first line of the table names its columns"
    found = {(method, address): answers for method, address, *answers in rows[1:]}
    assert len(found) == len(rows) - 1, "an address stands twice in access.txt"
    return found


class World:
    """The application with a user and a token of each role, and something of each kind that an address may
    name."""

    def __init__(self, application):
        self.application = application

    def prepare(self) -> World:
        operators, admins = (Group.objects.get_or_create(name=name)[0] for name in ("operator", "admin"))
        make = get_user_model().objects.create_user
        self.users = {
            "viewer": make("a-viewer"),
            "operator": make("an-operator", is_staff=True),
            "admin": make("an-admin", is_staff=True),
            "superuser": make("root", is_staff=True, is_superuser=True),
        }
        self.users["operator"].groups.add(operators)
        self.users["admin"].groups.add(admins)
        self.sessions: dict[str, str] = {}
        self.tokens = {
            role: tokens.issue(role, role, "user:root") for role in ("viewer", "operator", "admin")
        }
        entry = LogEntry.objects.create(
            user=self.users["superuser"], action_flag=CHANGE, object_repr="something", change_message=""
        )
        self.object_ids = {
            "/admin/auth/user/": self.users["viewer"].pk,
            "/admin/auth/group/": operators.pk,
            "/admin/mqadmin/topic/": "orders",
            "/admin/mqadmin/group/": "billing",
            "/admin/mqadmin/apitoken/": self.tokens["viewer"][0].pk,
            "/admin/admin/logentry/": entry.pk,
        }
        return self

    def address(self, method: str, route: str) -> str:
        """What is asked for at a route: every blank filled in with something that exists where something
        does."""

        def value(match: re.Match) -> str:
            name = match[1]
            if name in ("object_id", "id"):
                return str(
                    next((pk for prefix, pk in self.object_ids.items() if route.startswith(prefix)), "1")
                )
            return (
                ("orders" if route.startswith("/topics/") else "billing") if name == "name" else VALUES[name]
            )

        return re.sub(r"<(\w+)>", value, route) + QUERIES.get(f"{method} {route}", QUERIES.get(route, ""))

    def headers(self, caller: str) -> dict[str, str]:
        """Those that say who asks."""
        if caller == "anonymous":
            return {}
        if caller.startswith("token:"):
            return {"authorization": f"Bearer {self.tokens[caller.removeprefix('token:')][1]}"}
        if caller not in self.sessions:
            client = Client()
            client.force_login(self.users[caller])
            self.sessions[caller] = client.cookies[settings.SESSION_COOKIE_NAME].value
        return {"cookie": f"{settings.SESSION_COOKIE_NAME}={self.sessions[caller]}"}

    async def ask(self, method: str, route: str, caller: str, *, csrf: bool = True) -> Answer:
        headers = await sync_to_async(self.headers)(caller)
        body = b""
        if method != "GET":
            body = json.dumps(BODIES.get(route, {})).encode() if route.startswith("/api/") else b""
            headers["content-type"] = "application/json" if body else "application/x-www-form-urlencoded"
            if csrf:
                headers["x-csrftoken"] = CSRF
                headers["cookie"] = "; ".join(filter(None, (headers.get("cookie"), f"csrftoken={CSRF}")))
        answer = await ask(self.application, method, self.address(method, route), headers=headers, body=body)
        if settings.SESSION_COOKIE_NAME in answer.headers.get("set-cookie", ""):
            self.sessions.pop(caller, None)  # it was ended
        return answer

    async def websocket(self, caller: str) -> str:
        headers = {
            "host": "localhost:8080",
            "origin": "http://localhost:8080",
            **await sync_to_async(self.headers)(caller),
        }
        communicator = WebsocketCommunicator(
            self.application, "/ws/v1/", [(name.encode(), value.encode()) for name, value in headers.items()]
        )
        assert await communicator.connect()
        await communicator.send("{")
        output = await communicator.receive_output()
        if output["type"] == "websocket.close":
            return str(output["code"])
        await communicator.close()
        return "open"


@pytest.fixture
async def world(fake_cluster, monkeypatch):
    monkeypatch.setattr("django_rq.stats_views.registry", CollectorRegistry())  # it keeps one, whole or not
    from mqadmin.web.asgi import application

    return await sync_to_async(World(application).prepare)()


def outcome(answer: Answer) -> str:
    """`login` for a redirect there, otherwise the status."""
    to_login = answer.status == 302 and answer.headers["location"].startswith(("/login/", "/admin/login/"))
    return "login" if to_login else str(answer.status)


def test_every_address_stands_in_the_table_and_nothing_else_does():
    known, found = lines().keys(), set(doors())
    assert found - known == set(), "add a line to access.txt for each: who may ask for it?"
    assert known - found == set(), "these are gone: take them out of access.txt"


@pytest.mark.slow
async def test_everybody_is_answered_as_the_table_says(world):
    wrong = []
    for (method, route), expected in lines().items():
        if (method, route) == WEBSOCKET:
            found = [await world.websocket(caller) for caller in CALLERS]
        else:
            found = [outcome(await world.ask(method, route, caller)) for caller in CALLERS]
        if found != expected:
            wrong.append(" ".join([method, route, *found]))
    assert wrong == [], "\n" + "\n".join(wrong)


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", UNSAFE)
async def test_a_session_without_its_csrf_token_changes_nothing_anywhere(method, world, fake_cluster):
    """A method that may change something on all addresses, whether the address knows the method or not."""
    entries, known = await LogEntry.objects.acount(), set(doors())
    wrong = []
    for route in routes():
        answer = await world.ask(method, route, "superuser", csrf=False)
        refused = answer.status == 403 or (answer.status == 405 and (method, route) not in known)
        if not refused and route not in NOTHING_TO_CHANGE:
            wrong.append((route, answer.status))
    assert wrong == []
    assert fake_cluster.asked == []
    assert await LogEntry.objects.acount() == entries
