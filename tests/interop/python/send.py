"""Sends messages with Apache's Python client for RocketMQ 5, and prints one JSON object for each answer.

python send.py 127.0.0.1:8081 TOPIC COUNT THREADS
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.model import Message
from rocketmq.v5.producer import Producer


def main(endpoints: str, topic: str, count: int, threads: int) -> None:
    producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
    producer.startup()

    def send(number: int) -> str:
        message = Message()
        message.topic = topic
        message.body = f"body {number}".encode()
        message.tag = "TagA"
        message.keys = f"key{number}"
        message.add_property("color", "red")
        receipt = producer.send(message)
        return json.dumps({"key": f"key{number}", "id": receipt.message_id, "offset": receipt.offset})

    with ThreadPoolExecutor(threads) as pool:
        for line in pool.map(send, range(count)):
            print(line, flush=True)
    producer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
