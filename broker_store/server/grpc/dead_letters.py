"""ForwardMessageToDeadLetterQueue: a message that a group gives up (docs/spec/grpc.md section 6).

It is stored in the group's dead letter topic, as a message that a client of the broker port sends back
without a further try, and then acknowledged. Calls for a message whose forward is under way wait for its
result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker_store.broker.pop.positions import Place
from broker_store.formats import record
from broker_store.messages import PutResult, PutStatus
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status
from broker_store.server.grpc.handles import Handle
from broker_store.server.grpc.statuses import OK, code_of, refused_of
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_acks import PopAcks, not_stored
from broker_store.server.retries import dead_letter

Done = Callable[[Status], None]
# A message of a group: the group, the topic and queue that it lies in, its offset.
_Message = tuple[Place, int]


class _Given(NamedTuple):
    """A message that is stored as a dead letter."""

    handle: Handle
    remote: str


class DeadLetters:
    """Stores dead letters, and acknowledges their messages."""

    def __init__(self, parts: BrokerParts, acks: PopAcks):
        self._parts, self._acks = parts, acks
        self._under_way: dict[_Message, list[Done]] = {}  # who waits for the result of each forward

    def forward(self, handle: Handle, remote: str, done: Done) -> None:
        """Give up the message of a handle, and call `done` with the status of the answer. Raises Refusal."""
        self._acks.check(handle.popped, remote, is_after=True)
        read = partial(self._read, handle, remote, done)
        found = self._parts.store.reads.records.get_records([handle.log_offset], read)
        if found is not None:
            read(found)

    def _read(self, handle: Handle, remote: str, done: Done, found: list[bytes | None] | None) -> None:
        """Take what was read; None if the read failed."""
        if found is None:
            done(Status(code=Code.INTERNAL_SERVER_ERROR, message="the message could not be read"))
            return
        popped = handle.popped
        (raw,) = found
        stored = None if raw is None else record.decode(raw, check_crc=False)
        place = (popped.topic, popped.queue_id, popped.offset)
        if stored is None or (stored.topic, stored.queue_id, stored.queue_offset) != place:
            done(
                Status(code=Code.INVALID_RECEIPT_HANDLE, message="the message of the receipt handle is gone")
            )
            return
        if _message(handle) not in self._under_way and self._acks.is_visible(popped):
            done(OK)  # it was given up or acknowledged before, or never given: no effect
            return
        self.forward_stored(handle, stored, remote, done)

    def forward_stored(self, handle: Handle, stored: record.StoredMessage, remote: str, done: Done) -> None:
        """Give up a message that was read, or wait for the result if that is under way."""
        if (waiting := self._under_way.get(_message(handle))) is not None:
            waiting.append(done)
            return
        try:
            message = dead_letter(self._parts, stored, handle.group)
        except Refusal as refusal:
            done(refused_of(refusal).status)
            return
        self._under_way[_message(handle)] = [done]
        self._parts.sends.add(message, self._stored, _Given(handle, remote), expires=True)

    def _stored(self, given: _Given, result: PutResult) -> None:
        handle = given.handle
        if result.status is not PutStatus.PUT_OK:
            self._ended(handle, Status(code=code_of(result.status), message=result.status.name))
            return
        try:
            self._acks.ack(handle.popped, given.remote, partial(self._acknowledged, handle))
        except Refusal as refusal:
            self._ended(handle, refused_of(refusal).status)

    def _acknowledged(self, handle: Handle, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            self._ended(handle, OK)
        else:
            self._ended(handle, Status(code=code_of(status), message=not_stored(status)[1]))

    def _ended(self, handle: Handle, status: Status) -> None:
        for done in self._under_way.pop(_message(handle)):
            done(status)


def _message(handle: Handle) -> _Message:
    popped = handle.popped
    return popped.place, popped.offset
