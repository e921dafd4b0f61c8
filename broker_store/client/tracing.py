"""Traces: records of what a client did with each message, which Apache's tools read (`mqadmin
queryMsgTraceById`).

A record is a line of fields joined by \\x01 and ended by \\x02, as in Java's TraceDataEncoder; a missing
field is the word `null`. Its first field is the kind:

    Pub             a message was sent
    SubBefore       a message is handed to a handler
    SubAfter        the handler has ended; the request id is that of its SubBefore
    EndTransaction  a half was committed or rolled back
    Recall          a message that waited was taken back

formats/traces.py reads them.

Records are sent to RMQ_SYS_TRACE_TOPIC in the background, those of a topic together, at most 100 in a
message. Its keys are the ids and keys of the traced messages. A trace must not delay or fail the traced
message. So records without room in the queue, and those that no broker accepts, are dropped, and the log has
their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from broker_store.client.errors import ClientError
from broker_store.client.message import Outgoing, ReceivedMessage, SendReceipt
from broker_store.errors import FormatError
from broker_store.formats import message_id, properties
from broker_store.formats.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from broker_store.client.producer import Producer

log = logging.getLogger(__name__)

GROUP = "_INNER_TRACE_PRODUCER"  # the name in Java's client
DEFAULT_REGION = "DefaultRegion"
FIELD_END, RECORD_END = "\x01", "\x02"
MAX_WAITING = 1024
MAX_RECORDS = 100
# Keys of a trace message; properties hold 32 KiB in all.
MAX_KEY_BYTES = 16 << 10
PAUSE_S = 0.5
# For the last records, when a client closes.
LAST_S = 1.0

# MessageType and ConsumeReturnType, which are sent by their numbers.
NORMAL, HALF, COMMITTED, DELAYED = 0, 1, 2, 3
CONSUMED, FAILED, TO_COME_AGAIN = 0, 2, 4


class _Record(NamedTuple):
    topic: str
    text: str
    keys: tuple[str, ...]


class Handled(NamedTuple):
    """A message that a handler has."""

    request_id: str
    began_ms: int


class Tracer:
    """`make_producer` makes the producer of the records when there is a first one; it must not trace
    itself."""

    def __init__(self, make_producer: Callable[[], Producer], make_id: Callable[[], str], group: str):
        self._make_producer, self._make_id, self._group = make_producer, make_id, group
        self._producer: Producer | None = None
        self._waiting: list[_Record] = []
        self._lost = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def sent(
        self, receipt: SendReceipt, message: Outgoing, began_ms: int, kind: int, region: str | None
    ) -> None:
        """Record that a broker has the message. A broker without a region requests no traces."""
        if region is None:
            return
        fields = (
            "Pub", began_ms, region, self._group, receipt.topic, receipt.message_id, message.tag,
            " ".join(message.keys), _host(receipt.offset_message_id), len(message.body),
            _now_ms() - began_ms, kind, receipt.offset_message_id, receipt.status == "SEND_OK",
        )  # fmt: skip
        self._add(receipt.topic, fields, (receipt.message_id, *message.keys))

    def ended(
        self,
        topic: str,
        unique_key: str,
        message: Outgoing | ReceivedMessage,
        host: str,
        committed: bool,
        from_check: bool,
    ) -> None:
        """Record that a half was committed or rolled back."""
        state = "COMMIT_MESSAGE" if committed else "ROLLBACK_MESSAGE"
        fields = (
            "EndTransaction",
            _now_ms(),
            DEFAULT_REGION,
            self._group,
            topic,
            unique_key,
            message.tag,
            " ".join(message.keys),
            host,
            COMMITTED,
            unique_key,
            state,
            from_check,
        )
        self._add(topic, fields, (unique_key, *message.keys))

    def recalled(self, topic: str, unique_key: str) -> None:
        """Record that a broker will drop a message that waits."""
        self._add(
            topic, ("Recall", _now_ms(), DEFAULT_REGION, self._group, topic, unique_key, True), (unique_key,)
        )

    def handed(self, message: ReceivedMessage) -> Handled | None:
        """Return the state of a message that a handler gets, None when its broker requests no traces."""
        pairs = message.properties
        if pairs.get(properties.TRACE_ON) == "false":
            return None
        handled = Handled(self._make_id(), _now_ms())
        region = pairs.get(properties.MESSAGE_REGION)
        fields = (
            "SubBefore", handled.began_ms, region, self._group, handled.request_id, message.message_id,
            message.record.reconsume_times + message.retries_here, " ".join(message.keys),
        )  # fmt: skip
        self._add(message.topic, fields, (message.message_id, *message.keys))
        return handled

    def handled(self, message: ReceivedMessage, handled: Handled | None, code: int) -> None:
        """Record that the handler has ended."""
        if handled is None:
            return
        now_ms = _now_ms()
        fields = (
            "SubAfter",
            handled.request_id,
            message.message_id,
            now_ms - handled.began_ms,
            code == CONSUMED,
            " ".join(message.keys),
            code,
            now_ms,
            self._group,
        )
        self._add(message.topic, fields, (message.message_id, *message.keys))

    def _add(self, topic: str, fields: Iterable[object], keys: tuple[str, ...]) -> None:
        if len(self._waiting) >= MAX_WAITING or self._closing.is_set():
            self._lost += 1
            return
        self._waiting.append(_Record(topic, FIELD_END.join(map(_text, fields)) + RECORD_END, keys))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        closing = False
        while not closing:
            with contextlib.suppress(TimeoutError):
                closing = await asyncio.wait_for(self._closing.wait(), PAUSE_S)
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._lost:
            log.warning("%d trace records of %s found no room", self._lost, self._group)
            self._lost = 0
        by_topic: dict[str, list[_Record]] = {}
        for record in waiting:
            by_topic.setdefault(record.topic, []).append(record)
        for records in by_topic.values():
            for first in range(0, len(records), MAX_RECORDS):
                await self._send(records[first : first + MAX_RECORDS])

    async def _send(self, records: list[_Record]) -> None:
        if self._producer is None:
            self._producer = self._make_producer()
            await self._producer.start()
        body = "".join(record.text for record in records).encode("utf-8", "replace")
        try:
            await self._producer.send(
                TRACE_TOPIC,
                body,
                keys=_bounded(dict.fromkeys(key for record in records for key in record.keys)),
            )
        except ClientError as error:
            log.warning("%d trace records of %s are lost: %s", len(records), self._group, error)

    async def close(self) -> None:
        """Send the waiting records, for a second at most. Idempotent."""
        if self._task is None:
            return
        self._closing.set()
        _, late = await asyncio.wait([self._task], timeout=LAST_S)
        if late:
            log.warning("the last trace records of %s did not leave within %g s", self._group, LAST_S)
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._producer is not None:
            await self._producer.close()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value in (None, "") else str(value)


def _host(offset_message_id: str) -> str | None:
    """Return the host of the broker that an offset message id names."""
    try:
        return message_id.host_text(message_id.decode_offset_id(offset_message_id)[0])
    except FormatError:
        return None


def _bounded(keys: Iterable[str]) -> list[str]:
    """Return as many keys as fit into a message. Its records cannot be found by the others."""
    kept, size = [], 0
    for key in keys:
        size += len(key.encode("utf-8", "replace")) + 1
        if size > MAX_KEY_BYTES:
            break
        kept.append(key)
    return kept


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
