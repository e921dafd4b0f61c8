"""produce.py ENDPOINTS COMMAND key=value...   Apache's Python client for RocketMQ 5; prints one JSON object a
line.

send      topic= n= [run= size= threads= groups= deliver_at= priority=]
transact  topic= n= [run=]    halves: of each four one is committed, one rolled back, and two are left to the
                              checks, which commit one of them; until standard input ends
recall    topic= handle=      takes a delayed message back
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from rocketmq import (
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINTS, COMMAND, *WORDS = sys.argv[1:]
OPTIONS = dict(word.split("=", 1) for word in WORDS)
PRINTING = threading.Lock()


def show(**line) -> None:
    with PRINTING:
        print(json.dumps(line), flush=True)


def number(name: str, otherwise: int) -> int:
    return int(OPTIONS.get(name, otherwise))


def key(i: int) -> str:
    return f"{OPTIONS.get('run', 'r')}key{i}"


def message(i: int) -> Message:
    body = f"{OPTIONS.get('run', 'r')}-{i}-"
    while len(body) < number("size", 100):
        body += chr(ord("a") + (i + len(body)) % 26)
    made = Message()
    made.topic, made.body, made.tag, made.keys = (
        OPTIONS["topic"],
        body.encode(),
        f"Tag{'ABCDE'[i % 5]}",
        key(i),
    )
    made.add_property("number", str(i))
    if "groups" in OPTIONS:
        made.message_group = f"group{i % number('groups', 1)}"
    if "deliver_at" in OPTIONS:
        made.delivery_timestamp = number("deliver_at", 0) // 1_000  # the client counts seconds
    if "priority" in OPTIONS:
        made.priority = number("priority", 0)
    return made


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        i = int(message.properties["number"])
        show(asked=key(i), topic=message.topic, body=message.body.decode())
        return TransactionResolution.COMMIT if i % 4 == 2 else TransactionResolution.ROLLBACK


def send(producer: Producer) -> None:
    def one(i: int) -> None:
        try:
            receipt = producer.send(message(i))
        except Exception as cause:
            show(key=key(i), error=repr(cause))
        else:
            show(key=key(i), id=receipt.message_id, offset=receipt.offset, handle=receipt.recall_handle)

    with ThreadPoolExecutor(1 if "groups" in OPTIONS else number("threads", 1)) as pool:
        list(pool.map(one, range(number("n", 1))))


def transact(producer: Producer) -> None:
    for i in range(number("n", 4)):
        transaction = producer.begin_transaction()
        receipt = producer.send(message(i), transaction)
        if i % 4 == 0:
            transaction.commit()
        if i % 4 == 1:
            transaction.rollback()
        show(key=key(i), id=receipt.message_id)
    show(sent=number("n", 4))
    sys.stdin.read()


def recall(producer: Producer) -> None:
    show(recalled=producer.recall_message(OPTIONS["topic"], OPTIONS["handle"]))


producer = Producer(ClientConfiguration(ENDPOINTS, Credentials()), (OPTIONS["topic"],), Checker())
producer.startup()
{"send": send, "transact": transact, "recall": recall}[COMMAND](producer)
producer.shutdown()
