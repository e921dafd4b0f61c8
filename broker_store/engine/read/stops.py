"""Handling of the stops of the read kernels.

    kernel ──stops──► a file to enter or map ──► done here, and the kernel is called again
                  └─► pages to ask about ──────► `Residency.ask`: in memory, the kernel is called again
                                             └──► not in memory: False, a thread reads by position

Loop thread only. Nothing here waits for the disk: to map a file reads no byte of it, and `ask` touches no
page.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.index.hash_index import HashIndex
from broker_store.engine.log.commit_log import CommitLog
from broker_store.engine.queue.consume_queue import ConsumeQueue
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.errors import MapLimitError, StoreError
from broker_store.kernels import context as c


class ReadStops:
    """`words` are the R_* words of the kernels; a stop states in them what it needs."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: HashIndex,
        words: memoryview,
        wake: Callable[[Callable[[], None]], None],
        on_damage: Callable[[str, int], None],
    ):
        self._log, self._queues, self._index, self._words = log, queues, index, words
        self._wake, self._on_damage = wake, on_damage

    def can_continue_read(self, stopped: int, queue: ConsumeQueue, offset: int) -> bool:
        """Handle a stop of a read of a queue; return False when the read would wait for the disk. Raises
        StoreError."""
        if stopped == c.READ_UNENTERED:
            return self._enter(queue, offset)
        words = self._words
        number = words[c.R_ASK_FILE]
        file = queue.read_file if number == c.ASK_UNITS else self._log.files[number]
        assert file is not None  # the kernel has read units in it
        if stopped == c.READ_UNMAPPED:
            return self._map(file)
        return file.residency.ask(words[c.R_ASK_PLACE], words[c.R_ASK_BYTES], words[c.R_ROUND])

    def can_continue_lookup(self, stopped: int) -> bool:
        """Handle a stop of a lookup; return False when it would wait for the disk, or a record may have to be
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
            entered = self._queues.by_row(number).read_file
            assert entered is not None  # the kernel has read units in it
            return entered.residency.ask(place, size, words[c.R_ROUND])
        file = self._log.files[number]
        if stopped == c.LOOKUP_UNMAPPED:
            return self._map(file)
        return file.residency.ask(place, size, words[c.R_ROUND])

    def _enter(self, queue: ConsumeQueue, unit: int) -> bool:
        """Let the kernels read the file of a queue's unit; return False for a file that cannot be mapped: it
        is read by position then."""
        try:
            return queue.enter_for_reading(unit)
        except StoreError as error:
            self._report_unmapped(error, -1)
            return False

    def _map(self, file: MappedFile) -> bool:
        """Map a log file for the kernels; return False when that fails: it is read by position then, and each
        record is compared."""
        try:
            self._log.map_for_reading(file)
        except StoreError as error:
            self._report_unmapped(error, file.base)
            return False
        return True

    def _report_unmapped(self, error: StoreError, log_offset: int) -> None:
        """Report a file that was removed or made shorter as damage. A reached limit of maps is no damage."""
        if not isinstance(error, MapLimitError):
            cause = str(error)
            self._wake(lambda: self._on_damage(cause, log_offset))
