"""A query parameter that a route does not have is refused by its name, at every route of REST, and at pages that act."""

from __future__ import annotations

import pytest

from mqadmin.api import api


def operations():
    """(method, path) of each operation."""
    return [(method.upper(), path) for path, methods in api.get_openapi_schema(path_prefix="/api/v1/")["paths"].items() for method in methods]


@pytest.mark.parametrize(("method", "path"), operations())
def test_each_route_refuses_what_it_does_not_take(method, path, client_of_role, fake_cluster):
    address = path
    for name, value in {"topic": "orders", "group": "billing", "queue_id": "0", "schedule_id": "1", "token_id": "1", "file": "20251123050000000", "run_id": "x", "job_id": "x"}.items():
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


def test_a_page_that_acts_takes_nothing_in_its_address(client_of_role, fake_cluster):
    answer = client_of_role("operator").post("/jobs/start?kind=check_store", {"kind": "check_store"})
    assert answer.status_code == 400 and "unknown query parameter &#x27;kind&#x27;" in answer.content.decode()


@pytest.mark.parametrize("path", ["/api/v1/topics/orders/messages?", "/api/v1/messages?topic=orders&key=k&"])
def test_a_window_that_ends_before_it_begins_is_refused(path, client_of_role, fake_cluster):
    client = client_of_role("viewer")
    answer = client.get(path + "from_ms=5&to_ms=1")
    assert answer.status_code == 400 and "from is after to" in answer.json()["detail"]
    assert client.get(path + "from_ms=5&to_ms=5").status_code == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/messages/?topic=orders&from_ms=abc", "The page has no field &#x27;from_ms&#x27;: it was not taken."),
        ("/topics/?sort=evil", "sort &#x27;evil&#x27; was not taken: it is one of name, messages, in, out."),
        ("/topics/?kind=evil", "kind &#x27;evil&#x27; was not taken"),
        ("/topics/?page=999999999999", "The page has no field &#x27;page&#x27;"),
        ("/topics/?" + "&".join(f"n{number}=1" for number in range(500)), "There is more in the address that was not taken."),
    ],
)
def test_a_page_says_what_of_its_address_it_did_not_take(path, said, client_of_role, fake_cluster):
    answer = client_of_role("viewer").get(path)
    assert answer.status_code == 200 and said in answer.content.decode()


@pytest.mark.parametrize("path", ["/topics/?kind=all&q=o&sort=in&part=1", "/messages/?by=offset&topic=orders&queue=0&offset=5&limit=3"])
def test_a_page_that_took_all_of_its_address_says_nothing(path, client_of_role, fake_cluster):
    assert "not taken" not in client_of_role("viewer").get(path).content.decode()
