"""Queries of stored messages: 12, 29 to 33 (docs/spec/remoting.md section 3, docs/spec/store-behaviour.md
sections 6.2 and 6.3)."""

from __future__ import annotations

import asyncio

from broker_store.access.resources import Action, on_topic
from broker_store.formats import record
from broker_store.formats.names import check_topic
from broker_store.messages import KeyQueryResult, damage_doubt
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel, when_read
from broker_store.server.handler import Answer, Handlers, require
from broker_store.server.parts import BrokerParts

# A unique key has one message, or several if its producer repeated a send.
UNIQUE_KEY_MESSAGES = 32
MAX_MESSAGES = 64
# An answer is one frame of at most 16 MiB.
MAX_ANSWER_BYTES = 8 << 20


class Query:
    """The handlers of queries."""

    def __init__(self, parts: BrokerParts):
        self._parts, self._store = parts, parts.store

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_log_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.offset_by_time,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def by_key(self, command: Command, channel: Channel) -> Answer:
        header = read_header(RequestCode.QUERY_MESSAGE, command.fields)
        check_topic(header.topic)
        count = UNIQUE_KEY_MESSAGES if header.unique_key_query else max(1, min(header.max_num, MAX_MESSAGES))
        found = self._store.reads.query_keys(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp, wait=False
        )
        key = header.key.encode()
        if isinstance(found, KeyQueryResult) and any(key not in one for one in found.records):
            # A record without this key has another key with the same hash, which is very rare, or it has
            # changed.
            found = self._store.reads.query_compared(
                header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
            )
        times_doubt = self._store.reads.times.key_times_doubt(header.begin_timestamp, header.end_timestamp)
        return when_read(channel, found, lambda found: self._by_key(command, found, times_doubt))

    def _by_key(self, command: Command, found: KeyQueryResult, times_doubt: str | None) -> Command:
        # For each of these reasons messages may be missing.
        doubts = (self._store.index_doubt, times_doubt, damage_doubt(found.damaged))
        doubt = "; ".join(filter(None, doubts)) or None
        records, size = [], 0
        for one in found.records:
            if size + len(one) > MAX_ANSWER_BYTES:
                break
            records.append(one)
            size += len(one)
        if not records:
            fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
            remark = (
                "can not find message, maybe time range not correct"
                if doubt is None
                else f"can not find message: {doubt}"
            )
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        fields = {
            "indexLastUpdateTimestamp": str(found.index_last_timestamp),
            "indexLastUpdatePhyoffset": str(found.index_last_offset),
        }
        return command.answer(0, doubt, fields, b"".join(records))

    def by_log_offset(self, command: Command, channel: Channel) -> Answer:
        header = read_header(RequestCode.VIEW_MESSAGE_BY_ID, command.fields)

        def answer(raw: bytes | str | None) -> Command:
            if isinstance(raw, str):
                return command.answer(
                    ResponseCode.SYSTEM_ERROR, f"the message at {header.offset} of the log is damaged: {raw}"
                )
            if raw is None and self._parts.replication.feeder is not None:
                # Slaves have it, and consumers may not yet: a slave compares the end of its log
                raw = self._store.reads.records.record_at(header.offset, below=self._store.log.committed)
            if raw is None:
                where = (
                    ": no record that can be read begins there"
                    if self._store.log.minimum <= header.offset < self._store.confirmed
                    else ""
                )
                return command.answer(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}{where}"
                )
            if self._parts.access is not None:
                stated = record.decode(raw, check_crc=False).topic
                require(self._parts, command, channel, on_topic(stated, Action.GET))
            return command.answer(0, None, None, raw)

        return when_read(channel, self._store.reads.records.record_by_id(header.offset), answer)

    async def offset_by_time(self, command: Command, channel: Channel) -> Command:
        """Search by time in a thread: it is a binary search over the log, of which most is cold."""
        header = read_header(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, command.fields)
        upper = (header.boundary_type or "").lower() == "upper"
        search = self._store.reads.times.offset_by_time
        offset = await asyncio.to_thread(search, header.topic, header.queue_id, header.timestamp, upper)
        order = await asyncio.to_thread(
            self._store.reads.times.time_order, header.topic, header.queue_id, header.timestamp + upper
        )
        return command.answer(0, None if order is None else str(order), {"offset": str(offset)})

    def max_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.GET_MAX_OFFSET, command.fields)
        return command.answer(
            0, None, {"offset": str(self._store.reads.max_offset(header.topic, header.queue_id))}
        )

    def min_offset(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.GET_MIN_OFFSET, command.fields)
        return command.answer(
            0, None, {"offset": str(self._store.reads.min_offset(header.topic, header.queue_id))}
        )

    def earliest_store_time(self, command: Command, channel: Channel) -> Command:
        header = read_header(RequestCode.GET_EARLIEST_MSG_STORETIME, command.fields)
        return command.answer(
            0,
            None,
            {"timestamp": str(self._store.reads.times.earliest_store_time(header.topic, header.queue_id))},
        )
