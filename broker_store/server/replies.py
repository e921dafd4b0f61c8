"""Replies of consumers to requests: 324, 325, and their push to the producer, 326 (docs/spec/remoting.md
section 3).

A producer sends a request as a message with its client id. The consumer sends a reply, which is pushed to the
connection of that producer and stored in the topic of replies.
"""

from __future__ import annotations

from broker_store.formats import properties
from broker_store.formats.message_id import encode_offset_id, host_text
from broker_store.messages import Message
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import SendHeader, read_send, write_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.produce import SPECIAL_BITS
from broker_store.server.send_group import SendGroup

PUSH_TIMEOUT_S = 10.0
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_TIME = "PUSH_REPLY_TIME"


class Replies:
    """The handlers of replies."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group

    def handlers(self) -> Handlers:
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply}

    async def reply(self, command: Command, channel: Channel) -> Command:
        header = read_send(command)
        parts = self._parts
        topic = f"{parts.cluster}_REPLY_TOPIC"
        if header.topic != topic:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"a reply goes to the topic {topic}, not to {header.topic:.120}",
                "reply",
            )
        now_ms = parts.clock()
        encoded = properties.set_values(
            header.properties.encode("utf-8", "replace"), {PUSH_TIME: str(now_ms)}
        )
        message = Message(
            topic,
            0,
            command.body,
            encoded,
            header.flag,
            header.sys_flag & ~SPECIAL_BITS,
            header.born_timestamp,
            channel.remote_host,
            parts.endpoint.store_host,
            header.reconsume_times,
        )
        failure = await self._push(header, message, now_ms)
        fields = {
            "msgId": "0",
            "queueId": "0",
            "queueOffset": "0",
            "MSG_REGION": parts.settings.region_id,
            "TRACE_ON": "true",
        }
        # A reply may have no body (Go's helper makes such ones). It is pushed, but a message needs a body to
        # be stored.
        if parts.settings.store_reply_message_enable and message.body:
            stored = await self._group.put(message)
            if stored.log_offset >= 0:
                fields |= {
                    "msgId": encode_offset_id(parts.endpoint.store_host, stored.log_offset),
                    "queueOffset": str(stored.queue_offset),
                }
        return command.answer(0 if failure is None else ResponseCode.SYSTEM_ERROR, failure, fields)

    async def _push(self, header: SendHeader, message: Message, now_ms: int) -> str | None:
        """Push the reply to the producer of the request. Return why that failed, None if the producer
        accepted it."""
        client_id = properties.get(message.properties, REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        asker = self._parts.clients.find_producer(client_id)
        if asker is None:
            return f"push reply message fail, channel of <{client_id:.80}> not found."
        fields = write_header(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            producer_group=header.producer_group,
            topic=message.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=message.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=message.properties.decode("utf-8", "replace"),
            reconsume_times=message.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=host_text(message.born_host),
            store_host=host_text(message.store_host),
            store_timestamp=now_ms,
        )
        push = Command.request(int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT), fields, message.body)
        try:
            answer = await asker.channel.request(push, PUSH_TIMEOUT_S)
        except TimeoutError:
            return f"push reply message to <{client_id:.80}> fail."
        return None if answer.code == 0 else f"push reply message to <{client_id:.80}> fail."
