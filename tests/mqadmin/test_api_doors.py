"""Every operation of the contract: nonsense is refused with a problem. Who may call what is in access.txt."""

from __future__ import annotations

import json
import random

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from mqadmin.api.contract import api
from mqadmin.cluster.current import install_cluster
from mqadmin.web import tokens
from tests.support.fake_cluster import FakeCluster

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

VALUES = {
    "{topic}": "orders",
    "{group}": "billing",
    "{queue_id}": "0",
    "{message_id}": "x",
    "{job_id}": "x",
    "{token_id}": "999",
    "{job}": "audit",
    "{run_id}": "x",
    "{schedule_id}": "999",
    "{file}": "20251123050000000",
}
BODIES = {
    "/topics": {"name": "fresh"},
    "/groups": {"name": "fresh"},
    "/topics/{topic}": {"perm": 4},
    "/groups/{group}": {"orderly": True},
    "/topics/{topic}/messages": {"body": "x"},
    "/groups/{group}/offsets/reset": {"topic": "orders", "to": "latest"},
    "/jobs": {"kind": "check_store"},
    "/pipeline/schedules": {"job": "audit", "cron": "30 2 * * *"},
    "/store/index/explain": {"topic": "orders", "key": "k"},
    "/auth/tokens": {"name": "t"},
}
QUERIES = {
    "/messages": {"topic": "orders", "key": "k"},
    "/topics/{topic}/queues/{queue_id}/offset": {"time_ms": "1"},
}


def operations() -> list[tuple[str, str]]:
    schema = api.get_openapi_schema(path_prefix="/")
    return [(method.upper(), path) for path, methods in schema["paths"].items() for method in methods]


@pytest.fixture(autouse=True)
def cluster():
    cluster = FakeCluster()
    install_cluster(cluster)
    yield cluster
    install_cluster(None)


async def call(client: AsyncClient, method: str, path: str, body: object = None, **more):
    address = path
    for name, value in VALUES.items():
        address = address.replace(name, value)
    if method == "GET":
        return await client.get("/api/v1" + address, QUERIES.get(path, {}), **more)
    sent = BODIES.get(path, {}) if body is None else body
    raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    return await client.generic(method, "/api/v1" + address, raw, content_type="application/json", **more)


NONSENSE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"[" * 20_000,
    b'"text"',
    b"1e999",
    b"\xff\xfe",
    b'{"name": null}',
    b'{"name": {"a": 1}}',
    b'{"name": "' + b"x" * 100_000 + b'"}',
    b'{"name": "a", "read_queues": -1}',
    b'{"name": "a", "read_queues": 1e308, "perm": true}',
    b'{"name": "a", "days": 99999999999999999999}',
    b'{"topic": "orders", "to": "offset", "value": "9223372036854775808"}',
    b'{"topic": "orders", "to": "offset", "value": "-5"}',
    b'{"topic": "orders", "to": "time", "value": 1.5}',
    b'{"kind": "export_messages", "parameters": {"topic": ["x"]}}',
    b'{"kind": "export_messages", "parameters": null}',
    b'{"key": "\\ud800", "topic": "orders", "body": "\\ud800", "name": "\\ud800"}',
    b'{"body": "x", "properties": {"a": null}}',
    b'[{"body": "x"}, 5]',
]


async def test_nonsense_is_answered_with_a_problem_and_never_with_an_error_of_ours(cluster):
    client = AsyncClient(headers={"Host": "localhost"})
    _, text = await sync_to_async(tokens.issue)("admin", "admin", "user:test")
    headers = {"Authorization": f"Bearer {text}"}
    chance = random.Random(7)
    bodies = NONSENSE + [chance.randbytes(chance.randrange(60)) for _ in range(10)]
    for method, path in operations():
        if method in ("POST", "PATCH"):
            for body in bodies:
                answer = await call(client, method, path, body, headers=headers)
                assert answer.status_code != 500, (method, path, body[:80], answer.content[:300])
                if answer.status_code >= 400:
                    assert answer["Content-Type"] == "application/problem+json"


STRANGE = ("%00", "..%2f..%2fetc", "%2e%2e", "\U0001f600", "x" * 3000, "99999999999999999999999", "%ff", "{}")


async def test_strange_addresses_and_parameters_are_refused_or_not_found(cluster):
    client = AsyncClient(headers={"Host": "localhost"})
    _, text = await sync_to_async(tokens.issue)("admin", "admin", "user:test")
    headers = {"Authorization": f"Bearer {text}"}
    for method, path in operations():
        if method == "GET":
            for strange in STRANGE:
                address = "/api/v1" + path
                for name in VALUES:
                    address = address.replace(name, strange)
                for query in (
                    "",
                    f"?cursor={strange}&limit={strange}",
                    f"?topic={strange}&key={strange}&from_ms={strange}&offset={strange}&time_ms={strange}",
                ):
                    answer = await client.get(address + query, headers=headers)
                    assert answer.status_code != 500, (address, query, answer.content[:300])
                    assert b"Traceback" not in answer.content
