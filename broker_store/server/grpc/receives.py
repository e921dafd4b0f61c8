"""ReceiveMessage: a pop whose answer is a stream (docs/spec/grpc.md section 6).

    checks ──► pop, at once or when a message comes ──► status │ message │ message │ … │ time of the answer

Messages whose tag only shares its hash with a wanted one are acknowledged, and those that were given too
often become dead letters. If the client has gone meanwhile, its messages are visible again a second later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from broker_store.broker.filters import FilterError
from broker_store.broker.groups import SubscriptionGroup
from broker_store.formats import record
from broker_store.formats.order_info import MAX_ATTEMPT_ID
from broker_store.formats.pop_records import MAX_MESSAGES
from broker_store.formats.topics import PERM_READ
from broker_store.kernels.grpc_received import received_messages
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.grpc.framing import body_of
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Code,
    FilterExpression,
    Message,
    MessageQueue,
    Resource,
    Status,
)
from broker_store.protocol.grpc.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from broker_store.protocol.http2.stream import Stream
from broker_store.protocol.pop import Receipt
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.clients import GrpcClient, GrpcClients, expression_type
from broker_store.server.grpc.consumer_settings import (
    MAX_POLL_MS,
    MIN_POLL_MS,
    max_attempts,
    milliseconds,
)
from broker_store.server.grpc.dead_letters import DeadLetters
from broker_store.server.grpc.handles import Handle, write_handle
from broker_store.server.grpc.property_names import RESERVED
from broker_store.server.grpc.received_messages import attempt_of, digest_of, received_message, timestamp
from broker_store.server.grpc.renewals import Renewals
from broker_store.server.grpc.routes import Routes, check_topic_size
from broker_store.server.grpc.statuses import FAILED, OK, Refused, code_of
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.pop import Pops
from broker_store.server.pop_acks import PopAcks, not_stored
from broker_store.server.pop_checks import check_pop
from broker_store.server.pop_request import ALL_QUEUES, PopEnd, PopResult
from broker_store.server.pull_checks import parse_subscription

# Defaults of Apache's proxy.
MIN_INVISIBLE_MS, MAX_INVISIBLE_MS = 10_000, 12 * 3_600_000
RENEWED_INVISIBLE_MS = 60_000
FROM_MAX = 1  # initMode of all pops
# A client that has gone did not get its messages.
NOT_GIVEN_INVISIBLE_MS = 1_000
# A client waits so much longer than the pop, so that the answer reaches it.
RESERVED_MS = 100
# An answer is handed over in pieces of so many bytes or more, each of whole messages.
PIECE_BYTES = 16 << 10
# A larger request is kept without its further fields while it waits. Those of clients have some 100 bytes.
MAX_KEPT_BYTES = 512

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """What a receive asks for, with the names of the header of a POP_MESSAGE."""

    topic: str
    consumer_group: str
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    exp: str
    exp_type: str
    order: bool
    attempt_id: str | None
    queue_id: int = ALL_QUEUES
    init_mode: int = FROM_MAX


class Receiving:
    """A receive under way. The pop asks it whether its client still reads."""

    __slots__ = ("call", "remote", "has_ended", "_promised")

    def __init__(self, call: Call):
        self.call = call
        self.remote = call.channel.remote
        self.has_ended = False
        self._promised = 0

    @property
    def closed(self) -> bool:
        return self.has_ended or self.call.channel.closed

    @property
    def paused(self) -> bool:
        return self.call.channel.paused

    def when_resumed(self, callback: Callable[[], None]) -> None:
        self.call.channel.when_resumed(lambda: None if self.closed else callback())

    def promise(self, size: int) -> None:
        """Count the bytes of messages that will be sent."""
        self._promised = size
        self.call.channel.promise(size)

    def answered(self) -> None:
        """Take the promised bytes back: they are sent now, or not at all."""
        self.call.channel.promise(-self._promised)

    def hold(self) -> None:
        """Do nothing: the number of streams bounds what one connection has read from disk."""

    def release(self) -> None:
        """Do nothing, as `hold`."""


class Receives:
    """Serves receives."""

    def __init__(
        self,
        parts: BrokerParts,
        routes: Routes,
        clients: GrpcClients,
        pops: Pops,
        acks: PopAcks,
        dead_letters: DeadLetters,
        renewals: Renewals,
    ):
        self._parts, self._routes, self._clients = parts, routes, clients
        self._pops, self._acks = pops, acks
        self._dead_letters, self._renewals = dead_letters, renewals
        self._made_of_usual = received_messages(RESERVED)
        self._under_way: dict[Stream, Receiving] = {}

    def receive(self, call: Call, request: ReceiveMessageRequest) -> None:
        """Answer a receive, now or later. Raises Refused and Refusal."""
        asked = self._check(call, request)
        receiving = Receiving(call)
        client = self._clients.find(call.client_id)
        cause_client = client or GrpcClient(call.stream.fields, call.channel)
        cause = Command.request(
            int(RequestCode.POP_MESSAGE), language=cause_client.language, version=cause_client.version
        )
        answer = partial(self._answer, receiving, _needed(request))
        pop = check_pop(self._parts, asked, (cause, cause_client), receiving, answer)
        pop = pop._replace(on_found=receiving.promise)
        self._under_way[call.stream] = receiving
        if receiving.paused:
            receiving.when_resumed(partial(self._pops.pop, pop))
        else:
            self._pops.pop(pop)

    def gone(self, stream: Stream) -> None:
        """Forget a receive that was cancelled."""
        receiving = self._under_way.pop(stream, None)
        if receiving is not None:
            receiving.has_ended = True
            self._parts.parked_pops.channel_closed(receiving)

    # Checks, in the order of Apache's proxy

    def _check(self, call: Call, request: ReceiveMessageRequest) -> Asked:
        now_ms = self._parts.clock()
        poll_ms = self._poll_ms(call, request)
        group = request.group.name
        topic = self._routes.topic_for(request.message_queue.topic, group)
        check_topic_size(request.message_queue.topic)
        invisible_ms = RENEWED_INVISIBLE_MS
        if not request.auto_renew:
            invisible_ms = milliseconds(request.invisible_duration)
            check_invisible(invisible_ms, MIN_INVISIBLE_MS)
        elif not self._renewals.has_room:
            raise self._too_many_renewed()
        expression = request.filter_expression
        kind = expression_type(expression)
        if kind != "TAG" and not expression.expression:
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, f"Expression can't be null! {kind}", "expression")
        try:
            parse_subscription(topic.name, expression.expression or "*", kind)
        except FilterError as error:
            # Apache's sentence is about tags; of another expression only the length is checked
            text = "subString split error" if kind == "TAG" else f"{kind}: {error}"
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, text, "expression") from None
        if len(request.attempt_id) > MAX_ATTEMPT_ID:
            raise Refused(
                Code.BAD_REQUEST,
                f"attempt_id must have at most {MAX_ATTEMPT_ID} characters",
                "attempt id",
                value=len(request.attempt_id),
                limit=MAX_ATTEMPT_ID,
            )
        perm = topic.perm & self._parts.settings.broker_permission
        if not perm & PERM_READ or not topic.read_queues:
            raise Refused(Code.FORBIDDEN, "no readable queue", "permission")
        if request.batch_size < 1:
            raise Refused(Code.BAD_REQUEST, "batch_size must be at least 1", "batch size")
        config = self._parts.groups.get(group)
        return Asked(
            topic.name,
            group,
            min(request.batch_size, MAX_MESSAGES),
            invisible_ms,
            poll_ms,
            now_ms,
            expression.expression or "*",
            kind,
            config is not None and config.consume_message_orderly,
            request.attempt_id if request.HasField("attempt_id") else None,
        )

    def _too_many_renewed(self) -> Refused:
        return Refused(
            Code.TOO_MANY_REQUESTS,
            "too many messages are renewed",
            "renewed messages",
            value=len(self._renewals),
            limit=self._renewals.limit,
        )

    def _poll_ms(self, call: Call, request: ReceiveMessageRequest) -> int:
        """Return how long a receive waits for a message, within the time of its call."""
        left_ms = call.timeout_ms()
        if request.HasField("long_polling_timeout"):
            wanted_ms = milliseconds(request.long_polling_timeout)
        elif left_ms is None:
            wanted_ms = MAX_POLL_MS
        else:
            client = self._clients.find(call.client_id)
            wanted_ms = left_ms - (
                0 if client is None else milliseconds(client.settings.request_timeout) // 2
            )
        wanted_ms = max(MIN_POLL_MS, min(wanted_ms, MAX_POLL_MS))
        if left_ms is None or wanted_ms <= left_ms - RESERVED_MS:
            return wanted_ms
        if left_ms < MIN_POLL_MS:
            raise Refused(
                Code.ILLEGAL_POLLING_TIME,
                "The deadline time remaining is not enough for polling, please check network condition",
                "polling time",
                value=left_ms,
                limit=MIN_POLL_MS,
            )
        return min(wanted_ms, left_ms) - RESERVED_MS

    # Answers

    def _answer(self, receiving: Receiving, request: ReceiveMessageRequest, result: PopResult) -> None:
        self._under_way.pop(receiving.call.stream, None)
        receiving.answered()
        match result.end:
            case PopEnd.FOUND:
                try:
                    self._give(receiving, request, result)
                except Exception:  # a bug must not stop the other answers that this sync confirms
                    log.exception("ReceiveMessage failed")
                    self.refuse(receiving.call, FAILED)
            case PopEnd.NOTHING:
                self.refuse(receiving.call, Status(code=Code.MESSAGE_NOT_FOUND, message="no new message"))
            case PopEnd.FULL:
                self.refuse(receiving.call, Status(code=Code.TOO_MANY_REQUESTS, message="polling full"))
            case PopEnd.NOT_STORED:
                status = Status(code=code_of(result.put), message=not_stored(result.put)[1])
                self.refuse(receiving.call, status)
            case PopEnd.NO_ROOM:
                self.refuse(receiving.call, Status(code=Code.TOO_MANY_REQUESTS, message=result.text))

    def refuse(self, call: Call, status: Status) -> None:
        """Answer a receive that gives no message."""
        self._write(call, status, [])

    def _give(self, receiving: Receiving, request: ReceiveMessageRequest, result: PopResult) -> None:
        """Answer a receive with what a pop found."""
        call = receiving.call
        topic, group = request.message_queue.topic.name, request.group.name
        client = self._clients.find(call.client_id)
        config = self._parts.groups.get(group) or SubscriptionGroup(group)
        most, tags = max_attempts(config), _tags(request, topic)
        now_ms = self._parts.clock()
        topic_field = Message(topic=request.message_queue.topic).SerializeToString()
        messages: list[bytes] = []
        # Without Telemetry it is not known how long a client lives.
        renews = request.auto_renew and client is not None
        is_full = False
        for stored, receipt, records, at in self._records(result):
            handle = Handle(receipt, stored.log_offset, topic, group)
            is_full = renews and not self._renewals.has_room
            if self._is_kept_back(receiving, handle, stored, most, tags, is_full=is_full):
                continue
            text = write_handle(handle)
            digest = digest_of(stored.body)
            answer = self._made_of_usual(records, at, topic_field, text, digest, attempt_of(stored))
            if not answer:
                message = received_message(stored, request.message_queue.topic, text, now_ms)
                answer = body_of(ReceiveMessageResponse(message=message))
            messages.append(answer)
            if renews and client is not None:
                self._renewals.add(client, text, handle, stored.reconsume_times)
        if receiving.closed:
            return
        if not messages and is_full:
            refused = self._too_many_renewed()
            self._parts.statistics.refuse(
                refused.cause,
                value=refused.value,
                limit=refused.limit,
                who=receiving.remote,
                said=str(refused),
            )
            self.refuse(call, refused.status)
        elif not messages:
            self.refuse(call, Status(code=Code.MESSAGE_NOT_FOUND, message="no match message"))
        else:
            self._write(call, OK, messages)

    def _is_kept_back(
        self,
        receiving: Receiving,
        handle: Handle,
        stored: record.StoredMessage,
        most: int,
        tags: frozenset[str],
        *,
        is_full: bool,
    ) -> bool:
        """Return whether a client does not get a message. Then it is acknowledged, given up, or visible
        again."""
        try:
            if tags and stored.tags not in tags:
                self._acks.ack(handle.popped, receiving.remote, lambda status: None)
            elif stored.reconsume_times >= most:
                self._dead_letters.forward_stored(handle, stored, receiving.remote, lambda status: None)
            elif receiving.closed or is_full:  # no further message can be renewed
                self._acks.change_invisible_time(
                    handle.popped, NOT_GIVEN_INVISIBLE_MS, receiving.remote, lambda status, receipt: None
                )
            else:
                return False
        except Refusal as refusal:  # its topic was deleted meanwhile
            self._parts.statistics.refuse(refusal.cause, who=receiving.remote, said=refusal.remark)
        return True

    def _records(self, result: PopResult) -> Iterator[tuple[record.StoredMessage, Receipt, bytes, int]]:
        """Return the records that a pop found, each with its receipt, and the bytes in which it is, with its
        place there."""
        none: Mapping[int, int] = {}
        counts = [none] * len(result.found) if result.counts is None else result.counts
        for place, body, given_before in zip(result.found, result.bodies, counts, strict=True):
            at = 0
            for stored in record.decode_all(body, check_crc=False):
                # What comes again in order is not stored again: the record states no count.
                stored.reconsume_times += given_before.get(stored.queue_offset, 0)
                yield (
                    stored,
                    Receipt(
                        place.start_offset,
                        result.pop_ms,
                        result.invisible_ms,
                        result.revive_queue,
                        place.kind,
                        self._parts.broker_name,
                        place.queue_id,
                        stored.queue_offset,
                    ),
                    body,
                    at,
                )
                at += stored.size

    def _write(self, call: Call, status: Status, messages: list[bytes]) -> None:
        """Answer with a status, the encoded messages and the time of the answer."""
        channel, stream = call.channel, call.stream
        channel.begin(stream)
        pieces = [body_of(ReceiveMessageResponse(status=status))]
        size = 0
        for message in messages:
            pieces.append(message)
            size += len(message)
            if size >= PIECE_BYTES:
                channel.send(stream, b"".join(pieces))
                pieces, size = [], 0
        pieces.append(body_of(ReceiveMessageResponse(delivery_timestamp=timestamp(self._parts.clock()))))
        channel.send(stream, b"".join(pieces))
        channel.finish(stream)


def _needed(request: ReceiveMessageRequest) -> ReceiveMessageRequest:
    """Return a request without what its answer does not need. A receive waits for seconds, and its other
    fields may be lists of any length: a parsed entry takes 25 times its bytes."""
    if request.ByteSize() <= MAX_KEPT_BYTES:
        return request
    return ReceiveMessageRequest(
        group=Resource(name=request.group.name),
        message_queue=MessageQueue(topic=request.message_queue.topic),
        filter_expression=FilterExpression(
            type=request.filter_expression.type, expression=request.filter_expression.expression
        ),
        auto_renew=request.auto_renew,
    )


def check_invisible(invisible_ms: int, least_ms: int) -> None:
    """Raise Refused for an invisible time that Apache's proxy does not allow."""
    for is_wrong, word, limit in (
        (invisible_ms < least_ms, "small. min", least_ms),
        (invisible_ms > MAX_INVISIBLE_MS, "large. max", MAX_INVISIBLE_MS),
    ):
        if is_wrong:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is too {word} is {limit}",
                "invisible time",
                value=invisible_ms,
                limit=limit,
            )


def _tags(request: ReceiveMessageRequest, topic: str) -> frozenset[str]:
    """Return the tags that a receive wants; none if it wants all."""
    expression = request.filter_expression
    kind = expression_type(expression)
    return (
        parse_subscription(topic, expression.expression or "*", kind).tags if kind == "TAG" else frozenset()
    )
