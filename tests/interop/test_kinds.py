"""Retries, order, delay, broadcasting, traces and beginnings with unmodified clients: Java 5.x and 4.9, Go
v2."""

import asyncio
import json
import time

import pytest

from broker_store.client import Admin, Producer
from tests.interop import clients
from tests.interop.brokers import IS_APACHE, Broker
from tests.interop.lines import acknowledged, names, place
from tests.interop.positions import committed

KINDS = [clients.JAVA_5, clients.JAVA_4, "go"]


def program_of(kind, broker, tmp_path):
    clients.require(kind)
    return (
        clients.GoProgram(broker.nameserver)
        if kind == "go"
        else clients.JavaProgram(kind, broker.nameserver, tmp_path)
    )


@pytest.fixture(params=KINDS)
def program(request, broker, tmp_path, monkeypatch):
    """Each client in turn."""
    monkeypatch.setenv("HOME", str(tmp_path))  # where the Go client keeps a broadcasting group's offsets
    return program_of(request.param, broker, tmp_path)


def administer(broker, *topics, queues=2):
    """Make topics beforehand: consumers ask for a new topic's route only each 30 s."""

    async def make():
        async with Admin(broker.nameserver) as admin:
            for topic in topics:
                await admin.create_topic(topic, read_queues=queues, write_queues=queues)

    asyncio.run(make())


def tries_of(lines) -> list[int]:
    return [line["reconsume"] for line in lines if line.get("failed")]


def test_a_message_that_fails_as_often_as_its_consumer_allows_is_dead(program, broker):
    topic, group = names(program, "hopeless", "hopeless-readers")
    administer(broker, topic, f"%RETRY%{group}", f"%DLQ%{group}", queues=1)
    sent = acknowledged(program.run("send", topics=topic, n=2))
    consumer = program.start(
        "consume", group=group, topics=topic, fail_every=1, fail_times=100, level=1, max_reconsume=1
    )
    reader = program.start("consume", group=f"{group}-dead", topics=f"%DLQ%{group}")
    try:
        dead = [
            line
            for line in reader.until(lambda lines: len([line for line in lines if "key" in line]) == 2, 90)
            if "key" in line
        ]
        tried = consumer.finish(60)
        reader.finish(60)
    finally:
        consumer.kill()
        reader.kill()
    assert sorted(line["key"] for line in dead) == sorted(line["key"] for line in sent)
    assert sorted(tries_of(tried)) == [0, 0, 1, 1] and {line["reconsume"] for line in dead} == {2}
    assert {line.get("retry_topic", topic) for line in dead} == {topic}


@pytest.mark.parametrize("kind", [clients.JAVA_5, clients.JAVA_4, "go"])
def test_what_an_orderly_consumer_gives_up_is_dead_and_the_queue_goes_on(kind, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    topic, group = names(program, "strict", "strict-readers")
    administer(broker, topic, f"%DLQ%{group}", queues=1)
    sent = acknowledged(program.run("send", topics=topic, n=3))
    consumer = program.start(
        "consume", group=group, topics=topic, orderly="true", fail_every=1, fail_times=100, max_reconsume=2
    )
    reader = program.start("consume", group=f"{group}-dead", topics=f"%DLQ%{group}")
    try:
        dead = [
            line
            for line in reader.until(lambda lines: len({line.get("key") for line in lines} - {None}) == 3, 90)
            if "key" in line
        ]
        tried = consumer.finish(60)
        reader.finish(60)
    finally:
        consumer.kill()
        reader.kill()
    assert {line["key"] for line in dead} == {line["key"] for line in sent}
    keys = [line["key"] for line in tried if line.get("failed")]
    assert list(dict.fromkeys(keys)) == [line["key"] for line in sent], "one after the other"


def test_orderly_consumers_share_queues_and_the_locks_of_one_that_goes_are_taken_over(program, broker):
    topic, group = names(program, "locked", "locked-readers")
    administer(broker, topic, queues=4)
    consumers = [program.start("consume", group=group, topics=topic, orderly="true") for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.until_ready()
        acknowledged(program.run("send", topics=topic, n=80, mode="ordered", run="a"))
        first = {f"akey{number}" for number in range(80)}
        clients.until_together(consumers, lambda lines: first <= {line.get("key") for line in lines}, 90)
        consumers[0].finish(60)
        acknowledged(program.run("send", topics=topic, n=80, mode="ordered", run="b"))
        second = {f"bkey{number}" for number in range(80)}
        lines = consumers[1].until(lambda lines: second <= {line.get("key") for line in lines}, 120)
        consumers[1].finish(60)
    finally:
        for consumer in consumers:
            consumer.kill()
    for queue in range(4):
        offsets = [line["offset"] for line in lines if line.get("queue") == queue and line["key"] in second]
        assert offsets == sorted(offsets)


def test_a_message_with_a_delay_level_comes_no_earlier(program, broker):
    topic, group = names(program, "later", "later-readers")
    administer(broker, topic)
    consumer = program.start("consume", group=group, topics=topic)
    try:
        consumer.until_ready()
        began_ms = int(time.time() * 1000)
        sent = program.run("send", topics=topic, n=5, delay=1)
        assert {line["status"] for line in sent} == {"SEND_OK"}
        lines = consumer.until(lambda lines: len({line.get("key") for line in lines} - {None}) == 5, 60)
        consumer.finish(60)
    finally:
        consumer.kill()
    received = [line for line in lines if "key" in line]
    assert {line["key"] for line in received} == {line["key"] for line in sent} and {
        line["topic"] for line in received
    } == {topic}
    assert min(line["store_time"] for line in received) >= began_ms + 1_000


def until_java_wrote(home, group: str, offset: int, consumer) -> None:
    """Wait for Java's file of offsets, written each five seconds: at its end a client may leave out what it
    has just shown."""
    deadline = time.monotonic() + 60
    while f"}}:{offset}" not in java_wrote(home, group):
        assert time.monotonic() < deadline, list(home.glob("**/.rocketmq_offsets/**/*"))
        consumer.wait_for_change(0.2)


def java_wrote(home, group: str) -> str:
    for path in home.glob(f"**/.rocketmq_offsets/*/{group}/offsets.json"):
        try:
            return "".join(path.read_text().split())
        except FileNotFoundError:  # the client is putting a new one in its place
            return ""
    return ""


def test_a_broadcasting_consumer_goes_on_where_its_own_file_says_and_the_broker_knows_how_far(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    clients.require(*KINDS)
    broker = Broker(tmp_path / "data").start()
    try:
        for kind in KINDS:
            program = program_of(kind, broker, tmp_path)
            topic, group = names(program, "spread", "spread-readers")
            administer(broker, topic, queues=1)
            for run in "ab":
                acknowledged(program.run("send", topics=topic, n=10, run=run))
                consumer = program.start(
                    "consume", group=group, topics=topic, model="broadcasting", instance="b"
                )
                try:
                    wanted = {f"{run}key{number}" for number in range(10)}
                    consumer.until(
                        lambda lines, wanted=wanted: wanted <= {line.get("key") for line in lines}, 60
                    )
                    if kind != "go":
                        until_java_wrote(tmp_path, group, 10 if run == "a" else 20, consumer)
                    received = [line["key"] for line in consumer.finish(60) if "key" in line]
                finally:
                    consumer.kill()
                # Whose client writes its file before the last of a batch were handed over
                if run == "b" and kind != "go":
                    assert set(received) == wanted
    finally:
        broker.stop()
    table = json.loads(
        (broker.store / "config" / "consumerOffset.json")
        .read_text()
        .replace("{0:", '{"0":')
        .replace("\t\t\t0:", '\t\t\t"0":')
    )["offsetTable"]
    noted = {name: queues for name, queues in table.items() if name.endswith("@broadcast")}
    assert len(noted) == 3 and {name.split("-")[0] for name in noted} == {"spread"}
    assert all(0 <= queues["0"] <= 20 for queues in noted.values())


async def mark_until(broker, topic, consumers) -> None:
    """Send marks until each consumer, which begins after what there is, has found its place and got one."""
    async with Producer(broker.nameserver, "marks") as producer:
        for consumer in consumers:
            deadline = time.monotonic() + 60
            while not any(line.get("key") == "mark" for line in consumer.seen()):
                assert time.monotonic() < deadline
                await producer.send(topic, b"mark", keys=["mark"])
                await asyncio.to_thread(consumer.wait_for_change, 0.2)


@pytest.mark.skipif(
    IS_APACHE, reason="Apache's 5.x asks the system what is in memory and lets no setting say it"
)
def test_where_a_new_group_begins(tmp_path):
    clients.require(*KINDS)
    # No message counts as in memory, so that the broker leaves the beginning to its clients.
    broker = Broker(tmp_path / "data", {"accessMessageInMemoryMaxRatio": 0}).start()
    try:
        for kind in KINDS:
            program = program_of(kind, broker, tmp_path)
            (topic,) = names(program, "beginnings")
            administer(broker, topic, queues=1)
            acknowledged(program.run("send", topics=topic, n=20, run="old"))
            begins = {
                "first": dict(),
                "last": {"from": "last"},
                "long-ago": {"from": "timestamp", "time": "20010101000000"},
                "not-yet": {"from": "timestamp", "time": "20370101000000"},
            }
            consumers = {}
            try:
                # One after the other: four Java programs at once starve each other
                for name, options in begins.items():
                    consumers[name] = program.start(
                        "consume", group=f"{topic}-{name}", topics=topic, **options
                    )
                    consumers[name].until_ready()
                for name in ("first", "long-ago"):
                    consumers[name].until(
                        lambda lines: (
                            {f"oldkey{number}" for number in range(20)} <= {line.get("key") for line in lines}
                        ),
                        60,
                    )
                asyncio.run(mark_until(broker, topic, [consumers["last"], consumers["not-yet"]]))
                acknowledged(program.run("send", topics=topic, n=5, run="new"))
                new = {f"newkey{number}" for number in range(5)}
                for name, consumer in consumers.items():
                    consumer.until(lambda lines, new=new: new <= {line.get("key") for line in lines}, 60)
                    keys = {
                        line["key"] for line in consumer.finish(60) if line.get("key") not in (None, "mark")
                    }
                    assert keys == (
                        new | {f"oldkey{number}" for number in range(20)}
                        if name in ("first", "long-ago")
                        else new
                    ), (kind, name)
            finally:
                for consumer in consumers.values():
                    consumer.kill()
    finally:
        broker.stop()


def traces_of(program, broker, topic, traces, *, consumed=False) -> list[dict]:
    """Send three messages with traces, and consume them with traces; what was sent, when all records are
    there."""
    group, running = f"{topic}-readers", []
    try:
        if consumed:
            running.append(program.start("consume", group=group, topics=topic, trace=traces))
            running[0].until_ready()
        producer = program.start("send", topics=topic, n=3, trace=traces)
        running.append(producer)
        sent = acknowledged(
            [
                line
                for line in producer.until(
                    lambda lines: len([line for line in lines if "id" in line]) == 3, 60
                )
                if "ready" not in line
            ]
        )
        wanted = {
            (kind, line["id"])
            for line in sent
            for kind in (("Pub", "SubBefore", "SubAfter") if consumed else ("Pub",))
        }
        deadline = time.monotonic() + 60
        while traces not in topics_of(broker):
            assert time.monotonic() < deadline, "no topic for traces"
            producer.wait_for_change(0.2)
        watcher = program.start("consume", group=f"{group}-watchers", topics=traces)
        running.append(watcher)
        seen = watcher.until(lambda lines: wanted <= kinds_of(lines, sent), 60)
        for one in running:
            one.finish(60)
    finally:
        for one in running:
            one.kill()
    assert kinds_of(seen, sent) == wanted
    return sent


def topics_of(broker) -> list[str]:
    async def ask():
        async with Admin(broker.nameserver) as admin:
            return await admin.topics()

    return asyncio.run(ask())


def kinds_of(lines, sent) -> set[tuple[str, str]]:
    ids = {line["id"] for line in sent}
    return {
        (fields[0], field)
        for line in lines
        for fields in records_of(line.get("body", ""))
        for field in fields
        if field in ids
    }


@pytest.mark.parametrize("version", [clients.JAVA_5, clients.JAVA_4])
def test_traces_of_java_clients_arrive_and_are_found_by_the_message(version, broker, tmp_path):
    java = program_of(version, broker, tmp_path)
    (topic,) = names(java, "traced")
    administer(broker, topic, queues=1)
    sent = traces_of(java, broker, topic, "RMQ_SYS_TRACE_TOPIC", consumed=True)
    found = java.run("bykey", topic="RMQ_SYS_TRACE_TOPIC", key=sent[0]["id"])
    assert {kind for kind, message in kinds_of(found, sent) if message == sent[0]["id"]} == {
        "Pub",
        "SubBefore",
        "SubAfter",
    }


def test_traces_of_the_go_client_arrive(broker, tmp_path):
    go = program_of("go", broker, tmp_path)
    (topic,) = names(go, "traced")
    administer(broker, topic, f"{topic}-traces", queues=1)
    traces_of(go, broker, topic, f"{topic}-traces")


def records_of(body: str) -> list[list[str]]:
    """The records of a trace message: fields end with U+0001, records with U+0002."""
    return [record.split("\x01") for record in body.split("\x02") if record]


def test_transactions_of_the_go_client_end_as_it_says(tmp_path):
    clients.require("go")
    broker = Broker(
        tmp_path / "data",
        {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 100},
    ).start()
    go = program_of("go", broker, tmp_path)
    topic, group = names(go, "transact", "producers")
    producer = consumer = None
    try:
        administer(broker, topic)
        kept, unsure = (
            {f"rkey{number}" for number in range(12) if number % 4 in fates} for fates in ((0, 2), (2, 3))
        )
        consumer = go.start("consume", group=f"{group}-readers", topics=topic)
        producer = go.start("transact", topics=topic, group=group, n=12)
        lines = producer.until(
            lambda lines: (
                any("sent" in line for line in lines) and unsure <= {line.get("asked") for line in lines}
            ),
            60,
        )
        assert {line["status"] for line in lines if "state" in line} == {"SEND_OK"}
        consumer.until(lambda lines: kept <= {line.get("key") for line in lines}, 60)
        producer.finish(60)
        assert sorted(line["key"] for line in consumer.finish(60) if "key" in line) == sorted(kept)
    finally:
        for running in (producer, consumer):
            if running is not None:
                running.kill()
        broker.stop()


def test_retries_that_wait_survive_kill_9_and_come_when_their_time_is_over(tmp_path):
    clients.require(clients.JAVA_5)
    broker = Broker(tmp_path / "data").start()
    java = program_of(clients.JAVA_5, broker, tmp_path)
    topic, group = names(java, "interrupted", "interrupted-readers")
    consumer = None
    try:
        administer(broker, topic, f"%RETRY%{group}", queues=1)
        keys = {line["key"] for line in acknowledged(java.run("send", topics=topic, n=10))}
        consumer = java.start("consume", group=group, topics=topic, fail_every=1, level=2)
        consumer.until(lambda lines: keys <= {line.get("key") for line in lines if line.get("failed")}, 60)
        deadline = time.monotonic() + 30
        # What was sent back is stored before its offset is committed
        while committed(broker, group, topic)[0][0] != 10:
            assert time.monotonic() < deadline
            consumer.wait_for_change(0.2)
        broker.kill9()
        broker.start()
        lines = consumer.until(
            lambda lines: keys <= {line.get("key") for line in lines if line.get("reconsume")}, 90
        )
        consumer.finish(60)
    finally:
        if consumer is not None:
            consumer.kill()
        broker.stop()
    # Each waited its five seconds: by the broker's own times, before and after.
    first = {
        line["key"]: line["store_time"] for line in lines if line.get("failed") and not line["reconsume"]
    }
    assert all(line["store_time"] >= first[line["key"]] + 5_000 for line in lines if line.get("reconsume"))


def test_ordered_sends_of_one_shard_lie_in_one_queue(program, broker):
    (topic,) = names(program, "sharded")
    administer(broker, topic, queues=4)
    sent = acknowledged(program.run("send", topics=topic, n=64, mode="ordered", shards=4))
    queues: dict[int, set[int]] = {}
    for line in sent:
        queues.setdefault(int(line["key"].removeprefix("rkey")) % 4, set()).add(line["queue"])
    assert all(len(of_shard) == 1 for of_shard in queues.values())
    assert len(set(map(place, sent))) == 64
