"""SendMessage: messages of a call go into the group of this turn, with those of the broker port."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable

from broker_store.broker import flow
from broker_store.broker.topics import MULTI_TAG, TopicConfig
from broker_store.formats import properties, record
from broker_store.messages import Message, PutResult
from broker_store.protocol.grpc.v2 import definition_pb2 as v2
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Encoding, MessageType, Status
from broker_store.protocol.grpc.v2.service_pb2 import (
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from broker_store.server.grpc.routes import Routes, accepted_types
from broker_store.server.grpc.statuses import OF_PUT, OK, Refused
from broker_store.server.parts import BrokerParts
from broker_store.server.produce import added_properties
from broker_store.server.send_group import ANSWERS

# Limits of Apache's proxy.
MAX_USER_PROPERTIES = 128
MAX_USER_PROPERTIES_BYTES = 16 << 10
# Ours: so many messages one call may have; Apache's proxy bounds their bytes alone.
MAX_MESSAGES = 1_024

BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
# Names of Apache's MessageConst, which a user's property must not have: the broker or a client sets them.
RESERVED = frozenset(
    (
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID",
        "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "CLUSTER",
        "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
        "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "INNER_MULTI_DISPATCH",
        "INNER_NUM", "INNER_BASE", "TIMER_DELAY_LEVEL", "TIMER_DELAY_SEC", "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY", "__CRC32#",
    )
)  # fmt: skip
_NORMAL = (MessageType.NORMAL, MessageType.MESSAGE_TYPE_UNSPECIFIED)


class PendingSend:
    """A call that waits for the results of its messages."""

    __slots__ = ("entries", "left", "done")

    def __init__(self, count: int, done: Callable[[SendMessageResponse], None]):
        self.entries = [SendResultEntry() for _ in range(count)]
        self.left = count
        self.done = done


class Sends:
    """Checks messages and adds them to the group of this turn."""

    def __init__(self, parts: BrokerParts, routes: Routes):
        self._parts, self._routes = parts, routes
        self._group = parts.sends
        self._max_body = parts.store_settings.max_message_size
        self._max_pending = parts.settings.send_thread_pool_queue_capacity
        self._added = properties.encode(added_properties(parts.settings))
        # Chooses the queues, as Apache's proxy does: the client's choice is not used.
        self._turn = itertools.count()

    def send(
        self,
        request: SendMessageRequest,
        remote_host: tuple[bytes, int],
        done: Callable[[SendMessageResponse], None],
    ) -> None:
        """Add the messages of a call, and call `done` when all are stored. Raises Refused; then none is
        added."""
        messages = request.messages
        if not 0 < len(messages) <= MAX_MESSAGES:
            raise Refused(
                Code.BAD_REQUEST,
                f"a send needs 1 to {MAX_MESSAGES} messages, it has {len(messages)}",
                "number of messages",
            )
        self._check_capacity()
        made = [self._message(message, remote_host) for message in messages]
        pending = PendingSend(len(made), done)
        for number, message in enumerate(made):
            pending.entries[number].message_id = messages[number].system_properties.message_id
            self._group.add(message, self._stored, (pending, number), expires=True)

    def _check_capacity(self) -> None:
        store, pending = self._parts.store, self._group.pending
        if store.rejects_sends is not None:
            raise Refused(Code.TOO_MANY_REQUESTS, flow.REJECTED, store.rejects_sends.replace("_", " "))
        if pending >= self._max_pending:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                flow.OVERLOADED,
                "overload of sends",
                value=pending,
                limit=self._max_pending,
            )

    def _message(self, given: v2.Message, remote_host: tuple[bytes, int]) -> Message:
        """Return the message for the store. Raises Refused."""
        config = self._routes.topic(given.topic)
        system = given.system_properties
        if (
            system.message_type not in _NORMAL
            or system.HasField("message_group")
            or system.HasField("delivery_timestamp")
            or system.HasField("lite_topic")
            or system.HasField("priority")
        ):
            raise Refused(
                Code.NOT_IMPLEMENTED, "messages with order, delay or a transaction are not served yet", "type"
            )
        if MessageType.NORMAL not in accepted_types(config):
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {config.name} does not take messages of type NORMAL",
                "message type",
            )
        if not config.write_queues:
            raise Refused(Code.FORBIDDEN, f"topic {config.name} has no queue for sends", "permission")
        body_bytes = len(given.body)
        if not body_bytes:
            raise Refused(Code.MESSAGE_BODY_EMPTY, "the body of a message is empty", "empty body")
        if body_bytes > self._max_body:
            raise Refused(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"message body cannot exceed the max {self._max_body}",
                "body",
                value=body_bytes,
                limit=self._max_body,
            )
        born = system.born_timestamp
        return Message(
            config.name,
            next(self._turn) % config.write_queues,
            given.body,
            self._properties(given) + self._added,
            0,
            self._sys_flag(system, config),
            born.seconds * 1_000 + born.nanos // 1_000_000,
            remote_host,
            self._parts.endpoint.store_host,
        )

    def _sys_flag(self, system: v2.SystemProperties, config: TopicConfig) -> int:
        flag = record.SYS_COMPRESSED if system.body_encoding == Encoding.GZIP else 0
        return flag | record.SYS_MULTI_TAGS if config.filter_type == MULTI_TAG else flag

    def _properties(self, given: v2.Message) -> bytes:
        system = given.system_properties
        if not system.message_id.strip():
            raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be null or empty", "message id")
        if _has_control(system.message_id):
            raise Refused(
                Code.ILLEGAL_MESSAGE_ID, "message id cannot contain control character", "message id"
            )
        pairs = _user_properties(given)
        pairs[properties.UNIQUE_KEY] = system.message_id
        if system.HasField("tag"):
            _check_text("tag", system.tag, Code.ILLEGAL_MESSAGE_TAG)
            if "|" in system.tag:
                raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'", "tag")
            pairs[properties.TAGS] = system.tag
        if system.keys:
            for key in system.keys:
                _check_text("key", key, Code.ILLEGAL_MESSAGE_KEY)
            pairs[properties.KEYS] = properties.KEY_SEPARATOR.join(system.keys)
        if system.trace_context and not _has_control(system.trace_context):
            pairs[TRACE_CONTEXT] = system.trace_context
        if system.born_host and not _has_control(system.born_host):
            pairs[BORN_HOST] = system.born_host
        born = system.born_timestamp
        if born.seconds > 0:
            pairs[BORN_TIMESTAMP] = str(born.seconds * 1_000 + born.nanos // 1_000_000)
        return properties.encode(pairs)

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
            pending.done(SendMessageResponse(status=status, entries=pending.entries))

    def _status(self, result: PutResult) -> Status:
        code = OF_PUT[result.status]
        if code == Code.OK:
            return OK
        text = ANSWERS[result.status][1] or result.status.name
        late = self._group
        return Status(
            code=code,
            message=text.replace("{max_body}", str(self._max_body))
            .replace("{waited_ms}", str(late.late_ms))
            .replace("{waiting}", str(late.late_among)),
        )


def _user_properties(given: v2.Message) -> dict[str, str]:
    """Return the user's properties. Raises Refused for those that the store cannot keep, and for names that
    the broker sets."""
    user = given.user_properties
    if len(user) > MAX_USER_PROPERTIES:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {MAX_USER_PROPERTIES}",
            "properties",
            value=len(user),
            limit=MAX_USER_PROPERTIES,
        )
    pairs: dict[str, str] = {}
    size = 0
    for name, value in user.items():
        if name in RESERVED:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name:.120}", "property"
            )
        if not name or _has_control(name):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the key of property cannot contain control character",
                "property",
            )
        if _has_control(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the value of property cannot contain control character",
                "property",
            )
        size += len(name.encode()) + len(value.encode())
        if value:  # Apache's store keeps no empty value
            pairs[name] = value
    if size > MAX_USER_PROPERTIES_BYTES:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {MAX_USER_PROPERTIES_BYTES}",
            "properties",
            value=size,
            limit=MAX_USER_PROPERTIES_BYTES,
        )
    return pairs


def _check_text(what: str, text: str, code: Code) -> None:
    if not text.strip():
        raise Refused(code, f"{what} cannot be the char sequence of whitespace", what)
    if _has_control(text):
        raise Refused(code, f"{what} cannot contain control character", what)


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in text)
