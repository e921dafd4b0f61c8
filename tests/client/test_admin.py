import asyncio

import pytest

from broker_store.client import Admin, Producer, PullConsumer, PushConsumer
from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.errors import FormatError, NameError_, NotFoundError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets, decode_topic_stats
from tests.client.conftest import Inbox

RETRY_POLICIES = (
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 60_000, "max": 600_000, "multiplier": 2}},
    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [60_000, 120_000]}},
)
FIRST_RETRY_QUEUE = 2  # of level 3


@pytest.fixture
async def admin(cluster):
    async with Admin(cluster.nameservers) as admin:
        yield admin


def queue(number, topic="T"):
    return MessageQueue(topic, "broker-a", number)


async def test_the_cluster_is_shown(cluster, admin):
    info = await admin.cluster_info()
    assert info.clusters == {"C": ["broker-a"]}
    assert info.brokers["broker-a"].addresses == {0: cluster.address}
    assert (await admin.broker_runtime_info(cluster.address))["brokerVersion"] == "479"
    assert (await admin.broker_config(cluster.address))["brokerName"] == "broker-a"


async def test_a_topic_is_created_changed_listed_and_deleted(cluster, admin):
    await admin.create_topic("T", read_queues=3, write_queues=2, attributes={"message.type": "NORMAL"})
    config = (await admin.topic_configs(cluster.address))["T"]
    assert (config.read_queue_nums, config.write_queue_nums, config.attributes) == (
        3,
        2,
        {"message.type": "NORMAL"},
    )
    assert "T" in await admin.topics()
    assert (await admin.route("T")).queues[0].read_queue_nums == 3
    await admin.create_topic("T", read_queues=4, write_queues=4, perm=4, cluster="C", broker_name="broker-a")
    assert (await admin.route("T")).queues[0].perm == 4
    await admin.delete_topic("T")
    assert "T" not in await admin.topics()
    with pytest.raises(NoRouteError):
        await admin.route("T")


async def test_where_there_is_no_such_broker_nothing_is_created(admin):
    with pytest.raises(NotFoundError):
        await admin.create_topic("T", cluster="D")
    with pytest.raises(NotFoundError):
        await admin.create_topic("T", broker_name="broker-z")
    for call in (admin.create_topic, admin.delete_topic, admin.create_group, admin.delete_group):
        with pytest.raises(NameError_):
            await call("../T")
    with pytest.raises(AnswerError):
        await admin.create_topic("TBW102")


async def test_groups_are_created_listed_and_deleted(cluster, admin):
    await admin.create_group("g", retryMaxTimes=3)
    assert (await admin.group_configs(cluster.address))["g"]["retryMaxTimes"] == 3
    await admin.delete_group("g")
    assert "g" not in await admin.group_configs(cluster.address)


async def test_a_groups_retry_policy_is_told_and_does_not_act(cluster, admin):
    await a_retry_policy_is_told_and_does_not_act(cluster.nameservers)
    before = await admin.group_configs(cluster.address)
    for nonsense in ({"type": "SOMETIMES"}, {"customizedRetryPolicy": {"next": [-1]}}, "never"):
        with pytest.raises(AnswerError, match="groupRetryPolicy|customizedRetryPolicy"):
            await admin.create_group("patient-customized", groupRetryPolicy=nonsense)
    assert await admin.group_configs(cluster.address) == before


async def a_retry_policy_is_told_and_does_not_act(nameservers):
    """What a handler fails waits at level 3, as without a policy (decision 24); also at Apache's broker."""

    async def waiting():
        answer = await admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "SCHEDULE_TOPIC_XXXX"})
        return {
            queue.queue_id: offsets.max_offset for queue, offsets in decode_topic_stats(answer.body).items()
        }

    async with Admin(nameservers) as admin, Producer(nameservers) as producer:
        ((address, *_),) = [
            list(broker.addresses.values()) for broker in (await admin.cluster_info()).brokers.values()
        ]
        for policy in RETRY_POLICIES:
            group = f"patient-{policy['type'].lower()}"
            await admin.create_group(group, groupRetryPolicy=policy)
            told = (await admin.group_configs(address))[group]["groupRetryPolicy"]
            assert {name: told[name] for name in policy} == policy
            before = await waiting()
            await producer.send(f"of-{group}", b"x", queue_id=0)
            async with (
                PushConsumer(group, nameservers, consume_from="first").subscribe(f"of-{group}") as consumer,
                asyncio.timeout(20),
            ):
                await consumer.start(Inbox(failures=1))
                while (after := await waiting()) == before:
                    await asyncio.sleep(0.02)
            assert after == before | {FIRST_RETRY_QUEUE: before.get(FIRST_RETRY_QUEUE, 0) + 1}


async def test_a_groups_progress_is_shown_and_set(cluster, admin):
    async with Producer(cluster.nameservers) as producer, PullConsumer("g", cluster.nameservers) as consumer:
        for _ in range(3):
            await producer.send("T", b"x", queue_id=0)
        await consumer.pull(queue(0), 0)
        await consumer.commit(queue(0), 2)
    assert (await admin.topic_stats("T"))[queue(0)][:2] == (0, 3)
    assert (await admin.consume_stats("g", "T"))[queue(0)][:2] == ConsumeOffsets(3, 2)[:2]
    assert (await admin.consume_stats("g"))[queue(0)].consumer_offset == 2
    assert await admin.groups_of_topic("T") == ["g"]
    assert (await admin.reset_offset("g", "T", 0))[queue(0)] == 0
    assert (await admin.reset_offset("g", "T", -1, queue_id=0, offset=1)) == {queue(0): 1}
    assert (await admin.consume_stats("g", "T"))[queue(0)].consumer_offset == 1


async def test_messages_are_found_by_key_and_by_both_ids(cluster, admin):
    async with Producer(cluster.nameservers) as producer:
        receipt = await producer.send("T", b"hello", keys=["k1", "k2"])
        await producer.send("T", b"other", keys=["k3"])
    (found,) = await admin.query_messages("T", "k2")
    assert found.message_id == receipt.message_id
    (found,) = await admin.query_messages("T", receipt.message_id, unique=True)
    assert (found.body, found.broker_name) == (b"hello", "broker-a")
    assert await admin.query_messages("T", "none") == []
    viewed = await admin.view_message(receipt.offset_message_id)
    assert (viewed.message_id, viewed.broker_name) == (receipt.message_id, "broker-a")
    with pytest.raises(FormatError):
        await admin.view_message("nonsense")
    with pytest.raises(NotFoundError):
        await admin.view_message(receipt.offset_message_id[:16] + "00000000FFFFFFFF")


async def test_who_is_online_is_shown(cluster, admin):
    assert await admin.consumer_connections("g", cluster.address) is None
    consumer = await PushConsumer("g", cluster.nameservers).subscribe("TBW102").start(Inbox())
    connections = await admin.consumer_connections("g", cluster.address)
    assert [item["clientId"] for item in connections["connectionSet"]] == [consumer._session.client_id]
    await consumer.close()


async def test_the_key_value_table_is_changed_everywhere(admin):
    assert await admin.get_config("N", "k") is None
    await admin.put_config("N", "k", "v")
    assert await admin.get_config("N", "k") == "v"
    await admin.delete_config("N", "k")
    assert await admin.get_config("N", "k") is None
