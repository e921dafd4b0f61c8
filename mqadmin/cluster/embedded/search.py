"""Searches for messages in the store of this process.

Code that reads files runs in the threads of the host (READ_THREADS). A search that may read much has a
budget, and its result states where it stopped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from broker_store.engine.store import MessageStore
from broker_store.errors import FormatError, NotFoundError
from broker_store.formats import message_id, record, traces
from broker_store.formats.compression import inflate
from broker_store.formats.index_file import FOR_EVER_MS
from broker_store.formats.record import StoredMessage
from broker_store.formats.traces import TraceEvent
from broker_store.messages import DamagedRecord, GetRequest, GetStatus, MessageFilter, damage_doubt
from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.problems import Problem
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.embedded.topics import config_of, queue_ids_of
from mqadmin.cluster.protocol import Search
from mqadmin.facts.messages import SCAN_BUDGET_BYTES, Found, Traces

READ_BYTES = 1 << 20  # of one read of a queue
JUDGED_AT_ONCE = 256  # messages of one read, where a filter may pass few of them
OFFSETS_PER_STEP_BACK = 1_000  # that a filtered search for the newest messages goes back at once
MAX_ANSWER_BYTES = 4 << 20  # of records in one answer; a larger record is given alone
SCAN_SECONDS = 5.0  # the longest time of one search
MAX_TOPICS_OF_AN_ID = 64  # topics that are searched for a message id without a topic
MAX_IDS = 32
FULL = f"the answer is full: its records have {MAX_ANSWER_BYTES >> 20} MiB or more; narrow the time"
SPENT = (
    f"the search stopped after {SCAN_SECONDS:g} s or {SCAN_BUDGET_BYTES >> 20} MiB of reading; narrow "
    f"the time"
)


class EmbeddedSearch(Search):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    async def in_queue(
        self, topic: str, queue_id: int, offset: int, limit: int, passing: MessageFilter | None = None
    ) -> Found:
        parts = self._host.parts
        queue_ids = queue_ids_of(parts, config_of(parts, topic))
        if queue_id not in queue_ids:
            raise NotFoundError(f"topic {topic} has no queue {queue_id}; it has {len(queue_ids)}")
        reads = parts.store.reads
        low, high = reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        begin = max(offset, low)
        budget = None if passing is None else _Budget(SCAN_BUDGET_BYTES)
        messages, next_offset = await self._host.in_thread(
            _read_queue,
            self._host.process.store,
            topic,
            queue_id,
            begin,
            min(limit, MAX_LIMIT),
            FOR_EVER_MS,
            budget,
            passing,
        )
        reasons = []
        if budget is not None and budget.left_out:
            reasons.append(budget.omission)
        if budget is not None and budget.is_spent and next_offset < high:
            reasons.append(f"the search stopped before offset {next_offset:,}; begin there to go on")
        return Found(
            messages,
            not reasons,
            "; ".join(reasons),
            next_offset=next_offset,
            min_offset=low,
            max_offset=high,
        )

    async def by_time(
        self,
        topic: str,
        begin_ms: int | None,
        end_ms: int,
        limit: int,
        budget: int = SCAN_BUDGET_BYTES,
        passing: MessageFilter | None = None,
    ) -> Found:
        parts = self._host.parts
        queue_ids = queue_ids_of(parts, config_of(parts, topic))
        scan = _TimeScan(self._host.process.store, topic, queue_ids, min(limit, MAX_LIMIT), budget, passing)
        if begin_ms is None:
            return await self._host.in_thread(scan.newest, end_ms)
        return await self._host.in_thread(scan.between, begin_ms, end_ms)

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        parts = self._host.parts
        if queue_id not in queue_ids_of(parts, config_of(parts, topic)):
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        return await self._host.in_thread(parts.store.reads.times.offset_by_time, topic, queue_id, time_ms)

    async def time_doubt(self, topic: str, time_ms: int, queue_id: int | None = None) -> str | None:
        parts, times = self._host.parts, self._host.process.store.reads.times
        queue_ids = queue_ids_of(parts, config_of(parts, topic)) if queue_id is None else [queue_id]

        def ask() -> str | None:
            orders = ((number, times.time_order(topic, number, time_ms)) for number in queue_ids)
            return next((f"queue {number}: {order}" for number, order in orders if order is not None), None)

        return await self._host.in_thread(ask)

    async def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        limit: int,
        passing: MessageFilter | None = None,
    ) -> Found:
        config_of(self._host.parts, topic)
        found = await self._by_key(topic, key, begin_ms, end_ms, limit)
        if passing is None:
            return found

        def passed() -> list[StoredMessage]:
            return [stored for stored in found.messages if passing.passes(stored.raw_properties)]

        return replace(found, messages=await self._host.in_thread(passed))

    async def _by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> Found:
        store = self._host.open_store
        asked = min(limit, MAX_LIMIT)
        walk = store.index.walk(topic, key, asked, begin_ms, end_ms)

        def look_up() -> tuple[int, list[StoredMessage], list[DamagedRecord], bool]:
            offsets, _, _ = walk.find()
            messages: list[StoredMessage] = []
            damaged: list[DamagedRecord] = []
            taken = 0
            for offset in sorted(offsets):
                if taken >= MAX_ANSWER_BYTES:
                    return len(offsets), messages, damaged, True
                raw, damage = store.reads.records.record_of_entry(offset, walk.hashed)
                if damage is not None:
                    damaged.append(DamagedRecord(offset, damage))
                stored = _as_far_as_readable(raw)
                if (
                    stored is not None
                    and stored.topic == topic
                    and (key in stored.keys or key == stored.unique_key)
                ):
                    messages.append(stored)
                    taken += len(raw or b"")
            return len(offsets), messages, damaged, False

        entries, messages, damaged, is_full = await self._host.in_thread(look_up)
        positions = store.status.positions()
        dispatched, confirmed = positions.dispatched or 0, positions.confirmed or 0
        reasons: list[str] = []
        if (doubt := damage_doubt(damaged)) is not None:
            reasons.append(doubt)
        if is_full:
            reasons.append(FULL)
        elif dispatched < confirmed:
            reasons.append(
                f"the index is being filled, up to position {dispatched:,} of {confirmed:,} so far"
            )
        elif entries >= asked:
            reasons.append(f"the index has at least as many entries as were requested ({asked})")
        reasons += filter(None, (store.index_doubt, store.reads.times.key_times_doubt(begin_ms, end_ms)))
        return Found(messages, not reasons, "; ".join(reasons), damaged=tuple(damaged))

    async def by_id(self, id: str, topic: str | None = None) -> Found:
        store, id = self._host.open_store, id.strip()
        if not id:
            return Found()
        try:
            _, log_offset = message_id.decode_offset_id(id)
        except FormatError:
            log_offset = -1
        positions = store.status.positions()
        reasons: list[str] = []
        damaged: list[DamagedRecord] = []
        if (positions.min or 0) <= log_offset < (positions.confirmed or 0):
            records = store.reads.records
            raw, damage = await self._host.in_thread(
                lambda: (records.record_at(log_offset, False), records.damage_at(log_offset))
            )
            stored = _as_far_as_readable(raw)
            if stored is not None and stored.offset_id == id.upper():
                return Found(
                    [stored], damaged=(DamagedRecord(log_offset, damage),) if damage is not None else ()
                )
            if raw is None:
                reasons.append(f"no record that can be read begins at {log_offset:,} of the log")
            elif stored is None:
                damaged.append(DamagedRecord(log_offset, damage or "it cannot be read"))
        topics = [topic] if topic else sorted({name for name, _ in store.queues()})
        for name in topics[:MAX_TOPICS_OF_AN_ID]:
            found = await self._by_key(name, id, 0, FOR_EVER_MS, MAX_IDS)
            if matching := [stored for stored in found.messages if stored.unique_key == id]:
                return replace(found, messages=matching)
            damaged += found.damaged
            await asyncio.sleep(0)
        if (doubt := damage_doubt(damaged)) is not None:
            reasons.append(doubt)
        if len(topics) > MAX_TOPICS_OF_AN_ID:
            reasons.append(f"{MAX_TOPICS_OF_AN_ID} of {len(topics)} topics were searched; name the topic")
        reasons += filter(None, (store.index_doubt,))
        return Found([], not reasons, "; ".join(reasons), damaged=tuple(damaged))

    async def message_at(self, log_offset: int) -> tuple[StoredMessage, bytes]:
        raw = await self._host.in_thread(self._host.parts.store.reads.records.record_at, log_offset, False)
        if raw is None:
            raise NotFoundError(f"no record that can be read begins at {log_offset:,} of the log")
        try:
            return record.decode(raw, check_crc=False), raw
        except FormatError as error:
            raise Problem(
                "damaged", f"the record at {log_offset:,} of the log cannot be read: {error}"
            ) from None

    async def damage_at(self, log_offset: int) -> str | None:
        return await self._host.in_thread(self._host.parts.store.reads.records.damage_at, log_offset)

    async def traces_of(self, message_id: str) -> Traces:
        parts = self._host.parts
        topic = parts.settings.msg_trace_topic_name
        if parts.topics.get(topic) is None:
            return Traces(topic)
        found = await self._by_key(topic, message_id, 0, FOR_EVER_MS, MAX_LIMIT)

        def read() -> list[TraceEvent]:
            bodies = (inflate(stored.body, stored.sys_flag) or b"" for stored in found.messages)
            return traces.in_order(
                [event for body in bodies for event in traces.decode(body) if event.message_id == message_id]
            )

        return Traces(topic, await self._host.in_thread(read), found.complete, found.reason)


class _Budget:
    """The bytes that a search may still read, and the time that it may still take."""

    def __init__(self, bytes_left: int):
        self.bytes_left = bytes_left
        self.left_out = 0  # messages that are not as they were stored
        self._until = time.monotonic() + SCAN_SECONDS

    @property
    def omission(self) -> str:
        return f"{self.left_out} damaged messages are left out; see the flags of the store"

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() > self._until


def _read_queue(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    limit: int,
    end_ms: int = FOR_EVER_MS,
    budget: _Budget | None = None,
    passing: MessageFilter | None = None,
    end: int | None = None,
) -> tuple[list[StoredMessage], int]:
    """Return up to `limit` messages stored until `end_ms`, and the offset after them. For a thread.

    With a budget damaged messages are left out and counted. Without one a damaged message ends the read, and
    raises Problem if it is the first. With `passing` it reads on for messages that pass, up to offset `end`.
    """
    messages: list[StoredMessage] = []
    taken = 0
    while len(messages) < limit and (taken < MAX_ANSWER_BYTES if budget is None else not budget.is_spent):
        result = store.reads.get_blocking(
            GetRequest(
                topic,
                queue_id,
                offset,
                limit - len(messages) if passing is None else JUDGED_AT_ONCE,
                READ_BYTES,
            )
        )
        if result.status is GetStatus.MESSAGE_DAMAGED:
            if budget is None:
                if messages:
                    break  # a read that begins here reports it
                raise Problem(
                    "damaged",
                    f"the message at offset {offset} of {topic}/{queue_id} is not as it was stored",
                )
            budget.left_out += 1
            offset += 1
            continue
        if result.status is not GetStatus.FOUND:
            if result.next_offset <= offset or result.next_offset >= result.max_offset:
                break
            # A hole at the queue's beginning, or files that retention deleted meanwhile
            offset = result.next_offset
            continue
        taken += len(result.body)
        if budget is not None:
            budget.bytes_left -= len(result.body)
        for stored in record.decode_all(result.body, check_crc=False):
            is_beyond = end is not None and stored.queue_offset >= end
            if stored.store_timestamp > end_ms or is_beyond or len(messages) >= limit:
                return messages, offset
            if passing is None or passing.passes(stored.raw_properties):
                messages.append(stored)
            offset = stored.queue_offset + 1
        offset = max(offset, result.next_offset)
    return messages, offset


class _TimeScan:
    """One search for the messages of a topic by their store times. For a thread."""

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        queue_ids: list[int],
        limit: int,
        budget: int,
        passing: MessageFilter | None = None,
    ):
        self._store, self._times, self._passing = store, store.reads.times, passing
        self._topic, self._queue_ids, self._limit = topic, queue_ids, limit
        self._budget = _Budget(budget)

    def newest(self, end_ms: int) -> Found:
        """Return the last messages stored until `end_ms`, newest first."""
        found: list[StoredMessage] = []
        older = False
        end_ms = min(end_ms, FOR_EVER_MS - 1)
        for queue_id in self._queue_ids:
            for low, end in self._times.offset_ranges(self._topic, queue_id, 0, end_ms):
                begin = max(low, end - self._limit)
                if self._passing is None:
                    found += self._read(queue_id, begin, end - begin, end_ms)
                else:
                    newest, begin = self._newest_passing(queue_id, low, end, end_ms)
                    found += newest
                older = older or begin > low
        found.sort(key=lambda stored: (stored.store_timestamp, stored.log_offset), reverse=True)
        shown = found[: self._limit]
        if (cut := self._cut(shown)) is not None:
            return cut
        if older or len(found) > self._limit:
            return Found(
                shown,
                False,
                f"the newest {len(shown)} are shown; raise the limit, or give a time to begin at",
            )
        return self._all_of(found, end_ms + 1)

    def _newest_passing(
        self, queue_id: int, low: int, end: int, end_ms: int
    ) -> tuple[list[StoredMessage], int]:
        """Return the newest messages of a queue that pass, and the offset back to which it was searched."""
        found: list[StoredMessage] = []
        begin = end
        while begin > low and len(found) < self._limit and not self._budget.is_spent:
            end, begin = begin, max(low, begin - OFFSETS_PER_STEP_BACK)
            found = self._read(queue_id, begin, OFFSETS_PER_STEP_BACK, end_ms, end) + found
        return found, begin

    def between(self, begin_ms: int, end_ms: int) -> Found:
        """Return the first messages stored from `begin_ms` to `end_ms`, oldest first."""
        found: list[StoredMessage] = []
        for queue_id in self._queue_ids:
            for begin, end in self._times.offset_ranges(
                self._topic, queue_id, begin_ms, min(end_ms, FOR_EVER_MS - 1)
            ):
                # One more than the limit of each queue, which shows whether something is left out
                messages = self._read(
                    queue_id, begin, min(self._limit + 1, end - begin), end_ms, end if self._passing else None
                )
                found += [stored for stored in messages if stored.store_timestamp >= begin_ms]
        found.sort(key=lambda stored: (stored.store_timestamp, stored.log_offset))
        shown = found[: self._limit]
        if (cut := self._cut(shown)) is not None:
            return cut
        if len(found) > self._limit:
            return Found(
                shown, False, f"the first {self._limit} are shown; raise the limit, or narrow the time"
            )
        return self._all_of(found, begin_ms, min(end_ms, FOR_EVER_MS - 1) + 1)

    def _read(
        self, queue_id: int, begin: int, limit: int, end_ms: int, end: int | None = None
    ) -> list[StoredMessage]:
        messages, _ = _read_queue(
            self._store, self._topic, queue_id, begin, limit, end_ms, self._budget, self._passing, end
        )
        return messages

    def _cut(self, shown: list[StoredMessage]) -> Found | None:
        """Return the answer if it is full, the budget is spent or a message is damaged; else None."""
        taken = 0
        for at, stored in enumerate(shown):
            if taken >= MAX_ANSWER_BYTES:
                return Found(shown[:at], False, FULL)
            taken += stored.size
        if self._budget.is_spent:
            return Found(shown, False, SPENT)
        if self._budget.left_out:
            return Found(shown, False, self._budget.omission)
        return None

    def _all_of(self, found: list[StoredMessage], *times_ms: int) -> Found:
        """Return all that was found, with the reason why it may not be complete."""
        orders = [
            order
            for queue_id in self._queue_ids
            if (order := self._times.time_order(self._topic, queue_id, *times_ms)) is not None
        ]
        unknown = next((order for order in orders if order.unknown_below), None)
        if unknown is not None:
            return Found(found, False, str(unknown))
        return Found(found, True, str(orders[0]) if orders else "")


def _as_far_as_readable(raw: bytes | None) -> StoredMessage | None:
    """Return the message of a record that may be damaged; None where its parts cannot be separated."""
    try:
        return None if raw is None else record.decode(raw, check_crc=False)
    except FormatError:
        return None
