"""Requests and replies between Java 5.x and 4.9, Go v2 and the Python client."""

import asyncio

import pytest

from broker_store.client import Admin, Producer, PushConsumer
from tests.interop import clients
from tests.interop.lines import names


def test_java_asks_and_java_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    answering = java.start("answer", topic=topic, group=group)
    try:
        answering.until_ready()
        assert [line["reply"] for line in java.run("ask", topic=topic, n=20)] == [
            f"re: java-{number}" for number in range(20)
        ]
        assert {line["status"] for line in answering.finish() if "status" in line} == {"SEND_OK"}
    finally:
        answering.kill()


def answered_by_python(asking, topic: str, group: str) -> list[str]:
    """The replies to 20 requests of `asking`."""

    async def answer_until_done():
        async with (
            Producer(asking.nameserver, "answers") as producer,
            PushConsumer(group, asking.nameserver, consume_from="first").subscribe(topic) as consumer,
        ):

            async def answer(message):
                await producer.reply(message, b"re: " + message.body)

            await consumer.start(answer)
            return await asyncio.to_thread(asking.run, "ask", topic=topic, n=20)

    return [line["reply"] for line in asyncio.run(answer_until_done())]


def test_java_asks_and_python_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    assert answered_by_python(java, topic, group) == [f"re: java-{number}" for number in range(20)]


def test_python_asks_and_java_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    answering = java.start("answer", topic=topic, group=group)

    async def ask():
        async with Producer(java.nameserver, "asker") as producer:
            return [
                (await producer.request(topic, b"python-%d" % number, timeout=60)).body
                for number in range(20)
            ]

    try:
        answering.until_ready()
        assert asyncio.run(ask()) == [b"re: python-%d" % number for number in range(20)]
    finally:
        answering.kill()


@pytest.fixture
def asked_topic(go):
    """A topic that is there before clients ask for its route, and a group."""
    topic, group = names(go, "prices", "quotes")

    async def make():
        async with Admin(go.nameserver) as admin:
            await admin.create_topic(topic, read_queues=2, write_queues=2)

    asyncio.run(make())
    return topic, group


@pytest.mark.parametrize(("asks", "answers"), [("go", "go"), (clients.JAVA_5, "go"), ("go", clients.JAVA_4)])
def test_go_asks_and_answers(asks, answers, go, broker, asked_topic, tmp_path):
    topic, group = asked_topic
    asking, answering = (
        go if kind == "go" else clients.java_of(kind, broker, tmp_path) for kind in (asks, answers)
    )
    running = answering.start("answer", topic=topic, group=group)
    word = "go" if asks == "go" else "java"
    try:
        running.until_ready()
        assert [line["reply"] for line in asking.run("ask", 60, topic=topic, n=20)] == [
            f"re: {word}-{number}" for number in range(20)
        ]
        assert {line["status"] for line in running.finish() if "status" in line} == {"SEND_OK"}
    finally:
        running.kill()


def test_a_reply_as_gos_own_helper_makes_it_without_a_body_arrives(go, asked_topic):
    topic, group = asked_topic
    running = go.start("answer", topic=topic, group=group, bare="true")
    try:
        running.until_ready()
        assert [line["reply"] for line in go.run("ask", 30, topic=topic, n=3)] == [""] * 3
        # The program that asks ends with the last reply, possibly before the broker has its receipt; then
        # that one reply counts as failed.
        lines = running.until(lambda lines: sum("status" in line or "error" in line for line in lines) >= 3)
        told = [line.get("status") or line["error"] for line in lines if "status" in line or "error" in line]
        assert told[:2] == ["SEND_OK"] * 2 and ("SEND_OK" in told[2] or "push reply message" in told[2]), told
    finally:
        running.kill()


def test_go_asks_and_python_answers(go, asked_topic):
    topic, group = asked_topic
    assert answered_by_python(go, topic, group) == [f"re: go-{number}" for number in range(20)]
