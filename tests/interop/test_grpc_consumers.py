"""Apache's consumers for RocketMQ 5 on the gRPC port, with TLS as is their default: of what remoting clients
send, and of what gRPC clients send."""

import asyncio
import time

import pytest

from broker_store.client import Admin, Producer
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.support.ports import free_port

KINDS = [clients.JAVA_GRPC, clients.GO_GRPC, clients.NODE_GRPC]
# The Rust client has no push consumer. That of Python has tests of its own.
CONSUMERS = [(kind, command) for kind in KINDS for command in ("simple", "push")] + [
    (clients.RUST_GRPC, "simple")
]
# Java's client compresses 4 KiB and more, in zlib's format. The Node client reads gzip's alone, also of what
# Apache's proxy gives it. The Rust client reads neither.
READ_ALL = (clients.JAVA_GRPC, clients.GO_GRPC)
LANGUAGES = {clients.JAVA_GRPC: "JAVA", clients.GO_GRPC: "GO", clients.NODE_GRPC: "HTTP"}
MESSAGES = 200
DEAD_LETTER_LIMIT_S = 40


@pytest.fixture
def broker(tmp_path):
    clients.require(clients.JAVA_5)
    port = free_port()
    running = OurBroker(tmp_path / "data", arguments=("--no-web", "--grpc-port", str(port)))
    running.grpc = f"127.0.0.1:{port}"
    try:
        yield running.start()
    finally:
        running.stop()


def program_of(kind, broker, tmp_path):
    return clients.grpc_program(kind, broker.grpc, tmp_path, broker.data / "tls" / "self-signed.crt")


def admin(broker, ask):
    """The answer of our client for administrators."""

    async def asking():
        async with Admin(broker.nameserver) as one:
            return await ask(one)

    return asyncio.run(asking())


def create(broker, topic, queues=4):
    admin(broker, lambda one: one.create_topic(topic, read_queues=queues, write_queues=queues))


def consume(program, command, sending, count, **options):
    """The lines of a consumer, until it has `count` messages of what `sending` sends after it is ready."""
    consumer = program.start(command, **options)
    try:
        consumer.until_ready()
        sending()
        # It is killed: a Java push consumer that closes waits until its receives have ended, up to 20 s.
        lines = consumer.until(lambda lines: len({line["id"] for line in lines if "id" in line}) >= count)
    finally:
        consumer.kill()
    return [line for line in lines if "ready" not in line]


@pytest.mark.parametrize(("kind", "command"), CONSUMERS)
def test_a_consumer_gets_what_a_remoting_client_sends_once(kind, command, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    java = clients.java_of(clients.JAVA_5, broker, tmp_path)
    create(broker, "Crossing")
    sent = []
    size = 6_000 if kind in READ_ALL else 3_000
    got = consume(
        program,
        command,
        lambda: sent.extend(java.run("send", topics="Crossing", n=MESSAGES, size=size)),
        MESSAGES,
        topic="Crossing",
        group="readers",
    )
    assert len(got) == MESSAGES
    assert {(line["attempt"], line["size"]) for line in got} == {(1, size)}
    assert {line["id"] for line in got} == {line["id"] for line in sent}


@pytest.mark.parametrize("sender", [clients.JAVA_GRPC, clients.GO_GRPC])
@pytest.mark.parametrize(
    ("kind", "command"), [*((kind, "push") for kind in KINDS), (clients.RUST_GRPC, "simple")]
)
def test_a_consumer_gets_what_a_grpc_client_sends_once(kind, command, sender, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    other = program_of(sender, broker, tmp_path)
    create(broker, "Same")
    sent = []
    size = 3_000 if kind == clients.RUST_GRPC else 9_000
    got = consume(
        program,
        command,
        lambda: sent.extend(other.run("send", topic="Same", n=MESSAGES, threads=4, size=size)),
        MESSAGES,
        topic="Same",
        group="readers",
    )
    assert {line["id"]: line["key"] for line in got} == {line["id"]: line["key"] for line in sent}
    assert len(got) == MESSAGES and {line["size"] for line in got} == {size}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_fail_come_again_by_the_policy_and_become_dead_letters(kind, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    create(broker, "Failing", 1)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 3_000]}}
    admin(broker, lambda one: one.create_group("readers", retryMaxTimes=2, groupRetryPolicy=policy))
    address = f"127.0.0.1:{broker.broker_port}"
    consumer = program.start("push", topic="Failing", group="readers", fails=9)
    try:
        consumer.until_ready()
        connected = admin(broker, lambda one: one.consumer_connections("readers", address))

        async def send():
            async with Producer(broker.nameserver) as producer:
                await producer.send("Failing", b"body", keys="key")

        asyncio.run(send())
        lines = consumer.until(lambda lines: sum("id" in line for line in lines) == 3)
        java = clients.java_of(clients.JAVA_5, broker, tmp_path)
        create(broker, "%DLQ%readers", 1)

        def dead():
            return [line for line in java.run("pull", topics="%DLQ%readers") if "key" in line]

        end = time.monotonic() + DEAD_LETTER_LIMIT_S
        while not (found := dead()) and time.monotonic() < end:
            pass  # each look takes a moment
    finally:
        consumer.kill()
    got = [line for line in lines if "id" in line]
    assert [line["attempt"] for line in got] == [1, 2, 3]
    waits = [later["at_ms"] - line["at_ms"] for line, later in zip(got, got[1:], strict=False)]
    if kind != clients.NODE_GRPC:  # it does not know such a policy, and waits for no time
        assert 1_000 <= waits[0] < 3_000 <= waits[1] < 6_000
    assert [line["key"] for line in found] == ["key"]
    (member,) = connected["connectionSet"]
    assert member["language"] == LANGUAGES[kind]
    # The broker learns of the end of a killed client by its connection, shortly after.
    deadline = time.monotonic() + 30
    while admin(broker, lambda one: one.consumer_connections("readers", address)) is not None:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("sender", [clients.JAVA_GRPC, clients.GO_GRPC])
def test_what_grpc_producers_send_in_order_is_consumed_so(sender, broker, tmp_path):
    admin(
        broker,
        lambda one: one.create_topic(
            "Ordered", read_queues=4, write_queues=4, attributes={"message.type": "FIFO"}
        ),
    )
    admin(broker, lambda one: one.create_group("readers", consumeMessageOrderly=True))
    other = program_of(sender, broker, tmp_path)
    got = consume(
        program_of(clients.JAVA_GRPC, broker, tmp_path),
        "push",
        lambda: other.run("send", topic="Ordered", n=80, groups=8),
        80,
        topic="Ordered",
        group="readers",
    )
    for group in range(8):
        keys = [line["key"] for line in got if line["group"] == f"group{group}"]
        assert keys == [f"rkey{number}" for number in range(group, 80, 8)]


@pytest.mark.parametrize("kind", [clients.JAVA_GRPC, clients.GO_GRPC])
def test_a_push_consumer_gets_all_messages_over_a_kill_of_the_broker(kind, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    create(broker, "Killed")
    got = set()

    async def send(first):
        async with Producer(broker.nameserver) as producer:
            for number in range(first, first + 200):
                await producer.send("Killed", b"body", keys=f"key{number}")

    consumer = program.start("push", topic="Killed", group="readers")
    try:
        consumer.until_ready()
        for turn in range(3):
            asyncio.run(send(turn * 200))
            consumer.until(lambda lines: len(lines) > 50 + 200 * turn)  # noqa: B023 (called here)
            broker.kill9()
            broker.start()
        wanted = {f"key{number}" for number in range(600)}
        consumer.until(lambda lines: {line.get("key") for line in lines} >= wanted)
        got = [line["key"] for line in consumer.seen() if "id" in line]
    finally:
        consumer.kill()
    # An acknowledgement of the moment of a kill may be lost, and no other.
    assert len(got) < 600 + 3 * 64


# The Go client goes on with the next message of a batch while it waits to try one again.
@pytest.mark.parametrize(
    ("kind", "fails"), [(clients.JAVA_GRPC, 1), (clients.GO_GRPC, 0), (clients.NODE_GRPC, 1)]
)
def test_messages_of_a_group_are_consumed_in_order_and_one_that_fails_holds_the_others(
    kind, fails, broker, tmp_path
):
    program = program_of(kind, broker, tmp_path)
    create(broker, "Ordered", 2)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
    if kind == clients.NODE_GRPC:  # it does not know the policy above, and tries once
        policy = {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 1_000, "max": 1_000, "multiplier": 1},
        }
    admin(
        broker,
        lambda one: one.create_group("readers", consumeMessageOrderly=True, groupRetryPolicy=policy),
    )

    async def send():
        async with Producer(broker.nameserver) as producer:
            for number in range(40):
                group = f"g{number % 4}"
                await producer.send(
                    "Ordered",
                    b"body",
                    keys=f"{number:02}",
                    properties={"__SHARDINGKEY": group},
                    queue_id=number % 2,
                )

    options = {"topic": "Ordered", "group": "readers", "fails": fails}
    consumer = program.start("push", **options)
    try:
        consumer.until_ready()
        asyncio.run(send())
        lines = consumer.until(lambda lines: sum("id" in line for line in lines) >= 40 * (fails + 1))
    finally:
        consumer.kill()
    for group in range(4):
        tries = [(line["key"], line["attempt"]) for line in lines if line.get("group") == f"g{group}"]
        keys = [f"{number:02}" for number in range(group, 40, 4)]
        # A second try comes before the first try of the next message.
        assert tries == [(key, attempt) for key in keys for attempt in range(1, fails + 2)]


@pytest.mark.parametrize("kind", [*KINDS, clients.RUST_GRPC])
def test_filters_by_tag_and_by_sql(kind, broker, tmp_path):
    program = program_of(kind, broker, tmp_path)
    create(broker, "Filtered")

    def sending():
        program.run("send", topic="Filtered", n=50, run="f")

    by_tag = consume(
        program, "simple", sending, 20, topic="Filtered", group="tags", expression="TagA || TagC"
    )
    assert {line["tag"] for line in by_tag} == {"TagA", "TagC"} and len(by_tag) == 20
    command = "simple" if kind == clients.RUST_GRPC else "push"
    # A new group starts with what lies in memory: it gets what was sent before it, too.
    by_sql = consume(
        program, command, sending, 20, topic="Filtered", group="sql", expression="number >= 40", sql="true"
    )
    numbers = sorted(int(line["properties"]["number"]) for line in by_sql)
    assert numbers == sorted(2 * list(range(40, 50)))
