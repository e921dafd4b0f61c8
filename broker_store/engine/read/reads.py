"""Reading: queues by offset, records by their place or key, times.

    get        ──► read_queue (kernels/read.py) ──────► one piece of bytes, when all of it is in memory
    query_keys ──► find_records (kernels/lookup.py) ──► the records
                     │ stops: a file to enter or map, pages to ask about (stops.py), and it goes on
                     └ cold: a thread reads by position (cold.py)
                     └ damaged: a record that an earlier run wrote is not as it was stored, or contradicts
                       its unit or its entry of the index. It is left out, the answer of a lookup names it,
                       and `on_damage` is called

What may be touched, by log offset:

    minimum              R_HOT_FROM                         confirmed     wrote
    |--------------------|----------------------------------|-------------|
    | older: each page   | this run wrote it, and it is not | appended, and with SYNC_FLUSH
    | is asked about,    | further back than 1/16 of the    | not synced yet: not dispatched,
    | each record is     | machine's memory: touched at     | so no unit leads there
    | checked            | once                             |

A page fault on the loop would stop every connection, so it touches only pages that are known to be in memory.
The system's answer about a page is used for a round of 1 s (R_ROUND), then it is asked again.

Loop thread, unless a docstring says otherwise. Three parts have modules of their own:

    stops.py                  what kernels stop for
    records: records.py       single records, and whether they are damaged
    times: time_search.py     messages by store time
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from ctypes import string_at
from dataclasses import replace

import numpy as np

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.walk import IndexWalk
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.log.store_times import StoreTimes
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.read.cold import ColdReads, LogReaders
from broker_store.engine.read.judging import steps_of_judging
from broker_store.engine.read.records import MAX_STOPS, RecordReads
from broker_store.engine.read.stops import ReadStops
from broker_store.engine.read.time_search import TimeSearch
from broker_store.engine.rows import Words, WriterContext
from broker_store.engine.status.store_state import Totals
from broker_store.formats import queue_unit, record
from broker_store.formats.filter_program import HEAD_POOL_AT
from broker_store.formats.index_file import FOR_EVER_MS, asked_times
from broker_store.kernels import context as c
from broker_store.kernels.lookup import find_records
from broker_store.kernels.read import limits, read_queue
from broker_store.messages import (
    DamagedRecord,
    FilterProgram,
    GetRequest,
    GetResult,
    GetStatus,
    KeyQueryResult,
    MessageFilter,
)

_ROUND_MS = 1000  # for so long the system's answer about a page is used
_MAX_RECORDS = 4096  # of an answer
_MAX_UNITS = 800  # read for an answer that wants fewer messages
_HOT_SHARE = 16  # 1/16 of the machine's memory: so much of the newest bytes counts as in memory
_MAX_FILTERS = 1024
_MAX_PROGRAMS = 128  # of up to 100 KB
# Work of a read that judges records: about 2 ms.
_JUDGED_STEPS = 65_536
_FOUND = GetStatus.FOUND
_AT_ANY_TIME = asked_times(0, FOR_EVER_MS)
_EVERY_TAG = Words(1)


class Reads:
    """`begin` is called between recovery and the first read."""

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
        self._log, self._queues, self._index = log, queues, index
        self._view = context.view
        self._readers = LogReaders(disk, log)  # any thread; it has a lock of its own
        self._cold = ColdReads(self._readers, wake, on_damage)  # asked on the loop; threads of its own
        # Tags codes as the kernel reads them, by requested set, so that a repeated set costs one dict access.
        # Written by the loop only.
        self._filters: dict[frozenset[int], Words] = {}
        # The same of filters by properties; a kernel writes in them.
        self._programs: dict[FilterProgram, Words] = {}
        # Counters of this run. Written by the loop; `totals` may be called there only. Reads of other threads
        # are not counted.
        self.gets = self.get_messages = self.get_bytes = self.cold_gets = self.key_lookups = (
            self.cold_lookups
        ) = 0
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._hot_bytes = memory // _HOT_SHARE
        self._round_ends_ms = 0  # of the round R_ROUND; written by `tick`
        self._runs = Words(2 * _MAX_RECORDS)
        # The R_* words, which the kernels read and write in place. Written by the loop and by kernels that it
        # calls; another thread only has the limits computed from them (`_limited`).
        words = Words(c.R_WORDS)
        self._words = memoryview(words.array)
        self._address = words.address
        self._words[c.R_WRITER] = context.address
        self._words[c.R_ROUND] = 1
        self._words[c.R_MAX_UNITS] = _MAX_UNITS
        self._words[c.R_MAX_COUNT] = _MAX_RECORDS
        self._words[c.R_MAX_RECORD] = record.MAX_RECORD
        self._words[c.R_DISTANT] = memory * settings.access_message_in_memory_max_ratio // 100
        self._words[c.R_NEAR_COUNT] = settings.max_transfer_count_on_message_in_memory
        self._words[c.R_NEAR_BYTES] = settings.max_transfer_bytes_on_message_in_memory
        self._words[c.R_DISTANT_COUNT] = settings.max_transfer_count_on_message_in_disk
        self._words[c.R_DISTANT_BYTES] = settings.max_transfer_bytes_on_message_in_disk
        self._words[c.R_RUNS] = self._runs.address
        self._words[c.R_LOOKUP] = index.lookup_address
        self._most_found = settings.max_msgs_num_batch
        self._stops = ReadStops(log, queues, index, self._words, wake, on_damage)
        self.records = RecordReads(
            context,
            log,
            queues,
            self._readers,
            self._cold,
            self._stops,
            self._words,
            self._address,
            wake,
            on_damage,
        )
        self.times = TimeSearch(log, queues, times, self._readers)

    def begin(self, log_end: int) -> None:
        """Count what is written from log offset `log_end` on as in memory."""
        self._words[c.R_HOT_FROM] = log_end
        for queue in self._queues:
            queue.row[c.Q_HOT] = queue.maximum

    def tick(self, now_ms: int) -> None:
        """Move R_HOT_FROM, and begin the next round of page answers when it is due. Called about ten times a
        second."""
        self._words[c.R_HOT_FROM] = max(self._words[c.R_HOT_FROM], self._log.wrote - self._hot_bytes)
        if not 0 < self._round_ends_ms - now_ms <= _ROUND_MS:
            self._round_ends_ms = now_ms + _ROUND_MS
            self._words[c.R_ROUND] += 1

    def files_held(self) -> frozenset[int]:
        """Return the bases of the log files that cold reads hold open."""
        return self._readers.held()

    def forget(self, log_base: int) -> None:
        """Close the descriptor of a log file that is removed."""
        self._readers.forget(log_base)

    def close(self) -> None:
        self._cold.close()
        self._readers.close()

    @property
    def cold_bytes(self) -> int:
        """The bytes that threads have read."""
        return self._cold.read_bytes

    @property
    def cold_in_flight(self) -> int:
        """The cold reads that have begun or wait. Any thread."""
        return self._cold.in_flight

    @property
    def cold_ms(self) -> float:
        """The time of these reads."""
        return self._cold.read_ms

    def totals(self, *, puts: int, put_bytes: int, refused: dict[str, int]) -> Totals:
        """Return the store's counters: those of its appender, which are passed in, and those of its reads."""
        return Totals(
            puts=puts,
            put_bytes=put_bytes,
            gets=self.gets,
            get_messages=self.get_messages,
            get_bytes=self.get_bytes,
            cold_gets=self.cold_gets,
            key_lookups=self.key_lookups,
            cold_lookups=self.cold_lookups,
            cold_bytes=self.cold_bytes,
            cold_ms=self.cold_ms,
            refused=refused,
        )

    # Queues ---------------------------------------------------------------------------------------

    def get(self, request: GetRequest, done: Callable[[GetResult], None] | None = None) -> GetResult | None:
        """Read a queue (docs/spec/store-behaviour.md section 6.1). What is in memory is returned at once.

        A cold read is done in another thread: this returns None, and `done(result)` is called later on the
        loop. Without `done` the cold read is done in the caller's thread.
        """
        self.gets += 1
        queue = self._queues.find(request.topic, request.queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if request.message_filter is not None:
            return self._get_judged(queue, request, request.message_filter, done)
        codes = request.tag_codes
        tags = _EVERY_TAG if codes is None else self._filter(codes)
        for _ in range(MAX_STOPS):
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
            if not self._stops.can_continue_read(stopped, queue, request.offset):
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

    def _get_judged(
        self,
        queue: ConsumeQueue,
        request: GetRequest,
        message_filter: MessageFilter,
        done: Callable[[GetResult], None] | None,
    ) -> GetResult | None:
        """Read a queue as `get`, for messages that a filter of properties passes.

        The kernel stops at each record that Python has to judge, and goes on with the records that it has.
        """
        words = self._words
        words[c.R_JUDGE], words[c.R_VERDICT], words[c.R_MOST] = c.JUDGE_FIRST, c.VERDICT_NONE, 0
        words[c.R_BUDGET] = _JUDGED_STEPS
        program = message_filter.program
        words[c.R_PROGRAM] = 0 if program is None else self._program(program).address
        offset, stops = request.offset, 0
        try:
            while True:
                stopped, offset, minimum, maximum, body, count = read_queue(
                    self._address,
                    queue.row.address,
                    offset,
                    request.max_count,
                    request.max_bytes,
                    _EVERY_TAG.address,
                    0,
                )
                if stopped < c.READ_UNENTERED:
                    break
                if stopped == c.READ_JUDGE:
                    properties = string_at(words[c.R_PROPERTIES], words[c.R_PROPERTIES_BYTES])
                    words[c.R_VERDICT] = message_filter.passes(properties)
                    words[c.R_BUDGET] -= steps_of_judging(message_filter, len(properties))
                else:
                    stops += 1
                    is_cold = stops > MAX_STOPS or not self._stops.can_continue_read(stopped, queue, offset)
                    if is_cold and stopped != c.READ_UNENTERED and words[c.R_COUNT]:
                        # What was found is the answer: the kernel stops before the next record, and copies.
                        words[c.R_MOST] = words[c.R_COUNT]
                    elif is_cold:
                        return self._get_cold(queue, replace(request, offset=offset), done)
                if stopped != c.READ_UNENTERED:
                    words[c.R_JUDGE] = c.JUDGE_CONTINUED
        finally:
            words[c.R_JUDGE] = 0
        if count:
            self.get_messages += count
            self.get_bytes += len(body)
            return GetResult(_FOUND, offset, minimum, maximum, body, count)
        if stopped == c.READ_OUTSIDE:
            return _outside(queue, request.offset)
        if stopped == c.READ_DONE:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
        if stopped == c.READ_GONE:
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING, offset + 1, minimum, maximum)
        return self._get_cold(
            queue, replace(request, offset=offset), done, offset if stopped == c.READ_DAMAGED else None
        )

    def _program(self, program: FilterProgram) -> Words:
        """Return a program as the kernel runs it, with room for its slots and flags."""
        found = self._programs.get(program)
        if found is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.clear()
            pool_at = program.words[HEAD_POOL_AT]
            found = Words(pool_at + (len(program.pool) + 7) // 8)
            found.array[: len(program.words)] = program.words
            found.array.view(np.uint8)[8 * pool_at : 8 * pool_at + len(program.pool)] = np.frombuffer(
                program.pool, dtype=np.uint8
            )
            self._programs[program] = found
        return found

    def _filter(self, codes: frozenset[int]) -> Words:
        found = self._filters.get(codes)
        if found is None:
            if len(self._filters) >= _MAX_FILTERS:
                self._filters.clear()
            # An empty set matches nothing: no Java hash has more than 32 bits, so no unit has this code.
            wanted = sorted(codes) or [1 << 40]
            found = Words(len(wanted))
            found.array[:] = wanted
            self._filters[codes] = found
        return found

    def _get_cold(
        self, queue: ConsumeQueue, request: GetRequest, done, suspect: int | None = None
    ) -> GetResult | None:
        """Read by position: without `done` in the caller's thread, else in another.

        `suspect` is a unit that contradicts its record: it is read even if the filter excludes it.
        """
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
        """Return the request within the settings' limits. Any thread; it reads the queue's file."""
        unit = queue.unit(request.offset)
        most, most_bytes = limits(self._address, self._log.wrote if unit is None else unit.log_offset)
        return replace(
            request, max_count=min(request.max_count, most), max_bytes=min(request.max_bytes, most_bytes)
        )

    def get_blocking(self, request: GetRequest) -> GetResult:
        """Read a queue from any other thread: by position, never through the maps, and not counted."""
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
        """Return units of a queue from `offset`, at most `count` and at most to the end of a queue file. Any
        thread."""
        queue = self._queues.find(topic, queue_id)
        return list(queue_unit.decode_all(queue.read_units(offset, count))) if queue is not None else []

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
        """Return records by key (docs/spec/store-behaviour.md section 6.3), oldest first. Hash collisions
        stay in.

        A cold lookup is done in the caller's thread; without `wait`, on the loop, in another thread.
        """
        self.key_lookups += 1
        if max_count > self._most_found:
            max_count = self._most_found
        # This call takes as long as the rest of a lookup that finds nothing.
        begin_ms, end_ms = (
            _AT_ANY_TIME if begin_ms == 0 and end_ms == FOR_EVER_MS else asked_times(begin_ms, end_ms)
        )
        found = find_records(KeyQueryResult, self._address, topic, key, max_count, begin_ms, end_ms)
        if found.__class__ is KeyQueryResult:
            return found
        return self._query_again(found, wait, topic, key, max_count, begin_ms, end_ms)

    def _query_again(self, stopped: int, wait: bool, *question) -> KeyQueryResult | Future[KeyQueryResult]:
        for _ in range(MAX_STOPS):
            if not self._stops.can_continue_lookup(stopped):
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
        """Return what `query_keys` does, from another thread, which compares each older record with its unit
        and its entry again."""
        return self._cold.run(
            self._query_cold,
            self._index.walk(topic, key, min(max_count, self._most_found), *asked_times(begin_ms, end_ms)),
        )

    def _query_cold(self, walk: IndexWalk) -> KeyQueryResult:
        """Search for a key by position. Any thread."""
        found, last_ms, last_offset = walk.find()
        offsets, records, damaged = [], [], []
        for offset in sorted(found):
            raw, damage = self.records.record_of_entry(offset, walk.hashed)
            if damage is not None:
                damaged.append(DamagedRecord(offset, damage))
                self.records.report_damage(offset, damage)
            elif raw is not None:
                offsets.append(offset)
                records.append(raw)
        return KeyQueryResult(offsets, records, last_ms, last_offset, tuple(damaged))


def _outside(queue: ConsumeQueue, offset: int) -> GetResult:
    """Return the answer to an offset that the queue does not have."""
    minimum, maximum = queue.minimum, queue.maximum
    if maximum == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
    if offset == maximum:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
