"""The requests of acknowledgements on the broker port: 200051, 200151, 200053, 200056 (docs/spec/pop.md
section 5)."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from broker_store.messages import PutStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import read_header
from broker_store.protocol.pop import BatchAck, Receipt, read_batch_ack, read_receipt
from broker_store.server.channel import Channel
from broker_store.server.group_answers import GroupAnswers
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_acks import PopAcks, Popped, not_given, not_stored
from broker_store.turns import in_turns

# Puts of a batch of acknowledgements between two readings of the clock.
PUTS_AT_ONCE = 8


class PopAckHandlers:
    """The handlers of acknowledgements. They are answered when their records are confirmed."""

    def __init__(self, parts: BrokerParts, acks: PopAcks):
        self._parts, self._acks = parts, acks
        self._answers = GroupAnswers()
        self._histograms = parts.statistics.histograms
        parts.acks.on_answered = self._write_answers

    def handlers(self) -> Handlers:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
            RequestCode.POP_ROLLBACK: self.roll_back,
        }

    def _write_answers(self) -> None:
        self._answers.write()

    def ack(self, command: Command, channel: Channel) -> None:
        """Store that a message was consumed."""
        header = read_header(RequestCode.ACK_MESSAGE, command.fields)
        self._acks.ack(
            _popped(header), channel.remote, partial(self._answer_ack, command, channel, channel.came_s)
        )

    def _answer_ack(self, command: Command, channel: Channel, came_s: float, status: PutStatus) -> None:
        answer = self._answer_to(command, channel, status)
        if not command.is_oneway and not channel.closed:
            self._answers.add(channel, encode_frame(answer))
            self._histograms.answered_now(command.code, answer.code, came_s)

    def batch_ack(self, command: Command, channel: Channel) -> Coroutine[Any, Any, Command | None]:
        """Store that messages of several pops were consumed. All entries are checked before one is stored.
        In turns: each entry is a record."""
        return self._batch_ack(command, channel, channel.came_s)

    async def _batch_ack(self, command: Command, channel: Channel, came_s: float) -> Command | None:
        broker_name, acks = read_batch_ack(command.body)
        if broker_name is not None:
            self._acks.check_broker(broker_name)
        if not acks:
            return command.answer(ResponseCode.NO_MESSAGE, "there are no acks in the body")
        ready: list[tuple[BatchAck, list[int]]] = []
        async for some in in_turns(acks):
            checked = [(ack, self._acks.check_batch(ack, channel.remote)) for ack in some]
            ready += [entry for entry in checked if entry[1]]
        if not ready:
            return command.answer(ResponseCode.NO_MESSAGE, "no offset of the acks is in its queue")
        refusal: Refusal | None = None
        async for entries in in_turns(ready, PUTS_AT_ONCE):
            for ack, offsets in entries:
                put, unknown = await self._acks.put_batch(ack, offsets)
                if put is not None and not put.ok:
                    return self._refused(command, channel, put.status)
                if unknown:  # the others count, as with Apache's broker
                    refusal = not_given((ack.group, ack.topic, ack.queue_id), unknown)
        if refusal is not None:
            raise refusal
        self._parts.store.confirmation.when_confirmed(
            self._parts.store.log.wrote, lambda status: self._answer(command, channel, came_s, status)
        )
        return None

    def change_invisible_time(self, command: Command, channel: Channel) -> None:
        """Give a message another invisible time, from now on."""
        header = read_header(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, command.fields)
        came_s = channel.came_s

        def changed(status: PutStatus, receipt: Receipt) -> None:
            fields = {
                "popTime": str(receipt.pop_ms),
                "invisibleTime": str(receipt.invisible_ms),
                "reviveQid": str(receipt.revive_queue),
            }
            self._answer(command, channel, came_s, status, fields)

        self._acks.change_invisible_time(_popped(header), header.invisible_time, channel.remote, changed)

    def roll_back(self, command: Command, channel: Channel) -> Command:
        """Return success: the records of pops are in the log already, which is what Apache's tool asks
        for."""
        return command.answer()

    def _answer(
        self,
        command: Command,
        channel: Channel,
        came_s: float,
        status: PutStatus,
        fields: dict[str, str] | None = None,
    ) -> None:
        answer = self._answer_to(command, channel, status, fields)
        if not command.is_oneway and not channel.closed:
            channel.write(answer)
            self._histograms.answered_now(command.code, answer.code, came_s)

    def _answer_to(
        self, command: Command, channel: Channel, status: PutStatus, fields: dict[str, str] | None = None
    ) -> Command:
        if status is PutStatus.PUT_OK:
            return command.answer(0, None, fields)
        return self._refused(command, channel, status)

    def _refused(self, command: Command, channel: Channel, status: PutStatus) -> Command:
        """Return the answer to a request whose record was not stored."""
        code, remark = not_stored(status)
        self._parts.statistics.refuse(status.name, who=channel.remote, said=remark)
        return command.answer(code, remark)


def _popped(header) -> Popped:
    """Return the message that a request names."""
    return Popped(
        header.topic, header.consumer_group, header.queue_id, header.offset, read_receipt(header.extra_info)
    )
