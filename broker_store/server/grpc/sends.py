"""SendMessage: messages of a call go into the group of this turn, with those of the broker port.

All messages of a call are checked before the first is added. They go to one queue: a message in order to that
of its group, one with a priority to that of its priority, others to the queues in turn. The client's choice
of a queue is not used, as in Apache's proxy.

A call of a usual producer is read by a kernel, `kernels/grpc_send.py`. All others are read with protobuf.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from broker_store.broker import flow
from broker_store.broker.priorities import queue_of
from broker_store.broker.topics import MULTI_TAG, TopicConfig
from broker_store.formats import properties, record
from broker_store.formats.consistent_hash import consistent_hash
from broker_store.formats.java_hash import java_hash
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX
from broker_store.formats.topics import HALF_TOPIC, PERM_WRITE, PRIORITY
from broker_store.kernels.grpc_send import stored_answers, usual_sends
from broker_store.messages import Message, PutResult, PutStatus
from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Encoding, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from broker_store.protocol.http2.stream import Stream
from broker_store.server.grpc import transaction_ids
from broker_store.server.grpc.access import check_send_right
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.channel import GrpcChannel
from broker_store.server.grpc.property_names import REFUSED
from broker_store.server.grpc.routes import Routes, check_type
from broker_store.server.grpc.sent_messages import NORMAL, check_body, properties_of, type_of
from broker_store.server.grpc.statuses import OF_PUT, OK, Refused
from broker_store.server.grpc.unparsed import MAX_MESSAGES, check_keys, check_send, too_many_messages
from broker_store.server.parts import BrokerParts
from broker_store.server.produce import added_properties
from broker_store.server.waiting import make_half, make_wait, recall_handle_of

_WAITING = frozenset(("TRANSACTION", "DELAY"))
# Values of protobuf's enumerations are looked up by name at each access.
_GZIP, _OK = Encoding.GZIP, Code.OK
_PUT_OK = PutStatus.PUT_OK


class PendingSend:
    """A call that waits for the results of its messages."""

    __slots__ = ("call", "topic", "entries", "left")

    def __init__(self, call: Call, topic: str, ids: list[str]):
        self.call, self.topic = call, topic
        self.entries = [SendResultEntry(message_id=message_id) for message_id in ids]
        self.left = len(ids)


class Sends:
    """Checks messages and adds them to the group of this turn."""

    def __init__(self, parts: BrokerParts, routes: Routes):
        self._parts, self._routes = parts, routes
        self._group = parts.sends
        self._max_body = parts.store_settings.max_message_size
        self._take_added()
        parts.live.watch(("traceOn",), self._take_added)
        self._stored_answer = stored_answers(SendMessageResponse(status=OK).SerializeToString())
        self._turn = itertools.count()

    def _take_added(self) -> None:
        self._added = properties.encode(added_properties(self._parts.settings))
        self._read_usual = usual_sends(REFUSED, self._added)

    def send_usual(self, channel: GrpcChannel, stream: Stream, body: bytes, user: str | None) -> bool:
        """Check the right of a user and do what `send` does, from the bytes of a call with one message of the
        usual kind. Return False for any other call. Raises Refused."""
        read = self._read_usual(body)
        if not read:
            return False
        topic, message_id, message_body, encoded, born_ms, encoding = read
        if self._parts.access is not None:
            check_send_right(self._parts.access, user, topic, channel.remote)
        self._check_capacity(channel.remote)
        config = self._routes.topic_of(topic)
        check_body(message_body, self._max_body)
        if config.attributes:  # without any, a topic takes this type
            _check_type(config, NORMAL)
        queue_id = self._queue(config, None)
        message = self._stored_form(
            config, queue_id, message_body, encoded, encoding, born_ms, channel.remote_host
        )
        self._group.add(message, self._one_stored, (channel, stream, message_id), expires=True)
        return True

    def check(self, request: bytes) -> None:
        """Raise Refused for a large request that exceeds a bound, before it is parsed; DecodeError for one
        that cannot be read."""
        check_send(request, self._max_body)

    def send(self, call: Call, request: SendMessageRequest) -> None:
        """Add the messages of a call, and answer when all are stored. Raises Refused or Refusal; then none is
        added."""
        messages = request.messages
        if not messages:
            raise Refused(Code.MESSAGE_CORRUPTED, "no message to send", "number of messages")
        if len(messages) > MAX_MESSAGES:
            raise too_many_messages()
        check_keys(request)
        self._check_capacity(call.channel.remote)
        first = messages[0]
        config = self._routes.topic(first.topic)
        now_ms = self._parts.clock()
        pairs: list[dict[str, str]] = []
        kinds: list[str] = []
        for given in messages:
            if given is not first and given.topic != first.topic:
                raise Refused(Code.MESSAGE_CORRUPTED, "topic in message is not same", "topic of a message")
            check_body(given.body, self._max_body)
            kinds.append(type_of(given.system_properties))
            pairs.append(properties_of(given, kinds[-1], config.name, now_ms))
        kind = self._check_types(kinds, config)
        queue_id = self._queue(config, first.system_properties if len(messages) == 1 else None)
        if len(messages) == 1 and properties.PRIORITY in pairs[0]:
            if kind == PRIORITY:
                queues = self._queues(config)
                queue_id = queues[queue_of(first.system_properties.priority, len(queues))]
            else:  # the message waits or is in order, and has no priority then
                del pairs[0][properties.PRIORITY]
        made = [
            self._message(given, its, config, queue_id, call.channel.remote_host)
            for given, its in zip(messages, pairs, strict=True)
        ]
        ids = [its[properties.UNIQUE_KEY] for its in pairs]
        if kind == NORMAL and len(made) == 1:
            self._group.add(made[0], self._one_stored, (call.channel, call.stream, ids[0]), expires=True)
            return
        pending = PendingSend(call, config.name, ids)
        stored = self._stored
        if kind in _WAITING:
            self._make_special(made[0], pairs[0], pending.entries[0], ids[0], config.name)
            stored = self._half_stored if made[0].topic == HALF_TOPIC else self._stored
        for number, message in enumerate(made):
            self._group.add(message, stored, (pending, number), expires=True)

    def _check_capacity(self, remote: str) -> None:
        store = self._parts.store
        if store.rejects_sends is not None:
            raise Refused(Code.TOO_MANY_REQUESTS, flow.REJECTED, store.rejects_sends.replace("_", " "))
        if (full := self._group.no_room_for(remote)) is not None:
            raise Refused(
                Code.TOO_MANY_REQUESTS, flow.OVERLOADED, full.cause, value=full.value, limit=full.limit
            )

    def _check_types(self, kinds: Sequence[str], config: TopicConfig) -> str:
        """Return the type of the first message, if the topic takes those of all. Raises Refused."""
        kind = kinds[0]
        _check_type(config, kind)
        for each in sorted(set(kinds[1:])):
            _check_type(config, each)
        if len(kinds) > 1 and not _WAITING.isdisjoint(kinds):
            raise Refused(
                Code.BAD_REQUEST,
                "a call with several messages can neither delay them nor send them in transactions",
                "batch",
            )
        return kind

    def _queue(self, config: TopicConfig, system: v2.SystemProperties | None) -> int:
        """Return the queue of a call. Raises Refused if no queue takes messages."""
        if not config.write_queues or not config.perm & self._parts.settings.broker_permission & PERM_WRITE:
            raise Refused(Code.FORBIDDEN, "no writable queue", "permission")
        queues = self._queues(config)
        if system is not None and system.message_group:
            return queues[consistent_hash(java_hash(system.message_group), len(queues))]
        return queues[next(self._turn) % len(queues)]

    def _queues(self, config: TopicConfig) -> Sequence[int]:
        """Return the queues that take messages: of a static topic those that this broker leads. Raises
        Refused if it leads none."""
        mapping = self._parts.static_topics.get(config.name)
        if mapping is None:
            return range(config.write_queues)
        queues = sorted(mapping.leads.values())
        if not queues:
            raise Refused(Code.FORBIDDEN, "this broker leads no queue of the static topic", "permission")
        return queues

    def _message(
        self,
        given: v2.Message,
        pairs: dict[str, str],
        config: TopicConfig,
        queue_id: int,
        remote_host: tuple[bytes, int],
    ) -> Message:
        system = given.system_properties
        born = system.born_timestamp
        return self._stored_form(
            config,
            queue_id,
            given.body,
            properties.encode(pairs) + self._added,
            system.body_encoding,
            born.seconds * 1_000 + born.nanos // 1_000_000,
            remote_host,
        )

    def _stored_form(
        self,
        config: TopicConfig,
        queue_id: int,
        body: bytes,
        encoded: bytes,
        encoding: int,
        born_ms: int,
        remote_host: tuple[bytes, int],
    ) -> Message:
        flag = record.SYS_COMPRESSED if encoding == _GZIP else 0
        if config.filter_type == MULTI_TAG:
            flag |= record.SYS_MULTI_TAGS
        store_host = self._parts.endpoint.store_host
        return Message(config.name, queue_id, body, encoded, 0, flag, born_ms, remote_host, store_host)

    def _make_special(
        self,
        message: Message,
        pairs: dict[str, str],
        entry: SendResultEntry,
        unique_key: str,
        topic: str,
    ) -> None:
        """Change a message that waits for the end of its transaction, or for its time. Raises Refusal."""
        if properties.TRANSACTION_PREPARED in pairs:
            make_half(self._parts, message)
            return
        make_wait(self._parts, message, pairs)
        handle = recall_handle_of(self._parts, message, topic, unique_key)
        if handle is not None:
            entry.recall_handle = handle

    def _half_stored(self, context: tuple[PendingSend, int], result: PutResult) -> None:
        pending, number = context
        if OF_PUT[result.status] == _OK:
            self._parts.transactions.prepared(pending.topic)
            transaction_id = transaction_ids.encode(result.queue_offset, result.log_offset)
            pending.entries[number].transaction_id = transaction_id
        self._stored(context, result)

    def _one_stored(self, context: tuple[GrpcChannel, Stream, str], result: PutResult) -> None:
        """Answer a call with one message of the usual kind."""
        channel, stream, message_id = context
        if result.status == _PUT_OK:
            channel.answer(stream, self._stored_answer(message_id, result.queue_offset))
            return
        status = self._status(result)
        entry = SendResultEntry(status=status, message_id=message_id, offset=max(0, result.queue_offset))
        Call(channel, stream).answer(SendMessageResponse(status=status, entries=[entry]))

    def _stored(self, context: tuple[PendingSend, int], result: PutResult) -> None:
        pending, number = context
        entry = pending.entries[number]
        entry.status.CopyFrom(self._status(result))
        if result.queue_offset >= 0:
            entry.offset = result.queue_offset
        pending.left -= 1
        if not pending.left:
            first = pending.entries[0].status
            same = all(entry.status.code == first.code for entry in pending.entries)
            status = first if same else Status(code=Code.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")
            pending.call.answer(SendMessageResponse(status=status, entries=pending.entries))

    def _status(self, result: PutResult) -> Status:
        code = OF_PUT[result.status]
        if code == _OK:
            return OK
        return Status(code=code, message=self._group.remark(result.status) or result.status.name)


def _check_type(config: TopicConfig, kind: str) -> None:
    """Raise Refused if a topic does not take messages of a type. Retry topics and dead letters take all."""
    if not config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        check_type(config, kind)
