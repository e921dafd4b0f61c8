"""Sends three messages to the topic Tour and receives them, with Apache's Python client for RocketMQ 5.

pip install rocketmq-python-client
python docs/examples/python/tour_grpc.py [address of the gRPC port]
"""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

TOPIC, GROUP = "Tour", "tour-grpc"
INVISIBLE_S = 30


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    own = set()
    producer = Producer(configuration, (TOPIC,))
    producer.startup()
    for number in range(3):
        message = Message()
        message.topic, message.body = TOPIC, f"hello {number} from gRPC".encode()
        receipt = producer.send(message)
        print(f"sent      {receipt.message_id} at {receipt.offset}", flush=True)
        own.add(receipt.message_id)
    producer.shutdown()
    consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression()})
    consumer.startup()
    while own:
        for message in consumer.receive(16, INVISIBLE_S):
            print(f"received  {message.body.decode()!r}, attempt {message.delivery_attempt}", flush=True)
            consumer.ack(message)
            own.discard(message.message_id)
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081")
