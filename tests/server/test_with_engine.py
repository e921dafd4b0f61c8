"""The broker over the real store: the whole way of a message, restarts, and a store of Apache's broker."""

import asyncio
import threading
import time

import pytest

from broker_store.check.walk import check_store
from broker_store.config.load import load_settings
from broker_store.engine.disk.file_access import Reader
from broker_store.engine.disk.region import Region
from broker_store.engine.store import MessageStore
from broker_store.errors import DamagedStoreError
from broker_store.formats import config_json, record
from broker_store.protocol import table_bodies
from broker_store.protocol.command import Command
from broker_store.protocol.headers import SendHeader, write_send
from broker_store.server.broker import Broker
from broker_store.server.channel import connect
from broker_store.server.parts import build_parts
from tests.support import stores

# A slow machine must not look like a busy broker.
PATIENT = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "60000"}
SMALL = PATIENT | {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "20000",
    "listenPort": "0",
}


def clock() -> int:
    return time.time_ns() // 1_000_000


class Running:
    """A broker over a store directory, with one client connection."""

    def __init__(self, root, **overrides):
        self.root = root
        self.settings = load_settings(overrides=SMALL | overrides, store_root=root)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.store = MessageStore(self.settings.store, clock=clock, wake=loop.call_soon_threadsafe)
        await asyncio.to_thread(self.store.open)
        self.parts = build_parts(self.settings.broker, self.settings.store, self.store, clock)
        self.broker = Broker(self.parts)
        await asyncio.to_thread(self.broker.load)
        self.store.start()
        await self.broker.start("127.0.0.1", fast_port=False)
        self.channel = await connect("127.0.0.1", self.broker.listeners[0].port, 5)
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()
        await asyncio.to_thread(self.store.close)
        findings = check_store(self.root, self.settings.store).findings
        assert not [finding for finding in findings if finding.severity == "error"], findings

    async def ask(self, code, body=b"", **fields):
        texts = {name: str(value) for name, value in fields.items()}
        return await self.channel.request(Command.request(code, texts, body, language="JAVA"), 10)

    async def send(self, body, topic="Orders", properties="UNIQ_KEY\x01U\x02", queue_id=0):
        header = SendHeader("PG", topic, "TBW102", 4, queue_id, 0, 1, 0, properties, 0, False, None, False)
        return await self.ask(310, body, **write_send(header))

    async def pull(self, topic="Orders", offset=0, suspend_ms=0, tags="*"):
        flag = 6 if suspend_ms else 4
        return await self.ask(
            11,
            consumerGroup="CG",
            topic=topic,
            queueId=0,
            queueOffset=offset,
            maxMsgNums=32,
            sysFlag=flag,
            commitOffset=0,
            # fmt: skip
            suspendTimeoutMillis=suspend_ms,
            subVersion=0,
            subscription=tags,
            expressionType="TAG",
        )

    async def read_all(self, topic="Orders"):
        bodies, offset = [], 0
        while (answer := await self.pull(topic, offset)).code == 0:
            bodies += [stored.body for stored in record.decode_all(answer.body)]
            offset = int(answer.fields["nextBeginOffset"])
        return bodies


async def test_a_pop_waits_for_new_queues_and_for_a_topic_that_is_made_again(tmp_path):
    async with Running(tmp_path) as broker:

        async def make(queues):
            fields = {"topic": "Orders", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
            assert (
                await broker.ask(17, defaultTopic="TBW102", topicFilterType="SINGLE_TAG", **fields)
            ).code == 0

        async def parked():
            fields = {"maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 60_000, "initMode": 0}
            popping = broker.ask(200050, consumerGroup="CG", topic="Orders", queueId=-1, **fields)
            waiting = asyncio.create_task(popping)
            while not broker.parts.parked_pops.count:
                await asyncio.sleep(0)
            return waiting

        await make(1)
        waiting = await parked()
        await make(4)
        await broker.send(b"new queue", queue_id=3)
        assert (await waiting).code == 0
        waiting = await parked()
        assert (await broker.ask(215, topic="Orders")).code == 0
        await make(4)
        await broker.send(b"new topic", queue_id=3)
        (message,) = record.decode_all((await waiting).body)
        assert message.body == b"new topic"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_messages_of_many_senders_are_there_after_a_restart(tmp_path, flush):
    wanted = [b"%d" % number * 50 for number in range(400)]
    async with Running(tmp_path, flushDiskType=flush) as broker:
        answers = await asyncio.gather(*map(broker.send, wanted))
        assert {answer.code for answer in answers} == {0}, broker.store.status.snapshot().flags
        assert sorted(int(answer.fields["queueOffset"]) for answer in answers) == list(range(400))
        assert await broker.read_all() == wanted
        await broker.ask(15, consumerGroup="CG", topic="Orders", queueId=0, commitOffset=400)
    async with Running(tmp_path, flushDiskType=flush) as broker:
        assert await broker.read_all() == wanted
        assert (await broker.ask(14, consumerGroup="CG", topic="Orders", queueId=0)).fields == {
            "offset": "400"
        }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_waiting_pull_is_served_by_the_next_message(tmp_path, flush):
    async with Running(tmp_path, flushDiskType=flush) as broker:
        await broker.send(b"first")
        waiting = asyncio.ensure_future(broker.pull(offset=1, suspend_ms=20_000))
        while not broker.parts.parked.count:
            await asyncio.sleep(0)
        await broker.send(b"second")
        assert record.decode((await waiting).body).body == b"second"


async def test_a_tag_is_found_and_a_key(tmp_path):
    async with Running(tmp_path) as broker:
        for number in range(50):
            await broker.send(
                b"%d" % number,
                properties=f"TAGS\x01Tag{number % 5}\x02KEYS\x01k{number}\x02UNIQ_KEY\x01U{number}\x02",
            )
        answer = await broker.pull(tags="Tag3")
        assert [stored.body for stored in record.decode_all(answer.body)] == [
            b"%d" % number for number in range(3, 50, 5)
        ]
        found = await broker.ask(
            12, topic="Orders", key="k17", maxNum=8, beginTimestamp=0, endTimestamp=clock()
        )
        assert record.decode(found.body).body == b"17"
        by_time = await broker.ask(29, topic="Orders", queueId=0, timestamp=0)
        assert by_time.fields == {"offset": "0"}


async def test_what_is_looked_up_in_cold_pages_leaves_the_connection_free_for_others(tmp_path, monkeypatch):
    async with Running(tmp_path) as broker:
        for number in range(50):
            await broker.send(b"%d" % number, properties=f"KEYS\x01k{number}\x02UNIQ_KEY\x01U{number}\x02")
    disk_turns, read_by_position = threading.Event(), Reader.read

    def read(reader, offset, length):
        if threading.current_thread().name.startswith("cold-read"):
            assert disk_turns.wait(10)
        return read_by_position(reader, offset, length)

    monkeypatch.setattr(Reader, "read", read)
    async with Running(tmp_path) as broker:
        monkeypatch.setattr(Region, "ask_pages", lambda *_: False)
        questions = [
            broker.ask(12, topic="Orders", key="k17", maxNum=8, beginTimestamp=0, endTimestamp=clock()),
            broker.ask(33, offset=0),
            broker.ask(36, group="CG", offset=0, delayLevel=0),
        ]
        broker.parts.groups.find_or_create("CG")
        asked = [asyncio.ensure_future(question) for question in questions]
        assert (await broker.ask(30, topic="Orders", queueId=0)).fields == {"offset": "50"}
        assert not any(question.done() for question in asked)
        disk_turns.set()
        by_key, by_place, sent_back = await asyncio.gather(*asked)
        assert [record.decode(answer.body).body for answer in (by_key, by_place)] == [b"17", b"0"]
        assert sent_back.code == 0 and broker.store.reads.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1


async def test_a_message_that_waits_survives_a_restart_and_is_never_early(tmp_path):
    async with Running(tmp_path, messageDelayLevel="1s 5s") as broker:
        sent_ms = clock()
        assert (await broker.send(b"later", properties="DELAY\x011\x02UNIQ_KEY\x01U\x02")).code == 0
        assert await broker.read_all() == []
    async with Running(tmp_path, messageDelayLevel="1s 5s") as broker:
        answer = await broker.pull(suspend_ms=10_000)
        stored = record.decode(answer.body)
        assert stored.body == b"later" and stored.store_timestamp >= sent_ms + 1_000
    async with Running(tmp_path, messageDelayLevel="1s 5s") as broker:
        assert await broker.read_all() == [b"later"]
        assert broker.parts.delay.facts()[0].offset == 1


async def test_a_deleted_topic_stays_deleted_and_may_begin_anew(tmp_path):
    async with Running(tmp_path) as broker:
        await broker.send(b"old")
        assert (await broker.ask(215, topic="Orders")).code == 0
    async with Running(tmp_path) as broker:
        assert broker.parts.topics.get("Orders") is None
        assert (await broker.send(b"new")).fields["queueOffset"] == "0"
        assert await broker.read_all() == [b"new"]


async def test_a_message_that_changed_on_the_disk_is_an_error_and_never_what_it_became(tmp_path, caplog):
    async with Running(tmp_path) as broker:
        sent = [
            await broker.send(b"%d" % number * 3_000, properties=f"KEYS\x01k{number} all\x02")
            for number in range(30)
        ]
        ends = [int(answer.fields["msgId"][16:], 16) for answer in sent]
    log = tmp_path / f"commitlog/{0:020d}"
    whole = log.read_bytes()
    log.write_bytes(whole[: ends[2] + 500] + bytes([whole[ends[2] + 500] ^ 1]) + whole[ends[2] + 501 :])
    async with Running(tmp_path) as broker:
        first = await broker.pull()
        assert [stored.body for stored in record.decode_all(first.body)] == [b"0" * 3_000, b"1" * 3_000]
        answers = [
            await broker.pull(offset=2),
            await broker.ask(33, offset=ends[2]),
            # fmt: skip
            await broker.ask(
                36, offset=ends[2], group="CG", delayLevel=0, originMsgId="x", originTopic="Orders"
            ),
        ]
        assert [(answer.code, bool(answer.body)) for answer in answers] == [(1, False)] * 3 and answers[
            0
        ].remark == "MESSAGE_DAMAGED"
        assert [
            "the message there is damaged; `manage.py check_store`" in record.getMessage()
            for record in caplog.records
            if record.name.endswith("consume")
        ] == [True]
        assert first.fields["nextBeginOffset"] == answers[0].fields["nextBeginOffset"] == "2"
        assert (await broker.pull(offset=3)).code == 0
        by_key = [
            await broker.ask(12, topic="Orders", key=key, maxNum=64, beginTimestamp=0, endTimestamp=clock())
            for key in ("k2", "k3", "all")
        ]
        assert [(answer.code, len(list(record.decode_all(answer.body)))) for answer in by_key] == [
            (22, 0),
            (0, 1),
            (0, 29),
        ]
        named = f"the record at {ends[2]:,} of the log is damaged (the body of a record has another CRC"
        assert named in by_key[0].remark and by_key[1].remark is None and named in by_key[2].remark
        assert [flag.name for flag in broker.store.status.snapshot().flags] == ["damage_found"]
        log.write_bytes(whole)


async def test_a_store_that_is_only_looked_at_stays_as_it_is(tmp_path):
    async with Running(tmp_path, messageDelayLevel="1s 5s") as broker:
        await broker.send(b"kept")
        await broker.send(b"later", properties="DELAY\x011\x02UNIQ_KEY\x01U\x02")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "config").iterdir())}
    async with Running(tmp_path, messageDelayLevel="1s 5s", inspect="true") as broker:
        assert await broker.read_all() == [b"kept"]
        assert (await broker.send(b"new")).code == 14
        assert broker.broker._steps == []
        await broker.ask(15, consumerGroup="CG", topic="Orders", queueId=0, commitOffset=1)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "config").iterdir())} == before


async def test_what_apaches_broker_knew_is_known(tmp_path):
    root = stores.unpack("broker-dir", tmp_path)
    files = {
        name: config_json.read((root / "config" / name).read_text())
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
    }
    settings = stores.SIZES["broker-dir"].overrides()
    async with Running(root, **settings) as broker:
        topics = broker.parts.topics.to_json()["topicConfigTable"]
        assert files["topics.json"]["topicConfigTable"].items() <= topics.items()
        groups = broker.parts.groups.to_json()["subscriptionGroupTable"]
        assert files["subscriptionGroup.json"]["subscriptionGroupTable"].items() <= groups.items()
        assert broker.parts.offsets.to_json()["offsetTable"] == files["consumerOffset.json"]["offsetTable"]
        assert [(level.level, level.offset, level.max_offset) for level in broker.parts.delay.facts()] == [
            (1, 4, 4),
            (2, 1, 1),
        ]
        for name, queue_id in broker.store.queues():
            high = await broker.ask(30, topic=name, queueId=queue_id)
            assert high.fields["offset"] == str(broker.store.reads.max_offset(name, queue_id))


async def test_a_header_that_json_makes_long_is_taken_and_what_is_beyond_a_message_is_answered(tmp_path):
    """3,900 short properties have 31 kB in a record and 70 kB in a header, which has each separator as
    \\u0001."""
    most = "".join(f"{number}\x01v\x02" for number in range(3_900))
    # The broker adds its own properties and the unique key.
    nearly = "UNIQ_KEY\x01U\x02" + "\x01\x02" * 16_000
    async with Running(tmp_path / "store", mappedFileSizeCommitLog=str(1 << 20)) as running:
        assert (await running.send(b"many", properties=f"UNIQ_KEY\x01U\x02{most}")).code == 0
        assert (await running.send(b"nearly", properties=nearly)).code == 0
        too_much = {
            "properties": await running.send(b"x", properties="UNIQ_KEY\x01U\x02" + "a\x01b\x02" * 9_000),
            "all six bytes a letter": await running.send(b"x", properties="\x01" * 40_000),
            "body": await running.send(b"x" * (running.settings.store.max_message_size + 1)),
        }
        for what, answer in too_much.items():
            assert answer.code == 13 and "32KB" in answer.remark, (what, answer)
        long_name = await running.send(b"x", topic="T" * 200)
        assert long_name.code not in (0, 1) and "longer" in long_name.remark, long_name
        assert not running.channel.closed
        assert (await running.send(b"still")).code == 0


async def test_a_stop_saves_the_positions_of_its_last_pops(tmp_path):
    """Another broker than this one does not read them from the log."""
    async with Running(tmp_path / "store") as running:
        for number in range(3):
            assert (await running.send(b"m%d" % number)).code == 0
        answer = await running.ask(
            200050, consumerGroup="CG", topic="Orders", queueId=0, maxMsgNums=2, invisibleTime=60_000,
            pollTime=0, initMode=0,
        )  # fmt: skip
        assert answer.code == 0
    saved = config_json.read((tmp_path / "store" / "config" / "consumerOffset.json").read_text())
    assert saved["offsetTable"]["Orders@CG"] == {0: 2}


async def test_the_average_size_of_puts_is_that_of_records_as_apaches(tmp_path):
    async with Running(tmp_path) as running:
        for body in (b"x" * 100, b"y" * 300):
            assert (await running.send(body)).code == 0
        table = table_bodies.decode_table((await running.ask(28)).body)
        written = running.store.log.wrote
    assert table["putMessageTimesTotal"] == "2"
    assert int(table["putMessageSizeTotal"]) == written > 400
    assert float(table["putMessageAverageSize"]) == written / 2


STATIC = """{"bname":"broker-a","epoch":1,"topic":"Static","totalQueues":1,"hostedQueues":{0:[
    {"bname":"old","gen":0,"logicOffset":0,"queueId":0},
    {"bname":"broker-a","gen":1,"logicOffset":10000,"queueId":2}]}}"""
STATIC_FIELDS = {
    "topic": "Static",
    "defaultTopic": "TBW102",
    "readQueueNums": 3,
    "writeQueueNums": 3,
    "perm": 6,
}
MAPPING_FILE = "config/topicQueueMapping.json"


async def test_a_static_topic_goes_on_after_a_restart(tmp_path):
    async with Running(tmp_path, brokerName="broker-a") as running:
        assert (await running.ask(513, STATIC.encode(), **STATIC_FIELDS)).code == 0
        assert (await running.send(b"one", "Static")).fields["queueOffset"] == "10000"
    (
        tmp_path / "config" / "topics.json"
    ).unlink()  # as after a crash: the queues and the mapping make it again
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
    async with Running(tmp_path, brokerName="broker-a") as running:
        answer = await running.send(b"two", "Static")
        assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "10001")
        answer = await running.pull("Static", 10_000)
        assert [one.body for one in record.decode_all(answer.body, check_crc=True)] == [b"one", b"two"]
        assert answer.fields["offsetDelta"] == "10000"
        assert (await running.ask(215, topic="Static")).code == 0
    assert '"Static"' not in (tmp_path / MAPPING_FILE).read_text()


async def test_a_bad_mapping_stops_the_start_though_the_one_before_is_sound(tmp_path):
    async with Running(tmp_path, brokerName="broker-a") as running:
        for _ in range(2):
            assert (await running.ask(513, STATIC.encode(), **STATIC_FIELDS)).code == 0
    assert (tmp_path / f"{MAPPING_FILE}.bak").exists()
    (tmp_path / MAPPING_FILE).write_text("{")
    running = Running(tmp_path, brokerName="broker-a")
    with pytest.raises(DamagedStoreError, match="topicQueueMapping.json"):
        await running.__aenter__()
    await asyncio.to_thread(running.store.close)
