"""Java's push consumer in pop mode, against a running broker. Clients of 4.9 have no pop."""

import asyncio
import itertools
import time
from functools import partial

import pytest

from broker_store.client import Admin
from tests.interop import clients
from tests.interop.lines import acknowledged, names

MESSAGES = 600


def set_up(java, *topics: str, group: str, share: int = 0) -> None:
    """Make topics, and have a group pop them."""
    java.admin(*(f"create_topic\t{topic}\t4\t4\t6" for topic in topics))
    answers = java.admin(*(f"set_mode\t{topic}\t{group}\tPOP\t{share}" for topic in topics))
    assert not [answer for answer in answers if "error" in answer]


def set_share(java, topic: str, group: str, queues: int, share: int) -> None:
    """Make a topic, and have a group pop it by Apache's mqadmin, each queue by `share` further clients."""
    java.admin(f"create_topic\t{topic}\t{queues}\t{queues}\t6")
    tool = java.start("mqadmin")
    words = ["-n", java.nameserver, "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP"]
    tool.say("\t".join(["setConsumeMode", *words, "-q", str(share)]) + "\n")
    (answer,) = [line["text"] for line in tool.finish(90) if "command" in line]
    assert "success" in answer


def have(wanted: set[str], lines: list[dict]) -> bool:
    return wanted <= {line.get("key") for line in lines}


def queues_by_consumer(consumers, run: str) -> list[set[int]]:
    """Return for each consumer the queues of which it got messages of a run."""
    return [
        {line["queue"] for line in consumer.seen() if line.get("key", "").startswith(f"{run}key")}
        for consumer in consumers
    ]


def lags_of(broker, group: str, topic: str) -> list[int]:
    async def ask():
        async with Admin(broker.nameserver) as admin:
            stats = await admin.consume_stats(group, topic)
            return [at.broker_offset - at.consumer_offset for at in stats.values()]

    return asyncio.run(ask())


def left_over(broker, group: str, topic: str) -> int:
    """Return the lag of a group when it is 0, or in 5 s: an offset is committed when its pop checkpoint is
    synced."""
    until = time.monotonic() + 5
    while (lag := sum(lags_of(broker, group, topic))) and time.monotonic() < until:
        time.sleep(0.2)
    return lag


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
    assert left_over(broker, group, topic) == 0


@pytest.mark.parametrize("count", [2, 3])
def test_consumers_share_one_queue(count, java_5, broker):
    """Two of a group get all queues, since the share is their number - 1. Of three each gets the one queue."""
    topic, group = names(java_5, f"shared{count}", f"sharing{count}")
    set_share(java_5, topic, group, queues=1, share=1)
    consumers = [java_5.start("consume", group=group, topics=topic, pop=60_000) for _ in range(count)]
    sender = None
    try:
        for consumer in consumers:
            consumer.until_ready()
        sender = java_5.start("send", topics=topic, until="eof", pause_ms=10)
        clients.until_together(
            consumers, lambda lines: all(queues == {0} for queues in queues_by_consumer(consumers, "r")), 90
        )
        sent = acknowledged([line for line in sender.finish() if "key" in line])
        wanted = {line["key"] for line in sent}
        clients.until_together(consumers, lambda lines: wanted <= {line.get("key") for line in lines}, 90)
        received = [line for consumer in consumers for line in consumer.finish() if "topic" in line]
    finally:
        for program in [*consumers, *([sender] if sender else [])]:
            program.kill()
    assert len(received) == len(wanted) and {line["reconsume"] for line in received} == {0}
    assert left_over(broker, group, topic) == 0


@pytest.mark.takes(70)
def test_a_share_of_the_clients_pops_each_queue(java_5):
    """With three clients, three queues and a share of one each queue is popped by two clients, and each client
    pops two queues. A client that was alone a moment ago pops all queues until it asks again."""
    topic, group = names(java_5, "thirds", "sharing-thirds")
    set_share(java_5, topic, group, queues=3, share=1)
    consumers = [java_5.start("consume", group=group, topics=topic, pop=60_000) for _ in range(3)]
    try:
        for consumer in consumers:
            consumer.until_ready()
        until = time.monotonic() + 150
        for number in itertools.count():
            run = f"r{number}-"
            sent = acknowledged(java_5.run("send", topics=topic, n=60, pause_ms=10, run=run))
            wanted = {line["key"] for line in sent}
            clients.until_together(consumers, partial(have, wanted), 90)
            shares = queues_by_consumer(consumers, run)
            if sorted(map(sorted, shares)) == [[0, 1], [0, 2], [1, 2]] or time.monotonic() > until:
                break
    finally:
        for consumer in consumers:
            consumer.kill()
    assert sorted(map(sorted, shares)) == [[0, 1], [0, 2], [1, 2]]


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
    assert left_over(broker, group, topic) == 0


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
    assert left_over(broker, group, topic) == 0


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
