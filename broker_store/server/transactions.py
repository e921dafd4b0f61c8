"""The end of a transaction by its producer, and the check of a half message at the producer: 37, 39, 323
(docs/spec/store-behaviour.md section 10)."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

from broker_store.broker import half_message
from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.transactions import Asked
from broker_store.errors import FieldError, FormatError
from broker_store.formats import message_id, properties, record
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC
from broker_store.messages import Message, PutResult
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import read_header, write_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import ANSWERS, SENT, SendGroup
from broker_store.server.waiting import make_wait

# A producer with more unsent bytes is not asked. The limit is far below that at which its connection is no
# longer read (channel.HIGH_WATER_BYTES), because its answers arrive on the same connection.
MAX_UNSENT_TO_ASK_BYTES = 256 << 10
NOTHING_SET = "not set any response code"  # Apache's remark in answers where it set none


class TransactionHandlers:
    """The handlers of transactions. The errors of oneway requests, which have no answer, are counted."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group
        self._transactions = parts.transactions
        self._turns = itertools.count()
        parts.transactions.ask, parts.transactions.can_ask = self.ask, self.can_ask

    def handlers(self) -> Handlers:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    def end(self, command: Command, channel: Channel) -> Command | None:
        header = read_header(RequestCode.END_TRANSACTION, command.fields)
        if self._parts.store_settings.broker_role == "SLAVE":
            return command.answer(ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.commit_or_rollback == record.TRANSACTION_NONE:
            return None  # the producer does not know yet; it is asked later
        if header.commit_or_rollback not in (record.TRANSACTION_COMMIT, record.TRANSACTION_ROLLBACK):
            raise FieldError(
                "commitOrRollback",
                header.commit_or_rollback,
                "8 to commit, 12 to roll back, 0 when it is not known",
            )
        at_once = True

        def found(half: record.StoredMessage | None) -> None:
            if not at_once:
                channel.release()
            answer = self._end(command, channel, header, half)
            if answer is not None:
                self._answer(command, channel, answer)

        if not self._transactions.find(header.tran_state_table_offset, found):
            at_once = False
            channel.hold()
        return None

    def _end(
        self, command: Command, channel: Channel, header, half: record.StoredMessage | None
    ) -> Command | None:
        """End a half message. Return the answer, None if it follows after the commit is stored."""
        if half is None:
            return self._wrong(command, channel, "Find prepared transaction message failed")
        if half.properties.get(properties.PRODUCER_GROUP) != header.producer_group:
            return self._wrong(command, channel, "The producer group wrong")
        if half.log_offset != header.commit_log_offset:
            return self._wrong(command, channel, "The transaction state table offset wrong")
        if not header.from_transaction_check and (late := self._transactions.lateness(half)) is not None:
            remark = "Message commit fail because of check immunity time"
            self._parts.statistics.refuse(
                "late end of transaction", value=late[0], limit=late[1], who=channel.remote, said=remark
            )
            return command.answer(ResponseCode.ILLEGAL_OPERATION, remark)
        if not self._transactions.begin_end(half):
            return command.answer(0, None)
        if header.commit_or_rollback == record.TRANSACTION_ROLLBACK:
            self._transactions.end(half, committed=False)
            return command.answer(0, NOTHING_SET)
        message = half_message.committed(half)
        if message is None:
            self._transactions.abandon_end(half)
            return self._wrong(command, channel, "the half message does not name its topic and queue")
        try:
            make_wait(self._parts, message, half.properties)
        except Refusal as refusal:
            self._transactions.abandon_end(half)
            self._parts.statistics.refuse(
                refusal.cause,
                value=refusal.value,
                limit=refusal.limit,
                who=channel.remote,
                said=refusal.remark,
            )
            return command.answer(refusal.code, refusal.remark)
        self._group.add(message, self._committed, (command, channel, half))
        return None

    def _wrong(self, command: Command, channel: Channel, remark: str) -> Command:
        self._parts.statistics.refuse("end of transaction", who=channel.remote, said=remark)
        return command.answer(ResponseCode.SYSTEM_ERROR, remark)

    def _committed(self, context: tuple[Command, Channel, record.StoredMessage], result: PutResult) -> None:
        command, channel, half = context
        code, remark = ANSWERS[result.status]
        if result.status in SENT:
            self._transactions.end(half, committed=True)
        else:
            self._transactions.abandon_end(half)
        self._answer(command, channel, command.answer(code, remark))

    def _answer(self, command: Command, channel: Channel, answer: Command) -> None:
        if not command.is_oneway and not channel.closed:
            channel.write(answer)

    def can_ask(self, group: str) -> bool:
        producers = self._parts.clients.producers(group)
        return not producers or any(
            producer.channel.unsent < MAX_UNSENT_TO_ASK_BYTES for producer in producers
        )

    def ask(self, asked: list[Asked]) -> None:
        """Ask about each half message at one producer of its group, a different one each time. Without a
        producer that reads its connection nothing is sent."""
        questions: dict[ClientChannel, list[bytes]] = {}
        for half, copy, result in asked:
            stated = half.properties
            channel = self._reader(stated.get(properties.PRODUCER_GROUP, ""))
            topic, queue_id = stated.get(properties.REAL_TOPIC), stated.get(properties.REAL_QUEUE_ID, "")
            if channel is not None and topic and queue_id.isascii() and queue_id.isdigit():
                question = self._question(
                    dataclasses.replace(copy, topic=topic, queue_id=int(queue_id)),
                    half.unique_key or None,
                    result,
                )
                questions.setdefault(channel, []).append(encode_frame(question))
        for channel, frames in questions.items():
            channel.write_bytes(*frames)

    def _reader(self, group: str) -> ClientChannel | None:
        producers = self._parts.clients.producers(group)
        turn = next(self._turns)
        in_turn = (producers[(turn + number) % len(producers)].channel for number in range(len(producers)))
        return next((channel for channel in in_turn if channel.unsent < MAX_UNSENT_TO_ASK_BYTES), None)

    def _question(self, message: Message, unique_key: str | None, result: PutResult) -> Command:
        host = message.store_host or self._parts.endpoint.store_host
        fields = write_header(
            RequestCode.CHECK_TRANSACTION_STATE,
            topic=HALF_TOPIC,
            bname=self._parts.broker_name,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=result.log_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=message_id.encode_offset_id(host, result.log_offset),
        )
        body = record.encode(message, result.queue_offset, result.log_offset, result.store_timestamp)
        return Command.request(int(RequestCode.CHECK_TRANSACTION_STATE), fields, body, oneway=True)

    async def resume_check(self, command: Command, channel: Channel) -> Command:
        """Check a half message again from the first attempt, after the broker had stopped asking (mqadmin
        resumeCheckHalfMessage)."""
        header = read_header(RequestCode.RESUME_CHECK_HALF_MESSAGE, command.fields)
        _, log_offset = message_id.decode_offset_id(header.msg_id)
        raw = await asyncio.to_thread(self._parts.store.reads.records.record_at, log_offset)
        try:
            given_up = None if raw is None else record.decode(raw)
        except FormatError:
            given_up = None
        if given_up is None or given_up.topic != CHECK_MAX_TOPIC:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                f"there is no half in {CHECK_MAX_TOPIC} with the id {header.msg_id:.60}",
            )
        result = await self._group.put(half_message.resumed(given_up))
        if result.status in SENT and (topic := given_up.properties.get(properties.REAL_TOPIC)):
            self._transactions.prepared(topic)
        code, remark = ANSWERS[result.status]
        return command.answer(code, remark)
