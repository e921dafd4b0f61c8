"""The whole program in a process of its own: what REST, commands and jobs do to a real broker and its
store."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.core.management import call_command

from broker_store.client import PushConsumer
from mqadmin.process import run_file
from mqadmin.process.children import Process, processes
from mqadmin.process.rest_client import RestClient, RestError
from tests.support.ports import free_port, server_ports

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
SMALL_FILES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=4000",
)


class Running:
    """A runbroker on a fresh data directory."""

    def __init__(self, data: Path):
        self.data = data
        (nameserver, broker), self.web_port = server_ports(), free_port()
        command = [
            sys.executable,
            "manage.py",
            "runbroker",
            "--data",
            str(data),
            "--broker-port",
            str(broker),
        ]
        command += ["--nameserver-port", str(nameserver), "--web-port", str(self.web_port)]
        command += ["--grpc-port", "0"]
        for setting in SMALL_FILES:
            command += ["--set", setting]
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("REDIS_URL", "BROKER_DATA_DIR", "DJANGO_SETTINGS_MODULE")
        }
        self.output = (data.parent / "output").open("w+b")
        self.process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=self.output, stderr=self.output
        )

    def said(self) -> str:
        return (self.data.parent / "output").read_text()

    def until(self, holds, what: str):
        """What `holds()` gives as soon as it is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := holds()):
            assert time.monotonic() < deadline, f"{what}\n{self.said()[-3000:]}"
            assert self.process.poll() is None, self.said()[-3000:]
            time.sleep(0.02)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("whole") / "data")
    try:
        running.until(lambda: "READY" in running.said(), "it did not get ready")
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running.output.close()


@pytest.fixture
def broker(running):
    with RestClient.of_data_directory(running.data) as client:
        yield client


def command(running, *arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, "--data", str(running.data), stdout=output, stderr=io.StringIO())
    return output.getvalue()


def ask(running, method: str, path: str, token: str, body=None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", running.web_port, timeout=20)
    try:
        connection.request(
            method, "/api/v1" + path, body and json.dumps(body), {"Authorization": f"Bearer {token}"}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def job(running, broker, kind: str, *, confirm: str | None = None, **parameters) -> dict:
    """A job's end."""
    started = broker.post("/jobs", {"kind": kind, "parameters": parameters, "confirm": confirm})["id"]
    return running.until(
        lambda: (found := broker.get(f"/jobs/{started}"))["state"] not in ("waiting", "running") and found,
        f"{kind} did not end",
    )


def test_a_message_sent_by_a_command_is_found_by_key_by_id_and_at_its_place(running):
    receipt = json.loads(
        command(
            running,
            "message",
            "send",
            "Hello",
            "first message",
            "--tag",
            "greeting",
            "--key",
            "k-1",
            "--create",
            "--json",
        )
    )
    by_key = json.loads(command(running, "message", "get", "--topic", "Hello", "--key", "k-1", "--json"))
    assert [(message["body"], message["tag"]) for message in by_key] == [("first message", "greeting")]
    by_id = json.loads(command(running, "message", "get", receipt["message_id"], "--json"))
    assert by_id == by_key[0] | {"damage": None}
    followed = command(running, "message", "tail", "Hello", "--from-start", "--count", "1", "--json")
    assert json.loads(followed) == by_key[0]


def test_a_token_sends_reads_and_waits_over_the_hot_routes_until_it_is_revoked(running, broker):
    broker.post("/topics", {"name": "hot", "read_queues": 1, "write_queues": 1})
    issued = broker.post("/auth/tokens", {"name": "program", "role": "operator"})
    token = issued["token"]
    status, receipt = ask(
        running, "POST", "/topics/hot/messages", token, {"body": "one", "keys": ["a"], "queue_id": 0}
    )
    assert (status, receipt["queue_offset"]) == (200, "0")
    status, answer = ask(
        running,
        "POST",
        "/topics/hot/messages",
        token,
        [{"body": f"{n}"} for n in range(200)] + [{"body": "x", "queue_id": 7}],
    )
    assert (status, answer["stored"], answer["complete"]) == (200, 200, False)
    assert answer["results"][-1]["problem"]["code"] == "queue_not_found"
    assert (
        "from 1 to 100" in ask(running, "GET", "/topics/hot/queues/0/messages?limit=101", token)[1]["detail"]
    )
    page, bodies = {"next_offset": "1", "max_offset": "201"}, []
    while page["next_offset"] != page["max_offset"]:
        page = ask(
            running, "GET", f"/topics/hot/queues/0/messages?offset={page['next_offset']}&limit=100", token
        )[1]
        bodies += [message["body"] for message in page["messages"]]
    assert bodies == [str(n) for n in range(200)]
    assert page["max_offset"] == "201"
    began = time.monotonic()
    status, page = ask(running, "GET", "/topics/hot/queues/0/messages?offset=201&wait_ms=200", token)
    assert page["messages"] == []
    assert time.monotonic() - began >= 0.2
    assert ask(running, "GET", "/topics/missing/queues/0/messages", token)[1]["code"] == "queue_not_found"
    status, refused = ask(running, "POST", "/topics/new-by-rest/messages", token, {"body": "x"})
    assert (status, refused["code"]) == (404, "topic_not_found")  # to make a topic needs the role admin
    assert "new-by-rest" not in [topic["name"] for topic in broker.pages("/topics")]
    assert ask(running, "POST", "/topics/SCHEDULE_TOPIC_XXXX/messages", token, {"body": "x"})[0] in (400, 403)
    broker.delete(f"/auth/tokens/{issued['id']}")
    assert ask(running, "GET", "/topics/hot/queues/0/messages", token)[0] == 401


def test_topics_and_groups_are_changed_and_the_trail_says_by_whom(running, broker):
    broker.post("/topics", {"name": "changing", "read_queues": 2, "write_queues": 2})
    assert broker.patch("/topics/changing", {"write_queues": 4, "read_queues": 4})["write_queues"] == 4
    broker.post("/groups", {"name": "readers", "retry_max_times": 3})
    assert broker.patch("/groups/readers", {"consume_enable": False})["consume_enable"] is False
    broker.delete("/groups/readers", confirm="readers")
    broker.delete("/topics/changing", confirm="changing")
    with pytest.raises(RestError) as gone:
        broker.get("/topics/changing")
    assert gone.value.code == "topic_not_found"
    actions = [
        (record["action"], record["name"], record["outcome"]) for record in broker.get("/audit")["items"]
    ]
    for expected in (
        ("create", "changing", "done"),
        ("update", "changing", "done"),
        ("delete", "readers", "done"),
        ("delete", "changing", "done"),
    ):
        assert expected in actions
    assert all(record["by"].startswith("local:") for record in broker.get("/audit")["items"])


def test_the_demo_lives_and_is_taken_away(running, broker):
    # It handles signals, so it wants a process of its own.
    lives = [sys.executable, "manage.py", "demo", "--data", str(running.data), "--seconds", "2", "--json"]
    done = subprocess.run(lives, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["sent"] > 100
    assert counts["demo-billing"] > 0
    assert 0 < counts["demo-reports"] < counts["sent"]
    assert int(broker.get("/groups/demo-reports")["lag"]) > 0
    command(running, "demo", "--clean")
    assert not [topic["name"] for topic in broker.pages("/topics") if "demo" in topic["name"]]
    assert not [group["name"] for group in broker.pages("/groups") if "demo" in group["name"]]


def test_jobs_check_rebuild_and_export_the_running_store(running, broker):
    broker.post("/topics", {"name": "exported", "read_queues": 2, "write_queues": 2})
    for at in range(0, 6_000, 1_000):
        broker.post(
            "/topics/exported/messages",
            [{"body": f"body {n}", "keys": [f"key-{n}"]} for n in range(at, at + 1_000)],
        )
    checked = job(running, broker, "check_store")
    assert (checked["state"], checked["result"]["ok"]) == ("done", True), checked
    rebuilt = job(running, broker, "rebuild_index")
    assert rebuilt["state"] == "done", rebuilt
    found = broker.get("/messages", topic="exported", key="key-17")["messages"]
    assert [message["body"] for message in found] == ["body 17"]
    exported = job(running, broker, "export_messages", topic="exported")
    assert (exported["state"], exported["result"]["messages"]) == ("done", 6_000), exported
    bodies = {json.loads(line)["body"] for line in broker.get(f"/jobs/{exported['id']}/file").splitlines()}
    assert bodies == {f"body {n}" for n in range(6_000)}
    middle = broker.get("/messages", topic="exported", key="key-3000")["messages"][0]["store_time_ms"]
    later = job(running, broker, "export_messages", topic="exported", begin_ms=middle, form="csv")
    assert 0 < later["result"]["messages"] <= 3_001 + 1_000


async def give_up_all(nameserver: str, group: str, topic: str, count: int) -> None:
    async with PushConsumer(group, nameserver, consume_from="first").subscribe(topic) as consumer:
        async for message in consumer:
            await consumer.give_up(message)
            count -= 1
            if not count:
                return


async def read_all(nameserver: str, group: str, topic: str, count: int) -> list[tuple]:
    async with PushConsumer(group, nameserver, consume_from="first").subscribe(topic) as consumer:
        found = []
        async for message in consumer:
            found.append((message.message_id, message.topic, message.tag, message.keys, message.body))
            if len(found) == count:
                return sorted(found)


def test_dead_letters_are_sent_again_once_to_their_group_or_their_topic(running, broker):
    nameserver = run_file.read(running.data).nameserver
    broker.post("/topics", {"name": "given-up", "read_queues": 2, "write_queues": 2})
    broker.post(
        "/topics/given-up/messages", [{"body": f"{n}", "keys": [f"k{n}"], "tag": "t"} for n in range(5)]
    )
    asyncio.run(give_up_all(nameserver, "tired", "given-up", 5))
    sent = asyncio.run(read_all(nameserver, "others", "given-up", 5))
    plan = broker.get("/groups/tired/dead-letters", most=3)
    assert {name: plan[name] for name in ("messages", "left", "sent_before", "topics", "goes_to", "complete")} == {
        "messages": "3", "left": "2", "sent_before": "0", "topics": [{"topic": "given-up", "messages": "3", "exists": True, "is_taken": True, "is_read": True}], "goes_to": "%RETRY%tired", "complete": True,
    }  # fmt: skip
    for confirm in (None, "", "tire"):
        with pytest.raises(RestError) as unconfirmed:
            job(running, broker, "resend_dead_letters", confirm=confirm, group="tired", limit=3)
        assert (unconfirmed.value.status, unconfirmed.value.code) == (409, "confirmation_needed")
    again = job(running, broker, "resend_dead_letters", confirm="tired", group="tired", limit=3)
    assert (again["state"], again["result"]) == (
        "done",
        {"sent": 3, "left": 2, "came_back": 0, "skipped": 0, "without_topic": 0},
    ), again
    # The command goes on where the job ended; the group gets them, and no other.
    told = command(running, "group", "resend-dead-letters", "tired")
    assert (
        "messages     2" in told
        and "sent before  3, which are skipped" in told
        and "Nothing was sent; to do it: --confirm tired" in told
    )
    assert broker.get("/groups/tired/dead-letters")["messages"] == "2"
    assert json.loads(
        command(running, "group", "resend-dead-letters", "tired", "--confirm", "tired", "--json")
    ) == {"sent": 2, "left": 0, "came_back": 0, "skipped": 0, "without_topic": 0}
    assert asyncio.run(read_all(nameserver, "tired", "given-up", 5)) == sent
    assert broker.get("/topics/given-up")["messages"] == "5"
    broker.post("/topics/given-up/messages", [{"body": "5"}])
    asyncio.run(give_up_all(nameserver, "tired", "given-up", 1))
    to_all = job(running, broker, "resend_dead_letters", confirm="tired", group="tired", to="topic")
    assert to_all["result"] == {"sent": 1, "left": 0, "came_back": 0, "skipped": 0, "without_topic": 0}
    assert broker.get("/topics/given-up")["messages"] == "7"
    with pytest.raises(RestError) as unknown:
        job(running, broker, "resend_dead_letters", confirm="nobody", group="nobody")
    assert unknown.value.status == 404
    broker.post("/groups", {"name": "nobody"})
    refused = job(running, broker, "resend_dead_letters", confirm="nobody", group="nobody")
    assert (refused["state"], refused["error"]) == ("failed", "group nobody has no dead letters")


def test_the_store_is_seen_from_inside_and_metrics_say_the_same(running, broker):
    facts = broker.get("/store")
    assert facts["positions"]["wrote"] == facts["positions"]["dispatched"]
    assert len(list(broker.pages("/store/files", kind="commitlog"))) >= 2
    assert broker.get("/store/index")["items"]
    assert broker.get("/recovery")["state"] == "done"
    steps = broker.post("/store/index/explain", {"topic": "Hello", "key": "k-1"})["items"]
    assert [step for step in steps if step.get("kept")]
    assert broker.get("/ready")["ready"] is True


def test_the_way_of_a_send_is_measured(running, broker):
    broker.post("/topics", {"name": "Measured"})
    before = broker.get("/store/write-path")
    for number in range(20):
        broker.post("/topics/Measured/messages", {"body": f"{number}"})
    after = broker.get("/store/write-path")
    assert int(after["groups"]) - int(before["groups"]) == 20
    assert after["whole"]["since_start"]["count"] - before["whole"]["since_start"]["count"] >= 20
    assert after["whole"]["lately"]["p50"] > 0
    assert (after["stages"]["flush"]["since_start"]["count"], after["stages"]["flush"]["share"]) == (0, 0)
    race = broker.get("/store/dispatch")
    assert race["sinks"]["dispatched"]["lag_bytes"] == "0"
    flushed = running.until(
        lambda: (
            (found := broker.get("/store/exposure"))["losses"]["power"]["acknowledged"]["bytes"] == "0"
            and found
        ),
        "the log was not flushed",
    )
    assert flushed["losses"]["power"]["acknowledged"] == {"bytes": "0", "messages": "0", "oldest_ms": "0"}
    assert flushed["start"]["file"].isdigit()
    # The broker stores messages of its own, too.
    assert int(race["end"]) <= int(flushed["restart"]["log_end"]) <= int(broker.get("/store/dispatch")["end"])
    assert broker.get("/store/flush")["interval_ms"] == "500"


def test_a_schedule_is_kept_and_a_process_of_its_own_looks_at_it(running, broker):
    made = broker.post("/pipeline/schedules", {"job": "audit", "cron": "0 0 1 1 *"})
    assert broker.get("/pipeline/schedules")["items"] == [made]
    forked = {one.name for one in _descendants(running.process.pid) if one.name.startswith("jobs-")}
    assert forked == {"jobs-default", "jobs-spark", "jobs-schedules"}
    assert "jobs-schedules ended" not in (running.data / "logs" / "jobs.log").read_text()


def test_a_stop_is_quick_leaves_no_process_and_a_sound_store(running):
    before = [one.pid for one in _descendants(running.process.pid)]
    assert len(before) >= 5  # Redis, what forks the workers, two of them, and what starts scheduled runs
    began = time.monotonic()
    assert running.stop() == 0, running.said()[-2000:]
    assert time.monotonic() - began < 8.0  # five on a machine that does nothing else
    assert [one for one in processes() if one.pid in before and not one.has_ended] == []
    output = io.StringIO()
    call_command("check_store", str(running.data / "store"), "--json", stdout=output)
    assert json.loads(output.getvalue())["ok"] is True


def _descendants(pid: int) -> list[Process]:
    found, parents = [], {pid}
    while below := [one for one in processes() if one.parent in parents]:
        found += below
        parents = {one.pid for one in below}
    return found
