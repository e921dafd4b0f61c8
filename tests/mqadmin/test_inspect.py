"""`runbroker --inspect` on stores that Apache's broker left: everything can be read, and no byte of them
changes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker_store import launch
from broker_store.formats.index_file import IndexGeometry
from mqadmin.process.rest_client import RestClient, RestError
from tests.mqadmin.test_browser import browser  # noqa: F401
from tests.mqadmin.test_browser_recovery import log_in, page  # noqa: F401
from tests.support import plain_bytes, plain_index, plain_layout, plain_recovery, stores
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

TOPIC = "FixA"
GEOMETRY = IndexGeometry(stores.SIZES["crash"].max_hash_slot_num, stores.SIZES["crash"].max_index_num)
PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0


def tree(directory: Path) -> dict:
    """Everything below a directory with its bytes and times."""
    return {
        path: (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


def first_login(tab, address: str, said: str) -> None:
    log_in(tab, address, re.search(r"password (\S+)", said)[1])
    tab.fill("#id_new_password1", "a-good-long-one-of-mine")
    tab.fill("#id_new_password2", "a-good-long-one-of-mine")
    tab.click("button[type=submit]")
    tab.wait_for_url(f"{address}/")


def visited(tab, address: str) -> str:
    """What a page says, once its numbers are live."""
    assert tab.goto(address).status == 200, address
    tab.wait_for_function(
        "() => document.querySelector('[data-live]').hidden || "
        "document.querySelector('[data-live]').textContent === 'live'"
    )
    return tab.inner_text("main")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("REDIS_URL", "BROKER_DATA_DIR", "DJANGO_SETTINGS_MODULE")
    }


class Looking:
    """A runbroker that inspects a store, with a data directory of its own."""

    def __init__(self, store: Path, data: Path):
        self.data, self.port = data, free_port()
        command = [
            sys.executable,
            "manage.py",
            "runbroker",
            "--inspect",
            "--store",
            str(store),
            "--data",
            str(data),
            "--web-port",
            str(self.port),
        ]
        self.output = data.with_name("output").open("w+b")
        self.process = subprocess.Popen(
            command, cwd=PROJECT, env=environment(), stdout=self.output, stderr=self.output
        )

    def __enter__(self) -> Looking:
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while "READY" not in self.said():
                assert time.monotonic() < deadline and self.process.poll() is None, self.said()
                time.sleep(0.02)
        except AssertionError:
            self.process.kill()
            self.process.wait()
            self.output.close()
            raise
        return self

    def said(self) -> str:
        return self.data.with_name("output").read_text()

    def __exit__(self, *_) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0, self.said()
        self.output.close()


def job(looking: Looking, broker: RestClient, started: dict) -> dict:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := broker.get(f"/jobs/{started['id']}"))["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, looking.said()
        time.sleep(0.02)
    assert found["state"] == "done", found
    return found["result"]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A store that Apache's broker left when it was killed: (its root, the process that inspects it). It is
    as it was when that ends."""
    directory = tmp_path_factory.mktemp("looked at")
    root = stores.unpack_variant("kill9", directory / "apache")
    before = tree(directory / "apache")
    with Looking(root, directory / "data") as looking:
        yield root, looking
        assert tree(directory / "apache") == before
    assert tree(directory / "apache") == before


def test_a_crashed_store_is_looked_at_from_all_sides(crashed):
    root, looking = crashed
    plain = plain_recovery.read(root)
    with RestClient.of_data_directory(looking.data) as broker:
        assert "(read-only)" in looking.said()
        recovery = broker.get("/recovery")
        assert (recovery["purpose"], recovery["log_end"], recovery["messages"]) == (
            "inspect",
            str(plain.end),
            str(plain.messages),
        )
        assert broker.get("/store")["state"] == "read_only"
        files = list(broker.pages("/store/files"))
        assert {file["kind"] for file in files} == {"commitlog", "consumequeue", "index"}
        logs = {file["name"]: file for file in files if file["kind"] == "commitlog"}
        assert min(logs) == min(path.name for path in (root / "commitlog").iterdir()) and len(logs) > 3
        for name, file in logs.items():
            first_ms = plain_recovery.first_ms((root / "commitlog" / name).read_bytes(), int(name))
            assert file["first_ms"] == (None if first_ms is None else str(first_ms))
        with pytest.raises(RestError, match="SERVICE_NOT_AVAILABLE"):
            broker.post("/topics/FixA/messages", {"body": "x"})
        dry = job(looking, broker, broker.post("/store/recoveries/dry-run"))
        assert (dry["state"], dry["log_end"]) == ("done", plain.end)
        record = broker.get(f"/store/recoveries/{dry['recovery']}")
        assert (record["purpose"], record["store"]) == ("dry run", "store") and str(root.parent) not in str(
            record
        )


STORE_PAGES = (
    "",
    "dispatch/",
    "write/",
    "index/?chains=1",
    "disk/",
    "cache/",
    f"layout/?topic={TOPIC}",
    "recovery/",
    "doctor/",
    "bytes/",
    "lab/",
    "threads/",
    "memory/",
    "replication/",
)


@pytest.mark.browser
def test_every_store_page_of_a_crashed_store_shows_what_the_files_say(crashed, page):  # noqa: F811
    root, looking = crashed
    plain, address = plain_recovery.read(root), f"http://127.0.0.1:{looking.port}"
    first_login(page, address, looking.said())
    seen = {path: visited(page, f"{address}/store/{path}") for path in STORE_PAGES}
    linked = {link.get_attribute("href") for link in page.query_selector_all(".tabs a")}
    assert linked == {f"/store/{path.partition('?')[0]}" for path in STORE_PAGES}

    # map and recovery: the end of the log, and what lies before it
    assert f"{plain.end:,}" in seen[""]
    assert min(path.name for path in (root / "commitlog").iterdir()) in seen[""]
    assert f"{plain.end:,}" in seen["recovery/"] and f"{plain.messages:,}" in seen["recovery/"]

    # without sends nothing is measured of them, nothing moves, and nothing is deleted
    assert "No client sends" in seen["write/"] and "Duration of a sync" not in seen["write/"]
    assert "The next start" in seen["dispatch/"] and "If it crashed now" not in seen["dispatch/"] + seen[""]
    assert (
        "The checkpoint, in time" not in seen["dispatch/"]
        and "Nothing is deleted" in seen["disk/"]
        and "the writer" not in seen["cache/"]
    )

    # What was refused (another test asks for a send) is shown; what is not counted is not.
    assert "since the start" not in "".join(seen[path] for path in ("write/", "cache/", "")).replace(
        "Refused since the start", ""
    )
    assert (
        "on disk or not is unknown" in seen[""]
        and "not on disk yet" not in seen[""].partition("What is this?")[0].partition("Commit log files")[2]
    )
    assert "Readers are unknown" in seen["cache/"] and "No group has read yet" not in seen["cache/"]

    # the newest index file: its slots and chains
    file = max((root / "index").iterdir())
    index = plain_index.read(file, GEOMETRY)
    used = index.used_in(0, GEOMETRY.slots - 1)
    assert f"{used:,} of {GEOMETRY.slots:,} slots" in visited(page, f"{address}/store/index/?chains=1")
    lengths = [
        number(row.inner_text()) for row in page.query_selector_all("#chains .lengths tr td:nth-child(2)")
    ]
    assert sum(lengths) == GEOMETRY.slots and lengths[:8] == [index.lengths()[length] for length in range(8)]

    # layout
    laid = plain_layout.laid(root, [(TOPIC, queue_id) for queue_id in range(4)], 240)
    assert f"{laid['messages']:,} messages of 4 queues" in seen[f"layout/?topic={TOPIC}"]

    # a unit of a queue, and from there its record, and the message's page with its journey
    units = plain_bytes.queue((root / "consumequeue" / TOPIC / "1" / f"{0:020}").read_bytes(), 0)
    log_offset, size = [value for _, at, _, value in units if 60 <= at < 80][:2]
    text = visited(page, f"{address}/store/bytes/?kind=consumequeue&topic={TOPIC}&queue=1&unit=3")
    assert f"{log_offset:,}" in text and f"{size:,}" in text
    name = max(path.name for path in (root / "commitlog").iterdir() if int(path.name) <= log_offset)
    fields = {
        name: value
        for name, _, _, value in plain_bytes.record(
            (root / "commitlog" / name).read_bytes(), log_offset - int(name), int(name)
        )
    }
    text = visited(page, f"{address}/store/bytes/?offset={log_offset}")
    assert (
        all(
            f"{fields[name]:,}" in text
            for name in ("total_size", "body_length", "queue_offset", "log_offset")
        )
        and "WRONG" not in text
    )
    visited(page, f"{address}/messages/{log_offset}/")
    stops = [
        [cell.inner_text() for cell in row.query_selector_all("td")]
        for row in page.query_selector_all(".journey tbody tr")
    ]
    places = {(stop[0], number(stop[4])) for stop in stops if stop[4]}
    assert {("Stored", log_offset), ("In its queue", 3)} <= places
    entries = [
        entry
        for path in sorted((root / "index").iterdir())
        for entry in plain_index.read(path, GEOMETRY).entries.items()
        if entry[1].log_offset == log_offset
    ]
    assert entries and {at for title, at in places if title.startswith("Indexed by")} == {
        entry for entry, _ in entries
    }

    # a dry run and a check, each from its button to its end
    page.goto(f"{address}/store/recovery/")
    page.click("button:text-is('Dry run')")
    page.click("text=Step by step", timeout=PATIENCE_SECONDS * 1000)
    page.wait_for_selector(".timeline")
    assert f"{plain.end:,}" in page.inner_text("main")
    page.goto(f"{address}/store/doctor/")
    page.click("text=Start a check")
    page.wait_for_selector("text=The store is sound", timeout=PATIENCE_SECONDS * 1000)
    records = sum(
        len(plain_bytes.record_places(path.read_bytes(), int(path.name)))
        for path in sorted((root / "commitlog").iterdir())
    )
    tiles = [number(tile.inner_text().split()[0]) for tile in page.query_selector_all("#check .tile dd")]
    assert tiles == [0, 0, 0, 0, records] and records == plain.messages, (
        "no record is torn or wrong, and the doctor finds nothing either"
    )
    assert page.complaints == []


def test_a_store_that_a_start_would_refuse_can_be_looked_at(tmp_path):
    root = stores.unpack_variant("bitflip-early", tmp_path / "apache")
    before = tree(tmp_path / "apache")
    with Looking(root, tmp_path / "data") as looking, RestClient.of_data_directory(looking.data) as broker:
        assert re.search("A start would be refused: .*CRC is wrong", looking.said())
        recovery = broker.get("/recovery")
        assert (recovery["state"], recovery["stopped"]["verdict"], recovery["crc_failures"]) == (
            "failed",
            "damage: the start stops",
            "1",
        )
        assert len(list(broker.pages("/store/files", kind="commitlog"))) == len(
            list((root / "commitlog").iterdir())
        )
        assert [(row["purpose"], row["state"]) for row in broker.get("/store/recoveries")["items"]] == [
            ("inspect", "failed")
        ]
    assert tree(tmp_path / "apache") == before


def test_a_plan_of_the_page_knows_the_sizes_that_the_last_broker_was_told_and_leaves_them_to_the_repair(
    tmp_path,
):
    root, data, sizes = stores.unpack("crash", tmp_path / "killed"), tmp_path / "data", stores.SIZES["crash"]
    shutil.rmtree(root / "index")
    (data / "run").mkdir(parents=True)
    left = json.dumps(
        {
            "pid": 1,
            "store": str(root),
            "delay_levels": "1s 5s",
            "store_settings": dataclasses.asdict(sizes),
            "inspect": False,
        }
    )
    (data / "run" / "broker.json").write_text(left)
    with Looking(root, data) as looking, RestClient.of_data_directory(data) as broker:
        started = broker.post("/store/checks")
        job(looking, broker, started)
        plan = broker.get(f"/store/checks/{started['id']}/plan")
    (rebuild,) = [action["what"] for action in plan["actions"] if action["action"] == "rebuild"]
    assert f"{sizes.max_hash_slot_num:,} slots and {sizes.max_index_num:,} entries" in rebuild
    assert (data / "run" / "broker.json").read_text() == left, (
        "looking at a store takes nothing of what is known of it"
    )
    repair = [sys.executable, "manage.py", "check_store", str(root), "--apply"]
    subprocess.run(
        repair,
        cwd=PROJECT,
        env=environment() | {"BROKER_DATA_DIR": str(data)},
        check=True,
        capture_output=True,
    )
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {GEOMETRY.file_bytes}


def test_the_data_directory_may_not_lie_within_the_store(tmp_path):
    root = stores.unpack("clean-small", tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "manage.py",
            "runbroker",
            "--inspect",
            "--store",
            str(root),
            "--data",
            str(root / "data"),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == launch.EXIT_REFUSED and "give a directory outside of it" in done.stderr
    assert tree(tmp_path) == before
