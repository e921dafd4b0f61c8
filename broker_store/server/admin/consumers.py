"""Requests of an administrator that the broker forwards to consumers."""

from __future__ import annotations

import asyncio

from broker_store.access.resources import Action, on_topic
from broker_store.access.signatures import SIGNING_FIELDS
from broker_store.formats import record
from broker_store.formats.message_id import decode_offset_id
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel, RequestTimeout
from broker_store.server.handler import Handlers, require
from broker_store.server.parts import BrokerParts

FORWARD_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0


class ConsumerAdmin:
    """The handlers of forwarded requests."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            R.GET_CONSUMER_RUNNING_INFO: self.running_info,
            R.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    async def running_info(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.GET_CONSUMER_RUNNING_INFO, command.fields)
        return await self._forward(
            command, header.consumer_group, header.client_id, dict(command.fields or {}), b""
        )

    async def consume_directly(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.CONSUME_MESSAGE_DIRECTLY, command.fields)
        fields = dict(command.fields or {}) | {"brokerName": self._parts.broker_name}
        _, log_offset = decode_offset_id(header.msg_id or "")
        raw = await asyncio.to_thread(self._parts.store.reads.records.record_at, log_offset)
        if raw is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {log_offset}"
            )
        topic = record.decode(raw, check_crc=False).topic
        require(self._parts, command, channel, on_topic(topic, Action.SUB))
        fields.setdefault("topic", topic)
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
            # The consumer could send the request again with the signature of this client.
            given = {name: value for name, value in fields.items() if name not in SIGNING_FIELDS}
            answer = await client.channel.request(
                Command.request(command.code, given, body), FORWARD_TIMEOUT_S
            )
        except RequestTimeout:
            remark = f"consumer <{group_name}> <{client_id}> did not answer"
            return command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        return command.answer(answer.code, answer.remark, answer.fields, answer.body)

    async def consumer_status(self, command: Command, channel: Channel) -> Command:
        """Return the offsets that the connected consumers of a group have in memory, each asked for its
        own."""
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
