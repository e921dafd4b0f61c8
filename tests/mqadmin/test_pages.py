"""Every page: who sees it, what stands on it, and that what was not measured is called unknown."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from urllib.parse import quote, urlencode

import pytest
from django.urls import reverse

from broker_store.engine.status.store_state import DiskSpace, LogPositions
from broker_store.errors import StoreClosedError
from broker_store.formats import properties, record
from broker_store.messages import Message
from broker_store.rest.problems import Problem
from mqadmin.cluster.current import install_cluster
from mqadmin.facts.messages import Found
from mqadmin.facts.overview import State
from tests.support import fake_runs
from tests.support.fake_cluster import INVISIBLE, FakeCluster, FakeFiles

PAGES = (
    "/",
    "/topics/",
    "/topics/orders/",
    "/messages/",
    "/messages/?by=offset&topic=orders&queue=0&offset=5",
    "/messages/?by=key&topic=orders&key=order-41040",
    "/messages/?by=time&topic=orders&from=2025-11-24T00:00",
    "/messages/40000/",
    "/groups/",
    "/groups/billing/",
    "/store/",
    "/store/index/",
    "/store/index/?file=20251122090000000&chains=1",
    "/store/index/?topic=orders&key=order-41040",
    "/store/disk/",
    "/store/disk/?retention_hours=12",
    "/store/recovery/",
    "/store/doctor/",
    "/store/cache/",
    "/store/replication/",
    "/store/threads/",
    "/store/memory/",
    "/store/layout/?group=billing&from=2025-11-24T00:00",
    "/jobs/",
    "/access/",
    "/access/users/billing",
    "/pipeline/",
)
STARTING_PAGES = [page for page in PAGES if page not in ("/jobs/", "/pipeline/", "/store/doctor/")]


@pytest.fixture(autouse=True)
def no_redis(monkeypatch):
    monkeypatch.setattr("mqadmin.jobs.queue.listing", lambda: [])


@pytest.mark.parametrize("page", PAGES)
def test_nobody_sees_a_page_before_the_login(fake_cluster, client_of_role, page):
    answer = client_of_role(None).get(page)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/?next=")


@pytest.mark.quick(44)
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
@pytest.mark.parametrize("page", PAGES)
def test_every_role_sees_every_page_and_none_has_a_script_or_style_in_it(
    fake_cluster, client_of_role, role, page
):
    answer = client_of_role(role).get(page)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)(?![^>]*application/json)", text)
    assert " style=" not in text and "<style" not in text and not re.search(r"\son[a-z]+=", text)
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert not re.search(r"""(src|href)=["'](https?:)?//""", text), "nothing comes from elsewhere"


def test_the_overview_says_what_is_measured_with_its_unit(fake_cluster, client_of_role):
    text = client_of_role("viewer").get("/").content.decode()
    wrote = fake_cluster.store.snapshot().positions.wrote
    assert f'data-path="positions.wrote" data-format="count">{wrote:,}<' in text
    assert "171.0 GiB" in text and "48,210" in text and "search-index" in text


def test_a_broker_that_nobody_used_yet_has_an_overview_too(fake_cluster, client_of_role, monkeypatch):
    facts = replace(
        fake_cluster.overview(),
        positions=LogPositions(
            **dict.fromkeys(("min", "wrote", "confirmed", "flushed", "dispatched", "checkpoint_position"), 0)
        ),
        worst_lag=None,
        top_topics=[],
        disk=DiskSpace(),
    )
    monkeypatch.setattr(fake_cluster, "overview", lambda: facts)
    text = client_of_role("viewer").get("/").content.decode()
    assert "No messages yet" in text and "no group reads yet" in text and "unknown" in text
    assert not re.search(r'class="fill-\w+ fill-move" height="8" width="100', text), (
        "nothing is written, so no bar is full"
    )


def test_a_store_that_nobody_uses_is_not_called_empty(fake_cluster, client_of_role, monkeypatch):
    facts = replace(fake_cluster.overview(), top_topics=[])
    monkeypatch.setattr(fake_cluster, "overview", lambda: facts)
    text = client_of_role("viewer").get("/").content.decode()
    assert "No traffic" in text and "No messages yet" not in text


def test_a_dashboard_without_a_broker_says_how_to_get_one(fake_cluster, client_of_role, monkeypatch):
    def closed():
        raise StoreClosedError("No broker runs in this process.")

    monkeypatch.setattr(
        fake_cluster, "state", lambda: State(state="closed", sentence="No broker runs in this process.")
    )
    monkeypatch.setattr(fake_cluster, "overview", closed)
    monkeypatch.setattr(fake_cluster.store, "recovery", dict)
    client = client_of_role("viewer")
    assert "manage.py runbroker" in client.get("/").content.decode()
    text = client.get("/store/recovery/").content.decode()
    assert "No broker runs in this process." in text and "Show the start" not in text


def test_what_is_not_known_is_called_unknown_and_never_zero(fake_cluster, client_of_role):
    text = client_of_role("viewer").get("/groups/nightly-report/").content.decode()
    assert re.search(r'data-path="lag" data-format="count"><span class="unknown"', text)
    assert not re.search(r'data-path="queues.0.lag" data-format="count">0<', text)


@pytest.mark.quick(15)
@pytest.mark.parametrize("state", ["starting", "recovering", "failed"])
@pytest.mark.parametrize("page", STARTING_PAGES)
def test_until_the_broker_is_up_every_page_says_so(client_of_role, page, state):
    install_cluster(FakeCluster(state_name=state))
    text = client_of_role("viewer").get(page).content.decode()
    assert {"starting": "starting", "recovering": "recovering", "failed": "did not start"}[state] in text
    install_cluster(None)


class FilesOfQueues(FakeFiles):
    async def all(self, *kinds, topic=None) -> list:
        queues = [
            self._cluster.file("consumequeue", 0, 6_000_000, 20, 20, "writing", f"many-{number:03d}", 0)
            for number in range(121)
        ]
        return [
            file
            for file in [*self.listed(), *queues]
            if (not kinds or file.kind in kinds) and topic in (None, file.topic)
        ]


class LookedAt(FakeCluster):
    """A store that a start refused, with the files of 121 queues."""

    def __init__(self):
        super().__init__(state_name="failed")
        self.files = FilesOfQueues(self)

    def check_running(self) -> None:
        """The files can be read."""


@pytest.fixture
def looked_at():
    install_cluster(LookedAt())
    yield
    install_cluster(None)


def test_the_map_of_a_store_that_was_not_opened_counts_all_queues_and_can_be_searched(
    looked_at, client_of_role
):
    """It counted those of the part that is shown, and each search was answered 503."""
    client = client_of_role("viewer")
    text = client.get("/store/?q=many&part=3").content.decode()
    assert "121 queues" in text and "part 3 of 3" in text and "many-120" in text and "many-099" not in text
    found = client.get("/store/?q=MANY-12", headers={"HX-Request": "true"})
    assert (
        found.status_code == 200
        and "many-120" in found.content.decode()
        and "many-119" not in found.content.decode()
    )
    beyond = client.get("/store/?q=many&part=99").content.decode()
    assert "part 3 of 3" in beyond and "many-120" in beyond
    files = client.get("/store/?part_of=log", headers={"HX-Request": "true"})
    assert files.status_code == 200 and "0" * 20 in files.content.decode()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("kind=commitlog&topic=many-001", 200),
        ("topic=many-001", 200),
        ("kind=index&topic=nowhere", 404),
        ("topic=nowhere", 404),
    ],
)
def test_a_topic_whose_files_are_there_is_known_whatever_kind_is_asked_for(
    looked_at, client_of_role, asked, status
):
    answer = client_of_role("viewer").get(f"/api/v1/store/files?{asked}")
    assert answer.status_code == status, answer.content


def test_the_store_page_shows_recovery_while_it_runs(client_of_role):
    install_cluster(FakeCluster(state_name="recovering"))
    text = client_of_role("viewer").get("/store/").content.decode()
    assert 'data-stream="recovery"' in text and "scan the log" in text
    install_cluster(None)


def test_a_store_that_was_not_opened_has_no_numbers(client_of_role):
    install_cluster(None)
    text = client_of_role("viewer").get("/store/").content.decode()
    assert "unknown" in text and "The store is about to be opened" in text


def test_a_topic_that_is_not_there_is_a_404_with_a_sentence(fake_cluster, client_of_role):
    answer = client_of_role("viewer").get("/topics/nothing/")
    assert answer.status_code == 404
    assert "Topic nothing does not exist." in answer.content.decode()
    assert "Go to Topics" in answer.content.decode()


@pytest.mark.parametrize("name", ["..", "a b", "x" * 300, "täglich", "<script>"])
def test_a_name_that_no_topic_may_have_is_refused(fake_cluster, client_of_role, name):
    assert client_of_role("viewer").get(f"/topics/{quote(name, safe='')}/").status_code == 404


def test_retry_topics_have_an_address_although_their_names_hold_per_cent_signs(fake_cluster, client_of_role):
    text = client_of_role("viewer").get(reverse("topic", args=["%RETRY%billing"])).content.decode()
    assert "sent back to try again" in text


def test_topics_are_searched_sorted_and_shown_by_kind(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    assert "page-views" not in client.get("/topics/?q=ORD").content.decode().partition("<table")[2]
    busiest = client.get("/topics/?sort=in").content.decode().partition("<tbody>")[2]
    assert busiest.index("page-views") < busiest.index("orders") < busiest.index("payments")
    assert "dead letters" in client.get("/topics/?kind=dlq").content.decode()
    fragment = client.get("/topics/?q=orders", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in fragment and "orders" in fragment


def test_a_start_without_a_store_is_no_fault_of_the_page(fake_cluster, client_of_role, monkeypatch):
    monkeypatch.setattr(fake_cluster.store, "recovery", lambda: None)
    client = client_of_role("viewer")
    assert client.get("/store/recovery/").status_code == 200
    fragment = client.get("/store/recovery/?part_of=facts", headers={"HX-Request": "true"})
    assert fragment.status_code == 503


def test_an_htmx_request_without_a_login_takes_the_whole_page_there(fake_cluster, client_of_role):
    answer = client_of_role(None).get("/topics/", headers={"HX-Request": "true"})
    assert answer.status_code == 204 and "/login/" in answer["HX-Redirect"]


@pytest.mark.parametrize(
    ("query", "sentence", "status"),
    [
        ("by=offset&topic=orders&offset=minus", "is not a number", 400),
        ("by=offset&topic=orders&offset=99999999999999999999", "is not a number", 400),
        ("by=offset&queue=0", "Give the topic", 400),
        ("by=key&topic=orders", "Give the key", 400),
        ("by=key&topic=orders&key=x&from=yesterday", "is not a time", 400),
        ("by=time&topic=orders&from=2026-01-02T00:00&to=2026-01-01T00:00", "is after the time", 400),
        ("by=time&topic=orders&sql=a+>+'x'", "Value ''x'' cannot be compared.", 400),
        ("by=time&topic=orders&sql=a+!+1", "Lexical error at line 1, column 3.", 400),
        ("by=offset&topic=nothing", "does not exist", 200),
        ("by=offset&topic=orders&queue=99", "has no queue 99", 200),
        ("by=magic&topic=orders", "'magic' is none of offset, key, time, id", 400),
    ],
)
def test_a_search_that_cannot_be_made_says_why(fake_cluster, client_of_role, query, sentence, status):
    answer = client_of_role("viewer").get(f"/messages/?{query}")
    assert answer.status_code == status
    assert sentence in html.unescape(answer.content.decode())


@pytest.mark.parametrize("way", ["by=time", "by=offset&limit=20", "by=key&key=all"])
def test_a_search_takes_an_expression_and_warns_of_its_oddities(fake_cluster, client_of_role, way):
    client = client_of_role("viewer")

    def rows(sql: str) -> tuple[int, str]:
        query = f"{way}&topic=orders&{urlencode({'sql': sql})}"
        text = html.unescape(client.get(f"/messages/?{query}").content.decode())
        return text.count("data-row-link"), text

    every, _ = rows("")
    some, text = rows("KEYS ENDSWITH '0'")
    assert 0 < some < every and "binds tighter" not in text
    none, text = rows("NOT shop = 'berlin' and more")
    assert none == 0 and "NOT binds tighter than a comparison" in text
    assert ("passes the filter." in text) is (way != "by=time"), "by time the search is not complete"
    assert "There is no message at this offset" not in text


def test_nothing_found_is_not_the_same_as_there_may_be_more(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    nothing = client.get("/messages/?by=key&topic=orders&key=nobody").content.decode()
    assert "Nothing found" in nothing and "There may be more" not in nothing
    assert "There may be more" in client.get("/messages/?by=time&topic=orders").content.decode()


def test_browsing_goes_on_from_where_it_was(fake_cluster, client_of_role):
    text = (
        client_of_role("viewer")
        .get("/messages/?by=offset&topic=orders&queue=0&offset=40&limit=10")
        .content.decode()
    )
    assert "offset=30" in text and "offset=50" in text


def test_an_id_leads_straight_to_its_message(fake_cluster, client_of_role):
    answer = client_of_role("viewer").get("/messages/?by=id&id=7F00000100002A9F0000000000009C40")
    assert answer.status_code == 302 and answer["Location"] == "/messages/40000/"


def test_a_message_shows_what_its_clients_wrote_of_its_way(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    text = client.get("/messages/40000/").content.decode()
    assert "Its journey" in text and text.index("shop sent it to orders") < text.index("billing was given it")
    fake_cluster.events = lambda message_id: []
    assert "Its client says" not in client.get("/messages/40000/").content.decode()


def test_a_message_shows_its_fields_and_every_byte_belongs_to_one(fake_cluster, client_of_role):
    text = client_of_role("viewer").get("/messages/40000/").content.decode()
    stored, raw = fake_cluster.stored("orders", 0, 40), fake_cluster.raw("orders", 0, 40, 40_000)
    assert stored.unique_key in text and "order-41040" in text
    shown = re.findall(r'class="run c\d" data-field="([a-z_]+)"[^>]*>([0-9a-f ]+)<', text)
    assert bytes.fromhex("".join(run for _, run in shown)) == raw
    assert {field for field, _ in shown} == {
        *record.FIXED_IPV4.names,
        "body",
        "topic_length",
        "topic",
        "properties_length",
        "properties",
    }
    assert "(right)" in text


def test_a_body_with_another_checksum_is_shown_as_wrong(fake_cluster, client_of_role, monkeypatch):
    raw = bytearray(fake_cluster.raw("orders", 0, 40, 40_000))
    raw[90] ^= 1

    async def message(log_offset):
        return record.decode(raw, check_crc=False), bytes(raw)

    monkeypatch.setattr(fake_cluster.search, "message_at", message)
    assert "(WRONG: the body has 0x" in client_of_role("viewer").get("/messages/40000/").content.decode()


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% debug %}",
    "javascript:alert(1)",
    "</pre></textarea><svg/onload=alert(1)>",
    "' onmouseover='alert(1)",
)


@pytest.mark.parametrize("payload", HOSTILE)
def test_what_producers_write_is_text_wherever_it_stands(fake_cluster, client_of_role, payload):
    pairs = {"TAGS": payload, "KEYS": payload, "UNIQ_KEY": payload, payload[:20]: payload}
    message = Message(
        "orders", 0, payload.encode(), properties.encode(pairs), born_timestamp=1_764_000_000_000
    )
    fake_cluster.extra_messages.append(record.encode(message, 0, 0, 1_764_000_000_000))
    text = client_of_role("viewer").get("/messages/0/").content.decode()
    assert payload not in text.replace(html.escape(payload), "") or payload == "javascript:alert(1)"
    assert (
        not re.search(r'href="\s*javascript:', text)
        and "<svg/onload" not in text
        and "<img src=x" not in text
    )


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00", b"{broken", b"[" * 5_000, b"x" * 100_000])
def test_any_body_can_be_looked_at(fake_cluster, client_of_role, body):
    message = Message("orders", 0, body, born_timestamp=1)
    fake_cluster.extra_messages.append(record.encode(message, 0, 0, 2))
    assert client_of_role("viewer").get("/messages/0/").status_code == 200


def test_a_record_is_downloaded_and_never_opened(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    answer = client.get("/messages/40000/record")
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer.content == fake_cluster.raw("orders", 0, 40, 40_000)
    assert client.get("/messages/40000/body").content == fake_cluster.stored("orders", 0, 40).body
    assert client.get("/messages/40000/else").status_code == 404


def test_a_place_where_no_message_begins_is_not_found(fake_cluster, client_of_role):
    assert client_of_role("viewer").get("/messages/40001/").status_code == 404


def test_only_those_who_may_are_offered_a_change(fake_cluster, client_of_role):
    viewer, operator, admin = (client_of_role(role) for role in ("viewer", "operator", "admin"))
    assert "New topic" not in viewer.get("/topics/").content.decode()
    assert "New topic" in admin.get("/topics/").content.decode()
    assert "Start a job" not in viewer.get("/jobs/").content.decode()
    assert "Start a job" in operator.get("/jobs/").content.decode()
    assert viewer.post("/jobs/start", {"kind": "check_store"}).status_code == 403
    assert viewer.post("/jobs/x/cancel").status_code == 403


def test_a_job_is_started_with_its_parameters_and_its_page_opens(fake_cluster, client_of_role, monkeypatch):
    asked = []

    def start(kind, parameters, caller):
        asked.append((kind, parameters, caller.name))
        return fake_runs.job_of(id="job-1")

    monkeypatch.setattr("mqadmin.jobs.queue.start", start)
    operator = client_of_role("operator")
    answer = operator.post(
        "/jobs/start", {"kind": "export_messages", "topic": "orders", "form": "csv", "limit": ""}
    )
    assert answer["Location"] == "/jobs/job-1/"
    # The page's form has the fields of all kinds, and a choice always has a value.
    operator.post("/jobs/start", {"kind": "check_store", "form": "jsonl", "to": "group", "topic": ""})
    assert asked == [
        ("export_messages", {"topic": "orders", "form": "csv"}, "user:the-operator"),
        ("check_store", {}, "user:the-operator"),
    ]


def test_the_frame_of_a_browser_is_told_to_hold_back(fake_cluster, client_of_role):
    answer = client_of_role("viewer").get("/")
    assert (
        answer["X-Frame-Options"] == "DENY" and "frame-ancestors 'none'" in answer["Content-Security-Policy"]
    )
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"


def test_a_lookup_is_told_with_what_was_dropped_and_why_it_ended(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    text = client.get(
        "/store/index/?topic=orders&key=order-41040&from=2025-11-01T00:00&to=2030-01-01T00:00"
    ).content.decode()
    assert 'value="2025-11-01T00:00"' in text and 'value="2030-01-01T00:00"' in text
    for said in (
        "1 message found",
        "3 entries touched",
        "2 of the 64 places",
        "dropped",
        "passed over",
        "another key of the same hash",
        "not in the index",
        "12 µs",
    ):
        assert said in text
    assert "needs both" in client.get("/store/index/?topic=orders").content.decode()
    assert "is not a time" in client.get("/store/index/?topic=orders&key=k&from=soon").content.decode()
    assert (
        "is after the time"
        in client.get(
            "/store/index/?topic=orders&key=k&from=2025-11-02T00:00&to=2025-11-01T00:00"
        ).content.decode()
    )


def test_chains_come_as_a_piece_and_only_of_a_file_that_is_there(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    piece = client.get(
        "/store/index/?file=20251122090000000&part_of=chains", headers={"HX-Request": "true"}
    ).content.decode()
    assert (
        "<html" not in piece
        and "16 to 31" in piece
        and "customer-9" in piece
        and "1 chain is not whole" in piece
    )
    assert "Count the chains" in client.get("/store/index/").content.decode()
    assert client.get("/store/index/?file=20010101000000000").status_code == 404
    assert client.get("/store/index/?file=../x").status_code == 400


def test_the_page_of_a_damaged_message_says_how_it_is_damaged(fake_cluster, client_of_role, monkeypatch):
    client = client_of_role("viewer")
    assert "This message is damaged" not in client.get("/messages/40000/").content.decode()

    async def damage_at(log_offset):
        return f"the CRC at {log_offset} is wrong"

    monkeypatch.setattr(fake_cluster.search, "damage_at", damage_at)
    text = client.get("/messages/40000/").content.decode()
    assert "<strong>This message is damaged:</strong> the CRC at 40000 is wrong. No consumer gets it" in text


def test_a_search_that_meets_damage_says_so_and_does_not_call_itself_complete(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    text = client.get("/messages/?by=key&topic=orders&key=damaged").content.decode()
    assert (
        "There may be more: the record at 40,000 of the log is damaged (the body of a record has "
        "another CRC): messages may be missing." in text
    )
    assert "Nothing found" in text and "The search was complete" not in text
    answer = client.get("/api/v1/messages?topic=orders&key=damaged").json()
    assert (answer["complete"], answer["damaged"]) == (
        False,
        [{"log_offset": 40_000, "damage": "the body of a record has another CRC"}],
    )


def test_a_search_that_is_complete_says_where_store_times_go_back(fake_cluster, client_of_role, monkeypatch):
    async def find_by_time(*_, **more):
        return Found([], True, "store times go back once, at 12 of the log")

    monkeypatch.setattr(fake_cluster.search, "by_time", find_by_time)
    text = client_of_role("viewer").get("/messages/?by=time&topic=orders").content.decode()
    assert "Complete, but store times go back once, at 12 of the log." in text


def test_a_job_or_schedule_that_is_not_there_is_a_404_with_one_sentence(
    fake_cluster, client_of_role, monkeypatch
):
    def missing(*arguments):
        raise Problem("not_found", "there is no such thing")

    monkeypatch.setattr("mqadmin.jobs.queue.cancel", missing)
    monkeypatch.setattr("mqadmin.jobs.queue.find_run", missing)
    client = client_of_role("operator")
    for address in ("/jobs/x/cancel", "/pipeline/runs/x/cancel", "/pipeline/schedules/999/remove"):
        answer = client.post(address)
        assert answer.status_code == 404, address
        text = answer.content.decode()
        assert "There is no s" in text and "there is no s" not in text and text.count("here is no s") == 1, (
            address
        )


def test_a_problem_of_a_job_that_is_there_is_a_sentence_on_its_page(
    fake_cluster, client_of_role, monkeypatch
):
    def refused(*arguments):
        raise Problem("jobs_unavailable", "Redis does not answer")

    monkeypatch.setattr("mqadmin.jobs.queue.cancel", refused)
    monkeypatch.setattr("mqadmin.jobs.queue.find", refused)
    client = client_of_role("operator")
    assert client.post("/jobs/x/cancel").status_code == 302
    text = client.get("/jobs/x/").content.decode()
    assert "Redis does not answer. Redis holds only jobs: messages are not touched by that" in text
    assert text.count("Redis does not answer") == 2, "of the page, and of what was asked before"


def test_the_narrow_list_of_groups_shows_how_many_messages_are_invisible(fake_cluster, client_of_role):
    text = client_of_role("viewer").get("/groups/").content.decode()
    shown = re.findall(r'<a href="/groups/([^/"]+)/">(?:(?!</td>).)*narrow-only[^>]*>(.*?) invisible<', text)
    assert shown == [(name, f"{count:,}") for name, count in INVISIBLE.items()]


def test_an_empty_broker_and_a_group_without_dead_letters_count_no_messages(
    fake_cluster, client_of_role, monkeypatch
):
    overview = fake_cluster.overview()
    monkeypatch.setattr(fake_cluster, "overview", lambda: replace(overview, worst_lag=None))
    client = client_of_role("viewer")
    text = client.get("/").content.decode()
    assert '<span data-when="worst_lag" hidden>messages, </span>' in text and "no group reads yet" in text
    text = client.get("/groups/billing/").content.decode()
    assert ">a message is given up after <span" in text and "wait 10 s before the first retry" in text
