"""The byte viewer's page and route: over a store of the real broker, and over one that is running."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync

from broker_store.config.broker import BrokerSettings
from broker_store.engine.store import wall_clock_ms
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import Place
from broker_store.facts.bytes.viewer import Viewer
from broker_store.facts.directory import StoreDirectory
from broker_store.formats.index_file import IndexGeometry
from broker_store.server.parts import build_parts
from mqadmin.api import schemas
from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.views.store.bytes.facts import shown
from mqadmin.views.store.bytes.page import place_of
from tests.engine.test_inspect import look_into
from tests.mqadmin.test_cluster import cluster, process  # noqa: F401  (fixtures)
from tests.support import stores
from tests.support.fake_cluster import golden_directory
from tests.support.sending import send_one


@pytest.fixture
def page(fake_cluster, client_of_role):
    client = client_of_role("viewer")

    def get(address: str, status: int = 200) -> str:
        answer = client.get(address)
        assert answer.status_code == status
        return answer.content.decode()

    return get


def body_of(answer) -> bytes:
    """Return the body of an answer, also of one that is sent in pieces."""

    async def pieces() -> list[bytes]:
        return [piece async for piece in answer]

    return b"".join(async_to_sync(pieces)()) if answer.streaming else answer.content


def links(html: str, title: str) -> list[str]:
    return [
        href.replace("&amp;", "&")
        for href, text in re.findall(
            r'<a class="(?:jump|button)[^"]*"[^>]*?href="([^"]+)"[^>]*>([^<]*)', html
        )
        if text.strip().startswith(title)
    ]


def test_one_goes_around_by_links_alone_from_queue_to_log_to_index_and_back(page):
    unit = page("/store/bytes/?kind=consumequeue&topic=TopicX&queue=1&unit=0")
    (to_log, *_) = re.findall(r'<a class="run c\d" href="([^"]+)"', unit)
    record = page(to_log.replace("&amp;", "&"))
    assert "record of 237 bytes: TopicX, queue 1, offset 0" in record and "(right)" in record
    (to_entry,) = links(record, "Index entry of its key k1")
    entry = page(to_entry)
    assert "Of TopicX#k1." in entry
    assert to_log in re.findall(r'<a class="run c\d" href="([^"]+)"', entry)
    (next_record,) = links(record, "Next record")
    assert links(page(next_record), "Previous record") == [to_log.replace("&amp;", "&")]


def test_what_cannot_be_shown_is_said_beside_the_form(page):
    assert "is not in the commit log: its files hold 0 to 1,048,575." in page(
        "/store/bytes/?offset=9999999999", 404
    )
    assert "is not a number" in page("/store/bytes/?offset=x", 400)
    assert "Queue 7 of topic TopicX has no files." in page(
        "/store/bytes/?kind=consumequeue&topic=TopicX&queue=7", 404
    )
    assert "The specified topic contains illegal characters" in page(
        "/store/bytes/?kind=consumequeue&topic=../x", 404
    )
    assert "kind cannot be taken" in page("/store/bytes/?kind=passwd", 400)


def test_the_page_names_the_route_and_the_command_that_give_the_same(page, fake_cluster, client_of_role):
    html = page("/store/bytes/?kind=index&entry=3")
    (address,) = re.findall(r"GET (/api/v1/store/bytes[^<]*)<", html)
    assert "manage.py store hex --kind index --entry 3" in html
    answer = json.loads(client_of_role("operator").get(address.replace("&amp;", "&")).content)
    assert [piece["title"] for piece in answer["pieces"][:2]] == ["entry 3", "entry 4"]
    stretch = Viewer(golden_directory()).read(place_of({"kind": "index", "entry": "3"}))
    assert answer["hex"] == stretch.hex
    assert answer["pieces"][0]["fields"][0]["raw"] == str(stretch.pieces[0].fields[0].raw)


def test_the_route_is_bounded(fake_cluster, client_of_role):
    client = client_of_role("viewer")
    assert client.get("/api/v1/store/bytes?length=65537").status_code == 422
    assert client.get("/api/v1/store/bytes?kind=secrets").status_code == 422
    assert client.get("/api/v1/store/bytes?kind=consumequeue&topic=..").status_code == 400
    assert client.get("/api/v1/store/bytes?kind=consumequeue&topic=x").status_code == 404
    assert len(json.loads(body_of(client.get("/api/v1/store/bytes?length=65536")))["hex"]) == 2 * 65536


@pytest.mark.parametrize(
    "asked",
    [
        {"length": "65536"},
        {"kind": "consumequeue", "topic": "TopicX", "queue": "1"},
        {"kind": "index", "offset": "4040", "length": "2000"},
        {"kind": "checkpoint"},
    ],
)
def test_the_answer_is_what_the_contract_says(fake_cluster, client_of_role, asked):
    found = json.loads(body_of(client_of_role("viewer").get("/api/v1/store/bytes", asked)))
    assert schemas.schema_of(FileBytes).model_validate(found).model_dump() == found


def test_each_byte_stands_in_one_run_of_the_field_it_belongs_to():
    found = shown(Viewer(golden_directory()).read(Place(offset=5, length=300)))
    stretch, at = found.stretch, found.stretch.at
    begun = set()
    for line in found.lines:
        assert line.at.strip() == f"{at:,}"
        for run in line.runs:
            length = len(run.hex.split())
            assert run.field.at <= at and at + length <= run.field.at + run.field.length
            assert run.is_first == (run.field.id not in begun)
            begun.add(run.field.id)
            at += length
    assert at == stretch.at + stretch.length
    assert "".join(run.hex for line in found.lines for run in line.runs).replace(" ", "") == stretch.hex


async def test_a_running_store_says_what_is_beyond_its_positions(cluster, monkeypatch):  # noqa: F811
    for number in range(3):
        await send_one(cluster, "orders", b"body", keys=(f"k{number}",), queue_id=0)
    store = cluster._host.parts.store
    known = store.status.positions()
    end = known.wrote
    stretch = await cluster.store.bytes_at(Place(offset=end))
    assert (
        stretch.pieces[0].sentence.startswith(f"Never written: the log ends at {end:,}")
        and stretch.source == "measured in the running broker"
    )
    units = (await cluster.store.bytes_at(Place("consumequeue", topic="orders"))).pieces
    assert [piece.what for piece in units] == ["unit", "unit", "unit", "room"] and all(
        not piece.tone for piece in units
    )
    first = await cluster.store.bytes_at(Place())
    size = first.pieces[0].length
    monkeypatch.setattr(store.status, "positions", lambda: replace(known, flushed=size, dispatched=2 * size))
    tones = [
        (piece.title[:6], piece.sentence[:29])
        for piece in (await cluster.store.bytes_at(Place(length=end))).pieces
    ]
    assert tones == [
        ("record", ""),
        ("record", "It is in memory only: the log"),
        ("record", "It is not dispatched yet: que"),
    ]
    waits = next(
        jump
        for jump in (await cluster.store.bytes_at(Place(offset=2 * size))).jumps
        if jump.title.startswith("Index entry of its key")
    )
    assert (waits.pointer, waits.why) == (None, "it is not dispatched yet")


async def test_a_crashed_store_that_is_looked_at_shows_its_files_and_what_a_start_made_of_them(tmp_path):
    root = stores.unpack("crash", tmp_path)
    sizes = stores.SIZES["crash"]
    store = look_into("crash", root, acceptDamage="true")
    inspected = EmbeddedCluster(
        SimpleNamespace(
            store=store, parts=build_parts(BrokerSettings(), store.settings, store, wall_clock_ms)
        ),
        asyncio.get_running_loop(),
    )
    try:
        end = store.status.positions().confirmed
        stretch = await inspected.store.bytes_at(Place(offset=end))
        assert (
            "what a start made of them in memory" in stretch.source
            and f"{end:,}" in stretch.pieces[0].sentence
        )
        topic, queue_id = store.queues()[0]
        units = await inspected.store.bytes_at(
            Place("consumequeue", topic=topic, queue=queue_id, unit=store.reads.min_offset(topic, queue_id))
        )
        assert units.pieces[0].what in ("unit", "hole")
        plain = StoreDirectory(root, geometry=IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num))
        assert (await inspected.store.bytes_at(Place())).pieces == Viewer(plain).read(Place()).pieces
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue", "index", "checkpoint"])
def test_bytes_that_say_nothing_sensible_are_shown_all_the_same(kind, tmp_path):
    """Any bytes at all are shown, by REST as well, and are never an error."""
    root = stores.unpack("golden-clean", tmp_path)
    paths = {
        "commitlog": next((root / "commitlog").iterdir()),
        "consumequeue": root / "consumequeue/TopicX/1" / f"{0:020d}",
        "index": next((root / "index").iterdir()),
        "checkpoint": root / "checkpoint",
    }
    chance = random.Random(5)
    viewer = Viewer(StoreDirectory(root, geometry=IndexGeometry(1000, 4000)))
    for _ in range(25):
        data = bytearray(paths[kind].read_bytes())
        for _ in range(chance.randrange(1, 30)):
            at = chance.randrange(min(len(data), 3000))
            data[at : at + 4] = chance.choice(
                [chance.randbytes(4), bytes(4), b"\xff\xff\xff\xff", b"\xda\xa3\x20\xa7", b"\x7f\xff\xff\xff"]
            )
        paths[kind].write_bytes(data)
        at = chance.randrange(3000)
        stretch = viewer.read(Place(kind, offset=at, topic="TopicX", queue=1))
        assert len(stretch.hex) == 2 * stretch.length > 0
        shown(stretch)
