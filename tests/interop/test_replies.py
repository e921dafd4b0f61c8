"""Requests and replies between Java clients and the Python one."""

import asyncio

from broker_store.client import Producer, PushConsumer
from tests.interop.lines import names


def test_java_asks_and_java_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    answering = java.start("answer", topic=topic, group=group)
    try:
        answering.until_ready()
        assert [line["reply"] for line in java.run("ask", topic=topic, n=20)] == [f"re: java-{number}" for number in range(20)]
        assert {line["status"] for line in answering.finish() if "status" in line} == {"SEND_OK"}
    finally:
        answering.kill()


def test_java_asks_and_python_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")

    async def answer_until_done():
        async with Producer(java.nameserver, "answers") as producer, PushConsumer(group, java.nameserver, consume_from="first").subscribe(topic) as consumer:
            async def answer(message):
                await producer.reply(message, b"re: " + message.body)

            await consumer.start(answer)
            return await asyncio.to_thread(java.run, "ask", topic=topic, n=20)

    assert [line["reply"] for line in asyncio.run(answer_until_done())] == [f"re: java-{number}" for number in range(20)]


def test_python_asks_and_java_answers(java):
    topic, group = names(java, "prices", "quotes")
    java.admin(f"create_topic\t{topic}\t2\t2\t6")
    answering = java.start("answer", topic=topic, group=group)

    async def ask():
        async with Producer(java.nameserver, "asker") as producer:
            return [(await producer.request(topic, b"python-%d" % number, timeout=60)).body for number in range(20)]

    try:
        answering.until_ready()
        assert asyncio.run(ask()) == [b"re: python-%d" % number for number in range(20)]
    finally:
        answering.kill()
