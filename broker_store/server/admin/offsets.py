"""Offsets of groups: read, reset, copy, compare."""

from __future__ import annotations

from collections.abc import Callable

from broker_store.errors import FieldError
from broker_store.protocol import fastjson, offset_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.server.admin.answers import table_answer
from broker_store.server.admin.topics import known_topic
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handlers
from broker_store.server.parts import BrokerParts
from broker_store.turns import in_turns


class OffsetAdmin:
    """The handlers of offsets."""

    def __init__(self, parts: BrokerParts, reset_pulls: Callable[[str, str, list[int]], None]):
        """`reset_pulls(group, topic, queue_ids)` answers the parked pulls of a group whose offsets were
        reset."""
        self._parts, self._reset_pulls = parts, reset_pulls

    def handlers(self) -> Handlers:
        return {
            R.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            R.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            R.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            R.CLONE_GROUP_OFFSET: self.clone_offset,
            R.QUERY_CORRECTION_OFFSET: self.correction_offset,
        }

    def all_offsets(self, command: Command, channel: Channel) -> Answer:
        offsets = self._parts.offsets
        head = {"dataVersion": offsets.data_version.to_json()}
        return table_answer(command, None, head, "offsetTable", offsets.entries(), len(offsets))

    def delay_offsets(self, command: Command, channel: Channel) -> Command:
        return command.answer(0, None, None, fastjson.dumps(self._parts.delay.to_json()))

    def reset_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.INVOKE_BROKER_TO_RESET_OFFSET, command.fields)
        if self._parts.topics.get(header.topic) is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.255} not exist")
        if self._parts.groups.get(header.group) is None:
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group:.120} not exist"
            )
        queue_id = -1 if header.queue_id is None else header.queue_id
        offsets = self._new_offsets(header.topic, header.timestamp, queue_id, header.offset)
        for queue, offset in offsets.items():
            self._parts.offsets.reset(header.group, queue.topic, queue.queue_id, offset)
        self._reset_pulls(header.group, header.topic, [queue.queue_id for queue in offsets])
        return command.answer(0, None, None, offset_bodies.encode_offset_table(offsets))

    def _new_offsets(
        self, topic: str, time_ms: int, queue_id: int = -1, offset: int | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of each queue after a reset: `offset` if it is given, else the one by time. A
        time of -1 is the end, as in Apache's."""
        config, store = known_topic(self._parts, topic), self._parts.store
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
        if header.src_group == header.dest_group:
            return command.answer()
        cloned = [
            topic
            for topic in self._parts.offsets.topics_of(header.src_group)
            if header.topic in (None, "", topic)
        ]
        self._parts.offsets.check_room(header.dest_group, cloned)
        async for topics in in_turns(cloned):
            for topic in topics:
                # Not of the queues that only the other group has: their offsets stay
                for queue_id in self._parts.offsets.clone(header.src_group, header.dest_group, topic):
                    self._parts.pop_positions.drop(header.dest_group, topic, queue_id)
                    self._parts.ordered.clear((header.dest_group, topic, queue_id))
                self._parts.pop_positions.on_set_back(header.dest_group, topic)
        return command.answer()

    def correction_offset(self, command: Command, channel: Channel) -> Command:
        """Return the lowest offset that other groups have in each queue, where it is below that of the
        compared group."""
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
