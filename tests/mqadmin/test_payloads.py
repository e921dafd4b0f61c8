"""What producers and clients write stays text: on every page, in REST, in the live numbers and in exported
files."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote, urlencode, urlsplit

import pytest

from mqadmin.cluster.current import install_cluster
from mqadmin.jobs import exports, pipeline, progress, queue
from mqadmin.jobs.facts import Job
from tests.support.fake_runs import job_of
from tests.support.hostile_cluster import AT_ONCE, HostileCluster, may_be_a_name
from tests.support.payloads import FORMULAS, PAYLOADS


def of_users(names: Iterable[str]) -> list[str]:
    """The pages of users of the broker with these names, and the page on which a form draws them again."""
    return [
        address
        for name in names
        for address in (
            f"/access/users/{quote(name, safe='')}?action=Pub&resource=Topic:orders",
            f"/access/?{urlencode({'q': name, 'user': name, 'action': 'Pub', 'resource': 'Topic:orders'})}",
        )
    ]


ANY_WORDS = (
    "/",
    *(
        f"/messages/?by=offset&topic=orders&queue=0&offset={offset}&limit=100"
        for offset in range(0, 400, 100)
    ),
    "/messages/waiting/",
    "/groups/billing/",
    "/topics/orders/",
    "/store/",
    "/store/recovery/",
    "/store/index/?topic=orders&key=k&chains=1",
    "/access/",
    *of_users(["billing"]),
    "/jobs/",
    "/jobs/some-job/",
    "/store/doctor/some-job/",
    "/pipeline/",
    *(f"/pipeline/runs/{name}/" for name in pipeline.JOBS),
    *(f"/pipeline/runs/{name}/log" for name in pipeline.JOBS),
)
PAGES = (*ANY_WORDS, *of_users([*filter(may_be_a_name, PAYLOADS)][:: len(PAYLOADS) // 8]))
MESSAGES = tuple(f"/messages/{1_000 * number}/" for number in range(0, len(PAYLOADS), AT_ONCE))
LINKS = ("/", "?", "#", "data:image/svg+xml")


class Structure(HTMLParser):
    """What of a page is markup: each element with its attributes' names, and the addresses it leads to."""

    def __init__(self):
        super().__init__()
        self.elements: set[tuple] = set()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            self.elements.add((tag, name))
            if name in ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-link"):
                self.addresses.add((value or "").strip())
        self.elements.add((tag,))

    def handle_comment(self, data):
        self.elements.add(("comment",))


def structure(text: str) -> Structure:
    parsed = Structure()
    parsed.feed(text)
    parsed.close()
    return parsed


def job(words: tuple[str, ...]) -> Job:
    texts = {text: text for text in words}
    return job_of(
        title=words[0],
        queue=words[0],
        state="failed",
        parameters=texts,
        by=words[0],
        canceled_by=words[0],
        started_ms=1,
        ended_ms=2,
        progress=progress.read({"text": words[0], "done": 1, "total": 2, "unit": words[0], "at_ms": 1}),
        result=texts | {"table": [texts]},
        error=" ".join(words),
        has_file=True,
    )


def run(words: tuple[str, ...], name: str) -> Job:
    """A run of the pipeline that is done; its result is `result`."""
    return replace(
        job(words),
        id=name,
        pipeline=name,
        state="done",
        error=None,
        parameters={"key": words[0], "topic": words[0]},
        result={"ok": False, "errors": words[0]},
        retry_of="x",
    )


def result(words: tuple[str, ...], name: str) -> dict:
    """What a run found in a store whose every text is one of `words`."""
    one = words[0]
    numbers = dict.fromkeys(
        (
            "messages",
            "bytes",
            "queues",
            "size_p50",
            "size_p99",
            "largest",
            "delay_ms_p50",
            "delay_ms_p99",
            "distinct_keys",
            "first_ms",
            "last_ms",
        ),
        1,
    )
    places = {
        "queue_id": 0,
        "queue_offset": 0,
        "log_offset": 0,
        "record_bytes": 100,
        "reconsume_times": 0,
        "store_ms": 5,
        "born_ms": 5,
    }
    chains = {
        "entries": 1,
        "slots": 1,
        "slots_used": 1,
        "longest_chain": 1,
        "mean_chain": 1.0,
        "chain_p99": 1,
        "skew": 1.0,
    }
    return {
        "audit": {"ok": False, "errors": 1, "kinds": {text: 1 for text in words}, "counts": {"records": 1, "queues": 1, "log_end": 1},
                  "findings": [{"severity": text, "kind": text, "file": text, "offset": 1, "what": text} for text in words]},
        "statistics": {"topics": [{"topic": text, **numbers} for text in words], "tags": [{"topic": one, "tags": text, **numbers} for text in words],
                       "groups": [{"group": text, **numbers} for text in words], "hours": [{"hour_ms": at, **numbers} for at in (0, 3_600_000)],
                       "hot_keys": [{"topic": one, "key": text, "messages": 2} for text in words], "index": [{"file": one, **chains}],
                       "messages": 1, "bytes": 1, "complete": False},
        "lineage": {"key": one, "complete": False, "records": [{"step": text, "topic": text, "tags": text, "keys": [text], "unique_key": text, **places} for text in words]},
        "archive": {"records": 1, "bytes": 1, "files": 1, "from": 0, "to": 1, "missing": [[0, 1]], "days": [{"topic": text, "day": text, "records": 1, "files": 1, "bytes": 1} for text in words]},
    }[name]  # fmt: skip


def pages(client, monkeypatch, words: tuple[str, ...], addresses: tuple[str, ...]) -> list[str]:
    install_cluster(HostileCluster(words, clock=lambda: 1_764_000_000.0))
    monkeypatch.setattr(queue, "listing", lambda: [job(words), *(run(words, name) for name in pipeline.JOBS)])
    monkeypatch.setattr(queue, "find", lambda job_id: job(words))
    monkeypatch.setattr(queue, "find_run", lambda run_id: run(words, run_id))
    monkeypatch.setattr(pipeline, "read_document", lambda data, run_id: result(words, run_id))
    monkeypatch.setattr(pipeline, "read_log", lambda data, store, run_id: " ".join(words))
    found = []
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, address
        found.append(answer.content.decode())
    install_cluster(None)
    return found


def test_no_payload_becomes_markup_on_any_page(client_of_role, monkeypatch):
    client = client_of_role("operator")
    plain = tuple(f"word{number}" for number in range(len(PAYLOADS)))
    known = {
        element
        for text in pages(client, monkeypatch, plain, (*ANY_WORDS, *of_users(plain[:2]), *MESSAGES))
        for element in structure(text).elements
    }
    known |= {
        element
        for text in pages(client, monkeypatch, tuple('{"a": 1}' for _ in PAYLOADS), MESSAGES[:1])
        for element in structure(text).elements
    }
    for address, text in zip(
        (*PAGES, *MESSAGES), pages(client, monkeypatch, PAYLOADS, (*PAGES, *MESSAGES)), strict=True
    ):
        found = structure(text)
        assert found.elements <= known, (address, found.elements - known)
        assert all(
            link.startswith(LINKS) and not link.startswith("//") or link == "" for link in found.addresses
        ), (address, found.addresses)
        assert "49" not in text.partition("{{ 7 * 7 }}")[0][-3:], "a template was rendered"


@pytest.mark.quick(6)
@pytest.mark.parametrize("payload", PAYLOADS[:: len(PAYLOADS) // 20])
def test_what_is_asked_for_comes_back_as_text(fake_cluster, client_of_role, payload):
    client = client_of_role("viewer")
    for address, fields in (
        ("/topics/", {"q": payload, "sort": payload, "kind": payload, "part": payload}),
        ("/groups/", {"q": payload, "sort": payload, "kind": payload}),
        ("/messages/", {"by": "key", "topic": "orders", "key": payload, "from": payload}),
        ("/messages/", {"by": payload, "topic": payload, "queue": payload, "offset": payload, "id": payload}),
        ("/store/index/", {"topic": "orders", "key": payload}),
        ("/store/", {"q": payload, "part": payload}),
        ("/login/", {"next": payload}),
    ):
        known = structure(
            client.get(
                address,
                {name: "word" for name in fields}
                | {name: value for name, value in fields.items() if value != payload},
            ).content.decode()
        ).elements
        answer = client.get(address, fields)
        text = answer.content.decode()
        assert answer.status_code in (200, 302, 400, 404), address
        extra = structure(text).elements - known
        assert not {
            element
            for element in extra
            if element[0] in ("script", "img", "iframe", "object", "embed", "style", "base", "meta", "link")
            or str(element[-1]).startswith("on")
        }, (address, extra)
        assert urlsplit(answer.headers.get("Location", ""))[:2] == ("", ""), "it leads elsewhere"


def test_rest_gives_them_as_json_that_no_browser_takes_for_a_page(client_of_role):
    install_cluster(HostileCluster())
    client, bodies = client_of_role("viewer"), []
    while len(bodies) < len(PAYLOADS):
        answer = client.get(
            "/api/v1/topics/orders/queues/0/messages",
            {"offset": len(bodies), "limit": min(8, len(PAYLOADS) - len(bodies))},
        )
        assert (
            answer["Content-Type"].startswith("application/json")
            and answer["X-Content-Type-Options"] == "nosniff"
        )
        bodies += [message["body"] for message in answer.json()["messages"]]
    install_cluster(None)
    assert bodies == list(PAYLOADS)


@pytest.mark.parametrize("form", exports.FORMS)
def test_exported_they_are_read_back_as_they_were_and_no_cell_is_a_formula(tmp_path, form):
    messages = [
        dict.fromkeys(exports.CSV_FIELDS, text) | {"keys": [text], "queue_offset": "1"} for text in PAYLOADS
    ]
    made = exports.write(tmp_path, "job", form, iter(messages), lambda *_, **__: None, len(messages) + 1)
    with open(tmp_path / made.file, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file)) if form == "csv" else [json.loads(line) for line in file]
    assert len(rows) == len(PAYLOADS)
    for text, row in zip(PAYLOADS, rows, strict=True):
        if form == "jsonl":
            assert row["body"] == text and row["keys"] == [text]
        else:
            assert not any(cell.startswith(exports.FORMULA_STARTS) for cell in row.values())
            assert (
                row["body"]
                == row["keys"]
                == row["tag"]
                == ("'" + text if text.startswith(exports.FORMULA_STARTS) else text)
            )
    assert set(FORMULAS) <= set(PAYLOADS)


def test_an_export_leaves_room_on_the_part_of_the_disk_that_the_store_can_use(tmp_path, monkeypatch):
    """The ratio is the store's own: space that is kept back for others is no reason to stop, and no room to
    write into."""
    message = dict.fromkeys(exports.CSV_FIELDS, "a") | {"keys": [], "queue_offset": "1"}

    def export(blocks, free, available):
        # Blocks of 4 KiB, given as MiB
        found = os.statvfs_result((4096, 4096, blocks << 8, free << 8, available << 8, 0, 0, 0, 0, 255))
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: found)
            return exports.write(tmp_path, "job", "csv", iter([message]), lambda *_, **__: None, 2)

    # 100 in use and 120 left of what is not kept back: 55 % left
    assert export(1000, 900, 120).messages == 1
    with pytest.raises(exports.NoRoomError, match="has 14 of 100 MiB left; an export stops below 15%"):
        export(100, 14, 14)
    assert [path.name for path in tmp_path.iterdir()] == ["job.csv"], (
        "what was not finished is gone, what was there before is not"
    )


@pytest.mark.parametrize(
    "name",
    [
        "../secret_key",
        "/etc/passwd",
        "other.csv",
        "some-job.csv",
        "some-job.csv/../some-job.csv",
        "some-job.txt",
        "..",
        "\0.csv",
    ],
)
def test_the_file_of_a_job_is_the_export_of_that_job_and_no_link(
    fake_cluster, client_of_role, settings, tmp_path, monkeypatch, name
):
    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "exports").mkdir()
    (tmp_path / "secret_key").write_text("secret")
    (tmp_path / "exports" / "other.csv").write_text("another job's")
    (tmp_path / "exports" / "some-job.txt").write_text("no export")
    (tmp_path / "exports" / "some-job.csv").symlink_to(tmp_path / "secret_key")
    monkeypatch.setattr(queue, "find", lambda job_id: replace(job(("word",)), result={"file": name}))
    client = client_of_role("operator")
    client.raise_request_exception = False
    assert client.get("/api/v1/jobs/some-job/file").status_code == 404


def test_the_file_of_a_job_is_downloaded_and_never_opened(
    fake_cluster, client_of_role, settings, tmp_path, monkeypatch
):
    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "some-job.csv").write_text("topic\r\norders\r\n")
    monkeypatch.setattr(
        queue, "find", lambda job_id: replace(job(("word",)), result={"file": "some-job.csv"})
    )
    answer = client_of_role("operator").get("/api/v1/jobs/some-job/file")
    assert (
        answer["Content-Disposition"].startswith("attachment")
        and answer["X-Content-Type-Options"] == "nosniff"
    )
    assert b"".join(answer.streaming_content) == b"topic\r\norders\r\n"
