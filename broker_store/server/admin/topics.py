"""Topics: create, change, read, delete."""

from __future__ import annotations

import time
from dataclasses import replace

from broker_store.broker.topics import (
    FILTER_TYPES,
    MAX_ATTRIBUTE_CHARACTERS,
    MAX_ATTRIBUTES,
    MAX_QUEUES,
    TopicConfig,
)
from broker_store.errors import FieldError
from broker_store.formats.names import check_topic, pop_retry_topic
from broker_store.protocol import fastjson, offset_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import QueueOffsets
from broker_store.server import attributes
from broker_store.server.admin.answers import items_of, table_answer
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns, steps_in_turns


def forget_topic(parts: BrokerParts, topic: str) -> bool:
    """Delete a topic with its queues, offsets and statistics, and the pop retry topics that groups have for
    it. Return False if it did not exist."""
    for group in parts.offsets.groups_of_topic(topic):
        for version in (1, 2):
            retry = pop_retry_topic(topic, group, version=version)
            if parts.topics.get(retry) is not None:
                forget_topic(parts, retry)
    known = parts.topics.delete(topic)
    parts.store.delete_topic(topic)
    parts.offsets.forget_topic(topic)
    parts.ordered.forget(topic=topic)
    parts.pop_positions.drop_topic(topic)
    parts.in_flight.forget_topic(topic)
    parts.revive_log.counts.forget_topic(topic)
    parts.broadcast.forget(topic=topic)
    parts.static_topics.delete(topic)
    parts.statistics.forget_topic(topic)
    return known


def known_topic(parts: BrokerParts, topic: str) -> TopicConfig:
    """Return the settings of a topic. Raises Refusal if it does not exist."""
    config = parts.topics.get(topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic:.255}] not exist")
    return config


def check_config(parts: BrokerParts, config: TopicConfig, *, max_queues: int = MAX_QUEUES) -> None:
    """Raise an error for settings of a topic that a request may not set."""
    check_topic(config.name)
    if parts.topics.is_system(config.name):
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, f"The topic[{config.name}] is conflict with system topic."
        )
    for name, number in (("readQueueNums", config.read_queues), ("writeQueueNums", config.write_queues)):
        if not 0 <= number <= max_queues:
            raise FieldError(name, number, f"0 to {max_queues}")
    if not 0 <= config.perm <= 15:
        raise FieldError("perm", config.perm, "the bits 4 read, 2 write, 1 inherit")
    attributes.check_message_type(config.attributes, parts.settings.enable_mixed_message_type)
    if config.filter_type not in FILTER_TYPES:
        raise FieldError("topicFilterType", config.filter_type, " or ".join(FILTER_TYPES))
    if len(config.attributes) > MAX_ATTRIBUTES:
        raise FieldError("attributes", len(config.attributes), f"at most {MAX_ATTRIBUTES}")
    longest = max((len(text) for pair in config.attributes.items() for text in pair), default=0)
    if longest > MAX_ATTRIBUTE_CHARACTERS:
        raise FieldError(
            "attributes", longest, f"names and values of at most {MAX_ATTRIBUTE_CHARACTERS} characters"
        )
    kind = config.attributes.get("queue.type", "SimpleCQ")
    policy = config.attributes.get("cleanup.policy", "DELETE")
    if kind != "SimpleCQ" or policy != "DELETE":
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queue.type {kind:.40} with cleanup.policy {policy:.40} is not supported",
        )


class TopicAdmin:
    """The handlers of topics."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            R.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            R.UPDATE_AND_CREATE_TOPIC_LIST: self.put_topics,
            R.GET_ALL_TOPIC_CONFIG: self.all_topics,
            R.GET_TOPIC_CONFIG: self.topic_config,
            R.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            R.GET_TOPIC_STATS_INFO: self.topic_stats,
            R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def put_topic(self, command: Command, channel: Channel) -> Command:
        """Create or change a topic."""
        began_s, done = time.monotonic(), False
        is_system = self._parts.topics.is_system((command.fields or {}).get("topic", ""))
        try:
            answer = self._put_topic(command)
            done = True
        finally:
            self._parts.statistics.histograms.topic_put(
                time.monotonic() - began_s, done=done, is_system=is_system
            )
        return answer

    def _put_topic(self, command: Command) -> Command:
        header = read_header(R.UPDATE_AND_CREATE_TOPIC, command.fields)
        old = self._parts.topics.get(header.topic)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type or "SINGLE_TAG",
            header.topic_sys_flag or 0,
            bool(header.order),
            attributes.altered(old.attributes if old else {}, attributes.changes_of(header.attributes)),
        )
        self._check_topic(config)
        self._parts.topics.put(config)
        return command.answer()

    async def put_topics(self, command: Command, channel: Channel) -> Command:
        configs = []
        async for items in in_turns(items_of(command.body, "topicConfigList")):
            for item in items:
                configs.append(self._from_item(TopicConfig.from_json(item)))
                self._check_topic(configs[-1])
        steps = self._parts.topics.put_in_steps(configs)
        try:
            await steps_in_turns(steps)
        finally:  # a list is applied as a whole, also if the broker stops meanwhile
            for _ in steps:
                pass
        return command.answer()

    def _from_item(self, config: TopicConfig) -> TopicConfig:
        """Return the settings of an item of a list."""
        old = self._parts.topics.get(config.name)
        known = old.attributes if old else {}
        return replace(config, attributes=attributes.altered_by_item(known, config.attributes))

    def _check_topic(self, config: TopicConfig) -> None:
        check_config(self._parts, config)
        least = self._parts.static_topics.least_queues(config.name)
        if config.queues < least:
            raise FieldError("writeQueueNums", config.queues, f"at least {least}, those of the static topic")

    def all_topics(self, command: Command, channel: Channel) -> Answer:
        topics = self._parts.topics
        head = {
            "dataVersion": topics.data_version.to_json(),
            "mappingDataVersion": self._parts.static_topics.data_version.to_json(),
            "topicQueueMappingDetailMap": self._parts.static_topics.to_json(),
        }
        configs = topics.all()
        entries = ((config.name, config.to_json()) for config in configs)
        return table_answer(
            command, {"totalTopicNum": str(len(configs))}, head, "topicConfigTable", entries, len(configs)
        )

    def topic_config(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_TOPIC_CONFIG, command.fields)
        config = self._parts.topics.get(header.topic)
        if config is None:
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic:.255}"
            )
        members = config.to_json()
        mapping = self._parts.static_topics.get(header.topic) if header.lo else None
        if mapping is not None:
            members["mappingDetail"] = mapping.to_json()
        return command.answer(0, None, None, fastjson.dumps(members))

    def delete_topic(self, command: Command, channel: Channel) -> Command:
        topic = read_header(R.DELETE_TOPIC_IN_BROKER, command.fields).topic
        check_topic(topic)
        if self._parts.topics.is_system(topic):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
            )
        forget_topic(self._parts, topic)
        return command.answer()

    def topic_stats(self, command: Command, channel: Channel) -> Command:
        topic = read_header(R.GET_TOPIC_STATS_INFO, command.fields).topic
        config = known_topic(self._parts, topic)
        queues = {
            MessageQueue(topic, self._parts.broker_name, queue_id): self._queue_offsets(topic, queue_id)
            for queue_id in range(config.queues)
        }
        return command.answer(
            0, None, None, offset_bodies.encode_topic_stats(queues, self._parts.statistics.put_rate(topic))
        )

    def _queue_offsets(self, topic: str, queue_id: int) -> QueueOffsets:
        store = self._parts.store
        low, high = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
        last_ms = store.reads.times.store_time_at(topic, queue_id, high - 1) if high > low else 0
        return QueueOffsets(max(0, low), max(0, high), max(0, last_ms))

    def system_topics(self, command: Command, channel: Channel) -> Command:
        return command.answer(
            0, None, None, topic_bodies.encode_topic_list(self._parts.topics.system_names())
        )
