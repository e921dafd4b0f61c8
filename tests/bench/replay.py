"""A consumer group that reads a long, cold log again, as fast as it is given: the neighbour whose harm `make
bench` measures."""

import asyncio
import os
import socket
import threading
import time

from broker_store.client import Admin
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame

TOPIC, QUEUES = "BenchTopic0", 4
SUBSCRIPTION_IN_REQUEST = 4


class Reader:
    """Reads all queues of TOPIC in one thread while its block lasts; when it is through, it forgets the pages
    and begins again."""

    def __init__(self, broker):
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._error: Exception | None = None
        self.read_bytes = self.rounds = 0
        self.seconds = 0.0

    def __enter__(self) -> "Reader":
        asyncio.run(self._make_topic())
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    async def _make_topic(self) -> None:
        async with Admin(self._broker.nameserver) as admin:
            await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)

    def _read(self) -> None:
        began = time.monotonic()
        try:
            while not self._stop.is_set():
                self._forget_pages()
                self._read_once()
                self.rounds += 1
        except Exception as error:
            self._error = error
        self.seconds = time.monotonic() - began

    def _forget_pages(self) -> None:
        """Full log files leave the page cache, as if they had been written long ago."""
        for path in sorted((self._broker.store / "commitlog").iterdir())[:-1]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def _read_once(self) -> None:
        """One request in flight for each queue, the next one as soon as its answer is there."""
        connection = Connection()
        queue_of: dict[int, int] = {}
        opaque = 0
        with socket.create_connection(("127.0.0.1", self._broker.broker_port)) as wire:

            def ask(queue_id: int, offset: int) -> None:
                nonlocal opaque
                opaque += 1
                queue_of[opaque] = queue_id
                fields = {
                    "consumerGroup": "replay",
                    "topic": TOPIC,
                    "queueId": str(queue_id),
                    "queueOffset": str(offset),
                    "maxMsgNums": "256",
                    "sysFlag": str(SUBSCRIPTION_IN_REQUEST),
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "0",
                    "subscription": "*",
                    "subVersion": "0",
                    "expressionType": "TAG",
                }
                wire.sendall(encode_frame(Command.request(RequestCode.PULL_MESSAGE, fields, opaque=opaque)))

            for queue_id in range(QUEUES):
                ask(queue_id, 0)
            while queue_of and not self._stop.is_set():
                data = wire.recv(1 << 20)
                if not data:
                    raise ConnectionError("the broker closed the replaying connection")
                for answer in connection.receive(data):
                    queue_id = queue_of.pop(answer.opaque)
                    if answer.code == ResponseCode.SUCCESS:
                        self.read_bytes += len(answer.body)
                        ask(queue_id, int(answer.fields["nextBeginOffset"]))
                    elif answer.code != ResponseCode.PULL_NOT_FOUND:
                        raise RuntimeError(f"pull answered {answer.code}: {answer.remark}")
