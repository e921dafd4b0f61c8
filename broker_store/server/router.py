"""From a command to its handler, and from what went wrong to its response code.

A handler takes (command, channel) and gives the answer, None when the answer is written later or never, or a coroutine
that gives the answer. Every kind of error that a request may cause has its code in `_failure`, nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from types import CoroutineType

from broker_store.broker.filters import FilterError
from broker_store.errors import FieldError, FormatError, NotFoundError, PeerError, StoreClosedError, StoreError
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.admin import Admin
from broker_store.server.client_handlers import ClientHandlers
from broker_store.server.consume import Consume
from broker_store.server.parts import BrokerParts
from broker_store.server.produce import SEND_CODES, Produce, Refusal
from broker_store.server.query import Query
from broker_store.server.replies import Replies
from broker_store.server.transactions import TransactionHandlers
from broker_store.server.transport import Channel, failure_answer

log = logging.getLogger(__name__)

# The bodies that forwarded requests carry are bounded by the frame, their number by this.
MAX_TASKS = 1_000


class Router:
    """The broker's request codes. `handle` is what the transport calls."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._tasks: set[asyncio.Task] = set()
        self.produce = Produce(parts, parts.sends)
        self.consume = parts.pulls = Consume(parts, parts.sends)
        self.clients = ClientHandlers(parts)
        self.admin = Admin(parts)
        query = Query(parts)
        self._handlers = {
            **{int(code): self.produce.send for code in SEND_CODES},
            R.PULL_MESSAGE: self.consume.pull,
            R.LITE_PULL_MESSAGE: self.consume.pull,
            R.QUERY_CONSUMER_OFFSET: self.consume.query_offset,
            R.UPDATE_CONSUMER_OFFSET: self.consume.update_offset,
            R.CONSUMER_SEND_MSG_BACK: self.consume.send_back,
            **query.handlers(),
            **Replies(parts, parts.sends).handlers(),
            **TransactionHandlers(parts, parts.sends).handlers(),
            **self.clients.handlers(),
            **self.admin.handlers(),
        }
        self._handlers = {int(code): handler for code, handler in self._handlers.items()}

    def handle(self, command: Command, channel: Channel) -> Command | None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._parts.statistics.refuse("unknown code")
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return command.answer(code, f" request type {command.code} not supported")
        try:
            answer = handler(command, channel)
        except Exception as error:
            return self._failure(command, error)
        if type(answer) is CoroutineType:
            return self._start(command, channel, answer)
        return answer

    def _start(self, command: Command, channel: Channel, coroutine: CoroutineType) -> Command | None:
        if len(self._tasks) >= MAX_TASKS:
            coroutine.close()
            remark = "[OVERLOAD]system busy, start flow control for a while"
            return command.answer(ResponseCode.SYSTEM_BUSY, remark)
        task = asyncio.get_running_loop().create_task(self._finish(command, channel, coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _finish(self, command: Command, channel: Channel, coroutine: CoroutineType) -> None:
        try:
            answer = await coroutine
        except Exception as error:
            answer = self._failure(command, error)
        if answer is not None and not command.is_oneway and not channel.closed:
            channel.write(answer)

    async def stop(self) -> None:
        """End what still waits for other clients."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _failure(self, command: Command, error: Exception) -> Command:
        if isinstance(error, Refusal):
            self._parts.statistics.refuse(error.cause or "refused")
            return command.answer(error.code, error.remark, {})
        if isinstance(error, FilterError):
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        elif isinstance(error, StoreClosedError):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        elif isinstance(error, FieldError | PeerError):
            code = ResponseCode.INVALID_PARAMETER
        elif isinstance(error, NotFoundError):
            code = ResponseCode.QUERY_NOT_FOUND
        elif isinstance(error, FormatError):
            code = ResponseCode.SYSTEM_ERROR
        elif isinstance(error, StoreError):
            # Its message names files of this machine, which are for the log and not for whoever can connect.
            log.error("request %d failed: %s", command.code, error)
            self._parts.statistics.refuse(type(error).__name__)
            return command.answer(ResponseCode.SYSTEM_ERROR, f"the store could not do it: {type(error).__name__}; the broker's log says more", {})
        else:
            return failure_answer(command, error)
        self._parts.statistics.refuse(type(error).__name__)
        return command.answer(code, str(error), {})
