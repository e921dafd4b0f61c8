"""Comparison of queues and index with the log while recovery reads the log. Nothing is changed.

A killed process leaves queues and index as they were in memory, so mostly they are whole; after a power cut
any page may be old. The scan compares byte by byte (`kernels/agreement.py`): up to `end` everything is there,
and from there on it is built again. What lies below the first scanned log file is not compared: it was synced
before the stamps by which that file is chosen were set.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.dispatcher import Dispatcher, record_in
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.index.places import IndexPlace, PassedEntries, place_of
from broker_store.engine.queue.consume_queue import UNIT, ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.rows import Words, WriterContext
from broker_store.formats.index_file import FIRST_ENTRY, IndexHeader
from broker_store.kernels import context as c

_NEVER = 1 << 62


class Agreement:
    """One comparison. `address` is passed to the scan kernel. When the kernel needs something, it returns a
    stop code, and `provide` supplies it."""

    def __init__(
        self,
        context: WriterContext,
        queues: ConsumeQueues,
        index: HashIndex,
        dispatcher: Dispatcher[ConsumeQueue],
        place: IndexPlace | None,
        is_of_deleted: Callable[[int, str, ConsumeQueue | None, int], bool],
    ):
        """`is_of_deleted(log offset, topic, queue, unit)` returns whether a record is of a topic that was
        deleted after it, and notes that topic; `queue` is the one whose unit points further on in the log,
        None where the topic has no queue."""
        self._queues, self._index, self._dispatcher, self._is_of_deleted = (
            queues,
            index,
            dispatcher,
            is_of_deleted,
        )
        self._words = Words(c.A_WORDS)
        self._words[c.A_WRITER] = context.address
        self._words[c.A_END] = self._words[c.A_LAST_OFFSET] = -1
        self._words[c.A_INDEX_FROM] = _NEVER if place is None else place.log_offset + 1
        self._words[c.A_ENTRY_AT] = FIRST_ENTRY
        self._file = -1
        # Queues that begin after a unit whose record is in the log: retention does not cause that, so their
        # first file is missing.
        self.headless: list[ConsumeQueue] = []
        self.passed: list[PassedEntries] = []
        if place is not None and self._index.files:
            self._enter(place.file, place.entry)

    @property
    def address(self) -> int:
        return self._words.address

    @property
    def stops_without_queue(self) -> bool:
        """True if the scan stops at records of topics without a queue, to find out whether the topic was
        deleted; otherwise such a record differs."""
        return self._words[c.A_STOPS_WITHOUT_QUEUE] == 1

    @stops_without_queue.setter
    def stops_without_queue(self, stops: bool) -> None:
        self._words[c.A_STOPS_WITHOUT_QUEUE] = int(stops)

    def allow_no_tags(self) -> None:
        """Accept records without the entry of their tag: Apache's brokers before 5.4 write none."""
        self._words[c.A_TAGS] = 1
        if self._file >= 0:
            self._note_last(self._file)

    def _note_last(self, number: int) -> None:
        if self._words[c.A_TAGS]:
            follow = self._index.files[number + 1 :]
            self._words[c.A_TAGS] = 1 if any(file.header().count > FIRST_ENTRY for file in follow) else 2

    @property
    def end(self) -> int | None:
        """Log offset of the first record that is missing or differs, None while there is none."""
        end = self._words[c.A_END]
        return None if end < 0 else end

    def index_place(self, log_end: int) -> IndexPlace:
        """Return the place after the entries of records below `log_end` that agreed."""
        return IndexPlace(max(self._file, 0), self._words[c.A_ENTRY_AT], log_end)

    def ends_with(self, newest: IndexHeader) -> bool:
        """Return whether the newest file's header has the store time and log offset of the record of its last
        entry; True if no entry was compared."""
        last = self._words[c.A_LAST_MS], self._words[c.A_LAST_OFFSET]
        return last[1] < 0 or last == (newest.end_timestamp, newest.end_offset)

    def pass_entries(self, bad: int, log_offset: int) -> None:
        """Skip the entries of records from `bad` to `log_offset` of the log: that part is damaged, so they
        cannot be compared."""
        if self._file < 0:
            return
        place = place_of(self._index.files, log_offset)
        if (place.file, place.entry) > (self._file, self._words[c.A_ENTRY_AT]):
            self.passed.append(PassedEntries(self.index_place(bad), place, bad, log_offset))
            self._enter(place.file, place.entry)
            self._words[c.A_INDEX_FROM] = place.log_offset + 1
            self._words[c.A_KEYS_SEEN], self._words[c.A_LAST_OFFSET] = 0, -1

    def stop(self, offset: int) -> None:
        """End the comparison: nothing at or beyond `offset` was compared."""
        self._words[c.A_END] = offset

    def provide(self, stopped: int, file: MappedFile, offset: int) -> bool:
        """Supply what the scan stopped for at the record at `offset`; return False when that is impossible:
        then the record lacks its unit or an index entry."""
        words = self._words
        if stopped == c.QUEUE_FILE_END:
            queue, unit = self._queues.by_row(words[c.A_QUEUE]), words[c.A_UNIT]
            holding = queue.file_of(unit)
            if holding is not None:
                queue.compare_in(holding)
            elif queue.files and unit * UNIT < queue.files[0].base:
                self.headless.append(queue)
            return holding is not None
        if stopped == c.DELAYED_RECORD:
            self._dispatcher.compute_tags_code(file, offset)
            return True
        if stopped == c.LATER_UNIT:
            queue = self._queues.by_row(words[c.A_QUEUE])
            return self._is_of_deleted(offset, queue.topic, queue, words[c.A_UNIT])
        if stopped == c.UNKNOWN_QUEUE:
            return self._is_of_deleted(offset, record_in(file, offset).topic, None, -1)
        return self._next_index_file()

    def _enter(self, number: int, entry: int) -> None:
        file, words = self._index.files[number], self._words
        header = file.header()
        before = self._index.files[number - 1].header().end_timestamp if number else 0
        self._file = number
        words[c.A_ENTRIES] = file.map().address + file.geometry.entries_at
        words[c.A_ENTRY_AT] = entry
        words[c.A_ENTRY_END] = file.bounded_count
        words[c.A_BEGIN_MS], words[c.A_BEGIN_OFFSET] = header.begin_timestamp, header.begin_offset
        words[c.A_BEFORE_MS] = before
        self._note_last(number)

    def _next_index_file(self) -> bool:
        """Enter the next file, if this one's header agrees with its last entry; return whether that was
        done."""
        following = self._file + 1
        if following >= len(self._index.files):
            return False
        if self._words[c.A_LAST_OFFSET] >= 0:
            header = self._index.files[self._file].header()
            if (header.end_timestamp, header.end_offset) != (
                self._words[c.A_LAST_MS],
                self._words[c.A_LAST_OFFSET],
            ):
                return False
        self._enter(following, 1)
        return True
