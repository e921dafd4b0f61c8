"""A query parameter that a route does not have is refused by its name, at every route of REST; of pages:
test_query_parameters.py."""

from __future__ import annotations

import pytest

from mqadmin.api.contract import api


def operations():
    """(method, path) of each operation."""
    return [
        (method.upper(), path)
        for path, methods in api.get_openapi_schema(path_prefix="/api/v1/")["paths"].items()
        for method in methods
    ]


@pytest.mark.quick(20)
@pytest.mark.parametrize(("method", "path"), operations())
def test_each_route_refuses_what_it_does_not_take(method, path, client_of_role, fake_cluster):
    address = path
    for name, value in {
        "topic": "orders",
        "group": "billing",
        "queue_id": "0",
        "schedule_id": "1",
        "token_id": "1",
        "file": "20251123050000000",
        "run_id": "x",
        "job_id": "x",
    }.items():
        address = address.replace("{" + name + "}", value)
    address = address.replace("{", "").replace("}", "")
    client = client_of_role("admin")
    answer = client.generic(method, address + "?limits=5&%3Cb%3E=1", b"{}", content_type="application/json")
    assert answer.status_code == 400, answer.content
    told = answer.json()
    assert told["code"] == "invalid" and "'limits'" in told["detail"] and "this route takes" in told["detail"]


def test_what_is_taken_is_named_and_a_stranger_is_told_nothing(client_of_role, fake_cluster):
    told = client_of_role("viewer").get("/api/v1/topics?kinds=normal").json()
    assert told["detail"] == "unknown query parameter 'kinds'; this route takes cursor, kind, limit"
    assert client_of_role(None).get("/api/v1/topics?kinds=normal").status_code == 401
    assert client_of_role("operator").get("/api/v1/topics?kind=normal&limit=2").status_code == 200


def test_a_parameter_is_given_once(client_of_role, fake_cluster):
    answer = client_of_role("viewer").get("/api/v1/topics?limit=2&limit=3")
    assert (
        answer.status_code == 400
        and answer.json()["detail"] == "query parameter 'limit' is given more than once; give it one value"
    )


@pytest.mark.parametrize("path", ["openapi.json", "docs"])
def test_the_contract_and_its_page_take_no_parameter(path, client_of_role, fake_cluster):
    client = client_of_role("viewer")
    assert client.get(f"/api/v1/{path}").status_code == 200
    answer = client.get(f"/api/v1/{path}?x=1")
    assert (
        answer.status_code == 400
        and answer.json()["detail"] == "unknown query parameter 'x'; this route takes none"
    )


@pytest.mark.parametrize("path", ["/api/v1/topics/orders/messages?", "/api/v1/messages?topic=orders&key=k&"])
def test_a_window_that_ends_before_it_begins_is_refused(path, client_of_role, fake_cluster):
    client = client_of_role("viewer")
    answer = client.get(path + "from_ms=5&to_ms=1")
    assert answer.status_code == 400 and "from is after to" in answer.json()["detail"]
    assert client.get(path + "from_ms=5&to_ms=5").status_code == 200
