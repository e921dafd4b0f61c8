"""One round of mqadmin's commands at a broker, by Apache's tool or by ours, and what each printed, masked.

The broker is new: names, queues and offsets are the same in each round. A clustering consumer and a producer
with ids of their own are connected. What is of a moment, a machine or a program is masked, and lines are
sorted where Java prints a hash table.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from broker_store.client import Admin, Outgoing, Producer, PushConsumer
from broker_store.tools.run import run
from tests.interop.clients import Program

CLUSTER, BROKER = "DefaultCluster", "broker-a"
SENT = 12
ENDLESS = ("clusterRT", "clusterList")  # with -i; ended in the first pause
# Runs commands, in order, and returns what each printed.
Tool = Callable[[list[list[str]]], Awaitable[list[str]]]


def apaches(java: Program) -> Tool:
    """Apache's mqadmin, in one process for many commands."""

    async def run_all(commands: list[list[str]]) -> list[str]:
        return await asyncio.to_thread(_run_java, java, commands)

    return run_all


def _run_java(java: Program, commands: list[list[str]]) -> list[str]:
    printed: list[str] = []
    while len(printed) < len(commands):
        running = java.start("mqadmin")
        running.say("".join("\t".join(words) + "\n" for words in commands[len(printed) :]))
        try:
            lines = running.finish(200)
        except AssertionError:  # a wrong option ends the process
            lines = running.seen()
            running.kill()
        found = [line["text"] for line in lines if "command" in line]
        printed += found if found else ["(ended)"]
    return printed


async def ours(commands: list[list[str]]) -> list[str]:
    """The commands of this project, in this process."""
    printed = []
    for words in commands:
        lines: list[str] = []
        running = asyncio.ensure_future(run(words, lines.append, lines.append))
        if words[0] in ENDLESS and "-i" in words:
            # A line for the only broker, after a line of names
            while len(lines) < (1 if "-p" in words else 2) and not running.done():
                await asyncio.wait({running}, timeout=0.05)
            running.cancel()
        await asyncio.wait({running})
        printed.append("\n".join(lines))
    return printed


def commands_of(broker: str, nameserver: str, folder: Path, message: dict[str, str]) -> list[list[str]]:
    """Return the commands of a round: changes first, then what is read, then changes again."""
    at, of = ["-b", broker], ["-c", CLUSTER]
    texts = f"""
    updateTopic {{at}} -t Made
    updateTopic {{of}} -t Reads -r 2 -w 2 -p 4
    updateTopic {{at}} -t Ordered -r 2 -w 2 -o true
    updateTopic {{at}} -t Fifo -a +message.type=FIFO
    updateTopic {{at}} -t Bad -a bad
    updateTopicPerm {{at}} -t Reads -p 6
    updateTopicPerm {{at}} -t Reads -p 6
    updateTopicPerm {{of}} -t Reads -p 2
    updateTopicPerm {{at}} -t none -p 6
    updateTopicList {{at}} -f {folder}/topics.json
    updateSubGroupList {{at}} -f {folder}/groups.json
    updateSubGroup {{at}} -g Plain
    updateSubGroup {{of}} -g Set -r 5 -q 2 -s true -m true -d true -o true -i 0 -w 1 -a true
    updateSubGroup {{at}} -g Slow -p {{policy}}
    getConsumerConfig -g Plain
    getConsumerConfig -g Set
    getConsumerConfig -g Slow
    getConsumerConfig -g none
    setConsumeMode {{at}} -t Made -g Slow -m POP -q 2
    setConsumeMode {{of}} -t Made -g Slow -m PULL
    topicList
    topicList -c
    topicRoute -t Sent
    topicRoute -t Sent -l
    topicRoute -t none
    topicStatus -t Sent
    topicStatus -t Sent -c {CLUSTER}
    topicStatus -t none
    topicClusterList -t Sent
    allocateMQ -t Made -i 10.0.0.1
    updateOrderConf -t Ordered -m get
    updateOrderConf -t New -m put -v {BROKER}:4
    updateOrderConf -t New -m get
    updateOrderConf -t New -m delete
    updateOrderConf -t New -m get
    consumerProgress
    consumerProgress -g readers
    consumerProgress -g readers -s true
    consumerProgress -g readers -t Sent
    consumerProgress -g none
    consumerStatus -g readers -i reader@1
    consumerStatus -g none
    consumerConnection -g readers
    consumerConnection -g readers {{at}}
    consumerConnection -g none
    producerConnection -g writers -t Sent
    producerConnection -g none -t Sent
    producer {{at}}
    queryMsgById -t Sent -i {message["offset_id"]}
    queryMsgById -t Sent -i {message["id"]}
    queryMsgById -t Sent -i 00000000000000000000000000000000
    queryMsgById -t Sent -i {message["offset_id"]} -g readers -d reader@1
    queryMsgById -t Sent -i {message["offset_id"]} -g readers -d none@1
    queryMsgByUniqueKey -t Sent -i {message["id"]}
    queryMsgByKey -t Sent -k key3
    queryMsgByKey -t Sent -k nokey
    queryMsgByOffset -t Sent -b {BROKER} -i 0 -o 0
    queryMsgByOffset -t Sent -b {BROKER} -i 0 -o 999
    printMsg -t Sent -d true
    printMsg -t Sent -s TagB -d false
    printMsgByQueue -t Sent -a {BROKER} -i 0 -p true -d true
    printMsgByQueue -t Sent -a {BROKER} -i 0 -f true
    consumeMessage -t Sent -b {BROKER} -i 0
    queryMsgTraceById -i {message["id"]}
    sendMessage -t More -p hello -k k1 -c tagS
    sendMsgStatus -b {BROKER} -s 64 -c 2
    checkMsgSendRT -t More -a 2 -s 64
    brokerConsumeStats {{at}}
    brokerStatus {{at}}
    brokerStatus {{of}}
    cleanExpiredCQ {{at}}
    cleanExpiredCQ {{of}}
    cleanUnusedTopic {{at}}
    deleteExpiredCommitLog {{at}}
    setCommitLogReadAheadMode {{at}} -m 1
    setCommitLogReadAheadMode {{of}} -m 0
    setCommitLogReadAheadMode {{at}} -m 7
    getColdDataFlowCtrInfo {{at}}
    updateColdDataFlowCtrGroupConfig {{at}} -g readers -v 1000
    getColdDataFlowCtrInfo {{at}}
    removeColdDataFlowCtrGroupConfig {{at}} -g readers
    getColdDataFlowCtrInfo {{of}}
    updateBrokerConfig {{at}} -k deleteWhen -v 05
    updateBrokerConfig {{of}} -k traceOn -v false
    getBrokerConfig {{at}}
    getBrokerConfig {{of}}
    updateNamesrvConfig -k orderMessageEnable -v true
    getNamesrvConfig
    clusterList
    clusterList -m
    clusterList -c {CLUSTER}
    statsAll -t Sent
    queryCq -t Sent -q 0 -i 0 -c 3
    queryCq -t none -q 0 -i 0
    wipeWritePerm -b {BROKER}
    addWritePerm -b {BROKER}
    wipeWritePerm -b none
    updateKvConfig -s NS -k k -v v
    deleteKvConfig -s NS -k k
    haStatus {{at}}
    haStatus {{of}}
    exportConfigs {{of}} -f {folder}/out
    exportMetadata {{of}} -f {folder}/out
    exportMetadata {{at}} -t -f {folder}/out
    exportMetrics {{of}} -f {folder}/out
    exportPopRecord {{at}} -d true
    cloneGroupOffset -s none -d Set -t Sent
    resetOffsetByTime -g readers -t Sent -s -1
    resetOffsetByTime -g readers -t none -s now
    resetOffsetByTime -g readers -t Sent {{at}} -q 0 -o 2 -s 0
    skipAccumulatedMessage -g readers -t Sent
    skipAccumulatedMessage -g none -t Sent
    deleteSubGroup {{at}} -g Set
    deleteSubGroup {{of}} -g Slow -r true
    deleteTopic -t Fifo {{of}}
    deleteTopic -t none {{of}}
    queryMsgById -t Sent -i {message["id"]} -s true
    clusterList -i 1000
    clusterList -m -i 1000
    clusterRT -a 4 -i 1000
    clusterRT -a 4 -s 32 -c {CLUSTER} -p true -m room -i 1000
    nosuch
    """
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":1000,"max":60000,"multiplier":2}}'
    commands = []
    for text in texts.strip().splitlines():
        words: list[str] = []
        for word in text.split():
            words += {"{at}": at, "{of}": of, "{policy}": [policy]}.get(word, [word])
        commands.append([*words, "-n", nameserver])
    return commands


async def round_of(tool: Tool, broker, folder: Path) -> dict[str, list[str]]:
    """Prepare a new broker, run all commands, and return the masked lines of each, and of the files that
    were written, by the command without what is of this broker."""
    address = f"127.0.0.1:{broker.broker_port}"
    folder.mkdir()
    topics = [{"topicName": "Listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
    (folder / "topics.json").write_text(json.dumps(topics))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "Listed", "retryMaxTimes": 3}]))
    done = asyncio.Event()
    seen: set[str] = set()

    def handle(message) -> None:
        seen.add(message.message_id)
        if len(seen) == SENT:
            done.set()

    async with Admin(broker.nameserver) as admin:
        for topic in ("Sent", "More"):
            await admin.create_topic(topic, read_queues=1, write_queues=1)
        await admin.create_group("readers")
        async with Producer(broker.nameserver, "writers", client_id="writer@1") as producer:
            consumer = PushConsumer("readers", broker.nameserver, consume_from="first", client_id="reader@1")
            for number in range(SENT):
                sent = Outgoing(b"body %d" % number, tag=f"Tag{'ABC'[number % 3]}", keys=[f"key{number}"])
                receipt = await producer.send("Sent", sent)
            await consumer.subscribe("Sent").start(handle)
            await asyncio.wait_for(done.wait(), 60)
            while (
                sum(at.consumer_offset for at in (await admin.consume_stats("readers", "Sent")).values())
                < SENT
            ):
                await asyncio.sleep(0.2)
            message = {"offset_id": receipt.offset_message_id, "id": receipt.message_id}
            commands = commands_of(address, broker.nameserver, folder, message)
            printed = await tool(commands)
            await consumer.close()
    places = {
        address: "BROKER",
        broker.nameserver: "NAMESRV",
        str(folder): "FOLDER",
        message["offset_id"]: "OFFSET_ID",
        message["id"]: "UNIQUE_ID",
    }
    found: dict[str, list[str]] = {}
    for words, text in zip(commands, printed, strict=True):
        found[_named(_replaced(" ".join(words[:-2]), places), found)] = masked(
            words[0], _replaced(text, places)
        )
    for file in sorted((folder / "out").glob("*.json")):
        found[f"file {file.name}"] = masked("file", _replaced(file.read_text(), places))
    return found


def _named(command: str, found: dict[str, list[str]]) -> str:
    number, name = 1, command
    while name in found:
        number += 1
        name = f"{command} #{number}"
    return name


def _replaced(text: str, places: dict[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(place, name)
    return text


MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?"), "TIME"),
    (re.compile(r"\b[0-9A-F]{32,60}\b"), "ID"),
    (re.compile(r"\b1[78]\d{11}\b"), "MS"),
    (re.compile(r"127\.0\.0\.1:\d+"), "CLIENT"),
    (re.compile(r"V5_\d_\d"), "VERSION"),
    (re.compile(r"version=\d+"), "version=N"),
    (re.compile(r"rt=\d+ms"), "rt=MS"),
    (re.compile(r"spentTimeMills=\d+"), "spentTimeMills=MS"),
    (re.compile(r"(DefaultCluster +broker-a +)[\d.]+( +4 +0) *$", re.MULTILINE), r"\1RT\2"),
    (re.compile(r"(room\|DefaultCluster\|broker-a)\|\d+"), r"\1|RT"),
    (re.compile(r"Message Body Path: .*"), "Message Body Path: FILE"),
    (re.compile(r"(Consume TPS|Put TPS|Avg RT): [0-9.E-]+"), r"\1: RATE"),
    (re.compile(r"\[[-0-9]+(, [-0-9]+){4,}\]"), "[BYTES]"),
    (re.compile(r"(MasterCommitLogMaxOffset|OK,) \d+"), r"\1 N"),
    (re.compile(r"(MasterCommitLogMaxOffset)\t\d+"), r"\1 N"),
    (re.compile(r'\s*"runtimeEnv":\{.*?\},?', re.DOTALL), ""),
    (re.compile(r'("(?:counter|.*Tps|messageAverageSize|.*Ratio|.*OneDay.*Num)"):.*'), r"\1:N"),
    (re.compile(r"(last\w+Timestamp)=\d+"), r"\1=MS"),
    (re.compile(r"\b\d{17}\b"), "MOMENT"),
]
# What is left of the lines of a command whose values are of a broker and a moment.
NAMES_ALONE = {
    "brokerStatus": re.compile(r"^((?:BROKER +)?\w+?)(?:_/\S+)? *: .*$", re.MULTILINE),
    "getBrokerConfig": re.compile(r"^([\w.]+) += .*$", re.MULTILINE),
    "getNamesrvConfig": re.compile(r"^([\w.]+) += .*$", re.MULTILINE),
    "clusterList": re.compile(r"^(DefaultCluster +broker-a).*$", re.MULTILINE),
    "consumerProgress": re.compile(r"^(readers +1 +\w+ +PUSH +CLUSTERING).*$", re.MULTILINE),
    "statsAll": re.compile(r"^(Sent +readers).*$", re.MULTILINE),
    "checkMsgSendRT": re.compile(r"^(broker-a +0 +true).*$", re.MULTILINE),
}


def masked(name: str, text: str) -> list[str]:
    """Return the lines of a command's output without what is of a moment, sorted, blanks at their ends cut.

    Of a refusal only its code is left, and of the settings and the state of a broker only their names.
    """
    refused = re.search(r"CODE: (\d+)", text)
    if refused and "success" not in text:
        return [f"refused with {refused[1]}"]
    if "SubCommandException" in text and "success" not in text:
        return ["failed"]
    text = re.sub(r"^(org\.apache|\tat |For more information|See http).*\n", "", text, flags=re.MULTILINE)
    if name in NAMES_ALONE:
        text = NAMES_ALONE[name].sub(r"\1", text)
    for mask, word in MASKS:
        text = mask.sub(word, text)
    lines = (line.rstrip() for line in text.splitlines())
    kept = (re.sub(r"\{[^{}]*=[^{}]*\}", _sorted_pairs, line) for line in lines if line)
    return sorted(re.sub(r"\s+", " ", line).rstrip(",") for line in kept)


def _sorted_pairs(match: re.Match[str]) -> str:
    return "{" + ", ".join(sorted(match[0][1:-1].split(", "))) + "}"
