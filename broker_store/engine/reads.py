"""Reading: queues by offset, records by their place or key, times.

    get        ──► read_queue (kernels/read.py) ──────► one piece of bytes, when all of it is in memory
    query_keys ──► find_records (kernels/lookup.py) ──► the records
                     │ stops: a file to enter or map, pages to ask about (engine/residency.py), and it goes on
                     └ cold: a thread reads by position (engine/cold.py)
                     └ damaged: a record that an earlier run wrote is not as it was stored, or contradicts
                       its unit or its entry of the index. It is left out, the answer of a lookup names it,
                       and `on_damage` is called

What this run wrote last is in memory and touched at once. Of what is older each page is asked about first,
because a fault on the loop would stop every connection. Loop thread, unless a docstring says otherwise.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise

from broker_store.config import StoreSettings
from broker_store.engine.cold import ColdReads, LogReaders, agrees, is_sound
from broker_store.engine.disk import Disk
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.walk import IndexWalk
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.store_times import StoreTimes, TimeOrder
from broker_store.engine.mapped_file import MappedFile
from broker_store.engine.queue.consume_queue import ConsumeQueue, ConsumeQueues
from broker_store.engine.rows import Words, WriterContext
from broker_store.errors import FormatError, MapLimitError, StoreError
from broker_store.formats import index_file, queue_unit, record
from broker_store.formats.index_file import FOR_EVER_MS, asked_times
from broker_store.formats.properties import KEYS
from broker_store.kernels import context as c
from broker_store.kernels.lookup import find_records, read_record
from broker_store.kernels.read import limits, read_queue
from broker_store.messages import DamagedRecord, GetRequest, GetResult, GetStatus, KeyQueryResult

_ROUND_MS = 1000  # so long counts what was heard about pages
_MOST_RECORDS = 4096  # of an answer
_MOST_UNITS = 800  # looked at for an answer that wants fewer
_MOST_RECORDS_FIT = 2048  # bytes: read at once, before the record's size is known
_MOST_STOPS = 64  # of one request; each may ask the system once
_HOT_SHARE = 16  # of the machine's memory
_MOST_FILTERS = 1024
_V6_BORN = 0x10
_FOUND = GetStatus.FOUND
_AT_ANY_TIME = asked_times(0, FOR_EVER_MS)
_EVERY_TAG = Words(1)


class Reads:
    """`begin` comes between recovery and the first read."""

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        context: WriterContext,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        times: StoreTimes,
        wake: Callable[[Callable[[], None]], None],
        on_damage: Callable[[str, int], None],
    ):
        self._log, self._queues, self._index, self._times = log, queues, index, times
        self._context, self._view = context, context.view
        self._readers = LogReaders(disk, log)
        self._cold = ColdReads(self._readers, wake, on_damage)
        self._wake, self._on_damage = wake, on_damage
        self._filters: dict[frozenset[int], Words] = {}
        self.gets = self.get_messages = self.get_bytes = self.cold_gets = self.key_lookups = (
            self.cold_lookups
        ) = 0
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._hot_bytes = memory // _HOT_SHARE
        self._round_ends_ms = 0
        self._runs = Words(2 * _MOST_RECORDS)
        words = Words(c.R_WORDS)
        self._words = memoryview(words.array)
        self._address = words.address
        self._words[c.R_WRITER] = context.address
        self._words[c.R_ROUND] = 1
        self._words[c.R_MAX_UNITS] = _MOST_UNITS
        self._words[c.R_MAX_COUNT] = _MOST_RECORDS
        self._words[c.R_MAX_RECORD] = record.MAX_RECORD
        self._words[c.R_DISTANT] = memory * settings.access_message_in_memory_max_ratio // 100
        self._words[c.R_NEAR_COUNT] = settings.max_transfer_count_on_message_in_memory
        self._words[c.R_NEAR_BYTES] = settings.max_transfer_bytes_on_message_in_memory
        self._words[c.R_DISTANT_COUNT] = settings.max_transfer_count_on_message_in_disk
        self._words[c.R_DISTANT_BYTES] = settings.max_transfer_bytes_on_message_in_disk
        self._words[c.R_RUNS] = self._runs.address
        self._words[c.R_LOOKUP] = index.lookup_address
        self._most_found = settings.max_msgs_num_batch

    def begin(self, log_end: int) -> None:
        """What is written from here on is in memory."""
        self._words[c.R_HOT_FROM] = log_end
        for queue in self._queues:
            queue.row[c.Q_HOT] = queue.maximum

    def tick(self, now_ms: int) -> None:
        """About ten times a second."""
        self._words[c.R_HOT_FROM] = max(self._words[c.R_HOT_FROM], self._log.wrote - self._hot_bytes)
        if not 0 < self._round_ends_ms - now_ms <= _ROUND_MS:
            self._round_ends_ms = now_ms + _ROUND_MS
            self._words[c.R_ROUND] += 1

    def files_held(self) -> frozenset[int]:
        """Bases of the log files that cold reads hold open."""
        return self._readers.held()

    def forget(self, log_base: int) -> None:
        """A log file is gone."""
        self._readers.forget(log_base)

    def close(self) -> None:
        self._cold.close()
        self._readers.close()

    def totals(self) -> dict[str, int | float]:
        names = ("gets", "get_messages", "get_bytes", "cold_gets", "key_lookups", "cold_lookups")
        return {name: getattr(self, name) for name in names} | {
            "cold_bytes": self._cold.read_bytes,
            "cold_ms": self._cold.read_ms,
        }

    # Queues ---------------------------------------------------------------------------------------

    def get(self, request: GetRequest, done: Callable[[GetResult], None] | None = None) -> GetResult | None:
        """Read a queue (docs/spec/store-behaviour.md section 6.1). What is in memory is answered at once.

        What is cold is read in another thread: then this returns None and `done(result)` is called later on
        the loop. Without `done` it is read here and now.
        """
        self.gets += 1
        queue = self._queues.find(request.topic, request.queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        codes = request.tag_codes
        tags = _EVERY_TAG if codes is None else self._filter(codes)
        for _ in range(_MOST_STOPS):
            stopped, following, minimum, maximum, body, count = read_queue(
                self._address,
                queue.row.address,
                request.offset,
                request.max_count,
                request.max_bytes,
                tags.address,
                0 if codes is None else len(tags.array),
            )
            if stopped < c.READ_UNENTERED:
                break
            if not self._can_go_on(stopped, queue, request.offset):
                return self._get_cold(queue, request, done)
        else:
            return self._get_cold(queue, request, done)
        suspect = following if stopped == c.READ_DAMAGED else None
        if count:
            self.get_messages += count
            self.get_bytes += len(body)
            return GetResult(_FOUND, following, minimum, maximum, body, count)
        if stopped == c.READ_OUTSIDE:
            return _outside(queue, request.offset)
        if stopped == c.READ_DONE:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, minimum, maximum)
        if stopped == c.READ_GONE:
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING, following + 1, minimum, maximum)
        return self._get_cold(queue, request, done, suspect)

    def _can_go_on(self, stopped: int, queue: ConsumeQueue, offset: int) -> bool:
        """Do what the kernel stopped for; False when the read would wait for the disk. Raises StoreError."""
        if stopped == c.READ_UNENTERED:
            return self._enter(queue, offset)
        words = self._words
        number = words[c.R_ASK_FILE]
        file = queue.read_file if number == c.ASK_UNITS else self._log.files[number]
        if stopped == c.READ_UNMAPPED:
            return self._map(file)
        return file.residency.ask(words[c.R_ASK_PLACE], words[c.R_ASK_BYTES], words[c.R_ROUND])

    def _enter(self, queue: ConsumeQueue, unit: int) -> bool:
        """As `ConsumeQueue.enter_for_reading`; False for a file that cannot be mapped: it is read by
        position."""
        try:
            return queue.enter_for_reading(unit)
        except StoreError as error:
            self._report_unmapped(error, -1)
            return False

    def _map(self, file: MappedFile) -> bool:
        """Map a log file for the kernels; False for one that cannot be mapped: it is read by position, and
        each record is compared."""
        try:
            self._log.map_for_reading(file)
        except StoreError as error:
            self._report_unmapped(error, file.base)
            return False
        return True

    def _report_unmapped(self, error: StoreError, log_offset: int) -> None:
        """A file that was removed or made shorter is damage; that the system allows no more maps is not."""
        if not isinstance(error, MapLimitError):
            cause = str(error)
            self._wake(lambda: self._on_damage(cause, log_offset))

    def _filter(self, codes: frozenset[int]) -> Words:
        found = self._filters.get(codes)
        if found is None:
            if len(self._filters) >= _MOST_FILTERS:
                self._filters.clear()
            # An empty set passes nothing; no Java hash has more than 32 bits, so this code matches no unit.
            wanted = sorted(codes) or [1 << 40]
            found = Words(len(wanted))
            found.array[:] = wanted
            self._filters[codes] = found
        return found

    def _get_cold(
        self, queue: ConsumeQueue, request: GetRequest, done, suspect: int | None = None
    ) -> GetResult | None:
        """`suspect` is a unit that is looked at whatever the filter says: it contradicts its record."""
        self.cold_gets += 1
        confirmed = self._view[c.CONFIRMED]
        if done is None:
            result = self._cold.read(queue, self._limited(queue, request), confirmed, suspect)
            self._count(result)
            return result

        def finish(result: GetResult) -> None:
            self._count(result)
            done(result)

        if not self._cold.submit(queue, request, self._limited, confirmed, finish, suspect):
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, request.offset, queue.minimum, queue.maximum)
        return None

    def _count(self, result: GetResult) -> None:
        self.get_messages += result.count
        self.get_bytes += len(result.body)

    def _limited(self, queue: ConsumeQueue, request: GetRequest) -> GetRequest:
        """The request within the settings' limits. Any thread; it reads the queue's file."""
        unit = queue.unit(request.offset)
        most, most_bytes = limits(self._address, self._log.wrote if unit is None else unit.log_offset)
        return replace(
            request, max_count=min(request.max_count, most), max_bytes=min(request.max_bytes, most_bytes)
        )

    def get_blocking(self, request: GetRequest) -> GetResult:
        """The same from any other thread: reads by position, never through the maps, and is not counted."""
        queue = self._queues.find(request.topic, request.queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if not queue.minimum <= request.offset < queue.maximum:
            return _outside(queue, request.offset)
        return self._cold.read(queue, request, self._view[c.CONFIRMED])

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.find(topic, queue_id)
        return queue.minimum if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.find(topic, queue_id)
        return queue.maximum if queue is not None else 0

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[queue_unit.QueueUnit]:
        """Units of a queue from `offset`, at most `count` and at most to the end of a queue file. Any
        thread."""
        queue = self._queues.find(topic, queue_id)
        return list(queue_unit.decode_all(queue.read_units(offset, count))) if queue is not None else []

    # The log --------------------------------------------------------------------------------------

    def record_now(self, log_offset: int) -> bytes | None | Future[bytes | None]:
        """`record_at` for the loop: what is in memory is given at once, what is cold comes from another
        thread."""
        found = self._record_in_memory(log_offset)
        return self._cold.run(self.record_at, log_offset) if found is None else found or None

    def _record_in_memory(self, log_offset: int) -> bytes | None:
        """No bytes when no sound record begins there, None when that is not known without the disk."""
        for _ in range(_MOST_STOPS):
            found = read_record(self._address, log_offset)
            if found.__class__ is bytes:
                return found
            if not self._can_look_on(found):
                break
        return None

    def get_records(
        self, log_offsets: Sequence[int], done: Callable[[list[bytes | None] | None], None]
    ) -> list[bytes | None] | None:
        """The records at these places, for each that is not there None.

        None when some are cold: `done` is given them later, on the loop, or None when the disk did not give
        them.
        """
        records = []
        for log_offset in log_offsets:
            found = self._record_in_memory(log_offset)
            if found is None:
                self._cold.run(self._records_at, tuple(log_offsets), done)
                return None
            records.append(found or None)
        return records

    def _records_at(
        self, log_offsets: tuple[int, ...], done: Callable[[list[bytes | None] | None], None]
    ) -> None:
        """In a reader's thread."""
        try:
            records = [self.record_at(log_offset) for log_offset in log_offsets]
        except StoreError as error:
            cause = f"a read failed: {error}"
            self._wake(lambda: self._on_damage(cause, -1))
            records = None
        self._wake(lambda: done(records))

    def record_at(self, log_offset: int, check_crc: bool = True) -> bytes | None:
        """The raw record at a log offset, None when no sound one begins there. Any thread; it may wait for
        the disk.

        Without `check_crc` also one whose body or properties have changed: for who shows damage.
        """
        confirmed = self._view[c.CONFIRMED]
        if not self._log.minimum <= log_offset < confirmed:
            return None
        raw = self._readers.read(log_offset, _MOST_RECORDS_FIT)
        if len(raw) < record.MIN_RECORD:
            return None
        size, magic = record.read_head(raw)
        if magic not in record.TOPIC_LENGTH or not record.MIN_RECORD <= size <= self._view[c.MAX_RECORD]:
            return None
        if log_offset + size > confirmed:
            return None
        raw = raw[:size] if size <= len(raw) else self._readers.read(log_offset, size)
        if len(raw) < size or raw[28:36] != log_offset.to_bytes(8, "big"):
            return None
        if check_crc and not is_sound(raw, log_offset):
            self._wake(
                lambda: self._on_damage(
                    f"the record at {log_offset} of the log is not as it was stored", log_offset
                )
            )
            return None
        return raw

    def record_by_id(self, log_offset: int) -> bytes | str | None | Future[bytes | str | None]:
        """The record at a log offset, how it is damaged in words, or None when none begins there. For the
        loop: what is old comes from a thread."""
        if log_offset >= self._words[c.R_HOT_FROM]:
            return self.record_now(log_offset)
        return self._cold.run(self._compared, log_offset)

    def _compared(self, log_offset: int) -> bytes | str | None:
        """In a reader's thread."""
        raw = self.record_at(log_offset, check_crc=False)
        damage = self._damage_of(raw, log_offset) if raw is not None else None
        if damage is None:
            return raw
        self._report_damage(log_offset, damage)
        return damage

    def _report_damage(self, log_offset: int, damage: str) -> None:
        """Any thread."""
        cause = f"the record at {log_offset} of the log is damaged: {damage}"
        self._wake(lambda: self._on_damage(cause, log_offset))

    def damage_at(self, log_offset: int) -> str | None:
        """How the record at a log offset is damaged, None when it is not, or none begins there. Any thread;
        it may wait for the disk."""
        raw = self.record_at(log_offset, check_crc=False)
        return self._damage_of(raw, log_offset) if raw is not None else None

    def _damage_of(self, raw: bytes, log_offset: int, entry_hash: int | None = None) -> str | None:
        """By the rules of a read of its queue: it must be as it was stored, and state what its unit states.

        With the hash of an entry of the index, it must have a key with that hash. One that has is served
        without a unit when there is no queue of its topic: that was deleted.
        """
        try:
            stored = record.decode(raw, log_offset=log_offset)
        except FormatError as error:
            return str(error)
        if not is_sound(raw, log_offset):
            return "it is not as it was stored"
        topic = self._context.topics.get(stored.topic)
        if entry_hash is not None:
            texts = index_file.texts_of(
                stored.topic, stored.unique_key, stored.properties.get(KEYS), stored.tags
            )
            if entry_hash not in map(index_file.key_hash, texts):
                return "its topic or its keys are not those of the index entry that leads to it"
            if topic is None:
                return None
        if not stored.is_queued or (topic is not None and log_offset < topic.row[c.T_DELETED_BEFORE]):
            return None
        place = f"offset {stored.queue_offset} of {stored.topic}/{stored.queue_id}"
        queue = self._queues.find(stored.topic, stored.queue_id)
        if queue is None or not 0 <= stored.queue_offset < queue.maximum:
            return f"it states {place}, which is not there"
        unit = queue.unit(stored.queue_offset)
        if unit is None or stored.queue_offset < queue.minimum:
            return None  # retention removed the unit, or soon will
        if (unit.log_offset, unit.size) != (log_offset, len(raw)):
            return f"it states {place}, whose unit leads to {unit.size} bytes at {unit.log_offset}"
        return (
            None
            if agrees(raw, unit, stored.queue_offset, queue)
            else f"its tag is not that of its unit, {place}"
        )

    def log_bytes(self, log_offset: int, length: int) -> bytes:
        """Raw bytes of the log, cut at `wrote` and at a file's end. Any thread."""
        length = min(length, self._log.wrote - log_offset)
        return self._readers.read(log_offset, length) if length > 0 else b""

    # Times ----------------------------------------------------------------------------------------

    def _store_ms_of(self, unit: queue_unit.QueueUnit | None) -> int:
        """Store time of a unit's record, -1 when it cannot be read."""
        if unit is None or unit.log_offset < self._log.minimum:
            return -1
        head = self._readers.read(unit.log_offset, 76)
        if len(head) < 76:
            return -1
        (sys_flag,) = struct.unpack_from(">i", head, 36)
        return struct.unpack_from(">q", head, 68 if sys_flag & _V6_BORN else 56)[0]

    def _store_ms_among(self, queue: ConsumeQueue, offset: int) -> int:
        """The middle one of the store times of a message and its two neighbours, as long as times go up that
        of the message.

        So one record that got a wrong time since the start does not lead a search to another part of the
        queue. Where times are known to go back, that of the message itself: there the search is of one part
        after another.
        """
        unit = queue.unit(offset)
        own_ms = self._store_ms_of(unit)
        if not queue.minimum < offset < queue.maximum - 1:
            return own_ms
        before, following = queue.unit(offset - 1), queue.unit(offset + 1)
        if (
            before is not None
            and following is not None
            and self._times.is_step_between(before.log_offset, following.log_offset)
        ):
            return own_ms
        return sorted((self._store_ms_of(before), own_ms, self._store_ms_of(following)))[1]

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time in ms of the message at a queue offset, -1 when there is none. Any thread."""
        queue = self._queues.find(topic, queue_id)
        return self._store_ms_of(queue.unit(offset)) if queue is not None else -1

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        return self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id))

    def last_store_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of the queue's last message, None when it has none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.maximum <= queue.minimum:
            return None
        if queue.row[c.Q_LAST_MS] == 0:
            queue.row[c.Q_LAST_MS] = max(0, self._store_ms_of(queue.unit(queue.maximum - 1)))
        return queue.row[c.Q_LAST_MS] or None

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """LOWER: the first message stored at or after `time_ms`, the maximum when there is none. UPPER: the
        last one stored at or before it, the minimum when there is none (docs/spec/store-behaviour.md section
        6.2). Any thread."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        if upper:
            parts = reversed(self._parts(queue, time_ms + 1))
            return next(
                (
                    found - 1
                    for low, high in parts
                    if (found := self._first_at(queue, low, high, time_ms + 1)) > low
                ),
                queue.minimum,
            )
        parts = self._parts(queue, time_ms)
        return next(
            (found for low, high in parts if (found := self._first_at(queue, low, high, time_ms)) < high),
            parts[-1][1],
        )

    def offset_ranges(self, topic: str, queue_id: int, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """[first, following) offsets of the messages stored from `begin_ms` to `end_ms`: one range, or more
        where times go back. Any thread."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        ranges = []
        for low, high in self._parts(queue, begin_ms, end_ms + 1):
            first = self._first_at(queue, low, high, begin_ms)
            following = self._first_at(queue, first, high, end_ms + 1)
            if first < following:
                ranges.append((first, following))
        return ranges

    def time_order(self, topic: str, queue_id: int, *times_ms: int) -> TimeOrder | None:
        """What makes a search of a queue for these times uncertain, None when nothing does. Any thread."""
        queue = self._queues.find(topic, queue_id)
        ends = self._log_range(queue) if queue is not None else None
        return self._times.order(*ends, *times_ms) if ends is not None else None

    def key_times_doubt(self, begin_ms: int, end_ms: int) -> str | None:
        """Why a lookup by key within these store times may miss messages, None when it cannot. Any thread.

        An entry's time is counted from the begin of its file and is never less, and a chain is left at the
        first entry that is too old.
        """
        times_ms = [time_ms for time_ms in (begin_ms, end_ms + 1) if 0 < time_ms < FOR_EVER_MS]
        order = self._times.order(self._log.minimum, self._log.wrote, *times_ms) if times_ms else None
        if order is None or not order.steps:
            return None
        first = order.steps[0]
        return (
            f"store times go back at {first.log_offset:,} of the log by "
            f"{first.before_ms - first.own_ms:,} ms, across the time that was asked for:"
            " messages may be missing; ask without times"
        )

    def _log_range(self, queue: ConsumeQueue) -> tuple[int, int] | None:
        """Log offsets of its first message and behind its last; None when it has none."""
        first, last = queue.unit(queue.minimum), queue.unit(queue.maximum - 1) if queue.maximum else None
        return (
            None
            if first is None or last is None
            else (max(first.log_offset, self._log.minimum), last.log_offset + last.size)
        )

    def _parts(self, queue: ConsumeQueue, *times_ms: int) -> list[tuple[int, int]]:
        """The queue's offsets, cut where times go back across one of `times_ms`: in each part older messages
        come before younger ones."""
        low, high = queue.minimum, queue.maximum
        ends = self._log_range(queue)
        order = self._times.order(*ends, *times_ms) if ends is not None else None
        cuts = [
            low,
            *(
                self._first_from(queue, step.log_offset)
                for step in (order.steps if order is not None else ())
            ),
            high,
        ]
        return list(dict.fromkeys((begin, end) for begin, end in pairwise(cuts) if begin < end)) or [
            (low, high)
        ]

    def _first_from(self, queue: ConsumeQueue, log_offset: int) -> int:
        """The first message of a queue that lies at or behind `log_offset`."""
        low, high = queue.minimum, queue.maximum
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is not None and unit.log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _first_at(self, queue: ConsumeQueue, low: int, high: int, time_ms: int) -> int:
        """The first message of [low, high) that was stored at or after `time_ms`, `high` without one; times
        go up there."""
        while low < high:
            middle = (low + high) // 2
            if self._store_ms_among(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # Keys -----------------------------------------------------------------------------------------

    def query_keys(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = FOR_EVER_MS,
        wait: bool = True,
    ) -> KeyQueryResult | Future[KeyQueryResult]:
        """Records by key (docs/spec/store-behaviour.md section 6.3), oldest first. Hash collisions stay in.

        What is cold is looked up here and now; without `wait`, as the loop asks, in another thread.
        """
        self.key_lookups += 1
        if max_count > self._most_found:
            max_count = self._most_found
        # The call takes as long as the rest of a lookup that finds nothing.
        begin_ms, end_ms = (
            _AT_ANY_TIME if begin_ms == 0 and end_ms == FOR_EVER_MS else asked_times(begin_ms, end_ms)
        )
        found = find_records(KeyQueryResult, self._address, topic, key, max_count, begin_ms, end_ms)
        if found.__class__ is KeyQueryResult:
            return found
        return self._query_again(found, wait, topic, key, max_count, begin_ms, end_ms)

    def _query_again(self, stopped: int, wait: bool, *question) -> KeyQueryResult | Future[KeyQueryResult]:
        for _ in range(_MOST_STOPS):
            if not self._can_look_on(stopped):
                break
            stopped = find_records(KeyQueryResult, self._address, *question)
            if stopped.__class__ is KeyQueryResult:
                return stopped
        self.cold_lookups += 1
        walk = self._index.walk(*question)
        return self._query_cold(walk) if wait else self._cold.run(self._query_cold, walk)

    def query_compared(
        self, topic: str, key: str, max_count: int, begin_ms: int = 0, end_ms: int = FOR_EVER_MS
    ) -> Future[KeyQueryResult]:
        """`query_keys` in another thread, which compares each older record with its unit and its entry once
        more."""
        return self._cold.run(
            self._query_cold,
            self._index.walk(topic, key, min(max_count, self._most_found), *asked_times(begin_ms, end_ms)),
        )

    def _query_cold(self, walk: IndexWalk) -> KeyQueryResult:
        """Any thread."""
        found, last_ms, last_offset = walk.find()
        offsets, records, damaged = [], [], []
        for offset in sorted(found):
            raw, damage = self.record_of_entry(offset, walk.hashed)
            if damage is not None:
                damaged.append(DamagedRecord(offset, damage))
                self._report_damage(offset, damage)
            elif raw is not None:
                offsets.append(offset)
                records.append(raw)
        return KeyQueryResult(offsets, records, last_ms, last_offset, tuple(damaged))

    def record_of_entry(self, log_offset: int, entry_hash: int) -> tuple[bytes | None, str | None]:
        """(the record to which an entry of the index leads, how it is damaged): a damaged record may be there
        or not.

        Neither where retention removed the record. Any thread; it may wait for the disk.
        """
        raw = self.record_at(log_offset, check_crc=False)
        if raw is None:
            is_inside = self._log.minimum <= log_offset < self._view[c.CONFIRMED]
            return (
                None,
                "no record begins there, but an entry of the index leads to it" if is_inside else None,
            )
        # A record's unit is written before its entries
        return raw, self._damage_of(raw, log_offset, entry_hash)

    def _can_look_on(self, stopped: int) -> bool:
        """Do what a lookup stopped for; False when it would wait for the disk, or a record may have to be
        left out. Raises StoreError."""
        if stopped == c.LOOKUP_DOUBTFUL:
            return False
        if stopped == c.LOOKUP_UNENTERED:
            self._index.enter_files()
            return True
        words = self._words
        number, place, size = words[c.R_ASK_FILE], words[c.R_ASK_PLACE], words[c.R_ASK_BYTES]
        if stopped == c.LOOKUP_ASK_INDEX:
            return self._index.ask_pages(number, place, size, words[c.R_ROUND])
        if stopped == c.LOOKUP_UNENTERED_UNITS:
            return self._enter(self._queues.by_row(number), place)
        if stopped == c.LOOKUP_ASK_UNITS:
            return self._queues.by_row(number).read_file.residency.ask(place, size, words[c.R_ROUND])
        file = self._log.files[number]
        if stopped == c.LOOKUP_UNMAPPED:
            return self._map(file)
        return file.residency.ask(place, size, words[c.R_ROUND])


def _outside(queue: ConsumeQueue, offset: int) -> GetResult:
    """The answer to an offset that the queue does not have."""
    minimum, maximum = queue.minimum, queue.maximum
    if maximum == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
    if offset == maximum:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
