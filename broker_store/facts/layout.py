"""Interleaving: how the messages of a topic lie in the commit log, and what it costs to read them again.

All topics are written into one log, each message after the one that came before it. Who reads one queue
jumps over what the others wrote, and the disk and the page cache move whole pages: so a replay may read many
bytes for each that it delivers.

Only units of the consume queues are read (place and size of each message), nothing of the log but the store
time of a few records when a time is asked for. What a replay would cost is counted by two models:

* pages: each page of 4 KiB in which one of the messages lies is read once, however many of them lie in it;
* read-ahead: each block of 128 KiB, as Linux reads ahead by default, that has such a page is read once.

A jump is what lies in the log between the end of a message and the beginning of the next of its queue; 0 are
neighbours. Queues are scanned whole up to a number of units, then the beginning of each. Any thread;
`stopped` is asked between pieces.
"""

from __future__ import annotations

import copy
import functools
import heapq
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker_store.engine.disk.system import PAGE
from broker_store.engine.rows import Words
from broker_store.errors import NotFoundError
from broker_store.facts.directory import GroupOffsets, StoreDirectory
from broker_store.facts.queue_units import UNIT, QueueUnits
from broker_store.formats import queue_unit, record
from broker_store.formats.queue_unit import QueueUnit
from broker_store.kernels import layout as k
from broker_store.throttle import pause
from broker_store.units import Moment, Small, fields_of

CELLS = 240  # of the drawing of one topic
CELLS_PER_ROW = 96  # of a drawing in a table that has a row for each topic
READ_AHEAD = 128 << 10  # bytes
MAX_UNITS = 4_000_000  # that one scan reads in about a second
MAX_SCAN_S = 5.0
MAX_TOPICS = 2_000  # that are scanned one by one
MAX_LOG_BYTES = 256 << 30  # that are scanned: a scan holds a byte in memory for each page
MODEL = (
    "each page of 4 KiB is read once; with read-ahead each block of 128 KiB; pages that are in memory "
    "cost nothing"
)
SOURCE = "units of the consume queues; mincore of the log"
_NO_JUMPS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a replay begins: at a time, at a place of the log, at what a group committed, or with nothing of
    these at the first message."""

    time_ms: int | None = None
    log_offset: int | None = None
    offsets: GroupOffsets | None = None  # of one group
    group: str = ""

    def describe(self) -> StartFacts:
        return StartFacts(from_ms=self.time_ms, from_offset=self.log_offset, group=self.group or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """Where a replay begins; None for what it does not go by."""

    from_ms: Moment | None
    from_offset: int | None  # of the log
    group: str | None  # it begins at what this group committed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """The part of the log that was scanned."""

    begin: int  # log offsets
    end: int
    file_bytes: int  # of each log file
    cut: bool  # the log begins earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Jumps:
    """Bytes between neighbours of a queue; the percentiles are jumps that there are (nearest rank)."""

    count: Small
    mean: float | None
    p50: int | None
    p99: int | None
    max: int | None
    neighbours: int  # jumps of 0 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What a replay reads when each page is read once."""

    touched: int  # pages
    bytes: int
    per_byte: float | None  # bytes read for each byte of messages
    cold_bytes: int | None  # of these, what is not in memory; None where the system does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """What a replay reads when each block of READ_AHEAD bytes is read once."""

    bytes: int
    per_byte: float | None
    cold_bytes: int | None


# The parts of which the facts below are made have no slots, so that one class can be made of several.


@dataclass(frozen=True, kw_only=True)
class ScanFacts:
    """What a scan has in common for all topics."""

    at_ms: Moment
    took_ms: float
    source: str
    model: str
    log: LogSpan
    start: StartFacts
    cold_rate: float | None  # bytes a second that one thread reads from the disk


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How messages lie in the log and what reading them again costs. What of it is in memory is None where
    the system does not say."""

    queues: Small
    messages: int
    bytes: int
    gone: int  # messages whose records are no longer in the log
    share: float | None  # 0 to 1: their bytes in those of the log
    cell_bytes: list[int]  # in equal stretches of the log, from its begin to its end
    jumps: Jumps
    pages: Pages
    ahead: ReadAhead
    resident_share: float | None  # 0 to 1: of the pages
    cold_messages: int | None
    cold_bytes: int | None  # of these messages
    estimate_ms: float | None  # for reading them; None when no cold read was measured yet
    complete: bool
    reason: str | None  # why it is not


@dataclass(frozen=True, kw_only=True)
class _Topics:
    topics: list[str]


@dataclass(frozen=True, kw_only=True)
class _Topic:
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOfTopics(Placement, _Topics, ScanFacts):
    """Topics together, as one reader of all of them has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLayout(Placement, _Topic):
    """One topic of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOfEach(ScanFacts):
    """Each topic by itself, the dearest first."""

    items: list[TopicLayout]
    complete: bool
    reason: str | None


class LayoutScan:
    """One scan. It asks once which pages of the log are in memory, and then reads the units of queues."""

    def __init__(
        self,
        store: StoreDirectory,
        start: Start,
        wrote: int | None = None,
        cold_rate: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        messages_in: Callable[[str, int], int] | None = None,
    ):
        """`wrote` is where the log of a running broker ends, `messages_in` how many messages a queue of its
        holds."""
        self._store, self._start, self._stopped, self._cold_rate, self._messages_in = (
            store,
            start,
            stopped,
            cold_rate,
            messages_in,
        )
        self._at_ms, self._began = int(time.time() * 1000), time.perf_counter()
        log = store.log_files()
        self._file_bytes = log[0][1] if log and log[0][1] else PAGE
        self._file_pages = -(-self._file_bytes // PAGE)
        self._end = store.log_end() if wrote is None else wrote
        first = log[0][0] if log else self._end
        kept = MAX_LOG_BYTES // self._file_bytes * self._file_bytes
        self._begin = (
            first if self._end - first <= kept else self._end - (self._end - first) % self._file_bytes - kept
        )
        self._cut = self._begin > first
        self._files = max(1, -(-(self._end - self._begin) // self._file_bytes))
        self._pages = np.zeros(self._files * self._file_pages, dtype=np.uint8)
        self._knows_memory = all([self._note_pages(base, path) for base, _, path in log])
        self._asked = time.perf_counter() - self._began

    def beginning(self, start: Start) -> LayoutScan:
        """Another scan at the same moment, with another start and time of its own: what is in memory is not
        asked again."""
        other = copy.copy(self)
        other._start, other._began = start, time.perf_counter() - self._asked
        return other

    def _note_pages(self, base: int, path: Path) -> bool:
        """Note which pages of a log file are in memory; False when the system does not say."""
        at = (base - self._begin) // self._file_bytes * self._file_pages
        if not 0 <= at < len(self._pages):
            return True
        answers = self._store.disk.pages_in_memory(path)
        if answers is None:
            return False
        found = np.frombuffer(answers, dtype=np.uint8)[: self._file_pages] & k.IN_MEMORY
        self._pages[at : at + len(found)] = found
        return True

    def of(self, topics: list[str]) -> LayoutOfTopics:
        """The topics together, as one reader of all of them would have it. NotFoundError when there is none
        of them."""
        queues = [queue for queue in self._store.queues() if queue[0] in topics]
        if not queues:
            raise NotFoundError(f"there is no queue of {', '.join(topics)[:200] or 'any topic'} in the store")
        placement = self._scan(queues, CELLS, MAX_UNITS)
        return LayoutOfTopics(**fields_of(self._facts()), topics=topics, **fields_of(placement))

    def of_each(self) -> LayoutOfEach:
        """Each topic by itself, the dearest first: by bytes of pages that a replay reads. Of more than
        MAX_TOPICS those with most messages, or, of a store in which no broker counts them, with most files
        of queues."""
        topics: dict[str, Counter[int]] = {}  # topic -> files by queue id
        for topic, queue_id, *_ in self._store.queue_paths():
            topics.setdefault(topic, Counter())[queue_id] += 1
        most = MAX_UNITS // min(len(topics), MAX_TOPICS) if topics else 0
        each, gone = [], 0
        for topic in self._largest(topics):
            if self._stopped() or time.perf_counter() - self._began > MAX_SCAN_S:
                break
            if not any(self._store.queue_files(topic, queue_id) for queue_id in topics[topic]):
                gone += 1  # the topic was deleted since
                continue
            queues = [(topic, queue_id) for queue_id in sorted(topics[topic])]
            each.append(TopicLayout(topic=topic, **fields_of(self._scan(queues, CELLS_PER_ROW, most))))
        each.sort(key=lambda one: (-one.pages.bytes, one.topic))
        lacking, left_out = sum(not one.complete for one in each), len(topics) - gone - len(each)
        reasons = [f"{lacking:,} of {len(each):,} topics were not scanned whole"] * (lacking > 0) + [
            f"{left_out:,} topics were left out; those with most "
            f"{'files' if self._messages_in is None else 'messages'} are scanned"
        ] * (left_out > 0)
        return LayoutOfEach(
            **fields_of(self._facts()), items=each, complete=not reasons, reason="; ".join(reasons) or None
        )

    def _largest(self, topics: dict[str, Counter[int]]) -> list[str]:
        """Return MAX_TOPICS of the topics at most, those that hold most first."""
        if len(topics) <= MAX_TOPICS or self._messages_in is None:
            size = {topic: files.total() for topic, files in topics.items()}
        else:
            size = {
                topic: sum(self._messages_in(topic, queue_id) for queue_id in files)
                for topic, files in topics.items()
            }
        return heapq.nsmallest(MAX_TOPICS, topics, key=lambda topic: (-size[topic], topic))

    def _facts(self) -> ScanFacts:
        return ScanFacts(
            at_ms=self._at_ms,
            took_ms=(time.perf_counter() - self._began) * 1000,
            source=SOURCE,
            model=MODEL,
            log=LogSpan(begin=self._begin, end=self._end, file_bytes=self._file_bytes, cut=self._cut),
            start=self._start.describe(),
            cold_rate=self._cold_rate,
        )

    def _scan(self, queues: list[tuple[str, int]], cell_count: int, most: int) -> Placement:
        words = Words(k.Y_WORDS)
        span = max(1, self._end - self._begin)
        cells = Words(min(cell_count, span))
        words[k.Y_BEGIN], words[k.Y_END] = self._begin, max(self._end, self._begin + 1)
        words[k.Y_FILE_BYTES], words[k.Y_FILE_PAGES], words[k.Y_FILES] = (
            self._file_bytes,
            self._file_pages,
            self._files,
        )
        words[k.Y_PAGES], words[k.Y_CELLS], words[k.Y_CELL_COUNT] = (
            self._pages.ctypes.data,
            cells.address,
            len(cells.array),
        )
        words[k.Y_BLOCK_PAGES] = READ_AHEAD // PAGE
        jumps, reason = [], "the log is longer than what is scanned" if self._cut else None
        share = max(1, most // len(queues))
        for topic, queue_id in queues:
            units = self._store.queue_units(topic, queue_id)
            found, why = self._scan_queue(words, units, self._first(units, topic, queue_id), share)
            jumps += found
            reason = why or reason
        k.count_touched(words.address)
        return self._placement_of(
            words, cells, np.concatenate(jumps) if jumps else _NO_JUMPS, len(queues), reason
        )

    def _first(self, units: QueueUnits, topic: str, queue_id: int) -> int:
        """The number of the first unit of a replay."""
        start = self._start
        if start.offsets is not None:
            return max(start.offsets.get(start.group, {}).get(topic, {}).get(queue_id, 0), units.first)
        if start.log_offset is not None:
            return units.first_at(start.log_offset)
        if start.time_ms is not None:
            return units.search(functools.partial(self._is_from, start.time_ms))
        return units.first

    def _is_from(self, time_ms: int, unit: QueueUnit) -> bool:
        """Whether the unit's message was stored at a time or later. One whose record is gone was stored
        earlier."""
        if unit.is_pre_blank or not self._begin <= unit.log_offset < self._end:
            return False
        head = self._store.bytes_at(unit.log_offset, record.MIN_RECORD)
        if len(head) < record.MIN_RECORD:
            return False
        store_ms: int
        (sys_flag,) = record.SYS_FLAG.unpack(head, record.SYS_FLAG_AT)
        (store_ms,) = record.STORE_TIMESTAMP.unpack(
            head, record.FIXED[sys_flag >> 4 & 3].offset["store_timestamp"]
        )
        return store_ms >= time_ms

    def _scan_queue(
        self, words: Words, units: QueueUnits, start: int, most: int
    ) -> tuple[list[np.ndarray], str | None]:
        """The jumps in a queue from unit `start` on, and why it was not all of it."""
        jumps: list[np.ndarray] = []
        left, words[k.Y_LAST_END] = most, -1
        for piece in units.pieces(start):
            if self._stopped():
                return jumps, "it was stopped"
            if time.perf_counter() - self._began > MAX_SCAN_S:
                return jumps, f"it took longer than {MAX_SCAN_S:g} s"
            pause()
            count = min(len(piece) // UNIT, left)
            room = np.empty(count, dtype=np.int64)
            words[k.Y_UNITS], words[k.Y_COUNT] = piece.ctypes.data, count
            words[k.Y_JUMPS], words[k.Y_JUMP_COUNT] = room.ctypes.data, 0
            done = k.lay_units(words.address)
            jumps.append(room[: words[k.Y_JUMP_COUNT]])
            if done < count:
                return jumps, None
            left -= count
            if count < len(piece) // UNIT and queue_unit.decode(piece.data, count * UNIT).is_data:
                return jumps, f"of each queue the first {most:,} messages are scanned"
        return jumps, None

    def _placement_of(
        self, words: Words, cells: Words, jumps: np.ndarray, queues: int, reason: str | None
    ) -> Placement:
        size, touched, ahead = words[k.Y_BYTES], words[k.Y_TOUCHED], words[k.Y_AHEAD]
        cold = self._knows_memory
        cold_bytes = words[k.Y_COLD_BYTES] if cold else None
        estimate_ms = None
        if cold_bytes == 0:
            estimate_ms = 0.0
        elif cold_bytes and self._cold_rate:
            estimate_ms = cold_bytes / self._cold_rate * 1000
        return Placement(
            queues=queues,
            messages=words[k.Y_MESSAGES],
            bytes=size,
            gone=words[k.Y_GONE],
            share=size / (self._end - self._begin) if self._end > self._begin else None,
            cell_bytes=[int(count) for count in cells.array],
            jumps=_describe(jumps),
            pages=Pages(
                touched=touched,
                bytes=touched * PAGE,
                per_byte=touched * PAGE / size if size else None,
                cold_bytes=words[k.Y_TOUCHED_COLD] * PAGE if cold else None,
            ),
            ahead=ReadAhead(
                bytes=ahead * PAGE,
                per_byte=ahead * PAGE / size if size else None,
                cold_bytes=words[k.Y_AHEAD_COLD] * PAGE if cold else None,
            ),
            resident_share=1 - words[k.Y_TOUCHED_COLD] / touched if cold and touched else None,
            cold_messages=words[k.Y_COLD_MESSAGES] if cold else None,
            cold_bytes=cold_bytes,
            estimate_ms=estimate_ms,
            complete=reason is None,
            reason=reason,
        )


def _describe(jumps: np.ndarray) -> Jumps:
    count = len(jumps)
    if not count:
        return Jumps(count=0, mean=None, p50=None, p99=None, max=None, neighbours=0)
    ranks = [-(-count * percent // 100) - 1 for percent in (50, 99)]
    sorted_there = np.partition(jumps, ranks)
    return Jumps(
        count=count,
        mean=float(jumps.mean()),
        p50=int(sorted_there[ranks[0]]),
        p99=int(sorted_there[ranks[1]]),
        max=int(jumps.max()),
        neighbours=int(np.count_nonzero(jumps == 0)),
    )
