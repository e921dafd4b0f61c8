"""Java's push consumer in pop mode, against a running broker. Clients of 4.9 have no pop."""

import asyncio
import time

from broker_store.client import Admin
from tests.interop import clients
from tests.interop.lines import acknowledged, names

MESSAGES = 600


def set_up(java, *topics: str, group: str, share: int = 0) -> None:
    """Make topics, and have a group pop them."""
    java.admin(*(f"create_topic\t{topic}\t4\t4\t6" for topic in topics))
    answers = java.admin(*(f"set_mode\t{topic}\t{group}\tPOP\t{share}" for topic in topics))
    assert not [answer for answer in answers if "error" in answer]


def lags_of(broker, group: str, topic: str) -> list[int]:
    async def ask():
        async with Admin(broker.nameserver) as admin:
            stats = await admin.consume_stats(group, topic)
            return [at.broker_offset - at.consumer_offset for at in stats.values()]

    return asyncio.run(ask())


def test_two_consumers_pop_each_message_once(java_5, broker):
    topic, group = names(java_5, "popped", "poppers")
    set_up(java_5, topic, group=group)
    consumers = [java_5.start("consume", group=group, topics=topic, pop=30_000) for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.until_ready()
        sent = acknowledged(java_5.run("send", topics=topic, n=MESSAGES, threads=4, mode="async"))
        wanted = {line["key"] for line in sent}
        clients.until_together(consumers, lambda lines: wanted <= {line.get("key") for line in lines}, 90)
        time.sleep(1)  # what is still on its way would be too much
        received = [line for consumer in consumers for line in consumer.finish() if "topic" in line]
    finally:
        for consumer in consumers:
            consumer.kill()
    assert len(received) == len(wanted) == MESSAGES
    assert {line["topic"] for line in received} == {topic} and {line["reconsume"] for line in received} == {0}
    assert sum(lags_of(broker, group, topic)) == 0


def test_what_a_consumer_fails_comes_again_by_its_new_invisible_time(java_5):
    topic, group = names(java_5, "failed", "failing")
    set_up(java_5, topic, group=group, share=1)
    sent = acknowledged(java_5.run("send", topics=topic, n=20))
    consumer = java_5.start(
        "consume", group=group, topics=topic, pop=20_000, fail_every=1, fail_times=2, level=1, tags="*"
    )
    wanted = {line["key"] for line in sent}
    try:
        consumer.until(
            lambda lines: (
                wanted <= {line["key"] for line in lines if "key" in line and not line.get("failed")}
            ),
            120,
        )
        lines = consumer.finish()
    finally:
        consumer.kill()
    tries = {key: sorted(line["reconsume"] for line in lines if line.get("key") == key) for key in wanted}
    assert set(map(tuple, tries.values())) == {(0, 1, 2)}
    assert {line["topic"] for line in lines if "topic" in line} == {topic}


def succeeded(lines: list[dict]) -> list[dict]:
    return [line for line in lines if "key" in line and not line.get("failed")]


def test_an_orderly_listener_gets_each_message_once(java_5, broker):
    """The push consumer of 5.5.0 pulls for it and locks the queues, also if the mode of its group is POP."""
    topic, group = names(java_5, "orderly", "orderly-poppers")
    set_up(java_5, topic, group=group)
    sent = acknowledged(java_5.run("send", topics=topic, n=100))
    consumer = java_5.start("consume", group=group, topics=topic, pop=60_000, orderly="true")
    wanted = {line["key"] for line in sent}
    try:
        consumer.until(lambda lines: wanted <= {line["key"] for line in succeeded(lines)}, 120)
        lines = consumer.finish()
    finally:
        consumer.kill()
    assert len(succeeded(lines)) == len(wanted)
    assert sum(lags_of(broker, group, topic)) == 0


def test_pops_in_order_by_javas_client(java_5, broker):
    topic, group = names(java_5, "in-order", "poppers-in-order")
    java_5.admin(f"create_topic\t{topic}\t4\t4\t6")
    sent = acknowledged(java_5.run("send", topics=topic, n=100))
    lines = java_5.run("pop_in_order", topic=topic, group=group, n=100, fail_every=7, fail_times=2)
    done = succeeded(lines)
    assert {line["key"] for line in done} == {line["key"] for line in sent} and len(done) == 100
    for queue in range(4):
        offsets = [line["offset"] for line in done if line["queue"] == queue]
        assert offsets == sorted(offsets)
    failed = [line for line in lines if line.get("failed")]
    assert failed and {line["reconsume"] for line in lines if "key" in line} >= {0, 1}
    until = time.monotonic() + 5  # an offset is committed when its acknowledgement is synced
    while sum(lags_of(broker, group, topic)) and time.monotonic() < until:
        time.sleep(0.2)
    assert sum(lags_of(broker, group, topic)) == 0


def test_tags_and_a_consumer_that_ends_in_between(java_5):
    topic, group = names(java_5, "tagged", "choosing")
    set_up(java_5, topic, group=group)
    sent = acknowledged(java_5.run("send", topics=topic, n=50))
    wanted = {line["key"] for line in sent if line["tag"] == "TagB"}
    # It takes messages and is killed: nothing is acknowledged, or only some.
    first = java_5.start(
        "consume", group=group, topics=topic, pop=5_000, tags="TagB", fail_every=1, fail_times=9
    )
    try:
        first.until(lambda lines: len([line for line in lines if "key" in line]) >= 5, 60)
    finally:
        first.kill()
    second = java_5.start("consume", group=group, topics=topic, pop=30_000, tags="TagB")
    try:
        second.until(lambda lines: wanted <= {line.get("key") for line in lines}, 90)
        received = second.finish()
    finally:
        second.kill()
    assert {line["key"] for line in received if "key" in line} == wanted
