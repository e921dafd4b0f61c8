"""The messages of a damaged store that no repair can restore: by queue and offset, known before anything is
changed.

A message is lost when its queue, or its neighbours in the queue, state that it was there, and the log holds
no good record of it:

    units      that point into a damaged part of the log, into files missing at its begin, or at and after its
               end
    gaps       queue offsets between two records that no record has
    recorded   queue offsets that the record of ends counts, where the log has lost its begin or end and units
               are gone too, and those before a queue's first record where the log never lost any
    stale      whole records after the log's end that no queue knows: a repair makes the file zero there

Of damaged or missing bytes that no unit points to only the length is known (`unnamed_bytes`). If the record
of ends counts their messages, those are named as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from broker_store.check.files import StoreFile
from broker_store.check.queue import Queue
from broker_store.check.results import LossSummary, LostMessages
from broker_store.check.walk import StoreCheck
from broker_store.engine.log.row_buffer import MAX_RECORD
from broker_store.formats import names, record
from broker_store.formats.queue_unit import LIGHT_QUEUE, PRE_BLANK_SIZE

MAX_RANGES = 1_000  # pages and REST name so many, and count the others
_NEVER = 1 << 62
_UNITS_PER_READ = 1 << 16
# A number further from the queue's last sound record comes from a misnamed file, and would mean 20 MB of
# empty units
_MAX_UNITS_BETWEEN = 1 << 20
_MAX_RECORDS_READ = 1 << 12  # to which units lead whose numbers no record has
_MAX_STALE = 1 << 16  # records after the end of the log; more are not counted


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages [first, last] of one queue. `is_stale`: they are whole, but after the end of the log, and no
    queue has them."""

    topic: str
    queue_id: int
    first: int
    last: int
    is_stale: bool = False

    @property
    def messages(self) -> int:
        return self.last - self.first + 1

    def facts(self) -> LostMessages:
        return LostMessages(
            topic=self.topic,
            queue_id=self.queue_id,
            first=self.first,
            last=self.last,
            messages=self.messages,
            is_stale=self.is_stale,
        )

    def __str__(self) -> str:
        which = (
            f"message {self.first:,}"
            if self.first == self.last
            else f"{self.messages:,} messages, {self.first:,} to {self.last:,}"
        )
        return f"{which} of {self.topic}/{self.queue_id}" + (
            ", after the end of the log and in no queue" if self.is_stale else ""
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """`ranges` name each lost message of a queue that is known; `messages` is their number.

    `unnamed_bytes` are missing or damaged bytes of the log whose messages no queue names; a record that only
    the index or the checkpoint knows counts with the least size of a record. `perhaps_expired` messages,
    which units name, lie before `log_begin`, and no file shows whether retention removed them. `ends_unknown`
    are the queues (`topic/queue id`) for which it is not known whether the lost end of the log held more
    messages: their units end before the last record that the log has of them. `next_offsets` are the least
    numbers that next messages may have, by (topic, queue id), of queues that lose their last messages or
    units.
    """

    ranges: tuple[LostRange, ...] = ()
    messages: int = 0
    unnamed_bytes: int = 0
    next_offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    perhaps_expired: int = 0
    log_begin: int = 0
    ends_unknown: tuple[str, ...] = ()

    def facts(self) -> LossSummary:
        return LossSummary(
            messages=self.messages,
            ranges=[one.facts() for one in self.ranges[:MAX_RANGES]],
            ranges_left_out=max(0, len(self.ranges) - MAX_RANGES),
            unnamed_bytes=self.unnamed_bytes,
            perhaps_expired=self.perhaps_expired,
            log_begin=self.log_begin,
            ends_unknown=list(self.ends_unknown),
        )


def losses_of(check: StoreCheck, restored: Iterable[tuple[str, int, int]] = ()) -> Losses:
    """Return what a check found lost. `restored` are (topic, queue, offset) that a repair writes into a sound
    record's header again."""
    found = _Finder(check, restored)
    return found.losses()


class _Finder:
    def __init__(self, check: StoreCheck, restored: Iterable[tuple[str, int, int]]):
        self._check = check
        self._restored: dict[tuple[str, int], set[int]] = {}
        for topic, queue_id, number in restored:
            self._restored.setdefault((topic, queue_id), set()).add(number)
        self._recorded = check.ends.recorded()
        self._missing = _missing_begin(check)
        lost = [self._missing] if self._missing else []
        damaged = sorted([*check.log.damaged, *lost])
        self._lows = np.array([low for low, _ in damaged], dtype=np.int64)
        self._highs = np.array([high for _, high in damaged], dtype=np.int64)
        # Units and entries after the end count if each lies at most two files after the previous one. Without
        # a log file the record of ends shows where the end was; without that, or if the files' size is not
        # known, the last unit of each queue and the headers of the index do.
        file_size = check.lists.sizes.get(check.log_directory) or check.noted.mapped_file_size_commit_log or 0
        end = check.log.end if check.log.files else check.ends.position
        if file_size and (check.log.files or end):
            self._after_to, self._most_between = (end // file_size + 2) * file_size, 2 * file_size
        else:
            known = [queue.last_record_end for queue in check.queues.values()] + [
                header.end_offset + 1 for _, _, header in check.index_files.files
            ]
            self._after_to, self._most_between = max(known, default=0) or _NEVER, 0
        self._after: list[tuple[int, int]] = []  # parts of the log after its end that units name
        self._named_bytes = 0  # of damaged parts of the log, by units
        self._named_missing_bytes = 0  # of the missing begin, by units
        self._unreadable_bytes = 0  # of whole records in the cut tail whose topic is no valid name
        self._to_read = _MAX_RECORDS_READ
        self._given: dict[tuple[str, int], int] = {}  # next offsets by the units of misnamed files

    def losses(self) -> Losses:
        ranges: list[LostRange] = []
        gaps: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for gap in self._check.units.gaps:
            gaps.setdefault((gap.topic, gap.queue_id), []).append((gap.first, gap.end))
        for key in sorted(self._check.queues.keys() | self._recorded.keys()):
            if not key[0].startswith(LIGHT_QUEUE):
                ranges += self._of_queue(key, self._check.queues.get(key), gaps.get(key, []))
        ranges += self._stale()
        messages = sum(one.messages for one in ranges)
        middle = sum(
            stretch.high - stretch.low for stretch in self._check.log.stretches if not stretch.is_tail
        )
        after, has_lost_end = self._unnamed_after()
        unnamed = max(0, middle - self._named_bytes) + after + self._unreadable_bytes
        if self._missing is not None and (self._missing[0] or self._check.ends.position < self._missing[1]):
            # In a log that began at 0, numbers below the recorded ones are named. One queue's units may be
            # gone while others still have theirs.
            unnamed += max(0, self._missing[1] - self._missing[0] - self._named_missing_bytes)
        following = dict(self._given)
        for one in ranges:
            key = (one.topic, one.queue_id)
            queue = self._check.queues.get(key)
            kept = queue.next if queue is not None and queue.next is not None else one.first
            if kept <= one.last < kept + _MAX_UNITS_BETWEEN:
                following[key] = max(following.get(key, 0), one.last + 1)
        expired = self._check.units_before_log if _is_begin_unknown(self._check) else 0
        unknown = self._ends_unknown() if has_lost_end else ()
        return Losses(tuple(ranges), messages, unnamed, following, expired, self._check.log.start, unknown)

    def _ends_unknown(self) -> tuple[str, ...]:
        """Return the queues whose units end before the log's last record of them, such as those with a file
        of zeros."""
        queues = self._check.queues.values()
        ended = [
            queue
            for queue in queues
            if queue.next is not None and queue.end < queue.next and not queue.key[0].startswith(LIGHT_QUEUE)
        ]
        return tuple(sorted(f"{queue.key[0]}/{queue.key[1]}" for queue in ended))

    def _of_queue(
        self, key: tuple[str, int], queue: Queue | None, gaps: list[tuple[int, int]]
    ) -> list[LostRange]:
        """Return the lost numbers of a queue: before and after those that the log has records of, and the
        gaps between them."""
        spans = self._recorded_spans(key, queue)
        if queue is not None:
            covered = queue.end if queue.covered_from is None else queue.covered_from
            spans += self._lost_units(queue, queue.first, covered)
            if queue.covered_from is not None and queue.next is not None:
                spans += self._lost_units(queue, queue.next, queue.end)
                for first, end in gaps:
                    # A record that states a wrong number causes gaps too: in them the units lead to records
                    # that state their numbers, or there are no units.
                    spans += self._lost_units(
                        queue, first, min(end, max(queue.end, queue.next)), with_absent=True
                    )
            spans += self._misnamed(queue)
        back = self._restored.get(key, set())
        return [
            LostRange(*key, first, last)
            for first, end in _merged(spans)
            for first, last in _without(first, end, back)
        ]

    def _misnamed(self, queue: Queue) -> list[tuple[int, int]]:
        """Return the numbers of lost units in files whose names are no multiple of the file size. They are
        assumed to follow the known ones.

        A file with at least one sound record was moved to its place before this. How many files lie between
        is not known. A file whose units precede a known one belongs in a gap. The records of its units may
        have expired: their numbers were given even so.
        """
        following = max(queue.next or 0, queue.end)
        known = queue.units(following - 1, 1)["log_offset"][0] if following else -1
        units = given = 0
        for file in self._check.lists.misnamed.get(queue.key, ()):
            alone = Queue(
                self._check.disk, queue.key, queue.name, [StoreFile(file.path, 0, file.size, file.actual)]
            )
            if alone.end and alone.units(0, 1)["log_offset"][0] > max(known, queue.last_at):
                units += max((end for _, end in self._lost_units(alone, 0, alone.end)), default=0)
                given += alone.end
        if given:
            self._given[queue.key] = following + given
        return [(following, following + units)] if units else []

    def _recorded_spans(self, key: tuple[str, int], queue: Queue | None) -> list[tuple[int, int]]:
        """Return the numbers below the first that a record states, if the log has lost its begin, and above
        the last known one, if it has lost its end."""
        spans: list[tuple[int, int]] = []
        newest = self._recorded.get(key)
        recorded = newest.following if newest is not None else 0
        first, following = recorded, 0
        if queue is not None:
            # Not the first unit: in a file of zeros or random bytes no unit leads to a missing record.
            first = queue.covered_from if queue.covered_from is not None else max(recorded, queue.first)
            following = max(queue.next or 0, queue.end)
        if first > 0 and (self._begins_too_late(queue) if self._missing is None else self._missing[0] == 0):
            spans.append((0, first))
        if newest is not None and newest.log_end > self._check.log.end and following < recorded:
            spans.append((following, recorded))
        return spans

    def _begins_too_late(self, queue: Queue | None) -> bool:
        """Return whether records before the queue's first must be in a log that has everything since it
        began, and are not: what they state is damaged."""
        ends = self._check.ends
        if queue is None or queue.covered_from is None or (ends.log_minimum, self._check.log.start) != (0, 0):
            return False
        newest = self._recorded.get(queue.key)
        if newest is not None and newest.log_end <= 0:
            return False
        if not queue.first < queue.covered_from <= queue.end:
            return True
        return bool(queue.units(queue.covered_from - 1, 1)["size"][0] != PRE_BLANK_SIZE)

    def _unnamed_after(self) -> tuple[int, bool]:
        """Return (the bytes, between the end of the log and the last unit or entry after it, that no unit
        names; whether anything lay after the end).

        The bytes are records of queues whose units are gone. Without unit and entry, the checkpoint may show
        that a record lay there.
        """
        at, unnamed = self._check.log.end, 0
        last = self._check.log.files[-1] if self._check.log.files else None
        if last is not None and self._check.log.ends_with_blank:
            at = last.base + last.size
        named = {low for low, _ in self._after}
        only_indexed = [
            (low, low)
            for low in self._check.index.after_log.tolist()
            if self._check.log.end <= low and low not in named
        ]
        counted_to, found = self._after_to, False
        for low, high in sorted([*self._after, *only_indexed]):
            if high > counted_to:
                break
            found = True
            counted_to = max(counted_to, low + self._most_between)
            unnamed += max(0, low - at)
            if low == high and at <= low:
                unnamed, high = unnamed + record.MIN_RECORD, low + record.MIN_RECORD
            at = max(at, high)
        if not found and self._check.is_synced_beyond:
            return unnamed + record.MIN_RECORD, True  # only the checkpoint shows that record
        return unnamed, found

    def _lost_units(
        self, queue: Queue, first: int, end: int, with_absent: bool = False
    ) -> list[tuple[int, int]]:
        """Return runs [first, end) of units that point into damaged parts of the log, or at and after its
        end.

        With `with_absent`, which is for numbers that no record has, units that are zero or lead to a record
        of another place count too.
        """
        spans: list[tuple[int, int]] = []
        covered = first
        for at, count in queue.spans(first, end, _UNITS_PER_READ):
            if with_absent and covered < at:
                spans.append((covered, at))
            covered = at + count
            units = queue.units(at, count)
            offsets, sizes = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
            # A pre-blank unit is larger
            is_unit = (sizes >= record.MIN_RECORD) & (sizes <= MAX_RECORD) & (offsets >= 0)
            if self._check.store.limit is not None:
                is_unit &= offsets < self._check.store.limit
            inside = np.zeros(len(units), dtype=bool)
            if len(self._lows):
                place = np.searchsorted(self._lows, offsets, side="right") - 1
                inside = (place >= 0) & (offsets < self._highs[place])
            if self._missing is not None:
                is_missing = is_unit & (offsets >= self._missing[0]) & (offsets + sizes <= self._missing[1])
                self._named_missing_bytes += int(sizes[is_missing].sum())
            after = np.flatnonzero(is_unit & (offsets >= self._check.log.end))
            self._after += zip(offsets[after].tolist(), (offsets + sizes)[after].tolist(), strict=True)
            self._named_bytes += int(sizes[is_unit & inside & (offsets >= self._check.log.start)].sum())
            is_lost = (is_unit & (inside | (offsets >= self._check.log.end))) | ((sizes == 0) & with_absent)
            if with_absent:
                for place in np.flatnonzero(is_unit & ~is_lost & (offsets >= self._check.log.start))[
                    : self._to_read
                ].tolist():
                    self._to_read -= 1
                    found = self._check.log.record_at(int(offsets[place]), int(sizes[place]))
                    is_lost[place] = found is None or (found.topic, found.queue_id, found.queue_offset) != (
                        *queue.key,
                        at + place,
                    )
            lost = np.flatnonzero(is_lost)
            breaks = np.flatnonzero(np.diff(lost) != 1) + 1
            for run in np.split(lost, breaks) if len(lost) else ():
                spans.append((at + int(run[0]), at + int(run[-1]) + 1))
        if with_absent and covered < end:
            spans.append((covered, end))
        return spans

    def _stale(self) -> list[LostRange]:
        """Count whole records in the tail that is cut, by queue. A record whose topic is no valid name
        belongs to no known queue."""
        found: dict[tuple[str, int], list[int]] = {}
        for stretch in self._check.log.stretches:
            if stretch.is_tail:
                for message in self._check.log.records_between(stretch.low, stretch.high, _MAX_STALE):
                    if message.is_queued and not names.is_stored_topic(message.topic):
                        self._unreadable_bytes += message.size
                    elif message.is_queued:
                        found.setdefault((message.topic, message.queue_id), []).append(message.queue_offset)
        return [LostRange(*key, min(numbers), max(numbers), True) for key, numbers in sorted(found.items())]


def _is_begin_unknown(check: StoreCheck) -> bool:
    """Return whether the log begins late, and no file shows if retention did that: without a record of ends,
    or where another broker wrote since."""
    return check.ends.log_minimum < 0 if check.ends.missing is None else _missing_begin(check) is None


def _missing_begin(check: StoreCheck) -> tuple[int, int] | None:
    """Return the part [start, end) of the log before its first file that is lost, None when nothing is, or
    that is not known."""
    missing = check.ends.missing
    if missing is not None:
        # No other broker wrote to a log that ends below the recorded position: both its end and its begin are
        # gone.
        return (
            None
            if missing.by_other_broker and check.log.end >= check.ends.position
            else (missing.start, missing.end)
        )
    if not check.log.files:
        return (max(0, check.ends.log_minimum), check.ends.position) if check.ends.position else None
    if check.ends.log_minimum >= 0:
        return None
    # Retention leaves no file before the first one; here a file has such a name and another file's content.
    before = [
        int(path.name)
        for path in check.places.found.aside
        if path.parent == check.log_directory and int(path.name) < check.log.start
    ]
    return (min(before), check.log.start) if before else None


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return runs [first, end) in order; those that touch, as at the end of a queue file, are one."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return merged


def _without(first: int, end: int, numbers: set[int]) -> list[tuple[int, int]]:
    """[first, end) without `numbers`, as pairs (first, last)."""
    pairs, begin = [], first
    for number in sorted(number for number in numbers if first <= number < end):
        if number > begin:
            pairs.append((begin, number - 1))
        begin = number + 1
    if begin < end:
        pairs.append((begin, end - 1))
    return pairs
