"""Each key that docs/SETTINGS.md lists as acting is changed here, or in the test named here, and the effect
is seen."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import struct
import time
from pathlib import Path

import pytest

from broker_store import assembly
from broker_store.config.load import acting_settings, load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.retention.retention import Retention
from broker_store.errors import ConfigError, DamagedStoreError
from broker_store.formats import record
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import GetRequest, GetStatus, Message, PutStatus
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat
from broker_store.protocol.command import Command
from broker_store.server import registration
from broker_store.server.broker import Broker
from broker_store.server.certificate import self_signed
from broker_store.server.nameserver_port import NameServerPort
from tests.support.broker_harness import Harness
from tests.support.hand_store import Clock, HandStore
from tests.support.ports import free_port

NOW_MS = 1_800_000_000_000
SMALL = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
}

EFFECTS: dict[str, object] = {}
# Key -> a test file that sets the attribute and checks the effect.
SEEN_ELSEWHERE = {
    "acceptDamage": "engine/test_golden_stores.py",
    "transientStorePoolEnable": "engine/test_buffer_pool.py",
    "transientStorePoolSize": "engine/test_buffer_pool.py",
    "fastFailIfNoBufferInStorePool": "engine/test_buffer_pool.py",
    "commitIntervalCommitLog": "engine/test_buffer_pool.py",
    "commitCommitLogLeastPages": "engine/test_buffer_pool.py",
    "commitCommitLogThoroughInterval": "engine/test_buffer_pool.py",
    "wakeCommitWhenPutMessage": "engine/test_buffer_pool.py",
    "maxMappedFiles": "engine/test_queue_maps.py",
    "enableSlaveActingMaster": "replication/test_acting.py",
    "enableRemoteEscape": "replication/test_acting.py",
    "brokerNotActiveTimeoutMillis": "replication/test_acting.py",
    "syncBrokerMemberGroupPeriod": "replication/test_acting.py",
    "skipPreOnline": "replication/test_acting.py",
    "tls.server.mode": "server/test_tls_ports.py",
    "tls.server.need.client.auth": "server/test_tls_ports.py",
    "tls.server.trustCertPath": "server/test_tls_ports.py",
    "tls.enable": "server/test_tls_ports.py",
    "tls.client.trustCertPath": "server/test_tls_ports.py",
    "tls.client.certPath": "server/test_tls_ports.py",
    "tls.client.keyPath": "server/test_tls_ports.py",
    "tls.client.keyPassword": "server/test_tls_ports.py",
    "proxyProtocolAddresses": "server/test_tls_ports.py",
    "nameServerChangeAddresses": "nameserver/test_changers.py",
    "metricsNames": "mqadmin/test_metrics.py",
    "metricsOtlpEndpoint": "mqadmin/test_otlp.py",
    "metricsOtlpInterval": "mqadmin/test_otlp.py",
    "maxOffsets": "server/test_many.py",
    "maxUnfinishedBytes": "server/test_shares.py",
    "maxPercentOfAddress": "server/test_shares.py",
    "maxPercentOfUser": "server/test_shares.py",
    "gatewayAddresses": "server/test_shares.py",
    "haListenPort": "replication/test_pair.py",
    "haMasterAddress": "replication/test_pair.py",
    "haSlaveAddresses": "replication/test_feeder.py",
    "haTlsEnable": "replication/test_tls.py",
    "haTransferBatchSize": "replication/test_feeder.py",
    "haSendHeartbeatInterval": "replication/test_feeder.py",
    "haHousekeepingInterval": "replication/test_follower.py",
    "haMaxGapNotInSync": "replication/test_pair.py",
    "slaveReadEnable": "replication/test_reads.py",
    "enableControllerMode": "replication/test_failover.py",
    "controllerAddr": "replication/test_failover.py",
    "brokerHeartbeatInterval": "replication/test_failover.py",
    "sendHeartbeatTimeoutMillis": "replication/test_failover.py",
    "controllerHeartBeatTimeoutMills": "replication/test_failover.py",
    "syncBrokerMetadataPeriod": "replication/test_failover.py",
    "syncControllerMetadataPeriod": "replication/test_failover.py",
    "checkSyncStateSetPeriod": "replication/test_failover.py",
    "brokerElectionPriority": "replication/test_failover.py",
    "haMaxTimeSlaveNotCatchup": "replication/test_failover.py",
    "minInSyncReplicas": "replication/test_failover.py",
    "asyncLearner": "replication/test_epoch_follower.py",
    "syncFromLastFile": "replication/test_epoch_follower.py",
    "inSyncReplicas": "engine/test_log_copy.py",
    "slaveTimeout": "engine/test_log_copy.py",
    "brokerPermission": "server",
    "autoCreateTopicEnable": "server",
    "autoCreateSubscriptionGroup": "server",
    "longPollingEnable": "server",
    "shortPollingTimeMills": "server",
    "regionId": "server",
    "traceOn": "server",
    "notifyConsumerIdsChangedEnable": "server",
    "maxTopics": "server/test_many.py",
    "maxGroups": "server/test_many.py",
    "maxAutoCreatedTopics": "server",
    "maxAutoCreatedGroups": "server",
    "maxConnections": "server",
    "maxParkedPulls": "server",
    "sendThreadPoolQueueCapacity": "server",
    "brokerFastFailureEnable": "server",
    "waitTimeMillsInSendQueue": "server",
    "inspect": "engine/test_inspect.py",
    "rejectTransactionMessage": "server",
    "litePullMessageEnable": "server",
    "enablePropertyFilter": "server/test_property_filters.py",
    "filterSupportRetry": "server/test_property_filters.py",
    "filterDataCleanTimeSpan": "server/test_property_filters.py",
    "enableBroadcastOffsetStore": "server",
    "storeReplyMessageEnable": "server",
    "transactionCheckMax": "server",
    "transactionTimeOut": "interop/test_transactions.py",
    "timerWheelEnable": "server/test_timer.py",
    "timerMaxDelaySec": "server/test_timer.py",
    "timerCongestNumEachSlot": "server/test_timer.py",
    "reviveQueueNum": "server/test_pop.py",
    "enableRetryTopicV2": "server/test_pop_again.py",
    "retrieveMessageFromPopRetryTopicV1": "server/test_pop_again.py",
    "popFromRetryProbability": "server/test_pop_again.py",
    "popFromRetryProbabilityForPriority": "server/test_pop_priorities.py",
    "priorityOrderAsc": "server/test_pop_priorities.py",
    "defaultMessageRequestMode": "server/test_request_modes.py",
    "defaultPopShareQueueNum": "server/test_request_modes.py",
    "popPollingSize": "server/test_pop_waiting.py",
    "maxPopPollingSize": "server/test_pop_waiting.py",
    "recallMessageEnable": "server/test_timer.py",
    "allowRecallWhenBrokerNotWriteable": "server/test_timer.py",
    "mappedFileSizeTimerLog": "engine/test_timer_files.py",
    "authenticationEnabled": "server/test_access.py",
    "authorizationEnabled": "server/test_access.py",
    "authenticationWhitelist": "access/test_live.py",
    "authorizationWhitelist": "access/test_live.py",
    "initAuthenticationUser": "server/test_access.py",
    "innerClientAuthenticationCredentials": "server/test_access.py",
    "transactionCheckInterval": "interop/test_transactions.py",
    **{
        f"waitTimeMillsIn{kind}Queue": "broker/test_flow.py"
        for kind in ("Pull", "LitePull", "Heartbeat", "Transaction", "AdminBroker")
    },
}


def effect_of(*keys):
    def enter(test):
        EFFECTS.update(dict.fromkeys(keys, test))
        return test

    return enter


class Ticking(Clock):
    """A clock that moves on by `step_ms` whenever it is read."""

    step_ms = 0

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


class Setup:
    """Opens stores in a directory, with a clock and workers in the hands of the test."""

    def __init__(self, root: Path):
        self.root, self.clock = root, Ticking(NOW_MS)

    def open(self, **overrides) -> HandStore:
        overrides = {key: str(value) for key, value in (SMALL | overrides).items()}
        return HandStore(load_settings(overrides=overrides, store_root=self.root).store, self.clock).begin()


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path / "store")


def message(body=b"body", key="k", topic="T", properties=b"") -> Message:
    return Message(topic, 0, body, f"KEYS\x01{key}\x02".encode() + properties)


def fill(store, count, size=1000):
    for number in range(count):
        assert store.appender.put(message(bytes(size), f"k{number}")).ok


@effect_of("storePathRootDir", "storePathCommitLog")
def seen_paths(setup):
    elsewhere = setup.root.parent / "other-disk"
    setup.open(storePathCommitLog=elsewhere).close()
    assert list(elsewhere.iterdir()) and not (setup.root / "commitlog").exists()
    assert (setup.root / "checkpoint").exists()


@effect_of("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
def seen_sizes(setup):
    store = setup.open(
        mappedFileSizeCommitLog=32768, mappedFileSizeConsumeQueue=390, maxHashSlotNum=10, maxIndexNum=30
    )
    fill(store, 60)
    store.close()
    lengths = {
        path.parts[len(setup.root.parts)]: path.stat().st_size
        for path in setup.root.rglob("0*")
        if path.is_file()
    }
    assert lengths == {"commitlog": 32768, "consumequeue": 400}
    indexes = list((setup.root / "index").iterdir())
    assert {path.stat().st_size for path in indexes} == {40 + 4 * 10 + 20 * 30}
    assert len(indexes) == 3  # 29 entries a file


@effect_of("messageIndexEnable")
def seen_message_index_enable(setup):
    store = setup.open(messageIndexEnable="false")
    store.appender.put(message())
    assert store.reads.query_keys("T", "k", 32).offsets == []
    store.close()
    assert not (setup.root / "index").exists() or not list((setup.root / "index").iterdir())


@effect_of("enabledAppendPropCRC")
def seen_enabled_append_prop_crc(setup):
    store = setup.open(enabledAppendPropCRC="true")
    raw = store.reads.records.record_at(store.appender.put(message()).log_offset)
    assert record.decode(raw).raw_properties.endswith(record.record_crc_pair(raw[: -record.RECORD_CRC_BYTES]))
    store.close()


@effect_of("flushDiskType")
def seen_flush_disk_type(setup):
    store = setup.open(flushDiskType="SYNC_FLUSH")
    result = store.appender.put(message())
    assert store.confirmed < result.log_end and store.reads.max_offset("T", 0) == 0
    store.flush()
    assert store.confirmed == result.log_end and store.reads.max_offset("T", 0) == 1
    store.close()
    other = Setup(setup.root.parent / "async").open()
    assert other.appender.put(message()).log_end == other.confirmed
    other.close()


@effect_of(
    "flushIntervalCommitLog", "flushIntervalConsumeQueue", "cleanResourceInterval", "timerFlushIntervalMs"
)
def seen_intervals(setup):
    store = setup.open(
        flushIntervalCommitLog=20,
        flushIntervalConsumeQueue=700,
        cleanResourceInterval=4000,
        timerFlushIntervalMs=300,
    )
    store.close()
    assert [
        store.worker(name).interval_s
        for name in ("log-flusher", "round-flusher", "retention", "timer-flusher")
    ] == [0.02, 0.7, 4.0, 0.3]
    store = setup.open(flushIntervalCommitLog=60_000)
    store.close()
    # With the sync itself, nothing is older than a second and unsynced
    assert store.worker("log-flusher").interval_s == 0.5


@effect_of("timerRollWindowSlot")
async def seen_timer_roll_window_slot(setup):
    harness = Harness(timer_roll_window_slot=10)
    harness.parts.timer.start()
    await harness.send("TopicA", properties="TIMER_DELAY_SEC\x0115\x02UNIQ_KEY\x01U\x02")
    harness.parts.timer.step(harness.now_ms)
    (slot,) = harness.store.timer_files.pending(0)
    assert slot[0] == harness.now_ms // 1000 + 10


@effect_of("flushConsumeQueueThoroughInterval")
def seen_flush_consume_queue_thorough_interval(setup):
    store = setup.open(flushConsumeQueueThoroughInterval=5000)
    store.appender.put(message())
    store.flush()
    store.worker("round-flusher").run(NOW_MS + 4999)
    assert struct.unpack(">q", (setup.root / "checkpoint").read_bytes()[8:16]) != (NOW_MS,)
    store.worker("round-flusher").run(NOW_MS + 5000)
    assert struct.unpack(">q", (setup.root / "checkpoint").read_bytes()[8:16]) == (NOW_MS,)
    store.close()


@effect_of("syncFlushTimeout")
def seen_sync_flush_timeout(setup):
    store = setup.open(flushDiskType="SYNC_FLUSH", syncFlushTimeout=300)
    statuses = []
    store.confirmation.when_confirmed(store.appender.put(message()).log_end, statuses.append)
    for later, expected in ((299, []), (300, [PutStatus.FLUSH_DISK_TIMEOUT])):
        setup.clock.now_ms = NOW_MS + later
        store.tick()
        assert statuses == expected
    store.close()


@effect_of("maxMessageSize")
def seen_max_message_size(setup):
    store = setup.open(maxMessageSize=100)
    assert store.appender.put(message(bytes(100))).ok
    assert store.appender.put(message(bytes(101))).status is PutStatus.MESSAGE_ILLEGAL
    store.close()


@effect_of("fileReservedTime", "deleteFileBatchMax")
def seen_retention_by_age(setup):
    store = setup.open(fileReservedTime=2, deleteFileBatchMax=1)
    fill(store, 200)
    store.flush()
    store.round()  # what goes must be in queues and index on the disk
    modified_ms = int((setup.root / "commitlog/00000000000000000000").stat().st_mtime * 1000)
    setup.clock.now_ms = modified_ms + 2 * 3_600_000 - 60_000
    assert store.cleaning.delete_expired() == 0
    setup.clock.now_ms = modified_ms + 2 * 3_600_000 + 60_000
    assert [store.cleaning.delete_expired(), store.cleaning.delete_expired()] == [1, 1]
    assert store.status.positions().min == 2 * 65536
    store.close()


class FullDisk(Disk):
    """A disk of which so many per cent are used."""

    def __init__(self, used: int):
        self.used = used

    def usage(self, path):
        return Usage(100, 100 - self.used)


def look(used, hour=12, **overrides):
    settings = load_settings(overrides={key: str(value) for key, value in overrides.items()}).store
    now = time.localtime(NOW_MS / 1000)
    noon_ms = int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday, hour, 0, 0, 0, 0, -1)) * 1000)
    return Retention(FullDisk(used), settings, Path(".")).decide(noon_ms)


@effect_of("deleteWhen")
def seen_delete_when(setup):
    assert not look(1).delete_expired
    assert look(1, hour=4).delete_expired and look(1, deleteWhen="11;12").delete_expired


@effect_of(
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "cleanFileForciblyEnable",
)
def seen_disk_ratios(setup):
    ratios = {
        "diskMaxUsedSpaceRatio": 40,
        "diskSpaceCleanForciblyRatio": 50,
        "diskSpaceWarningLevelRatio": 60,
    }
    found = [look(used, **ratios) for used in (39, 45, 55, 65)]
    assert [(at.delete_expired, at.delete_any, at.disk_full) for at in found] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]
    assert not look(65, cleanFileForciblyEnable="false", **ratios).delete_any
    assert not look(65).disk_full


def test_the_fuller_of_two_disks_counts(tmp_path):
    class TwoDisks(Disk):
        def usage(self, path):
            return Usage(100, 5 if path == tmp_path else 90)

    (tmp_path / "log").mkdir()
    settings = load_settings().store
    assert not Retention(TwoDisks(), settings, tmp_path / "log").decide(NOW_MS).disk_full
    assert (
        Retention(TwoDisks(), settings, tmp_path / "log", tmp_path, tmp_path / "absent")
        .decide(NOW_MS)
        .disk_full
    )


@effect_of("checkCRCOnRecover")
def seen_check_crc_on_recover(setup):
    store = setup.open()
    results = []
    for number in range(3):
        setup.clock.now_ms += 10
        results.append(store.appender.put(message(bytes([65 + number]) * 50, f"k{number}")))
    store.close()
    path = setup.root / "commitlog/00000000000000000000"
    content = bytearray(path.read_bytes())
    content[results[1].log_offset + record.FIXED_IPV4.size] ^= 1
    path.write_bytes(content)
    store = setup.open(checkCRCOnRecover="false")
    assert store.reads.max_offset("T", 0) == 3
    store.close()
    with pytest.raises(DamagedStoreError):
        setup.open()


@effect_of("maxMsgsNumBatch")
def seen_max_msgs_num_batch(setup):
    store = setup.open(maxMsgsNumBatch=3)
    for _ in range(5):
        store.appender.put(message())
    assert len(store.reads.query_keys("T", "k", 32).offsets) == 3
    store.close()


@effect_of("maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInMemory")
def seen_limits_in_memory(setup):
    store = setup.open(maxTransferBytesOnMessageInMemory=4096, maxTransferCountOnMessageInMemory=7)
    fill(store, 20, 100)
    assert store.reads.get(GetRequest("T", 0, 0, 32)).count == 7
    fill(store, 20, 1000)
    assert store.reads.get(GetRequest("T", 0, 20, 32)).count == 3
    store.close()


@effect_of(
    "maxTransferBytesOnMessageInDisk", "maxTransferCountOnMessageInDisk", "accessMessageInMemoryMaxRatio"
)
def seen_limits_on_disk(setup):
    store = setup.open()
    fill(store, 20, 100)
    fill(store, 20, 1000)
    store.close()
    on_disk = {"maxTransferBytesOnMessageInDisk": 4096, "maxTransferCountOnMessageInDisk": 5}
    store = setup.open(accessMessageInMemoryMaxRatio=0, **on_disk)
    assert store.reads.get(GetRequest("T", 0, 0, 32)).count == 5
    assert store.reads.get(GetRequest("T", 0, 20, 32)).count == 3
    store.close()
    store = setup.open(**on_disk)  # 40 per cent of memory: nothing here is far from the end
    assert store.reads.get(GetRequest("T", 0, 0, 32)).count == 32
    store.close()


@effect_of("messageDelayLevel")
def seen_message_delay_level(setup):
    store = setup.open(messageDelayLevel="7s 3m")
    for level in (1, 2, 9):
        store.appender.put(message(topic=SCHEDULE_TOPIC, properties=f"DELAY\x01{level}\x02".encode()))
    codes = [unit.tags_code - NOW_MS for unit in store.reads.read_units(SCHEDULE_TOPIC, 0, 0, 3)]
    assert codes == [7000, 180_000, 180_000]
    store.close()


@effect_of("osPageCacheBusyTimeOutMills")
def seen_os_page_cache_busy_time_out_mills(setup):
    store = setup.open(osPageCacheBusyTimeOutMills=50)
    assert store.appender.put(message()).ok
    setup.clock.step_ms = 51  # the clock moves by so much whenever it is read, so also during an append
    assert store.appender.put(message()).ok
    setup.clock.step_ms = 0
    assert store.appender.put(message()).status is PutStatus.OS_PAGE_CACHE_BUSY
    assert store.rejects_sends == "page_cache_busy" and store.appender.busy_took_ms > 50
    setup.clock.now_ms += 200
    store.tick()
    assert store.rejects_sends is None
    assert store.appender.put(message()).ok
    store.close()


@effect_of("brokerRole")
def seen_broker_role(setup):
    store = setup.open(brokerRole="SLAVE", brokerId="1")
    assert (
        store.appender.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
        and store.rejects_sends == "slave"
    )
    assert store.reads.get(GetRequest("T", 0, 0)).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.close()


@effect_of("enableMixedMessageType")
async def seen_mixed_message_type(setup):
    topic = dict(
        topic="T2",
        defaultTopic="TBW102",
        readQueueNums=8,
        writeQueueNums=8,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
    )
    for enabled, code in ((False, 29), (True, 0)):
        answer = await Harness(enable_mixed_message_type=enabled).ask(
            17, attributes="+message.type=MIXED", **topic
        )
        assert answer.code == code


@effect_of("clusterTopicEnable", "brokerTopicEnable")
async def seen_template_topics(setup):
    for cluster, broker in ((True, False), (False, True)):
        topics = Harness(cluster_topic_enable=cluster, broker_topic_enable=broker).parts.topics
        assert (topics.get("DefaultCluster").perm, topics.get("broker-a").perm) == (
            7 if cluster else 6,
            7 if broker else 6,
        )


@effect_of("defaultTopicQueueNums")
async def seen_default_topic_queue_nums(setup):
    assert Harness(default_topic_queue_nums=3).parts.topics.auto_create("Made", "TBW102", 8).queues == 3


@effect_of("traceTopicEnable", "msgTraceTopicName")
async def seen_trace_topic(setup):
    assert Harness().parts.topics.get("RMQ_SYS_TRACE_TOPIC") is None
    assert Harness(trace_topic_enable=True).parts.topics.get("RMQ_SYS_TRACE_TOPIC") is not None
    assert (
        Harness(trace_topic_enable=True, msg_trace_topic_name="traces").parts.topics.get("traces") is not None
    )


@effect_of("broadcastOffsetExpireSecond", "broadcastOffsetExpireMaxSecond")
async def seen_broadcast_offsets_expire(setup):
    harness = Harness(broadcast_offset_expire_second=2, broadcast_offset_expire_max_second=5)
    parts = harness.parts
    parts.clients.heartbeat(
        harness.channel,
        Heartbeat("online", (), (ConsumerData("g", message_model="BROADCASTING"),)),
        "JAVA",
        1,
        0,
    )
    for client_id, offset in (("offline", 1), ("online", 3)):
        parts.broadcast.note("g", "t", 0, client_id, offset, 0)
    for now_ms, kept in ((1_999, 1), (2_000, 3)):
        parts.broadcast.step(now_ms)
        assert parts.offsets.of_broadcast("g") == {"t": {0: kept}}
    parts.broadcast.step(4_999)
    assert parts.broadcast._table
    parts.broadcast.step(5_000)
    assert not parts.broadcast._table


@effect_of("namesrvAddr", "registerNameServerPeriod", "registerBrokerTimeoutMills")
async def seen_registration(setup):
    settings = {
        "namesrv_addr": "10.0.0.1:9876;10.0.0.2:9877",
        "register_name_server_period": 20_000,
        "register_broker_timeout_mills": 7000,
    }
    peers = registration.Registration(Harness(**settings).parts).peers
    assert [peer.address for peer in peers] == ["10.0.0.1:9876", "10.0.0.2:9877"]
    limits, pauses = [], []

    async def register(configs, limit_s):
        limits.append(limit_s)

    def timeout(pause_s):
        pauses.append(pause_s)
        raise asyncio.CancelledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers[0], "_register", register)
        patch.setattr(registration.asyncio, "timeout", timeout)
        with pytest.raises(asyncio.CancelledError):
            await peers[0].run()
    assert (limits, pauses) == ([7.0], [20.0])


@effect_of("flushConsumerOffsetInterval")
async def seen_flush_consumer_offset_interval(setup):
    harness = Harness(flush_consumer_offset_interval=3000)
    broker = Broker(harness.parts)
    saved = []
    broker.config_writer.save = lambda name, make_text: saved.append(name)
    # Else they are written again
    harness.parts.store.config |= dict.fromkeys(
        ("topics.json", "subscriptionGroup.json", "consumerOffset.json"), "{}"
    )
    harness.parts.offsets.commit("G", "T", 0, 5)
    for later_ms, expected in ((2999, []), (1, ["consumerOffset.json"])):
        harness.now_ms += later_ms
        broker._tick()
        broker._timers["tick"].cancel()
        assert saved == expected


@effect_of("channelExpiredTimeout")
async def seen_channel_expired_timeout(setup):
    harness = Harness(channel_expired_timeout=5000)
    beat = {"clientID": "c1", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": []}
    assert (await harness.ask(34, json.dumps(beat).encode())).code == 0
    assert harness.parts.clients.scan(harness.now_ms + 5000) == []
    assert harness.parts.clients.scan(harness.now_ms + 5001) == [harness.channel]


@effect_of("scanNotActiveBrokerInterval")
async def seen_scan_not_active_broker_interval(setup):
    server = assembly.build_name_server(NameServerSettings(), setup.root)
    loop = asyncio.get_running_loop()
    port = NameServerPort(
        server,
        lambda: NOW_MS,
        NameServerSettings(scan_not_active_broker_interval=3000).scan_not_active_broker_interval,
    )
    began = loop.time()
    await port.start("127.0.0.1", 0)
    assert 3.0 <= port._timer.when() - began < 4.0
    await port.stop()


@effect_of("brokerName", "brokerClusterName", "brokerId", "brokerIP1", "listenPort")
async def seen_identity(setup):
    settings = {
        "broker_name": "n1",
        "broker_cluster_name": "c1",
        "broker_id": 3,
        "broker_ip1": "127.0.0.7",
        "listen_port": 12345,
    }
    parts = Harness(**settings).parts
    assert (parts.broker_name, parts.cluster, parts.settings.broker_id) == ("n1", "c1", 3)
    assert (parts.endpoint.address, parts.endpoint.store_host) == (
        "127.0.0.7:12345",
        (b"\x7f\x00\x00\x07", 12345),
    )


@effect_of("grpcServerPort")
async def seen_grpc_port(setup):
    for wanted in (0, free_port()):
        settings = load_settings(
            None,
            {
                "mappedFileSizeCommitLog": "65536",
                "maxHashSlotNum": "50",
                "maxIndexNum": "200",
                "listenPort": "0",
                "grpcServerPort": str(wanted),
            },
            store_root=setup.root / f"store{wanted}",
        )
        process = assembly.BrokerProcess(settings, with_name_server=False)
        await process.start()
        assert process.ports.get("grpc") == (f"127.0.0.1:{wanted}" if wanted else None)
        await process.stop()


@effect_of("tlsCertPath", "tlsKeyPath")
async def seen_certificate(setup):
    setup.root.mkdir(parents=True, exist_ok=True)
    file = setup.root / "own.pem"
    file.write_bytes(self_signed(["broker.example"], int(time.time() * 1000)))
    port = free_port()
    given = {
        "mappedFileSizeCommitLog": "65536",
        "maxHashSlotNum": "50",
        "maxIndexNum": "200",
        "listenPort": "0",
        "grpcServerPort": str(port),
        "tlsCertPath": str(file),
    }
    with pytest.raises(ConfigError, match="tlsKeyPath"):
        load_settings(None, given, store_root=setup.root / "none")
    settings = load_settings(None, given | {"tlsKeyPath": str(file)}, store_root=setup.root / "store")
    process = assembly.BrokerProcess(settings, with_name_server=False)
    await process.start()
    try:
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        assert shown in file.read_text()
    finally:
        await process.stop()


@effect_of("returnOrderTopicConfigToBroker", "deleteTopicWithBrokerRegistration")
def seen_name_server_switches(setup):
    register = Command.request(
        103,
        {"brokerName": "b", "brokerAddr": "1:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "1:2"},
    )
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}

    def topics_after(settings):
        server = assembly.build_name_server(settings, setup.root)
        server.handle(
            Command.request(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"}), None
        )
        for counter, names in ((1, ("T", "U")), (2, ("T",))):
            table = {
                name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                for name in names
            }
            wrapper = {"dataVersion": version | {"counter": counter}, "topicConfigTable": table}
            register.body = json.dumps(
                {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
            ).encode()
            answer = server.handle(register, None)
            assert answer.code == 0
        listed = server.handle(Command.request(206), None)
        return bool(answer.body), b'"U"' in listed.body

    assert topics_after(NameServerSettings()) == (True, True)
    assert topics_after(NameServerSettings(return_order_topic_config_to_broker=False)) == (False, True)
    assert topics_after(NameServerSettings(delete_topic_with_broker_registration=True)) == (True, False)


@effect_of("orderMessageEnable", "supportActingMaster")
def seen_in_routes(setup):
    register = {
        "brokerName": "b",
        "brokerAddr": "1:1",
        "clusterName": "c",
        "brokerId": "1",
        "haServerAddr": "1:2",
        "enableActingMaster": "true",
    }
    table = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("T", "U")
    }
    wrapper = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()

    def route_with(**settings):
        server = assembly.build_name_server(NameServerSettings(**settings), setup.root)
        server.handle(
            Command.request(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:1"}), None
        )
        assert server.handle(Command.request(103, register, body), None).code == 0
        route = json.loads(server.handle(Command.request(105, {"topic": "T"}, version=479), None).body)
        return route.get("orderTopicConf"), list(route["brokerDatas"][0]["brokerAddrs"])

    assert route_with() == (None, ["1"])
    assert route_with(order_message_enable=True) == ("b:1", ["1"])
    assert route_with(support_acting_master=True) == (None, ["0"])


@effect_of("notifyMinBrokerIdChanged")
def brokers_are_notified(setup):
    fields = {"brokerName": "b", "clusterName": "c", "haServerAddr": "1:2", "enableActingMaster": "true"}
    table = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("T", "U")
    }
    wrapper = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()

    def notified_with(**settings):
        server, notified = assembly.build_name_server(NameServerSettings(**settings), setup.root), []
        server.notify = notified.append
        for broker_id in ("1", "0"):
            register = fields | {"brokerId": broker_id, "brokerAddr": f"{broker_id}:1"}
            assert server.handle(Command.request(103, register, body), None).code == 0
        return [(change.lowest_id, change.addresses) for change in notified]

    assert notified_with() == []
    assert notified_with(notify_min_broker_id_changed=True) == [(0, ("1:1",))]


@pytest.mark.parametrize("key", sorted(EFFECTS))
async def test_changing_the_setting_has_its_effect(key, setup):
    found = EFFECTS[key](setup)
    if found is not None:
        await found


def test_every_acting_key_is_seen_somewhere():
    acting = {field.metadata["setting"].key: field.name for _, field in acting_settings()}
    for key, place in SEEN_ELSEWHERE.items():
        path = Path(__file__).parent / place
        text = "".join(file.read_text() for file in ([path] if path.is_file() else path.glob("*.py")))
        assert re.search(rf"\b({acting[key]}|{key})\b", text), key
    assert acting.keys() == EFFECTS.keys() | SEEN_ELSEWHERE.keys()
