"""The commands: over a broker's socket, and offline on stores that the real broker made."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import re
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import DataError, IntegrityError, OperationalError

from broker_store.check.repair.apply import Repair
from broker_store.client import ConnectionLost, NoRouteError, RequestTimeout
from broker_store.engine.disk.disk import Disk
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.status.live_page import LivePage
from broker_store.engine.status.store_state import StoreFile
from broker_store.errors import MisuseError
from broker_store.facts.starts import CutMessagesOfQueue, WholeMessagesCut
from broker_store.messages import Message
from mqadmin import audit
from mqadmin.cluster.current import install_cluster
from mqadmin.management import plain
from mqadmin.management.base import cell, printable, table
from mqadmin.management.commands import demo
from mqadmin.process import run_file
from mqadmin.views.store import verb as store_verb_files
from mqadmin.web import server, tokens
from tests.support import stores
from tests.support.fake_cluster import FakeCluster
from tests.support.hand_store import Clock, HandStore, opened, small_settings


@pytest.fixture
def cluster():
    cluster = FakeCluster()
    install_cluster(cluster)
    yield cluster
    install_cluster(None)


@pytest.fixture
def clean_store(tmp_path):
    return stores.unpack("golden-clean", tmp_path)


@asynccontextmanager
async def broker(directory):
    """The dashboard on the socket of a data directory."""
    serving = await server.serve(asyncio.get_running_loop(), "127.0.0.1", 0, directory / "run" / "web.sock")
    try:
        yield
    finally:
        await serving.stop()


async def run(directory, *arguments, **options) -> str:
    """What a command prints; it runs in a thread, since the broker it asks is on this loop."""
    output = io.StringIO()
    await asyncio.to_thread(call_command, *arguments, "--data", str(directory), stdout=output, **options)
    return output.getvalue()


@pytest.mark.parametrize("arguments", [("topic", "show", "../x"), ("topic", "create", "bad name")])
async def test_a_name_that_is_not_allowed_is_refused_in_words(tmp_path, arguments):
    with pytest.raises(CommandError) as refused:
        await run(tmp_path, *arguments)
    assert (
        str(refused.value)
        == "The specified topic contains illegal characters, allowing only letters, digits and % | - _."
    )


async def test_without_a_broker_a_command_says_how_to_start_one(tmp_path):
    with pytest.raises(CommandError, match="runbroker"):
        await run(tmp_path, "topic", "list")


def test_an_answer_of_another_version_is_said_to_be_one(clean_store, monkeypatch):
    monkeypatch.setattr("mqadmin.views.store.index.verb.explain_in", lambda *asked: [{"step": "later"}])
    words = ("store", "explain", "orders", "key", "--store", str(clean_store))
    with pytest.raises(CommandError, match="of another version .*no type has the fields step"):
        offline(*words)
    assert json.loads(offline(*words, "--json")) == [{"step": "later"}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("whole", "searched_to"), [(0, None), (1, None), (3, None), (0, 4096)])
async def test_whole_messages_that_a_start_cut_are_told_where_there_are_any(
    whole, searched_to, cluster, tmp_path, monkeypatch
):
    """REST gives the count as text: "0" was shown as some."""
    queue = CutMessagesOfQueue(topic="orders", queue_id=2, first=5, last=4 + whole, messages=whole)
    cut = WholeMessagesCut(whole=whole, queues=[queue][:whole], queues_left_out=0, searched_to=searched_to)
    report = cluster.store.recovery()
    report = replace(report, cut=replace(report.cut, messages=cut))
    monkeypatch.setattr(cluster.store, "recovery", lambda: report)
    async with broker(tmp_path):
        shown = await run(tmp_path, "store", "recovery")
    lines = [
        line for line in shown.splitlines() if "whole" in line or "orders/2" in line or "more queues" in line
    ]
    assert (
        lines
        == {
            0: [],
            1: ["cut whole   1 message, kept in lost+found:", "  orders/2, offset 5: 1 message"],
            3: ["cut whole   3 messages, kept in lost+found:", "  orders/2, offset 5 to 7: 3 messages"],
        }[whole]
        if searched_to is None
        else [
            "cut whole   0 messages, kept in lost+found, and perhaps more from log offset 4,096 on, "
            "which was not scanned"
        ]
    )


@pytest.mark.django_db(transaction=True)
async def test_topics_are_listed_made_changed_and_deleted(cluster, tmp_path):
    async with broker(tmp_path):
        listed = await run(tmp_path, "topic", "list")
        assert "page-views" in listed
        assert "5,220,947" in listed
        assert len(json.loads(await run(tmp_path, "topic", "list", "--json", "--kind", "dlq"))) == 1
        with pytest.raises(CommandError, match="conflict"):
            await run(tmp_path, "topic", "create", "orders")
        await run(tmp_path, "topic", "update", "orders", "--queues", "12", "--perm", "r", "--type", "FIFO")
        assert cluster.asked[-1] == (
            "update_topic",
            "orders",
            {"read_queues": 12, "write_queues": 12, "perm": 4, "message_type": "FIFO"},
        )
        with pytest.raises(CommandError, match="invalid choice: 'LITE'"):
            await run(tmp_path, "topic", "create", "light", "--type", "LITE")
        with pytest.raises(CommandError, match="confirm"):
            await run(tmp_path, "topic", "delete", "orders")
        await run(tmp_path, "topic", "delete", "orders", "--confirm", "orders")
        assert cluster.asked[-1] == ("delete_topic", "orders")


@pytest.mark.django_db(transaction=True)
async def test_invisible_messages_are_listed_with_the_counts_of_pops(cluster, tmp_path, monkeypatch):
    async with broker(tmp_path):
        listed = await run(tmp_path, "group", "pops", "billing", "--limit", "3")
        rows = listed.splitlines()
        assert (
            rows[0].split()[:4] == ["COMES", "AGAIN", "GIVEN", "OUT"] and "%RETRY%billing_orders" in rows[1]
        )
        assert rows[4:] == [
            "3 of 52 invisible messages are shown.",
            "Since the start of the broker: 5,200 popped, 4,992 acknowledged, 156 came again, 26 given another "
            "time, 0 dropped, 5 acknowledgements too late or twice.",
            "2 pops wait.",
        ]
        monkeypatch.setattr("mqadmin.management.commands.group.MAX_LIMIT", 20)  # it asks page by page
        whole = json.loads(await run(tmp_path, "group", "pops", "billing", "--limit", "45", "--json"))
        assert [one["offset"] for one in whole["messages"]] == list(range(40, 85))
        assert (whole["counts"]["invisible"], whole["next"]) == (52, "45")
        nothing = await run(tmp_path, "group", "pops", "search-index")
        assert nothing.startswith("No message is invisible to this group.")
        shown = await run(tmp_path, "group", "show", "billing")
        assert re.search(r"^pops.came_again +156$", shown, re.M)


@pytest.mark.django_db(transaction=True)
async def test_offsets_move_only_with_confirmation(cluster, tmp_path):
    async with broker(tmp_path):
        preview = await run(tmp_path, "group", "reset-offset", "billing", "orders", "earliest")
        assert "Nothing was moved" in preview
        assert cluster.asked == []
        await run(
            tmp_path,
            "group",
            "reset-offset",
            "billing",
            "orders",
            "offset",
            "5",
            "--queue",
            "1",
            "--confirm",
            "billing",
        )
        assert cluster.asked == [("reset_offset", "billing", "orders", "offset", 5, 1)]


async def test_messages_are_sent_found_and_followed(cluster, tmp_path):
    async with broker(tmp_path):
        sent = await run(
            tmp_path,
            "message",
            "send",
            "orders",
            "hello",
            "--tag",
            "T",
            "--key",
            "k1",
            "--property",
            "a=b",
            "--json",
        )
        assert json.loads(sent)["queue_offset"] == "17"
        (message,) = cluster.asked[-1][2]
        assert (message.body, message.tag, message.keys, message.properties) == (
            b"hello",
            "T",
            ("k1",),
            {"a": "b"},
        )
        assert "1200 messages" in await run(tmp_path, "message", "send", "orders", "x", "--count", "1200")
        assert sum(len(asked[2]) for asked in cluster.asked[1:]) == 1200
        found = json.loads(await run(tmp_path, "message", "get", "--topic", "orders", "--key", "k", "--json"))
        assert len(found) == 2
        errors = io.StringIO()
        with pytest.raises(CommandError, match="no message was found"):
            await run(tmp_path, "message", "get", "--topic", "orders", "--key", "damaged", stderr=errors)
        assert errors.getvalue().startswith("There may be more: the record at 40,000 of the log is damaged")
        # A page of REST has at most 100, a command as many as it was asked for.
        placed = json.loads(
            await run(
                tmp_path,
                "message",
                "get",
                "--topic",
                "orders",
                "--queue",
                "2",
                "--offset",
                "7",
                "--limit",
                "250",
                "--json",
            )
        )
        assert [int(message["queue_offset"]) for message in placed] == list(range(7, 257))
        with pytest.raises(CommandError, match="100"):
            await run(tmp_path, "message", "get", "--topic", "orders", "--limit", "101")
        chosen = await run(
            tmp_path, "message", "get", "--topic", "orders", "--sql", "KEYS ENDSWITH '0'", "--json"
        )
        assert {message["keys"][1][-1] for message in json.loads(chosen)} == {"0"}
        errors = io.StringIO()
        odd = await run(
            tmp_path, "message", "get", "--topic", "orders", "--sql", "KEYS ENDSWITH '0' no more", "--json",
            stderr=errors,
        )  # fmt: skip
        assert odd == chosen and "the text from there on is ignored" in errors.getvalue()
        with pytest.raises(CommandError, match="--sql needs an expression"):
            await run(tmp_path, "message", "get", "--topic", "orders", "--sql", " ")
        with pytest.raises(CommandError, match="cannot be compared"):
            await run(tmp_path, "message", "get", "--topic", "orders", "--sql", "a > 'x'")
        with pytest.raises(CommandError, match="--sql needs --topic"):
            await run(tmp_path, "message", "get", "--sql", "a > 5")
        followed = await run(
            tmp_path, "message", "tail", "orders", "--from-start", "--queue", "2", "--count", "5", "--json"
        )
        assert [json.loads(line)["queue_offset"] for line in followed.splitlines()] == [
            "0",
            "1",
            "2",
            "3",
            "4",
        ]
        with pytest.raises(CommandError, match="topic_not_found"):
            await run(tmp_path, "message", "tail", "nowhere")


async def test_the_store_is_shown_by_the_running_broker(cluster, tmp_path):
    async with broker(tmp_path):
        assert json.loads(await run(tmp_path, "store", "status", "--json"))["state"] == "running"
        cluster.signs = {"refused": {"WAITED_TOO_LONG": 144}, "failed_jobs": None}
        assert (await run(tmp_path, "store", "condition")).splitlines()[:2] == [
            "bad: 144 sends were refused in the last 5 minutes, for “waited too long”. And 1 more.",
            "bad      144 sends were refused in the last 5 minutes, for “waited too long”.",
        ]
        status = await run(tmp_path, "store", "status")
        assert re.search(rf"^positions.wrote +{cluster.wrote():,}$", status, re.MULTILINE)
        assert re.search(r"^sizes.index_slots +5,000,000$", status, re.MULTILINE)
        laid = await run(tmp_path, "store", "layout", "orders")
        assert re.search(r"^log.end +[0-9]{1,3}(,[0-9]{3})+$", laid, re.MULTILINE)
        assert len(json.loads(await run(tmp_path, "store", "files", "--json", "--kind", "index"))) == 2
        assert re.search(
            r"^commitlog .* map .* writing ",
            await run(tmp_path, "store", "files", "--kind", "commitlog"),
            re.MULTILINE,
        )
        place = await run(tmp_path, "store", "journey", "orders", "0", "41")
        assert "offset 41" in place and place == await run(
            tmp_path, "store", "journey", "orders", "00", "0041"
        )
        with pytest.raises(CommandError, match="no message at offset 999,999,999 "):
            await run(tmp_path, "store", "journey", "orders", "0", "999999999")
        assert "slot 2734551" in await run(tmp_path, "store", "explain", "orders", "order-1")
        assert "20,000,000" in await run(tmp_path, "store", "index")
        picture = await run(tmp_path, "store", "slots")
        assert (
            "Index file 20251123050000000" in picture
            and len([line for line in picture.splitlines() if "█" in line or "▇" in line]) >= 50
        )
        assert (
            json.loads(await run(tmp_path, "store", "slots", "20251122090000000", "--json"))["name"]
            == "20251122090000000"
        )
        told = await run(tmp_path, "store", "chains")
        assert "31 of orders#customer-9; 8 of hash 77" in told and "1 chain is not whole" in told
        with pytest.raises(CommandError, match="no index file"):
            await run(tmp_path, "store", "chains", "20010101000000000")
        with pytest.raises(CommandError, match="17 digits"):
            await run(tmp_path, "store", "slots", "../commitlog")
        assert "record of 286 bytes" in await run(tmp_path, "store", "hex", "237")


async def test_the_way_of_a_send_is_shown_by_the_running_broker(cluster, tmp_path):
    async with broker(tmp_path):
        told = await run(tmp_path, "store", "dispatch")
        assert told.startswith("The slowest is “Flushed”") and "22100" in told.replace(",", "")
        assert json.loads(await run(tmp_path, "store", "dispatch", "--json"))["slowest"] == "flushed"
        path = await run(tmp_path, "store", "write-path")
        assert [line.split()[0] for line in path.splitlines()[2:8]] == [
            "gather",
            "append",
            "dispatch",
            "flush",
            "answer",
            "all",
        ]
        assert "WAITED_TOO_LONG" in path
        assert (
            json.loads(await run(tmp_path, "store", "flush", "--json"))["round"]["last_duration_ms"] == 38.2
        )
        assert "restart.estimated_ms" in await run(tmp_path, "store", "exposure")


def test_only_a_running_broker_knows_the_write_path_but_files_tell_the_next_start(clean_store, tmp_path):
    for verb in ("flush", "write-path"):
        with pytest.raises(CommandError, match="only a running broker has these facts"):
            offline("store", verb, "--store", clean_store)
    told = json.loads(offline("store", "exposure", "--store", clean_store, "--json"))
    assert (told["state"], told["start"], told["losses"]) == ("closed", None, None)
    assert (
        json.loads(offline("store", "dispatch", "--store", clean_store, "--json"))["sinks"]["queues"][
            "lag_bytes"
        ]
        == 0
    )
    root = stores.unpack("golden-crash", tmp_path)
    crashed = json.loads(offline("store", "exposure", "--store", root, "--json"))
    assert crashed["state"] == "crashed"
    assert (
        crashed["restart"]["rescan_bytes"] == crashed["restart"]["log_end"] - crashed["start"]["position"] > 0
    )
    race = json.loads(offline("store", "dispatch", "--store", root, "--json"))
    assert race["end"] == crashed["restart"]["log_end"] and race["sinks"]["flushed"]["position"] is None


def test_a_store_of_the_real_broker_is_read_without_a_broker(clean_store):
    status = json.loads(offline("store", "status", "--store", clean_store, "--json"))
    assert status["state"] == "closed"
    assert status["positions"]["wrote"] == 24_400
    (index,) = json.loads(offline("store", "index", "--store", clean_store, "--json"))
    assert (index["entries"], index["slots"]) == (82, 1000)
    steps = json.loads(offline("store", "explain", "TopicX", "k1", "--store", clean_store, "--json"))
    assert [step["message_id"] for step in steps if step.get("kept")] == [
        json.loads(offline("store", "hex", "0", "--store", clean_store, "--json"))["message"]["message_id"]
    ]
    assert "the message has this key" in offline("store", "explain", "TopicX", "k1", "--store", clean_store)
    assert "of 1,000 slots are used" in offline("store", "slots", "--store", clean_store)
    chains = json.loads(offline("store", "chains", index["name"], "--store", clean_store, "--json"))
    assert (chains["used"], chains["entries"], sum(row["slots"] for row in chains["lengths"])) == (
        index["slots_used"],
        82,
        1000,
    )
    assert "82 entries in 1,000 slots" in offline("store", "chains", "--store", clean_store)
    first = json.loads(offline("store", "hex", "0", "--store", clean_store, "--json"))
    assert (first["message"]["topic"], first["message"]["body"]) == ("TopicX", "hello")
    assert first["hex"].startswith("000000eddaa320a7")
    with pytest.raises(CommandError, match="not in the commit log"):
        offline("store", "hex", "99999999999", "--store", clean_store)


def test_bytes_of_every_file_are_told_with_their_fields_and_where_they_lead(clean_store):
    within = offline("store", "hex", "3", "--store", clean_store)
    assert (
        "record of 237 bytes: TopicX, queue 1, offset 0" in within
        and "→ --kind consumequeue --topic TopicX --queue 1 --unit 0" in within
    )
    unit = offline(
        "store",
        "hex",
        "--kind",
        "consumequeue",
        "--topic",
        "TopicX",
        "--queue",
        "1",
        "--unit",
        "1",
        "--store",
        clean_store,
    )
    assert (
        "consumequeue/TopicX/1/00000000000000000000, 320 bytes from 20 on" in unit
        and "2,291  → --kind commitlog --offset 2291" in unit
    )
    entry = json.loads(
        offline(
            "store",
            "hex",
            "--kind",
            "index",
            "--entry",
            "2",
            "--length",
            "20",
            "--store",
            clean_store,
            "--json",
        )
    )
    assert [piece["sentence"] for piece in entry["pieces"]] == ["Of TopicX#k1."] and len(entry["hex"]) == 40
    assert "physic msg timestamp" in offline("store", "hex", "--kind", "checkpoint", "--store", clean_store)
    with pytest.raises(CommandError, match="blank"):
        offline("store", "hex", "--kind", "consumequeue", "--store", clean_store)
    with pytest.raises(CommandError, match="1 to 65536 bytes"):
        offline("store", "hex", "--length", "70000", "--store", clean_store)


def test_check_store_says_sound_of_a_sound_store_and_ends_with_1_for_a_damaged_one(clean_store):
    assert json.loads(offline("check_store", clean_store, "--json"))["ok"] is True
    log = clean_store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[90] ^= 1
    log.write_bytes(data)
    output = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("check_store", str(clean_store), "--json", stdout=output)
    assert ended.value.code == 1
    report = json.loads(output.getvalue())
    assert report["ok"] is False
    assert report["findings"][0]["file"] == "commitlog/00000000000000000000"


def test_check_store_takes_a_data_directory_as_other_commands_do(tmp_path):
    with opened(tmp_path / "store", Clock()) as store:
        store.appender.put(Message("T", 0, b"x", b""))
    report = json.loads(offline("check_store", "--data", tmp_path, "--json"))
    assert (report["store"], report["ok"], report["counts"]["records"]) == (str(tmp_path / "store"), True, 1)


def test_check_store_names_bytes_of_files_that_are_gone_as_missing(tmp_path):
    """They were called damaged."""
    root = tmp_path / "store"
    with opened(root, Clock()) as store:
        while len(list((root / "commitlog").iterdir())) < 3:
            store.appender.put(Message("T", 0, bytes(3000), b""))
    sorted((root / "commitlog").iterdir())[1].unlink()
    shutil.rmtree(root / "consumequeue")
    output = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("check_store", str(root), "--plan", stdout=output)
    assert re.search(
        r"^  [1-9][0-9,]* missing or damaged bytes held records that no queue names$",
        output.getvalue(),
        re.MULTILINE,
    ), output.getvalue()


def test_check_store_plans_a_repair_and_does_it_when_told(tmp_path, settings, monkeypatch):
    root = tmp_path / "store"
    with opened(root, Clock()) as store:
        places = [
            store.appender.put(Message("T", 0, b"%d" % number * 60, b"KEYS\1k%d\2" % number)).log_offset
            for number in range(9)
        ]
    log = root / "commitlog" / "00000000000000000000"
    content = bytearray(log.read_bytes())
    content[places[4] + 100] ^= 1
    log.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        offline("check_store", root, "--plan")
    assert ended.value.code == 1 and log.read_bytes() == content
    output = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("check_store", str(root), "--plan", "--json", stdout=output)
    report = json.loads(output.getvalue())
    (finding,) = report["findings"]
    assert (finding["grade"], finding["file"], finding["offset"]) == (
        "lost",
        "commitlog/00000000000000000000",
        places[4],
    )
    assert finding["means"] and finding["repair"] and report["grades"]["lost"] == 1
    assert [action["action"] for action in report["plan"]["actions"]] == [
        "mark",
        "checkpoint",
        "move",
        "bridge",
        "move",
        "rebuild",
    ]
    assert report["plan"]["actions"][2]["file"] == "config/storeTimes.json"
    (lost,) = report["plan"]["lost"]["ranges"]
    assert (
        lost["topic"],
        lost["queue_id"],
        lost["first"],
        lost["last"],
        report["plan"]["lost"]["messages"],
    ) == ("T", 0, 4, 4, 1)
    bridge = report["plan"]["actions"][3]
    assert (bridge["file"], bridge["offset"], bridge["bytes"]) == (
        "commitlog/00000000000000000000",
        places[4],
        places[5] - places[4],
    )

    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "broker.json").write_text(json.dumps({"store": str(root)}))
    live = LivePage(Disk(), tmp_path / "run" / "live")
    live.publish(0, 0, 0, 0, 0, 0, "running")
    with pytest.raises(CommandError, match="stop it"):
        offline("check_store", root, "--apply")
    live.close()

    run, output, before = Repair.run, io.StringIO(), []
    monkeypatch.setattr(
        Repair, "run", lambda repair: (before.append((output.getvalue(), log.read_bytes())), run(repair))
    )
    call_command("check_store", str(root), "--apply", stdout=output)
    ((said_before, log_before),) = before
    assert (
        "T/0: 1, offsets 4 to 4" in said_before
        and "What the repair does:" in said_before
        and "Sound" not in said_before
    )
    assert log_before == content
    said_after = output.getvalue().removeprefix(said_before)
    assert (
        said_after.startswith("The repair is done. What was changed is kept in ") and "Sound: " in said_after
    )
    assert json.loads(offline("check_store", root, "--json"))["findings"] == []
    assert "nothing to repair" in offline("check_store", root, "--apply")
    with opened(root, Clock()) as store:
        assert store.reads.max_offset("T", 0) == 9 and store.reads.query_keys("T", "k8", 9).offsets == [
            places[8]
        ]


def test_check_store_is_told_the_delay_levels_or_finds_those_of_the_running_broker(tmp_path, settings):
    root = tmp_path / "store"
    with opened(root, Clock(), message_delay_level="7s 3m") as store:
        store.appender.put(Message("SCHEDULE_TOPIC_XXXX", 1, b"later", b"DELAY\x012\2REAL_TOPIC\1T0\2"))
    with pytest.raises(SystemExit):
        offline("check_store", root)
    assert "Sound" in offline("check_store", root, "--delay-levels", "7s 3m")
    with pytest.raises(CommandError, match="messageDelayLevel"):
        offline("check_store", root, "--delay-levels", "soon")
    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "broker.json").write_text(json.dumps({"store": str(root), "delay_levels": "7s 3m"}))
    assert "Sound" in offline("check_store", root)


def test_check_store_knows_the_delay_levels_of_the_last_start(tmp_path, settings):
    """A stop removes the run file: a sound store was called damaged, and a repair had messages come at other
    times."""
    settings.DATA_DIRECTORY = tmp_path
    root = tmp_path / "store"
    store = HandStore(
        dataclasses.replace(small_settings(root), message_delay_level="7s 3m"),
        records=StartRecords(tmp_path / "recoveries", root),
    ).begin()
    store.appender.put(Message("SCHEDULE_TOPIC_XXXX", 1, b"later", b"DELAY\x012\2REAL_TOPIC\1T0\2"))
    store.close()
    assert "Sound" in offline("check_store", root)


def test_the_only_log_file_has_the_length_that_the_last_start_noted(tmp_path, settings):
    """A broker that was stopped in order leaves no run file, and nothing beside the file says how long it
    should be."""
    settings.DATA_DIRECTORY = tmp_path
    root = tmp_path / "store"
    settings_of = small_settings(root)
    store = HandStore(settings_of, records=StartRecords(tmp_path / "recoveries", root)).begin()
    for number in range(9):
        store.appender.put(Message("T", 0, b"x", b"KEYS\1k%d\2" % number))
    store.close()
    (log,) = (root / "commitlog").iterdir()
    with open(log, "ab") as file:
        file.write(b"\1" * 100)
    with pytest.raises(SystemExit):
        offline("check_store", root, "--plan")
    assert "Sound" in offline("check_store", root, "--apply")
    assert log.stat().st_size == settings_of.mapped_file_size_commit_log
    with opened(root, Clock()) as again:
        assert again.reads.max_offset("T", 0) == 9


def test_a_repair_makes_files_of_the_size_that_the_last_broker_was_told(tmp_path, settings):
    root = tmp_path / "store"
    with opened(root, Clock()) as store:
        for number in range(9):
            store.appender.put(Message("T", 0, b"x", b"KEYS\1k%d\2" % number))
    for path in (root / "index").iterdir():
        path.unlink()
    assert "no file shows how large" in offline("check_store", root, "--plan")
    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "run").mkdir()
    told = {
        "max_hash_slot_num": 16,
        "max_index_num": 64,
        "mapped_file_size_commit_log": 16384,
        "mapped_file_size_consume_queue": 400,
    }
    seen = {name: told[name] for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue")}
    (tmp_path / "run" / "broker.json").write_text(
        json.dumps({"store": str(root), "store_settings": seen, "inspect": True})
    )
    assert "no file shows how large" in offline("check_store", root, "--plan"), (
        "who only looks at a store knows no more than its files"
    )
    (tmp_path / "run" / "broker.json").write_text(json.dumps({"store": str(root), "store_settings": told}))
    assert "no file shows" not in offline("check_store", root, "--apply")
    (made,) = (root / "index").iterdir()
    assert made.stat().st_size == 40 + 16 * 4 + 64 * 20
    with opened(root, Clock()) as store:
        assert len(store.reads.query_keys("T", "k8", 9).offsets) == 1


def test_a_directory_that_is_no_store_is_said_to_be_none(tmp_path):
    with pytest.raises(CommandError, match="no store"):
        offline("store", "status", "--store", tmp_path)


@pytest.mark.django_db
def test_tokens_are_made_listed_and_revoked():
    text = offline("token", "create", "ci", "--role", "operator").strip()
    assert tokens.TABLE.caller(text, 0).role == "operator"
    (listed,) = json.loads(offline("token", "list", "--json"))
    assert text not in json.dumps(listed)
    offline("token", "revoke", str(listed["id"]))
    assert tokens.TABLE.caller(text, 0) is None
    with pytest.raises(CommandError, match="no token"):
        offline("token", "revoke", "999999")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--role", "admin"], "name: This field cannot be blank"),
        (["x" * 200], "name: Ensure this value has at most 60 characters (it has 200)"),
        (["x\ny"], "name: A name has printable characters only"),
        (["z", "--days", "99999999999"], "days: A token is good for 1 to 3,650 days"),
        (["z", "--days=-1"], "days: A token is good for 1 to 3,650 days"),
        (["z", "--days", "0"], "days: A token is good for 1 to 3,650 days"),
    ],
)
def test_a_token_with_a_wrong_value_is_not_made_and_the_value_is_named(arguments, said):
    with pytest.raises(CommandError) as refused:
        offline("token", "create", *arguments)
    assert str(refused.value) == f"no token is created: {said} (invalid)"
    assert not tokens.ApiToken.objects.exists()
    assert audit.read(LogEntry.objects.get()).outcome == "invalid"


@pytest.mark.django_db
def test_a_token_beyond_their_number_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 0)
    with pytest.raises(CommandError, match="0 tokens are in use; revoke some"):
        offline("token", "create", "x")


def offline(*arguments) -> str:
    output = io.StringIO()
    call_command(*[str(argument) for argument in arguments], stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_tables_are_aligned_with_numbers_to_the_right():
    assert table(["NAME", "N"], [["a", "1"], ["long", "1,000"]]) == "NAME      N\na         1\nlong  1,000"
    assert table(["NAME"], [["x" * 200]]) == "NAME\n" + "x" * 79 + "…"


def test_what_is_not_known_is_a_dash_and_nothing_steers_the_terminal():
    assert cell(None) == "–"
    assert cell(0) == "0"
    assert (cell([]), cell("1804221", "checkpoint_position"), cell("20261121145417578", "name")) == (
        "none",
        "1,804,221",
        "20261121145417578",
    )
    assert printable("a\x1b[31m\n") == "a\\x1b[31m\\n"


@pytest.mark.parametrize(
    "words",
    [("topic", "show"), ("topic", "delete"), ("group", "show"), ("message", "tail"), ("message", "send")],
)
@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "x" * 300, ""])
def test_names_that_are_paths_are_refused_before_anybody_is_asked(words, name):
    with pytest.raises(CommandError, match="characters|longer|blank"):
        call_command(*words, name)


class _Shop:
    """A producer whose broker answers in turns of the demo as `answers` says; then the demo is
    stopped."""

    def __init__(self, answers: list[Exception | None], stopped: asyncio.Event):
        self.answers, self.stopped = answers, stopped

    async def send(self, topic, message, ordering_key=None):
        answer = self.answers.pop(0)
        if not self.answers:
            self.stopped.set()
        if answer is not None:
            raise answer


async def _demo(monkeypatch, answers: list[Exception | None]) -> tuple[int, list[str]]:
    """One message a turn, none a transaction: how many were sent, and what was printed."""
    monkeypatch.setattr(demo, "SHARES", ((demo.VIEWS, 1.0),))
    monkeypatch.setattr(demo, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(demo, "RETRY_SECONDS", 0.001)
    counts, told, stopped = demo.Counts(), [], asyncio.Event()
    await demo._send(_Shop(answers, stopped), 1_000, None, counts, stopped, told.append)
    return counts.sent, told


async def test_the_demo_goes_on_when_its_broker_is_started_again(monkeypatch):
    gone = [ConnectionLost("no connection"), NoRouteError("no route"), RequestTimeout("no answer")]
    sent, told = await _demo(monkeypatch, [None, *gone, None, None])
    assert sent == 3 and told == [
        "The broker does not answer (no connection); the demo goes on when it is back.",
        "The broker is back.",
    ]


async def test_the_demo_ends_when_no_broker_ever_answered_and_with_any_other_error(monkeypatch):
    with pytest.raises(ConnectionLost):
        await _demo(monkeypatch, [ConnectionLost("no connection"), None])
    with pytest.raises(ValueError, match="its own"):
        await _demo(monkeypatch, [None, ValueError("its own"), None])


@pytest.mark.parametrize(
    ("mapped", "readers", "said"),
    [
        (None, None, None),
        (False, 0, "nothing"),
        (True, 0, "map"),
        (False, 1, "reader"),
        (True, 1, "map reader"),
    ],
)
def test_who_holds_a_file_is_said_and_unknown_when_only_its_writer_knows(mapped, readers, said):
    file = StoreFile(kind="commitlog", name="0", base=0, size=1, mapped=mapped, readers=readers)
    assert store_verb_files._held(file) == said


def test_a_command_whose_database_fails_says_so_in_a_sentence(monkeypatch):
    """It ended in 70 lines of traceback."""

    def no_table(*arguments):
        raise OperationalError("no such table: mqadmin_apitoken")

    monkeypatch.setattr(tokens.ApiToken.objects.__class__, "get_queryset", no_table)
    with pytest.raises(
        CommandError,
        match=r"the dashboard's database cannot be used: no such table: mqadmin_apitoken\. .*data directory",
    ):
        offline("token", "list")


@pytest.mark.parametrize(
    "error", [IntegrityError("UNIQUE constraint failed: auth_user.username"), DataError("value too long")]
)
def test_a_value_that_the_database_refuses_is_no_database_that_cannot_be_used(error):
    """The name of an existing user was answered with the advice to restore the database."""
    assert plain.failure_of(error) == f"the dashboard's database refuses this: {error}"


def test_check_store_says_that_log_files_have_room_for_records_to_come(clean_store):
    output = io.StringIO()
    call_command("check_store", str(clean_store), stdout=output)
    assert (
        " bytes of log files, which are made with room for records to come" in output.getvalue()
        and "log bytes" not in output.getvalue()
    )


def test_credentials_of_a_file_are_read_or_named_as_wrong(tmp_path):
    file = tmp_path / "key.json"
    assert run_file.credentials(file) is None and run_file.own_credentials(tmp_path) is None
    file.write_text('{"accessKey": "shop", "secretKey": "a-secret"}')
    assert run_file.credentials(file) == ("shop", "a-secret", "")
    assert "a-secret" not in repr(run_file.credentials(file))
    for wrong in ("", "[]", '{"accessKey": "shop"}', '{"accessKey": "shop", "secretKey": " "}', "\udcff"):
        file.write_bytes(wrong.encode("utf-8", "surrogateescape"))
        with pytest.raises(MisuseError, match="key.json: expected"):
            run_file.credentials(file)
