"""What the broker asks a client by its Telemetry: the fate of a transaction, the stacks of its threads, and
whether it can consume a message (docs/spec/grpc.md section 2).

The broker asks clients of both ports by commands of the remoting protocol. For a client of gRPC they become
telemetry commands, and its answers become answers of that protocol.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple

from broker_store.formats import record
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Resource
from broker_store.protocol.grpc.v2.service_pb2 import (
    PrintThreadStackTraceCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from broker_store.server.channel import RequestTimeout
from broker_store.server.grpc import transaction_ids
from broker_store.server.grpc.received_messages import message_of

# Results of Apache's ConsumeMessageDirectlyResult, by the status of a client's answer.
_RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class _Asked(NamedTuple):
    command: Command
    future: asyncio.Future[Command]


class Questions:
    """The questions to one client. `send` sends it a command."""

    __slots__ = ("_send", "_clock", "_numbers", "_asked")

    def __init__(self, send: Callable[[TelemetryCommand], None], clock: Callable[[], int]):
        self._send, self._clock = send, clock
        self._numbers = itertools.count(1)
        self._asked: dict[str, _Asked] = {}  # by nonce

    def write(self, command: Command) -> None:
        """Send what a command without an answer means. A client of gRPC distributes no queues itself, so a
        notice that its group has changed is not sent."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            half = record.decode(command.body)
            self._send(
                TelemetryCommand(
                    recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                        message=message_of(half, Resource(name=half.topic), self._clock()),
                        transaction_id=transaction_ids.encode(half.queue_offset, half.log_offset),
                    )
                )
            )

    async def request(self, command: Command, timeout: float) -> Command:
        """Ask, and return the answer. Raises RequestTimeout after `timeout` seconds."""
        nonce = str(next(self._numbers))
        question = self._question(command, nonce)
        if question is None:
            return command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"a client of gRPC is not asked by request {command.code}",
            )
        asked = self._asked[nonce] = _Asked(command, asyncio.get_running_loop().create_future())
        self._send(question)
        try:
            async with asyncio.timeout(timeout):
                return await asked.future
        except TimeoutError as error:
            if isinstance(error, RequestTimeout):
                raise
            raise RequestTimeout(f"the client did not answer {command.code} within {timeout:g} s") from None
        finally:
            del self._asked[nonce]

    def _question(self, command: Command, nonce: str) -> TelemetryCommand | None:
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            stored = record.decode(command.body)
            message = message_of(stored, Resource(name=stored.topic), self._clock())
            return TelemetryCommand(verify_message_command=VerifyMessageCommand(nonce=nonce, message=message))
        fields = command.fields or {}
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO and fields.get("jstackEnable") == "true":
            return TelemetryCommand(
                print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
            )
        return None

    def answered(self, answer: TelemetryCommand) -> bool:
        """Take the client's answer to a question; return whether it waits for one. An answer to a question
        that was not asked, or whose time is over, is dropped."""
        is_stacks = answer.WhichOneof("command") == "thread_stack_trace"
        nonce = answer.thread_stack_trace.nonce if is_stacks else answer.verify_message_result.nonce
        asked = self._asked.get(nonce)
        if asked is None or asked.future.done():
            return False
        command = asked.command
        if is_stacks != (command.code == RequestCode.GET_CONSUMER_RUNNING_INFO):
            return False
        if not is_stacks:
            result = {"consumeResult": _RESULTS.get(answer.status.code), "remark": "from gRPC client"}
            asked.future.set_result(command.answer(0, None, None, fastjson.dumps(result)))
        elif answer.status.code == Code.OK:
            stacks = {"jstack": answer.thread_stack_trace.thread_stack_trace}
            asked.future.set_result(command.answer(0, None, None, fastjson.dumps(stacks)))
        else:
            remark = f"the client answered {answer.status.code}: {answer.status.message:.200}"
            asked.future.set_result(command.answer(ResponseCode.SYSTEM_ERROR, remark))
        return True

    def close(self) -> None:
        """End the questions that wait: the client is gone."""
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_exception(RequestTimeout("the client's Telemetry ended"))
