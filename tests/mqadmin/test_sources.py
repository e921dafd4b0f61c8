"""Each view of the inside says by REST and on its page when its numbers were measured and where they come
from, in the same words."""

from __future__ import annotations

import html
import json
import re
import time

import pytest

from mqadmin.views.sources import SOURCES
from tests.support.fake_cluster import FakeCluster

# view: its REST path, its page; INDEX stands for an index file.
VIEWS = {
    "positions": ("/store", "/store/"),
    "files": ("/store/files", "/store/"),
    "dispatch": ("/store/dispatch", "/store/dispatch/"),
    "flush": ("/store/flush", "/store/dispatch/"),
    "exposure": ("/store/exposure", "/store/dispatch/"),
    "write-path": ("/store/write-path", "/store/write/"),
    "refusals": ("/refusals", "/store/write/"),
    "index": ("/store/index", "/store/index/"),
    "slots": ("/store/index/INDEX/slots", "/store/index/"),
    "chains": ("/store/index/INDEX/chains", "/store/index/"),
    "explain": ("/store/index/explain", "/store/index/"),
    "disk": ("/store/disk/forecast", "/store/disk/"),
    "timeline": ("/groups/billing/timeline", "/groups/billing/"),
    "pops": ("/groups/billing/pops", "/groups/billing/"),
    "recovery": ("/recovery", "/store/recovery/"),
    "recoveries": ("/store/recoveries", "/store/recovery/"),
}
OWN_WORDS = (
    "/store/cache",
    "/store/layout",
    "/store/bytes?kind=commitlog&offset=237",
    "/store/journey?log_offset=40000",
)


def test_no_view_is_left_out():
    assert {*VIEWS, "record"} == {*SOURCES}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_says_when_and_from_where_by_rest_and_on_its_page(view, fake_cluster, client_of_role):
    path, page = VIEWS[view]
    path = "/api/v1" + path.replace("INDEX", FakeCluster().index.facts()[-1].name)
    client = client_of_role("viewer")
    answer = (
        client.post(path, json.dumps({"topic": "orders", "key": "order-1"}), content_type="application/json")
        if view == "explain"
        else client.get(path)
    )
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert told["source"] == SOURCES[view] and told["at_ms"].isdigit()
    assert SOURCES[view] in html.unescape(client.get(page).content.decode())


@pytest.mark.parametrize("path", OWN_WORDS)
def test_what_says_it_in_words_of_its_own_says_both_too(path, fake_cluster, client_of_role):
    told = client_of_role("admin").get(f"/api/v1{path}").json()
    assert told["source"] and re.fullmatch(r"\d{13}", str(told["at_ms"]))


def test_what_has_no_time_of_its_own_has_that_of_the_answer(fake_cluster, client_of_role):
    before = time.time_ns() // 1_000_000
    told = client_of_role("viewer").get("/api/v1/store/dispatch").json()
    assert before <= int(told["at_ms"]) <= time.time_ns() // 1_000_000
