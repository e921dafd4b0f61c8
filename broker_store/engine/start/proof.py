"""Comparison of queues, index and log with the record of ends (`engine/start/ends.py`), by a start before it
changes anything.

A queue file is unchanged if its units up to the recorded one are all there and have the recorded sum. A
changed file, or one that is missing although the log still has its records, makes its queue a `Suspect`:
recovery reads the log from where the units before that file end, compares, and rebuilds what differs. Without
a record everything is read so, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.start.end_sums import ends_as_recorded, has_recorded_entries, mapped_sum
from broker_store.engine.start.ends import BOUND, EndsFile, FileEnd
from broker_store.errors import FormatError
from broker_store.formats import config_json, queue_unit
from broker_store.formats.index_file import FIRST_ENTRY


@dataclass(frozen=True)
class Suspect:
    """A queue that is not as recorded from unit `first` on; its units are rebuilt from log offset
    `log_offset` on."""

    queue: ConsumeQueue
    first: int
    log_offset: int
    why: str


class Proof:
    """The comparisons of one start. `log_minimum` is the log's first offset; `is_exact`: nothing was written
    since the record.

    `compares_all`: all entries of index files are compared, else the last ones of each.
    """

    def __init__(self, ends: EndsFile, log_minimum: int, is_exact: bool, compares_all: bool):
        self._ends, self._log_minimum, self.is_exact, self._compares_all = (
            ends,
            log_minimum,
            is_exact,
            compares_all,
        )

    def rows(self, queue: ConsumeQueue) -> dict[int, FileEnd]:
        return self._ends.queues.get((queue.topic, queue.queue_id), {})

    def judge(self, queue: ConsumeQueue, read_from: int, good_end: int) -> Suspect | None:
        """Return the `Suspect` of a queue, None when it is as recorded. `good_end` is the number after the
        last good unit of those from unit `read_from` on, at which a file begins.

        Of the older files only the first is summed, because reads begin there.
        """
        before = 0
        for first, end in sorted(self.rows(queue).items()):
            if first == BOUND:
                continue
            file = queue.file_of(first)
            why = None
            if file is None:
                why = "a file is missing" if end.log_end > self._log_minimum else None
            elif first >= read_from and good_end < end.following:
                why = f"unit {max(good_end, first):,} is missing; {end.following:,} units were recorded"
            elif (first >= read_from or file is queue.files[0]) and mapped_sum(
                file, end.following - first
            ) != end.sum:
                why = f"units from {first:,} to {end.following - 1:,} are not as they were"
            if why is not None:
                return Suspect(queue, first, max(before, self._log_minimum), why)
            before = end.log_end
        return None

    def unread(self, queue: ConsumeQueue, read_from: int) -> dict[int, FileEnd]:
        """Return, by base, the recorded files before unit `read_from` that `judge` did not sum."""
        files = {file.base: file for file in queue.files[1:]}
        return {
            first * UNIT: end
            for first, end in self.rows(queue).items()
            if 0 <= first < read_from and first * UNIT in files
        }

    def is_too_long(self, queue: ConsumeQueue) -> bool:
        """Return whether the queue has units after its recorded end, though nothing was written since."""
        return (
            self.is_exact
            and bool(self.rows(queue))
            and queue.maximum > self._ends.next_offset(queue.topic, queue.queue_id)
        )

    def log_end_of(self, queue: ConsumeQueue) -> int:
        """Return the log offset where the record of the last recorded unit ends, 0 when no file is
        recorded."""
        return max((end.log_end for end in self.rows(queue).values()), default=0)

    def first_missing(self, index: HashIndex, log_minimum: int) -> tuple[int, str] | None:
        """Return (the number of a recorded index file that is missing or empty, though the log holds its
        records; why), None without one.

        A start that ended before the next block leaves such a record too: then the comparison of the index
        finds nothing.
        """
        here = {int(file.name): file for file in index.files}
        for end in self._ends.index:
            if end.end_offset < log_minimum:
                continue
            file = here.get(end.name)
            if file is None or file.bounded_count <= FIRST_ENTRY < end.count:
                what = "is missing" if file is None else "has no entries any more"
                return sum(name < end.name for name in here), f"index file {end.name:017d} {what}"
        return None

    def first_changed(self, index: HashIndex) -> tuple[int, str] | None:
        """Return what `first_unsound` does, for a store that was written since the record: the recorded
        entries must still be there."""
        ends = {end.name: end for end in self._ends.index}
        for number, file in enumerate(index.files):
            end = ends.get(int(file.name))
            if end is None:
                continue
            is_full = end.count >= file.geometry.entries and number + 1 < len(index.files)
            if not has_recorded_entries(file, end) or (is_full and not ends_as_recorded(file, end)):
                return number, f"index file {end.name:017d} is not as it was recorded"
        return None

    def first_unsound(self, index: HashIndex, log_minimum: int) -> tuple[int, str] | None:
        """Return, for a store that must be as it was closed, (number of the first index file that is changed
        or missing; why); None without one."""
        here = [int(file.name) for file in index.files]
        for end in self._ends.index:
            if end.name not in here:
                if end.end_offset >= log_minimum or end is self._ends.index[-1]:
                    return sum(name < end.name for name in here), f"index file {end.name:017d} is missing"
                continue
            number = here.index(end.name)
            if not ends_as_recorded(index.files[number], end) or (
                self._compares_all and not has_recorded_entries(index.files[number], end)
            ):
                return number, f"index file {end.name:017d} is not as it was closed"
        return None


class KnownTopics:
    """The topics of config/topics.json. A topic that is in the log or in the record of ends, but not in that
    file, was deleted by a broker that keeps no tombstones.

    The file is used only after a stop in order: after a crash it may be older than the log. `read` returns
    the text of a file in config/, None without it.
    """

    def __init__(self, read: Callable[[str], str | None], was_clean: bool):
        self._names: frozenset[str] | None = None
        if not was_clean:
            return
        try:
            table = config_json.read(read("topics.json") or "")
        except FormatError:
            return  # nothing is known; the reader of the table reports what is wrong with it
        topics = table.get("topicConfigTable") if isinstance(table, dict) else None
        if isinstance(topics, dict):
            self._names = frozenset(topics)

    @property
    def is_known(self) -> bool:
        return self._names is not None

    def is_deleted(self, topic: str) -> bool:
        return (
            self._names is not None
            and topic not in self._names
            and not topic.startswith(queue_unit.LIGHT_QUEUE)
        )
