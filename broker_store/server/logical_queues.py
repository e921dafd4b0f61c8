"""Requests that name a logical queue of a static topic, made into requests for the physical queue.

Here are the small requests: offsets of a group (14, 15), searched, largest and smallest offset (29, 30, 31)
and the earliest time (33). Each is handed, with other fields, to the handler that serves physical queues, or
to the other broker; the offset of the answer is changed back.

Source: Apache's `AdminBrokerProcessor`, `ConsumerManageProcessor` and `TopicQueueMappingManager`. Where they
answer an offset of the wrong item, this does not (docs/decisions/0088).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import NamedTuple

from broker_store.errors import PeerError
from broker_store.formats.static_topics import MappingItem
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header, read_long
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handler, Handlers, Refusal
from broker_store.server.logical_queue import LogicalQueue, other_failed, queue_of
from broker_store.server.other_brokers import OtherBrokers
from broker_store.server.parts import BrokerParts

# Fields of the sender's rights: this broker signs what it asks for itself.
_OF_SENDER = frozenset({"AccessKey", "Signature", "SecurityToken"})
_LAST = (1 << 63) - 1


class LogicalQueues:
    """The handlers of small requests, around those that serve physical queues. Loop's thread."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._mapping_of = parts.static_topics.get
        # Set while the broker runs among others
        self.brokers: OtherBrokers | None = None

    def around(self, handlers: Handlers) -> Handlers:
        """Return the handlers of these requests, which find `handlers` for physical queues."""
        serve = {
            R.QUERY_CONSUMER_OFFSET: self._query_offset,
            R.UPDATE_CONSUMER_OFFSET: self._update_offset,
            R.SEARCH_OFFSET_BY_TIMESTAMP: self._offset_by_time,
            R.GET_MAX_OFFSET: self._max_offset,
            R.GET_MIN_OFFSET: self._min_offset,
            R.GET_EARLIEST_MSG_STORETIME: self._earliest_store_time,
        }

        def made(code: int, physical: Handler) -> Handler:
            logical = serve[R(code)]

            def handle(command: Command, channel: Channel) -> Answer:
                mapping = self._mapping_of((command.fields or {}).get("topic", ""))
                if mapping is None:
                    return physical(command, channel)
                header = read_header(code, command.fields)
                queue = queue_of(mapping, header.queue_id, command.fields)
                if queue is None:
                    return physical(command, channel)
                return logical(_Asked(command, channel, queue, physical, self))

            return handle

        return {code: made(code, handlers[int(code)]) for code in serve}

    async def ask_other(self, item: MappingItem, topic: str, code: int, fields: Mapping[str, str]) -> Command:
        """Return the answer of the broker of an item to a request for its physical queue. Raises PeerError,
        OSError, TimeoutError if the broker is not found or does not answer."""
        if self.brokers is None:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is starting", "starting")
        address = await self.brokers.address_of(item.broker, topic)
        sent = {name: value for name, value in fields.items() if name not in _OF_SENDER}
        sent |= {"lo": "false", "bname": item.broker}
        return await self.brokers.request(address, R(code), sent)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the largest offset of a physical queue of this broker."""
        return self._parts.store.reads.max_offset(topic, queue_id)

    # Small requests

    async def _query_offset(self, asked: _Asked) -> Command:
        """Return the offset of the newest item in which the group has one: its consumers may not have reached
        the items after it."""
        row = asked.queue.row
        if len(row) == 1 and not row[0].logic_offset:
            return await asked.physical(row[0])
        for item in reversed(row):
            if not item.is_decided:
                continue
            answer = await asked.of(item, setZeroIfNotFound="false")
            if answer.code == ResponseCode.SUCCESS:
                return asked.answer(item.logical(_offset(answer)))
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise asked.failed(item, answer)
        remark = "Not found, maybe this group consumer boot first"
        return asked.command.answer(ResponseCode.QUERY_NOT_FOUND, remark, {})

    async def _update_offset(self, asked: _Asked) -> Command:
        logical = read_header(asked.command.code, asked.command.fields).commit_offset
        item = asked.queue.item_at(logical)
        return await asked.of(item, commitOffset=str(max(0, item.physical(logical))))

    async def _offset_by_time(self, asked: _Asked) -> Command:
        """Return the offset in the first item that has a message of that time or later."""
        found = 0
        decided = [item for item in asked.queue.row if item.is_decided]
        for item in decided:
            physical = _offset(await asked.checked(item))
            found = item.logical(max(0, physical))
            if item is decided[-1] or 0 <= physical < await asked.end_of(item):
                break
        return asked.answer(found)

    async def _max_offset(self, asked: _Asked) -> Command:
        item = asked.queue.item_at(_LAST)
        return asked.answer(item.logical(_offset(await asked.checked(item))))

    async def _min_offset(self, asked: _Asked) -> Command:
        item = asked.queue.item_at(0)
        return asked.answer(item.logical_within(_offset(await asked.checked(item))))

    async def _earliest_store_time(self, asked: _Asked) -> Command:
        answer = await asked.checked(asked.queue.item_at(0))
        return asked.command.answer(0, None, dict(answer.fields or {}))


class _Asked(NamedTuple):
    """A small request for a logical queue."""

    command: Command
    channel: Channel
    queue: LogicalQueue
    handler: Handler  # of physical queues
    queues: LogicalQueues

    async def physical(self, item: MappingItem, **changed: str) -> Command:
        """Return the answer of this broker for the physical queue of one of its items."""
        fields = (self.command.fields or {}) | {"queueId": str(item.queue_id), "lo": "false"} | changed
        command = _with_fields(self.command, fields)
        answer = self.handler(command, self.channel)
        found = await answer if isinstance(answer, Coroutine) else answer
        assert found is not None, "a small request is answered by its handler"
        return found

    async def of(self, item: MappingItem, **changed: str) -> Command:
        """Return the answer for the physical queue of an item, of this broker or of the other one. Raises
        Refusal if the other one gives none."""
        if item.broker == self.queue.mapping.broker:
            return await self.physical(item, **changed)
        return await self._of_other(item, self.command.code, **changed)

    async def _of_other(self, item: MappingItem, code: int, **changed: str) -> Command:
        fields = (self.command.fields or {}) | {"queueId": str(item.queue_id)} | changed
        try:
            answer = await self.queues.ask_other(item, self.queue.mapping.topic, code, fields)
        except (OSError, TimeoutError, PeerError) as error:
            raise other_failed(item, str(error) or type(error).__name__) from None
        return self.command.answer(answer.code, answer.remark, dict(answer.fields or {}), answer.body)

    async def checked(self, item: MappingItem) -> Command:
        """Do as `of`. Raises Refusal if the answer is an error."""
        return self._checked(item, await self.of(item))

    async def end_of(self, item: MappingItem) -> int:
        """Return the physical offset after the last message of an item."""
        if item.broker == self.queue.mapping.broker:
            end = self.queues.end_of(self.queue.mapping.topic, item.queue_id)
        else:
            end = _offset(self._checked(item, await self._of_other(item, R.GET_MAX_OFFSET)))
        return min(end, item.end_offset) if item.has_end else end

    def _checked(self, item: MappingItem, answer: Command) -> Command:
        if answer.code != ResponseCode.SUCCESS:
            raise self.failed(item, answer)
        return answer

    def failed(self, item: MappingItem, answer: Command) -> Refusal:
        return other_failed(item, f"it answered {answer.code} {answer.remark or '':.80}")

    def answer(self, offset: int) -> Command:
        return self.command.answer(0, None, {"offset": str(offset)})


def _offset(answer: Command) -> int:
    return read_long("offset", (answer.fields or {}).get("offset"))


def _with_fields(command: Command, fields: dict[str, str]) -> Command:
    return Command(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        fields,
        command.body,
        command.serialization,
    )
