"""Static topics over three brokers, two of ours and one of Apache's, by mqadmin of both kinds and Apache's Java
client: what `StaticTopicIT` of Apache asks for, at each name server."""

import asyncio
import time

import pytest

from broker_store.client import Admin
from broker_store.protocol.codes import RequestCode
from tests.interop import clients
from tests.interop.lines import acknowledged
from tests.interop.mqadmin_session import apaches
from tests.interop.mqadmin_session import ours as our_mqadmin
from tests.interop.replication.test_several_brokers import Cluster

BLOCK = 10_000  # the step from the offsets of one item to those of the next, of Apache's tools
QUEUES, EACH = 4, 5
LOGICAL = "__syslo__global__"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    clients.require(clients.JAVA_5)
    made = Cluster(tmp_path_factory.mktemp("static"))
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(params=["ours", "of_apache"])
def java(request, cluster, tmp_path):
    """Apache's client at one of the name servers."""
    program = clients.java_of(clients.JAVA_5, cluster.a, tmp_path)
    program.nameserver = getattr(cluster, request.param)
    program.always["name"] = request.param
    return program


def mqadmin(java, command, *, by_ours=False):
    """Run a command with Apache's tool, or with ours."""
    tool = our_mqadmin if by_ours else apaches(java)
    texts = asyncio.run(tool([[*command.split(), "-n", java.nameserver]]))
    for text in texts:
        assert not text.startswith("mqadmin "), text  # a complaint of ours
        assert "failed" not in text and "Exception" not in text, "\n".join(text.splitlines()[:12])
    return texts


def by_queue(lines, value="offset"):
    found = {}
    for line in lines:
        found.setdefault(line["queue"], []).append(line[value])
    return {queue: sorted(values) for queue, values in sorted(found.items())}


def send(java, topic, run, each=EACH):
    return acknowledged(
        java.run("send", topics=topic, n=QUEUES * each, mode="ordered", shards=QUEUES, run=run)
    )


def test_a_topic_is_created_sent_to_and_read(cluster, java):
    topic = f"Made-{java.always['name']}"
    mqadmin(java, f"updateStaticTopic -t {topic} -qn {QUEUES} -b a,b,c")
    sent = send(java, topic, "r")
    assert by_queue(sent) == {queue: list(range(EACH)) for queue in range(QUEUES)}
    assert {line["broker"] for line in sent} == {"a", "b", "c"}
    assert_has(java, topic, [(0, EACH)], sent)


def assert_has(java, topic, parts, sent):
    """Assert that each queue of a topic has messages at the offsets of the parts (first, end), as the client and
    the statistics see it, and that all that was sent is read once."""
    lines = java.run("pull", topics=topic)
    assert [(line["queue"], line["min"], line["max"]) for line in lines if "min" in line] == [
        (queue, 0, parts[-1][1]) for queue in range(QUEUES)
    ]
    wanted = [offset for first, end in parts for offset in range(first, end)]
    messages = [line for line in lines if "key" in line]
    assert by_queue(messages) == {queue: wanted for queue in range(QUEUES)}
    assert sorted(line["key"] for line in messages) == sorted(line["key"] for line in sent)
    [found] = java.admin(f"topic_stats\t{topic}")
    of_queues = [row for row in found["rows"] if row["broker"] == LOGICAL]
    assert [(row["queue"], row["min"], row["max"]) for row in of_queues] == [
        (queue, 0, parts[-1][1]) for queue in range(QUEUES)
    ]


def consume(java, topic, group, count):
    """Consume so many messages; give what came, also after them."""
    consumer = java.start("consume", topics=topic, group=group)
    try:
        consumer.until(lambda lines: sum("key" in line for line in lines) >= count)
        return [line for line in consumer.finish() if "key" in line]
    finally:
        consumer.kill()


def progress(java, topic, group):
    [found] = java.admin(f"consume_stats\t{group}\t{topic}")
    return {
        (row["queue"], row["broker_offset"], row["consumer_offset"])
        for row in found["rows"]
        if row["broker"] == LOGICAL
    }


def asked(cluster, broker, topic, code, **fields):
    """The fields of a broker's answers for each logical queue."""

    async def ask():
        async with Admin(cluster.nameserver) as admin:
            found = []
            for queue in range(QUEUES):
                names = {"topic": topic, "queueId": str(queue)} | {
                    name: str(value) for name, value in fields.items()
                }
                answer = await admin.ask(cluster.addresses()[broker], code, names)
                assert answer.code == 0, answer
                found.append(answer.fields)
            return found

    return asyncio.run(ask())


@pytest.mark.parametrize(("way", "tools"), [("acba", "AAAA"), ("cabc", "oooo"), ("abab", "oAoA")])
def test_queues_are_moved_and_a_group_goes_on_in_all_parts(way, tools, cluster, java):
    """`a` and `b` are ours, `c` is Apache's. `tools` says whose mqadmin makes each step: ours or Apache's."""
    topic, group = (f"{word}-{way}-{java.always['name']}" for word in ("Moved", "readers"))
    mqadmin(java, f"updateStaticTopic -t {topic} -qn {QUEUES} -b {way[0]}", by_ours=tools[0] == "o")
    sent = send(java, topic, "r0")
    first = consume(java, topic, group, len(sent))
    assert progress(java, topic, group) == {(queue, EACH, EACH) for queue in range(QUEUES)}
    parts, times = [(0, EACH)], [0]
    for number, broker in enumerate(way[1:], 1):
        mqadmin(java, f"remappingStaticTopic -t {topic} -b {broker}", by_ours=tools[number] == "o")
        times.append(time.time_ns() // 1_000_000)
        lines = send(java, topic, f"r{number}")
        assert {line["broker"] for line in lines} == {broker}
        parts.append((number * BLOCK, number * BLOCK + EACH))
        assert by_queue(lines) == {queue: list(range(*parts[-1])) for queue in range(QUEUES)}
        sent += lines
    assert progress(java, topic, group) == {(queue, parts[-1][1], EACH) for queue in range(QUEUES)}
    assert_has(java, topic, parts, sent)
    rest = consume(java, topic, group, len(sent) - len(first))
    assert sorted(line["key"] for line in first + rest) == sorted(line["key"] for line in sent)
    offsets = [offset for part in parts for offset in range(*part)]
    assert by_queue(first + rest) == {queue: offsets for queue in range(QUEUES)}
    found = asked(cluster, way[-1], topic, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group)
    assert [int(fields["offset"]) for fields in found] == [parts[-1][1]] * QUEUES
    if way[-1] == "c":
        return  # Apache's search goes on after the part that it has found, and its earliest time is of another queue
    for part, at_ms in zip(parts, times, strict=True):
        found = asked(cluster, way[-1], topic, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=at_ms)
        assert [int(fields["offset"]) for fields in found] == [part[0]] * QUEUES
    found = asked(cluster, way[-1], topic, RequestCode.GET_EARLIEST_MSG_STORETIME)
    assert all(0 < int(fields["timestamp"]) < times[1] for fields in found)


@pytest.mark.proof  # a send that takes too long on a busy machine may be stored, and is not acknowledged
@pytest.mark.takes(100)
@pytest.mark.parametrize("java", ["ours"], indirect=True)
def test_nothing_is_lost_or_given_twice_while_queues_are_moved(cluster, java):
    """A client finds the new leader by its next route, at most 30 s later. Until then its sends are refused."""
    topic = "UnderLoad"
    mqadmin(java, f"updateStaticTopic -t {topic} -qn {QUEUES} -b a")
    consumer = java.start("consume", topics=topic, group="readers-under-load")
    producer = java.start(
        "send", topics=topic, until="eof", pause_ms=10, run="l", mode="ordered", shards=QUEUES
    )
    try:
        for broker in "acb":
            if broker != "a":
                mqadmin(java, f"remappingStaticTopic -t {topic} -b {broker}")
            producer.until(lambda lines, at=broker: sum(line.get("broker") == at for line in lines) > 200)
        lines = producer.finish()
        sent = [line for line in lines if "status" in line]
        keys = sorted(line["key"] for line in sent)
        consumer.until(lambda lines: set(keys) <= {line.get("key") for line in lines})
        got = [line for line in consumer.finish() if "key" in line]
    finally:
        producer.kill()
        consumer.kill()
    assert {line["status"] for line in sent} == {"SEND_OK"}
    refused = [line["error"] for line in lines if "error" in line]
    assert refused and all("CODE: 501" in text for text in refused), refused[:3]
    assert sorted(line["key"] for line in got) == keys
    assert by_queue(got) == by_queue(sent)
    assert len({(line["queue"], line["offset"]) for line in sent}) == len(sent)
