"""Apache's tools that read a broker: the calls of its Prometheus exporter, and what `mqadmin` shows of a
message and of clients."""

import time

import pytest

from tests.interop import clients
from tests.interop.brokers import ApacheBroker, Broker, OurBroker
from tests.interop.lines import acknowledged, names

TOPIC, GROUP, SENT = "ToolsTopic", "tools_readers", 12
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker that checks unsettled halves each second, so that the group of transactions has positions
    soon."""
    running = Broker(tmp_path_factory.mktemp("broker") / "data", {"transactionCheckInterval": 1000}).start()
    try:
        yield running
    finally:
        running.stop()


def rows(java, *commands):
    """The rows of each command; an error of one is the test's."""
    answers = java.admin(*commands)
    assert not any("error" in answer for answer in answers), answers
    return [answer["rows"] for answer in answers]


def consumed(java, topic, group, count, **more):
    """A consumer that has got all messages of a topic and stays."""
    consumer = java.start("consume", group=group, topics=topic, **more)
    try:
        consumer.until(lambda lines: sum("topic" in line for line in lines) >= count, 60)
    except AssertionError:
        consumer.kill()
        raise
    return consumer


def until_halves_are_read(java, limit_s=60):
    """Wait for the positions of the group of transactions: it never has a topic of messages sent back, and no
    client."""
    end = time.monotonic() + limit_s
    while rows(java, f"groups_of_topic\t{HALVES}") != [["CID_RMQ_SYS_TRANS"]]:
        assert time.monotonic() < end


def test_a_round_of_the_exporter_ends_without_an_error(java):
    topic, group, idle = names(java, "exported", "exported-readers", "exported-idle")
    rows(java, f"create_topic\t{topic}\t4\t4\t6", f"create_group\t{idle}\t3")
    acknowledged(java.run("send", topics=topic, n=40))
    until_halves_are_read(java)
    consumer = consumed(java, topic, group, 40)
    try:
        (found,) = rows(java, "export")
    finally:
        consumer.kill()
    assert [row for row in found if "error" in row] == []
    calls = {row["call"] for row in found}
    # fmt: skip
    assert calls >= {
        "examineTopicStats",
        "queryTopicConsumeByWho",
        "examineConsumerConnectionInfo",
        "getConsumerRunningInfo",
        "examineConsumeStats",
        "queryMsgByOffset",
        "getAllProducerInfo",
        "fetchBrokerRuntimeStats",
        "TOPIC_PUT_NUMS",
        "TOPIC_PUT_SIZE",
        "GROUP_GET_NUMS",
        "GROUP_GET_SIZE",
        "SNDBCK_PUT_NUMS",
        "BROKER_PUT_NUMS",
        "BROKER_GET_NUMS",
    }
    of = {(row["call"], row["of"]): row for row in found}
    assert of["examineTopicStats", topic]["answer"] == "40"
    assert of["examineConsumerConnectionInfo", f"{topic}@{group}"]["answer"] == "1"


@pytest.fixture(params=[clients.JAVA_5, clients.JAVA_4])
def both(request, tmp_path):
    """Java's client of a version for our broker, and for Apache's."""
    clients.require(clients.JAVA_5, request.param)
    running = []
    try:
        for kind in (OurBroker, ApacheBroker):
            running.append(kind(tmp_path / kind.__name__).start())
        yield [clients.java_of(request.param, broker, tmp_path) for broker in running]
    finally:
        for broker in running:
            broker.end()


def connections_of(java, producer, group, topic) -> list:
    """What mqadmin shows of a producer's connections once its broker knows it.

    A client of 4.9 sends its first heartbeat a second after it began, so the group may be unknown while it
    sends already.
    """
    for sent in (3, 10, 20, 40, 80, 160):
        producer.until(lambda lines, sent=sent: len(lines) >= sent, 60)
        (answer,) = java.admin(f"producer_connection\t{group}\t{topic}")
        if "not exist" not in answer.get("error", ""):
            break
    assert "error" not in answer, answer
    return [answer["rows"]]


def shown(java) -> list:
    """What mqadmin shows of one consumer, one producer and each message, without what is of a place or a
    moment."""
    rows(java, f"create_topic\t{TOPIC}\t1\t1\t6", f"create_group\t{GROUP}\t16")
    sent = acknowledged(java.run("send", topics=TOPIC, n=SENT, run="tools", threads=1))
    consumer = consumed(java, TOPIC, GROUP, SENT)
    producer = java.start(
        "send", topics=TOPIC, n=1_000_000, run="more", producer_group="tools_writers", pause_ms=200
    )
    try:
        writers = connections_of(java, producer, "tools_writers", TOPIC)
        found = rows(
            java,
            f"consumer_connection\t{GROUP}",
            *(f"message\t{TOPIC}\t{line['offset_id']}" for line in sent),
        )
        found += rows(java, *(f"message\t{TOPIC}\t{line['id']}" for line in sent[:2]))
    finally:
        producer.kill()
        consumer.kill()
    assert writers[0] and found[0], "both are connected"
    for (message,) in found[1:]:
        for name in ("UNIQ_KEY", "log_offset", "INSTANCE_ID"):
            message.pop(name, None)
    return [writers, *found]


@pytest.mark.takes(40)
def test_mqadmin_shows_the_same_of_a_message_and_of_clients_as_of_apaches_broker(both):
    ours, apaches = (shown(java) for java in both)
    for one, other in zip(ours, apaches, strict=True):
        assert one == other
