"""A client that pops by single requests, and notes when it got and acknowledged each message."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from broker_store.formats import record
from broker_store.protocol.command import Command
from broker_store.protocol.headers import SendHeader, write_send
from broker_store.protocol.pop import Receipt, read_order_counts, read_receipt, topic_of, write_receipt
from broker_store.server.channel import Channel, connect

POP, ACK, CHANGE = 200050, 200051, 200053


@dataclass(frozen=True)
class Given:
    """A message that the client was given. Times are milliseconds of the broker's clock."""

    key: str
    topic: str  # the one it lies in
    queue_id: int
    offset: int
    receipt: str
    tries: int
    pop_ms: int
    visible_ms: int  # when it is visible again


class PopClient:
    """One connection to a broker."""

    def __init__(self, channel: Channel, group: str, topic: str, broker: str = "broker-a"):
        self._channel, self._group, self._topic, self._broker = channel, group, topic, broker

    @classmethod
    async def connect(cls, port: int, group: str, topic: str, broker: str = "broker-a") -> PopClient:
        return cls(await connect("127.0.0.1", port, 5), group, topic, broker)

    def close(self) -> None:
        self._channel.close()

    async def _ask(self, code: int, body: bytes = b"", *, timeout: float = 20, **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self._channel.request(Command.request(code, texts, body, language="JAVA"), timeout)

    async def send(self, key: str, queue_id: int = 0) -> bool:
        """Send a message of this key; return whether it was acknowledged."""
        properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01{key}\x02"
        header = SendHeader(
            "PG", self._topic, "TBW102", 4, queue_id, 0, 1, 0, properties, 0, False, None, False
        )
        return (await self._ask(310, key.encode(), **write_send(header))).code == 0

    async def pop(
        self,
        *,
        count: int = 32,
        invisible_ms: int = 5_000,
        poll_ms: int = 0,
        queue_id: int = -1,
        attempt: str | None = None,
    ) -> list[Given]:
        """Return the messages of a pop of all queues, or of one. With an `attempt` it is in order."""
        order = {} if attempt is None else {"order": "true", "attemptId": attempt}
        answer = await self._ask(
            POP, consumerGroup=self._group, topic=self._topic, queueId=queue_id, maxMsgNums=count,
            invisibleTime=invisible_ms, pollTime=poll_ms, bornTime=int(time.time() * 1000), initMode=0,
            expType="TAG", exp="*", timeout=poll_ms / 1000 + 20, **order,
        )  # fmt: skip
        assert answer.code in (0, 209, 210), answer
        if answer.code:
            return []
        fields = answer.fields or {}
        pop_ms = int(fields["popTime"])
        starts = {
            (int(kind), int(queue_id)): int(start)
            for kind, queue_id, start in (text.split(" ") for text in fields["startOffsetInfo"].split(";"))
        }
        given, counts = [], read_order_counts(fields.get("orderCountInfo", ""))
        for stored in record.decode_all(answer.body):
            text = stored.properties.get("POP_CK")
            if text is None:
                receipt = Receipt(
                    starts[0, stored.queue_id], pop_ms, int(fields["invisibleTime"]),
                    int(fields["reviveQid"]), 0, self._broker, stored.queue_id, stored.queue_offset,
                )  # fmt: skip
                text = write_receipt(receipt)
            topic = topic_of(self._topic, self._group, int(text.split(" ")[4]))
            given.append(
                Given(
                    stored.keys[0],
                    topic,
                    stored.queue_id,
                    stored.queue_offset,
                    text,
                    counts.get((stored.queue_id, stored.queue_offset), stored.reconsume_times),
                    pop_ms,
                    pop_ms + int(fields["invisibleTime"]),
                )  # fmt: skip
            )
        return given

    async def change(self, given: Given, invisible_ms: int) -> Given | None:
        """Give a message another invisible time; return it with its new receipt, None if that is refused."""
        answer = await self._ask(
            CHANGE, consumerGroup=self._group, topic=given.topic, queueId=given.queue_id,
            extraInfo=given.receipt, offset=given.offset, invisibleTime=invisible_ms,
        )  # fmt: skip
        if answer.code:
            return None
        pop_ms, changed_ms, queue = (
            int((answer.fields or {})[name]) for name in ("popTime", "invisibleTime", "reviveQid")
        )
        receipt = read_receipt(given.receipt)._replace(
            start_offset=given.offset, pop_ms=pop_ms, invisible_ms=changed_ms, revive_queue=queue
        )
        return replace(given, receipt=write_receipt(receipt), pop_ms=pop_ms, visible_ms=pop_ms + changed_ms)

    async def ack(self, given: Given) -> bool:
        answer = await self._ask(
            ACK, consumerGroup=self._group, topic=given.topic, queueId=given.queue_id,
            extraInfo=given.receipt, offset=given.offset,
        )  # fmt: skip
        return answer.code == 0
