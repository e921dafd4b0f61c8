"""What people type and read: times as ISO or milliseconds at every door, sentences for what is wrong beside
its field, no class names."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError
from rq.job import Job

from broker_store.rest.problems import CODES
from mqadmin.api import field_errors
from mqadmin.jobs import queue
from mqadmin.management import hints
from tests.mqadmin.test_commands import broker, cluster, run  # noqa: F401  (fixtures)

AT, ISO = "1763719200000", "2025-11-21T11:00:00+01:00"
REQUEST = re.compile(r"/api/|\b(?:GET|POST|PUT|PATCH|DELETE)\b|\?confirm")


@pytest.mark.parametrize("time", [AT, "2025-11-21T10:00:00Z", "2025-11-21T10:00"])
def test_rest_takes_a_time_in_either_form_and_says_it_in_both(client_of_role, fake_cluster, time):
    client = client_of_role("operator")
    found = client.get("/api/v1/topics/orders/queues/0/offset", {"time_ms": time}).json()
    assert (found["time_ms"], found["time"]) == (AT, "2025-11-21T10:00:00.000Z")
    body = {"topic": "orders", "to": "time", "value": time}
    moved = client.post("/api/v1/groups/billing/offsets/reset", body, content_type="application/json").json()
    assert (moved["time_ms"], moved["time"], moved["moves"][0]["after"]) == (
        AT,
        "2025-11-21T10:00:00.000Z",
        AT,
    )
    assert client.get("/api/v1/topics/orders/messages", {"from_ms": time, "to_ms": time}).status_code == 200


def test_rest_says_what_is_no_time_in_a_sentence(client_of_role, fake_cluster):
    client = client_of_role("operator")
    for address in (
        "/api/v1/topics/orders/messages?from_ms=soon",
        "/api/v1/topics/orders/queues/0/offset?time_ms=soon",
    ):
        told = client.get(address).json()
        assert (
            told["code"] == "invalid_fields"
            and "'soon' is not a time: expected milliseconds since 1970, or a time such as" in told["detail"]
        )
    body = {"topic": "orders", "to": "time", "value": "soon"}
    assert (
        "'soon' is not a time"
        in client.post("/api/v1/groups/billing/offsets/reset", body, content_type="application/json").json()[
            "detail"
        ]
    )


def test_a_timeline_has_each_moment_in_both_forms(client_of_role, fake_cluster):
    facts = client_of_role("viewer").get("/api/v1/groups/billing/timeline").json()
    assert (
        facts["at"].endswith("Z") and facts["from"] < facts["to"] and facts["events"][0]["at"].endswith("Z")
    )
    assert "lag" in facts["queues"][0] and facts["queues"][0]["earliest"].endswith("Z")


async def test_a_command_takes_a_time_in_either_form_and_shows_its_zone(cluster, tmp_path):  # noqa: F811
    async with broker(tmp_path):
        for time in (AT, ISO):
            told = await run(tmp_path, "group", "reset-offset", "billing", "orders", "time", time)
            assert re.search(r"To what was stored from 2025-11-2\d \d\d:\d\d:00\.000[+-]\d\d:\d\d on:", told)
        found = await run(
            tmp_path, "message", "get", "--topic", "orders", "--from", ISO, "--to", AT, "--json"
        )
        assert found.startswith("[")
        with pytest.raises(CommandError, match="is not a time: expected milliseconds since 1970"):
            await run(tmp_path, "message", "get", "--topic", "orders", "--from", "soon")


async def test_a_command_speaks_of_options_and_not_of_requests(cluster, tmp_path):  # noqa: F811
    async with broker(tmp_path):
        for words in (
            ("topic", "delete", "orders"),
            ("group", "delete", "billing"),
            ("topic", "create", "orders"),
            ("group", "create", "billing"),
            ("topic", "show", "nothing"),
        ):
            with pytest.raises(CommandError) as refused:
                await run(tmp_path, *words)
            assert not REQUEST.search(str(refused.value)), refused.value


@pytest.mark.parametrize("code", CODES)
def test_no_hint_of_a_command_names_a_request(code):
    for verb in ("create", "delete", "show"):
        assert not REQUEST.search(hints.of(code, CODES[code][2], verb))


@pytest.mark.parametrize(
    ("address", "field", "typed", "said"),
    [
        ("/messages/?by=time&topic=orders&from={}", "from", "yesterday", "is not a time"),
        ("/messages/?by=offset&topic=orders&queue={}", "queue", "first", "is not a number"),
        ("/messages/?by=key&topic=orders&key=k&limit={}", "limit", "many", "is not a number"),
        ("/messages/?by=key&topic=orders&key=k&limit={}", "limit", "0", "is not a number from 1"),
        ("/store/index/?topic=orders&key=k&from={}", "from", "soon", "is not a time"),
    ],
)
def test_a_form_keeps_what_was_typed_and_says_what_is_wrong_beside_it(
    client_of_role, fake_cluster, address, field, typed, said
):
    html = client_of_role("viewer").get(address.format(typed)).content.decode()
    (place,) = re.findall(rf'<input id="{field}"[^>]*value="{typed}"[^>]*>(.*?)</div>', html, re.DOTALL)
    assert said in place and 'role="alert"' in place


@pytest.mark.parametrize(
    ("address", "form", "typed", "said"),
    [
        (
            "/jobs/start",
            {"kind": "export_messages", "topic": "../x", "form": "csv"},
            'value="../x"',
            "character",
        ),
        (
            "/store/lab/",
            {"point": "after-copy", "messages": "lots", "seed": "7"},
            'value="lots"',
            "expected an integer",
        ),
        ("/pipeline/start/statistics", {"topic": "orders", "from": "soon"}, 'value="soon"', "is not a time"),
        (
            "/pipeline/schedules/add",
            {"job": "statistics", "cron": "every day", "topic": "orders"},
            'value="every day"',
            "cron",
        ),
    ],
)
def test_a_form_that_acts_comes_back_with_what_was_typed(
    client_of_role, fake_cluster, address, form, typed, said
):
    answer = client_of_role("operator").post(address, form)
    html = answer.content.decode()
    assert (
        answer.status_code in (400, 422) and typed in html and 'role="alert"' in html and said in html.lower()
    )


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"type": "int_parsing", "msg": "Input should be a valid integer"}, "expected an integer"),
        ({"type": "greater_than_equal", "ctx": {"ge": 1}, "msg": "x"}, "expected at least 1"),
        ({"type": "literal_error", "ctx": {"expected": "'a' or 'b'"}, "msg": "x"}, "expected 'a' or 'b'"),
        (
            {
                "type": "value_error",
                "ctx": {"error": ValueError("expected a time")},
                "msg": "Value error, expected a time",
            },
            "expected a time",
        ),
        ({"type": "string_too_short", "ctx": {"min_length": 1}, "msg": "x"}, "expected at least 1 character"),
        (
            {"type": "of_a_later_version", "msg": "Input should be a FooModel"},
            "is not what this field takes; see /api/v1/docs",
        ),
    ],
)
def test_what_is_wrong_with_a_field_is_told_in_our_words(entry, sentence):
    assert field_errors.reason(entry) == sentence


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("Traceback\nmqadmin.jobs.JobFailed: group g has no dead letters", "group g has no dead letters"),
        ("Traceback\nValueError: invalid literal for int()", "the program failed"),
        ("Traceback\nbroker_store.errors.DamagedStoreError: /data/x at 7", "the program failed"),
        ("rq.timeouts.JobTimeoutException: Task exceeded", "it took longer than this kind of job may"),
        (
            "interrupted: the broker was stopped while the job ran",
            "interrupted: the broker was stopped while the job ran",
        ),
        ("", "no reason was kept"),
    ],
)
def test_why_a_job_failed_has_no_class_in_it(monkeypatch, trace, said):
    class Failed(Job):
        def __init__(self):
            pass

        def latest_result(self, *arguments, **options):
            return type("Result", (), {"exc_string": trace})()

    told = queue._error_sentence(Failed())
    assert told.startswith(said) and "Error" not in told
