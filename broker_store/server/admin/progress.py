"""Progress of groups in their topics, in messages and in time."""

from __future__ import annotations

import asyncio

from broker_store.formats.names import RETRY_PREFIX, check_group
from broker_store.protocol import fastjson, offset_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets
from broker_store.server.admin.answers import check_fits, dumps
from broker_store.server.admin.topics import known_topic
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns


class ProgressAdmin:
    """The handlers of progress."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            R.GET_CONSUME_STATS: self.consume_stats,
            R.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            R.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
        }

    async def consume_stats(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_CONSUME_STATS, command.fields)
        group = header.consumer_group
        check_group(group)
        wanted = [name for name in (header.topic_list or "").split(";") if name]
        topics = [header.topic] if header.topic else wanted or self._topics_consumed(group)
        offsets: dict[MessageQueue, ConsumeOffsets] = {}
        async for some in in_turns(topics, 8):
            for topic in some:
                # What a group has not read yet is asked for in the items of a logical queue: there it is -1
                none_yet = 0 if self._parts.static_topics.get(topic) is None else -1
                offsets |= self._progress(group, topic, none_yet)
        rate = self._parts.statistics.got_rate(group, header.topic or None)
        return command.answer(0, None, None, offset_bodies.encode_consume_stats(offsets, rate))

    def _topics_consumed(self, group: str) -> list[str]:
        """Return the topics that the group has offsets in or subscribes to, and its retry topics with
        messages in queues without an offset."""
        parts = self._parts
        online, consumed = parts.clients.consumer_group(group), parts.offsets.topics_of(group)
        names = dict.fromkeys(consumed)
        names.update(dict.fromkeys(online.subscriptions if online else ()))
        retries = parts.lag_offsets.retry_topics(group, consumed)
        names.update(dict.fromkeys(topic for topic in retries if parts.lag_offsets.unread(group, topic)))
        return list(names)

    def _progress(self, group: str, topic: str, none_yet: int = 0) -> dict[MessageQueue, ConsumeOffsets]:
        """Return the progress of a group in each queue of a topic; empty for an unknown topic. `none_yet` is
        the offset in a queue where the group has none."""
        parts, store = self._parts, self._parts.store
        config = parts.topics.get(topic)
        begins = parts.lag_offsets.unread(group, topic) if topic.startswith(RETRY_PREFIX) else {}
        found = {}
        for queue_id in range(config.read_queues if config else 0):
            high = max(0, store.reads.max_offset(topic, queue_id))
            consumed = parts.offsets.query(group, topic, queue_id)
            last_ms = store.reads.times.store_time_at(topic, queue_id, consumed - 1) if consumed else 0
            pulled = parts.offsets.pulled_offset(group, topic, queue_id)
            queue = MessageQueue(topic, parts.broker_name, queue_id)
            consumed = begins.get(queue_id, none_yet) if consumed is None else max(0, consumed)
            found[queue] = ConsumeOffsets(
                high, consumed, max(0, last_ms), consumed if pulled is None else max(0, pulled)
            )
        return found

    async def broker_consume_stats(self, command: Command, channel: Channel) -> Command:
        parts = self._parts
        ordered = read_header(R.GET_BROKER_CONSUME_STATS, command.fields).is_order
        pieces, size, behind = [], 0, 0
        async for groups in in_turns(parts.groups.all(), 1):
            stats: list = []
            async for topics in in_turns(self._topics_consumed(groups[0].name), 8):
                for topic in topics:
                    config = parts.topics.get(topic)
                    if config is None or (ordered and not config.order):
                        continue
                    progress = self._progress(groups[0].name, topic)
                    stats.append(
                        offset_bodies.consume_stats_json(
                            progress, parts.statistics.got_rate(groups[0].name, topic)
                        )
                    )
                    behind += sum(item.broker_offset - item.consumer_offset for item in progress.values())
            # Encoded at once: as Python values the statistics of 100,000 topics would take a hundred times
            # the memory.
            pieces.append(await dumps({groups[0].name: stats}, len(stats)))
            size += len(pieces[-1])
            check_fits(size)
        value = {"brokerAddr": parts.endpoint.address, "totalDiff": behind, "totalInflightDiff": 0}
        head = fastjson.dumps(value)[:-1] + b',"consumeStatsList":['
        return command.answer(
            0, None, None, await asyncio.to_thread(lambda: b"".join((head, b",".join(pieces), b"]}")))
        )

    def consume_time_span(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_CONSUME_TIME_SPAN, command.fields)
        config, store = known_topic(self._parts, header.topic), self._parts.store
        spans = []
        for queue_id in range(config.write_queues):
            low, high = (
                store.reads.min_offset(header.topic, queue_id),
                store.reads.max_offset(header.topic, queue_id),
            )
            oldest_ms = store.reads.times.earliest_store_time(header.topic, queue_id)
            newest_ms = (
                store.reads.times.store_time_at(header.topic, queue_id, high - 1) if high > low else -1
            )
            offset = self._parts.offsets.query(header.group, header.topic, queue_id)
            consumed_ms = (
                store.reads.times.store_time_at(header.topic, queue_id, offset - 1) if offset else oldest_ms
            )
            next_ms = (
                store.reads.times.store_time_at(header.topic, queue_id, offset or 0)
                if (offset or 0) < high
                else -1
            )
            span = {
                "minTimeStamp": oldest_ms,
                "maxTimeStamp": newest_ms,
                "consumeTimeStamp": consumed_ms,
                "delayTime": max(0, self._parts.clock() - next_ms) if next_ms >= 0 else 0,
                "messageQueue": MessageQueue(header.topic, self._parts.broker_name, queue_id).to_json(),
            }
            spans.append(span)
        return command.answer(0, None, None, fastjson.dumps({"consumeTimeSpanSet": spans}))
