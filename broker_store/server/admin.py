"""What Apache's DefaultMQAdminExt asks a broker: topics, groups, offsets, connections, statistics
(docs/spec/remoting.md section 5).

Answers have Apache's shapes, so mqadmin and other consoles work. Two things differ on purpose: configuration
cannot be changed over the wire as long as there is no way to tell who asks (docs/durability.md S1), and a
number that was not measured is left out instead of invented.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace

from broker_store.broker.clients import Client
from broker_store.broker.groups import MAX_GROUP_BYTES, SubscriptionGroup, check_retry_policy
from broker_store.broker.statistics import DAY_MS, HOUR_MS, MINUTE_MS, Meter
from broker_store.broker.topics import (
    FILTER_TYPES,
    MAX_ATTRIBUTE_CHARACTERS,
    MAX_ATTRIBUTES,
    MAX_QUEUES,
    TopicConfig,
)
from broker_store.errors import FieldError, FormatError
from broker_store.formats import record
from broker_store.formats.config_json import DataVersion
from broker_store.formats.message_id import decode_offset_id
from broker_store.formats.names import check_group, check_topic
from broker_store.protocol import fastjson, offset_bodies, table_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import MAX_FRAME_BYTES
from broker_store.protocol.headers import read_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets, QueueOffsets
from broker_store.server import runtime_info, topic_attributes
from broker_store.server.channel import Channel, RequestTimeout
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns, steps_in_turns

FORWARD_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0
MAX_QUEUE_UNITS = 100
NO_CODE = "not set any response code"
MAX_MADE_AT_ONCE = 1_000  # topics or groups by one request; a list of so many topics has 0.3 MB
# Of a table; a larger one is written in a thread. So many take the loop a millisecond.
MAX_ENTRIES_AT_ONCE = 200


def forget_topic(parts: BrokerParts, topic: str) -> bool:
    """Delete a topic with its queues and all that is known of it. Return False when there was none."""
    known = parts.topics.delete(topic)
    parts.store.delete_topic(topic)
    parts.offsets.forget_topic(topic)
    parts.broadcast.forget(topic=topic)
    parts.statistics.forget_topic(topic)
    return known


def forget_group(parts: BrokerParts, group: str, *, clean_offset: bool) -> bool:
    """Delete a group. Return False when there was none. Its retry and dead letter topics are deleted by the
    caller that wants that (mqadmin does)."""
    known = parts.groups.delete(group)
    if clean_offset:
        parts.offsets.forget_group(group)
        parts.broadcast.forget(group=group)
    parts.statistics.forget_group(group)
    return known


class Admin:
    """The handlers of administration."""

    def __init__(
        self,
        parts: BrokerParts,
        reset_pulls: Callable[[str, str, list[int]], None],
        waiting: Callable[[], int],
        max_waiting: int,
    ):
        """`reset_pulls(group, topic, queue_ids)` answers pulls of a group whose offsets were reset.
        `waiting()` is the number of requests that wait for other clients or for a cold read, of at most
        `max_waiting`."""
        self._parts, self._reset_pulls = parts, reset_pulls
        self._waiting, self._max_waiting = waiting, max_waiting

    def handlers(self) -> dict:
        return {
            R.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            R.UPDATE_AND_CREATE_TOPIC_LIST: self.put_topics,
            R.GET_ALL_TOPIC_CONFIG: self.all_topics,
            R.GET_TOPIC_CONFIG: self.topic_config,
            R.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            R.GET_TOPIC_STATS_INFO: self.topic_stats,
            R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            R.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            R.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            R.UPDATE_AND_GET_GROUP_FORBIDDEN: self.group_forbidden,
            R.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            R.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            R.GET_CONSUME_STATS: self.consume_stats,
            R.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            R.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
            R.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            R.CLONE_GROUP_OFFSET: self.clone_offset,
            R.QUERY_CORRECTION_OFFSET: self.correction_offset,
            R.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            R.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            R.GET_ALL_PRODUCER_INFO: self.all_producers,
            R.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            R.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            R.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_group,
            R.QUERY_CONSUME_QUEUE: self.consume_queue,
            R.GET_CONSUMER_RUNNING_INFO: self.running_info,
            R.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            R.GET_BROKER_CONFIG: self.broker_config,
            R.UPDATE_BROKER_CONFIG: self.refuse_config,
            R.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            R.GET_BROKER_HA_STATUS: self.ha_status,
            R.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            R.VIEW_BROKER_STATS_DATA: self.stats_data,
            R.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            R.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            R.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
        }

    # Topics

    def put_topic(self, command: Command, channel: Channel) -> Command:
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
            topic_attributes.altered(
                old.attributes if old else {}, topic_attributes.changes_of(header.attributes)
            ),
        )
        self._check_topic(config)
        self._parts.topics.put(config)
        return command.answer()

    async def put_topics(self, command: Command, channel: Channel) -> Command:
        configs = []
        async for items in in_turns(_list_of(command.body, "topicConfigList")):
            for item in items:
                configs.append(self._from_item(TopicConfig.from_json(item)))
                self._check_topic(configs[-1])
        steps = self._parts.topics.put_in_steps(configs)
        try:
            await steps_in_turns(steps)
        finally:  # a list is put as a whole, also where the broker stops meanwhile
            for _ in steps:
                pass
        return command.answer()

    def _from_item(self, config: TopicConfig) -> TopicConfig:
        """An item of a list: its attributes are changes where their names begin with + or -, as Apache's
        tools write them."""
        old = self._parts.topics.get(config.name)
        changes = {name: value for name, value in config.attributes.items() if name[:1] in ("+", "-")}
        if not changes:
            return config
        return replace(config, attributes=topic_attributes.altered(old.attributes if old else {}, changes))

    def _check_topic(self, config: TopicConfig) -> None:
        check_topic(config.name)
        if self._parts.topics.is_system(config.name):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"The topic[{config.name}] is conflict with system topic."
            )
        for name, number in (("readQueueNums", config.read_queues), ("writeQueueNums", config.write_queues)):
            if not 0 <= number <= MAX_QUEUES:
                raise FieldError(name, number, f"0 to {MAX_QUEUES}")
        if not 0 <= config.perm <= 15:
            raise FieldError("perm", config.perm, "the bits 4 read, 2 write, 1 inherit")
        topic_attributes.check_message_type(config.attributes, self._parts.settings.enable_mixed_message_type)
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

    def all_topics(self, command: Command, channel: Channel) -> Command | Coroutine:
        topics = self._parts.topics
        head = {
            "dataVersion": topics.data_version.to_json(),
            "mappingDataVersion": DataVersion().to_json(),
            "topicQueueMappingDetailMap": {},
        }
        configs = topics.all()
        entries = ((config.name, config.to_json()) for config in configs)
        return _table_answer(
            command, {"totalTopicNum": str(len(configs))}, head, "topicConfigTable", entries, len(configs)
        )

    def topic_config(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_TOPIC_CONFIG, command.fields)
        config = self._parts.topics.get(header.topic)
        if config is None:
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic:.255}"
            )
        return command.answer(0, None, None, fastjson.dumps(config.to_json()))

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
        config = self._topic(topic)
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

    def _topic(self, topic: str) -> TopicConfig:
        config = self._parts.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic:.255}] not exist")
        return config

    # Groups

    def put_group(self, command: Command, channel: Channel) -> Command:
        self._parts.groups.put(self._read_group(fastjson.loads(command.body)))
        return command.answer()

    async def put_groups(self, command: Command, channel: Channel) -> Command:
        groups = []
        async for values in in_turns(_list_of(command.body, "groupConfigList")):
            groups += map(self._read_group, values)
        self._parts.groups.put_all(groups)
        return command.answer()

    @staticmethod
    def _read_group(value: object) -> SubscriptionGroup:
        """A group from Apache's object, when it may be; Refusal, FieldError or NameError_ when it may not."""
        try:
            group = SubscriptionGroup.from_json(value)
        except FormatError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        check_group(group.name)
        try:
            check_retry_policy(group.retry_policy)
        except FormatError as error:
            raise FieldError("groupRetryPolicy", group.retry_policy, str(error)) from None
        if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
            raise FieldError("retryQueueNums", group.retry_queue_nums, f"0 to {MAX_QUEUES}")
        characters = len(fastjson.dumps(group.to_json()))
        if characters > MAX_GROUP_BYTES:
            raise FieldError(
                "group", characters, f"at most {MAX_GROUP_BYTES} bytes of settings and attributes"
            )
        return group

    def all_groups(self, command: Command, channel: Channel) -> Command | Coroutine:
        groups = self._parts.groups.all()
        head = {
            "dataVersion": self._parts.groups.data_version.to_json(),
            "forbiddenTable": self._parts.groups.forbidden(),
        }
        entries = ((group.name, group.to_json()) for group in groups)
        return _table_answer(
            command, {"totalGroupNum": str(len(groups))}, head, "subscriptionGroupTable", entries, len(groups)
        )

    def group_config(self, command: Command, channel: Channel) -> Command:
        group = self._parts.groups.get(read_header(R.GET_SUBSCRIPTIONGROUP_CONFIG, command.fields).group)
        if group is None:
            return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return command.answer(0, None, None, fastjson.dumps(group.to_json()))

    def group_forbidden(self, command: Command, channel: Channel) -> Command:
        """Whether a group may read a topic, after it was changed where the request says how."""
        header = read_header(R.UPDATE_AND_GET_GROUP_FORBIDDEN, command.fields)
        groups = self._parts.groups
        if header.readable is not None:
            if groups.get(header.group) is None:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"Group {header.group:.120} not exist!",
                    "no group",
                )
            if self._parts.topics.get(header.topic) is None:
                raise Refusal(
                    ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.255} not exist!", "no topic"
                )
            groups.set_may_read(header.group, header.topic, header.readable)
        value = {
            "group": header.group,
            "readable": groups.may_read(header.group, header.topic),
            "topic": header.topic,
        }
        return command.answer(0, "", None, fastjson.dumps(value))

    def delete_group(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.DELETE_SUBSCRIPTIONGROUP, command.fields)
        check_group(header.group_name)
        if self._parts.groups.is_system(header.group_name):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"the group {header.group_name} belongs to the broker"
            )
        forget_group(self._parts, header.group_name, clean_offset=bool(header.clean_offset))
        return command.answer()

    # Offsets and progress

    def all_offsets(self, command: Command, channel: Channel) -> Command | Coroutine:
        offsets = self._parts.offsets
        head = {"dataVersion": offsets.data_version.to_json()}
        return _table_answer(command, None, head, "offsetTable", offsets.entries(), len(offsets))

    def delay_offsets(self, command: Command, channel: Channel) -> Command:
        return command.answer(0, None, None, fastjson.dumps(self._parts.delay.to_json()))

    async def consume_stats(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_CONSUME_STATS, command.fields)
        group = header.consumer_group
        check_group(group)
        wanted = [name for name in (header.topic_list or "").split(";") if name]
        topics = [header.topic] if header.topic else wanted or self._topics_consumed(group)
        offsets: dict[MessageQueue, ConsumeOffsets] = {}
        async for some in in_turns(topics, 8):
            for topic in some:
                offsets |= self.progress(group, topic)
        rate = self._parts.statistics.got_rate(group, header.topic or None)
        return command.answer(0, None, None, offset_bodies.encode_consume_stats(offsets, rate))

    def _topics_consumed(self, group: str) -> list[str]:
        """Topics the group has offsets of or subscribes to now."""
        online = self._parts.clients.consumer_group(group)
        names = dict.fromkeys(self._parts.offsets.topics_of(group))
        names.update(dict.fromkeys(online.subscriptions if online else ()))
        return list(names)

    def progress(self, group: str, topic: str) -> dict[MessageQueue, ConsumeOffsets]:
        """How far a group is in each queue of a topic; empty for an unknown topic."""
        parts, store = self._parts, self._parts.store
        config = parts.topics.get(topic)
        found = {}
        for queue_id in range(config.read_queues if config else 0):
            high = max(0, store.reads.max_offset(topic, queue_id))
            consumed = parts.offsets.query(group, topic, queue_id)
            last_ms = store.reads.times.store_time_at(topic, queue_id, consumed - 1) if consumed else 0
            pulled = parts.offsets.pulled_offset(group, topic, queue_id)
            queue = MessageQueue(topic, parts.broker_name, queue_id)
            consumed = max(0, consumed or 0)
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
                    progress = self.progress(groups[0].name, topic)
                    stats.append(
                        offset_bodies.consume_stats_json(
                            progress, parts.statistics.got_rate(groups[0].name, topic)
                        )
                    )
                    behind += sum(item.broker_offset - item.consumer_offset for item in progress.values())
            # As text at once: as values the statistics of 100,000 topics would take a hundred times the room.
            pieces.append(await _dumps({groups[0].name: stats}, len(stats)))
            size += len(pieces[-1])
            _check_fits(size)
        value = {"brokerAddr": parts.endpoint.address, "totalDiff": behind, "totalInflightDiff": 0}
        head = fastjson.dumps(value)[:-1] + b',"consumeStatsList":['
        return command.answer(
            0, None, None, await asyncio.to_thread(lambda: b"".join((head, b",".join(pieces), b"]}")))
        )

    def consume_time_span(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_CONSUME_TIME_SPAN, command.fields)
        config, store = self._topic(header.topic), self._parts.store
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

    def reset_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.INVOKE_BROKER_TO_RESET_OFFSET, command.fields)
        if self._parts.topics.get(header.topic) is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.255} not exist")
        if self._parts.groups.get(header.group) is None:
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group:.120} not exist"
            )
        queue_id = -1 if header.queue_id is None else header.queue_id
        offsets = self.new_offsets(header.topic, header.timestamp, queue_id, header.offset)
        for queue, offset in offsets.items():
            self._parts.offsets.reset(header.group, queue.topic, queue.queue_id, offset)
        self._reset_pulls(header.group, header.topic, [queue.queue_id for queue in offsets])
        return command.answer(0, None, None, offset_bodies.encode_offset_table(offsets))

    def new_offsets(
        self, topic: str, time_ms: int, queue_id: int = -1, offset: int | None = None
    ) -> dict[MessageQueue, int]:
        """Where a group would stand after a reset: a given offset, else by time; -1 is the end, as Apache has
        it."""
        config, store = self._topic(topic), self._parts.store
        if queue_id >= config.read_queues:
            raise FieldError("queueId", queue_id, f"less than {config.read_queues}")
        found = {}
        for number in range(config.read_queues) if queue_id < 0 else [queue_id]:
            low, high = (
                max(0, store.reads.min_offset(topic, number)),
                max(0, store.reads.max_offset(topic, number)),
            )
            if offset is not None and offset >= 0:
                if not low <= offset <= high:
                    raise FieldError("offset", offset, f"{low} to {high}, which queue {number} holds")
                place = offset
            else:
                place = high if time_ms < 0 else store.reads.times.offset_by_time(topic, number, time_ms)
            found[MessageQueue(topic, self._parts.broker_name, number)] = max(low, min(place, high))
        return found

    async def clone_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.CLONE_GROUP_OFFSET, command.fields)
        for group in (header.src_group, header.dest_group):
            if self._parts.groups.get(group) is None:
                return command.answer(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group:.120} not exist"
                )
        cloned = [
            topic
            for topic in self._parts.offsets.topics_of(header.src_group)
            if header.topic in (None, "", topic)
        ]
        self._parts.offsets.check_room(header.dest_group, cloned)
        async for topics in in_turns(cloned):
            for topic in topics:
                self._parts.offsets.clone(header.src_group, header.dest_group, topic)
        return command.answer()

    def correction_offset(self, command: Command, channel: Channel) -> Command:
        """The lowest offset that other groups have in each queue, where it is below the compared group's."""
        header = read_header(R.QUERY_CORRECTION_OFFSET, command.fields)
        offsets = self._parts.offsets
        left_out = {name for name in (header.filter_groups or "").split(",") if name} | {header.compare_group}
        lowest: dict[int, int] = {}
        for group in offsets.groups_of_topic(header.topic):
            if group not in left_out:
                for queue_id, offset in offsets.of(group, header.topic).items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        compared = offsets.of(header.compare_group, header.topic)
        correction = {
            queue_id: offset for queue_id, offset in lowest.items() if offset < compared.get(queue_id, 0)
        }
        return command.answer(0, None, None, fastjson.dumps({"correctionOffsets": correction}))

    # Connections and subscriptions

    def consumer_connections(self, command: Command, channel: Channel) -> Command:
        name = read_header(R.GET_CONSUMER_CONNECTION_LIST, command.fields).consumer_group
        group = self._parts.clients.consumer_group(name)
        if group is None:
            return command.answer(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name:.120}] not online"
            )
        value = {
            "connectionSet": [_connection(client) for client in group.members.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: item.to_json() for topic, item in group.subscriptions.items()},
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def producer_connections(self, command: Command, channel: Channel) -> Command:
        name = read_header(R.GET_PRODUCER_CONNECTION_LIST, command.fields).producer_group
        members = self._parts.clients.producers(name)
        if not members:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"the producer group[{name:.120}] not exist")
        return command.answer(
            0, None, None, fastjson.dumps({"connectionSet": [_connection(client) for client in members]})
        )

    def all_producers(self, command: Command, channel: Channel) -> Command:
        groups = {
            name: [
                {
                    "clientId": client.client_id,
                    "language": client.language,
                    "lastUpdateTimestamp": client.seen_ms,
                    "remoteIP": f"/{client.channel.remote}",
                    "version": client.version,
                }
                for client in members
            ]
            for name, members in self._parts.clients.producer_groups().items()
        }
        return command.answer(0, None, None, fastjson.dumps({"data": groups}))

    def groups_of_topic(self, command: Command, channel: Channel) -> Command:
        topic = read_header(R.QUERY_TOPIC_CONSUME_BY_WHO, command.fields).topic
        names = dict.fromkeys(self._parts.clients.groups_of_topic(topic))
        names.update(dict.fromkeys(self._parts.offsets.groups_of_topic(topic)))
        return command.answer(0, None, None, fastjson.dumps({"groupList": list(names)}))

    def topics_of_group(self, command: Command, channel: Channel) -> Command:
        group = read_header(R.QUERY_TOPICS_BY_CONSUMER, command.fields).group
        topics = list(self._parts.offsets.of_group(group))
        return command.answer(
            0, None, None, topic_bodies.encode_topic_list(topics, self._parts.endpoint.address)
        )

    def subscription_of_group(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_SUBSCRIPTION_BY_CONSUMER, command.fields)
        found = self._parts.clients.subscription(header.group, header.topic or "")
        value = {
            "group": header.group,
            "subscriptionData": found.to_json() if found else None,
            "topic": header.topic,
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def consume_queue(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_CONSUME_QUEUE, command.fields)
        store = self._parts.store
        config = self._parts.topics.get(header.topic)
        if config is None or not (
            0 <= header.queue_id < config.queues or header.queue_id in store.queue_ids(header.topic)
        ):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic:.255} is not exist!"
            )
        count = max(0, min(header.count, MAX_QUEUE_UNITS))
        subscription = self._parts.clients.subscription(header.consumer_group or "", header.topic)
        wanted = subscription.tag_codes if subscription else None
        units = store.reads.read_units(header.topic, header.queue_id, max(0, header.index), count)
        value = {
            "maxQueueIndex": store.reads.max_offset(header.topic, header.queue_id),
            "minQueueIndex": store.reads.min_offset(header.topic, header.queue_id),
            "queueData": [
                {
                    "eval": subscription is not None
                    and (wanted is None or (tags_code & 0xFFFFFFFF) in _unsigned(wanted)),
                    "physicOffset": log_offset,
                    "physicSize": size,
                    "tagsCode": tags_code,
                }
                for log_offset, size, tags_code in units
            ],
            "subscriptionData": subscription.to_json() if subscription else None,
        }
        return command.answer(0, NO_CODE, None, fastjson.dumps(value))

    # Asked of a consumer, for an administrator

    async def running_info(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_CONSUMER_RUNNING_INFO, command.fields)
        return await self._forward(
            command, header.consumer_group, header.client_id, dict(command.fields), b""
        )

    async def consume_directly(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.CONSUME_MESSAGE_DIRECTLY, command.fields)
        fields = dict(command.fields) | {"brokerName": self._parts.broker_name}
        _, log_offset = decode_offset_id(header.msg_id or "")
        raw = await asyncio.to_thread(self._parts.store.reads.records.record_at, log_offset)
        if raw is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {log_offset}"
            )
        fields.setdefault("topic", record.decode(raw, check_crc=False).topic)
        return await self._forward(command, header.consumer_group, header.client_id or "", fields, raw)

    async def _forward(
        self, command: Command, group_name: str, client_id: str, fields: dict[str, str], body: bytes
    ) -> Command:
        group = self._parts.clients.consumer_group(group_name)
        client = group.find(client_id) if group else None
        if client is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name:.120}> <{client_id:.255}> not online"
            )
        try:
            answer = await client.channel.request(
                Command.request(command.code, fields, body), FORWARD_TIMEOUT_S
            )
        except RequestTimeout:
            remark = f"consumer <{group_name}> <{client_id}> did not answer"
            return command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        return command.answer(answer.code, answer.remark, answer.fields, answer.body)

    async def consumer_status(self, command: Command, channel: Channel) -> Command:
        """The offsets that the consumers of a group hold themselves, asked of each that is online."""
        header = read_header(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, command.fields)
        group = self._parts.clients.consumer_group(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group:.120}]"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        table = {}
        for client in list(group.members.values()):
            if header.client_addr and client.client_id != header.client_addr:
                continue
            request = Command.request(
                int(R.GET_CONSUMER_STATUS_FROM_CLIENT), {"topic": header.topic, "group": header.group}
            )
            try:
                answer = await client.channel.request(request, STATUS_TIMEOUT_S)
            except RequestTimeout:
                continue
            value = fastjson.loads(answer.body) if answer.code == 0 and answer.body else {}
            if isinstance(value, dict):
                table[client.client_id] = value.get("messageQueueTable", {})
        return command.answer(
            0, None, None, fastjson.dumps({"consumerTable": table, "messageQueueTable": {}})
        )

    # The broker itself

    def broker_config(self, command: Command, channel: Channel) -> Command:
        """The settings that act, by Apache's names, one a line."""
        version = fastjson.dumps(DataVersion().to_json()).decode()
        return command.answer(
            0, None, {"version": version}, table_bodies.encode_properties(self._parts.properties())
        )

    def refuse_config(self, command: Command, channel: Channel) -> Command:
        remark = (
            "the configuration cannot be changed over the wire, change the broker's settings and restart it"
        )
        return command.answer(ResponseCode.NO_PERMISSION, remark)

    def runtime_info(self, command: Command, channel: Channel) -> Command:
        return command.answer(0, None, None, table_bodies.encode_table(self.runtime_table()))

    def runtime_table(self) -> dict[str, str]:
        """What `mqadmin brokerStatus` and `clusterList` show."""
        return runtime_info.runtime_table(self._parts, self._waiting(), self._max_waiting)

    # Cleaning on demand: what is due goes at once, without the hour of deleteWhen

    def clean_expired_queues(self, command: Command, channel: Channel) -> Command:
        """Nothing is left to do: what pointed to deleted log files went with them."""
        return command.answer()

    def clean_unused_topics(self, command: Command, channel: Channel) -> Command:
        """Nothing is left to do: queues without a topic are given one at the start, and deleting a topic
        takes its queues along."""
        return command.answer()

    def delete_expired_log(self, command: Command, channel: Channel) -> Command:
        """Delete the log files that are older than fileReservedTime, as retention would at the hour of
        deleteWhen."""
        self._parts.store.cleaning.clean_expired()
        return command.answer()

    def stats_data(self, command: Command, channel: Channel) -> Command:
        """What came in or went out within a minute, an hour and a day; `avgpt`, per call, is not measured and
        left out."""
        header = read_header(R.VIEW_BROKER_STATS_DATA, command.fields)
        meter, unit = self._meter(header.stats_name, header.stats_key)
        if meter is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name:.60}> <{header.stats_key:.255}> not exist",
            )
        value = {}
        for name, over_ms in (("statsMinute", MINUTE_MS), ("statsHour", HOUR_MS), ("statsDay", DAY_MS)):
            messages, size, seconds = meter.lately(self._parts.clock(), over_ms)
            total = size if unit == "SIZE" else messages
            value[name] = {"sum": total, "tps": total / seconds if seconds > 0 else 0.0}
        return command.answer(0, None, None, fastjson.dumps(value))

    def _meter(self, name: str, key: str) -> tuple[Meter | None, str]:
        """The meter behind one of Apache's names, and whether it is its messages or its bytes; None for what
        is not measured."""
        statistics = self._parts.statistics
        what, _, unit = name.rpartition("_")
        topic, _, group = key.partition("@")
        if name == "TOPIC_PUT_NUMS":  # ours counts bodies, Apache's TOPIC_PUT_SIZE whole records
            return statistics.topic(key), unit
        if what == "GROUP_GET" and unit in ("NUMS", "SIZE"):
            return statistics.group_topic(group, topic), unit
        if name == "SNDBCK_PUT_NUMS":
            return statistics.sent_back_of(group, topic), unit
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS") and key == self._parts.cluster:
            return statistics.put if what == "BROKER_PUT" else statistics.got, unit
        return None, unit

    def ha_status(self, command: Command, channel: Channel) -> Command:
        runtime = dict.fromkeys(
            (
                "lastReadTimestamp",
                "lastWriteTimestamp",
                "masterFlushOffset",
                "maxOffset",
                "transferredByteInSecond",
            ),
            0,
        )
        value = {
            "haClientRuntimeInfo": runtime,
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._parts.store.log.wrote,
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def request_modes(self, command: Command, channel: Channel) -> Command:
        """Every group pulls; consuming by pop is not there."""
        return command.answer(0, None, None, fastjson.dumps({"messageRequestModeMap": {}}))


def _table_answer(
    command: Command,
    fields: dict[str, str] | None,
    head: dict[str, object],
    name: str,
    entries: Iterable[tuple[str, object]],
    count: int,
) -> Command | Coroutine[None, None, Command]:
    """An answer with a table of `count` entries, which a thread writes where they are many."""

    def written() -> Command:
        return command.answer(0, None, fields, fastjson.dumps_table(head, name, entries))

    return written() if count <= MAX_ENTRIES_AT_ONCE else asyncio.to_thread(written)


async def _dumps(value: object, count: int) -> bytes:
    return (
        fastjson.dumps(value)
        if count <= MAX_ENTRIES_AT_ONCE // 8
        else await asyncio.to_thread(fastjson.dumps, value)
    )


def _check_fits(size: int) -> None:
    """Refuse an answer as soon as it is known to be larger than a frame."""
    if size > MAX_FRAME_BYTES:
        remark = f"the answer takes more than {MAX_FRAME_BYTES} bytes, which is the most of a frame"
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, remark, "answer too large", value=size, limit=MAX_FRAME_BYTES
        )


def _list_of(body: bytes, name: str) -> list:
    value = fastjson.loads(body)
    items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise FieldError(name, items, "an array")
    if len(items) > MAX_MADE_AT_ONCE:
        remark = f"{name} has {len(items)} entries, at most {MAX_MADE_AT_ONCE} are made by one request"
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            remark,
            "too many at once",
            value=len(items),
            limit=MAX_MADE_AT_ONCE,
        )
    return items


def _connection(client: Client) -> dict:
    return {
        "clientAddr": client.channel.remote,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def _unsigned(codes: frozenset[int]) -> set[int]:
    return {code & 0xFFFFFFFF for code in codes}
