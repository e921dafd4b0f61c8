"""The JSON of one queue of a topic on a broker, as an object and as a key of a table."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.errors import FieldError
from broker_store.protocol.fastjson_values import ObjectKey
from broker_store.protocol.members import Members, read_int, read_text


class MessageQueue(NamedTuple):
    """One queue of a topic on a broker. Its order is that in which Java's clients distribute queues."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, object]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    def to_key(self) -> ObjectKey:
        return ObjectKey(self.to_json())

    @classmethod
    def from_json(cls, members: Members) -> MessageQueue:
        if not isinstance(members, (dict, ObjectKey)):
            raise FieldError("messageQueue", members, "an object")
        return cls(
            read_text(members, "topic"), read_text(members, "brokerName"), read_int(members, "queueId")
        )
