"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue (docs/spec/grpc.md section 6)."""

from __future__ import annotations

import asyncio
from functools import partial

from broker_store.messages import PutStatus
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Resource, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from broker_store.protocol.pop import Receipt
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.consumer_settings import milliseconds
from broker_store.server.grpc.dead_letters import DeadLetters
from broker_store.server.grpc.handles import Handle, read_handle, write_handle
from broker_store.server.grpc.names import check_group_name
from broker_store.server.grpc.receives import check_invisible
from broker_store.server.grpc.renewals import Renewals, Taken
from broker_store.server.grpc.routes import Routes
from broker_store.server.grpc.statuses import OK, Refused, code_of, refused_of
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_acks import PopAcks, not_stored

# Of one call. Apache's proxy has no bound but that of its bytes.
MAX_ENTRIES = 1_024
# Entries that are checked in one turn. Those of one pop in a turn are one record.
ENTRIES_PER_TURN = 32


class _Pending:
    """A call with entries that are not answered yet. `statuses` are those of its entries, as soon as they are
    known."""

    __slots__ = ("call", "ids", "handles", "topic", "group", "statuses", "left")

    def __init__(self, call: Call, request: AckMessageRequest, topic: str, group: str):
        self.call, self.topic, self.group = call, topic, group
        # Each access to a field of a message makes a new object, so each is read once.
        entries = list(request.entries)
        self.ids = [entry.message_id for entry in entries]
        self.handles = [entry.receipt_handle for entry in entries]
        self.statuses = [OK] * len(entries)
        self.left = len(entries)

    def answer(self) -> AckMessageResponse:
        """Return the answer, when the statuses of all entries are known."""
        codes = {status.code for status in self.statuses}
        (code,) = codes if len(codes) == 1 else (Code.MULTIPLE_RESULTS,)
        return AckMessageResponse(
            status=OK if code == OK.code else Status(code=code, message=Code.Name(code)),
            entries=[
                AckMessageResultEntry(message_id=message_id, receipt_handle=handle, status=status)
                for message_id, handle, status in zip(self.ids, self.handles, self.statuses, strict=True)
            ],
        )


class Acks:
    """Serves acknowledgements, changes of invisible times and dead letters of received messages."""

    def __init__(
        self,
        parts: BrokerParts,
        routes: Routes,
        acks: PopAcks,
        dead_letters: DeadLetters,
        renewals: Renewals,
    ):
        self._parts, self._routes = parts, routes
        self._acks, self._dead_letters, self._renewals = acks, dead_letters, renewals
        self._loop = asyncio.get_running_loop()

    def ack(self, call: Call, request: AckMessageRequest) -> None:
        """Store that messages were consumed, and answer when all entries are confirmed. Raises Refused."""
        topic, group = self._names(request.topic, request.group)
        if (count := len(request.entries)) > MAX_ENTRIES:
            raise Refused(
                Code.BAD_REQUEST,
                f"a call acknowledges at most {MAX_ENTRIES} messages",
                "number of messages",
                value=count,
                limit=MAX_ENTRIES,
            )
        if not count:
            raise Refused(Code.INTERNAL_SERVER_ERROR, "ack message result is empty", "number of messages")
        self._ack_some(_Pending(call, request, topic, group), 0)

    def _ack_some(self, pending: _Pending, begin: int) -> None:
        end = min(begin + ENTRIES_PER_TURN, len(pending.handles))
        client_id = pending.call.client_id
        for number in range(begin, end):
            taken = self._renewals.take(client_id, pending.handles[number])
            done = partial(self._acknowledged, pending, number, taken)
            try:
                handle = self._handle(taken, pending.topic, pending.group)
                self._acks.ack(handle.popped, pending.call.channel.remote, done)
            except (Refusal, Refused) as error:
                self._renewals.put_back(taken)
                refused = refused_of(error) if isinstance(error, Refusal) else error
                self._refused(pending, number, refused)
        if end < len(pending.handles):
            self._loop.call_soon(self._ack_some, pending, end)

    def _refused(self, pending: _Pending, number: int, refused: Refused) -> None:
        self._count(pending.call, refused)
        self._entry_done(pending, number, refused.status)

    def _acknowledged(self, pending: _Pending, number: int, taken: Taken, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            self._renewals.put_back(taken)
        self._entry_done(pending, number, self._status(pending.call, status))

    def _entry_done(self, pending: _Pending, number: int, status: Status) -> None:
        pending.statuses[number] = status
        pending.left -= 1
        if not pending.left:
            pending.call.answer(pending.answer())

    def change_invisible_duration(self, call: Call, request: ChangeInvisibleDurationRequest) -> None:
        """Give a message another invisible time, from now on. Raises Refused and Refusal."""
        topic, group = self._names(request.topic, request.group)
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, 0)
        taken = self._renewals.take(call.client_id, request.receipt_handle)

        def changed(status: PutStatus, receipt: Receipt) -> None:
            if status is not PutStatus.PUT_OK:
                self._renewals.put_back(taken)
            text = write_handle(handle._replace(receipt=receipt)) if status is PutStatus.PUT_OK else ""
            call.answer(
                ChangeInvisibleDurationResponse(status=self._status(call, status), receipt_handle=text)
            )

        try:
            handle = self._handle(taken, topic, group)
            self._acks.change_invisible_time(handle.popped, invisible_ms, call.channel.remote, changed)
        except (Refusal, Refused):
            self._renewals.put_back(taken)
            raise

    def forward(self, call: Call, request: ForwardMessageToDeadLetterQueueRequest) -> None:
        """Make a message a dead letter of its group. Raises Refused and Refusal."""
        topic, group = self._names(request.topic, request.group)
        taken = self._renewals.take(call.client_id, request.receipt_handle)

        def forwarded(status: Status) -> None:
            if status.code != Code.OK:
                self._renewals.put_back(taken)
            call.answer(ForwardMessageToDeadLetterQueueResponse(status=status))

        try:
            handle = self._handle(taken, topic, group)
            self._dead_letters.forward(handle, call.channel.remote, forwarded)
        except (Refusal, Refused):
            self._renewals.put_back(taken)
            raise

    def _names(self, topic: Resource, group: Resource) -> tuple[str, str]:
        """Return the names of a topic and a group. Raises Refused."""
        name = self._routes.topic(topic).name
        group_name = group.name
        check_group_name(group_name)
        return name, group_name

    def _handle(self, taken: Taken, topic: str, group: str) -> Handle:
        """Return the handle that a client means. Raises Refused and Refusal."""
        self._acks.check_group(group)
        return read_handle(taken.text, topic, group, self._parts.broker_name, self._parts.clock())

    def _status(self, call: Call, status: PutStatus) -> Status:
        if status is PutStatus.PUT_OK:
            return OK
        refused = Refused(code_of(status), not_stored(status)[1], status.name)
        self._count(call, refused)
        return refused.status

    def _count(self, call: Call, refused: Refused) -> None:
        self._parts.statistics.refuse(refused.cause, who=call.channel.remote, said=str(refused))
