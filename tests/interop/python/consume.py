"""Consumes with Apache's Python client for RocketMQ 5, and prints one JSON object for each message.

python consume.py ENDPOINTS GROUP TOPIC simple|push [EXPRESSION [fail]]

It prints {"ready": true} when it has started, and ends when its input is closed. `fail` has each message fail
at its first try.
"""

import json
import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    PushConsumer,
    SimpleConsumer,
)

lock = threading.Lock()


def show(**values) -> None:
    with lock:
        print(json.dumps(values), flush=True)


def describe(message) -> dict:
    return {
        "id": message.message_id,
        "body": message.body.decode("latin-1"),
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "attempt": message.delivery_attempt,
        "is_corrupted": message.corrupted,
    }


class Listener(MessageListener):
    def __init__(self, fails: bool):
        self.fails = fails

    def consume(self, message) -> ConsumeResult:
        is_first = message.delivery_attempt == 1
        show(**describe(message))
        return ConsumeResult.FAILURE if self.fails and is_first else ConsumeResult.SUCCESS


def run_simple(consumer, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            messages = consumer.receive(16, 15) or []
        except Exception as error:  # Apache's proxy refuses a receive that comes before the client's settings
            show(error=str(error))
            ended.wait(0.5)
            continue
        for message in messages:
            consumer.ack(message)
            show(**describe(message))


def main(endpoints: str, group: str, topic: str, kind: str, expression: str = "*", fails: str = "") -> None:
    ended = threading.Event()
    configuration = ClientConfiguration(endpoints, Credentials())
    subscription = {topic: FilterExpression(expression)}
    if kind == "push":
        consumer = PushConsumer(configuration, group, Listener(fails == "fail"), subscription)
        consumer.startup()
    else:
        consumer = SimpleConsumer(configuration, group, subscription, await_duration=5)
        consumer.startup()
        threading.Thread(target=run_simple, args=(consumer, ended), daemon=True).start()
    show(ready=True)
    sys.stdin.read()
    ended.set()
    consumer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
