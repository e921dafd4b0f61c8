"""The end of a transaction by its producer, for both ports, and the check of a half message at the producer:
37, 39, 323 (docs/spec/store-behaviour.md section 10)."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import NamedTuple

from broker_store.access.resources import Action, on_topic, on_topic_itself
from broker_store.broker import half_message
from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.transactions import Asked
from broker_store.errors import FieldError, FormatError
from broker_store.formats import message_id, properties, record
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header, write_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal, require
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import ANSWERS, SENT, SendGroup
from broker_store.server.waiting import make_wait

# A producer with more unsent bytes is not asked. The limit is far below that at which its connection is no
# longer read (channel.HIGH_WATER_BYTES), because its answers arrive on the same connection.
MAX_UNSENT_TO_ASK_BYTES = 256 << 10
NOTHING_SET = "not set any response code"  # Apache's remark in answers where it set none


class EndOfTransaction(NamedTuple):
    """A request of a producer to end a half message: which one, and how (8 commits it, 12 rolls it back)."""

    group: str
    half_offset: int  # in the queue of half messages
    log_offset: int
    resolution: int
    is_answer_to_check: bool
    unique_key: str | None = None  # None if the producer does not state it
    # Called with the topic of the message. Raises Refusal if the producer may not send to it.
    check_topic: Callable[[str], None] = lambda topic: None


class TransactionEnds:
    """Ends half messages for producers of both ports."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group
        self._transactions = parts.transactions

    def end(self, request: EndOfTransaction, remote: str, done: Callable[[int, str | None], None]) -> bool:
        """End a half message, and call `done` with a response code and a remark when that is stored. Return
        False if the half is waited for: read from disk, or copied to its file. `remote` is the address of the
        producer."""

        def found(half: record.StoredMessage | None) -> None:
            try:
                self._end(request, half, remote, done)
            except Refusal as refusal:
                self._parts.statistics.refuse(
                    refusal.cause,
                    value=refusal.value,
                    limit=refusal.limit,
                    who=remote,
                    said=refusal.remark,
                )
                done(refusal.code, refusal.remark)

        store = self._parts.store
        if store.confirmed <= request.log_offset < store.confirmation.answerable:
            # It is in a buffer of the pool: answered, and not in the file yet.
            loop = asyncio.get_running_loop()

            def committed(_: PutStatus) -> None:
                loop.call_soon(self._transactions.find, request.half_offset, found)

            store.confirmation.when_confirmed(store.confirmation.answerable, committed)
            return False
        return self._transactions.find(request.half_offset, found)

    def _end(
        self,
        request: EndOfTransaction,
        half: record.StoredMessage | None,
        remote: str,
        done: Callable[[int, str | None], None],
    ) -> None:
        """End a half message. Raises Refusal; then it is as it was."""
        if half is None or request.unique_key not in (None, half.unique_key):
            raise _wrong("Find prepared transaction message failed")
        if half.properties.get(properties.PRODUCER_GROUP) != request.group:
            raise _wrong("The producer group wrong")
        if half.log_offset != request.log_offset:
            raise _wrong("The transaction state table offset wrong")
        request.check_topic(half.properties.get(properties.REAL_TOPIC, ""))
        if not request.is_answer_to_check and (late := self._transactions.lateness(half)) is not None:
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                "Message commit fail because of check immunity time",
                "late end of transaction",
                value=late[0],
                limit=late[1],
            )
        if not self._transactions.begin_end(half):
            done(0, None)
            return
        if request.resolution == record.TRANSACTION_ROLLBACK:
            self._transactions.end(half, committed=False)
            done(0, NOTHING_SET)
            return
        message = half_message.committed(half)
        if message is None:
            self._transactions.abandon_end(half)
            raise _wrong("the half message does not name its topic and queue")
        try:
            make_wait(self._parts, message, half.properties)
        except Refusal:
            self._transactions.abandon_end(half)
            raise
        self._group.add(message, self._committed, (half, done))

    def _committed(
        self, context: tuple[record.StoredMessage, Callable[[int, str | None], None]], result: PutResult
    ) -> None:
        half, done = context
        code, remark = ANSWERS[result.status][0], self._group.remark(result.status)
        if result.status in SENT:
            self._transactions.end(half, committed=True)
            self._count_finish(half)
        else:
            self._transactions.abandon_end(half)
        done(code, remark)

    def _count_finish(self, half: record.StoredMessage) -> None:
        """Count how long after its first message a transaction was committed."""
        topic = half.properties.get(properties.REAL_TOPIC, "")
        if self._parts.topics.get(topic) is not None:  # a property may have any text
            seconds = (self._parts.clock() - half.born_timestamp) // 1000
            self._parts.statistics.histograms.finish(topic, seconds)


def _wrong(remark: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, remark, "end of transaction")


class TransactionHandlers:
    """The handlers of transactions. The errors of oneway requests, which have no answer, are counted."""

    def __init__(self, parts: BrokerParts, group: SendGroup):
        self._parts, self._group = parts, group
        self.ends = TransactionEnds(parts, group)
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
        is_held, came_s = False, channel.came_s

        def done(code: int, remark: str | None) -> None:
            if is_held:
                channel.release()
            if not command.is_oneway and not channel.closed:
                channel.write(command.answer(code, remark))
                self._parts.statistics.histograms.answered_now(command.code, code, came_s)

        request = EndOfTransaction(
            header.producer_group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            header.commit_or_rollback,
            header.from_transaction_check,
            check_topic=lambda topic: require(
                self._parts, command, channel, on_topic_itself(topic, Action.PUB)
            ),
        )
        if not self.ends.end(request, channel.remote, done):
            is_held = True
            channel.hold()
        return None

    def can_ask(self, group: str) -> bool:
        producers = self._parts.clients.producers(group)
        return not producers or any(
            producer.channel.unsent < MAX_UNSENT_TO_ASK_BYTES for producer in producers
        )

    def ask(self, asked: list[Asked]) -> None:
        """Ask about each half message at one producer of its group, a different one each time. Without a
        producer that reads its connection nothing is sent. A question has the message, so it goes only to who
        may send to its topic: a heartbeat demands no right on a group of producers."""
        questions: dict[ClientChannel, list[Command]] = {}
        for half, copy, result in asked:
            stated = half.properties
            topic, queue_id = stated.get(properties.REAL_TOPIC), stated.get(properties.REAL_QUEUE_ID, "")
            channel = self._reader(stated.get(properties.PRODUCER_GROUP, ""), topic)
            if channel is not None and topic and queue_id.isascii() and queue_id.isdigit():
                question = self._question(
                    dataclasses.replace(copy, topic=topic, queue_id=int(queue_id)),
                    half.unique_key or None,
                    result,
                )
                questions.setdefault(channel, []).append(question)
        for channel, commands in questions.items():
            channel.write_all(commands)

    def _reader(self, group: str, topic: str | None) -> ClientChannel | None:
        producers, access = self._parts.clients.producers(group), self._parts.access
        if access is not None:
            right = on_topic_itself(topic, Action.PUB)
            producers = [one for one in producers if access.may(one.user, right, one.channel.remote)]
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
        topic = given_up.properties.get(properties.REAL_TOPIC, "")
        require(self._parts, command, channel, on_topic(topic, Action.UPDATE))
        result = await self._group.put(half_message.resumed(given_up))
        if result.status in SENT and topic:
            self._parts.transactions.prepared(topic)
        code, remark = ANSWERS[result.status][0], self._group.remark(result.status)
        return command.answer(code, remark)
