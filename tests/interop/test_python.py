"""The Python client and the Java client in one group, and what Python sends that Java receives."""

import asyncio

from broker_store.client import Producer, PushConsumer, TransactionProducer
from tests.interop.brokers import OurBroker
from tests.interop.lines import acknowledged, names, place
from tests.interop.test_apache_with_python import what_waits_appears_at_its_time
from tests.support.waits import until

MESSAGES = 400
TRACES = "RMQ_SYS_TRACE_TOPIC"
# Kind of record -> the field that names the group.
GROUPS_IN = {"Pub": 3, "SubBefore": 3, "SubAfter": 8}


def of_queue(lines, queue):
    return [line["offset"] for line in lines if line.get("queue") == queue and not line.get("failed")]


async def test_java_and_python_members_share_the_queues_of_a_group(java):
    topic, group = names(java, "shared", "sharers")
    java.admin(f"create_topic\t{topic}\t8\t8\t6")
    member = java.start("consume", group=group, topics=topic)
    received = []

    async def handle(message):
        received.append(message)

    try:
        await asyncio.to_thread(member.until_ready)
        async with PushConsumer(group, java.nameserver, consume_from="first").subscribe(topic) as consumer:
            await consumer.start(handle)
            await until(lambda: len([queue for queue in consumer.assignment if queue.topic == topic]) == 4)
            mine = {queue.queue_id for queue in consumer.assignment if queue.topic == topic}
            sent = acknowledged(await asyncio.to_thread(java.run, "send", topics=topic, n=MESSAGES))
            wanted = {line["key"] for line in sent}
            await asyncio.to_thread(
                member.until,
                lambda lines: (
                    wanted <= {line.get("key") for line in lines} | {message.keys[0] for message in received}
                ),
                60,
            )
            # Java noticed the other member at once; what it had begun before may come twice.
            assert {message.queue.queue_id for message in received} == mine
        await asyncio.to_thread(java.run, "send", topics=topic, n=MESSAGES, run="s")
        # The Python member has left, and all queues are Java's.
        lines = await asyncio.to_thread(
            member.until,
            lambda lines: {f"skey{i}" for i in range(MESSAGES)} <= {line.get("key") for line in lines},
            60,
        )
        assert {line["queue"] for line in lines if line.get("key", "").startswith("skey")} == set(range(8))
        await asyncio.to_thread(member.finish)
    finally:
        member.kill()


async def test_order_is_kept_when_a_queue_goes_from_python_to_java(java):
    topic, group = names(java, "ordered", "order-keepers")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    sent = acknowledged(await asyncio.to_thread(java.run, "send", topics=topic, n=MESSAGES, mode="ordered"))
    first = []
    async with PushConsumer(group, java.nameserver, consume_from="first", orderly=True).subscribe(
        topic
    ) as consumer:
        async for message in consumer:
            first.append({"topic": topic, "queue": message.queue.queue_id, "offset": message.queue_offset})
            if len(first) == MESSAGES // 2:
                await consumer.ack(message)
                break
    member = java.start("consume", group=group, topics=topic, orderly="true")
    try:
        enough = MESSAGES - len(first)
        second = [
            line
            for line in await asyncio.to_thread(
                member.until, lambda lines: len([line for line in lines if "key" in line]) >= enough, 90
            )
            if "key" in line
        ]
        await asyncio.to_thread(member.finish)
    finally:
        member.kill()
    for queue in (0, 1):
        assert of_queue(first, queue) + of_queue(second, queue) == sorted(
            line["offset"] for line in sent if line["queue"] == queue
        )


async def test_java_receives_what_python_delayed_committed_and_batched(java):
    topic, group = names(java, "mixed", "mixed-readers")
    java.admin(f"create_topic\t{topic}\t4\t4\t6")
    member = java.start("consume", group=group, topics=topic)
    try:
        await asyncio.to_thread(member.until_ready)
        async with (
            TransactionProducer(java.nameserver, "py-payments", lambda message: None) as producer,
            Producer(java.nameserver) as plain,
        ):
            async with producer.transaction(topic, b"committed", keys=["committed"]):
                pass
            await (await producer.begin(topic, b"rolled back", keys=["rolled-back"])).rollback()
            later = await plain.send(topic, b"later", keys=["later"], delay_level=1)
            batch = await plain.send_many(topic, [b"%d" % number for number in range(50)], ordering_key="one")
        lines = await asyncio.to_thread(
            member.until, lambda lines: len([line for line in lines if "id" in line]) >= 52, 60
        )
        await asyncio.to_thread(member.finish)
    finally:
        member.kill()
    got = [line for line in lines if "id" in line]
    assert sorted(line["key"] for line in got if line.get("key")) == ["committed", "later"]
    assert later.message_id in {line["id"] for line in got}
    assert {receipt.message_id for receipt in batch} <= {line["id"] for line in got}
    assert len({place(line) for line in got}) == 52


async def test_traces_have_the_fields_of_javas(java_5):
    topic, group = names(java_5, "traced", "traced-readers")
    java_5.admin(f"create_topic\t{topic}\t1\t1\t6")
    member = java_5.start("consume", group=group, topics=topic, trace=TRACES)
    sender = java_5.start("send", topics=topic, n=1, trace=TRACES)
    found = {}
    try:
        async with (
            asyncio.timeout(60),
            PushConsumer(f"{group}-watchers", java_5.nameserver, consume_from="first").subscribe(
                TRACES
            ) as watcher,
        ):
            await asyncio.to_thread(member.until, lambda lines: any("key" in line for line in lines))
            async with TransactionProducer(
                java_5.nameserver, group, lambda message: None, trace=True
            ) as producer:
                sent = await producer.send(topic, b"x" * 100, tag="TagA", keys=["rkey0"])
                async with producer.transaction(topic, b"x"):
                    pass
            async with PushConsumer(
                f"{group}-python", java_5.nameserver, consume_from="first", trace=True
            ).subscribe(topic, "TagA") as consumer:
                async for message in consumer:
                    if message.message_id == sent.message_id:
                        await consumer.ack(message)
                        break
            async for message in watcher:
                for text in message.body.decode().split("\x02")[:-1]:
                    fields = text.split("\x01")
                    found.setdefault(fields[0], []).append(fields)
                if "EndTransaction" in found and all(
                    len({fields[column] for fields in found.get(kind, ())}) == 2
                    for kind, column in GROUPS_IN.items()
                ):
                    break
    finally:
        await asyncio.to_thread(sender.kill)
        await asyncio.to_thread(member.kill)
    assert len(found["EndTransaction"][0]) == 13
    for kind in GROUPS_IN:
        assert {len(fields) for fields in found[kind]} == {len(found[kind][0])}, found[kind]
    # What both clients did alike is reported alike: topic, tag, key, broker, size, kind of message, success.
    pubs = [fields for fields in found["Pub"] if fields[11] == "0"]
    assert len(pubs) == 2
    for column in (2, 4, 6, 7, 8, 9, 11, 13):
        assert pubs[0][column] == pubs[1][column], (column, pubs)
    for column in (2, 6, 7):
        assert len({fields[column] for fields in found["SubBefore"] if fields[7] == "rkey0"}) == 1
    for column in (4, 6):
        assert len({fields[column] for fields in found["SubAfter"]}) == 1


async def test_what_waits_at_our_broker_appears_at_its_time_and_what_is_recalled_never(tmp_path):
    broker = OurBroker(tmp_path / "data", {"recallMessageEnable": "true"})
    try:
        await asyncio.to_thread(broker.start)
        await what_waits_appears_at_its_time(broker.nameserver)
    finally:
        await asyncio.to_thread(broker.stop)
