"""held.py ENDPOINTS held call= topic= group= [n=]   Apache's Python client for RocketMQ 5.

Prepares one call, prints {"ready": true}, and makes it when a line of standard input comes: the test kills the
program in the middle of it.
"""

import json
import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

CONFIGURATION = ClientConfiguration(sys.argv[1], Credentials())
OPTIONS = dict(word.split("=", 1) for word in sys.argv[3:])
TOPIC, CALL = OPTIONS["topic"], OPTIONS["call"]


def show(**line) -> None:
    print(json.dumps(line), flush=True)


def begin(**prepared) -> None:
    show(ready=True, **prepared)
    sys.stdin.readline()
    show(calling=CALL)


def message() -> Message:
    made = Message()
    made.topic, made.body, made.keys = TOPIC, b"r-0-", "rkey0"
    if "deliver_at" in OPTIONS:
        made.delivery_timestamp = int(OPTIONS["deliver_at"]) // 1_000
    return made


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        return TransactionResolution.ROLLBACK


def producing() -> Producer:
    producer = Producer(CONFIGURATION, (TOPIC,), Checker())
    producer.startup()
    return producer


def receiving() -> SimpleConsumer:
    consumer = SimpleConsumer(CONFIGURATION, OPTIONS["group"], {TOPIC: FilterExpression()}, await_duration=5)
    consumer.startup()
    return consumer


def received(consumer: SimpleConsumer) -> list:
    found = []
    while len(found) < int(OPTIONS["n"]):
        found += consumer.receive(16, 10) or []
    return found


def keys_of(messages: list) -> list[str]:
    return [next(iter(one.keys)) for one in messages]


def start() -> None:
    begin()
    receiving()


def send() -> None:
    producer = producing()
    begin()
    producer.send(message())


def half() -> None:
    producer = producing()
    begin()
    producer.send(message(), producer.begin_transaction())


def commit() -> None:
    producer = producing()
    transaction = producer.begin_transaction()
    producer.send(message(), transaction)
    begin()
    transaction.commit()


def recall() -> None:
    producer = producing()
    receipt = producer.send(message())
    begin()
    producer.recall_message(TOPIC, receipt.recall_handle)


def receive() -> None:
    consumer = receiving()
    begin()
    consumer.receive(16, 10)


def ack() -> None:
    consumer = receiving()
    messages = received(consumer)
    begin(keys=keys_of(messages))
    consumer.ack(messages[0])


def change() -> None:
    consumer = receiving()
    messages = received(consumer)
    begin(keys=keys_of(messages))
    consumer.change_invisible_duration(messages[0], 15)


class Failing(MessageListener):
    def consume(self, message) -> ConsumeResult:
        begin(keys=keys_of([message]))
        return ConsumeResult.FAILURE


def forward() -> None:
    consumer = PushConsumer(CONFIGURATION, OPTIONS["group"], Failing(), {TOPIC: FilterExpression()})
    consumer.startup()
    threading.Event().wait()


def terminate() -> None:
    consumer = receiving()
    begin()
    consumer.shutdown()


{
    "start": start, "send": send, "half": half, "commit": commit, "recall": recall, "receive": receive,
    "ack": ack, "change": change, "forward": forward, "terminate": terminate,
}[CALL]()  # fmt: skip
show(done=CALL)
