"""JSON bodies of offsets and statistics by queue (docs/spec/remoting.md section 5).

Decoding raises FieldError with the member's name. Missing optional members have Java's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from broker_store.protocol import fastjson
from broker_store.protocol.members import loads_object, read_int, read_object
from broker_store.protocol.message_queue import MessageQueue


class QueueOffsets(NamedTuple):
    """A queue's range and the store time of its last message (0 for none)."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class ConsumeOffsets(NamedTuple):
    """The progress of a group in a queue. `last_timestamp` is the store time of the last consumed message."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0


def encode_topic_stats(offsets: Mapping[MessageQueue, QueueOffsets], put_tps: float = 0.0) -> bytes:
    table = {
        queue.to_key(): {"lastUpdateTimestamp": item[2], "maxOffset": item[1], "minOffset": item[0]}
        for queue, item in offsets.items()
    }
    return fastjson.dumps({"offsetTable": table, "topicPutTps": float(put_tps)})


def decode_topic_stats(body: bytes) -> dict[MessageQueue, QueueOffsets]:
    return {
        queue: QueueOffsets(
            read_int(item, "minOffset"), read_int(item, "maxOffset"), read_int(item, "lastUpdateTimestamp", 0)
        )
        for queue, item in _queue_rows(body)
    }


def consume_stats_json(
    offsets: Mapping[MessageQueue, ConsumeOffsets], consume_tps: float = 0.0
) -> dict[str, object]:
    """Return the JSON value, because GET_BROKER_CONSUME_STATS holds many."""
    table = {
        queue.to_key(): {
            "brokerOffset": item[0],
            "consumerOffset": item[1],
            "lastTimestamp": item[2],
            "pullOffset": item[3],
        }
        for queue, item in offsets.items()
    }
    return {"consumeTps": float(consume_tps), "offsetTable": table}


def encode_consume_stats(offsets: Mapping[MessageQueue, ConsumeOffsets], consume_tps: float = 0.0) -> bytes:
    return fastjson.dumps(consume_stats_json(offsets, consume_tps))


def decode_consume_stats(body: bytes) -> dict[MessageQueue, ConsumeOffsets]:
    return {
        queue: ConsumeOffsets(
            read_int(item, "brokerOffset"),
            read_int(item, "consumerOffset"),
            read_int(item, "lastTimestamp", 0),
            read_int(item, "pullOffset", 0),
        )
        for queue, item in _queue_rows(body)
    }


def encode_offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    """ResetOffsetBody (220, 222)."""
    return fastjson.dumps({"offsetTable": {queue.to_key(): offset for queue, offset in offsets.items()}})


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    table = read_object(loads_object(body), "offsetTable")
    return {
        MessageQueue.from_json(_queue_key(key)): read_int({"offset": value}, "offset")
        for key, value in table.items()
    }


def _queue_rows(body: bytes) -> Iterator[tuple[MessageQueue, dict[Any, Any]]]:
    """The rows of an `offsetTable` whose keys are queues."""
    table = read_object(loads_object(body), "offsetTable")
    for key in table:
        yield MessageQueue.from_json(_queue_key(key)), read_object(table, key)


def _queue_key(key: Any) -> Any:
    """A key that is a queue; some writers put the object's JSON into a string."""
    if isinstance(key, str) and key.startswith("{"):
        return loads_object(key.encode())
    return key
