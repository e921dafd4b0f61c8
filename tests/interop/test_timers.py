"""Timer messages with unmodified clients: never early, at most a second late, recalled, over kill -9 and from
broker to broker in mid-flight."""

import json
import time

import pytest

from tests.interop import clients
from tests.interop.brokers import THERE_AND_BACK, OurBroker
from tests.interop.lines import acknowledged, names

SENT = 60
SETTINGS = {"recallMessageEnable": "true"}
LEVEL, LEVEL_MS = 5, 60_000


def stored(java, topic) -> dict[str, list[dict]]:
    """The lines of each key that stand in a topic now."""
    found: dict[str, list[dict]] = {}
    for line in java.run("pull", topics=topic):
        if "key" in line:
            found.setdefault(line["key"], []).append(line)
    return found


def until_stored(java, topic, count, limit_s=60) -> dict[str, list[dict]]:
    """What stands in a topic when it has so many keys; a consumer shows when that is."""
    reader = java.start("consume", group=f"{topic}-until-{now_ms()}", topics=topic)
    try:
        reader.until(lambda lines: len({line["key"] for line in lines if "key" in line}) >= count, limit_s)
    finally:
        reader.kill()
    return stored(java, topic)


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("version", [clients.JAVA_5, clients.JAVA_4, "go"])
@pytest.mark.parametrize(("kind", "value_ms"), [("sec", 3_000), ("ms", 2_345), ("at", None)])
def test_none_is_early_and_none_a_second_late(version, kind, value_ms, broker_on, tmp_path):
    clients.require(version, clients.JAVA_5 if version == "go" else version)
    broker = broker_on(OurBroker)
    java = clients.java_of(clients.JAVA_5 if version == "go" else version, broker, tmp_path)
    sender = clients.GoProgram(broker.nameserver) if version == "go" else java
    (topic,) = names(sender, "timed")
    java.admin(f"create_topic\t{topic}\t4\t4\t6")
    begin_ms, step_ms = now_ms() + 8_000, 37
    options = {"sec": "sec:3", "ms": "ms:2345", "at": f"at:{begin_ms}"}
    sent = acknowledged(
        sender.run("send", topics=topic, n=SENT, timer=options[kind], step=step_ms if kind == "at" else 0)
    )
    found = until_stored(java, topic, SENT)
    assert found.keys() == {line["key"] for line in sent}
    for (line,) in found.values():
        due_ms = begin_ms + int(line["number"]) * step_ms if kind == "at" else line["born_time"] + value_ms
        assert 0 <= line["store_time"] - due_ms <= 1_000, line


def test_a_message_that_is_recalled_does_not_come(broker_on, tmp_path):
    java = clients.java_of(clients.JAVA_5, broker_on(OurBroker), tmp_path)
    (topic,) = names(java, "recalled")
    java.admin(f"create_topic\t{topic}\t4\t4\t6")
    sent = acknowledged(java.run("send", topics=topic, n=4, timer=f"at:{now_ms() + 25_000}"))
    for line in sent[:2]:
        (answer,) = java.run("recall", topic=topic, handle=line["handle"])
        assert answer["recalled"] == line["id"]
    assert until_stored(java, topic, 2).keys() == {line["key"] for line in sent[2:]}


@pytest.mark.takes(40)
def test_kill_9_loses_none_and_brings_none_early(broker_on, tmp_path):
    broker = broker_on(OurBroker)
    java = clients.java_of(clients.JAVA_5, broker, tmp_path)
    (topic,) = names(java, "killed")
    java.admin(f"create_topic\t{topic}\t4\t4\t6")
    begin_ms, step_ms = now_ms() + 6_000, 500
    sent = acknowledged(java.run("send", topics=topic, n=SENT, timer=f"at:{begin_ms}", step=step_ms))
    for _ in range(3):
        broker.kill9()
        broker.start()
    found = until_stored(java, topic, SENT, 90)
    assert found.keys() == {line["key"] for line in sent}
    assert all(
        line["store_time"] >= begin_ms + int(line["number"]) * step_ms
        for lines in found.values()
        for line in lines
    )
    # What was delivered since the last note, two seconds and a sync's time, comes again after each kill.
    assert sum(len(lines) - 1 for lines in found.values()) <= 3 * 3_000 // step_ms


@pytest.mark.takes(150)
@pytest.mark.parametrize("brokers", THERE_AND_BACK)
def test_messages_that_wait_are_handed_over_and_back_in_mid_flight(brokers, broker_on, tmp_path):
    broker = broker_on(brokers[0])
    java = clients.java_of(clients.JAVA_5, broker, tmp_path)
    topic, by_level = names(java, "handed", "handed-by-level")
    for name in (topic, by_level):
        java.admin(f"create_topic\t{name}\t4\t4\t6")
    # Some come while the first broker runs, some while none does, the rest at the second and the third. The
    # last is due two minutes after the first: a slow machine takes a minute to hand the store over.
    begin_ms, step_ms = now_ms() + 5_000, 2_000
    sent = acknowledged(java.run("send", topics=topic, n=SENT, timer=f"at:{begin_ms}", step=step_ms))
    levels = acknowledged(java.run("send", topics=by_level, n=SENT // 2, delay=LEVEL))
    (answer,) = java.run("recall", topic=topic, handle=sent[-1]["handle"])
    assert answer["recalled"] == sent[-1]["id"]
    seen = [until_stored(java, topic, 3)]
    broker.stop()

    broker = broker_on(brokers[1])
    java = clients.java_of(clients.JAVA_5, broker, tmp_path)
    levels += acknowledged(java.run("send", topics=by_level, n=SENT // 2, delay=LEVEL, run="s"))
    seen.append(until_stored(java, topic, len(seen[0]) + 10, 90))
    broker.stop()
    waiting = json.loads((broker.store / "config" / "timermetrics").read_text())["timingCount"][topic][
        "count"
    ]
    assert waiting <= SENT - len(seen[1]), "what the second delivered since it is counted no more"

    java = clients.java_of(clients.JAVA_5, broker_on(brokers[2]), tmp_path)
    found = until_stored(java, topic, SENT - 1, 120)
    assert seen[0].keys() < seen[1].keys() < found.keys() == {line["key"] for line in sent[:-1]}
    assert all(
        line["store_time"] >= begin_ms + int(line["number"]) * step_ms
        for lines in found.values()
        for line in lines
    )
    assert {len(lines) for lines in found.values()} == {1}
    found = until_stored(java, by_level, SENT, 120)
    assert found.keys() == {line["key"] for line in levels}
    assert all(
        line["store_time"] >= line["born_time"] + LEVEL_MS for lines in found.values() for line in lines
    )
    assert {len(lines) for lines in found.values()} == {1}
