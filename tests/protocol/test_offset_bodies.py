"""Bodies of offsets and statistics."""

from broker_store.protocol import (
    offset_bodies,
)
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets, QueueOffsets
from tests.support.wire_samples import sample


def test_topic_and_consume_statistics_are_those_of_the_real_broker():
    stats = offset_bodies.decode_topic_stats(sample("topicstats").body)
    assert stats[MessageQueue("TopicX", "broker-a", 1)].max_offset == 1
    assert offset_bodies.encode_topic_stats(stats) == sample("topicstats").body
    consumed = offset_bodies.decode_consume_stats(sample("consumestats").body)
    assert consumed[MessageQueue("TopicX", "broker-a", 1)] == ConsumeOffsets(1, 1, 1795244467796, 1)
    assert offset_bodies.encode_consume_stats(consumed) == sample("consumestats").body
    offsets = offset_bodies.decode_offset_table(sample("reset all").body)
    assert offset_bodies.encode_offset_table(offsets) == sample("reset all").body
    assert QueueOffsets(0, 1) == (0, 1, 0)


def test_queues_as_text_keys_are_read_too():
    assert offset_bodies.decode_offset_table(
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":7}}'
    ) == {MessageQueue("T", "b", 1): 7}
