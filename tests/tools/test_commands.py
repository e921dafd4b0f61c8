"""Commands against a broker in this process: their lines, facts, refusals and exit codes."""

import json

import pytest

from broker_store.client import Admin, Producer, PushConsumer
from broker_store.client.session import Session
from broker_store.tools.run import FAILED, MISUSED, SUCCEEDED, run
from tests.client.conftest import Inbox


class Printed:
    """What a command printed, its complaints and its exit code."""

    def __init__(self):
        self.lines, self.complaints, self.code = [], [], None

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def facts(self):
        return [json.loads(line) for line in self.lines]


async def mqadmin(cluster, *words):
    printed = Printed()
    where = ("-n", cluster.nameservers) if cluster is not None else ()
    printed.code = await run([*words, *where], printed.lines.append, printed.complaints.append)
    return printed


async def test_a_topic_is_made_shown_and_deleted(cluster):
    made = await mqadmin(cluster, "updateTopic", "-c", "C", "-t", "T", "-r", "2", "-w", "3")
    assert made.code == SUCCEEDED
    assert made.lines == [
        f"create topic to {cluster.address} success.",
        "TopicConfig [topicName=T, readQueueNums=2, writeQueueNums=3, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]",
    ]
    assert "T" in (await mqadmin(cluster, "topicList")).lines
    (route,) = (await mqadmin(cluster, "topicRoute", "-t", "T", "--json")).facts
    assert route["queueDatas"][0]["writeQueueNums"] == 3
    gone = await mqadmin(cluster, "deleteTopic", "-t", "T", "-c", "C")
    assert gone.lines == [
        "delete topic [T] from cluster [C] success.",
        "delete topic [T] from NameServer success.",
    ]
    assert "T" not in (await mqadmin(cluster, "topicList")).lines


async def test_a_refusal_has_apaches_code_and_ends_with_1(cluster):
    printed = await mqadmin(cluster, "topicStatus", "-t", "none")
    assert (printed.code, printed.lines) == (FAILED, [])
    assert printed.complaints == ["mqadmin topicStatus: CODE: 17  DESC: no name server knows topic none"]
    (why,) = (await mqadmin(cluster, "producerConnection", "-g", "none", "-t", "TBW102")).complaints
    assert why.startswith("mqadmin producerConnection: CODE: ") and f"BROKER: {cluster.address}" in why


async def test_a_server_that_is_not_there_is_named():
    printed = Printed()
    words = ["brokerStatus", "-b", "127.0.0.1:1", "-n", "127.0.0.1:1"]
    assert await run(words, printed.lines.append, printed.complaints.append) == FAILED
    assert "127.0.0.1:1" in printed.complaints[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nosuch"], "The sub command nosuch not exist."),
        (["topicStatus"], "the following arguments are required: -t/--topic"),
        (["updateTopic", "-t", "T"], "one of the arguments -b/--brokerAddr -c/--clusterName is required"),
        (["updateTopic", "-t", "T", "-b", "h:1", "-c", "C"], "not allowed with argument"),
        (["updateTopic", "-t", "T", "-b", "h:1", "-r", "x"], "--readQueueNums x: expected a whole number"),
        (
            ["updateTopic", "-t", "T", "-b", "h:1", "-r", "1_0"],
            "--readQueueNums 1_0: expected a whole number",
        ),
        (["updateTopic", "-t", "T", "-b", "h:1", "-r", "\uff14"], "expected a whole number"),
        (
            ["createAcl", "-b", "h:1", "-s", "User:a", "-r", "Topic:T", "-a", "Pub", "-d", "Deny", "-i", ","],
            "--sourceIp: expected addresses",
        ),
        (["updateTopic", "-t", "T", "-b", "h:1", "-a", "k=v"], "expected +key=value or -key"),
        (["updateSubGroup", "-g", "G", "-b", "h:1", "-p", "{"], "--groupRetryPolicy {"),
        (
            ["updateTopicList", "-b", "h:1", "-f", "/nonexistent"],
            "the file path /nonexistent does not exists",
        ),
        (["consumeMessage", "-t", "T", "-i", "0"], "Please set the brokerName before queueId!"),
        (["sendMsgStatus", "-b", "B", "-s", "0"], "--messageSize 0: expected 1 to"),
        (["resetOffsetByTime", "-g", "G", "-t", "T", "-s", "soon"], "expected now, milliseconds"),
        (["setCommitLogReadAheadMode", "-b", "h:1", "-m", "7"], "set the read mode error"),
        (["updateUser", "-u", "U", "-b", "h:1"], "one of the arguments"),
        (["topicList", "--credentials", "/nonexistent"], "--credentials /nonexistent"),
        (["topicList", "--tls-trust", "/nonexistent"], "--tls-trust /nonexistent"),
        (["topicList", "--tls-config", "/nonexistent"], "--tls-config /nonexistent"),
        (["topicList", "-n", "nowhere"], "nowhere"),
        (["topicList", "unknown"], "unrecognized arguments"),
    ],
)
async def test_wrong_words_are_told_before_a_server_is_asked(words, why):
    printed = await mqadmin(None, *words)
    assert (printed.code, printed.lines) == (MISUSED, [])
    assert why in printed.complaints[0]


async def test_messages_are_found_and_printed(cluster, tmp_path):
    await mqadmin(cluster, "updateTopic", "-c", "C", "-t", "T", "-r", "1", "-w", "1")
    async with Producer(cluster.nameservers) as producer:
        receipts = [await producer.send("T", b"body %d" % number, keys=["k"]) for number in range(3)]
    (line, *_) = (await mqadmin(cluster, "printMsg", "-t", "T")).lines
    assert line == "minOffset=0, maxOffset=3, MessageQueue [topic=T, brokerName=broker-a, queueId=0]"
    found = (await mqadmin(cluster, "queryMsgByKey", "-t", "T", "-k", "k", "--json")).facts
    assert [fact["msgId"] for fact in found] == [receipt.message_id for receipt in receipts]
    words = ("-t", "T", "-i", receipts[1].offset_message_id, "-f", "utf-8", "--bodyDir", str(tmp_path))
    printed = await mqadmin(cluster, "queryMsgById", *words)
    assert "Queue Offset:        1" in printed.lines and "Message Body:        body 1" in printed.lines
    assert f"Message Body Path:   {tmp_path / receipts[1].message_id}" in printed.lines
    assert (tmp_path / receipts[1].message_id).read_bytes() == b"body 1"
    missing = await mqadmin(cluster, "queryMsgByKey", "-t", "T", "-k", "none")
    assert missing.code == FAILED and "CODE: 208" in missing.complaints[0]


async def test_positions_are_printed_and_moved(cluster):
    await mqadmin(cluster, "updateTopic", "-c", "C", "-t", "T", "-r", "1", "-w", "1")
    await mqadmin(cluster, "updateSubGroup", "-c", "C", "-g", "G")
    async with Producer(cluster.nameservers) as producer:
        for _ in range(4):
            await producer.send("T", b"x")
    moved = await mqadmin(cluster, "resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0", "--json")
    assert moved.facts == [{"brokerName": "broker-a", "queueId": 0, "offset": 0}]
    skipped = await mqadmin(cluster, "skipAccumulatedMessage", "-g", "G", "-t", "T")
    assert skipped.lines[1].split() == ["broker-a", "0", "4"]
    async with Admin(cluster.nameservers) as admin:
        assert [at.consumer_offset for at in (await admin.consume_stats("G", "T")).values()] == [4]


async def test_words_of_help(cluster):
    listed = await mqadmin(None)
    assert listed.code == SUCCEEDED and listed.lines[0].startswith(
        "The most commonly used mqadmin commands are:"
    )
    for words in (["help", "updateTopic"], ["updateTopic", "-h"]):
        assert "--readQueueNums" in (await mqadmin(None, *words)).text


async def test_what_consumers_report_is_written_and_a_message_is_sent_again_and_traced(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    await mqadmin(cluster, "updateTopic", "-c", "C", "-t", "T", "-r", "1", "-w", "1")
    await mqadmin(cluster, "updateTopic", "-c", "C", "-t", "RMQ_SYS_TRACE_TOPIC", "-r", "1", "-w", "1")
    inbox = Inbox()
    async with Producer(cluster.nameservers, trace=True) as producer:
        receipt = await producer.send("T", b"x", keys=["k"], properties={"colour": "red"})
    consumer = PushConsumer("G", cluster.nameservers, consume_from="first", client_id="reader@1")
    await consumer.subscribe("T").start(inbox)
    await inbox.next()
    status = await mqadmin(cluster, "consumerStatus", "-g", "G")
    assert status.code == SUCCEEDED and "Rebalance OK" in status.lines, status.complaints
    (file,) = tmp_path.glob("*/reader@1")
    assert "#Consumer Offset#" in file.read_text() and file.stat().st_mode & 0o077 == 0
    again = await mqadmin(cluster, "queryMsgById", "-t", "T", "-i", receipt.message_id, "-s", "true")
    assert again.lines[0].startswith(f"prepare resend msg. originalMsgId={receipt.message_id}SendResult [")
    (message,) = await inbox.next()
    assert (message.body, message.keys, message.properties["colour"]) == (b"x", ("k",), "red")
    assert message.message_id == receipt.message_id
    await mqadmin(cluster, "updateSubGroup", "-c", "C", "-g", "G")
    where = ("-g", "G", "-d", "reader@1", "--json")
    for name in ("queryMsgById", "queryMsgByUniqueKey"):
        (result,) = (await mqadmin(cluster, name, "-t", "T", "-i", receipt.message_id, *where)).facts
        assert result["consumeResult"] == "CR_SUCCESS"
        await inbox.next()
    await consumer.close()
    found = await mqadmin(cluster, "queryMsgTraceById", "-i", receipt.message_id, "--json")
    assert [fact["type"] for fact in found.facts] == ["Pub"] and found.facts[0]["status"] == "success"


async def test_the_list_of_topics_by_cluster_fetches_each_route_once(cluster, monkeypatch):
    fetched = []
    fetch = Session.fetch_route

    async def counted(session, topic):
        fetched.append(topic)
        return await fetch(session, topic)

    monkeypatch.setattr(Session, "fetch_route", counted)
    facts = (await mqadmin(cluster, "topicList", "-c", "--json")).facts
    assert sorted(fetched) == sorted(fact["topic"] for fact in facts) and len(fetched) > 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tls.client.certPath=a.pem\n", "are set together"),
        ("tls.client.certPath=/nonexistent\ntls.client.keyPath=/nonexistent\n", "No such file"),
        ("tls.client.trustCertPath=/nonexistent\n", "No such file"),
    ],
)
async def test_a_file_of_tls_that_cannot_be_used_is_named(tmp_path, text, why):
    file = tmp_path / "tls.properties"
    file.write_text(text)
    printed = await mqadmin(None, "topicList", "--tls-config", str(file))
    assert printed.code == MISUSED and printed.complaints[0].startswith(f"--tls-config {file}")
    assert why in printed.complaints[0]
