"""The requests of pops on the broker port: 200050, 200052, 200054, 200055 (docs/spec/pop.md section 5)."""

from __future__ import annotations

from functools import partial

from broker_store.messages import GetStatus
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.pop import message_offset_info, order_count_info, start_offset_info
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers
from broker_store.server.parts import BrokerParts
from broker_store.server.pop import Pops
from broker_store.server.pop_acks import not_stored
from broker_store.server.pop_checks import check_notification, check_peek, check_pop
from broker_store.server.pop_request import PopEnd, PopResult


class _Asked:
    """A request that is answered later."""

    __slots__ = ("command", "channel", "came_s", "has_waited")

    def __init__(self, command: Command, channel: Channel):
        self.command, self.channel, self.came_s, self.has_waited = command, channel, channel.came_s, False

    def waits(self) -> None:
        """Take notice that it waits for a message."""
        self.has_waited = True


class PopHandlers:
    """The handlers of pops. `pops` reads for them."""

    def __init__(self, parts: BrokerParts, pops: Pops):
        self._parts, self._pops = parts, pops

    def handlers(self) -> Handlers:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notification,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def pop(self, command: Command, channel: Channel) -> Command | None:
        header = read_header(RequestCode.POP_MESSAGE, command.fields)
        asked = _Asked(command, channel)
        answer = partial(self._answer, asked, ResponseCode.POLLING_TIMEOUT)
        pop = check_pop(self._parts, header, (command, channel), channel, answer)
        if pop.is_late:
            fields = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "0")
            remark = f"the broker[{self._parts.settings.broker_ip1}] pop message is timeout too much"
            return command.answer(ResponseCode.POLLING_TIMEOUT, remark, fields)
        self._pops.pop(pop._replace(on_parked=asked.waits))
        return None

    def peek(self, command: Command, channel: Channel) -> None:
        header = read_header(RequestCode.PEEK_MESSAGE, command.fields)
        answer = partial(self._answer, _Asked(command, channel), ResponseCode.PULL_NOT_FOUND)
        self._pops.peek(check_peek(self._parts, header, (command, channel), channel, answer))

    def notification(self, command: Command, channel: Channel) -> None:
        header = read_header(RequestCode.NOTIFICATION, command.fields)
        asked = _Asked(command, channel)
        answer = partial(self._answer_notification, asked)
        pop = check_notification(self._parts, header, (command, channel), channel, answer)
        self._pops.ask(pop._replace(on_parked=asked.waits))

    def polling_info(self, command: Command, channel: Channel) -> Command:
        """Return how many pops of a group wait for a queue."""
        header = read_header(RequestCode.POLLING_INFO, command.fields)
        line = (header.topic, header.consumer_group, header.queue_id)
        return command.answer(0, None, {"pollingNum": str(self._parts.parked_pops.in_line(line))})

    def _answer(self, asked: _Asked, nothing: ResponseCode, result: PopResult) -> None:
        """Write the answer to a pop or a peek. `nothing` is the code if it found no message."""
        command = asked.command
        match result.end:
            case PopEnd.FOUND:
                answer = command.answer(0, GetStatus.FOUND.name, _fields(result), b"".join(result.bodies))
            case PopEnd.NOT_STORED:
                answer = command.answer(*not_stored(result.put), {})
            case PopEnd.NO_ROOM:
                answer = command.answer(ResponseCode.SYSTEM_ERROR, result.text, {})
            case PopEnd.NOTHING | PopEnd.FULL:
                code = nothing if result.end is PopEnd.NOTHING else ResponseCode.POLLING_FULL
                answer = command.answer(code, GetStatus.NO_MESSAGE_IN_QUEUE.name, _fields(result))
        self._write(asked, answer)

    def _answer_notification(self, asked: _Asked, result: PopResult) -> None:
        fields = {
            "hasMsg": str(result.end is PopEnd.FOUND).lower(),
            "pollingFull": str(result.end is PopEnd.FULL).lower(),
        }
        self._write(asked, asked.command.answer(0, None, fields))

    def _write(self, asked: _Asked, answer: Command) -> None:
        if not asked.command.is_oneway and not asked.channel.closed:
            asked.channel.write(answer)
            self._parts.statistics.histograms.answered_now(
                asked.command.code, answer.code, asked.came_s, waited=asked.has_waited
            )


def _fields(result: PopResult) -> dict[str, str]:
    fields = {
        "popTime": str(result.pop_ms),
        "invisibleTime": str(result.invisible_ms),
        "reviveQid": str(result.revive_queue),
        "restNum": str(result.rest),
        "startOffsetInfo": start_offset_info(result.found),
        "msgOffsetInfo": message_offset_info(result.found),
    }
    if result.counts is not None:
        fields["orderCountInfo"] = ";".join(map(order_count_info, result.found, result.counts))
    return fields
