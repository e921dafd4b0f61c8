"""Messages with priorities: sent by clients for RocketMQ 5 and by our remoting client, popped by Java's, at our
broker, at Apache's, and at ours with Apache's proxy before it."""

import asyncio

import pytest

from broker_store.client import Admin, Producer
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, ApacheProxy, OurBroker

# Priority -> number of messages, in the order in which they are sent. Node's client sends no 0.
SENT = {1: 1, 3: 4, 2: 3}
SENDERS = (clients.JAVA_GRPC, clients.PYTHON_GRPC, clients.NODE_GRPC)  # those that can set a priority


@pytest.fixture(scope="module", params=["ours", "apache", "ours with Apache's proxy"])
def broker(request, tmp_path_factory):
    clients.require(clients.JAVA_5, *SENDERS)
    directory = tmp_path_factory.mktemp("priorities")
    kind = ApacheBroker if request.param == "apache" else OurBroker
    running, proxy = kind(directory / "broker", has_grpc=True), None
    try:
        running.start()
        running.grpc = f"127.0.0.1:{running.grpc_port}"
        if "proxy" in request.param:
            proxy = ApacheProxy(directory / "proxy", running.nameserver)
            running.grpc = proxy.start().grpc
        yield running
    finally:
        if proxy is not None:
            proxy.stop()
        running.end()


async def create(broker, topic, group, **options):
    async with Admin(broker.nameserver) as admin:
        await admin.create_topic(
            topic, read_queues=4, write_queues=4, attributes={"message.type": "PRIORITY"}
        )
        await admin.create_group(group, **options)


def send(program, count, **options):
    """Send messages. One is sent again until the topic is known everywhere: Apache's proxy asks for routes in
    turns."""
    for _ in range(20 if count == 1 else 1):
        lines = program.run("send", n=count, **options)
        if not [line for line in lines if "error" in line]:
            return
    raise AssertionError(lines)


def priority_of(line):
    return int(line["key"].partition("key")[0].removeprefix("p"))


def received(program, count, **options):
    """Return the priorities of the messages that a simple consumer gets, in their order."""
    consumer = program.start("simple", **options)
    try:
        lines = consumer.until(lambda lines: len([line for line in lines if "key" in line]) >= count)
    finally:
        consumer.kill()
    assert not [line for line in lines if "error" in line]
    return [priority_of(line) for line in lines if "key" in line]


@pytest.mark.parametrize("sender", SENDERS)
def test_the_highest_priority_comes_first(sender, broker, tmp_path):
    topic, group = f"Priorities-{sender.partition('-')[0]}", f"by-priority-{sender.partition('-')[0]}"
    asyncio.run(create(broker, topic, group))
    program = clients.grpc_program(sender, broker.grpc, tmp_path)
    for priority, count in SENT.items():
        send(program, count, topic=topic, priority=priority, run=f"p{priority}", tls="false")
    wanted = [3, 3, 3, 3, 2, 2, 2, 1]
    consumer = clients.grpc_program(clients.JAVA_GRPC, broker.grpc, tmp_path)
    assert received(consumer, len(wanted), topic=topic, group=group) == wanted


def test_a_remoting_client_chooses_the_queue_by_a_priority(broker, tmp_path):
    """More than there are queues is the last queue. A priority beside a sharding key has no effect."""
    topic = "Remoting"
    asyncio.run(create(broker, topic, "of-remoting"))
    program = clients.grpc_program(clients.JAVA_GRPC, broker.grpc, tmp_path)

    async def send():
        async with Producer(broker.nameserver) as producer:
            places = []
            for text in ("0", "99", "2", "high"):
                sent = await producer.send(
                    topic, b"body", queue_id=1, properties={"_SYS_MSG_PRIORITY_": text}, keys=f"p{text}key"
                )
                places.append(sent.queue.queue_id)
            both = {"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "k"}
            sent = await producer.send(topic, b"body", queue_id=1, properties=both, keys="p1key")
            return [*places, sent.queue.queue_id]

    assert asyncio.run(send()) == [0, 3, 2, 1, 1]
    consumer = program.start("simple", topic=topic, group="of-remoting")
    try:
        lines = consumer.until(lambda lines: len([line for line in lines if "key" in line]) >= 5)
    finally:
        consumer.kill()
    keys = [line["key"] for line in lines if "key" in line]
    assert keys == ["p99key", "p2key", "phighkey", "p1key", "p0key"]


@pytest.mark.parametrize("factor", ["101", "-1", "abc"])
def test_a_priority_factor_out_of_its_range_is_refused(factor, broker):
    with pytest.raises(Exception, match="SYSTEM_ERROR"):
        asyncio.run(create(broker, "Refused", "refused", attributes={"+priority.factor": factor}))
