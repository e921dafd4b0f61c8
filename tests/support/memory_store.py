"""A MessageStore without files: the engine's contract over Python lists, for tests of what stands on it.

Slow and obvious. `sync()` plays the flusher: with `sync_flush` a put is confirmed, shown and acknowledged
only then. `cold` makes every read come back later, as reads from disk do; `refuse` gives a status for every
put.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker_store.engine.log.appender import NewFiles
from broker_store.engine.log.write_path import WritePath
from broker_store.engine.status.store_state import (
    DiskSpace,
    Lag,
    LogPositions,
    LostAndFound,
    Snapshot,
    Totals,
)
from broker_store.engine.timer.timer_files import TimerFiles
from broker_store.formats import properties, record
from broker_store.formats.java_hash import java_hash
from broker_store.formats.topics import SCHEDULE_TOPIC
from broker_store.messages import (
    GetRequest,
    GetResult,
    GetStatus,
    KeyQueryResult,
    Message,
    MovedOn,
    PutResult,
    PutStatus,
)
from tests.support.simulated_disk import SimulatedDisk

ROOT = Path("/data/store")
LEVELS_MS = (1_000, 5_000, 10_000, 30_000)
INNER_HEAD = 4 * 5  # of a message in a batch: size, magic, CRC, flag, body length


class MemoryStore:
    """What `engine.store.MessageStore` promises, in memory."""

    def __init__(self, clock: Callable[[], int], *, sync_flush: bool = False):
        # It has no parts: it does all by itself.
        self.reads = self.appender = self.confirmation = self.status = self.cleaning = self.log = self
        self.records = self.times = self  # of `reads`
        self.tombstones = self
        self.clock = clock
        self.sync_flush = sync_flush
        self.cold = False
        self.refuse: PutStatus | None = None
        self.rejects_sends: str | None = None
        self.flags: dict[str, str] = {}
        self.busy_took_ms = 0
        self.blocked_by: tuple[str, int | None, int | None] | None = None
        self.index_doubt: str | None = None
        self.confirmed = 0
        self.wrote = 0
        self.minimum = 0
        self.file_size = 1 << 30
        self.config: dict[str, str] = {}
        self.notes: list[tuple[str, str]] = []  # of note_of_config
        self.arrival_listener: Callable[[list[tuple[str, int]]], None] = lambda queues: None
        self.put_calls: list[int] = []
        self.cleanings = 0  # how often expired files were to go at once
        self._records: dict[int, bytes] = {}
        self._queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self._undispatched: list[tuple[str, int, tuple[int, int, int]]] = []
        self._watched: Counter[tuple[str, int]] = Counter()
        self._confirmations: list[tuple[int, Callable[[PutStatus], None]]] = []
        self._next: dict[tuple[str, int], int] = {}
        self._deleted: dict[str, int] = {}
        self._cold_reads: list[Callable[[], None]] = []
        self.write_path = WritePath(clock)
        self.new_files = NewFiles()  # nothing is put off: there are no files
        self.write_path.due = 1 << 62  # nothing takes time here, so nothing is measured
        self.timer_disk = SimulatedDisk(clock)
        self.timer_disk.make_directory(ROOT)
        self.begin()

    def begin(self) -> None:
        """As a store that starts: there are no watchers, and the timer files are as the disk has them."""
        self._watched.clear()
        self.timer_files = TimerFiles(self.timer_disk, ROOT, 65536, lambda: self.confirmed)
        self.timer_files.open(self.wrote, self.record_at)

    # Writing

    def put(self, message: Message) -> PutResult:
        return self.put_many([message])[0]

    def put_many(self, messages: list[Message]) -> list[PutResult]:
        self.put_calls.append(len(messages))
        results = [self._append(message) for message in messages]
        self._after_append()
        return results

    def put_batch(self, message: Message) -> PutResult:
        results, at = [], 0
        while at < len(message.body):
            size = int.from_bytes(message.body[at : at + 4], "big")
            flag = int.from_bytes(message.body[at + 12 : at + 16], "big")
            body_end = at + INNER_HEAD + int.from_bytes(message.body[at + 16 : at + 20], "big")
            body, own = message.body[at + INNER_HEAD : body_end], message.body[body_end + 2 : at + size]
            inner = Message(
                message.topic, message.queue_id, body, properties.append(own, message.properties), flag, message.sys_flag,
                message.born_timestamp, message.born_host, message.store_host,
            )  # fmt: skip
            results.append(self._append(inner))
            at += size
        self._after_append()
        first, last = results[0], results[-1]
        first.count, first.log_end, first.log_offsets = (
            len(results),
            last.log_end,
            tuple(r.log_offset for r in results),
        )
        return first

    def put_waited(self, records, count, topic, forbidden, written_ms=None) -> MovedOn:
        waited = record.decode_all(records)
        assert len(waited) == count
        messages = [
            real_message(
                one, topic, forbidden, None if written_ms is None else (written_ms[number], self.clock())
            )
            for number, one in enumerate(waited)
        ]
        good = [message for message in messages if message is not None]
        results = iter(self.put_many(good) if good else ())
        found = [
            next(results) if message is not None else PutResult(PutStatus.MESSAGE_ILLEGAL)
            for message in messages
        ]
        stored = [
            (message.topic, 1, len(message.body))
            for message, result in zip(messages, found, strict=True)
            if result.ok
        ]
        return MovedOn([result.status for result in found], max([result.log_end for result in found]), stored)

    def _append(self, message: Message) -> PutResult:
        if self.refuse is not None:
            return PutResult(self.refuse)
        if len(message.properties) > record.MAX_PROPERTIES:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
        queue, log_offset, now_ms = (message.topic, message.queue_id), self.wrote, self.clock()
        queue_offset = self._next.get(queue, 0)
        self._next[queue] = queue_offset + 1
        raw = record.encode(message, queue_offset, log_offset, now_ms)
        self._records[log_offset] = raw
        self.wrote += len(raw)
        self._undispatched.append((*queue, (log_offset, len(raw), _tags_code(message, now_ms))))
        return PutResult(PutStatus.PUT_OK, log_offset, queue_offset, now_ms, self.wrote, 1, (log_offset,))

    def _after_append(self) -> None:
        if not self.sync_flush:
            self.sync()

    def sync(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        """The log is synced: dispatch, then confirm."""
        if status is PutStatus.PUT_OK:
            self.confirmed = self.wrote
            moved: dict[tuple[str, int], None] = {}
            for topic, queue_id, unit in self._undispatched:
                self._queues.setdefault((topic, queue_id), []).append(unit)
                moved[topic, queue_id] = None
            self._undispatched.clear()
        waiting, self._confirmations = self._confirmations, []
        for _, callback in waiting:
            callback(status)
        if status is PutStatus.PUT_OK and (arrived := [queue for queue in moved if queue in self._watched]):
            self.arrival_listener(arrived)

    answers_early = False  # it has no pool of buffers

    @property
    def answerable(self) -> int:
        return self.confirmed

    @property
    def committed(self) -> int:
        return self.wrote

    def when_confirmed(self, log_end: int, callback: Callable[[PutStatus], None]) -> None:
        if log_end <= self.confirmed:
            callback(PutStatus.PUT_OK)
        else:
            self._confirmations.append((log_end, callback))

    # Reading

    def get(self, request: GetRequest, done: Callable[[GetResult], None] | None = None) -> GetResult | None:
        if not self.cold:
            return self._get(request)
        self._cold_reads.append(lambda: done(self._read_cold(request)))
        return None

    @property
    def cold_in_flight(self) -> int:
        return len(self._cold_reads)

    def finish_cold_reads(self) -> int:
        reads, self._cold_reads = self._cold_reads, []
        for read in reads:
            read()
        return len(reads)

    def _read_cold(self, request: GetRequest) -> GetResult:
        result = self._get(request)
        return replace(result, cold=result.count > 0)

    def _get(self, request: GetRequest) -> GetResult:
        units = self._queues.get((request.topic, request.queue_id), [])
        offset, end = request.offset, len(units)
        if not end:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if offset < 0:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, 0, 0, end)
        if offset >= end:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == end else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(status, end, 0, end)
        found, size = [], 0
        for log_offset, length, tags_code in units[offset:]:
            if found and (len(found) >= min(request.max_count, 32) or size + length > request.max_bytes):
                break
            offset += 1
            raw = self._records[log_offset]
            judge = request.message_filter
            if judge is not None and not judge.passes(record.decode(raw).raw_properties):
                continue
            if request.tag_codes is None or tags_code in request.tag_codes:
                found.append(raw)
                size += length
        if not found:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, 0, end)
        return GetResult(GetStatus.FOUND, offset, 0, end, b"".join(found), len(found))

    def get_records(self, log_offsets, done):
        if not self.cold:
            return [self._records.get(log_offset) for log_offset in log_offsets]
        self._cold_reads.append(lambda: done([self._records.get(log_offset) for log_offset in log_offsets]))
        return None

    def watch(self, topic: str, queue_id: int) -> None:
        self._watched[topic, queue_id] += 1

    def unwatch(self, topic: str, queue_id: int) -> None:
        self._watched[topic, queue_id] -= 1
        assert self._watched[topic, queue_id] >= 0
        if not self._watched[topic, queue_id]:
            del self._watched[topic, queue_id]

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._queues.get((topic, queue_id), ()))

    def _times(self, topic: str, queue_id: int) -> list[int]:
        units = self._queues.get((topic, queue_id), ())
        return [record.decode(self._records[unit[0]]).store_timestamp for unit in units]

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        times = self._times(topic, queue_id)
        return (
            max(0, bisect.bisect_right(times, time_ms) - 1) if upper else bisect.bisect_left(times, time_ms)
        )

    def time_order(self, topic: str, queue_id: int, *times_ms: int) -> None:
        return None

    def key_times_doubt(self, begin_ms: int, end_ms: int) -> None:
        return None

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        return next(iter(self._times(topic, queue_id)), -1)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        times = self._times(topic, queue_id)
        return times[offset] if 0 <= offset < len(times) else -1

    def record_at(self, log_offset: int, check_crc: bool = True) -> bytes | None:
        return self._records.get(log_offset)

    record_now = record_by_id = record_at

    def query_keys(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, wait: bool = True
    ) -> KeyQueryResult:
        offsets, records, last_ms = [], [], 0
        for log_offset, raw in self._records.items():
            stored = record.decode(raw)
            if (
                stored.topic == topic
                and key in (*stored.keys, stored.unique_key)
                and begin_ms <= stored.store_timestamp <= end_ms
            ):
                offsets.append(log_offset)
                records.append(raw)
                last_ms = stored.store_timestamp
        return KeyQueryResult(
            offsets[-max_count:], records[-max_count:], last_ms, offsets[-1] if offsets else 0
        )

    def queues(self) -> list[tuple[str, int]]:
        return list(self._queues)

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def before(self, topic: str) -> int:
        return self._deleted.get(topic, 0)

    def delete_topic(self, topic: str) -> None:
        if self.queue_ids(topic) or any(name == topic for name, _, _ in self._undispatched):
            self._deleted[topic] = self.wrote
        self._undispatched = [one for one in self._undispatched if one[0] != topic]
        for table in (self._queues, self._next):
            for queue in [queue for queue in table if queue[0] == topic]:
                del table[queue]

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return self._queues.get((topic, queue_id), [])[offset : offset + count]

    # The rest

    @property
    def flushed(self) -> int:
        return self.confirmed

    def positions(self) -> LogPositions:
        return LogPositions(
            min=0,
            wrote=self.wrote,
            confirmed=self.confirmed,
            flushed=self.confirmed,
            dispatched=self.confirmed,
        )

    def clean_expired(self) -> None:
        self.cleanings += 1

    def snapshot(self) -> Snapshot:
        return Snapshot(
            at_ms=self.clock(),
            state="running",
            positions=self.positions(),
            lag=Lag(dispatch_bytes=self.wrote - self.confirmed, unflushed_bytes=0),
            flags=[],
            totals=Totals(puts=len(self._records), refused={}),
            disk=DiskSpace(total_bytes=1 << 30, free_bytes=1 << 29, used_ratio=0.5),
            lost_and_found=LostAndFound(files=0, bytes=0),
        )

    def write_config(self, name: str, data: bytes) -> None:
        self.config[name] = data.decode()

    def load_config(self, name: str, take, **how: object) -> None:
        if (text := self.config.get(name)) is not None:
            take(text)

    def note_of_config(self, name: str, what: str) -> None:
        self.notes.append((name, what))

    def set_flag(self, flag: str, cause: str) -> None:
        self.flags.setdefault(flag, cause)

    def clear_flag(self, flag: str) -> None:
        self.flags.pop(flag, None)

    def has_config(self, name: str) -> bool:
        return name in self.config

    def read_config(self, name: str) -> str | None:
        return self.config.get(name)

    def messages(self, topic: str, queue_id: int = 0) -> list[record.StoredMessage]:
        """What a queue holds, decoded; for tests."""
        return [record.decode(self._records[unit[0]]) for unit in self._queues.get((topic, queue_id), ())]


def real_message(waited: record.StoredMessage, topic: str, forbidden, times=None) -> Message | None:
    """A message that waited as it goes to its real place, with the times it was put on the wheel and taken
    off; None for one that may not."""
    real, queue_id = (
        waited.properties.get(properties.REAL_TOPIC),
        waited.properties.get(properties.REAL_QUEUE_ID, ""),
    )
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10 and int(queue_id) < 65536
    if waited.topic != topic or not real or real in forbidden or not is_number:
        return None
    told, prepared = waited.raw_properties, waited.prepared_transaction_offset
    if times is not None:
        longer = properties.set_values(
            told,
            dict(
                zip((properties.TIMER_ENQUEUE_MS, properties.TIMER_DEQUEUE_MS), map(str, times), strict=True)
            ),
        )
        told, prepared = longer if len(longer) <= properties.MAX_BYTES else told, 0
    return Message(
        real, int(queue_id), waited.body, told, waited.flag, waited.sys_flag & ~0x30, waited.born_timestamp, waited.born_host, waited.store_host,
        waited.reconsume_times, prepared,
    )  # fmt: skip


def _tags_code(message: Message, now_ms: int) -> int:
    level = properties.get(message.properties, properties.DELAY)
    if message.topic == SCHEDULE_TOPIC and level is not None:
        with contextlib.suppress(IndexError):
            return now_ms + LEVELS_MS[int(level) - 1]
        return now_ms + LEVELS_MS[-1]
    tag = properties.get(message.properties, properties.TAGS)
    return java_hash(tag) if tag else 0
