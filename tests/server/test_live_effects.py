"""Each setting that request 25 changes: what the change does to the next request, or to the next round.

Each test asks one broker for the same before and after the change.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker_store.broker.topics import TopicConfig
from broker_store.client.message import Outgoing, encode_properties
from broker_store.config.broker import BrokerSettings
from broker_store.config.live import live_fields
from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk, Usage
from broker_store.engine.retention.retention import Retention
from broker_store.formats import record
from broker_store.messages import Message
from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription, encode_heartbeat
from broker_store.protocol.command import Command
from broker_store.server import registration
from broker_store.server.broker import Broker
from tests.server import test_timer
from tests.server.test_live_settings import OTHER
from tests.server.test_replies import reply
from tests.server.test_transactions import HALF
from tests.server.test_with_engine import Running
from tests.support.broker_harness import FakeChannel, Harness
from tests.support.pop_calls import bodies, popped, stocked
from tests.support.waits import until

BUSY = 2


async def code_of_pull(harness: Harness, **options) -> int:
    return (await harness.pull("TopicX", 1, **options)).code


def waiting(code: int, waited_ms: int) -> Callable[[Harness, int], Awaitable[int]]:
    """Return what shows whether a request that waited on its connection is still handled."""

    async def see(harness: Harness, turn: int) -> int:
        answer = harness.router.waited(Command.request(code), harness.channel, waited_ms, 7)
        return 0 if answer is None else answer.code

    return see


async def trace_of_a_message(harness: Harness, turn: int) -> str:
    await harness.send("TopicX", 3, b"x")
    return harness.store.messages("TopicX", 3)[-1].properties["TRACE_ON"]


async def stored_replies(harness: Harness, turn: int) -> int:
    if not turn:
        asker = FakeChannel(7)
        asker.reply = lambda command: command.answer()
        await harness.ask(34, encode_heartbeat(Heartbeat("asker", ("PG",), ())), channel=asker)
    assert (await reply(harness)).code == 0
    return len(harness.store.messages("DefaultCluster_REPLY_TOPIC"))


async def notices(harness: Harness, turn: int) -> int:
    channel = FakeChannel(60_000 + turn)
    data = ConsumerData("CG", subscriptions=(Subscription("TopicX", "*", version=1),))
    await harness.ask(34, encode_heartbeat(Heartbeat(f"c{turn}", (), (data,))), channel=channel)
    return len(channel.answers)


async def waits_ms(harness: Harness, turn: int) -> int:
    """Return how long a pull is parked."""
    harness.park("TopicX", 2, suspend_ms=15_000)
    parked = harness.parts.parked
    for later_ms in (50, 1_000, 15_000):
        if parked.expired(harness.now_ms + later_ms):
            return later_ms
    raise AssertionError("it is parked without end")


async def what_a_retry_topic_gives(harness: Harness, turn: int) -> int:
    subscriptions = tuple(
        Subscription(topic, text, "SQL92", 1) for topic, text in (("S1", "a > 3"), ("%RETRY%G", "a >= 0"))
    )
    data = ConsumerData("G", subscriptions=subscriptions)
    await harness.ask(34, encode_heartbeat(Heartbeat("c1", (), (data,))))
    if not turn:
        for number in range(6):
            pairs = encode_properties(Outgoing(b"", properties={"a": str(number), "RETRY_TOPIC": "S1"}), "U")
            harness.store.appender.put(Message("%RETRY%G", 0, b"x", pairs.encode()))
    answer = await harness.ask(
        11, consumerGroup="G", topic="%RETRY%G", queueId=0, queueOffset=0, maxMsgNums=32, sysFlag=0,
        commitOffset=0, suspendTimeoutMillis=0, subVersion=1,
    )  # fmt: skip
    return len(record.decode_all(answer.body))


async def first_pop(harness: Harness, turn: int) -> bytes:
    for topic, queue_id, body in (("%RETRY%CG_TopicX", 0, b"old"), ("TopicX", 1, b"new")):
        harness.parts.topics.ensure_pop_retry("%RETRY%CG_TopicX")
        harness.store.appender.put(Message(topic, queue_id, body))
    return bodies(await popped(harness, count=1))[0]


async def first_pop_by_priority(harness: Harness, turn: int) -> bytes:
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, attributes={"message.type": "PRIORITY"}))
    return await first_pop(harness, turn)


async def highest_queue(harness: Harness, turn: int) -> int:
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4, attributes={"message.type": "PRIORITY"}))
    for queue_id in (0, 3):
        harness.store.appender.put(Message("TopicX", queue_id, b"new"))
    return int((await popped(harness, count=1)).fields["msgOffsetInfo"].split(" ")[1])


async def recalled(harness: Harness, turn: int) -> int:
    handle = (await test_timer.send(harness, TIMER_DELAY_SEC=10)).fields["recallHandle"]
    return (await test_timer.recall(harness, handle)).code


async def mixed_topic(harness: Harness, turn: int) -> int:
    fields = dict(
        topic="Mixed", defaultTopic="TBW102", readQueueNums=8, writeQueueNums=8, perm=6,
        topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False, attributes="+message.type=MIXED",
    )  # fmt: skip
    return (await harness.ask(17, **fields)).code


class EmptyDisk(Disk):
    def usage(self, path):
        return Usage(100, 99)


async def deletes_at_five(harness: Harness, turn: int) -> bool:
    now = time.localtime(harness.now_ms / 1000)
    five_ms = int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday, 5, 0, 0, 0, 0, -1)) * 1000)
    return Retention(EmptyDisk(), harness.parts.store_settings, Path(".")).decide(five_ms).delete_expired


async def offsets_are_saved(harness: Harness, turn: int) -> bool:
    """Return whether a tick 700 ms after the last save saves again."""
    broker, saved = Broker(harness.parts), []
    broker.config_writer.save = lambda name, make_text: saved.append(name)
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
    harness.parts.store.config |= dict.fromkeys(names, "{}")
    harness.parts.offsets.commit("G", "T", 0, 5 + turn)
    harness.now_ms += 700
    broker._tick()
    broker._timers["tick"].cancel()
    return "consumerOffset.json" in saved


async def registration_pause_s(harness: Harness, turn: int) -> float:
    (peer,) = registration.Registration(harness.parts).peers
    pauses: list[float] = []

    async def register(configs, limit_s):
        pass

    def timeout(pause_s):
        pauses.append(pause_s)
        raise asyncio.CancelledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "_register", register)
        patch.setattr(registration.asyncio, "timeout", timeout)
        with pytest.raises(asyncio.CancelledError):
            await peer.run()
    return pauses[0]


def code(made: Callable[[Harness, int], Awaitable[Command]]) -> Callable[[Harness, int], Awaitable[int]]:
    async def see(harness: Harness, turn: int) -> int:
        return (await made(harness, turn)).code

    return see


def lite_pull(harness: Harness, turn: int) -> Awaitable[Command]:
    return harness.ask(361, **harness.pull_fields("TopicX", 1, 0))


# Key -> (value, what shows the effect, what that is before, and after)
EFFECTS = {
    "autoCreateSubscriptionGroup": ("false", code(lambda h, n: h.pull("TopicX", 1, group=f"G{n}")), 0, 26),
    "autoCreateTopicEnable": ("false", code(lambda h, n: h.send(f"New{n}")), 0, 17),
    "brokerFastFailureEnable": ("false", waiting(310, 60_000), BUSY, 0),
    "brokerPermission": ("2", code(lambda h, n: h.pull("TopicX", 1)), 0, 16),
    "deleteWhen": ("05", deletes_at_five, False, True),
    "enableMixedMessageType": ("true", mixed_topic, 29, 0),
    "filterSupportRetry": ("true", what_a_retry_topic_gives, 6, 2),
    "flushConsumerOffsetInterval": ("700", offsets_are_saved, False, True),
    "litePullMessageEnable": ("false", code(lite_pull), 0, 16),
    "longPollingEnable": ("false", waits_ms, 15_000, 1_000),
    "notifyConsumerIdsChangedEnable": ("false", notices, 1, 0),
    "popFromRetryProbability": ("100", first_pop, b"x", b"old"),
    "popFromRetryProbabilityForPriority": ("100", first_pop_by_priority, b"x", b"old"),
    "priorityOrderAsc": ("false", highest_queue, 3, 0),
    "recallMessageEnable": ("true", recalled, 16, 0),
    "registerNameServerPeriod": ("15000", registration_pause_s, 30.0, 15.0),
    "rejectTransactionMessage": (
        "true",
        code(lambda h, n: h.send("TopicX", 3, b"paid", HALF, sys_flag=4)),
        0,
        16,
    ),
    "shortPollingTimeMills": ("50", waits_ms, 1_000, 50),
    "storeReplyMessageEnable": ("false", stored_replies, 1, 1),
    "traceOn": ("false", trace_of_a_message, "true", "false"),
    "waitTimeMillsInAdminBrokerQueue": ("7", waiting(25, 8), 0, BUSY),
    "waitTimeMillsInHeartbeatQueue": ("7", waiting(34, 8), 0, BUSY),
    "waitTimeMillsInLitePullQueue": ("7", waiting(361, 8), 0, BUSY),
    "waitTimeMillsInPullQueue": ("7", waiting(11, 8), 0, BUSY),
    "waitTimeMillsInSendQueue": ("7", waiting(310, 8), 0, BUSY),
    "waitTimeMillsInTransactionQueue": ("7", waiting(37, 8), 0, BUSY),
}
GIVEN = {
    "registerNameServerPeriod": {"namesrv_addr": "10.0.0.1:9876"},
    "shortPollingTimeMills": {"long_polling_enable": False},
}
OF_THE_STORE = "deleteFileBatchMax"


def test_each_setting_that_may_be_changed_has_an_effect_here():
    live = live_fields(BrokerSettings, StoreSettings).keys()
    assert EFFECTS.keys() | {OF_THE_STORE} == live == OTHER.keys()


@pytest.mark.parametrize("key", sorted(EFFECTS))
async def test_a_change_acts_on_the_next_request_or_round(key):
    value, see, before, after = EFFECTS[key]
    harness = stocked(b"x", **GIVEN.get(key, {}))
    harness.parts.topics.put(TopicConfig("TopicX", 4, 4))
    assert await see(harness, 0) == before
    assert (await harness.ask(25, f"{key}={value}\n".encode())).code == 0
    assert await see(harness, 1) == after


async def test_a_changed_number_of_files_is_deleted_at_a_time(tmp_path):
    async with Running(
        tmp_path, flushIntervalConsumeQueue="100", flushConsumeQueueThoroughInterval="200"
    ) as running:
        for _ in range(12):
            for _ in range(10):
                assert (await running.send(b"x" * 6_000)).code == 0
        # What goes must be in queues and index on the disk.
        await until(lambda: (running.store.cleaning._round_flusher.position or 0) > 4 * 65_536)
        four_days_ago = time.time() - 4 * 86_400
        for file in (tmp_path / "commitlog").iterdir():
            os.utime(file, (four_days_ago, four_days_ago))
        begins = []
        for most in (1, 2):
            assert (await running.ask(25, b"deleteFileBatchMax=%d\n" % most)).code == 0
            assert (await running.ask(329)).code == 0
            begins.append(running.store.status.positions().min)
    assert begins == [65_536, 3 * 65_536]
