"""The REST contract: each field of an answer has a name and a type, and the answers are as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.contrib.auth import get_user_model
from django.test import AsyncClient
from ninja import Schema

from broker_store.units import Moment, Small
from mqadmin.api import schemas
from mqadmin.api.contract import api
from tests.support import fake_runs

pytestmark = pytest.mark.django_db(transaction=True)

# Objects of which no type names the fields, and why.
WITHOUT_NAMES = {
    "Job.parameters": "as they were given; each kind of job has its own",
    "Job.result": "as it lies in Redis, perhaps of another version; each kind of job has its own",
    "Schedule.parameters": "as they were given; each job of the pipeline has its own",
    "RunResult.result": "as the pipeline wrote it; each of its jobs has its own",
    "AuditRecord.detail": "what an action was about; each has its own",
}
VALUES = {
    "topic": "orders",
    "group": "billing",
    "queue_id": "0",
    "message_id": "7F0000010000000000000000000007D0",
    "job_id": "check-bad",
    "job": "audit",
    "run_id": "check-bad",
    "recovery_id": "x",
    "file": "20251122090000000",
    "name": "billing",
}
ADDRESSES = {
    "/api/v1/access/decision": "/api/v1/access/decision?user=billing&resource=Topic:orders&action=Pub",
    "/api/v1/auth/decision": "/api/v1/auth/decision?caller=user:ada&right=send",
    "/api/v1/pipeline/{job}/runs/{run_id}": "/api/v1/pipeline/audit/runs/audit-bad",
    "/api/v1/pipeline/{job}/runs/{run_id}/result": "/api/v1/pipeline/audit/runs/audit-bad/result",
    "/api/v1/pipeline/{job}/runs/{run_id}/logs": "/api/v1/pipeline/audit/runs/audit-bad/logs",
    "/api/v1/messages": "/api/v1/messages?topic=orders&key=order-41040",
    "/api/v1/store/journey": "/api/v1/store/journey?log_offset=40000",
    "/api/v1/topics/{topic}/queues/{queue_id}/offset": "/api/v1/topics/orders/queues/0/offset?time_ms=1",
}
# Routes of which the cluster of these tests has nothing to show.
NOT_THERE = {
    "/api/v1/store/recoveries/{recovery_id}",
    "/api/v1/store/threads",
    "/api/v1/store/memory",
}


class LocalClient(AsyncClient):
    """A client on the Unix socket: as uvicorn says it, the server's address is a path and no port."""

    def _base_scope(self, **request):
        return super()._base_scope(**request) | {"server": ("/data/run/web.sock", None)}


@pytest.fixture
def local(fake_cluster, monkeypatch):
    fake_runs.install(monkeypatch.setattr)
    return LocalClient(headers={"Host": "localhost"})


@pytest.fixture(scope="module")
def contract() -> dict:
    return json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/v1/")))


def answers_of(operation: dict) -> Iterator[tuple[str, dict]]:
    """Each status of success that an operation answers with JSON, and the schema of that."""
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json")
        if status.startswith("2") and content is not None:
            yield status, content["schema"]


def loose_fields(schema: dict, named: dict, where: str, seen: set[str]) -> Iterator[str]:
    """Where, in a schema and those that it refers to, an object or a value has no type."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            seen.add(name)
            yield from loose_fields(named[name], named, name, seen)
        return
    parts = [part for kind in ("anyOf", "oneOf", "allOf") for part in schema.get(kind, ())]
    more, items = schema.get("additionalProperties"), schema.get("items")
    if schema.get("type") == "object":
        if "properties" not in schema and not isinstance(more, dict):
            yield where
    elif not parts and schema.keys().isdisjoint(("type", "enum", "const")):
        yield where
    if schema.get("type") == "array" and not items:
        yield where
    for part in (*parts, *(one for one in (more, items) if isinstance(one, dict))):
        yield from loose_fields(part, named, where, seen)
    for name, value in schema.get("properties", {}).items():
        yield from loose_fields(value, named, f"{where}.{name}", seen)


def test_every_field_of_an_answer_has_a_name_and_a_type(contract):
    named, seen = contract["components"]["schemas"], set()
    loose = [
        field
        for path, operations in contract["paths"].items()
        for method, operation in operations.items()
        for _, schema in answers_of(operation)
        for field in loose_fields(schema, named, f"{method} {path}", seen)
    ]
    assert sorted(set(loose)) == sorted(WITHOUT_NAMES)


def test_a_schema_without_names_is_found():
    named = {"Named": {"type": "object", "properties": {"any": {}, "list": {"type": "array"}}}}
    schema = {"anyOf": [{"$ref": "#/components/schemas/Named"}, {"type": "object"}]}
    assert [*loose_fields(schema, named, "here", set())] == ["Named.any", "Named.list", "here"]
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    assert [*loose_fields(texts, named, "here", set())] == []


def test_no_two_schemas_have_one_name():
    """The contract would have the later one of them for both."""
    kinds: list[type] = [Schema]
    for kind in kinds:
        kinds += kind.__subclasses__()
    names = [kind.__name__ for kind in kinds if kind.__module__.startswith("mqadmin.")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


TYPES = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
    "object": dict,
    "array": list,
    "null": type(None),
}


def faults(value: object, schema: dict, named: dict, where: str) -> list[str]:
    """Where a value of JSON is not as its schema says."""
    if "$ref" in schema:
        return faults(value, named[schema["$ref"].rpartition("/")[2]], named, where)
    if several := schema.get("anyOf") or schema.get("oneOf"):
        each = [faults(value, one, named, where) for one in several]
        return [] if [] in each else sum(each, [])
    for one in schema.get("allOf", ()):
        if found := faults(value, one, named, where):
            return found
    kind = schema.get("type")
    fits = kind is None or isinstance(value, TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)
    fits = fits and value in schema.get("enum", (value,)) and value == schema.get("const", value)
    fits = fits and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
    if not fits:
        return [f"{where}: {value!r:.60} is no {kind}"]
    if isinstance(value, list):
        items = schema.get("items", {})
        return [one for at, item in enumerate(value) for one in faults(item, items, named, f"{where}.{at}")]
    if not isinstance(value, dict):
        return []
    known, more = (
        schema.get("properties", {}),
        schema.get("additionalProperties", not schema.get("properties")),
    )
    found = [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        if name in known or more:
            of_it = known.get(name, more if isinstance(more, dict) else {})
            found += faults(item, of_it, named, f"{where}.{name}")
        else:
            found.append(f"{where}: {name} is not named")
    return found


def test_a_value_that_is_not_as_its_schema_says_is_found():
    named = {"Named": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    schema = {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/Named"}, {"type": "null"}]}}
    assert faults([{"n": 1}, None], schema, named, "here") == []
    assert faults([{"n": True}], schema, named, "here")[:1] == ["here.0.n: True is no integer"]
    assert faults({"m": 1}, named["Named"], named, "here") == ["here: n is missing", "here: m is not named"]
    digits = {"type": "string", "pattern": "^[0-9]+$"}
    assert faults({"m": "x"}, {"type": "object", "additionalProperties": digits}, named, "here")


async def test_each_answer_is_as_the_contract_says(local, contract):
    await get_user_model().objects.acreate_user("ada")
    named, found, absent = contract["components"]["schemas"], [], set()
    for path, operations in contract["paths"].items():
        for status, schema in answers_of(operations.get("get", {"responses": {}})):
            answer = await local.get(ADDRESSES.get(path, path.format_map(VALUES)))
            if answer.status_code != int(status):
                absent.add(path)
                continue
            body = b"".join([part async for part in answer]) if answer.streaming else answer.content
            found += faults(json.loads(body), schema, named, path)
    assert (found, absent) == ([], NOT_THERE)


async def test_each_shape_of_the_answer_of_a_send_is_as_the_contract_says(local, contract):
    path = "/api/v1/topics/{topic}/messages"
    ((_, schema),) = answers_of(contract["paths"][path]["post"])
    for body in ({"body": "x"}, [{"body": "x"}, {"body": "y", "queue_id": 999}]):
        answer = await local.post(path.format_map(VALUES), json.dumps(body), content_type="application/json")
        assert faults(answer.json(), schema, contract["components"]["schemas"], path) == []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    from_ms: Moment | None
    took_ms: int
    slots: Small


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    at_ms: Moment
    at: str = ""
    counts: dict[str, int]
    parts: list[_Part | None]


def test_a_schema_of_facts_gives_what_is_made_of_them():
    part = _Part(from_ms=1 << 41, took_ms=9, slots=7)
    whole = _Whole(
        at_ms=1 << 41, counts={"a": 1 << 60}, parts=[part, None, _Part(from_ms=None, took_ms=1, slots=1)]
    )
    for timed in (False, True):
        made = schemas.facts(whole, timed=timed)
        kind = schemas.schema_of(_Whole, timed=timed)
        assert kind.model_validate(made).model_dump(exclude_unset=True) == made
    assert schemas.schema_of(_Part, timed=True).model_fields.keys() == {"from_ms", "took_ms", "slots", "from"}
    assert schemas.facts(whole, timed=True)["parts"][0]["from"] == "2039-09-07T15:47:35.552Z"


def test_an_answer_that_is_not_read_again_is_described_by_its_schema():
    answer = schemas.unchecked(schemas.schema_of(_Part))
    kind = type("Answer", (Schema,), {"__annotations__": {"response": answer}})
    given = {"from_ms": "not read"}
    assert kind.model_validate({"response": given}).model_dump() == {"response": given}
    made = kind.model_json_schema()
    assert made["properties"]["response"]["$ref"] == "#/$defs/_Part"
    assert made["$defs"]["_Part"]["properties"].keys() == {"from_ms", "took_ms", "slots"}
