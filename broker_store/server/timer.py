"""Requests about timer messages: recall 370, and the progress of the wheel, 60 and 61
(docs/spec/store-behaviour.md section 9)."""

from __future__ import annotations

from broker_store.errors import FormatError
from broker_store.formats import properties, recall_handle, timer_check
from broker_store.formats.recall_handle import RecallHandle
from broker_store.formats.topics import PERM_WRITE
from broker_store.messages import Message
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import SENT, SendGroup
from broker_store.server.waiting import make_wait

RECALL_TAG = "_RECALL_TAG_"
NOT_RECALLED = "recall failed, execute error"


class TimerHandlers:
    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group

    def handlers(self) -> Handlers:
        return {
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.GET_TIMER_CHECK_POINT: self.check_point,
            RequestCode.GET_TIMER_METRICS: self.metrics,
        }

    async def recall(self, command: Command, channel: Channel) -> Command:
        """Store a request to delete the message of a handle. It is in the same slot, and takes effect when
        the slot is delivered."""
        region = {"MSG_REGION": self._parts.settings.region_id}
        try:
            header = read_header(RequestCode.RECALL_MESSAGE, command.fields)
            message, unique_key = request_to_recall(
                self._parts, header.topic, header.recall_handle, header.producer_group, channel.remote_host
            )
        except Refusal as refusal:
            refusal.fields = region
            raise
        result = await self._group.put(message)
        if result.status not in SENT:
            return command.answer(ResponseCode.SYSTEM_ERROR, NOT_RECALLED, region)
        return command.answer(0, None, region | {"msgId": unique_key})

    def check_point(self, command: Command, channel: Channel) -> Command:
        if not self._parts.timer.enabled:
            return command.answer(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return command.answer(0, None, None, timer_check.encode(self._parts.timer.stated()))

    def metrics(self, command: Command, channel: Channel) -> Command:
        if not self._parts.timer.enabled:
            return command.answer(ResponseCode.SYSTEM_ERROR, "The timerMessageStore is null")
        return command.answer(0, None, None, fastjson.dumps(self._parts.timer.waiting.metrics_json()))


def request_to_recall(
    parts: BrokerParts,
    topic: str,
    handle_text: str,
    producer_group: str | None,
    remote_host: tuple[bytes, int],
) -> tuple[Message, str]:
    """Return the request to delete the message of a handle, and that message's unique key. Raises Refusal;
    checks are in Apache's order."""
    if not parts.settings.recall_message_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden", "recall")
    if parts.store_settings.broker_role == "SLAVE":
        raise Refusal(
            ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available", "recall"
        )
    if (
        not parts.settings.broker_permission & PERM_WRITE
        and not parts.settings.allow_recall_when_broker_not_writeable
    ):
        raise Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available", "recall"
        )
    if parts.topics.get(topic) is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST,
            f"recall failed, the topic[{topic:.127}] not exist",
            "recall",
        )
    handle = _still_waiting(parts, handle_text, topic)
    now_ms = parts.clock()
    stated: dict[str, str] = {
        properties.TAGS: RECALL_TAG,
        # The default format of 5.5; a topic and + may precede the key.
        properties.TIMER_DELETE_KEY: handle.unique_key,
        properties.UNIQUE_KEY: handle.unique_key,
        properties.TIMER_DELIVER_MS: handle.time_ms,
        properties.BORN_TIMESTAMP: str(now_ms),
    }
    if producer_group:
        stated[properties.PRODUCER_GROUP] = producer_group
    try:
        encoded = properties.encode(stated)
        message = Message(
            handle.topic,
            0,
            b"0",
            encoded,
            born_timestamp=now_ms,
            born_host=remote_host,
            store_host=parts.endpoint.store_host,
        )
        make_wait(parts, message, stated)
    except (FormatError, Refusal):
        raise Refusal(ResponseCode.SYSTEM_ERROR, NOT_RECALLED, "recall") from None
    return message, handle.unique_key


def _still_waiting(parts: BrokerParts, text: str, topic: str) -> RecallHandle:
    """Return a handle of this broker and topic whose message still waits. Raises Refusal."""
    try:
        handle = recall_handle.decode(text)
    except FormatError as error:
        raise Refusal(ResponseCode.ILLEGAL_OPERATION, str(error), "recall") from None
    if handle.topic != topic:
        raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match", "recall")
    if handle.broker_name != parts.broker_name:
        raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available", "recall")
    time_ms = (
        int(handle.time_ms)
        if handle.time_ms.isascii() and handle.time_ms.isdigit() and len(handle.time_ms) < 19
        else -1
    )
    ahead_ms, limit_ms = time_ms - parts.clock(), parts.settings.timer_max_delay_sec * 1000
    if not 0 < ahead_ms < limit_ms:
        raise Refusal(
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, timestamp invalid",
            "recall",
            value=ahead_ms,
            limit=limit_ms,
        )
    return handle
