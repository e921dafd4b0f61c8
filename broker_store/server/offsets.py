"""Offsets that consumers query and commit: 14, 15 (docs/spec/remoting.md section 3)."""

from __future__ import annotations

from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts


class OffsetHandlers:
    """The handlers of offsets."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
        }

    def query_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.QUERY_CONSUMER_OFFSET, command.fields)
        offset = self._parts.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return command.answer(0, None, {"offset": str(offset)})
        if header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, {})
        # A new group starts at the first message while that is near the log's end. Otherwise its client
        # decides.
        first = self._parts.store.reads.min_offset(header.topic, header.queue_id)
        if first <= 0 and self._parts.near_log_end(header.topic, header.queue_id, 0):
            return command.answer(0, None, {"offset": "0"})
        return command.answer(
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            {},
        )

    def update_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.UPDATE_CONSUMER_OFFSET, command.fields)
        parts = self._parts
        if parts.groups.get(header.consumer_group) is None:
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.consumer_group:.120} not exist!",
                {},
            )
        config = parts.topics.get(header.topic)
        if config is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.255} not exist!", {})
        remark = f"queueId must be less than {config.queues}, and neither it nor commitOffset negative"
        if header.commit_offset < 0:
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, "commit offset", value=header.commit_offset)
        if not 0 <= header.queue_id < config.queues:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                remark,
                "queue id",
                value=header.queue_id,
                limit=config.queues - 1,
            )
        taken = parts.pop_positions.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
        return command.answer(0, None if taken else "Offset has been previously reset", {})
