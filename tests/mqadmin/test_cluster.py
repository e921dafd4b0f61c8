"""The door to the broker, over a real store: what it gives is what is there."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
import threading
import time
import zlib
from types import SimpleNamespace

import pytest

from broker_store.broker.pauses import Pauses
from broker_store.broker.topics import TopicConfig
from broker_store.check.walk import check_store
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.log.store_times import StepBack
from broker_store.engine.store import MessageStore, wall_clock_ms
from broker_store.errors import DamagedStoreError, NameError_, NotFoundError, StoreClosedError
from broker_store.formats import record
from broker_store.formats.names import check_topic
from broker_store.formats.static_topics import MappingItem, TopicMapping
from broker_store.messages import Message
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription
from broker_store.protocol.grpc.v2.definition_pb2 import MessageType
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from broker_store.server.broker import Broker
from broker_store.server.grpc.routes import accepted_types
from broker_store.server.parts import build_parts
from broker_store.sql92.property_filter import filter_of
from broker_store.units import document_of, fields_of
from mqadmin.cluster.embedded import search as embedded_search
from mqadmin.cluster.embedded import store as embedded_store
from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.facts.groups import OffsetMove
from mqadmin.facts.overview import WorstLag
from mqadmin.facts.sends import LoopPauses
from mqadmin.jobs import exports
from mqadmin.management import hints
from mqadmin.web.gateway import ClusterGateway
from tests.support.broker_harness import FakeChannel
from tests.support.fake_cluster import FakeCluster
from tests.support.sending import send_one

FOR_EVER_MS = 1 << 62


def _settings(directory) -> StoreSettings:
    return StoreSettings(
        store_path_root_dir=directory / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 500,
        max_hash_slot_num=500,
        max_index_num=20_000,
    )


@pytest.fixture
async def process(tmp_path):
    loop = asyncio.get_running_loop()
    settings = _settings(tmp_path)
    store = MessageStore(settings, wake=loop.call_soon_threadsafe)
    await asyncio.to_thread(store.open)
    parts = build_parts(BrokerSettings(listen_port=0, broker_ip1="127.0.0.1"), settings, store, wall_clock_ms)
    store.appender.store_host = parts.endpoint.store_host
    broker = Broker(parts)
    broker.load()
    store.start()
    await broker.start("127.0.0.1", fast_port=False)
    yield SimpleNamespace(store=store, parts=parts, broker=broker)
    await broker.stop()
    await asyncio.to_thread(store.close)
    assert not check_store(settings.store_path_root_dir).findings


@pytest.fixture
async def cluster(process):
    cluster = EmbeddedCluster(process, asyncio.get_running_loop())
    process.parts.topics.put(TopicConfig("orders", 2, 2))
    return cluster


async def _fill(cluster, count: int = 20) -> list:
    """Send messages to two queues in turn, one after another: in a batch, those of a queue whose files take
    long to make are stored after the others."""
    return [(await cluster.sends.send_batch("orders", [_message(number)]))[0] for number in range(count)]


def _message(number: int) -> NewMessage:
    return NewMessage(
        f"body {number}".encode(),
        "paid" if number % 2 else "",
        (f"key-{number}", "all"),
        {"shop": "berlin"},
        number % 2,
    )


def test_without_a_process_it_is_starting_and_knows_nothing():
    cluster = EmbeddedCluster()
    assert cluster.state().state == "starting"
    assert cluster.store.recovery() is None
    assert cluster.store.snapshot().positions.wrote is None
    for ask in (
        cluster.overview,
        cluster.topics.counts,
        cluster.groups.counts,
        cluster.files.known,
        cluster.index.facts,
    ):
        with pytest.raises(StoreClosedError):
            ask()


def test_while_the_store_recovers_its_positions_are_no_facts_yet(tmp_path):
    store = MessageStore(_settings(tmp_path))
    seen = []

    def look(report):
        seen.append(
            (cluster.state().state, cluster.store.recovery().state, cluster.store.snapshot().positions.wrote)
        )

    cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=None))
    store.open(on_step=look)
    assert ("recovering", "running", None) in seen
    store.start()
    assert cluster.state().state == "starting", "the ports are not open yet"
    store.close()


def test_a_start_that_is_over_is_told_again_without_another_look(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_store, "REPORT_SECONDS", 1_000.0)
    store = MessageStore(_settings(tmp_path))
    cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=None))
    running = cluster.store.recovery()
    assert running.state == "running" and cluster.store.recovery() is not running
    store.open()
    told = cluster.store.recovery()
    assert told.state == "done" and cluster.store.recovery() is told
    cluster.store._recovery_until = 0.0
    assert cluster.store.recovery() == told and cluster.store.recovery() is not told
    store.close()


@pytest.mark.parametrize("log_elsewhere", [False, True])
def test_a_store_that_does_not_start_says_which_file_and_not_where_the_store_lies(tmp_path, log_elsewhere):
    log = tmp_path / "log" / "commitlog" if log_elsewhere else tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / ("0" * 20)).symlink_to(tmp_path / "elsewhere")
    store = MessageStore(
        dataclasses.replace(
            _settings(tmp_path), store_path_root_dir=tmp_path / "store", store_path_commit_log=log
        )
    )
    cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=None))
    with pytest.raises(DamagedStoreError, match=str(tmp_path)):
        store.open()
    sentence = cluster.state().sentence
    assert (
        sentence
        == f"The broker did not start: commitlog/{'0' * 20}: is no regular file. Move it out of the store."
    )
    assert str(tmp_path) not in json.dumps(
        document_of([cluster.state(), cluster.store.recovery(), cluster.store.snapshot()])
    )


async def test_its_shapes_are_those_the_pages_are_tested_with(cluster):
    await _fill(cluster)
    cluster._host.process.parts.offsets.commit("billing", "orders", 0, 5)
    fake = FakeCluster()
    pairs = [
        (cluster.state(), fake.state()),
        (cluster.store.snapshot(), fake.store.snapshot()),
        (cluster.overview(), fake.overview()),
        (cluster.store.recovery(), fake.store.recovery()),
    ]
    pairs += [
        (cluster.topics.detail("orders"), fake.topics.detail("orders")),
        (cluster.groups.detail("billing"), fake.groups.detail("billing")),
    ]
    pairs += [
        (mine[0], theirs[0])
        for mine, theirs in (
            (cluster.topics.rows(["orders"]), fake.topics.rows(["orders"])),
            (cluster.groups.rows(["billing"]), fake.groups.rows(["billing"])),
            (cluster.files.known(), fake.files.known()),
        )
    ]
    pairs += [(cluster.index.facts()[0], fake.index.facts()[0])]
    for mine, theirs in pairs:
        assert type(mine) is type(theirs)
        _same_keys(mine, theirs)


def _same_keys(mine: object, theirs: object) -> None:
    """The shapes of what is no type of facts yet are the same."""
    if dataclasses.is_dataclass(mine) and dataclasses.is_dataclass(theirs):
        mine, theirs = fields_of(mine), fields_of(theirs)
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() & theirs.keys():
        assert mine.keys() == theirs.keys() or mine.keys() <= {"OS_PAGE_CACHE_BUSY"} or "index_slots" in mine
        for key in mine.keys() & theirs.keys():
            _same_keys(mine[key], theirs[key])
    elif isinstance(mine, list) and isinstance(theirs, list) and mine and theirs:
        _same_keys(mine[0], theirs[0])


async def test_an_answer_with_messages_is_bounded_in_bytes_and_says_so(cluster, monkeypatch):
    await _fill(cluster)
    monkeypatch.setattr(embedded_search, "MAX_ANSWER_BYTES", 500)
    monkeypatch.setattr(embedded_search, "READ_BYTES", 200)
    for found in (
        await cluster.search.by_key("orders", "all", 0, FOR_EVER_MS, 100),
        await cluster.search.by_time("orders", 0, FOR_EVER_MS, 100),
        await cluster.search.by_time("orders", None, FOR_EVER_MS, 100),
    ):
        sizes = [stored.size for stored in found.messages]
        assert sum(sizes[:-1]) < 500 <= sum(sizes) and not found.complete and "full" in found.reason
    page = await cluster.search.in_queue("orders", 1, 0, 100)
    assert 0 < len(page.messages) < 10 and page.next_offset == len(page.messages) < page.max_offset
    monkeypatch.setattr(embedded_search, "MAX_ANSWER_BYTES", 1)
    assert len((await cluster.search.in_queue("orders", 1, 0, 100)).messages) >= 1


async def test_a_message_is_sent_and_found_in_every_way(cluster):
    receipts = await _fill(cluster)
    assert [receipt.queue_offset for receipt in receipts[:4]] == [0, 0, 1, 1]
    log_offset = receipts[7].log_offset
    stored, raw = await cluster.search.message_at(log_offset)
    assert stored.body == b"body 7" and len(raw) == stored.size and stored.log_offset == log_offset
    assert stored.tags == "paid" and stored.keys == ("key-7", "all") and stored.properties["shop"] == "berlin"
    assert stored.unique_key == receipts[7].message_id
    for id in (
        receipts[7].message_id,
        receipts[7].offset_message_id,
        receipts[7].offset_message_id.lower(),
    ):
        assert [message.log_offset for message in (await cluster.search.by_id(id)).messages] == [log_offset]
    for key in ("key-7", receipts[7].message_id):
        found = await cluster.search.by_key("orders", key, 0, FOR_EVER_MS, 10)
        assert [message.log_offset for message in found.messages] == [log_offset] and found.complete
    found = await cluster.search.in_queue("orders", 1, 2, 3)
    assert [message.queue_offset for message in found.messages] == [2, 3, 4]
    assert (found.next_offset, found.min_offset, found.max_offset) == (5, 0, 10)
    found = await cluster.search.by_time("orders", 0, FOR_EVER_MS, 100)
    assert len(found.messages) == 20 and found.complete
    assert found.messages == sorted(found.messages, key=lambda message: message.log_offset)
    assert (await cluster.search.by_time("orders", None, FOR_EVER_MS, 100)).messages == found.messages[::-1]
    newest = await cluster.search.by_time("orders", None, FOR_EVER_MS, 3)
    assert newest.messages == found.messages[:-4:-1] and not newest.complete and "newest 3" in newest.reason
    assert (await cluster.search.by_time("orders", None, 1, 3)) == await cluster.search.by_time(
        "orders", 0, 1, 3
    )


async def test_what_was_left_out_is_said(cluster):
    await _fill(cluster)
    by_time = await cluster.search.by_time("orders", 0, FOR_EVER_MS, 5)
    assert len(by_time.messages) == 5 and not by_time.complete and "first 5" in by_time.reason
    by_key = await cluster.search.by_key("orders", "all", 0, FOR_EVER_MS, 5)
    assert len(by_key.messages) == 5 and not by_key.complete
    spent = await cluster.search.by_time("orders", 0, FOR_EVER_MS, 100, budget=0)
    assert not spent.complete and "narrow the time" in spent.reason


async def test_a_message_that_changed_on_the_disk_is_shown_as_changed_and_given_to_nobody(
    cluster, process, monkeypatch
):
    receipts = await _fill(cluster)
    stored, raw = await cluster.search.message_at(receipts[8].log_offset)
    with open(process.store.log.files[0].path, "r+b") as log:
        for body in (b"Body", b"body"):
            log.seek(stored.log_offset + raw.index(b"body 8"))
            log.write(body)
            log.flush()
            if body == b"body":
                break
            queue = ("orders", stored.queue_id)
            before = await cluster.search.in_queue(*queue, 0, 100)
            assert [message.queue_offset for message in before.messages] == list(
                range(stored.queue_offset)
            ) and before.next_offset == stored.queue_offset
            with pytest.raises(
                Problem,
                match=f"offset {stored.queue_offset} of orders/{stored.queue_id} is not as it was stored",
            ) as raised:
                await cluster.pulls.pull(*queue, stored.queue_offset, 10, 0)
            assert raised.value.code == "damaged"
            for begin_ms in (0, None):
                found = await cluster.search.by_time("orders", begin_ms, FOR_EVER_MS, 100)
                assert (
                    len(found.messages) == 19
                    and not found.complete
                    and found.reason.startswith("1 damaged messages are left out")
                )
            assert (await cluster.search.message_at(stored.log_offset))[0].body == b"Body 8"
            assert "CRC" in await cluster.search.damage_at(stored.log_offset)
            (flag,) = cluster.store.snapshot().flags
            assert flag.name == "damage_found" and "`manage.py check_store DIR`" in flag.cause
            monkeypatch.setattr(sys, "argv", ["/opt/headpond/bin/headpond", "runbroker"])
            (flag,) = cluster.store.snapshot().flags
            assert "`headpond check_store DIR`" in flag.cause
            for found in (
                await cluster.search.by_key("orders", "key-8", 0, FOR_EVER_MS, 9),
                await cluster.search.by_id(stored.unique_key),
                await cluster.search.by_id(stored.offset_id),
            ):
                assert [message.body for message in found.messages] == [b"Body 8"] and [
                    one.log_offset for one in found.damaged
                ] == [stored.log_offset]
            assert (await cluster.search.by_key("orders", "key-7", 0, FOR_EVER_MS, 9)).complete
    assert (
        len((await cluster.search.in_queue(*queue, 0, 100)).messages) == 10
        and await cluster.search.damage_at(stored.log_offset) is None
    )


@pytest.mark.parametrize(
    ("part", "changed", "said"),
    [
        (b"key-8", b"key-9", "its topic or its keys are not those of the index entry"),
        (b"orders", b"Orders", "its topic or its keys are not those of the index entry"),
        (
            b"\0\0\0\6body 8",
            b"\0\0\1\6body 8",
            "the record at {:,} of the log is damaged (the body length is out of bounds",
        ),
        (None, b"\0\0\0\0", "the record at {:,} of the log is damaged (no record begins there"),
    ],
)
async def test_a_search_names_the_damage_that_keeps_a_message_from_being_found(
    cluster, process, part, changed, said
):
    receipts = await _fill(cluster)
    stored, raw = await cluster.search.message_at(receipts[8].log_offset)
    at = 0 if part is None else raw.index(part)
    with open(process.store.log.files[0].path, "r+b", buffering=0) as log:
        log.seek(stored.log_offset + at)
        log.write(changed)
        by_key = await cluster.search.by_key("orders", "key-8", 0, FOR_EVER_MS, 9)
        by_id = await cluster.search.by_id(stored.unique_key)
        elsewhere = await cluster.search.by_key("orders", "key-7", 0, FOR_EVER_MS, 9)
        if "length" in said:
            with pytest.raises(
                Problem,
                match=f"the record at {stored.log_offset:,} of the log cannot be read: the body length",
            ) as raised:
                await cluster.search.message_at(stored.log_offset)
            assert raised.value.code == "damaged"
        log.seek(stored.log_offset)
        log.write(raw)
    for found in (by_key, by_id):
        if found is by_id and part == b"key-8":
            assert found.complete and len(found.messages) == 1, (
                "its id is still there, and nothing contradicts its key"
            )
            continue
        assert (found.messages, found.complete) == ([], False) and said.format(
            stored.log_offset
        ) in found.reason
        assert [one.log_offset for one in found.damaged] == [stored.log_offset]
    assert elsewhere.complete and elsewhere.damaged == () and len(elsewhere.messages) == 1


async def test_an_id_that_leads_into_the_log_where_no_record_begins_says_so(cluster):
    await _fill(cluster)
    found = await cluster.search.by_id("7F00000100002A9F0000000000000005")
    assert (found.messages, found.complete, found.reason) == (
        [],
        False,
        "no record that can be read begins at 5 of the log",
    )


async def test_traces_of_a_message_are_told_in_words(cluster):
    (receipt,) = (await _fill(cluster))[:1]
    id = receipt.message_id
    assert (await cluster.search.traces_of(id)).events == []
    sent = f"Pub|1000|r|shop|orders|{id}|paid|key|host|5|3|0|X|true"
    other = sent.replace(id, "F" * 32)
    given = f"SubBefore|1400|r|billing|R1|{id}|0|key"
    for body, compressed in ((f"{given}\x02", 0), (f"{other}\x02{sent}\x02", 1)):
        data = body.replace("|", "\x01").encode()
        message = Message(
            "RMQ_SYS_TRACE_TOPIC",
            0,
            zlib.compress(data) if compressed else data,
            f"KEYS\x01{id}\x02".encode(),
            sys_flag=compressed,
        )
        assert (await cluster._host.parts.sends.put(message)).ok
    cluster._host.parts.topics.ensure("RMQ_SYS_TRACE_TOPIC", 1)
    found = await cluster.search.traces_of(id)
    assert [(event.at_ms, event.group, event.words) for event in found.events] == [
        (1000, "shop", "sent it to orders"),
        (1400, "billing", "was given it"),
    ]
    assert (
        found.complete
        and found.topic == "RMQ_SYS_TRACE_TOPIC"
        and (await cluster.search.traces_of("nobody")).events == []
    )


async def test_nothing_found_is_empty_and_complete(cluster):
    await _fill(cluster)
    assert (await cluster.search.by_key("orders", "nobody", 0, FOR_EVER_MS, 5)) == await cluster.search.by_id(
        "7F00000100002A9FFFFFFFFFFFFFFFF0"
    )
    assert (await cluster.search.by_time("orders", 0, 1, 5)).messages == []
    for log_offset in (1, 1 << 50):
        with pytest.raises(NotFoundError):
            await cluster.search.message_at(log_offset)
    for ask in (
        cluster.search.in_queue("nothing", 0, 0, 1),
        cluster.search.in_queue("orders", 9, 0, 1),
        cluster.search.by_time("nothing", 0, 1, 1),
    ):
        with pytest.raises(NotFoundError):
            await ask


async def test_many_messages_are_read_across_files(cluster):
    for _ in range(6):
        await cluster.sends.send_batch("orders", [NewMessage(b"x" * 30_000, queue_id=0) for _ in range(20)])
    found = await cluster.search.in_queue("orders", 0, 10, 100)
    assert [message.queue_offset for message in found.messages] == list(range(10, 110))
    assert cluster.store.snapshot().commit_log_files > 2


async def test_a_client_that_is_alone_in_its_group_reads_all_of_its_queues(cluster, process):
    data = ConsumerData("billing", subscriptions=(Subscription("orders", version=1),))
    heartbeats = [(FakeChannel(port), Heartbeat(f"client-{port}", (), (data,))) for port in (1, 2)]
    readers = []
    for channel, heartbeat in heartbeats:
        process.parts.clients.heartbeat(channel, heartbeat, "JAVA", 479, wall_clock_ms())
        readers.append([queue.client_id for queue in cluster.groups.detail("billing").queues])
    assert readers == [["client-1", "client-1"], [None, None]]


async def test_a_refused_message_is_a_problem_in_its_place(cluster):
    answers = await cluster.sends.send_batch(
        "orders",
        [
            NewMessage(b"good"),
            NewMessage(b""),
            NewMessage(b"x", queue_id=9),
            NewMessage(b"x", properties={"TRAN_MSG": "true"}),
            NewMessage(b"good"),
        ],
    )
    assert [isinstance(answer, Problem) for answer in answers] == [False, True, True, True, False]
    assert [answer.code for answer in answers[1:4]] == ["invalid", "queue_not_found", "invalid"]
    cluster.topics.update("orders", perm=4)
    with pytest.raises(Problem) as refused:
        await send_one(cluster, "orders", b"x")
    assert refused.value.code == "not_writable"


async def test_a_message_of_a_static_topic_goes_to_a_queue_that_the_broker_leads(cluster, process):
    name = process.parts.broker_name
    rows = {0: (MappingItem(0, 1, name, 0),), 1: (MappingItem(0, 0, name, 0), MappingItem(1, 0, "b", -1))}
    process.parts.static_topics.put(TopicMapping("orders", 2, name, 1, rows))
    for queue_id in (None, 1, None):
        assert (await send_one(cluster, "orders", b"x", queue_id=queue_id)).queue_id == 1
    with pytest.raises(Problem) as refused:
        await send_one(cluster, "orders", b"x", queue_id=0)
    assert refused.value.code == "not_writable" and "[1]" in refused.value.detail


async def test_a_delayed_message_waits_elsewhere(cluster):
    receipt = await send_one(cluster, "orders", b"later", properties={"DELAY": "3"})
    assert receipt.topic == "SCHEDULE_TOPIC_XXXX"
    assert cluster.topics.detail("orders").messages == 0


async def test_a_pull_waits_for_the_first_message_and_no_longer(cluster):
    began = time.monotonic()
    waiting = asyncio.create_task(cluster.pulls.pull("orders", 0, 0, 10, 5_000))
    while not cluster.pulls._arrivals:
        await asyncio.sleep(0)
    await send_one(cluster, "orders", b"now", queue_id=0)
    found = await waiting
    assert [message.body for message in found.messages] == [b"now"] and time.monotonic() - began < 3
    assert not cluster.pulls._arrivals
    nothing = await cluster.pulls.pull("orders", 1, None, 10, 30)
    assert nothing.messages == [] and nothing.next_offset == 0


async def test_topics_are_created_changed_and_deleted(cluster):
    cluster.topics.create("payments", 4, 3, 6, True)
    cluster.topics.update("payments", write_queues=5)
    facts = cluster.topics.detail("payments")
    assert (
        facts.read_queues,
        facts.write_queues,
        facts.order,
        facts.messages,
        facts.last_store_ms,
    ) == (4, 5, True, 0, None)
    await send_one(cluster, "payments", b"x")
    static_topics = cluster._host.parts.static_topics
    static_topics.put(TopicMapping("payments", 1, "broker-a", 1, {0: (MappingItem(0, 3, "broker-a", 0),)}))
    with pytest.raises(Problem, match="has 4 queues here"):
        cluster.topics.update("payments", read_queues=3, write_queues=3)
    cluster.topics.update("payments", read_queues=4, write_queues=4)
    cluster.topics.delete("payments")
    with pytest.raises(NotFoundError):
        cluster.topics.detail("payments")
    with pytest.raises(Problem):
        cluster.topics.delete("TBW102")


async def test_the_type_of_messages_of_a_topic_is_set_and_changed(cluster, process):
    cluster.topics.create("steps", 2, 2, 6, False, "FIFO")
    cluster.topics.create("plain", 2, 2, 6, False)
    facts = cluster.topics.detail("steps")
    assert (facts.message_type, facts.attributes) == ("FIFO", {"message.type": "FIFO"})
    assert accepted_types(process.parts.topics.get("steps")) == (MessageType.FIFO,)
    facts = cluster.topics.detail("plain")
    assert (facts.message_type, facts.attributes) == ("NORMAL", {})
    cluster.topics.update("plain", message_type="PRIORITY")
    assert cluster.topics.detail("plain").message_type == "PRIORITY"
    cluster.topics.update("plain", message_type="TRANSACTION")
    cluster.topics.update("plain", write_queues=3)
    facts = cluster.topics.detail("plain")
    assert (facts.message_type, facts.write_queues) == ("TRANSACTION", 3)
    for kind, sentence in (
        ("MIXED", "MIXED message type is not supported."),
        ("LITE", "LITE message type is not supported: "),
    ):
        with pytest.raises(Problem, match=re.escape(sentence)):
            cluster.topics.create("mixed", 2, 2, 6, False, kind)
        with pytest.raises(Problem, match=re.escape(sentence)):
            cluster.topics.update("plain", message_type=kind)
    assert "mixed" not in cluster.topics.names()
    assert cluster.topics.detail("plain").message_type == "TRANSACTION"


async def test_a_group_may_be_named_as_a_retry_topic(cluster):
    """As at Apache's broker, whose validateGroup checks characters and length alone
    (tests/interop/test_grpc_answers.py)."""
    usual = {
        "consume_enable": True,
        "broadcast": True,
        "orderly": False,
        "retry_queues": 1,
        "retry_max_times": 16,
    }
    cluster.groups.create("%RETRY%mine", **usual)
    assert cluster.groups.detail("%RETRY%mine").name == "%RETRY%mine"
    with pytest.raises(NameError_):
        cluster.groups.create("%RETRY%mi ne", **usual)


async def test_lag_is_counted_where_a_group_has_a_position_and_unknown_elsewhere(cluster):
    await _fill(cluster)
    parts = cluster._host.process.parts
    cluster.groups.create(
        "billing", consume_enable=True, broadcast=True, orderly=False, retry_queues=1, retry_max_times=16
    )
    assert cluster.groups.detail("billing").lag is None and cluster.overview().worst_lag is None
    parts.offsets.commit("billing", "orders", 0, 4)
    group = cluster.groups.detail("billing")
    assert group.lag == 6 and group.topics == ["orders"]
    assert [queue.lag for queue in group.queues] == [6, None]
    assert group.queues[0].lag_ms >= 0 and group.queues[1].lag_ms is None
    assert cluster.overview().worst_lag == WorstLag(group="billing", lag=6)
    cluster._host.parts.offsets.commit("CID_RMQ_SYS_TRANS", "orders", 0, 0)
    cluster._host.parts.offsets.commit("CID_RMQ_SYS_TRANS", "orders", 1, 0)
    assert [cluster.overview().worst_lag.group for _ in range(2)] == ["billing"] * 2, (
        "the broker's own groups are not users'"
    )
    parts.offsets.commit("billing", "orders", 0, 10)
    assert cluster.groups.detail("billing").lag_ms == 0
    cluster.groups.update("billing", consume_enable=False)
    assert cluster.groups.detail("billing").consume_enable is False
    cluster.groups.delete("billing")
    with pytest.raises(NotFoundError):
        cluster.groups.detail("billing")


async def test_a_reset_is_previewed_and_then_made(cluster):
    await _fill(cluster)
    parts = cluster._host.process.parts
    parts.offsets.commit("billing", "orders", 0, 4)
    preview = cluster.groups.reset_offsets("billing", "orders", "latest")
    assert preview == [
        OffsetMove(queue_id=0, before=4, after=10),
        OffsetMove(queue_id=1, before=None, after=10),
    ]
    assert parts.offsets.query("billing", "orders", 0) == 4
    assert cluster.groups.reset_offsets("billing", "orders", "latest", dry_run=False) == preview
    assert parts.offsets.query("billing", "orders", 1) == 10
    assert cluster.groups.reset_offsets("billing", "orders", "offset", 3, 0)[0].after == 3
    assert cluster.groups.reset_offsets("billing", "orders", "time", 0, 0)[0].after == 0
    with pytest.raises(Problem):
        cluster.groups.reset_offsets("billing", "orders", "offset", 99, 0)
    with pytest.raises(NotFoundError):
        cluster.groups.reset_offsets("billing", "orders", "latest", queue_id=7)


async def test_files_are_listed_by_kind_and_those_of_queues_in_parts(cluster):
    await _fill(cluster)
    assert {file.kind for file in cluster.files.known("commitlog")} == {"commitlog"}
    assert {file.kind for file in cluster.files.known()} == {"commitlog", "consumequeue", "index"}
    files, queues = await cluster.files.of_queues("ord", 1, 1)
    assert queues == 2 and [(file.topic, file.queue_id) for file in files] == [("orders", 1)]
    assert await cluster.files.of_queues("nothing", 0, 10) == ([], 0)


async def test_a_lookup_is_explained_step_by_step(cluster):
    receipts = await _fill(cluster)
    steps = await cluster.index.explain("orders", "key-3")
    assert steps[0].step == "hash"
    kept = [step for step in steps if step.step == "entry" and step.kept]
    assert [step.log_offset for step in kept] == [receipts[3].log_offset]
    assert steps[-1].why == "there is no older file"
    assert not [step for step in steps if step.step in ("unindexed", "gone")]


async def test_slots_and_chains_of_the_running_store_are_counted_from_its_files(cluster):
    await _fill(cluster)
    (file,) = cluster.index.facts()
    picture, told = await cluster.index.slots(file.name), await cluster.index.chains(file.name)
    assert (picture.counted, picture.entries, picture.findings) == (
        file.slots_used,
        file.entries,
        [],
    )
    assert (told.used, told.unreachable, told.findings) == (file.slots_used, 0, [])
    assert {"topic": "orders", "key": "all", "entries": 20}.items() <= fields_of(
        told.longest[0].keys[0]
    ).items()
    with pytest.raises(NotFoundError):
        await cluster.index.slots("20010101000000000")
    # A watched page: what was added since its first reading comes as cells that changed.
    before = await asyncio.to_thread(cluster.index.watched_slots, file.name)
    assert (before.changed, before.cells) == ([], None)
    await send_one(cluster, "orders", b"x", keys=("another",))
    after = await asyncio.to_thread(cluster.index.watched_slots, file.name)
    assert 0 < len(after.changed) <= 4 and after.since_ms <= before.at_ms
    now = (await cluster.index.slots(file.name)).cells
    for cell, used in zip(after.changed[::2], after.changed[1::2], strict=True):
        assert used == now[cell] > picture.cells[cell]
    assert len(after.changed) // 2 == sum(a != b for a, b in zip(now, picture.cells, strict=True))


async def test_another_thread_calls_on_the_loop(cluster):
    threads = []
    assert (
        await asyncio.to_thread(cluster.call, lambda: threads.append(threading.current_thread()) or "done")
        == "done"
    )
    assert threads == [threading.current_thread()]
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(cluster.call, cluster.topics.detail, "nothing")


async def test_after_the_stop_everything_says_so(cluster, process):
    await asyncio.to_thread(process.store.close)
    assert cluster.state().state == "closed"
    with pytest.raises(StoreClosedError):
        cluster.topics.counts()


async def test_a_send_by_rest_makes_no_topic(cluster, process):
    before = sorted(config.name for config in process.parts.topics.all())
    with pytest.raises(Problem) as refused:
        await ClusterGateway(cluster).send_batch("new", [NewMessage(b"x", "", (), {}, None)])
    assert (refused.value.status, refused.value.code, refused.value.detail) == (
        404,
        "topic_not_found",
        "topic new does not exist",
    )
    with pytest.raises(NotFoundError):
        await send_one(cluster, "new", b"x")
    assert sorted(config.name for config in process.parts.topics.all()) == before


async def test_a_search_by_time_finds_both_parts_of_a_log_whose_clock_was_set_back_and_says_so(
    cluster, process
):
    receipts = await _fill(cluster)
    places = [receipt.log_offset for receipt in receipts]
    stored = [(await cluster.search.message_at(place))[0].store_timestamp for place in places]
    last_ms = stored[-1]
    # Ten seconds from record to record, set back by 60 seconds at the tenth, and right again at the last.
    times = [last_ms - 10_000 * (30 - number) - (60_000 if number >= 10 else 0) for number in range(19)] + [
        last_ms
    ]
    with open(process.store.log.files[0].path, "r+b") as log:
        for place, store_ms in zip(places, times, strict=True):
            log.seek(place + record.FIXED_IPV4.offset["store_timestamp"])
            log.write(store_ms.to_bytes(8, "big"))
    process.store.times.steps = (StepBack(places[10], times[9], times[10]),)
    begin_ms, end_ms = times[11], times[13]
    wanted = sorted(store_ms for store_ms in times if begin_ms <= store_ms <= end_ms)
    found = await cluster.search.by_time("orders", begin_ms, end_ms, 100)
    assert [message.store_timestamp for message in found.messages] == wanted and len(wanted) > 3
    assert found.complete and found.reason.startswith(
        f"store times go back once, at {places[10]:,} of the log by 50,000 ms"
    )
    assert "store times go back" in await cluster.search.time_doubt("orders", begin_ms)
    assert await cluster.search.time_doubt("orders", times[0]) is None
    by_key = await cluster.search.by_key("orders", "all", begin_ms, end_ms, 100)
    assert not by_key.complete and "ask without times" in by_key.reason

    class Door:
        def get(self, path, **query):
            *_, queue_id, what = ["", *path.split("/")]
            if what == "orders" or queue_id == "topics":
                return {
                    "queues": [{"queue_id": number, "min_offset": 0, "max_offset": 10} for number in (0, 1)]
                }
            queue_id = int(path.split("/")[4])
            if what == "offset":
                time_ms = query["time_ms"]
                order = process.store.reads.times.time_order("orders", queue_id, time_ms)
                return {
                    "offset": process.store.reads.times.offset_by_time("orders", queue_id, time_ms),
                    "doubt": order and str(order),
                }
            messages = [number for number in range(20) if number % 2 == queue_id][
                query["offset"] : query["offset"] + query["limit"]
            ]
            return {
                "messages": [
                    {"store_time_ms": times[number], "queue_offset": number // 2} for number in messages
                ],
                "next_offset": query["offset"] + len(messages),
            }

    exported = exports.messages_of_topic(Door(), "orders", begin_ms, end_ms, 100)
    assert sorted(message["store_time_ms"] for message in exported) == wanted
    # As they were, each: entries of the index have the second of their record, and a slow batch crosses one
    with open(process.store.log.files[0].path, "r+b") as log:
        for place, store_ms in zip(places, stored, strict=True):
            log.seek(place + record.FIXED_IPV4.offset["store_timestamp"])
            log.write(store_ms.to_bytes(8, "big"))


async def test_a_message_that_is_too_large_is_refused_with_its_size_and_the_limit(cluster):
    with pytest.raises(Problem) as refused:
        await send_one(cluster, "orders", bytes((4 << 20) + 1))
    assert (refused.value.code, refused.value.detail) == (
        "too_large",
        "the body has 4,194,305 bytes, a message has at most 4,194,304",
    )
    assert "maxMessageSize" in refused.value.hint
    with pytest.raises(Problem) as refused:
        await send_one(cluster, "orders", b"x", properties={"a": "x" * 32_767})
    assert refused.value.code == "too_large" and refused.value.detail.endswith(
        " bytes, a message has at most 32,767"
    )
    assert (
        "properties" in refused.value.detail
        and "PROPERTIES_SIZE" not in refused.value.detail
        and "shorter properties" in refused.value.hint
    )


async def test_what_was_refused_is_told_in_words(cluster):
    with pytest.raises(NameError_) as wrong:
        check_topic("bad name")
    cluster.refuse("topic name", said=str(wrong.value))
    assert "^[" in str(wrong.value), "clients are told Apache's sentence"
    (refused,) = cluster.refusals()
    assert (
        refused.answer
        == "The specified topic contains illegal characters, allowing only letters, digits and % | - _"
    )


async def test_what_belongs_to_the_broker_is_refused_with_that_reason(cluster):
    for change in (
        lambda: cluster.topics.delete("SCHEDULE_TOPIC_XXXX"),
        lambda: cluster.topics.update("TBW102", perm=4),
        lambda: cluster.groups.delete("CID_ONS-HTTP-PROXY"),
    ):
        with pytest.raises(Problem) as refused:
            change()
        assert (refused.value.code, refused.value.hint) == (
            "forbidden",
            "it belongs to the broker: no role may change it",
        )
        assert hints.of("forbidden", refused.value.hint, "delete") == refused.value.hint
    for topic in ("TBW102", "SELF_TEST_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(Problem) as refused:
            await send_one(cluster, topic, b"x")
        assert (refused.value.code, refused.value.hint) == ("not_writable", "send to a topic of your own")
        assert (
            refused.value.detail
            == f"topic {topic} belongs to the broker: no message can be sent to it by REST or from a page"
        )


async def test_the_topics_and_groups_of_a_scrape_are_collected_in_turns(cluster, process, monkeypatch):
    """500 of each in one turn held up sends by 20 to 35 ms."""
    for number in range(40):
        process.parts.topics.put(TopicConfig(f"t{number}", 1, 1))
        process.parts.offsets.commit(f"g{number}", "orders", 0, 0)
    pieces = []
    for part in (cluster.topics, cluster.groups):
        whole = part.rows
        monkeypatch.setattr(
            part, "rows", lambda some, whole=whole: (pieces.append(len(some := list(some))), whole(some))[1]
        )
    topics, groups = await cluster.topics.busiest(500), await cluster.groups.most_behind(500)
    assert len(topics) > 40 and max(pieces) <= 16 and sum(pieces) == len(topics) + len(groups)


def test_pauses_of_the_loop_are_given_in_microseconds():
    pauses = Pauses(lambda: 1_764_000_000_000)
    unknown = LoopPauses(longest_us=None, at_ms=None, longest_of_run_us=None)
    assert embedded_store.loop_pauses_of(pauses) == unknown
    for late_s in (0.001, 16.0, 0.002):
        pauses.note(late_s)
    assert embedded_store.loop_pauses_of(pauses) == LoopPauses(
        longest_us=16_000_000, at_ms=1_763_999_984_000, longest_of_run_us=16_000_000
    )


async def _search_by(cluster, text: str, **more) -> list[list[int]]:
    """Return the numbers that each way of searching gives."""
    passing = filter_of(text)
    ways = [
        await cluster.search.by_time("orders", None, FOR_EVER_MS, more.get("limit", 100), passing=passing),
        await cluster.search.by_time("orders", 0, FOR_EVER_MS, more.get("limit", 100), passing=passing),
        await cluster.search.in_queue("orders", 0, 0, more.get("limit", 100), passing),
        await cluster.search.by_key("orders", "all", 0, FOR_EVER_MS, 100, passing),
    ]
    return [[int(stored.body.split()[1]) for stored in found.messages] for found in ways]


async def test_a_search_takes_an_expression(cluster, monkeypatch):
    monkeypatch.setattr(embedded_search, "OFFSETS_PER_STEP_BACK", 3)
    monkeypatch.setattr(embedded_search, "JUDGED_AT_ONCE", 4)
    await _fill(cluster)
    fifth = "KEYS STARTSWITH 'key-5' OR KEYS STARTSWITH 'key-10' OR KEYS STARTSWITH 'key-16'"
    assert await _search_by(cluster, fifth) == [[16, 10, 5], [5, 10, 16], [10, 16], [5, 10, 16]]
    assert (await _search_by(cluster, "TAGS = 'paid'"))[1] == list(range(1, 20, 2))
    assert await _search_by(cluster, "shop = 'rome'") == [[], [], [], []]
    assert (await _search_by(cluster, "shop = 'berlin'", limit=3))[:3] == [[19, 18, 17], [0, 1, 2], [0, 2, 4]]
    one = filter_of("shop = 'berlin'")
    found = await cluster.search.in_queue("orders", 0, 0, 3, one)
    assert (found.next_offset, found.complete) == (3, True)
    newest = await cluster.search.by_time("orders", None, FOR_EVER_MS, 3, passing=one)
    assert not newest.complete and "newest 3" in newest.reason


async def test_a_search_with_an_expression_is_bounded(cluster, monkeypatch):
    monkeypatch.setattr(embedded_search, "SCAN_BUDGET_BYTES", 1_000)
    monkeypatch.setattr(embedded_search, "JUDGED_AT_ONCE", 2)
    await _fill(cluster, 40)
    never = filter_of("shop = 'rome'")
    found = await cluster.search.in_queue("orders", 0, 0, 100, never)
    assert found.messages == [] and not found.complete and 0 < found.next_offset < 20
    assert f"stopped before offset {found.next_offset}" in found.reason
    by_time = await cluster.search.by_time("orders", None, FOR_EVER_MS, 100, 1_000, never)
    assert not by_time.complete and "stopped after" in by_time.reason


async def test_the_page_of_a_group_says_what_is_odd_about_an_expression(cluster, process):
    subscriptions = [
        Subscription("orders", "NOT a = 1", "SQL92", version=1),
        Subscription("bad", "a > 'x'", "SQL92", version=1),
        Subscription("good", "a > 5", "SQL92", version=1),
        Subscription("foo", "a > 5", "FOO", version=1),
        Subscription("tags", "a || b", version=1),
    ]
    beat = Heartbeat("client", (), (ConsumerData("billing", subscriptions=tuple(subscriptions)),))
    parts = process.parts
    parts.clients.heartbeat(FakeChannel(1), beat, "JAVA", 479, wall_clock_ms())
    shown = {one.topic: one for one in cluster.groups.detail("billing").subscriptions}
    assert "There is no filter (yet)" in shown["good"].error
    parts.property_filters.register("billing", parts.clients.consumer_group("billing").subscriptions.values())
    shown = {one.topic: one for one in cluster.groups.detail("billing").subscriptions}
    assert "NOT binds tighter" in shown["orders"].oddities and shown["orders"].error == ""
    assert shown["bad"].error == "The expression does not compile: Value ''x'' cannot be compared."
    assert (shown["good"].error, shown["good"].oddities, shown["good"].expression_type) == ("", "", "SQL92")
    assert shown["foo"].error == "There is no filter of the type FOO."
    assert (shown["tags"].error, shown["tags"].expression_type) == ("", "TAG")
