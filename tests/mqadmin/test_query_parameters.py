"""What an address asks for that its page does not have is refused with 400, by its name, and with what is
allowed.

The addresses are found by Django's resolver: a page that is added later is asked too.
"""

from __future__ import annotations

import re

import pytest
from django.http import QueryDict
from django.urls import get_resolver

from mqadmin.views import query_parameters
from tests.mqadmin.test_access import MATRIX, World, routes, world  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)

# Where there is no page, an address is answered 404 whatever it asks for.
NO_PAGE = {
    "/admin/r/<whatever>",
    "/admin/r/<content_type_id>/<object_id>/",
    "/admin/<whatever>",
    "/api/v1/<whatever>",
    "/api/v1/",
}
REST_OF_PAGES = ("/api/", "/metrics")  # test_parameters.py; problem documents


def pages() -> list[str]:
    """Every address that is no operation of REST."""
    return [route for route in routes() if not route.startswith(REST_OF_PAGES)]


@pytest.mark.quick(30)
@pytest.mark.parametrize("route", pages())
async def test_each_page_refuses_what_it_does_not_take(route, world):  # noqa: F811
    address = world.address("GET", route)
    world.address = lambda *_: f"{address}{'&' if '?' in address else '?'}limits=5&%3Cb%3E=1"
    answer = await world.ask("GET", route, "superuser")
    if route in NO_PAGE:
        assert answer.status == 404
        return
    assert answer.status == 400, (answer.status, answer.headers)
    said = answer.body.decode()
    assert "The page has no field &#x27;limits&#x27;: it takes " in said and "<b>" not in said
    assert '<link rel="stylesheet"' in said, "it is a page in the looks of all"


def values() -> list[tuple[str, str]]:
    """(address, name) of each value that a page reads before it is drawn."""
    found = []
    for pattern in get_resolver().url_patterns:
        for name, reader in getattr(pattern.callback, "takes", {}).items() if pattern.callback else ():
            if reader is not query_parameters.text:
                found.append((f"/{pattern.pattern}", name))
    return found


@pytest.mark.parametrize(("route", "name"), values())
def test_each_value_that_cannot_be_read_is_refused_and_shown(route, name, client_of_role, fake_cluster):
    answer = client_of_role("operator").get(route, {name: "<evil>", "limits": "5"})
    said = answer.content.decode()
    assert answer.status_code == 400 and f"{name} cannot be taken: " in said and "limits" in said
    assert "&lt;evil&gt;" in said, "what was typed is there"


def test_pages_read_values():
    assert {name for _, name in values()} >= {"part", "sort", "kind", "by", "file", "part_of"}


def test_a_stranger_and_who_has_not_the_role_are_told_nothing(client_of_role, fake_cluster):
    assert client_of_role(None).get("/topics/?kinds=normal").status_code == 302
    assert client_of_role("viewer").get("/groups/billing/dead-letters/?x=1").status_code == 403


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "/messages/?topic=orders&from_ms=abc",
            "The page has no field &#x27;from_ms&#x27;: it takes by, from, id, key, limit, offset, "
            "queue, sql, to, topic.",
        ),
        ("/topics/?sort=evil", "sort cannot be taken: &#x27;evil&#x27; is none of name, messages, in, out."),
        (
            "/topics/?kind=evil",
            "kind cannot be taken: &#x27;evil&#x27; is none of normal, retry, dlq, system, all.",
        ),
        ("/topics/?part=0", "part cannot be taken: &#x27;0&#x27; is not a number from 1 to 2,147,483,647."),
        ("/topics/?kind=all&kind=dlq", "kind is given 2 times, with different values: give it once."),
        (
            "/topics/?" + "&".join(f"n{number}=1" for number in range(500)),
            "497 more fields of the address are wrong.",
        ),
        ("/store/index/?file=x", "file cannot be taken: An index file&#x27;s name has 17 digits."),
    ],
)
def test_the_sentence_names_what_is_allowed(path, said, client_of_role, fake_cluster):
    answer = client_of_role("viewer").get(path)
    assert answer.status_code == 400 and said in answer.content.decode()


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        ("/messages/?by=offset&topic=orders&queue=abc&offset=77", ("abc", "77", "is not a number from 0 to")),
        ("/messages/?by=time&topic=orders&from=yesterday", ("yesterday", "is not a time")),
        (
            "/messages/?by=key&topic=a%2Fb&key=k77",
            ("a/b", "k77", "allowing only letters, digits and % | - _"),
        ),
        ("/store/index/?topic=orders&key=k77&from=yesterday", ("yesterday", "k77", "is not a time")),
        ("/store/index/?topic=orders&key=" + "k" * 1_025, ("k" * 1_025, "at most 1,024 characters")),
        ("/store/layout/?topic=orders&from=yesterday", ("yesterday", "is not a time")),
        ("/store/layout/?topic=a%2Fb", ("a/b", "allowing only letters, digits and % | - _")),
        ("/store/disk/?retention_hours=abc", ("abc", "is not a number from 1 to")),
        ("/store/bytes/?kind=commitlog&offset=abc", ("abc", "is not a number from 0 to")),
    ],
)
def test_what_was_typed_into_a_form_stays_in_it(path, typed, client_of_role, fake_cluster):
    answer = client_of_role("operator").get(path)
    said = answer.content.decode()
    assert answer.status_code == 400 and all(text in said for text in typed), said


@pytest.mark.parametrize(
    "path",
    [
        "/topics/?kind=all&q=o&sort=in&part=1",
        "/messages/?by=offset&topic=orders&queue=0&offset=5&limit=3",
        "/topics/?kind=&part=&q=",
    ],
)
def test_what_a_page_has_it_takes(path, client_of_role, fake_cluster):
    assert client_of_role("viewer").get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/admin/mqadmin/topic/?p=evil",
        "/admin/admin/logentry/?action_time__year=abc",
        "/admin/mqadmin/topic/?o=evil",
    ],
)
def test_the_admin_refuses_what_its_lists_do_not_have(path, client_of_role, fake_cluster):
    answer = client_of_role("admin").get(path)
    assert answer.status_code == 400 and "Request not understood" in answer.content.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/admin/admin/logentry/?action_time__year=2026&q=x&o=1.-2&p=1",
        "/admin/mqadmin/apitoken/?role__exact=viewer",
        "/admin/mqadmin/topic/?q=orders",
    ],
)
def test_the_admin_takes_what_its_lists_have(path, client_of_role, fake_cluster):
    assert client_of_role("admin").get(path).status_code == 200


def test_a_page_that_acts_takes_nothing_in_its_address(client_of_role, fake_cluster):
    answer = client_of_role("operator").post("/jobs/start?kind=check_store", {"kind": "check_store"})
    assert (
        answer.status_code == 400
        and "The page has no field &#x27;kind&#x27;: it takes nothing in its address."
        in answer.content.decode()
    )


def test_the_address_without_what_is_wrong_keeps_the_rest():
    address = QueryDict("kind=all&sort=evil&q=o%26x")
    wrong = query_parameters.refusals(
        address,
        {
            "kind": query_parameters.one_of("all"),
            "sort": query_parameters.one_of("name"),
            "q": query_parameters.text,
        },
    )
    assert list(wrong) == ["sort"] and query_parameters.refused(address, wrong).right == "kind=all&q=o%26x"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/x/",
        "/groups/../",
        "/groups/a.b/",
        "/topics/a.b/",
        "/store/doctor/x/",
        "/store/recovery/x/",
        "/messages/1/",
        "/pipeline/runs/x/",
        "/store/lab/x/",
    ],
)
def test_no_page_speaks_of_requests_or_regular_expressions(path, client_of_role, fake_cluster):
    said = client_of_role("admin").get(path).content.decode()
    sentences = " ".join(re.findall(r'<div class="notice[^>]*>(.*?)</div>', said, re.S))
    assert not re.search(r"/api/|\b(GET|POST|PATCH|PUT|REST)\b|a-zA-Z|confirm=|Error\b", sentences), sentences
