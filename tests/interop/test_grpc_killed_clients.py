"""A client for RocketMQ 5 is killed in the middle of each kind of call: the broker serves others, messages come
again when they are due, and the connection is freed.

The broker is stopped while the client sends its call, so the call waits in a socket when the client is killed.
"""

import asyncio
import os
import signal
import time
from contextlib import contextmanager

import pytest

from broker_store.client import Admin, Producer, PullConsumer
from broker_store.protocol.codes import RequestCode
from tests.interop import clients
from tests.interop.brokers import OurBroker
from tests.interop.clients import BUILD, ROOT, Program
from tests.interop.pop_client import PopClient
from tests.support.waits import until

KINDS = [clients.NODE_GRPC, clients.PYTHON_GRPC]
INVISIBLE_MS, CHANGED_MS = 10_000, 15_000  # of the programs
ESTABLISHED, CLOSE_WAIT = "01", "08"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    running = OurBroker(tmp_path_factory.mktemp("broker") / "data", has_grpc=True)
    try:
        yield running.start()
    finally:
        running.end()


def program_of(kind, broker, home) -> Program:
    endpoint = f"127.0.0.1:{broker.grpc_port}"
    if kind == clients.PYTHON_GRPC:
        clients.require(kind)
        program = ROOT / "tests" / "interop" / "python" / "held.py"
        return Program([str(BUILD / "python-client" / "bin" / "python"), str(program)], endpoint)
    return clients.grpc_program(kind, endpoint, home, broker.data / "tls" / "self-signed.crt")


def connections(port: int) -> list[int]:
    """Return the bytes that wait to be read, for each connection of a server's port."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [
        int(row[4].partition(":")[2], 16)
        for row in rows
        if int(row[1].partition(":")[2], 16) == port and row[3] in (ESTABLISHED, CLOSE_WAIT)
    ]


def wait_until(holds) -> None:
    asyncio.run(until(holds))


def until_freed(broker, before: int) -> None:
    """Wait until the broker has no connection of a gRPC client, and as many open files as before."""
    wait_until(lambda: not connections(broker.grpc_port))
    wait_until(lambda: len(os.listdir(f"/proc/{broker.pid}/fd")) <= before)


@contextmanager
def stopped(broker):
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def killed_in_its_call(broker, program, **options) -> list[str]:
    """Run a program and kill it while the broker has its call unread; return the keys of what it was given."""
    client = program.start("held", **options)
    try:
        lines = client.until(lambda lines: any("ready" in line for line in lines))
        with stopped(broker):
            waiting = sum(connections(broker.grpc_port))
            client.say("go\n")
            client.until(lambda lines: any("calling" in line for line in lines))
            wait_until(lambda: sum(connections(broker.grpc_port)) > waiting)
            client.kill()
            assert not any("done" in line for line in client.seen())
    finally:
        client.kill()
    return [key for line in lines for key in line.get("keys", ())]


async def prepared(broker, topic: str, messages: int = 0, kind: str | None = None, **group) -> None:
    async with Admin(broker.nameserver) as admin:
        attributes = {"message.type": kind} if kind else None
        await admin.create_topic(topic, read_queues=1, write_queues=1, attributes=attributes)
        await admin.create_group(topic, **group)
    async with Producer(broker.nameserver) as producer:
        for number in range(messages):
            await producer.send(topic, b"body", keys=f"key{number}")


async def given(broker, topic: str, group: str, count: int, limit_s: float = 60) -> dict[str, float]:
    """Return when each message was given to a group, by its key; each is acknowledged."""
    found: dict[str, float] = {}
    client = await PopClient.connect(broker.broker_port, group, topic)
    deadline = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {sorted(found)}"
        for one in await client.pop(invisible_ms=60_000, poll_ms=5_000):
            assert one.key not in found and await client.ack(one)
            found[one.key] = time.time() * 1_000
    client.close()
    return found


async def stored(broker, topic: str) -> int:
    async with PullConsumer("counting", broker.nameserver) as consumer:
        return sum([await consumer.max_offset(queue) for queue in await consumer.queues(topic)])


async def has_group(broker, group: str) -> bool:
    async with Admin(broker.nameserver) as admin:
        return await admin.consumer_connections(group, f"127.0.0.1:{broker.broker_port}") is not None


def topic_of(call: str, kind: str) -> str:
    return f"killed-{call}-{kind}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("call", "type_"),
    [("send", None), ("half", "TRANSACTION"), ("commit", "TRANSACTION"), ("recall", "DELAY")],
)
def test_a_producer_is_killed(kind, call, type_, broker, tmp_path):
    topic = topic_of(call, kind)
    program = program_of(kind, broker, tmp_path)
    asyncio.run(prepared(broker, topic, kind=type_))
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))
    more = {"deliver_at": int(time.time() * 1_000) + 20_000} if call == "recall" else {}
    killed_in_its_call(broker, program, call=call, topic=topic, **more)
    until_freed(broker, before)
    wanted = {"send": {0, 1}, "half": {0}, "commit": {0, 1}, "recall": {0}}
    assert asyncio.run(stored(broker, topic)) in wanted[call]
    sent = (
        program.run("send", topic=topic, run="after") if type_ is None and kind == clients.NODE_GRPC else []
    )
    assert all("id" in line for line in sent)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["start", "terminate"])
def test_a_consumer_is_killed_at_its_start_and_end(kind, call, broker, tmp_path):
    topic = topic_of(call, kind)
    asyncio.run(prepared(broker, topic, 3))
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))
    killed_in_its_call(broker, program_of(kind, broker, tmp_path), call=call, topic=topic, group=topic)
    until_freed(broker, before)
    assert not asyncio.run(has_group(broker, topic))
    assert len(asyncio.run(given(broker, topic, topic, 3))) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["receive", "ack", "change"])
@pytest.mark.takes(30)
def test_what_a_killed_consumer_has_comes_again_when_it_is_due(kind, call, broker, tmp_path):
    topic = topic_of(call, kind)
    asyncio.run(prepared(broker, topic, 5))
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))
    began_ms = time.time() * 1_000
    program = program_of(kind, broker, tmp_path)
    keys = killed_in_its_call(broker, program, call=call, topic=topic, group=topic, n=5)
    ready_ms = time.time() * 1_000
    until_freed(broker, before)
    assert not asyncio.run(has_group(broker, topic))
    if call == "receive":
        assert len(asyncio.run(given(broker, topic, topic, 5))) == 5
        return
    assert sorted(keys) == [f"key{number}" for number in range(5)]
    called, *others = keys
    times = asyncio.run(given(broker, topic, topic, 5 if call == "change" else 4))
    assert times.keys() - {called} == set(others)
    assert all(began_ms + INVISIBLE_MS <= times[key] < ready_ms + INVISIBLE_MS + 5_000 for key in others)
    if call == "ack":
        assert called not in times
    else:  # it has the changed time, from the call on
        assert began_ms + CHANGED_MS <= times[called] < ready_ms + CHANGED_MS + 5_000


async def until_it_waits(broker, topic: str) -> None:
    """Wait until a pop of the group with the topic's name waits for a message."""
    fields = {"consumerGroup": topic, "topic": topic, "queueId": "-1"}
    async with Admin(broker.nameserver) as admin:
        address = f"127.0.0.1:{broker.broker_port}"
        while (await admin.ask(address, int(RequestCode.POLLING_INFO), fields)).fields["pollingNum"] != "1":
            pass  # each question takes a moment


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_consumer_whose_receive_waits_takes_no_message(kind, broker, tmp_path):
    topic = topic_of("parked", kind)
    asyncio.run(prepared(broker, topic))
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))
    client = program_of(kind, broker, tmp_path).start("held", call="receive", topic=topic, group=topic)
    try:
        client.until_ready()
        client.say("go\n")
        client.until(lambda lines: any("calling" in line for line in lines))

        asyncio.run(until_it_waits(broker, topic))
    finally:
        client.kill()
    until_freed(broker, before)
    asyncio.run(prepared(broker, topic, 3))
    began = time.monotonic()
    assert len(asyncio.run(given(broker, topic, topic, 3))) == 3
    assert time.monotonic() - began < INVISIBLE_MS / 1_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.takes(70)
def test_a_message_whose_forwarding_was_cut_is_a_dead_letter_or_comes_again(kind, broker, tmp_path):
    topic = topic_of("forward", kind)
    dead = f"%DLQ%{topic}"
    asyncio.run(prepared(broker, topic, 1, consumeMessageOrderly=True, retryMaxTimes=0))
    before = len(os.listdir(f"/proc/{broker.pid}/fd"))
    program = program_of(kind, broker, tmp_path)
    assert killed_in_its_call(broker, program, call="forward", topic=topic, group=topic) == ["key0"]
    until_freed(broker, before)

    async def dead_letters() -> int:
        async with Admin(broker.nameserver) as admin:
            if dead not in await admin.topics():
                return 0
            return sum(offsets.max_offset for offsets in (await admin.topic_stats(dead)).values())

    async def comes_again() -> list:
        client = await PopClient.connect(broker.broker_port, topic, topic)
        found = await client.pop(attempt="after", poll_ms=15_000)
        client.close()
        return found

    assert asyncio.run(dead_letters()) == 1 or asyncio.run(comes_again())
