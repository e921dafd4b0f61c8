"""Calls of producers that Apache's proxy refuses, with what it answered (tests/golden/grpc-refusals.json).

    python -m tests.support.grpc_refusals 127.0.0.1:8081 > tests/golden/grpc-refusals.json

asks a port again; its broker has the topics of TOPICS and the settings of SETTINGS.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    MessageType,
    Resource,
    TransactionResolution,
)
from tests.support.grpc_calls import call_of

GOLDEN = Path(__file__).parents[1] / "golden" / "grpc-refusals.json"
METADATA = (("x-mq-client-id", "client-1"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.7"))
# Of an exception inside of Apache's proxy, before its text.
EXCEPTION = "org.apache.rocketmq.proxy.common.ProxyException: "
SETTINGS = {"recallMessageEnable": "true", "enableMixedMessageType": "true"}
# Topic -> its type, None for one without.
TOPICS = {
    "Plain": None, "Normal": "NORMAL", "Fifo": "FIFO", "Delay": "DELAY", "Transaction": "TRANSACTION",
    "Mixed": "MIXED", "Unspecified": "UNSPECIFIED", "ReadOnly": "NORMAL",
}  # fmt: skip
READ_ONLY = "ReadOnly"
ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="127.0.0.1", port=8081)])


class Case(NamedTuple):
    """A call: its method, and its request at a time (ms)."""

    method: str
    request: Callable[[int], Message]


def send(*messages: Callable[[int], v2.Message]) -> Case:
    return Case(
        "SendMessage", lambda now_ms: s.SendMessageRequest(messages=[one(now_ms) for one in messages])
    )


def message(
    topic: str = "Normal",
    body: bytes = b"hello",
    *,
    user: dict[str, str] | None = None,
    deliver_in_ms: int | None = None,
    recovery_s: int | None = None,
    **system,
) -> Callable[[int], v2.Message]:
    def made(now_ms: int) -> v2.Message:
        given = v2.Message(topic=Resource(name=topic), body=body, user_properties=user or {})
        properties = given.system_properties
        properties.message_id = "01AA"
        for name, value in system.items():
            if isinstance(value, list):
                getattr(properties, name).extend(value)
            else:
                setattr(properties, name, value)
        if deliver_in_ms is not None:
            due_ms = now_ms + deliver_in_ms
            properties.delivery_timestamp.CopyFrom(
                Timestamp(seconds=due_ms // 1_000, nanos=due_ms % 1_000 * 1_000_000)
            )
        if recovery_s is not None:
            properties.orphaned_transaction_recovery_duration.CopyFrom(Duration(seconds=recovery_s))
        return given

    return made


def fixed(method: str, request: Message) -> Case:
    return Case(method, lambda now_ms: request)


def route(name: str, endpoints: Endpoints = ENDPOINTS) -> Case:
    return fixed("QueryRoute", s.QueryRouteRequest(topic=Resource(name=name), endpoints=endpoints))


def end(topic: str = "Transaction", transaction_id: str = "x") -> Case:
    return fixed(
        "EndTransaction",
        s.EndTransactionRequest(
            topic=Resource(name=topic), message_id="01AA", transaction_id=transaction_id,
            resolution=TransactionResolution.COMMIT,
        ),
    )  # fmt: skip


def recall(topic: str = "Delay", handle: str = "") -> Case:
    return fixed("RecallMessage", s.RecallMessageRequest(topic=Resource(name=topic), recall_handle=handle))


TRANSACTION = MessageType.TRANSACTION
CASES: dict[str, Case] = {
    "route of a blank topic": route(""),
    "route of a bad topic": route("a/b"),
    "route of a long topic": route("t" * 128),
    "route of a system topic": route("TBW102"),
    "no message": send(),
    "blank topic": send(message("")),
    "bad topic": send(message("a b")),
    "long topic": send(message("t" * 128)),
    "system topic": send(message("RMQ_SYS_TRANS_HALF_TOPIC")),
    "two topics": send(message("Normal"), message("Fifo")),
    "empty body": send(message(body=b"")),
    "large body": send(message(body=bytes((4 << 20) + 1))),
    "many properties": send(message(user={f"n{n}": "x" for n in range(129)})),
    "large properties": send(message(user={"a": "x" * (16 << 10)})),
    "large properties with tag and key": send(message(user={"a": "x" * 16_380}, tag="TagA", keys=["k"])),
    "property with a separator": send(message(user={"a\x01": "x"})),
    "value with a separator": send(message(user={"a": "x\x02"})),
    "value with another control character": send(message(user={"a": "x\x85"})),
    "blank tag": send(message(tag=" ")),
    "tag with |": send(message(tag="a|b")),
    "tag with a separator": send(message(tag="a\x02b")),
    "blank key": send(message(keys=["a", "  "])),
    "key with a separator": send(message(keys=["a\x01"])),
    "no id": send(message(message_id="")),
    "blank id": send(message(message_id=" \t")),
    "blank group": send(message("Fifo", message_group=" ")),
    "long group": send(message("Fifo", message_group="g" * 64)),
    "long group of other letters": send(message("Fifo", message_group="ü" * 32)),
    "group with a control character": send(message("Fifo", message_group="a\x1f")),
    "far time": send(message("Delay", deliver_in_ms=86_400_000 + 60_000)),
    "long recovery": send(message("Transaction", message_type=TRANSACTION, recovery_s=3_601)),
    "bad lite topic": send(message(lite_topic="a.b")),
    "long lite topic": send(message(lite_topic="a" * 65)),
    "lite topic of a normal topic": send(message(lite_topic="a")),
    "priority of a normal topic": send(message(priority=3)),
    "order of a normal topic": send(message(message_group="g")),
    "delay of a normal topic": send(message(deliver_in_ms=60_000)),
    "transaction of a normal topic": send(message(message_type=TRANSACTION)),
    "order of a topic without a type": send(message("Plain", message_group="g")),
    "normal for order": send(message("Fifo")),
    "normal for order, by its type": send(message("Fifo", message_type=MessageType.FIFO)),
    "normal for delay": send(message("Delay")),
    "order for delay": send(message("Delay", message_group="g")),
    "normal for a transaction": send(message("Transaction")),
    "delay in a transaction": send(message("Delay", message_type=TRANSACTION, deliver_in_ms=60_000)),
    "normal for an unspecified type": send(message("Unspecified")),
    "no queue for writing": send(message(READ_ONLY)),
    "reserved property and a bad tag": send(message(user={"TAGS": "x"}, tag="|")),
    "bad tag and no id": send(message(tag="|", message_id="")),
    "no id and a bad group": send(message(message_id="", message_group=" ")),
    "a bad group and another type": send(message("Delay", message_group=" ")),
    "a bad second message": send(message(), message(tag="|")),
    "end without a transaction": end(transaction_id=" "),
    "end of an unknown transaction": end(),
    "end in a blank topic": end(""),
    "end in a system topic": end("RMQ_SYS_TRANS_HALF_TOPIC"),
    "recall in a blank topic": recall(""),
    "recall in a normal topic": recall("Normal"),
    "recall without a handle": recall(),
    "recall with a bad handle": recall(handle="djEgYSBi"),
    "recall in another topic": recall("Mixed", "djEgRGVsYXkgYnJva2VyLWEgMSAwMUFB"),
    "recall at another broker": recall(handle="djEgRGVsYXkgYnJva2VyLXogMSAwMUFB"),
    "recall after its time": recall(handle="djEgRGVsYXkgYnJva2VyLWEgMSAwMUFB"),
}
for _name in (
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "DELAY",
    "TIMER_DELIVER_MS",
    "__BORNHOST",
    "PGROUP",
    "__LITE_TOPIC",
):
    CASES[f"reserved property {_name}"] = send(message(user={_name: "x"}))

# Case -> our code where it is another one, with the reason.
DIFFERENT = {
    "route of an unknown topic": (Code.TOPIC_NOT_FOUND, "the text names the topic alone"),
    "unknown topic": (Code.TOPIC_NOT_FOUND, "Apache's proxy takes it for one of an unspecified type"),
    "negative priority": (Code.BAD_REQUEST, "Apache's proxy has an exception inside"),
}
CASES |= {
    "route of an unknown topic": route("Unknown"),
    "unknown topic": send(message("Unknown")),
    "negative priority": send(message("Mixed", priority=-1)),
}


def status_of(answer: Message) -> tuple[int, str]:
    return answer.status.code, answer.status.message.removeprefix(EXCEPTION)


def answers_of(address: str) -> dict[str, tuple[int, str]]:
    """Return the answers of a port."""
    found = {}
    options = [("grpc.max_send_message_length", 64 << 20)]
    with grpc.insecure_channel(address, options=options) as channel:
        for name, case in CASES.items():
            request = case.request(int(time.time() * 1_000))
            found[name] = status_of(call_of(channel, case.method)(request, metadata=METADATA, timeout=30))
    return found


def golden() -> dict[str, tuple[int, str]]:
    """Return what Apache's proxy answered."""
    return {name: (code, text) for name, (code, text) in json.loads(GOLDEN.read_text()).items()}


if __name__ == "__main__":
    print(json.dumps(answers_of(sys.argv[1]), indent=1, ensure_ascii=True))
